//! Everything that reads what a peer has sent, from bytes on.

use std::cell::RefCell;
use std::sync::Arc;

use engram_core::Trajectory;
use engram_core::gather::{LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::manage_response::Outcome as Managed;
use engram_rpc::pb::sample_response::Outcome as Sampled;
use engram_rpc::pb::{self, change_request, change_response};
use engram_rpc::wire::{
    BatchAssembler, DecodedSize, InsertStreamError, ReceivedDictionary, check_decoded_size,
    decode_error, decode_f64s, decode_info, decode_limits, decode_options, decode_u64s,
};
use prost::Message;

use crate::corpus::opening;

/// What a message claims to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    HelloRequest,
    ManageRequest,
    InsertRequest,
    SampleRequest,
    ChangeRequest,
    HelloResponse,
    ManageResponse,
    InsertResponse,
    SampleResponse,
    ChangeResponse,
}

/// Bytes of the largest batch that is gathered or announced here.
pub(crate) const MOST_BATCH: usize = 1 << 20;

thread_local! {
    static POOL: Arc<Pool> = Arc::new(Pool::with_max_batch(MOST_BATCH));
    /// A stream that has begun well; remade after a message that was taken, as it may change it.
    static DICTIONARY: RefCell<ReceivedDictionary> = RefCell::new(opened());
    static ASSEMBLER: RefCell<Option<BatchAssembler>> = const { RefCell::new(None) };
}

fn opened() -> ReceivedDictionary {
    let mut dictionary = ReceivedDictionary::default();
    assert!(
        insert(&mut dictionary, opening()).is_ok(),
        "the corpus is bad"
    );
    dictionary
}

/// Makes ready for the next message, outside of what is measured.
pub(crate) fn prepare(kind: Kind, fresh: bool) {
    if fresh && kind == Kind::InsertRequest {
        DICTIONARY.set(opened());
    }
}

/// Reads a message as its receiver would; true when it was taken for one.
pub(crate) fn read(kind: Kind, message: &[u8]) -> bool {
    match kind {
        Kind::HelloRequest => decode::<pb::HelloRequest>(message).is_some(),
        Kind::HelloResponse => decode::<pb::HelloResponse>(message).is_some(),
        Kind::ManageRequest => decode(message).is_some_and(manage),
        Kind::InsertRequest => decode(message).is_some_and(|request| {
            DICTIONARY.with_borrow_mut(|dictionary| insert(dictionary, request).is_ok())
        }),
        Kind::SampleRequest => decode::<pb::SampleRequest>(message).is_some(),
        Kind::ChangeRequest => decode(message).is_some_and(change),
        Kind::ManageResponse => decode(message).is_some_and(managed),
        Kind::InsertResponse => decode(message).is_some_and(|reply: pb::InsertResponse| {
            let errors = reply.completed.into_iter().filter_map(|news| news.error);
            errors.map(decode_error).count() < usize::MAX
        }),
        Kind::SampleResponse => decode(message).is_some_and(sampled),
        Kind::ChangeResponse => decode(message).is_some_and(|reply: pb::ChangeResponse| {
            if let Some(change_response::Outcome::Error(error)) = reply.outcome {
                drop(decode_error(error));
            }
            true
        }),
    }
}

fn decode<T: Message + Default + DecodedSize>(message: &[u8]) -> Option<T> {
    check_decoded_size::<T>(message).ok()?;
    T::decode(message).ok()
}

fn manage(request: pb::ManageRequest) -> bool {
    match request.call {
        Some(Call::Create(options)) => decode_options(options, 1).is_ok(),
        Some(Call::SetLimits(set)) => decode_limits(set.limits).is_ok(),
        call => call.is_some(),
    }
}

fn change(request: pb::ChangeRequest) -> bool {
    let priorities = match request.change {
        Some(change_request::Change::PrioritiesLe(priorities)) => priorities,
        _ => bytes::Bytes::new(),
    };
    decode_u64s("keys_le", &request.keys_le).is_ok()
        & decode_f64s("priorities_le", &priorities).is_ok()
}

fn managed(reply: pb::ManageResponse) -> bool {
    match reply.outcome {
        Some(Managed::Error(error)) => !decode_error(error).to_string().is_empty(),
        Some(Managed::Options(options)) => decode_options(options, 0).is_ok(),
        Some(Managed::Info(infos)) => {
            let infos = infos.tables.into_iter().map(decode_info);
            infos.collect::<Result<Vec<_>, _>>().is_ok()
        }
        reply => reply.is_some(),
    }
}

/// Takes a request in, as the server does; reads what could be sampled out again.
fn insert(
    dictionary: &mut ReceivedDictionary,
    request: pb::InsertRequest,
) -> Result<(), InsertStreamError> {
    for schema in request.schemas {
        dictionary.add_schema(schema)?;
    }
    for shape in request.window_shapes {
        dictionary.add_window_shape(shape)?;
    }
    for chunk in &request.chunks {
        dictionary.add_chunk(chunk)?;
    }
    if !request.chunk_part.is_empty() {
        dictionary.add_chunk_part(&request.chunk_part)?;
    }
    for message in request.items {
        let items = dictionary.decode_items(&message)?;
        let good: Vec<&Trajectory> = (items.iter().map(|item| &item.trajectory))
            .filter(|trajectory| trajectory.check_parts().is_ok())
            .collect();
        let some: Vec<Trajectory> = good.into_iter().take(8).cloned().collect();
        for length_policy in [LengthPolicy::Ragged, LengthPolicy::Pad] {
            let _ = POOL.with(|pool| gather(&some, length_policy, pool));
        }
    }
    for chunk in request.released_chunks {
        dictionary.release_chunk(chunk);
    }
    Ok(())
}

fn sampled(reply: pb::SampleResponse) -> bool {
    ASSEMBLER.with_borrow_mut(|assembler| {
        let outcome = match reply.outcome {
            Some(Sampled::Batch(batch)) => {
                *assembler = None;
                POOL.with(|pool| BatchAssembler::new(batch, pool)).map(Some)
            }
            Some(Sampled::BatchPart(part)) => match assembler.take() {
                Some(mut assembler) => assembler.push(&part).map(|()| Some(assembler)),
                None => return false,
            },
            Some(Sampled::Error(error)) => return !decode_error(error).to_string().is_empty(),
            reply => return reply.is_some(),
        };
        let taken = outcome.is_ok();
        *assembler = outcome.ok().flatten();
        if let Some(whole) = assembler.take_if(|batch| batch.is_complete()) {
            drop(whole.finish());
        }
        taken
    })
}
