//! The layer of every server with identities: finds out who calls, and passes on what the caller's
//! role allows.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use furrow_identity::Peer;
use futures::future::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower::Layer;

use crate::access::{Caller, permit};

/// Wraps all services of a server, health and reflection included.
#[derive(Debug, Clone, Copy)]
pub struct AuthorizeLayer {
    /// Whether callers are identified. Without it every call passes.
    pub(crate) required: bool,
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize { inner, required: self.required }
    }
}

/// A service behind an [`AuthorizeLayer`].
#[derive(Debug, Clone)]
pub struct Authorize<S> {
    inner: S,
    required: bool,
}

impl<S> Service<http::Request<Body>> for Authorize<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if self.required {
            match identify(&request) {
                Ok(caller) => drop(request.extensions_mut().insert(caller)),
                Err(status) => return Either::Left(ready(Ok(status.into_http()))),
            }
        }
        Either::Right(self.inner.call(request))
    }
}

/// The caller of a request that it may make.
fn identify(request: &http::Request<Body>) -> Result<Caller, Status> {
    let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let certificates = connection.and_then(TlsConnectInfo::peer_certs);
    let Some(certificate) = certificates.as_ref().and_then(|all| all.first()) else {
        return Err(Status::unauthenticated(
            "the call came without a certificate; use an identity that the run's authority issued",
        ));
    };
    let peer = Peer::of_certificate(certificate).map_err(|why| {
        Status::unauthenticated(format!("{why}; issue another with `furrow identity issue`"))
    })?;
    permit(&peer, request.uri().path())?;
    Ok(Caller::identified(peer))
}
