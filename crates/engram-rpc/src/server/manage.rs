//! The `Manage` call: names, options and statistics of tables, changes to tables, rate-limiter queries and checkpoints.

use std::sync::Arc;

use engram_codec::run_blocking;
use engram_core::{Error, Result, TableOptions};
use engram_engine::Histogram;

use super::service_state::ServiceState;
use super::{table_names, table_pages};
use crate::pb;
use crate::pb::manage_request::Call;
use crate::pb::manage_response::Outcome;
use crate::wire::{
    check_signature_size, decode_histogram_of, decode_limits, decode_options, encode_error,
    encode_histogram, encode_options,
};

/// Handles one request. The response to a failed call contains the error.
pub(super) async fn manage(state: &ServiceState, request: pb::ManageRequest) -> pb::ManageResponse {
    let outcome = execute(state, request).await;
    pb::ManageResponse {
        outcome: Some(outcome.unwrap_or_else(|error| Outcome::Error(encode_error(&error)))),
    }
}

async fn execute(state: &ServiceState, request: pb::ManageRequest) -> Result<Outcome> {
    let engine = &state.engine;
    let call = request.call.ok_or_else(|| {
        Error::InvalidArgument(
            "empty request, or a call that this server does not know; `call` must be set".into(),
        )
    })?;
    Ok(match call {
        Call::Tables(request) => Outcome::Tables(table_pages::names(engine, &request)?),
        Call::Describe(name) => {
            let table = table_names::find_table(engine, &name)?;
            Outcome::Options(encode_options(&TableOptions {
                limits: table.info().stats.limiter.limits,
                ..TableOptions::clone(table.options())
            }))
        }
        Call::Create(options) => {
            table_names::check_length(&options.name)?;
            check_signature_size(&options)?;
            let options = decode_options(options, state.next_seed())?;
            options.limits.check_progress()?;
            engine.create_table(options)?;
            engine.until_durable().await?;
            done()
        }
        Call::Drop(name) => {
            table_names::find_table(engine, &name)?;
            let owned_engine = Arc::clone(engine);
            run_blocking(move || owned_engine.drop_table(&name), Error::Closed).await?;
            engine.until_durable().await?;
            done()
        }
        Call::SetLimits(pb::SetLimits { table, limits }) => {
            let table = table_names::find_table(engine, &table)?;
            let limits = decode_limits(limits)?;
            limits.check_progress()?;
            table.set_limits(limits)?;
            engine.until_durable().await?;
            done()
        }
        Call::Reset(name) => {
            let table = table_names::find_table(engine, &name)?;
            run_blocking(move || table.reset(), Error::Closed).await?;
            engine.until_durable().await?;
            done()
        }
        Call::Info(request) => {
            let engine = Arc::clone(engine);
            let read = move || {
                engine.check_storage();
                table_pages::infos(&engine, &request)
            };
            Outcome::Info(run_blocking(read, Error::Closed).await?)
        }
        Call::CanSample(pb::LimiterQuery { table, n }) => {
            Outcome::CanProceed(table_names::find_table(engine, &table)?.can_sample(n))
        }
        Call::CanInsert(pb::LimiterQuery { table, n }) => {
            Outcome::CanProceed(table_names::find_table(engine, &table)?.can_insert(n))
        }
        Call::Histogram(query) => {
            let (of, bins) = (decode_histogram_of(query.of()), query.bins);
            let table = table_names::find_table(engine, &query.table)?;
            let read = move || Histogram::of_table(&table, of, bins);
            Outcome::Histogram(encode_histogram(run_blocking(read, Error::Closed).await?))
        }
        Call::Checkpoint(pb::Empty {}) => {
            let engine = Arc::clone(engine);
            let checkpoint = run_blocking(move || engine.checkpoint(), Error::Closed).await?;
            Outcome::Checkpoint(pb::Checkpoint {
                number: checkpoint.number,
                bytes: checkpoint.bytes,
                items: checkpoint.items,
            })
        }
    })
}

fn done() -> Outcome {
    Outcome::Done(pb::Empty {})
}
