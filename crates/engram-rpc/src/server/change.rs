//! Change streams: priority updates and deletions, applied in order.

use std::sync::Arc;

use engram_codec::run_in_place;
use engram_core::{Error, Result};
use engram_engine::Engine;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::counters::OpenGuard;
use super::service_state::{Replies, ServiceState};
use super::table_names;
use crate::pb;
use crate::pb::change_request::Change;
use crate::pb::change_response::Outcome;
use crate::wire::{decode_f64s, decode_u64s, encode_error};

/// Maximum number of changes of a stream that are not durable yet. Also the maximum number of its replies that wait to
/// be sent. When either number is reached, the server reads no further requests of the stream.
const MAX_PENDING_REPLIES: usize = 1024;

/// Requests with more keys are handled outside of the runtime's shared threads, because they take long.
const LARGE_REQUEST_KEYS: usize = 4096;

/// Serves one stream until the client ends it, the connection breaks or the server shuts down.
pub(super) fn serve(
    state: &Arc<ServiceState>,
    mut requests: Streaming<pb::ChangeRequest>,
    call: OpenGuard,
) -> Replies<pb::ChangeResponse> {
    let (replies, receiver) = mpsc::channel(MAX_PENDING_REPLIES);
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let _call = call;
        let mut shutdown = state.shutdown.clone();
        // The replies to changes that were executed and are not durable yet, in order.
        let mut applied = FuturesOrdered::new();
        let mut input_ended = false;
        while !(input_ended && applied.is_empty()) {
            let reply = tokio::select! {
                () = shutdown.wait() => {
                    let _ = replies.send(Err(shutdown.status())).await;
                    return;
                }
                () = replies.closed() => return,
                Some(reply) = applied.next(), if !applied.is_empty() => Ok(reply),
                request = requests.message(), if !input_ended && applied.len() < MAX_PENDING_REPLIES => match request {
                    Ok(Some(request)) => {
                        let (id, outcome) = (request.id, run_change(&state.engine, request));
                        let until_durable = state.engine.until_durable();
                        let mut reply = Box::pin(async move {
                            encode_reply(id, match until_durable.await {
                                Ok(()) => outcome,
                                Err(error) => outcome.and(Err(error)),
                            })
                        });
                        // Most changes are durable at once.
                        let ready = if applied.is_empty() { (&mut reply).now_or_never() } else { None };
                        if let Some(reply) = ready {
                            Ok(reply)
                        } else {
                            applied.push_back(reply);
                            continue;
                        }
                    }
                    Ok(None) => {
                        input_ended = true;
                        continue;
                    }
                    // The connection broke, or the request cannot be decoded: the stream ends with this status.
                    Err(status) => Err(status),
                },
            };
            let failed = reply.is_err();
            if replies.send(reply).await.is_err() || failed {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Applies a change; a large one outside of the runtime's shared threads. Returns how many of the keys were in the
/// table.
fn run_change(engine: &Engine, request: pb::ChangeRequest) -> Result<usize> {
    let is_large = request.keys_le.len() > LARGE_REQUEST_KEYS * size_of::<u64>();
    run_in_place(is_large, || apply_change(engine, request))
}

fn encode_reply(id: u64, outcome: Result<usize>) -> pb::ChangeResponse {
    let outcome = match outcome {
        Ok(matched) => Outcome::Matched(matched as u64),
        Err(error) => Outcome::Error(encode_error(&error)),
    };
    pb::ChangeResponse {
        id,
        outcome: Some(outcome),
    }
}

fn apply_change(engine: &Engine, request: pb::ChangeRequest) -> Result<usize> {
    let keys = decode_u64s("keys_le", &request.keys_le)?;
    let table = table_names::find_table(engine, &request.table)?;
    match request.change {
        Some(Change::PrioritiesLe(priorities)) => {
            table.update_priorities(&keys, &decode_f64s("priorities_le", &priorities)?)
        }
        Some(Change::Delete(pb::Empty {})) => table.delete(&keys),
        None => Err(Error::InvalidArgument(
            "empty request; `priorities_le` or `delete` must be set".into(),
        )),
    }
}
