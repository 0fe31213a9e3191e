//! What records hold: options, chunks' forms, items.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::chunk::{Chunk, Extent, Origin};
use engram_core::codec::Codec;
use engram_core::{
    AlignedBytes, CellSpec, ColumnSpec, DType, Layout, NewItem, Payload, RateLimits, Schema,
    SelectorKind, SessionNumber, Signature, Slice, SpanColumn, Spans, TableOptions, Trajectory,
    WindowShape,
};

use super::byte_codec::{CorruptRecord, PutBytes, TakeBytes};

/// Kinds of records.
pub(crate) mod kind {
    pub(crate) const LAYOUT: u32 = 1;
    pub(crate) const SCHEMA: u32 = 2;
    pub(crate) const SHAPE: u32 = 3;
    pub(crate) const CHUNK: u32 = 4;
    pub(crate) const CHANGES: u32 = 5;
    pub(crate) const TABLE_CREATED: u32 = 6;
    pub(crate) const TABLE_DROPPED: u32 = 7;
    pub(crate) const BEGIN: u32 = 8;
    pub(crate) const LOGS: u32 = 16;
    pub(crate) const TABLE: u32 = 17;
    pub(crate) const ITEMS: u32 = 18;
    pub(crate) const ORDER: u32 = 19;
    pub(crate) const SESSIONS: u32 = 20;
    pub(crate) const END: u32 = 21;
    pub(crate) const SERIALS: u32 = 22;
}

/// Axes of a cell that are read.
const MAX_AXES: usize = 64;

/// DictionaryWriter that one file has been told, by address: the references keep the addresses from being used again.
#[derive(Debug, Default)]
pub(crate) struct WrittenDictionary {
    layouts: HashMap<usize, (u32, Arc<Layout>)>,
    schemas: HashMap<usize, (u32, Arc<Schema>)>,
    shapes: HashMap<usize, (u32, Arc<WindowShape>)>,
}

/// Where records of forms go, before the record that needs them.
pub(crate) trait DictionaryWriter {
    fn told(&mut self) -> &mut WrittenDictionary;

    fn record(&mut self, kind: u32, body: &[u8]);

    fn layout(&mut self, layout: &Arc<Layout>) -> u32 {
        let address = Arc::as_ptr(layout).addr();
        if let Some((number, _)) = self.told().layouts.get(&address) {
            return *number;
        }
        let number = count(self.told().layouts.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_len(layout.names.len());
        for name in &layout.names {
            body.put_text(name);
        }
        body.put_text(&layout.structure);
        self.record(kind::LAYOUT, &body);
        let told = (number, Arc::clone(layout));
        self.told().layouts.insert(address, told);
        number
    }

    fn schema(&mut self, schema: &Arc<Schema>) -> u32 {
        let address = Arc::as_ptr(schema).addr();
        if let Some((number, _)) = self.told().schemas.get(&address) {
            return *number;
        }
        let layout = self.layout(&schema.layout);
        let number = count(self.told().schemas.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_u32(layout);
        body.put_len(schema.cells.len());
        for cell in &schema.cells {
            body.put_u8(dtype_out(cell.dtype));
            body.put_len(cell.shape.len());
            for axis in &cell.shape {
                body.put_u64(*axis as u64);
            }
        }
        self.record(kind::SCHEMA, &body);
        let told = (number, Arc::clone(schema));
        self.told().schemas.insert(address, told);
        number
    }

    fn shape(&mut self, shape: &Arc<WindowShape>) -> u32 {
        let address = Arc::as_ptr(shape).addr();
        if let Some((number, _)) = self.told().shapes.get(&address) {
            return *number;
        }
        let layout = self.layout(&shape.layout);
        let number = count(self.told().shapes.len());
        let mut body = Vec::new();
        body.put_u32(number);
        body.put_u32(layout);
        put_columns(&mut body, &shape.columns);
        put_slices(&mut body, &shape.slices);
        self.record(kind::SHAPE, &body);
        let told = (number, Arc::clone(shape));
        self.told().shapes.insert(address, told);
        number
    }

    /// Puts an item; `serial` names its chunks, which are written before it.
    fn item(
        &mut self,
        body: &mut Vec<u8>,
        item: ItemRef<'_>,
        serial: &impl Fn(&Arc<Chunk>) -> u64,
    ) {
        body.put_u64(item.key);
        body.put_f64(item.priority);
        match item.trajectory {
            Trajectory::Rows {
                chunk,
                offset,
                len,
                squeeze,
            } => {
                body.put_u8(u8::from(*squeeze));
                body.put_u64(serial(chunk));
                body.put_u32(*offset);
                body.put_u32(*len);
            }
            Trajectory::Window {
                chunk,
                offset,
                shape,
            } => {
                let shape = self.shape(shape);
                body.put_u8(2);
                body.put_u64(serial(chunk));
                body.put_u32(*offset);
                body.put_u32(shape);
            }
            Trajectory::Spans(spans) => {
                let layout = self.layout(&spans.layout);
                body.put_u8(3);
                body.put_u32(layout);
                body.put_len(spans.chunks.len());
                for chunk in &spans.chunks {
                    body.put_u64(serial(chunk));
                }
                put_columns(body, &spans.columns);
                put_slices(body, &spans.slices);
            }
        }
    }
}

/// The parts of an item that are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemRef<'a> {
    pub(crate) key: u64,
    pub(crate) priority: f64,
    pub(crate) trajectory: &'a Trajectory,
}

impl<'a> From<&'a NewItem> for ItemRef<'a> {
    fn from(item: &'a NewItem) -> Self {
        Self {
            key: item.key,
            priority: item.priority,
            trajectory: &item.trajectory,
        }
    }
}

