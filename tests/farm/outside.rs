//! A farm whose processes have certificates of a cluster's issuer, each in a folder of its own, and
//! callers whose certificates the same issuer wrote for something else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use furrow_testkit::outside::OutsideAuthority;

use crate::farm::{FarmBrowser, FarmHarness, FarmRole, furrow, simulated_tasks};
use crate::small_run::text;

const GROUPS: u32 = 6;
const GROUP_SIZE: u32 = 2;

/// A folder with a certificate for this URI.
fn issued(authority: &OutsideAuthority, folder: &Path, uri: &str) -> PathBuf {
    let dir = folder.join(uri.rsplit('/').next().unwrap());
    authority.write(&dir, uri);
    dir
}

#[test]
fn a_farm_runs_with_certificates_of_a_cluster_and_takes_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let authority = OutsideAuthority::new("cluster");
    let of_run = |tail: &str| issued(&authority, here, &format!("spiffe://lab.example/ns/rl/furrow/{tail}"));
    let tasks = simulated_tasks(here, GROUPS, GROUP_SIZE);
    let mut farm = FarmHarness::new(
        FarmBrowser::Simulated(3000),
        &format!(
            "{tasks}[policy]\nkind = \"scripted\"\nthink_millis = 15\n[limits]\nheartbeat_millis = 300\n"
        ),
    );
    let head = of_run("run/coordinator/head");
    farm.environment("FURROW_IDENTITY", head.to_str().unwrap());
    farm.start(FarmRole::Coordinator);
    farm.environment("FURROW_IDENTITY", "");
    // The coordinator's address is in its run directory once it has read its certificate.
    let address = farm.coordinator_address();
    let identity_dir = farm.run_dir().join("identity");
    let began = std::time::Instant::now();
    while !identity_dir.join("trust-domain").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", farm.outputs());
        crate::farm::pause();
    }
    let domain = std::fs::read_to_string(identity_dir.join("trust-domain")).unwrap();
    assert_eq!(domain.trim(), "lab.example/ns/rl");
    assert!(!identity_dir.join("authority.key").exists(), "the run issues certificates beside");

    // Of another run, of another part of the cluster, and of no run at all: none gets a lease.
    let job = here.join("elsewhere.toml");
    std::fs::write(&job, format!("[run]\nname = \"run\"\noutput_dir = {here:?}\n{tasks}")).unwrap();
    for uri in [
        "spiffe://lab.example/ns/rl/furrow/other/env/thief-1",
        "spiffe://lab.example/ns/web/furrow/run/env/thief-2",
        "spiffe://lab.example/ns/rl/sa/thief-3",
    ] {
        let stranger = issued(&authority, here, uri);
        let refused = furrow(
            &[
                "env",
                job.to_str().unwrap(),
                "--coordinator",
                &address,
                "--identity",
                stranger.to_str().unwrap(),
                "--simulate-browser=3000",
                "--set=env.coordinator_retry_timeout_millis=1500",
            ],
            here,
        );
        assert_ne!(refused.status.code(), Some(0), "{uri}: {}", text(&refused));
        assert!(text(&refused).contains("furrow/"), "{uri}: {}", text(&refused));
    }
    // The run's own authority is none any more.
    let run = farm.run_dir();
    let issuing = ["identity", "issue", "env", "gpu1", "--run", run.to_str().unwrap(), "--out", "gpu1"];
    let refused = furrow(&issuing, here);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("spiffe://lab.example/ns/rl"), "{}", text(&refused));

    farm.start_elsewhere(FarmRole::Policy, &of_run("run/policy/gpu1"));
    farm.start_elsewhere(FarmRole::Env, &of_run("run/env/pages1"));
    farm.finish(Duration::from_secs(180));
    farm.check(GROUPS, GROUP_SIZE).unwrap_or_else(|breaches| panic!("{breaches}"));
    let logs = std::fs::read_to_string(farm.run_dir().join("logs/coordinator.jsonl")).unwrap();
    assert!(logs.contains("pages1.") && !logs.contains("thief"), "the workers are those of the certificates");
}
