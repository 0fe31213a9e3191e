//! The calls of the service, handed to where they are served.

use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::{Error, Result};
use engram_engine::Engine;
use futures_util::stream::{self, BoxStream};
use rand::rand_core::TryRng;
use rand::rngs::SysRng;
use tokio::sync::{Mutex, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::info::table_info;
use crate::insert::Orphans;
use crate::mutate::mutate;
use crate::pb;
use crate::pb::reverb_service_server::{ReverbService, ReverbServiceServer};
use crate::status::status;
use crate::{insert, sample};

/// Where the service's calls are.
pub const PATH: &str = "/deepmind.reverb.ReverbService/";

/// Largest message that is read: writers put up to 40 MiB and one chunk into one.
const MAX_MESSAGE: usize = 256 << 20;

/// Most bytes of one sample's columns, gathered.
const MAX_GATHERED: usize = 4 << 30;

/// Keys in one request after which it takes long enough for others to want the thread.
const MANY: usize = 4096;

/// The tables of an engine, for dm-reverb's clients.
#[derive(Clone, Debug)]
pub struct Reverb {
    shared: Arc<Shared>,
}

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) orphans: Arc<Orphans>,
    /// One checkpoint at a time.
    checkpoints: Arc<Mutex<()>>,
    /// Tells servers apart: clients read signatures again where it is another.
    state: pb::Uint128,
}

impl Shared {
    /// Waits until the server stops.
    pub(crate) async fn stopping(&self) {
        // An error: the server is gone, which is as good.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

/// What calls end with when the server stops. Clients try again, for ever.
pub(crate) fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

impl Reverb {
    /// The service, until `stopped` says true.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the system has no random numbers.
    pub fn new(engine: Arc<Engine>, stopped: watch::Receiver<bool>) -> Result<Self> {
        let random = || {
            SysRng.try_next_u64().map_err(|error| {
                Error::Unavailable(format!("the system has no random numbers: {error}"))
            })
        };
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                stopped,
                pool: Arc::new(Pool::with_max_batch(MAX_GATHERED)),
                orphans: Arc::default(),
                checkpoints: Arc::default(),
                state: pb::Uint128 {
                    high: random()?,
                    low: random()?,
                },
            }),
        })
    }

    /// The same, as a server takes it.
    #[must_use]
    pub fn server(self) -> ReverbServiceServer<Self> {
        ReverbServiceServer::new(self)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(usize::MAX)
    }

    /// Waits until what was changed is as safe as the store promises.
    async fn safe(&self) -> Result<(), Status> {
        let safe = self.shared.engine.until_durable().await;
        safe.map_err(|error| status(&error))
    }
}

/// Does what may take long where nobody waits behind it.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| status(&error)),
        Err(error) => Err(Status::internal(format!(
            "the server gave the call up: {error}"
        ))),
    }
}

#[tonic::async_trait]
impl ReverbService for Reverb {
    type InsertStreamStream = ReceiverStream<Result<pb::InsertStreamResponse, Status>>;
    type SampleStreamStream = ReceiverStream<Result<pb::SampleStreamResponse, Status>>;
    type InitializeConnectionStream =
        BoxStream<'static, Result<pb::InitializeConnectionResponse, Status>>;

    async fn checkpoint(
        &self,
        _: Request<pb::CheckpointRequest>,
    ) -> Result<Response<pb::CheckpointResponse>, Status> {
        let engine = Arc::clone(&self.shared.engine);
        // Each takes a thread: those that wait for their turn take none.
        let turns = Arc::clone(&self.shared.checkpoints);
        let turn = tokio::select! {
            () = self.shared.stopping() => return Err(stopping()),
            turn = turns.lock_owned() => turn,
        };
        let path = aside(move || {
            // Until it is made, also where its caller is gone.
            let _turn = turn;
            let number = engine.checkpoint()?.number;
            Ok(engine.checkpoint_path(number))
        });
        let path = path.await?.unwrap_or_default();
        Ok(Response::new(pb::CheckpointResponse {
            checkpoint_path: path.to_string_lossy().into_owned(),
        }))
    }

    async fn insert_stream(
        &self,
        request: Request<Streaming<pb::InsertStreamRequest>>,
    ) -> Result<Response<Self::InsertStreamStream>, Status> {
        let replies = insert::serve(&self.shared, request.into_inner());
        Ok(Response::new(replies))
    }

    async fn mutate_priorities(
        &self,
        request: Request<pb::MutatePrioritiesRequest>,
    ) -> Result<Response<pb::MutatePrioritiesResponse>, Status> {
        let request = request.into_inner();
        let engine = &self.shared.engine;
        if request.updates.len() + request.delete_keys.len() > MANY {
            tokio::task::block_in_place(|| mutate(engine, &request))?;
        } else {
            mutate(engine, &request)?;
        }
        self.safe().await?;
        Ok(Response::new(pb::MutatePrioritiesResponse {}))
    }

    async fn reset(
        &self,
        request: Request<pb::ResetRequest>,
    ) -> Result<Response<pb::ResetResponse>, Status> {
        let name = request.into_inner().table;
        let table = self.shared.engine.table(&name);
        let table = table.map_err(|error| status(&error))?;
        aside(move || table.reset()).await?;
        self.safe().await?;
        Ok(Response::new(pb::ResetResponse {}))
    }

    async fn sample_stream(
        &self,
        request: Request<Streaming<pb::SampleStreamRequest>>,
    ) -> Result<Response<Self::SampleStreamStream>, Status> {
        let replies = sample::serve(&self.shared, request.into_inner());
        Ok(Response::new(replies))
    }

    async fn server_info(
        &self,
        _: Request<pb::ServerInfoRequest>,
    ) -> Result<Response<pb::ServerInfoResponse>, Status> {
        let tables = self.shared.engine.tables();
        let tables = tables.map_err(|error| status(&error))?;
        Ok(Response::new(pb::ServerInfoResponse {
            tables_state_id: Some(self.shared.state),
            table_info: tables.iter().map(|table| table_info(table)).collect(),
        }))
    }

    /// Says that the server is another process: any other answer would be used as an address.
    async fn initialize_connection(
        &self,
        request: Request<Streaming<pb::InitializeConnectionRequest>>,
    ) -> Result<Response<Self::InitializeConnectionStream>, Status> {
        let mut requests = request.into_inner();
        let shared = Arc::clone(&self.shared);
        let answer = async move {
            // An answer before the question would leave its asker waiting.
            tokio::select! {
                () = shared.stopping() => return Err(stopping()),
                question = requests.message() => question?,
            };
            Ok(pb::InitializeConnectionResponse { address: 0 })
        };
        Ok(Response::new(Box::pin(stream::once(answer))))
    }
}
