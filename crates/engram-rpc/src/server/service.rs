//! The calls of Engram's gRPC service, passed to the modules that serve them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use engram_codec::{CallBudget, ReplyStream};
use engram_core::Result;
use engram_core::pool::Pool;
use engram_engine::{Engine, TableUserKind};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::connection::ConnectionInfo;
use super::counters::{Call, Counters, OpenGuard};
use super::listeners::Listeners;
use super::options::ServerOptions;
use super::sample::ReaderSessions;
use super::service_state::{Replies, ServiceState};
use super::shutdown::ShutdownSignal;
use super::stream_users::StreamUsers;
use super::{change, insert, manage, sample, scan};
use crate::pb::engram_server::Engram;
use crate::{MAX_BATCH_BYTES, PROTOCOL_VERSION, pb, random_u64};

/// How long a new server waits for the readers of an earlier server of its tables. Readers try to connect every 0.3 s.
const RETURN_TIME: Duration = Duration::from_millis(500);

/// Maximum time since an earlier server of the tables was used, unless samples were on lease when it ended.
const LATELY: Duration = Duration::from_secs(600);

/// Engram's gRPC service.
#[derive(Clone, Debug)]
pub(super) struct Service {
    state: Arc<ServiceState>,
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
                readers_return_by: readers_return_by(&engine)?,
                engine,
                shutdown,
                lease_timeout: options.lease_timeout,
                readers: ReaderSessions::default(),
                pool: Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES)),
                counters: Counters::default(),
                seed: options.seed,
                num_seeds: AtomicU64::new(0),
                instance: random_u64()?,
                port: listeners.address.port(),
                shard_id: options.shard_id,
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

/// When a new server begins to draw from tables from which sampling removes items; `None`: at once, because no client has
/// used one lately.
fn readers_return_by(engine: &Engine) -> Result<Option<Instant>> {
    let tables = engine.tables()?;
    let mut consumed = tables
        .iter()
        .filter(|table| table.options().max_times_sampled > 0);
    let may_return = consumed.any(|table| table.may_have_readers(LATELY));
    Ok(may_return.then(|| Instant::now() + RETURN_TIME))
}

/// Where the client of a request is.
fn address_of<T>(request: &Request<T>) -> Arc<str> {
    let connection = request.extensions().get::<ConnectionInfo>();
    connection.map_or_else(
        || "unknown".into(),
        |connection| Arc::clone(&connection.address),
    )
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
            shard_id: self.state.shard_id.into(),
            resumes_readers: true,
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
        let users = StreamUsers::new(TableUserKind::Writer, address_of(&request));
        let replies = insert::serve(&self.state, request.into_inner(), call, users);
        Ok(Response::new(replies))
    }

    async fn sample(
        &self,
        request: Request<Streaming<pb::SampleRequest>>,
    ) -> Result<Response<Self::SampleStream>, Status> {
        let call = self.begin(Call::Sample);
        let call_budget = CallBudget::of(&request);
        let users = StreamUsers::new(TableUserKind::Reader, address_of(&request));
        let stream = sample::serve(&self.state, request.into_inner(), call_budget, call, users);
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
