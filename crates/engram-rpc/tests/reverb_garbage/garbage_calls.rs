//! Invalid calls, derived from valid ones.

use std::sync::Arc;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::{CellSpec, Compression, Compressor, DType, Layout, NewItem, Schema, Trajectory};
use engram_engine::Table;
use engram_reverb::pb;
use engram_testkit::reverb_messages::insert_requests;
use engram_testkit::{RandomSource, mutate, random_message};
use futures_util::FutureExt as _;
use prost::Message as _;
use smallvec::smallvec;

/// The methods of the service, and one that it does not have.
pub(crate) const METHODS: [&str; 8] = [
    "InsertStream",
    "SampleStream",
    "MutatePriorities",
    "Reset",
    "Checkpoint",
    "ServerInfo",
    "InitializeConnection",
    "UnknownMethod",
];

/// A call with an arbitrary body.
#[derive(Debug)]
pub(crate) struct GarbageCall {
    /// Index into [`METHODS`].
    pub(crate) method: usize,
    pub(crate) body: Vec<u8>,
    /// True if the client closes its side of the stream after the body.
    pub(crate) is_complete: bool,
}

/// Valid messages of each method.
pub(crate) struct ValidMessages {
    by_method: [Vec<Vec<u8>>; METHODS.len()],
}

fn sample_request(table: &str, num_samples: i64) -> Vec<u8> {
    let request = pb::SampleStreamRequest {
        table: table.into(),
        num_samples,
        rate_limiter_timeout: Some(pb::Timeout { milliseconds: 50 }),
    };
    request.encode_to_vec()
}

fn mutate_request() -> Vec<u8> {
    let update = |key: u64, priority| pb::KeyWithPriority { key, priority };
    let changes = pb::MutatePrioritiesRequest {
        table: "table".into(),
        updates: vec![update(11, 2.0), update(12, 0.5)],
        delete_keys: vec![13, 1],
    };
    changes.encode_to_vec()
}

impl ValidMessages {
    pub(crate) fn new() -> Self {
        let reset = pb::ResetRequest {
            table: "other".into(),
        };
        let initialize = pb::InitializeConnectionRequest {
            pid: 1,
            table_name: "table".into(),
            ownership_transferred: true,
        };
        Self {
            by_method: [
                insert_requests(),
                vec![sample_request("table", 3), sample_request("other", 1)],
                vec![mutate_request()],
                vec![reset.encode_to_vec()],
                vec![Vec::new()],
                vec![Vec::new()],
                vec![initialize.encode_to_vec()],
                vec![Vec::new()],
            ],
        }
    }

    /// Returns a call of a random method. Most of its messages are mutated, sometimes also their framing.
    pub(crate) fn garbage_call(&self, random: &mut RandomSource) -> GarbageCall {
        let method = match random.below(3) {
            0 => 0,
            1 => random.below(2),
            _ => random.below(METHODS.len()),
        };
        let valid = &self.by_method[method];
        let mut body = Vec::new();
        for _ in 0..=random.below(3) {
            let mut message = valid[random.below(valid.len())].clone();
            match random.below(8) {
                0 => {}
                1 => message = random_message(random),
                _ => {
                    let others = &self.by_method[random.below(METHODS.len())];
                    mutate(&mut message, &others[random.below(others.len())], random);
                }
            }
            body.push(0);
            body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            body.extend(message);
        }
        if random.below(6) == 0 {
            mutate(&mut body, &valid[0], random);
        }
        GarbageCall {
            method,
            body,
            is_complete: random.below(4) > 0,
        }
    }
}

/// Inserts an item into a table if the table is empty.
pub(crate) fn insert_if_empty(table: &Arc<Table>) {
    if table.info().stats.size > 0 {
        return;
    }
    let schema = Schema {
        layout: Arc::new(Layout {
            names: Box::new(["0".into()]),
            structure: r#"{"t":[0]}"#.into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![],
        }]),
    };
    let mut builder = ChunkBuilder::new(Arc::new(schema), 1).unwrap();
    builder.set_rows(0, 1);
    let mut compressor = Compressor::new(Compression::Off);
    let chunk = builder.seal(Origin::default(), &mut compressor).unwrap();
    let item = NewItem {
        key: 1,
        trajectory: Trajectory::Rows {
            chunk: Arc::new(chunk),
            offset: 0,
            len: 1,
            squeeze: false,
        },
        priority: 1.0,
    };
    // Succeeds even if another task has inserted an item with the same key.
    let ticket = table.insert_or_update(vec![item]).unwrap();
    ticket.now_or_never().unwrap().unwrap();
}
