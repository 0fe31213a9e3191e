//! The calls of the protocol, handed to where they are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engram_core::Result;
use engram_core::pool::Pool;
use engram_engine::Engine;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::bind::Doors;
use super::counts::{Call, Counts, Ongoing};
use super::stopping::Stopping;
use super::{ServerOptions, change, insert, manage, sample};
use crate::pb::engram_server::Engram;
use crate::{MAX_BATCH_BYTES, PROTOCOL_VERSION, pb, random_u64};

/// Replies of a stream, as its task makes them.
pub(super) type Replies<T> = ReceiverStream<Result<T, Status>>;

/// What all calls share.
#[derive(Clone, Debug)]
pub(super) struct Service {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) stopping: Stopping,
    pub(super) lease_timeout: Duration,
    /// Buffers of batches, none larger than may travel.
    pub(super) pool: Arc<Pool>,
    pub(super) counts: Counts,
    seed: u64,
    /// Tables that clients made so far.
    made: AtomicU64,
    instance: u64,
    port: u16,
    local_socket: String,
}

impl Shared {
    /// A seed for the next table: no two get the same.
    pub(super) fn next_seed(&self) -> u64 {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        self.seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Service {
    pub(super) fn new(
        engine: Arc<Engine>,
        options: &ServerOptions,
        doors: &Doors,
        stopping: Stopping,
    ) -> Result<Self> {
        let local = doors.local.as_ref();
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                stopping,
                lease_timeout: options.lease_timeout,
                pool: Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES)),
                counts: Counts::default(),
                seed: options.seed,
                made: AtomicU64::new(0),
                instance: random_u64()?,
                port: doors.address.port(),
                local_socket: local.map_or_else(String::new, |(_, name)| name.clone()),
            }),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn begin(&self, call: Call) -> Ongoing {
        self.shared.counts.of(call).begin()
    }
}

#[tonic::async_trait]
impl Engram for Service {
    type InsertStream = Replies<pb::InsertResponse>;
    type SampleStream = Replies<pb::SampleResponse>;
    type ChangeStream = Replies<pb::ChangeResponse>;

    async fn hello(
        &self,
        request: Request<pb::HelloRequest>,
    ) -> Result<Response<pb::HelloResponse>, Status> {
        let _call = self.begin(Call::Hello);
        let version = env!("CARGO_PKG_VERSION");
        let client = request.into_inner();
        if client.protocol != PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "the client speaks version {} of the protocol, this server (Engram {version}) \
                 version {PROTOCOL_VERSION}; both must be the same",
                client.protocol
            )));
        }
        Ok(Response::new(pb::HelloResponse {
            protocol: PROTOCOL_VERSION,
            version: version.into(),
            instance: self.shared.instance,
            port: self.shared.port.into(),
            local_socket: self.shared.local_socket.clone(),
        }))
    }

    async fn manage(
        &self,
        request: Request<pb::ManageRequest>,
    ) -> Result<Response<pb::ManageResponse>, Status> {
        let _call = self.begin(Call::Manage);
        let reply = manage::manage(&self.shared, request.into_inner()).await;
        Ok(Response::new(reply))
    }

    async fn insert(
        &self,
        request: Request<Streaming<pb::InsertRequest>>,
    ) -> Result<Response<Self::InsertStream>, Status> {
        let call = self.begin(Call::Insert);
        let replies = insert::serve(&self.shared, request.into_inner(), call);
        Ok(Response::new(replies))
    }

    async fn sample(
        &self,
        request: Request<Streaming<pb::SampleRequest>>,
    ) -> Result<Response<Self::SampleStream>, Status> {
        let call = self.begin(Call::Sample);
        let replies = sample::serve(&self.shared, request.into_inner(), call);
        Ok(Response::new(replies))
    }

    async fn change(
        &self,
        request: Request<Streaming<pb::ChangeRequest>>,
    ) -> Result<Response<Self::ChangeStream>, Status> {
        let call = self.begin(Call::Change);
        let replies = change::serve(&self.shared, request.into_inner(), call);
        Ok(Response::new(replies))
    }
}
