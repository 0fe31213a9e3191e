//! Tests of the public API of the crate, as one binary: each binary takes seconds to link.

mod evictions;
mod gather;
mod readers;
mod sampling_statistics;
mod table_model;
mod untrusted;
mod vector_recorder;
mod writer_model;
