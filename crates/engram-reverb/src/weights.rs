//! What dm-reverb's messages take in memory, beside the bytes that came.

use engram_codec::{Field, Weighed, many, numbers, one, text};

use crate::pb;
use crate::pb::flat_trajectory::{ChunkSlice, Column};
use crate::pb::tensorflow as tf;
use crate::pb::tensorflow::tensor_shape_proto::Dim;

const TENSOR: &[Field] = &[one(2, &[many::<Dim>(2, &[text(2)])])];
const CHUNK: &[Field] = &[
    many::<tf::TensorProto>(3, TENSOR),
    one(5, &[many::<tf::TensorProto>(1, TENSOR)]),
];
const ITEM: &[Field] = &[
    text(2),
    numbers::<u64>(3),
    one(8, &[many::<Column>(1, &[many::<ChunkSlice>(1, &[])])]),
];

impl Weighed for pb::InsertStreamRequest {
    const FIELDS: &'static [Field] = &[
        many::<pb::ChunkData>(1, CHUNK),
        many::<pb::PrioritizedItem>(2, ITEM),
        numbers::<u64>(3),
    ];

    /// Writers put chunks of 40 MiB into one request, however small each of them is.
    const MOST: usize = 512 << 20;
}

impl Weighed for pb::ChunkData {
    const FIELDS: &'static [Field] = CHUNK;
}

impl Weighed for pb::PrioritizedItem {
    const FIELDS: &'static [Field] = ITEM;
}

impl Weighed for pb::PriorityTableCheckpoint {
    const FIELDS: &'static [Field] = &[
        many::<pb::PrioritizedItem>(2, ITEM),
        // However it nests: no more values than bytes.
        numbers::<tf::StructuredValue>(9),
    ];

    /// Tables once had their items within.
    const MOST: usize = 1 << 30;
}

impl Weighed for pb::MutatePrioritiesRequest {
    const FIELDS: &'static [Field] = &[
        text(1),
        many::<pb::KeyWithPriority>(2, &[]),
        numbers::<u64>(3),
    ];

    const MOST: usize = 256 << 20;
}

impl Weighed for pb::SampleStreamRequest {
    const FIELDS: &'static [Field] = &[text(1)];
}

impl Weighed for pb::ResetRequest {
    const FIELDS: &'static [Field] = &[text(1)];
}

impl Weighed for pb::InitializeConnectionRequest {
    const FIELDS: &'static [Field] = &[text(2)];
}

/// Messages that have nothing to weigh, or that only our tests read.
macro_rules! weightless {
    ($($message:ident)*) => {
        $(impl Weighed for pb::$message {
            const FIELDS: &'static [Field] = &[];
        })*
    };
}

weightless! {
    CheckpointRequest ServerInfoRequest CheckpointResponse InsertStreamResponse
    MutatePrioritiesResponse ResetResponse SampleStreamResponse ServerInfoResponse
    InitializeConnectionResponse
}
