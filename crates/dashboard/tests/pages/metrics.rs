//! The metrics of the API, compared with a Python script that computes them from the Parquet files
//! and `metrics.jsonl` alone.

use std::process::Command;

use crate::harness::TestDashboard;

#[tokio::test(flavor = "multi_thread")]
async fn figures_agree_with_those_of_a_script() {
    let dashboard = TestDashboard::night_run().await;
    let mut files = Vec::new();
    for name in ["overview", "learning", "job"] {
        let path = dashboard.dir.path().join(format!("{name}.json"));
        std::fs::write(&path, dashboard.get(&format!("/api/{name}")).await.to_string()).unwrap();
        files.push(path);
    }
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/dashboard_metrics.py");
    let output = Command::new(python).arg(script).arg(dashboard.dir.path()).args(&files).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    dashboard.close().await;
}
