//! The services behind one address: Engram's own, dm-reverb's, and the health of them.

use std::convert::Infallible;
use std::task::{Context, Poll};

use engram_reverb::Reverb;
use engram_reverb::pb::reverb_service_server::ReverbServiceServer;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as Tower};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::connection::Called;
use super::service::Service;
use crate::pb::engram_server::EngramServer;

/// Where the health service's calls are.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Hands calls to the service that they name; those that nobody knows, Engram's refuses.
#[derive(Debug)]
pub(super) struct Calls<H> {
    pub(super) engram: EngramServer<Service>,
    pub(super) reverb: ReverbServiceServer<Reverb>,
    pub(super) health: HealthServer<H>,
}

impl<H> Clone for Calls<H> {
    fn clone(&self) -> Self {
        Self {
            engram: self.engram.clone(),
            reverb: self.reverb.clone(),
            health: self.health.clone(),
        }
    }
}

impl<H: Health> Tower<Request<Body>> for Calls<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if let Some(called) = request.extensions().get::<Called>() {
            called.note();
        }
        let path = request.uri().path();
        if path.starts_with(HEALTH) {
            self.health.call(request)
        } else if path.starts_with(engram_reverb::PATH) {
            self.reverb.call(request)
        } else {
            self.engram.call(request)
        }
    }
}
