impl DecodedSize for crate::pb::Error {
const FIELDS: &'static [Field] = &[string(2), string(3), repeated_string(4)];
}
impl DecodedSize for crate::pb::Layout {
const FIELDS: &'static [Field] = &[repeated_string(1), string(2)];
}
impl DecodedSize for crate::pb::Cell {
const FIELDS: &'static [Field] = &[string(1), repeated_number::<u64>(2)];
}
impl DecodedSize for crate::pb::Selector {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::RateLimits {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::ColumnSpec {
const FIELDS: &'static [Field] = &[string(1), string(2), repeated_number::<i64>(3)];
}
impl DecodedSize for crate::pb::Signature {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::ColumnSpec>(1, crate::pb::ColumnSpec::FIELDS), string(2)];
}
impl DecodedSize for crate::pb::TableOptions {
const FIELDS: &'static [Field] = &[string(1), message(8, crate::pb::RateLimits::FIELDS), message(9, crate::pb::Signature::FIELDS), string(11)];
}
impl DecodedSize for crate::pb::HelloRequest {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::HelloResponse {
const FIELDS: &'static [Field] = &[string(2), string(5)];
}
impl DecodedSize for crate::pb::ManageRequest {
const FIELDS: &'static [Field] = &[message(1, crate::pb::ListTables::FIELDS), string(2), message(3, crate::pb::TableOptions::FIELDS), string(4), message(5, crate::pb::SetLimits::FIELDS), string(6), message(7, crate::pb::ListTables::FIELDS), message(8, crate::pb::LimiterQuery::FIELDS), message(9, crate::pb::LimiterQuery::FIELDS), message(11, crate::pb::HistogramQuery::FIELDS)];
}
impl DecodedSize for crate::pb::Empty {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ListTables {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::SetLimits {
const FIELDS: &'static [Field] = &[string(1), message(2, crate::pb::RateLimits::FIELDS)];
}
impl DecodedSize for crate::pb::LimiterQuery {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::ManageResponse {
const FIELDS: &'static [Field] = &[message(1, crate::pb::Error::FIELDS), message(3, crate::pb::TableNames::FIELDS), message(4, crate::pb::TableOptions::FIELDS), message(5, crate::pb::TableInfos::FIELDS), message(8, crate::pb::Histogram::FIELDS)];
}
impl DecodedSize for crate::pb::HistogramQuery {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::Histogram {
const FIELDS: &'static [Field] = &[repeated_number::<u64>(1), repeated_number::<f64>(2)];
}
impl DecodedSize for crate::pb::Checkpoint {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::TableNames {
const FIELDS: &'static [Field] = &[repeated_string(1)];
}
impl DecodedSize for crate::pb::TableInfos {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::TableInfo>(1, crate::pb::TableInfo::FIELDS)];
}
impl DecodedSize for crate::pb::TableInfo {
const FIELDS: &'static [Field] = &[message(1, crate::pb::TableOptions::FIELDS), string(15), string(16), string(18), repeated::<crate::pb::TableUser>(23, crate::pb::TableUser::FIELDS), repeated::<crate::pb::RejectedCalls>(24, crate::pb::RejectedCalls::FIELDS)];
}
impl DecodedSize for crate::pb::TableUser {
const FIELDS: &'static [Field] = &[string(3)];
}
impl DecodedSize for crate::pb::RejectedCalls {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::InsertRequest {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::Schema>(2, crate::pb::Schema::FIELDS), repeated::<crate::pb::WindowShape>(3, crate::pb::WindowShape::FIELDS), repeated::<crate::pb::Chunk>(4, crate::pb::Chunk::FIELDS), repeated::<crate::pb::Items>(6, crate::pb::Items::FIELDS), repeated_number::<u32>(7)];
}
impl DecodedSize for crate::pb::Schema {
const FIELDS: &'static [Field] = &[message(2, crate::pb::Layout::FIELDS), repeated::<crate::pb::Cell>(3, crate::pb::Cell::FIELDS)];
}
impl DecodedSize for crate::pb::SpanColumn {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::Slice {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::WindowShape {
const FIELDS: &'static [Field] = &[message(2, crate::pb::Layout::FIELDS), repeated::<crate::pb::SpanColumn>(3, crate::pb::SpanColumn::FIELDS), repeated::<crate::pb::Slice>(4, crate::pb::Slice::FIELDS)];
}
impl DecodedSize for crate::pb::Chunk {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::Extent>(7, crate::pb::Extent::FIELDS)];
}
impl DecodedSize for crate::pb::Extent {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::Items {
const FIELDS: &'static [Field] = &[string(1), message(7, crate::pb::Spans::FIELDS)];
}
impl DecodedSize for crate::pb::Rows {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::Spans {
const FIELDS: &'static [Field] = &[message(1, crate::pb::Layout::FIELDS), repeated_number::<u32>(2), repeated::<crate::pb::SpanColumn>(3, crate::pb::SpanColumn::FIELDS), repeated::<crate::pb::Slice>(4, crate::pb::Slice::FIELDS)];
}
impl DecodedSize for crate::pb::InsertResponse {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::Completed>(1, crate::pb::Completed::FIELDS), repeated::<crate::pb::Inserted>(2, crate::pb::Inserted::FIELDS), repeated::<crate::pb::Allowed>(3, crate::pb::Allowed::FIELDS)];
}
impl DecodedSize for crate::pb::Completed {
const FIELDS: &'static [Field] = &[string(1), message(3, crate::pb::Error::FIELDS)];
}
impl DecodedSize for crate::pb::Inserted {
const FIELDS: &'static [Field] = &[string(1), message(3, crate::pb::Error::FIELDS)];
}
impl DecodedSize for crate::pb::Allowed {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::SampleRequest {
const FIELDS: &'static [Field] = &[message(1, crate::pb::BatchRequest::FIELDS), message(6, crate::pb::Resume::FIELDS)];
}
impl DecodedSize for crate::pb::Resume {
const FIELDS: &'static [Field] = &[message(3, crate::pb::HeldLease::FIELDS)];
}
impl DecodedSize for crate::pb::HeldLease {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::BatchRequest {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::SampleResponse {
const FIELDS: &'static [Field] = &[message(2, crate::pb::Batch::FIELDS), message(4, crate::pb::Error::FIELDS), message(5, crate::pb::BarrierDone::FIELDS)];
}
impl DecodedSize for crate::pb::BarrierDone {
const FIELDS: &'static [Field] = &[message(1, crate::pb::Error::FIELDS)];
}
impl DecodedSize for crate::pb::Batch {
const FIELDS: &'static [Field] = &[message(1, crate::pb::Layout::FIELDS), repeated::<crate::pb::Column>(2, crate::pb::Column::FIELDS), repeated::<crate::pb::DrawRun>(7, crate::pb::DrawRun::FIELDS)];
}
impl DecodedSize for crate::pb::Column {
const FIELDS: &'static [Field] = &[message(1, crate::pb::Cell::FIELDS)];
}
impl DecodedSize for crate::pb::DrawRun {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ChangeRequest {
const FIELDS: &'static [Field] = &[string(2)];
}
impl DecodedSize for crate::pb::ChangeResponse {
const FIELDS: &'static [Field] = &[message(2, crate::pb::Error::FIELDS)];
}
impl DecodedSize for crate::pb::ScanRequest {
const FIELDS: &'static [Field] = &[message(2, crate::pb::BeginScan::FIELDS)];
}
impl DecodedSize for crate::pb::BeginScan {
const FIELDS: &'static [Field] = &[string(1)];
}
impl DecodedSize for crate::pb::Peek {
const FIELDS: &'static [Field] = &[];
}
impl DecodedSize for crate::pb::ScanResponse {
const FIELDS: &'static [Field] = &[message(1, crate::pb::ScanBegun::FIELDS), message(2, crate::pb::Batch::FIELDS), message(4, crate::pb::Error::FIELDS)];
}
impl DecodedSize for crate::pb::ScanBegun {
const FIELDS: &'static [Field] = &[message(2, crate::pb::Peeked::FIELDS)];
}
impl DecodedSize for crate::pb::Peeked {
const FIELDS: &'static [Field] = &[repeated::<crate::pb::PeekedItem>(1, crate::pb::PeekedItem::FIELDS)];
}
impl DecodedSize for crate::pb::PeekedItem {
const FIELDS: &'static [Field] = &[];
}
