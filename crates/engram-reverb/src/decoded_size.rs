//! Which fields of dm-reverb's messages take memory once decoded.
//!
//! Fields are given by their numbers in `reverb.proto` and `tensor.proto`. Fields of type `bytes` are left out: they
//! share the memory of the encoded message.

use engram_codec::{DecodedSize, Field, message, repeated, repeated_number, string};

use crate::pb;
use crate::pb::flat_trajectory::{ChunkSlice, Column};
use crate::pb::tensorflow as tf;
use crate::pb::tensorflow::tensor_shape_proto::Dim;

const TENSOR: &[Field] = &[message(2, &[repeated::<Dim>(2, &[string(2)])])];
const CHUNK: &[Field] = &[
    repeated::<tf::TensorProto>(3, TENSOR),
    message(5, &[repeated::<tf::TensorProto>(1, TENSOR)]),
];
const ITEM: &[Field] = &[
    string(2),
    repeated_number::<u64>(3),
    message(
        8,
        &[repeated::<Column>(1, &[repeated::<ChunkSlice>(1, &[])])],
    ),
];

impl DecodedSize for pb::InsertStreamRequest {
    const FIELDS: &'static [Field] = &[
        repeated::<pb::ChunkData>(1, CHUNK),
        repeated::<pb::PrioritizedItem>(2, ITEM),
        repeated_number::<u64>(3),
    ];

    /// dm-reverb's writers send up to 40 MiB of chunks in one request, however small each chunk is.
    const MAX_DECODED_BYTES: usize = 512 << 20;
}

impl DecodedSize for pb::ChunkData {
    const FIELDS: &'static [Field] = CHUNK;
}

impl DecodedSize for pb::PrioritizedItem {
    const FIELDS: &'static [Field] = ITEM;
}

impl DecodedSize for pb::PriorityTableCheckpoint {
    const FIELDS: &'static [Field] = &[
        repeated::<pb::PrioritizedItem>(2, ITEM),
        // The signature: counted as one value per encoded byte, which is an upper bound.
        repeated_number::<tf::StructuredValue>(9),
    ];

    /// Old checkpoints store a table's items in this message.
    const MAX_DECODED_BYTES: usize = 1 << 30;
}

impl DecodedSize for pb::MutatePrioritiesRequest {
    const FIELDS: &'static [Field] = &[
        string(1),
        repeated::<pb::KeyWithPriority>(2, &[]),
        repeated_number::<u64>(3),
    ];

    const MAX_DECODED_BYTES: usize = 256 << 20;
}

impl DecodedSize for pb::SampleStreamRequest {
    const FIELDS: &'static [Field] = &[string(1)];
}

impl DecodedSize for pb::ResetRequest {
    const FIELDS: &'static [Field] = &[string(1)];
}

impl DecodedSize for pb::InitializeConnectionRequest {
    const FIELDS: &'static [Field] = &[string(2)];
}

/// Messages without fields that take memory, and messages that only tests decode.
macro_rules! without_memory {
    ($($message:ident)*) => {
        $(impl DecodedSize for pb::$message {
            const FIELDS: &'static [Field] = &[];
        })*
    };
}

without_memory! {
    CheckpointRequest ServerInfoRequest CheckpointResponse InsertStreamResponse
    MutatePrioritiesResponse ResetResponse SampleStreamResponse ServerInfoResponse
    InitializeConnectionResponse
}
