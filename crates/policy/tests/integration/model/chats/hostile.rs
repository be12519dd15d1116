//! Hostile HTTP clients: the endpoint refuses or drops them, and answers others.

use furrow_testkit::hostile_http::HttpTarget;

use super::*;

const TOKEN: &str = "correct-horse-battery";
const BODY_BYTES_MAX: usize = 4096;
const CONNECTIONS: usize = 3;
const SHORT: Duration = Duration::from_millis(250);
/// Longer than a test runs.
const LONG: Duration = Duration::from_secs(600);

/// Runs a blocking check against an endpoint with these limits, which then drains.
async fn check(
    token: Option<&'static str>,
    limit: impl FnOnce(&mut HttpLimits),
    check: impl FnOnce(&HttpTarget) + Send + 'static,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, token.unwrap_or_default()).unwrap();
    let change = |file: &mut PolicyFile| {
        file.serve.token_file = token.map(|_| path);
        file.serve.body_bytes_max = BODY_BYTES_MAX as u64;
        file.serve.connections_max = CONNECTIONS as u32;
    };
    let worker = start_limited(GRACE, change, limit).await;
    let target = HttpTarget {
        address: worker.address,
        token,
        page: "/v1/models",
        form: "/v1/chat/completions",
        form_bytes_max: BODY_BYTES_MAX,
        form_needs_token: true,
        // With a token, programs send requests for pages of any origin.
        checks_origin: token.is_none(),
    };
    tokio::task::spawn_blocking(move || check(&target)).await.unwrap();
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_are_refused() {
    for token in [None, Some(TOKEN)] {
        check(token, |_| {}, HttpTarget::assert_requests).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_make_way_for_others() {
    let limit = |limits: &mut HttpLimits| {
        limits.head_timeout = SHORT;
        limits.body_timeout = SHORT;
        limits.write_timeout = SHORT;
    };
    check(None, limit, |target| target.assert_slow_clients(CONNECTIONS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_have_a_bound() {
    let limit = |limits: &mut HttpLimits| limits.head_timeout = LONG;
    check(None, limit, |target| target.assert_connections_max(CONNECTIONS)).await;
}