/// Everything of a chunk's record but the payload, which follows.
pub(crate) fn put_chunk(body: &mut Vec<u8>, chunk: &Chunk, serial: u64, schema: u32) {
    let Origin {
        key,
        episodes,
        first_step,
        steps,
    } = chunk.origin();
    body.put_u64(serial);
    body.put_u64(*key);
    body.put_u32(schema);
    body.put_u64(*first_step);
    body.put_u32(*steps);
    body.put_u64s(episodes);
    body.put_len(chunk.extents().len());
    for extent in chunk.extents() {
        body.put_u32(extent.offset);
        body.put_u32(extent.stored);
        body.put_u32(extent.rows);
        body.put_u8(match extent.codec {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::Delta => 2,
        });
    }
}

/// What one file has told so far, by number.
#[derive(Debug, Default)]
pub(crate) struct ReadDictionary {
    layouts: Vec<Arc<Layout>>,
    schemas: Vec<Arc<Schema>>,
    shapes: Vec<Arc<WindowShape>>,
}

/// The next number of a kind of form.
fn next(take: &mut TakeBytes<'_>, known: usize, what: &str) -> Result<(), CorruptRecord> {
    let number = take.u32()?;
    if number as usize == known {
        return Ok(());
    }
    CorruptRecord::err(format!(
        "{what} {number} follows {known} others; {known} should"
    ))
}

fn at<T: Clone>(known: &[T], number: u32, what: &str) -> Result<T, CorruptRecord> {
    known.get(number as usize).cloned().ok_or_else(|| {
        let known = known.len();
        CorruptRecord(format!("{what} {number} is not known; {known} were told"))
    })
}

/// Memory for a chunk's bytes.
pub(crate) fn allocate_chunk(serial: u64, bytes: usize) -> Result<AlignedBytes, CorruptRecord> {
    let room = AlignedBytes::zeroed(bytes);
    Ok(room.ok_or_else(|| {
        engram_core::Error::out_of_memory(format_args!("chunk {serial}"), Some(bytes))
    })?)
}

/// What a log says of a chunk, beside its bytes.
#[derive(Debug)]
pub(crate) struct ChunkHeader {
    origin: Origin,
    schema: Arc<Schema>,
    extents: Vec<Extent>,
}

