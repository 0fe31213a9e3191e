//! Decodes messages of every [`Kind`] like their receivers.

use std::cell::RefCell;
use std::sync::Arc;

use engram_core::gather::{LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_core::{Error, Trajectory};
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::manage_response::Outcome as ManageOutcome;
use engram_rpc::pb::sample_response::Outcome as SampleOutcome;
use engram_rpc::pb::{self, change_request, change_response, scan_request};
use engram_rpc::wire::{
    BatchAssembler, DecodedSize, InsertStreamError, ReceivedDictionary, check_decoded_size,
    decode_error, decode_f64s, decode_info, decode_limits, decode_options, decode_u64s,
};
use prost::Message;

use crate::corpus::first_request;

/// The type of a message. `ScanResponse` is left out: its batches and errors are decoded like those of
/// `SampleResponse`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    HelloRequest,
    ManageRequest,
    InsertRequest,
    SampleRequest,
    ChangeRequest,
    ScanRequest,
    HelloResponse,
    ManageResponse,
    InsertResponse,
    SampleResponse,
    ChangeResponse,
}

/// Largest batch that may be gathered or announced in this test.
pub(crate) const MAX_BATCH_BYTES: usize = 1 << 20;

thread_local! {
    static POOL: Arc<Pool> = Arc::new(Pool::with_max_batch(MAX_BATCH_BYTES));
    /// The state of an insert stream after a valid first request. [`reset_state`] restores it.
    static DICTIONARY: RefCell<ReceivedDictionary> = RefCell::new(initial_dictionary());
    static ASSEMBLER: RefCell<BatchAssembler> = RefCell::default();
}

fn initial_dictionary() -> ReceivedDictionary {
    let mut dictionary = ReceivedDictionary::default();
    assert!(
        insert(&mut dictionary, first_request()).is_ok(),
        "the first request of the corpus must be valid"
    );
    dictionary
}

/// Restores the state of the insert stream if `reset` is set. Must run outside of the memory measurement.
pub(crate) fn reset_state(kind: Kind, reset: bool) {
    if reset && kind == Kind::InsertRequest {
        DICTIONARY.set(initial_dictionary());
    }
}

/// Decodes a message like its receiver. Returns true if it is valid.
pub(crate) fn is_valid(kind: Kind, message: &[u8]) -> bool {
    match kind {
        Kind::HelloRequest => decode::<pb::HelloRequest>(message).is_some(),
        Kind::HelloResponse => decode::<pb::HelloResponse>(message).is_some(),
        Kind::ManageRequest => decode(message).is_some_and(manage),
        Kind::InsertRequest => decode(message).is_some_and(|request| {
            DICTIONARY.with_borrow_mut(|dictionary| insert(dictionary, request).is_ok())
        }),
        Kind::SampleRequest => decode::<pb::SampleRequest>(message).is_some(),
        Kind::ChangeRequest => decode(message).is_some_and(change),
        Kind::ScanRequest => decode(message).is_some_and(scan),
        Kind::ManageResponse => decode(message).is_some_and(manage_response),
        Kind::InsertResponse => decode(message).is_some_and(|response: pb::InsertResponse| {
            let errors = response
                .completed
                .into_iter()
                .filter_map(|completed| completed.error);
            // Always true; decodes all errors.
            errors.map(decode_error).count() < usize::MAX
        }),
        Kind::SampleResponse => decode(message).is_some_and(sample_response),
        Kind::ChangeResponse => decode(message).is_some_and(|response: pb::ChangeResponse| {
            if let Some(change_response::Outcome::Error(error)) = response.outcome {
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

fn manage_response(response: pb::ManageResponse) -> bool {
    match response.outcome {
        Some(ManageOutcome::Error(error)) => !decode_error(error).to_string().is_empty(),
        Some(ManageOutcome::Options(options)) => decode_options(options, 0).is_ok(),
        Some(ManageOutcome::Info(infos)) => {
            let infos = infos.tables.into_iter().map(decode_info);
            infos.collect::<Result<Vec<_>, _>>().is_ok()
        }
        response => response.is_some(),
    }
}

/// Processes a request like the server, and gathers the first valid items.
fn insert(
    dictionary: &mut ReceivedDictionary,
    request: pb::InsertRequest,
) -> Result<(), InsertStreamError> {
    for schema in request.schemas {
        dictionary.add_schema(&schema)?;
    }
    for shape in request.window_shapes {
        dictionary.add_window_shape(&shape)?;
    }
    for chunk in &request.chunks {
        dictionary.add_chunk(chunk)?;
    }
    if !request.chunk_part.is_empty() {
        dictionary.add_chunk_part(&request.chunk_part)?;
    }
    for message in request.items {
        let items = dictionary.decode_items(&message)?;
        let valid: Vec<&Trajectory> = (items.iter().map(|item| &item.trajectory))
            .filter(|trajectory| trajectory.check_parts().is_ok())
            .collect();
        let first: Vec<Trajectory> = valid.into_iter().take(8).cloned().collect();
        for length_policy in [LengthPolicy::Ragged, LengthPolicy::Pad] {
            let _ = POOL.with(|pool| gather(&first, length_policy, pool));
            for item in &first {
                let alone =
                    POOL.with(|pool| gather(std::slice::from_ref(item), length_policy, pool));
                // A valid item can be read; it may still be too large for a batch.
                assert!(!matches!(alone, Err(Error::Payload(_))), "{alone:?}");
            }
        }
    }
    for chunk in request.released_chunks {
        dictionary.release_chunk(chunk);
    }
    Ok(())
}

fn scan(request: pb::ScanRequest) -> bool {
    match request.request {
        Some(scan_request::Request::KeysLe(keys)) => decode_u64s("keys_le", &keys).is_ok(),
        request => request.is_some(),
    }
}

fn sample_response(response: pb::SampleResponse) -> bool {
    ASSEMBLER.with_borrow_mut(|assembler| {
        let batch = match response.outcome {
            Some(SampleOutcome::Batch(batch)) => POOL.with(|pool| assembler.begin(batch, pool)),
            Some(SampleOutcome::BatchPart(part)) => assembler.push(&part),
            Some(SampleOutcome::Error(error)) => {
                return !decode_error(error).to_string().is_empty();
            }
            response => return response.is_some(),
        };
        batch.is_ok()
    })
}
