//! A sink that stores changes, and the chunks and trajectories of the test.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use engram_core::selector::TableRng;
use engram_core::{
    CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, DeferredDrops, Layout, Lsn,
    NewItem, OpSink, Origin, RateLimits, Removal, Result, Schema, SessionNumber, Slice, SpanColumn,
    Spans, TableOp, TableState, Trajectory,
};
use smallvec::smallvec;

/// An owned [`TableOp`].
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Insert {
        item: NewItem,
        now: u64,
        number: Option<SessionNumber>,
    },
    SkipInsert {
        number: SessionNumber,
        now: u64,
    },
    Remove {
        key: u64,
        cause: Removal,
    },
    SetPriority {
        key: u64,
        priority: f64,
    },
    Sample {
        keys: Vec<u64>,
        leased: bool,
    },
    SetRng {
        rng: TableRng,
    },
    Acknowledge {
        keys: Vec<u64>,
        samples: u64,
    },
    AcknowledgeNumbered {
        keys: Vec<u64>,
        samples: u64,
        number: SessionNumber,
        now: u64,
    },
    ReturnLeases {
        keys: Vec<u64>,
        samples: u64,
    },
    UndoSamples {
        keys: Vec<u64>,
        samples: u64,
    },
    Reset,
    SetLimits {
        limits: RateLimits,
    },
}

impl Op {
    fn from_table_op(op: &TableOp<'_>) -> Self {
        match *op {
            TableOp::Insert { item, now, number } => Self::Insert {
                item: item.clone(),
                now,
                number,
            },
            TableOp::SkipInsert { number, now } => Self::SkipInsert { number, now },
            TableOp::Remove { key, cause } => Self::Remove { key, cause },
            TableOp::SetPriority { key, priority } => Self::SetPriority { key, priority },
            TableOp::Sample { keys, leased } => Self::Sample {
                keys: keys.to_vec(),
                leased,
            },
            TableOp::SetRng { rng } => Self::SetRng { rng: rng.clone() },
            TableOp::Acknowledge { keys, samples } => Self::Acknowledge {
                keys: keys.to_vec(),
                samples,
            },
            TableOp::AcknowledgeNumbered {
                keys,
                samples,
                number,
                now,
            } => Self::AcknowledgeNumbered {
                keys: keys.to_vec(),
                samples,
                number,
                now,
            },
            TableOp::ReturnLeases { keys, samples } => Self::ReturnLeases {
                keys: keys.to_vec(),
                samples,
            },
            TableOp::UndoSamples { keys, samples } => Self::UndoSamples {
                keys: keys.to_vec(),
                samples,
            },
            TableOp::Reset => Self::Reset,
            TableOp::SetLimits { limits } => Self::SetLimits {
                limits: limits.clone(),
            },
        }
    }

    pub(crate) fn replay(&self, state: &mut TableState) {
        let op = match *self {
            Self::Insert {
                ref item,
                now,
                number,
            } => TableOp::Insert { item, now, number },
            Self::SkipInsert { number, now } => TableOp::SkipInsert { number, now },
            Self::Remove { key, cause } => TableOp::Remove { key, cause },
            Self::SetPriority { key, priority } => TableOp::SetPriority { key, priority },
            Self::Sample { ref keys, leased } => TableOp::Sample { keys, leased },
            Self::SetRng { ref rng } => TableOp::SetRng { rng },
            Self::Acknowledge { ref keys, samples } => TableOp::Acknowledge { keys, samples },
            Self::AcknowledgeNumbered {
                ref keys,
                samples,
                number,
                now,
            } => TableOp::AcknowledgeNumbered {
                keys,
                samples,
                number,
                now,
            },
            Self::ReturnLeases { ref keys, samples } => TableOp::ReturnLeases { keys, samples },
            Self::UndoSamples { ref keys, samples } => TableOp::UndoSamples { keys, samples },
            Self::Reset => TableOp::Reset,
            Self::SetLimits { ref limits } => TableOp::SetLimits { limits },
        };
        state.replay(&op, &mut DeferredDrops::default());
    }
}

/// A sink that stores all changes.
#[derive(Debug, Default)]
pub(crate) struct RecordingSink(Mutex<Vec<Op>>);

impl RecordingSink {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn since(&self, start: usize) -> Vec<Op> {
        self.0.lock().unwrap()[start..].to_vec()
    }

    /// Keys of the items that were removed for this cause, in change number `start` or later.
    pub(crate) fn removed(&self, start: usize, cause: Removal) -> Vec<u64> {
        let ops = self.since(start);
        let removed = ops.iter().filter_map(|op| match op {
            Op::Remove { key, cause: other } if *other == cause => Some(*key),
            _ => None,
        });
        removed.collect()
    }
}

impl OpSink for RecordingSink {
    fn append(&self, _table: &str, op: &TableOp<'_>) -> Lsn {
        let mut ops = self.0.lock().unwrap();
        ops.push(Op::from_table_op(op));
        Lsn(ops.len() as u64)
    }

    fn last(&self) -> Lsn {
        Lsn(self.len() as u64)
    }

    fn poll_durable(&self, _lsn: Lsn, _waker: &Waker) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Number of rows of each chunk.
const ROWS: u32 = 4;

/// Seven chunks: two in each of episodes 0 to 2, and one that belongs to episodes 2 and 3.
pub(crate) fn chunks() -> Vec<Arc<Chunk>> {
    let layout = Arc::new(Layout {
        names: Box::new(["action".into(), "obs".into()]),
        structure: "dict".into(),
    });
    let cell = |dtype, size| CellSpec {
        dtype,
        shape: smallvec![size],
    };
    let chunk = |key: u64| {
        let schema = Arc::new(Schema {
            layout: Arc::clone(&layout),
            cells: Box::new([
                cell(DType::Int32, 1),
                cell(DType::Float32, 2 + usize::try_from(key).unwrap() * 40),
            ]),
        });
        let mut builder = ChunkBuilder::new(schema, ROWS as usize).unwrap();
        for column in 0..2 {
            for _ in 0..ROWS {
                builder.commit(column);
            }
        }
        let episodes = if key == 6 {
            smallvec![2, 3]
        } else {
            smallvec![key / 2]
        };
        let origin = Origin {
            key,
            episodes,
            first_step: key * u64::from(ROWS),
            steps: ROWS,
        };
        let compressor = &mut Compressor::new(Compression::Off);
        Arc::new(builder.seal(origin, compressor).unwrap())
    };
    (0..7).map(chunk).collect()
}

/// Rows of chunk `first` if `second` is the same, otherwise spans of both chunks.
pub(crate) fn trajectory(chunks: &[Arc<Chunk>], first: usize, second: usize) -> Trajectory {
    if first == second {
        return Trajectory::Rows {
            chunk: Arc::clone(&chunks[first]),
            offset: 1,
            len: 2,
            squeeze: false,
        };
    }
    let slice = |chunk, column| Slice {
        chunk,
        column,
        offset: 0,
        len: ROWS,
    };
    Trajectory::Spans(Arc::new(Spans {
        layout: Arc::clone(&chunks[first].schema().layout),
        chunks: [Arc::clone(&chunks[first]), Arc::clone(&chunks[second])].into(),
        columns: Arc::new([
            SpanColumn {
                first_slice: 0,
                len: 2 * ROWS,
                squeeze: false,
            },
            SpanColumn {
                first_slice: 2,
                len: ROWS,
                squeeze: false,
            },
        ]),
        slices: Box::new([slice(0, 0), slice(1, 0), slice(1, 1)]),
    }))
}
