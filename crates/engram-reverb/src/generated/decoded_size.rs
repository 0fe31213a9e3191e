impl DecodedSize for crate::pb::tensorflow::TensorShapeProto {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::tensorflow::tensor_shape_proto::Dim>(2, crate::pb::tensorflow::tensor_shape_proto::Dim::FIELDS)];
}
impl DecodedSize for crate::pb::tensorflow::tensor_shape_proto::Dim {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::tensorflow::ChunkTensor {
const FIELDS: &'static [Field] = &[message(2, crate::pb::tensorflow::TensorShapeProto::FIELDS)];
}
impl DecodedSize for crate::pb::tensorflow::NoneValue {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::tensorflow::TensorSpecProto {
const FIELDS: &'static [Field] = &[string(1), message(2, crate::pb::tensorflow::TensorShapeProto::FIELDS)];
}
impl DecodedSize for crate::pb::tensorflow::BoundedTensorSpecProto {
const FIELDS: &'static [Field] = &[string(1), message(2, crate::pb::tensorflow::TensorShapeProto::FIELDS), message(4, crate::pb::tensorflow::TensorProto::FIELDS), message(5, crate::pb::tensorflow::TensorProto::FIELDS)];
}
impl DecodedSize for crate::pb::tensorflow::TensorProto {
const FIELDS: &'static [Field] = &[message(2, crate::pb::tensorflow::TensorShapeProto::FIELDS), repeated_number::<f32>(5), repeated_number::<f64>(6), repeated_number::<i32>(7), repeated_number::<i64>(10), repeated_number::<bool>(11), repeated_number::<i32>(13), repeated_number::<u32>(16), repeated_number::<u64>(17)];
}
impl DecodedSize for crate::pb::CheckpointRequest {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::CheckpointResponse {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::InsertStreamRequest {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::ChunkData>(1, crate::pb::ChunkData::FIELDS), repeated::<crate::pb::PrioritizedItem>(2, crate::pb::PrioritizedItem::FIELDS), repeated_number::<u64>(3)];
const MAX_DECODED_BYTES: usize = 512 << 20;
}
impl DecodedSize for crate::pb::InsertStreamResponse {
const FIELDS: &'static [Field] = &[repeated_number::<u64>(1)];
}
impl DecodedSize for crate::pb::MutatePrioritiesRequest {
const FIELDS: &'static [Field] = &[string(1), repeated::<crate::pb::KeyWithPriority>(2, crate::pb::KeyWithPriority::FIELDS), repeated_number::<u64>(3)];
const MAX_DECODED_BYTES: usize = 256 << 20;
}
impl DecodedSize for crate::pb::MutatePrioritiesResponse {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ResetRequest {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::ResetResponse {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::SampleStreamRequest {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::SampleStreamResponse {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::sample_stream_response::SampleEntry>(1, crate::pb::sample_stream_response::SampleEntry::FIELDS)];
}
impl DecodedSize for crate::pb::sample_stream_response::SampleEntry {
const FIELDS: &'static [Field] = &[message(1, crate::pb::SampleInfo::FIELDS), repeated::<crate::pb::ChunkData>(2, crate::pb::ChunkData::FIELDS)];
}
impl DecodedSize for crate::pb::ServerInfoRequest {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ServerInfoResponse {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::TableInfo>(2, crate::pb::TableInfo::FIELDS)];
}
impl DecodedSize for crate::pb::InitializeConnectionRequest {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::InitializeConnectionResponse {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ChunkData {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::tensorflow::ChunkTensor>(3, crate::pb::tensorflow::ChunkTensor::FIELDS), message(5, crate::pb::chunk_data::Data::FIELDS)];
}
impl DecodedSize for crate::pb::chunk_data::Data {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::tensorflow::ChunkTensor>(1, crate::pb::tensorflow::ChunkTensor::FIELDS)];
}
impl DecodedSize for crate::pb::SliceRange {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::SequenceRange {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::FlatTrajectory {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::flat_trajectory::Column>(1, crate::pb::flat_trajectory::Column::FIELDS)];
}
impl DecodedSize for crate::pb::flat_trajectory::ChunkSlice {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::flat_trajectory::Column {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::flat_trajectory::ChunkSlice>(1, crate::pb::flat_trajectory::ChunkSlice::FIELDS)];
}
impl DecodedSize for crate::pb::Timestamp {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::PrioritizedItem {
const FIELDS: &'static [Field] = &[string(2), repeated_number::<u64>(3), message(8, crate::pb::FlatTrajectory::FIELDS)];
}
impl DecodedSize for crate::pb::KeyWithPriority {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::SampleInfo {
const FIELDS: &'static [Field] = &[message(1, crate::pb::PrioritizedItem::FIELDS)];
}
impl DecodedSize for crate::pb::TableInfo {
const FIELDS: &'static [Field] = &[repeated_number::<crate::pb::tensorflow::StructuredValue>(6), string(8)];
}
impl DecodedSize for crate::pb::RateLimiterCallStats {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::RateLimiterInfo {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::TableWorkerTime {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::KeyDistributionOptions {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::key_distribution_options::Prioritized {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::key_distribution_options::Heap {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::Uint128 {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::Timeout {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::PriorityTableCheckpoint {
const FIELDS: &'static [Field] = &[string(1), repeated::<crate::pb::PrioritizedItem>(2, crate::pb::PrioritizedItem::FIELDS), repeated_number::<crate::pb::tensorflow::StructuredValue>(9)];
const MAX_DECODED_BYTES: usize = 1024 << 20;
}
impl DecodedSize for crate::pb::RateLimiterCheckpoint {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ReverbServerConfig {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::PriorityTableCheckpoint>(1, crate::pb::PriorityTableCheckpoint::FIELDS)];
}
