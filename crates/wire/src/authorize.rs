//! The layer of every server with identities: finds out who calls, and passes on what the caller's
//! role allows.

use std::future::{Future, Ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use furrow_identity::Peer;
use futures::future::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower::Layer;

use crate::access::{Caller, permit};
use crate::budget::{CallPermit, PeerBudgets};
use crate::revocations::Revocations;

/// Wraps all services of a server, health and reflection included.
#[derive(Debug, Clone)]
pub struct AuthorizeLayer {
    /// The server itself, whose run its callers must be of. Without it every call passes.
    pub(crate) own: Option<Peer>,
    /// Identified callers that are refused.
    pub(crate) revocations: Revocations,
    /// What identified callers may take at a time.
    pub(crate) budgets: PeerBudgets,
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize { inner, layer: self.clone() }
    }
}

/// A service behind an [`AuthorizeLayer`].
#[derive(Debug, Clone)]
pub struct Authorize<S> {
    inner: S,
    layer: AuthorizeLayer,
}

impl<S> Service<http::Request<Body>> for Authorize<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, CountedCall<S::Future>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(own) = &self.layer.own else {
            return Either::Right(CountedCall { call: self.inner.call(request), permit: None });
        };
        match self.layer.admit(own, &mut request) {
            Ok(permit) => {
                let request = request.map(|body| permit.bound(body));
                Either::Right(CountedCall { call: self.inner.call(request), permit: Some(permit) })
            }
            Err(status) => Either::Left(std::future::ready(Ok(status.into_http()))),
        }
    }
}

impl AuthorizeLayer {
    /// Identifies the caller for the service and counts its call, or refuses it.
    fn admit(&self, own: &Peer, request: &mut http::Request<Body>) -> Result<CallPermit, Status> {
        let (caller, peer, from) = identify(request, own, &self.revocations)?;
        let permit = self.budgets.begin(&peer, from)?;
        request.extensions_mut().insert(caller);
        Ok(permit)
    }
}

pin_project_lite::pin_project! {
    /// A call that is counted until its response has ended.
    #[derive(Debug)]
    pub struct CountedCall<F> {
        #[pin]
        call: F,
        permit: Option<CallPermit>,
    }
}

impl<F, E> Future for CountedCall<F>
where
    F: Future<Output = Result<http::Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.call.poll(context))?;
        let counted = match this.permit.take() {
            Some(permit) => response.map(|body| permit.until_the_end_of(body)),
            None => response,
        };
        Poll::Ready(Ok(counted))
    }
}

/// The caller of a request that it may make.
fn identify(
    request: &http::Request<Body>,
    own: &Peer,
    revocations: &Revocations,
) -> Result<(Caller, Peer, SocketAddr), Status> {
    let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let from = connection.and_then(|connection| connection.get_ref().remote_addr());
    let certificates = connection.and_then(TlsConnectInfo::peer_certs);
    let Some(certificate) = certificates.as_ref().and_then(|all| all.first()) else {
        return Err(Status::unauthenticated(
            "the call came without a certificate; use an identity that the run's authority issued",
        ));
    };
    let peer = Peer::of_certificate(certificate).map_err(|why| Status::unauthenticated(why.to_string()))?;
    if !peer.is_of_same_run(own) {
        return Err(Status::unauthenticated(format!(
            "the certificate is of {peer}, and this server is {own}: it takes calls of its own run alone"
        )));
    }
    revocations.check(&peer)?;
    permit(&peer, request.uri().path())?;
    // A listener of another kind than TCP has one connection for this purpose.
    let from = from.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    Ok((Caller::identified(peer.clone()), peer, from))
}
