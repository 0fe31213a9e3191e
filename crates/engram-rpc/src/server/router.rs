//! Routes calls to the services behind one address: Engram's, dm-reverb's and gRPC's health service.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use engram_codec::CallBudget;
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as TowerService};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::connection::ConnectionInfo;
use super::counters::{Call, OpenGuard};
use super::reverb::ReverbService;
use super::service::Service;
use super::service_state::ServiceState;
use super::whole_messages::WholeMessages;
use crate::MAX_MESSAGE_BYTES;
use crate::pb::engram_server::EngramServer;

/// Path prefix of the health service.
const HEALTH_PATH: &str = "/grpc.health.v1.Health/";

/// Passes each call to the service that its path names. Engram's service also receives the calls with unknown paths,
/// which it rejects.
#[derive(Debug)]
pub(super) struct Router<H> {
    pub(super) engram: EngramServer<Service>,
    pub(super) reverb: ReverbService,
    pub(super) health: HealthServer<H>,
    pub(super) state: Arc<ServiceState>,
}

impl<H> Clone for Router<H> {
    fn clone(&self) -> Self {
        Self {
            engram: self.engram.clone(),
            reverb: self.reverb.clone(),
            health: self.health.clone(),
            state: Arc::clone(&self.state),
        }
    }
}

impl<H: Health> TowerService<Request<Body>> for Router<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(connection) = request.extensions().get::<ConnectionInfo>() {
            connection.first_call.set();
            let budget = connection.reply_budget.clone();
            request.extensions_mut().insert(budget);
        }
        self.route(request)
    }
}

impl<H: Health> Router<H> {
    /// Passes a call to its service, which receives each message of the request once all of its bytes have arrived.
    fn route(&mut self, request: Request<Body>) -> BoxFuture<Response<Body>, Infallible> {
        let path = request.uri().path();
        let reverb_method = ReverbService::method(path);
        let max_message_bytes = match reverb_method {
            Some(_) => ReverbService::MAX_MESSAGE_BYTES,
            None => MAX_MESSAGE_BYTES,
        };
        let reverb_call = reverb_method.map(Call::from_reverb_method);
        let is_health = path.starts_with(HEALTH_PATH);
        let request = request.map(|body| Body::new(WholeMessages::new(body, max_message_bytes)));
        if is_health {
            self.health.call(request)
        } else if let Some(call) = reverb_call {
            let open_call = call.map(|call| self.state.counters.get(call).begin());
            Box::pin(wrap_body(self.reverb.call(request), open_call))
        } else {
            Box::pin(wrap_body(self.engram.call(request), None))
        }
    }
}

/// Wraps the response's body so that memory reserved for its replies is freed once they are sent. Drops `open_call`
/// once the response was sent completely or the client is gone; it is `None` for unknown calls, and for those of
/// Engram's service, which counts its calls itself.
async fn wrap_body(
    response: BoxFuture<Response<Body>, Infallible>,
    open_call: Option<OpenGuard>,
) -> Result<Response<Body>, Infallible> {
    let mut response = response.await?;
    Ok(match (CallBudget::take_from(&mut response), open_call) {
        (Some(budget), open_call) => response.map(|body| Body::new(budget.wrap(body, open_call))),
        (None, Some(open_call)) => response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &open_call;
                frame
            }))
        }),
        (None, None) => response,
    })
}
