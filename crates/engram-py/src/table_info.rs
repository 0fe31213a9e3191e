//! Configuration and statistics of tables as Python objects.

use std::time::Duration;

use engram_engine::TableInfo;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::config::signature_to_python;

/// Returns the values of `engram.TableInfo`. `unsent` describes items that writers have not sent yet.
pub(crate) fn table_info_dict<'py>(
    py: Python<'py>,
    info: &TableInfo,
    unsent: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = &info.stats;
    let limiter = &stats.limiter;
    let dict = PyDict::new(py);
    let options = &info.options;
    dict.set_item("name", &options.name)?;
    dict.set_item("size", stats.size)?;
    dict.set_item("max_size", options.max_size)?;
    dict.set_item("total_weight", info.distribution.total_weight)?;
    dict.set_item("bytes", stats.bytes)?;
    dict.set_item("max_bytes", options.max_bytes)?;
    dict.set_item("hidden_items", stats.hidden_items)?;
    dict.set_item("num_episodes", stats.num_episodes)?;
    dict.set_item("num_deleted_episodes", stats.num_deleted_episodes)?;
    dict.set_item("num_unique_samples", stats.num_unique_samples)?;
    dict.set_item("inserts", limiter.inserts)?;
    dict.set_item("samples", limiter.samples)?;
    dict.set_item("deletes", limiter.deletes)?;
    dict.set_item("unreadable_items", info.unreadable_items)?;
    dict.set_item("inserts_per_s", info.inserts_per_s)?;
    dict.set_item("samples_per_s", info.samples_per_s)?;
    dict.set_item("waiting_inserts", info.waiting_inserts)?;
    dict.set_item("waiting_samples", info.waiting_samples)?;
    dict.set_item("inserting_blocked", &info.inserting_blocked)?;
    let sampling = info.sampling_blocked.as_ref().map(|why| match unsent {
        Some(unsent) => format!("{why}; {unsent}"),
        None => why.clone(),
    });
    dict.set_item("sampling_blocked", sampling)?;
    dict.set_item("storage_problem", &info.storage_problem)?;
    for (role, selector) in [("sampler", options.sampler), ("remover", options.remover)] {
        dict.set_item(role, (selector.name(), selector.exponent()))?;
    }
    let times = options.max_times_sampled;
    dict.set_item("max_times_sampled", (times > 0).then_some(times))?;
    let ttl = options.ttl.map(Duration::from_nanos);
    dict.set_item("ttl", ttl.map(|ttl| ttl.as_secs_f64()))?;
    let signature = options.signature.as_deref();
    let signature = signature.map(|signature| signature_to_python(py, signature));
    dict.set_item("signature", signature.transpose()?)?;
    dict.set_item("note", options.note.as_deref())?;
    let limits = &limiter.limits;
    dict.set_item(
        "rate_limiter",
        (
            &limits.kind,
            limits.samples_per_insert,
            limits.min_size,
            limits.min_diff,
            limits.max_diff,
        ),
    )?;
    Ok(dict)
}
