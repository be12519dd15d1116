//! Listens, with the limits of the endpoint's connections, and drains on a stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use furrow_http::{AccessControl, HttpLimits, HttpServer, ServerTasks, TokenError};
use tokio_util::sync::CancellationToken;

use super::access::access_control;
use super::chats::ChatService;
use super::routes::{ChatRoutes, router};
use crate::config::ServeConfig;
use crate::model::ChatEngine;

/// An endpoint that listens but does not answer yet.
#[derive(Debug)]
pub struct ChatEndpoint {
    http: HttpServer,
    access: AccessControl,
    config: ServeConfig,
}

/// Why the endpoint could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The token file cannot be used.
    #[error("policy.serve.token_file: the file cannot be used")]
    Token(#[source] TokenError),
    /// The address cannot be bound.
    #[error("policy.serve.listen: cannot listen on {address}; use another port, or 0 for a free one")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Interval at which idle sessions are dropped.
const SWEEP: Duration = Duration::from_millis(500);

impl ChatEndpoint {
    /// Reads the token and binds the configured address.
    pub async fn bind(config: &ServeConfig) -> Result<Self, ServeError> {
        let access = access_control(config.token_file.as_deref()).map_err(ServeError::Token)?;
        let address = config.listen;
        let bound = HttpServer::bind(address, limits(config)).await;
        let http = bound.map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self { http, access, config: config.clone() })
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// The limits of its connections, which no setting names. Tests shorten them.
    pub fn limits_mut(&mut self) -> &mut HttpLimits {
        &mut self.http.limits
    }

    /// Answers until `stop` is cancelled, then drains within `grace`. Returns how many answers were
    /// cut.
    pub(crate) async fn serve(
        self,
        chat_engine: ChatEngine,
        stop: CancellationToken,
        grace: Duration,
    ) -> usize {
        let Self { http, access, config } = self;
        let tasks = ServerTasks::new(stop.clone());
        let chats = Arc::new(ChatService::new(chat_engine, config));
        let routes = ChatRoutes::new(chats.clone(), tasks.clone(), http.limits.body_timeout);
        tasks.tracker.spawn(sweep(chats.clone(), stop));
        http.serve(router(routes.clone(), access), &tasks).await;
        let cut_off = match tasks.drain(grace).await {
            true => 0,
            false => routes.at_work(),
        };
        tasks.cut().await;
        chats.residents.clear();
        cut_off
    }
}

fn limits(config: &ServeConfig) -> HttpLimits {
    HttpLimits {
        connections_max: config.connections_max,
        head_bytes_max: 256 << 10,
        head_timeout: Duration::from_secs(60),
        body_timeout: Duration::from_secs(60),
        write_timeout: Duration::from_secs(60),
        connection_timeout: None,
    }
}

async fn sweep(chats: Arc<ChatService>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        chats.residents.sweep();
    }
}
