//! The services behind one address: Engram's own, dm-reverb's, and the health of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use engram_reverb::Reverb;
use engram_reverb::pb::reverb_service_server::ReverbServiceServer;
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as Tower};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::connection::Called;
use super::counts::{Call, Ongoing};
use super::service::{Service, Shared};
use crate::pb::engram_server::EngramServer;

/// Where the health service's calls are.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Hands calls to the service that they name; those that nobody knows, Engram's refuses.
#[derive(Debug)]
pub(super) struct Calls<H> {
    pub(super) engram: EngramServer<Service>,
    pub(super) reverb: ReverbServiceServer<Reverb>,
    pub(super) health: HealthServer<H>,
    pub(super) shared: Arc<Shared>,
}

impl<H> Clone for Calls<H> {
    fn clone(&self) -> Self {
        Self {
            engram: self.engram.clone(),
            reverb: self.reverb.clone(),
            health: self.health.clone(),
            shared: Arc::clone(&self.shared),
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
        } else if let Some(method) = path.strip_prefix(engram_reverb::PATH) {
            let call = Call::of_reverb(method);
            let call = call.map(|call| self.shared.counts.of(call).begin());
            let answer = self.reverb.call(request);
            match call {
                Some(call) => Box::pin(counted(answer, call)),
                None => answer,
            }
        } else {
            self.engram.call(request)
        }
    }
}

/// The same answer, of a call that is over when all of it was sent, or nobody is there to read it.
async fn counted(
    answer: BoxFuture<Response<Body>, Infallible>,
    call: Ongoing,
) -> Result<Response<Body>, Infallible> {
    let answer = answer.await?;
    Ok(answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &call;
            frame
        }))
    }))
}