impl ChunkHeader {
    pub(crate) fn chunk(self, payload: AlignedBytes) -> Result<Chunk, CorruptRecord> {
        let payload = Payload::Heap(payload);
        Ok(Chunk::from_parts(
            self.origin,
            self.schema,
            self.extents.into(),
            payload,
        )?)
    }
}

impl ReadDictionary {
    /// Takes note of a form; false where the record is something else.
    pub(crate) fn take(&mut self, kind: u32, body: &[u8]) -> Result<bool, CorruptRecord> {
        let mut take = TakeBytes(body);
        match kind {
            kind::LAYOUT => {
                next(&mut take, self.layouts.len(), "layout")?;
                let names = take.list(4, |take| Ok(Box::from(take.text()?)))?;
                self.layouts.push(Arc::new(Layout {
                    names: names.into(),
                    structure: take.text()?.into(),
                }));
            }
            kind::SCHEMA => {
                next(&mut take, self.schemas.len(), "schema")?;
                let layout = at(&self.layouts, take.u32()?, "layout")?;
                let cells = take.list(5, cell_in)?.into();
                self.schemas.push(Arc::new(Schema { layout, cells }));
            }
            kind::SHAPE => {
                next(&mut take, self.shapes.len(), "shape")?;
                let layout = at(&self.layouts, take.u32()?, "layout")?;
                let columns = columns_in(&mut take)?;
                let slices = slices_in(&mut take)?;
                self.shapes.push(Arc::new(WindowShape {
                    layout,
                    columns,
                    slices,
                }));
            }
            _ => return Ok(false),
        }
        take.end().map(|()| true)
    }

    /// A chunk's record: its serial, and the chunk if `wanted`.
    pub(crate) fn chunk(
        &self,
        body: &[u8],
        wanted: impl FnOnce(u64) -> bool,
    ) -> Result<(u64, Option<Chunk>), CorruptRecord> {
        let mut take = TakeBytes(body);
        let serial = take.u64()?;
        if !wanted(serial) {
            return Ok((serial, None));
        }
        let facts = self.chunk_header(&mut take)?;
        let mut payload = allocate_chunk(serial, take.0.len())?;
        payload.copy_from_slice(take.0);
        Ok((serial, Some(facts.chunk(payload)?)))
    }

    /// What a chunk's record says after its serial and before the chunk's bytes.
    pub(crate) fn chunk_header(
        &self,
        take: &mut TakeBytes<'_>,
    ) -> Result<ChunkHeader, CorruptRecord> {
        let key = take.u64()?;
        let schema = at(&self.schemas, take.u32()?, "schema")?;
        let origin = Origin {
            key,
            first_step: take.u64()?,
            steps: take.u32()?,
            episodes: take.u64s()?.into(),
        };
        let extents = take.list(13, |take| {
            Ok(Extent {
                offset: take.u32()?,
                stored: take.u32()?,
                rows: take.u32()?,
                codec: match take.u8()? {
                    0 => Codec::Raw,
                    1 => Codec::Lz4,
                    2 => Codec::Delta,
                    other => {
                        return CorruptRecord::err(format!(
                            "a codec has code {other}; 0 to 2 are known"
                        ));
                    }
                },
            })
        })?;
        Ok(ChunkHeader {
            origin,
            schema,
            extents,
        })
    }

