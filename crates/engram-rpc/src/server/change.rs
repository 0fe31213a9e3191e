//! Streams of updates and deletions, done in their order.

use std::sync::Arc;

use engram_core::{Error, Result};
use engram_engine::Engine;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::counts::Ongoing;
use super::names;
use super::service::{Replies, Shared};
use crate::pb;
use crate::pb::change_reply::Reply;
use crate::pb::change_request::Change;
use crate::wire::{error_out, f64s, u64s};

/// Replies that wait for their reader; then no further request is read.
const UNDER_WAY: usize = 1024;

/// More keys than this take long enough for others to want the thread.
const MANY: usize = 4096;

/// Serves one stream until its caller is done, is gone, or the server stops.
pub(super) fn serve(
    shared: &Arc<Shared>,
    mut requests: Streaming<pb::ChangeRequest>,
    call: Ongoing,
) -> Replies<pb::ChangeReply> {
    let (replies, receiver) = mpsc::channel(UNDER_WAY);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let _call = call;
        let mut stopping = shared.stopping.clone();
        loop {
            let request = tokio::select! {
                () = stopping.wait() => {
                    let _ = replies.send(Err(stopping.status())).await;
                    return;
                }
                () = replies.closed() => return,
                request = requests.message() => request,
            };
            // An error there: the caller is gone, or does not speak the protocol. tonic tells it.
            let reply = match request {
                Ok(Some(request)) => Ok(answer(&shared.engine, request)),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let over = reply.is_err();
            if replies.send(reply).await.is_err() || over {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

fn answer(engine: &Engine, request: pb::ChangeRequest) -> pb::ChangeReply {
    let id = request.id;
    let outcome = if request.keys_le.len() > MANY * size_of::<u64>() {
        tokio::task::block_in_place(|| change(engine, request))
    } else {
        change(engine, request)
    };
    let reply = match outcome {
        Ok(matched) => Reply::Matched(matched as u64),
        Err(error) => Reply::Error(error_out(&error)),
    };
    pb::ChangeReply {
        id,
        reply: Some(reply),
    }
}

fn change(engine: &Engine, request: pb::ChangeRequest) -> Result<usize> {
    let keys = u64s("keys_le", &request.keys_le)?;
    let table = names::table(engine, &request.table)?;
    match request.change {
        Some(Change::PrioritiesLe(priorities)) => {
            table.update_priorities(&keys, &f64s("priorities_le", &priorities)?)
        }
        Some(Change::Delete(pb::Nothing {})) => table.delete(&keys),
        None => Err(Error::InvalidArgument(
            "the request names no change; it must have `priorities_le` or `delete`".into(),
        )),
    }
}
