//! The paths of a dashboard over a folder of runs: the pages over all of them, and below
//! `/run/KEY/` those of one.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use furrow_http::{AccessControl, AccessLayer};
use http::header::{self, HeaderValue};
use http::{StatusCode, Uri};
use serde::Serialize;
use tokio::sync::Semaphore;
use tower::{Layer as _, Service as _};

use crate::access::SIGN_IN_PATH;
use crate::api_error::DashboardApiError;
use crate::routes::{self, ApiResponse, json_response};
use crate::runs::RunsState;

#[derive(Clone)]
struct FolderRoutes {
    access: Arc<AccessControl>,
    state: Arc<RunsState>,
    /// Limits the answers that read whole tables.
    busy: Arc<Semaphore>,
    form_timeout: Duration,
}

type Routes = State<FolderRoutes>;

/// Answers that are made at the same time: each may read every run.
const BUSY_MAX: usize = 2;

pub(crate) fn router(access: Arc<AccessControl>, state: Arc<RunsState>, form_timeout: Duration) -> Router {
    let layer = AccessLayer::new(access.clone(), routes::refuse);
    let busy = Arc::new(Semaphore::new(BUSY_MAX));
    let folder = FolderRoutes { access, state, busy, form_timeout };
    let paths = Router::new()
        .route("/", get(to_runs))
        .route("/runs", get(routes::index))
        .route("/compare", get(routes::index))
        .route("/assets/{name}", get(routes::named_asset))
        .route("/favicon.ico", get(routes::icon))
        .route(SIGN_IN_PATH, post(sign_in))
        .route("/api/runs", get(runs))
        .route("/api/compare", get(compare))
        .route("/run/{key}", any(run))
        .route("/run/{key}/{*rest}", any(run))
        .route("/metrics", get(routes::process_metrics))
        .fallback(routes::unknown_path)
        .with_state(folder);
    let paths = axum::middleware::map_request(routes::trim_slashes).layer(paths);
    Router::new()
        .fallback_service(paths)
        .layer(layer)
        .layer(axum::middleware::map_response(routes::with_headers))
}

async fn to_runs() -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/runs"));
    response
}

async fn sign_in(State(folder): Routes, request: Request) -> Response {
    routes::signed_in(&folder.access, folder.form_timeout, request).await
}

async fn runs(State(folder): Routes) -> ApiResponse {
    folder.read(|state| Ok(state.runs())).await
}

async fn compare(State(folder): Routes, RawQuery(query): RawQuery) -> ApiResponse {
    folder.read(move |state| state.compare(&query.unwrap_or_default())).await
}

/// Passes a request on to the dashboard of its run, which knows no prefix.
async fn run(State(folder): Routes, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let inner = path.strip_prefix("/run/").unwrap_or_default();
    let (key, rest) = inner.split_once('/').unwrap_or((inner, ""));
    let key = key.to_owned();
    let state = folder.state.clone();
    let opened = tokio::task::spawn_blocking(move || state.open(&key)).await;
    let mut router = match opened {
        Ok(Ok(router)) => router,
        Ok(Err(why)) => return why.into_response(),
        Err(_) => {
            return DashboardApiError::Unreadable("the run cannot be opened".to_owned()).into_response();
        }
    };
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    let Ok(uri) = Uri::try_from(format!("/{rest}{query}")) else {
        return DashboardApiError::BadRequest("the address cannot be read".to_owned()).into_response();
    };
    let mut request = request;
    *request.uri_mut() = uri;
    // The captures of this router would come before those of the run's own.
    request.extensions_mut().clear();
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

impl FolderRoutes {
    async fn read<T: Serialize + Send + 'static>(
        &self,
        read: impl FnOnce(&RunsState) -> Result<T, DashboardApiError> + Send + 'static,
    ) -> ApiResponse {
        let stopping = || DashboardApiError::Timeout("the dashboard is stopping".to_owned());
        let permit = self.busy.clone().acquire_owned().await.map_err(|_| stopping())?;
        let state = self.state.clone();
        let made = tokio::task::spawn_blocking(move || {
            let made = read(&state);
            drop(permit);
            made
        });
        json_response(&made.await.map_err(|_| stopping())??)
    }
}