    /// An item whose trajectory's parts are to be checked.
    pub(crate) fn item(
        &self,
        take: &mut TakeBytes<'_>,
        chunk: &mut dyn FnMut(u64) -> Result<Arc<Chunk>, CorruptRecord>,
    ) -> Result<NewItem, CorruptRecord> {
        let (key, priority) = (take.u64()?, take.f64()?);
        let trajectory = match take.u8()? {
            squeeze @ (0 | 1) => Trajectory::Rows {
                chunk: chunk(take.u64()?)?,
                offset: take.u32()?,
                len: take.u32()?,
                squeeze: squeeze == 1,
            },
            2 => Trajectory::Window {
                chunk: chunk(take.u64()?)?,
                offset: take.u32()?,
                shape: at(&self.shapes, take.u32()?, "shape")?,
            },
            3 => {
                let layout = at(&self.layouts, take.u32()?, "layout")?;
                let chunks = take.list(8, |take| chunk(take.u64()?))?.into();
                Trajectory::Spans(Arc::new(Spans {
                    layout,
                    chunks,
                    columns: columns_in(take)?,
                    slices: slices_in(take)?,
                }))
            }
            other => {
                return CorruptRecord::err(format!(
                    "a trajectory is of kind {other}; 0 to 3 are known"
                ));
            }
        };
        Ok(NewItem {
            key,
            trajectory,
            priority,
        })
    }
}

fn cell_in(take: &mut TakeBytes<'_>) -> Result<CellSpec, CorruptRecord> {
    let dtype = dtype_in(take.u8()?)?;
    let axes = take.list(8, |take| {
        Ok(usize::try_from(take.u64()?).unwrap_or(usize::MAX))
    })?;
    let cell = CellSpec {
        dtype,
        shape: axes.into(),
    };
    if cell.shape.len() > MAX_AXES || cell.checked_size().is_none() {
        return CorruptRecord::err(format!("cells of {cell} are too large"));
    }
    Ok(cell)
}

fn put_columns(body: &mut Vec<u8>, columns: &[SpanColumn]) {
    body.put_len(columns.len());
    for column in columns {
        body.put_u32(column.first_slice);
        body.put_u32(column.len);
        body.put_u8(u8::from(column.squeeze));
    }
}

fn columns_in(take: &mut TakeBytes<'_>) -> Result<Box<[SpanColumn]>, CorruptRecord> {
    let columns = take.list(9, |take| {
        Ok(SpanColumn {
            first_slice: take.u32()?,
            len: take.u32()?,
            squeeze: take.bool()?,
        })
    });
    columns.map(Into::into)
}

fn put_slices(body: &mut Vec<u8>, slices: &[Slice]) {
    body.put_len(slices.len());
    for slice in slices {
        for number in [slice.chunk, slice.column, slice.offset, slice.len] {
            body.put_u32(number);
        }
    }
}

fn slices_in(take: &mut TakeBytes<'_>) -> Result<Box<[Slice]>, CorruptRecord> {
    let slices = take.list(16, |take| {
        Ok(Slice {
            chunk: take.u32()?,
            column: take.u32()?,
            offset: take.u32()?,
            len: take.u32()?,
        })
    });
    slices.map(Into::into)
}

pub(crate) fn put_session(body: &mut Vec<u8>, number: SessionNumber) {
    body.put_u64(number.session);
    body.put_u64(number.number);
}

pub(crate) fn session_in(take: &mut TakeBytes<'_>) -> Result<SessionNumber, CorruptRecord> {
    Ok(SessionNumber {
        session: take.u64()?,
        number: take.u64()?,
    })
}

pub(crate) fn put_limits(body: &mut Vec<u8>, limits: &RateLimits) {
    body.put_text(&limits.kind);
    body.put_f64(limits.samples_per_insert);
    body.put_u64(limits.min_size);
    body.put_f64(limits.min_diff);
    body.put_f64(limits.max_diff);
}

pub(crate) fn limits_in(take: &mut TakeBytes<'_>) -> Result<RateLimits, CorruptRecord> {
    Ok(RateLimits {
        kind: take.text()?.into(),
        samples_per_insert: take.f64()?,
        min_size: take.u64()?,
        min_diff: take.f64()?,
        max_diff: take.f64()?,
    })
}

fn put_selector(body: &mut Vec<u8>, selector: SelectorKind) {
    let (code, exponent) = match selector {
        SelectorKind::Fifo => (0, 0.0),
        SelectorKind::Lifo => (1, 0.0),
        SelectorKind::Uniform => (2, 0.0),
        SelectorKind::Prioritized { exponent } => (3, exponent),
        SelectorKind::MinHeap => (4, 0.0),
        SelectorKind::MaxHeap => (5, 0.0),
    };
    body.put_u8(code);
    body.put_f64(exponent);
}

