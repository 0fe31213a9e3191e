//! The gRPC service with dm-reverb's calls.

use std::sync::Arc;

use engram_codec::{CallBudget, ReplyStream, run_blocking, run_in_place};
use engram_core::pool::Pool;
use engram_engine::Engine;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::info::table_info;
use crate::mutate::mutate;
use crate::pb;
use crate::pb::reverb_service_server::{ReverbService, ReverbServiceServer};
use crate::service_state::{ServiceState, stopping_status};
use crate::status::status;
use crate::{insert, sample};

/// Path prefix of the service's calls.
pub const PATH: &str = "/deepmind.reverb.ReverbService/";

/// Maximum number of bytes of a received message. Writers send up to 40 MiB plus one chunk.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Maximum number of bytes of the gathered columns of one drawn item, which dm-reverb calls a sample.
const MAX_GATHERED_BYTES: usize = 4 << 30;

/// Requests with more keys are handled outside of the runtime's shared threads, because they take long.
const MANY_KEYS: usize = 4096;

/// The service: serves the tables of an engine to dm-reverb's clients.
#[derive(Clone, Debug)]
pub struct Reverb {
    state: Arc<ServiceState>,
}

impl Reverb {
    /// A service that runs until `stopped` is true. `tables_state_id` must be random, so that clients notice that the server
    /// was started again.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        stopped: watch::Receiver<bool>,
        tables_state_id: pb::Uint128,
    ) -> Self {
        Self {
            state: Arc::new(ServiceState {
                engine,
                stopped,
                pool: Arc::new(Pool::with_max_batch(MAX_GATHERED_BYTES)),
                orphans: Arc::default(),
                checkpoints: Arc::default(),
                tables_state_id,
            }),
        }
    }

    /// The service as a tonic server.
    #[must_use]
    pub fn server(self) -> ReverbServiceServer<Self> {
        ReverbServiceServer::new(self)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(usize::MAX)
    }

    /// Waits until all changes are as durable as the store is configured to make them.
    async fn until_durable(&self) -> Result<(), Status> {
        let durable = self.state.engine.until_durable().await;
        durable.map_err(|error| status(&error))
    }
}

#[tonic::async_trait]
impl ReverbService for Reverb {
    type InsertStreamStream = ReceiverStream<Result<pb::InsertStreamResponse, Status>>;
    type SampleStreamStream = ReplyStream<pb::SampleStreamResponse>;
    type InitializeConnectionStream =
        BoxStream<'static, Result<pb::InitializeConnectionResponse, Status>>;

    async fn checkpoint(
        &self,
        _: Request<pb::CheckpointRequest>,
    ) -> Result<Response<pb::CheckpointResponse>, Status> {
        let engine = Arc::clone(&self.state.engine);
        // Writing a checkpoint occupies a thread; waiting here until another checkpoint is written does not.
        let checkpoints = Arc::clone(&self.state.checkpoints);
        let guard = tokio::select! {
            () = self.state.until_stopped() => return Err(stopping_status()),
            guard = checkpoints.lock_owned() => guard,
        };
        let write = move || {
            // Held until the checkpoint is written, also if the caller disconnects.
            let _guard = guard;
            let checkpoint = engine.checkpoint().map_err(|error| status(&error))?;
            Ok(engine.checkpoint_path(checkpoint.number))
        };
        let path = run_blocking(write, Status::internal).await?;
        let path = path.unwrap_or_default();
        Ok(Response::new(pb::CheckpointResponse {
            checkpoint_path: path.to_string_lossy().into_owned(),
        }))
    }

    async fn insert_stream(
        &self,
        request: Request<Streaming<pb::InsertStreamRequest>>,
    ) -> Result<Response<Self::InsertStreamStream>, Status> {
        let responses = insert::serve(&self.state, request.into_inner());
        Ok(Response::new(responses))
    }

    async fn mutate_priorities(
        &self,
        request: Request<pb::MutatePrioritiesRequest>,
    ) -> Result<Response<pb::MutatePrioritiesResponse>, Status> {
        let request = request.into_inner();
        let engine = &self.state.engine;
        let has_many_keys = request.updates.len() + request.delete_keys.len() > MANY_KEYS;
        run_in_place(has_many_keys, || mutate(engine, &request))?;
        self.until_durable().await?;
        Ok(Response::new(pb::MutatePrioritiesResponse {}))
    }

    async fn reset(
        &self,
        request: Request<pb::ResetRequest>,
    ) -> Result<Response<pb::ResetResponse>, Status> {
        let name = request.into_inner().table;
        let table = self.state.engine.table(&name);
        let table = table.map_err(|error| status(&error))?;
        let reset = move || table.reset().map_err(|error| status(&error));
        run_blocking(reset, Status::internal).await?;
        self.until_durable().await?;
        Ok(Response::new(pb::ResetResponse {}))
    }

    async fn sample_stream(
        &self,
        request: Request<Streaming<pb::SampleStreamRequest>>,
    ) -> Result<Response<Self::SampleStreamStream>, Status> {
        let call_budget = CallBudget::of(&request);
        let responses = sample::serve(&self.state, request.into_inner(), call_budget);
        Ok(responses.into_response())
    }

    async fn server_info(
        &self,
        _: Request<pb::ServerInfoRequest>,
    ) -> Result<Response<pb::ServerInfoResponse>, Status> {
        let tables = self.state.engine.tables();
        let tables = tables.map_err(|error| status(&error))?;
        Ok(Response::new(pb::ServerInfoResponse {
            tables_state_id: Some(self.state.tables_state_id),
            table_info: tables.iter().map(|table| table_info(table)).collect(),
        }))
    }

    /// Returns address 0: the server runs in another process. Clients use any other value as an address in
    /// their own memory.
    async fn initialize_connection(
        &self,
        request: Request<Streaming<pb::InitializeConnectionRequest>>,
    ) -> Result<Response<Self::InitializeConnectionStream>, Status> {
        let mut requests = request.into_inner();
        let state = Arc::clone(&self.state);
        let response = async move {
            // A client waits without end if the response is sent before its request.
            tokio::select! {
                () = state.until_stopped() => return Err(stopping_status()),
                request = requests.message() => request?,
            };
            Ok(pb::InitializeConnectionResponse { address: 0 })
        };
        Ok(Response::new(Box::pin(stream::once(response))))
    }
}
