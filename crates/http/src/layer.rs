//! The access control as a layer around the routes of a role.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::Response;
use futures::future::{Either, Ready, ready};
use tower::{Layer, Service};

use crate::access::{AccessControl, AccessRefusal};

/// Answers refused requests, and browsers that sign in by a link, before a route sees them.
#[derive(Debug, Clone)]
pub struct AccessLayer {
    access: Arc<AccessControl>,
    refuse: RefusalResponse,
}

/// The service of an [`AccessLayer`].
#[derive(Debug, Clone)]
pub struct AccessService<S> {
    layer: AccessLayer,
    inner: S,
}

/// Makes the response to a refused request, in the form of the role.
type RefusalResponse = fn(AccessRefusal, &Request) -> Response;

impl AccessLayer {
    pub fn new(access: Arc<AccessControl>, refuse: fn(AccessRefusal, &Request) -> Response) -> Self {
        Self { access, refuse }
    }

    /// The response to a request that no route may see.
    fn response(&self, request: &Request) -> Option<Response> {
        let decision = self.access.decide(request.method(), request.headers());
        if decision != Err(AccessRefusal::Foreign)
            && let Some(sign_in) = &self.access.sign_in
        {
            // The route of the form checks the token itself.
            if sign_in.is_form(request.method(), request.uri()) {
                return None;
            }
            // The token is removed from the URL at once, also where it was not needed.
            if let Some(redirect) = sign_in.answer_link(request.uri()) {
                return Some(redirect);
            }
        }
        decision.err().map(|refusal| (self.refuse)(refusal, request))
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = AccessService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AccessService { layer: self.clone(), inner }
    }
}

impl<S: Service<Request, Response = Response>> Service<Request> for AccessService<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.layer.response(&request) {
            Some(response) => Either::Left(ready(Ok(response))),
            None => Either::Right(self.inner.call(request)),
        }
    }
}