fn selector_in(take: &mut TakeBytes<'_>) -> Result<SelectorKind, CorruptRecord> {
    let (code, exponent) = (take.u8()?, take.f64()?);
    Ok(match code {
        0 => SelectorKind::Fifo,
        1 => SelectorKind::Lifo,
        2 => SelectorKind::Uniform,
        3 => SelectorKind::Prioritized { exponent },
        4 => SelectorKind::MinHeap,
        5 => SelectorKind::MaxHeap,
        other => {
            return CorruptRecord::err(format!("a selector is of kind {other}; 0 to 5 are known"));
        }
    })
}

pub(crate) fn put_options(body: &mut Vec<u8>, options: &TableOptions) {
    body.put_text(&options.name);
    body.put_u64(options.max_size);
    body.put_maybe(options.max_bytes, Vec::put_u64);
    body.put_u32(options.max_times_sampled);
    body.put_maybe(options.ttl, Vec::put_u64);
    put_selector(body, options.sampler);
    put_selector(body, options.remover);
    put_limits(body, &options.limits);
    let given = (options.signature.is_some(), options.note.is_some());
    body.put_u8(u8::from(given.0) | u8::from(given.1) << 1);
    if let Some(signature) = &options.signature {
        body.put_text(&signature.structure);
        body.put_len(signature.columns.len());
        for column in &signature.columns {
            body.put_text(&column.name);
            body.put_u8(dtype_out(column.dtype));
            body.put_len(column.shape.len());
            for axis in &column.shape {
                body.put_maybe(*axis, |body, axis| body.put_u64(axis as u64));
            }
        }
    }
    if let Some(note) = &options.note {
        body.put_text(note);
    }
    body.put_u64(options.seed);
}

pub(crate) fn options_in(take: &mut TakeBytes<'_>) -> Result<TableOptions, CorruptRecord> {
    let mut options = TableOptions {
        name: take.text()?.into(),
        max_size: take.u64()?,
        max_bytes: take.maybe(TakeBytes::u64)?,
        max_times_sampled: take.u32()?,
        ttl: take.maybe(TakeBytes::u64)?,
        sampler: selector_in(take)?,
        remover: selector_in(take)?,
        limits: limits_in(take)?,
        signature: None,
        seed: 0,
        note: None,
    };
    let given = take.u8()?;
    if given > 3 {
        return CorruptRecord::err(format!(
            "a table has {given} where 0 to 3 says what follows"
        ));
    }
    if given & 1 != 0 {
        options.signature = Some(Arc::new(signature_in(take)?));
    }
    if given & 2 != 0 {
        options.note = Some(take.text()?.into());
    }
    options.seed = take.u64()?;
    Ok(options)
}

fn signature_in(take: &mut TakeBytes<'_>) -> Result<Signature, CorruptRecord> {
    let structure = take.text()?.into();
    let columns = take.list(9, |take| {
        let name = take.text()?.into();
        let dtype = dtype_in(take.u8()?)?;
        let axis = |take: &mut TakeBytes<'_>| {
            let axis = take.maybe(TakeBytes::u64)?;
            Ok(axis.map(|axis| usize::try_from(axis).unwrap_or(usize::MAX)))
        };
        let shape = take.list(1, axis)?.into();
        Ok(ColumnSpec { name, dtype, shape })
    })?;
    Ok(Signature {
        columns: columns.into(),
        structure,
    })
}

fn dtype_out(dtype: DType) -> u8 {
    dtype as u8
}

fn dtype_in(code: u8) -> Result<DType, CorruptRecord> {
    let known = DType::ALL.get(usize::from(code)).copied();
    known.ok_or_else(|| CorruptRecord(format!("a dtype has code {code}; 0 to 17 are known")))
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
