//! The calls of Engram's gRPC service, passed to the modules that serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_codec::{CallBudget, ReplyStream};
use engram_core::Result;
use engram_core::pool::Pool;
use engram_engine::Engine;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::connection::ConnectionInfo;
use super::counters::{Call, Counters, OpenGuard};
use super::listeners::Listeners;
use super::shutdown::ShutdownSignal;
use super::{ServerOptions, change, insert, manage, sample, scan};
use crate::pb::engram_server::Engram;
use crate::{MAX_BATCH_BYTES, PROTOCOL_VERSION, pb, random_u64};

/// The replies of a stream, as its task sends them.
pub(super) type Replies<T> = ReceiverStream<Result<T, Status>>;

/// Engram's gRPC service.
#[derive(Clone, Debug)]
pub(super) struct Service {
    state: Arc<ServiceState>,
}

/// What all calls of one server share.
#[derive(Debug)]
pub(super) struct ServiceState {
    pub(super) engine: Arc<Engine>,
    pub(super) shutdown: ShutdownSignal,
    pub(super) lease_timeout: Duration,
    /// Buffers for batches.
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Counters,
    /// Each table that a client creates without a seed gets a different seed, computed from this one.
    seed: u64,
    /// Number of seeds computed so far: one per request to create a table.
    num_seeds: AtomicU64,
    /// Random number that identifies this server.
    instance: u64,
    /// The TCP port of the server.
    port: u16,
    /// Name of the abstract Unix socket; empty if there is none.
    local_socket: String,
}

impl ServiceState {
    /// Returns a seed for a new table, different from those returned before.
    pub(super) fn next_seed(&self) -> u64 {
        let number = self.num_seeds.fetch_add(1, Ordering::Relaxed) + 1;
        self.seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Service {
    pub(super) fn new(
        engine: Arc<Engine>,
        options: &ServerOptions,
        listeners: &Listeners,
        shutdown: ShutdownSignal,
    ) -> Result<Self> {
        let local = listeners.local.as_ref();
        Ok(Self {
            state: Arc::new(ServiceState {
                engine,
                shutdown,
                lease_timeout: options.lease_timeout,
                pool: Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES)),
                counters: Counters::default(),
                seed: options.seed,
                num_seeds: AtomicU64::new(0),
                instance: random_u64()?,
                port: listeners.address.port(),
                local_socket: local.map_or_else(String::new, |(_, name)| name.clone()),
            }),
        })
    }

    pub(super) fn state(&self) -> &Arc<ServiceState> {
        &self.state
    }

    fn begin(&self, call: Call) -> OpenGuard {
        self.state.counters.get(call).begin()
    }
}

#[tonic::async_trait]
impl Engram for Service {
    type InsertStream = Replies<pb::InsertResponse>;
    type SampleStream = ReplyStream<pb::SampleResponse>;
    type ChangeStream = Replies<pb::ChangeResponse>;
    type ScanStream = ReplyStream<pb::ScanResponse>;

    async fn hello(
        &self,
        request: Request<pb::HelloRequest>,
    ) -> Result<Response<pb::HelloResponse>, Status> {
        let _call = self.begin(Call::Hello);
        let version = env!("CARGO_PKG_VERSION");
        let client = request.into_inner();
        if client.protocol != PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "protocol versions differ: the client uses version {}, this server (Engram \
                 {version}) uses version {PROTOCOL_VERSION}; install the same version of Engram on both",
                client.protocol
            )));
        }
        Ok(Response::new(pb::HelloResponse {
            protocol: PROTOCOL_VERSION,
            version: version.into(),
            instance: self.state.instance,
            port: self.state.port.into(),
            local_socket: self.state.local_socket.clone(),
            lease_timeout_s: Some(self.state.lease_timeout.as_secs_f64()),
        }))
    }

    async fn manage(
        &self,
        request: Request<pb::ManageRequest>,
    ) -> Result<Response<pb::ManageResponse>, Status> {
        let _call = self.begin(Call::Manage);
        let reply = manage::manage(&self.state, request.into_inner()).await;
        Ok(Response::new(reply))
    }

    async fn insert(
        &self,
        request: Request<Streaming<pb::InsertRequest>>,
    ) -> Result<Response<Self::InsertStream>, Status> {
        let call = self.begin(Call::Insert);
        let replies = insert::serve(&self.state, request.into_inner(), call);
        Ok(Response::new(replies))
    }

    async fn sample(
        &self,
        request: Request<Streaming<pb::SampleRequest>>,
    ) -> Result<Response<Self::SampleStream>, Status> {
        let call = self.begin(Call::Sample);
        let call_budget = CallBudget::of(&request);
        let stream = sample::serve(&self.state, request.into_inner(), call_budget, call);
        Ok(stream.into_response())
    }

    async fn change(
        &self,
        request: Request<Streaming<pb::ChangeRequest>>,
    ) -> Result<Response<Self::ChangeStream>, Status> {
        let call = self.begin(Call::Change);
        let replies = change::serve(&self.state, request.into_inner(), call);
        Ok(Response::new(replies))
    }

    async fn scan(
        &self,
        request: Request<Streaming<pb::ScanRequest>>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let call = self.begin(Call::Scan);
        let call_budget = CallBudget::of(&request);
        let connection = request.extensions().get::<ConnectionInfo>();
        let scans = connection.map(|connection| Arc::clone(&connection.scans));
        let scans = scans.unwrap_or_default();
        let stream = scan::serve(&self.state, request.into_inner(), call_budget, call, scans);
        Ok(stream.into_response())
    }
}
