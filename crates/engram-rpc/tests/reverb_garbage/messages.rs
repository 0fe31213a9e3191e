//! Calls of no sense, of those that make some.

use std::sync::Arc;

use engram_core::chunk::{ChunkBuilder, Origin};
use engram_core::{CellSpec, Compression, Compressor, DType, Layout, NewItem, Schema, Trajectory};
use engram_engine::Table;
use engram_reverb::pb;
use futures_util::FutureExt as _;
use prost::Message as _;
use smallvec::smallvec;

use crate::corpus::corpus;
use crate::mutate::{Chance, mutate, noise};

/// The methods of the service, and one that it does not have.
pub(crate) const METHODS: [&str; 8] = [
    "InsertStream",
    "SampleStream",
    "MutatePriorities",
    "Reset",
    "Checkpoint",
    "ServerInfo",
    "InitializeConnection",
    "Nothing",
];

/// One call: what its body has, and whether it says that this is all.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: usize,
    pub(crate) body: Vec<u8>,
    pub(crate) is_over: bool,
}

/// Good messages of each method.
pub(crate) struct Messages {
    good: [Vec<Vec<u8>>; METHODS.len()],
}

fn samples(table: &str, num_samples: i64) -> Vec<u8> {
    let request = pb::SampleStreamRequest {
        table: table.into(),
        num_samples,
        rate_limiter_timeout: Some(pb::Timeout { milliseconds: 50 }),
    };
    request.encode_to_vec()
}

fn changes() -> Vec<u8> {
    let update = |key: u64, priority| pb::KeyWithPriority { key, priority };
    let changes = pb::MutatePrioritiesRequest {
        table: "table".into(),
        updates: vec![update(11, 2.0), update(12, 0.5)],
        delete_keys: vec![13, 1],
    };
    changes.encode_to_vec()
}

impl Messages {
    pub(crate) fn new() -> Self {
        let reset = pb::ResetRequest {
            table: "other".into(),
        };
        let question = pb::InitializeConnectionRequest {
            pid: 1,
            table_name: "table".into(),
            ownership_transferred: true,
        };
        Self {
            good: [
                corpus(),
                vec![samples("table", 3), samples("other", 1)],
                vec![changes()],
                vec![reset.encode_to_vec()],
                vec![Vec::new()],
                vec![Vec::new()],
                vec![question.encode_to_vec()],
                vec![Vec::new()],
            ],
        }
    }

    /// A call of some method: messages most of which are spoilt, sometimes also how they are told apart.
    pub(crate) fn call(&self, chance: &mut Chance) -> Call {
        let method = match chance.below(3) {
            0 => 0,
            1 => chance.below(2),
            _ => chance.below(METHODS.len()),
        };
        let good = &self.good[method];
        let mut body = Vec::new();
        for _ in 0..=chance.below(3) {
            let mut message = good[chance.below(good.len())].clone();
            match chance.below(8) {
                0 => {}
                1 => message = noise(chance),
                _ => {
                    let others = &self.good[chance.below(METHODS.len())];
                    mutate(&mut message, &others[chance.below(others.len())], chance);
                }
            }
            body.push(0);
            body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            body.extend(message);
        }
        if chance.below(6) == 0 {
            mutate(&mut body, &good[0], chance);
        }
        Call {
            method,
            body,
            is_over: chance.below(4) > 0,
        }
    }
}

/// Puts an item into a table that has none.
pub(crate) fn refill(table: &Arc<Table>) {
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
    // It is in, or there is one of its key.
    let ticket = table.insert_or_update(vec![item]).unwrap();
    ticket.now_or_never().unwrap().unwrap();
}
