//! Everything that reads what a peer has sent, from bytes on.

use std::cell::RefCell;
use std::sync::Arc;

use engram_core::Trajectory;
use engram_core::gather::{LengthPolicy, gather};
use engram_core::pool::Pool;
use engram_rpc::pb::manage_reply::Reply as Managed;
use engram_rpc::pb::manage_request::Call;
use engram_rpc::pb::sample_reply::Reply as Sampled;
use engram_rpc::pb::{self, change_reply, change_request};
use engram_rpc::wire::{
    Arriving, Broken, DecodedSize, Intake, check_decoded_size, error_in, f64s, info_in, limits_in,
    options_in, u64s,
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
    HelloReply,
    ManageReply,
    InsertReply,
    SampleReply,
    ChangeReply,
}

/// Bytes of the largest batch that is gathered or announced here.
pub(crate) const MOST_BATCH: usize = 1 << 20;

thread_local! {
    static POOL: Arc<Pool> = Arc::new(Pool::with_max_batch(MOST_BATCH));
    /// A stream that has begun well; remade after a message that was taken, as it may change it.
    static INTAKE: RefCell<Intake> = RefCell::new(opened());
    static ARRIVING: RefCell<Option<Arriving>> = const { RefCell::new(None) };
}

fn opened() -> Intake {
    let mut intake = Intake::default();
    assert!(insert(&mut intake, opening()).is_ok(), "the corpus is bad");
    intake
}

/// Makes ready for the next message, outside of what is measured.
pub(crate) fn prepare(kind: Kind, fresh: bool) {
    if fresh && kind == Kind::InsertRequest {
        INTAKE.set(opened());
    }
}

/// Reads a message as its receiver would; true when it was taken for one.
pub(crate) fn read(kind: Kind, message: &[u8]) -> bool {
    match kind {
        Kind::HelloRequest => decode::<pb::HelloRequest>(message).is_some(),
        Kind::HelloReply => decode::<pb::HelloReply>(message).is_some(),
        Kind::ManageRequest => decode(message).is_some_and(manage),
        Kind::InsertRequest => decode(message).is_some_and(|request| {
            INTAKE.with_borrow_mut(|intake| insert(intake, request).is_ok())
        }),
        Kind::SampleRequest => decode::<pb::SampleRequest>(message).is_some(),
        Kind::ChangeRequest => decode(message).is_some_and(change),
        Kind::ManageReply => decode(message).is_some_and(managed),
        Kind::InsertReply => decode(message).is_some_and(|reply: pb::InsertReply| {
            let errors = reply.settled.into_iter().filter_map(|news| news.error);
            errors.map(error_in).count() < usize::MAX
        }),
        Kind::SampleReply => decode(message).is_some_and(sampled),
        Kind::ChangeReply => decode(message).is_some_and(|reply: pb::ChangeReply| {
            if let Some(change_reply::Reply::Error(error)) = reply.reply {
                drop(error_in(error));
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
        Some(Call::Create(options)) => options_in(options, 1).is_ok(),
        Some(Call::SetLimits(set)) => limits_in(set.limits).is_ok(),
        call => call.is_some(),
    }
}

fn change(request: pb::ChangeRequest) -> bool {
    let priorities = match request.change {
        Some(change_request::Change::PrioritiesLe(priorities)) => priorities,
        _ => bytes::Bytes::new(),
    };
    u64s("keys_le", &request.keys_le).is_ok() & f64s("priorities_le", &priorities).is_ok()
}

fn managed(reply: pb::ManageReply) -> bool {
    match reply.reply {
        Some(Managed::Error(error)) => !error_in(error).to_string().is_empty(),
        Some(Managed::Options(options)) => options_in(options, 0).is_ok(),
        Some(Managed::Info(infos)) => {
            let infos = infos.tables.into_iter().map(info_in);
            infos.collect::<Result<Vec<_>, _>>().is_ok()
        }
        reply => reply.is_some(),
    }
}

/// Takes a request in, as the server does; reads what could be sampled out again.
fn insert(intake: &mut Intake, request: pb::InsertRequest) -> Result<(), Broken> {
    for schema in request.schemas {
        intake.schema(schema)?;
    }
    for shape in request.shapes {
        intake.shape(shape)?;
    }
    for chunk in &request.chunks {
        intake.chunk(chunk)?;
    }
    if !request.part.is_empty() {
        intake.part(&request.part)?;
    }
    for message in request.items {
        let items = intake.items(&message)?;
        let good: Vec<&Trajectory> = (items.iter().map(|item| &item.trajectory))
            .filter(|trajectory| trajectory.check_parts().is_ok())
            .collect();
        let some: Vec<Trajectory> = good.into_iter().take(8).cloned().collect();
        for length_policy in [LengthPolicy::Ragged, LengthPolicy::Pad] {
            let _ = POOL.with(|pool| gather(&some, length_policy, pool));
        }
    }
    for chunk in request.released {
        intake.release(chunk);
    }
    Ok(())
}

fn sampled(reply: pb::SampleReply) -> bool {
    ARRIVING.with_borrow_mut(|arriving| {
        let outcome = match reply.reply {
            Some(Sampled::Batch(batch)) => {
                *arriving = None;
                POOL.with(|pool| Arriving::new(batch, pool)).map(Some)
            }
            Some(Sampled::Part(part)) => match arriving.take() {
                Some(mut arriving) => arriving.take(&part).map(|()| Some(arriving)),
                None => return false,
            },
            Some(Sampled::Error(error)) => return !error_in(error).to_string().is_empty(),
            reply => return reply.is_some(),
        };
        let taken = outcome.is_ok();
        *arriving = outcome.ok().flatten();
        if let Some(whole) = arriving.take_if(|batch| batch.is_complete()) {
            drop(whole.finish());
        }
        taken
    })
}
