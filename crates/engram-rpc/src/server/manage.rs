//! What is asked once in a while: names, options and numbers of tables, and changes to them.

use std::sync::Arc;

use engram_core::{Error, Result, TableOptions};
use engram_engine::Engine;

use super::names;
use super::service::Shared;
use crate::pb;
use crate::pb::manage_reply::Reply;
use crate::pb::manage_request::Call;
use crate::wire::{error_out, info_out, limits_in, options_in, options_out};

/// Does one request; what goes wrong is a reply too.
pub(super) async fn manage(shared: &Shared, request: pb::ManageRequest) -> pb::ManageReply {
    let reply = answer(shared, request).await;
    pb::ManageReply {
        reply: Some(reply.unwrap_or_else(|error| Reply::Error(error_out(&error)))),
    }
}

async fn answer(shared: &Shared, request: pb::ManageRequest) -> Result<Reply> {
    let engine = &shared.engine;
    let call = request.call.ok_or_else(|| {
        Error::InvalidArgument("the request names no call; this server knows 10 of them".into())
    })?;
    Ok(match call {
        Call::Tables(pb::Nothing {}) => {
            let tables = engine.tables()?;
            let names = tables.iter().map(|table| table.options().name.clone());
            Reply::Tables(pb::Names {
                names: names.collect(),
            })
        }
        Call::Describe(name) => {
            let table = names::table(engine, &name)?;
            Reply::Options(options_out(&TableOptions {
                limits: table.info().stats.limiter.limits,
                ..TableOptions::clone(table.options())
            }))
        }
        Call::Create(options) => {
            names::check(&options.name)?;
            engine.create_table(options_in(options, shared.next_seed())?)?;
            engine.until_durable().await?;
            done()
        }
        Call::Drop(name) => {
            names::table(engine, &name)?;
            let dropping = Arc::clone(engine);
            aside(move || dropping.drop_table(&name)).await?;
            engine.until_durable().await?;
            done()
        }
        Call::SetLimits(pb::SetLimits { table, limits }) => {
            names::table(engine, &table)?.set_limits(limits_in(limits)?)?;
            engine.until_durable().await?;
            done()
        }
        Call::Reset(name) => {
            let table = names::table(engine, &name)?;
            aside(move || table.reset()).await?;
            engine.until_durable().await?;
            done()
        }
        Call::Info(pb::Nothing {}) => Reply::Info(infos(engine)?),
        Call::MaySample(pb::May { table, n }) => {
            Reply::May(names::table(engine, &table)?.can_sample(n))
        }
        Call::MayInsert(pb::May { table, n }) => {
            Reply::May(names::table(engine, &table)?.can_insert(n))
        }
        Call::Checkpoint(pb::Nothing {}) => {
            let engine = Arc::clone(engine);
            let checkpoint = aside(move || engine.checkpoint()).await?;
            Reply::Checkpoint(pb::Checkpoint {
                number: checkpoint.number,
                bytes: checkpoint.bytes,
                items: checkpoint.items,
            })
        }
    })
}

fn done() -> Reply {
    Reply::Done(pb::Nothing {})
}

/// Does what may take long, such as freeing much memory, where nobody waits behind it.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Error::Closed(format!(
            "the server gave the call up: {error}"
        ))),
    }
}

fn infos(engine: &Engine) -> Result<pb::Infos> {
    let tables = engine.tables()?;
    let unsent = engine.unsent_note();
    let tables = tables.iter().map(|table| {
        let mut info = table.info();
        if let (Some(why), Some(unsent)) = (&mut info.sampling_blocked, &unsent) {
            *why = format!("{why}; {unsent}");
        }
        info_out(&info)
    });
    Ok(pb::Infos {
        tables: tables.collect(),
    })
}
