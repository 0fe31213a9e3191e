//! The extension module `engram._engram`: the only crate that depends on Python.

mod arguments;
mod arrays;
mod batch;
mod batched_writer;
mod blocked_reason;
mod buffer_batch;
mod buffer_columns;
mod buffer_env_ids;
mod buffer_episodes;
mod buffer_items;
mod buffer_output;
mod buffer_reader;
mod buffer_steps;
mod config;
mod device_columns;
mod dtypes;
mod durable;
mod errors;
mod fast_path;
mod gil;
mod history;
mod importance_weights;
mod insert;
mod insert_batch;
mod insert_item;
mod inspection;
mod lazy;
mod leaf;
mod long_wait;
mod memory;
mod native_readers;
mod only_thread;
mod outbox;
mod ownership;
mod pattern_writer;
mod patterns;
mod priority_tree;
mod replay_buffer;
mod resharding;
mod reverb_import;
mod sample;
mod saved_buffer;
mod scan;
mod sender;
mod server;
mod sharded;
mod snapshot;
mod stacked_leaves;
mod step_flattener;
mod store;
mod stream;
mod structure;
mod table_info;
mod tables;
mod trajectory_writer;
mod vector_arguments;
mod vector_items;
mod vector_writer;
mod writer;

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Native half of the package `engram`, whose public API is in `python/engram`.
#[pymodule]
fn _engram(module: &Bound<'_, PyModule>) -> PyResult<()> {
    memory::configure();
    module.add("__profile__", env!("ENGRAM_PROFILE"))?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batched_writer::BatchedWriter>()?;
    module.add_class::<buffer_batch::BufferBatch>()?;
    module.add_class::<history::ColumnHistory>()?;
    module.add_class::<history::TrajectoryColumn>()?;
    module.add_class::<pattern_writer::PatternWriter>()?;
    module.add_class::<buffer_reader::BufferReader>()?;
    module.add_class::<priority_tree::PriorityTree>()?;
    module.add("MAX_PRIORITY", engram_core::selector::MAX_WEIGHT)?;
    module.add(
        "REVERB_DESCRIPTORS",
        PyBytes::new(module.py(), engram_reverb::DESCRIPTORS),
    )?;
    module.add_class::<replay_buffer::ReplayBuffer>()?;
    module.add_class::<saved_buffer::SavedBuffer>()?;
    module.add_class::<scan::PyScan>()?;
    module.add_class::<server::PyServer>()?;
    module.add_class::<sharded::PyShardedTables>()?;
    module.add_class::<snapshot::TableSnapshot>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<trajectory_writer::TrajectoryWriter>()?;
    module.add_class::<vector_writer::VectorWriter>()?;
    module.add_class::<writer::Writer>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_function(wrap_pyfunction!(buffer_env_ids::check_env_ids, module)?)?;
    module.add_function(wrap_pyfunction!(config::check_progress, module)?)?;
    module.add_function(wrap_pyfunction!(gil::after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(reverb_import::import_reverb, module)?)?;
    module.add_function(wrap_pyfunction!(inspection::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(ownership::check_unused, module)?)?;
    module.add_function(wrap_pyfunction!(ownership::replace_unused, module)?)?;
    module.add_function(wrap_pyfunction!(resharding::reshard, module)?)?;
    module.add_function(wrap_pyfunction!(long_wait::set_long_wait, module)?)?;
    module.add_function(wrap_pyfunction!(
        only_thread::set_only_thread_checks,
        module
    )?)?;
    module.add_function(wrap_pyfunction!(saved_buffer::mapped_signature, module)?)?;
    module.add_function(wrap_pyfunction!(leaf::as_array, module)?)?;
    module.add_function(wrap_pyfunction!(structure::flatten, module)?)?;
    module.add_function(wrap_pyfunction!(structure::names, module)?)?;
    module.add_function(wrap_pyfunction!(structure::unflatten, module)?)?;
    initialize_numpy(module.py());
    let os = module.py().import("os")?;
    if let Ok(register) = os.getattr("register_at_fork") {
        let hook = [("after_in_child", module.getattr("after_fork_in_child")?)];
        register.call(
            (),
            Some(&pyo3::types::IntoPyDict::into_py_dict(hook, module.py())?),
        )?;
    }
    Ok(())
}

/// NumPy's functions are looked up on first use. Done now, because a child that is forked during this would wait for it
/// forever, see [`lazy::Lazy`].
fn initialize_numpy(py: Python<'_>) {
    let array = PyArray1::<u8>::zeros(py, 0, false);
    dtypes::from_numpy(&array.dtype());
    drop(array.readonly());
}
