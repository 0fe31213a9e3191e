//! Durable stores: what lies on disk is described in `docs/format.md`.

mod bytes;
mod changes;
mod checkpoint;
mod file;
mod files;
mod journal;
mod names;
mod ranges;
mod recover;
mod scan;
mod things;
