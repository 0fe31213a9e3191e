//! Converts errors, layouts, cell specs, table options and table infos to and from messages.

use std::sync::Arc;

use engram_core::rate_limiter::RateLimiter;
use engram_core::table::TableStats;
use engram_core::{
    CellSpec, ColumnSpec, DType, DrawDistribution, Error, Layout, RateLimits, Result, SelectorKind,
    Signature, TableOptions,
};
use engram_engine::TableInfo;

use super::{MAX_AXES, MAX_COLUMNS};
use crate::pb;
use crate::pb::error::Code;
use crate::pb::selector::Kind;

/// Encodes an error.
#[must_use]
pub fn encode_error(error: &Error) -> pb::Error {
    let code = match error {
        Error::UnknownTable { .. } => Code::UnknownTable,
        Error::Signature(_) => Code::Signature,
        Error::Priority(_) => Code::Priority,
        Error::InvalidArgument(_) => Code::InvalidArgument,
        Error::DeadlineExceeded(_) => Code::DeadlineExceeded,
        Error::Unsatisfiable(_) => Code::Unsatisfiable,
        Error::Closed(_) => Code::Closed,
        Error::ExpiredStep(_) => Code::ExpiredStep,
        Error::Backpressure(_) => Code::Backpressure,
        Error::Payload(_) => Code::Payload,
        Error::OutOfMemory(_) => Code::OutOfMemory,
        Error::Unavailable(_) => Code::Unavailable,
        Error::Handshake(_) => Code::Handshake,
        Error::Storage(_) => Code::Storage,
        _ => Code::Unknown,
    };
    let (table, known) = match error {
        Error::UnknownTable { name, known } => (name.clone(), known.clone()),
        _ => Default::default(),
    };
    pb::Error {
        code: code.into(),
        text: error.to_string(),
        table,
        known_tables: known,
    }
}

/// Decodes an error. If this version does not know its code, returns [`Error::Payload`] with the same text.
#[must_use]
pub fn decode_error(error: pb::Error) -> Error {
    let code = error.code();
    let pb::Error {
        text,
        table,
        known_tables: known,
        ..
    } = error;
    match code {
        Code::UnknownTable => Error::UnknownTable { name: table, known },
        Code::Signature => Error::Signature(text),
        Code::Priority => Error::Priority(text),
        Code::InvalidArgument => Error::InvalidArgument(text),
        Code::DeadlineExceeded => Error::DeadlineExceeded(text),
        Code::Unsatisfiable => Error::Unsatisfiable(text),
        Code::Closed => Error::Closed(text),
        Code::ExpiredStep => Error::ExpiredStep(text),
        Code::Backpressure => Error::Backpressure(text),
        Code::Unavailable => Error::Unavailable(text),
        Code::Handshake => Error::Handshake(text),
        Code::Storage => Error::Storage(text),
        Code::OutOfMemory => Error::OutOfMemory(text),
        Code::Unknown | Code::Payload => Error::Payload(text),
    }
}

/// Encodes a layout: names and nesting.
#[must_use]
pub fn encode_layout(layout: &Layout) -> pb::Layout {
    pb::Layout {
        names: layout.names.iter().map(ToString::to_string).collect(),
        structure: layout.structure.to_string(),
    }
}

/// Decodes a layout.
///
/// # Errors
/// [`Error::InvalidArgument`] if the layout is missing or has too many names.
pub fn decode_layout(layout: Option<pb::Layout>) -> Result<Layout> {
    let layout = layout.ok_or_else(|| missing("layout"))?;
    check_column_count("a layout", layout.names.len())?;
    Ok(Layout {
        names: layout.names.into_iter().map(Into::into).collect(),
        structure: layout.structure.into(),
    })
}

/// Checks a number of columns. `owner` names what has them in the error text.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is above [`MAX_COLUMNS`].
pub(crate) fn check_column_count(owner: &str, columns: usize) -> Result<()> {
    if columns <= MAX_COLUMNS {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "{owner} has {columns} columns; a server accepts at most {MAX_COLUMNS}"
    )))
}

/// Encodes the dtype and shape of a column's cells.
#[must_use]
pub fn encode_cell_spec(cell: &CellSpec) -> pb::Cell {
    pb::Cell {
        dtype: cell.dtype.name().into(),
        shape: cell.shape.iter().map(|size| *size as u64).collect(),
    }
}

/// Decodes the dtype and shape of a column's cells.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown dtype or a shape that is too large.
pub fn decode_cell_spec(cell: &pb::Cell) -> Result<CellSpec> {
    let dtype = decode_dtype(&cell.dtype)?;
    let too_large = || {
        Error::InvalidArgument(format!(
            "cell shape {:?} is too large; at most {MAX_AXES} axes and 2^47 elements are allowed",
            cell.shape
        ))
    };
    let elements = (cell.shape.iter()).try_fold(1_u64, |all, size| all.checked_mul(*size));
    if cell.shape.len() > MAX_AXES || elements.is_none_or(|elements| elements > 1 << 47) {
        return Err(too_large());
    }
    // If one size is 0, the product is 0, but the other sizes may still be too large.
    let shape = cell.shape.iter().map(|size| {
        let size = (*size <= 1 << 47).then_some(*size);
        size.and_then(|size| usize::try_from(size).ok())
    });
    let shape = shape.collect::<Option<_>>().ok_or_else(too_large)?;
    Ok(CellSpec { dtype, shape })
}

fn decode_dtype(name: &str) -> Result<DType> {
    DType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        Error::InvalidArgument(format!(
            "unknown dtype `{name}`; expected one of {}",
            known.join(", ")
        ))
    })
}

/// Encodes rate limits.
#[must_use]
pub fn encode_limits(limits: &RateLimits) -> pb::RateLimits {
    pb::RateLimits {
        kind: limits.kind.clone(),
        samples_per_insert: limits.samples_per_insert,
        min_size: limits.min_size,
        min_diff: limits.min_diff,
        max_diff: limits.max_diff,
    }
}

/// Decodes rate limits.
///
/// # Errors
/// [`Error::InvalidArgument`] if they are missing.
pub fn decode_limits(limits: Option<pb::RateLimits>) -> Result<RateLimits> {
    let limits = limits.ok_or_else(|| missing("limits"))?;
    Ok(RateLimits {
        kind: limits.kind,
        samples_per_insert: limits.samples_per_insert,
        min_size: limits.min_size,
        min_diff: limits.min_diff,
        max_diff: limits.max_diff,
    })
}

fn kind_of(selector: SelectorKind) -> Kind {
    match selector {
        SelectorKind::Fifo => Kind::Fifo,
        SelectorKind::Lifo => Kind::Lifo,
        SelectorKind::Uniform => Kind::Uniform,
        SelectorKind::MinHeap => Kind::MinHeap,
        SelectorKind::MaxHeap => Kind::MaxHeap,
        SelectorKind::Prioritized { .. } => Kind::Prioritized,
    }
}

fn encode_selector(selector: SelectorKind) -> pb::Selector {
    pb::Selector {
        kind: kind_of(selector).into(),
        exponent: selector.exponent().unwrap_or(0.0),
    }
}

/// Decodes the selector in the required field `field`.
fn decode_selector(field: &str, selector: Option<pb::Selector>) -> Result<SelectorKind> {
    let selector = selector.ok_or_else(|| missing(field))?;
    let mut known = SelectorKind::ALL.iter();
    match known.find(|known| kind_of(**known) as i32 == selector.kind) {
        Some(known) => Ok(known.with_exponent(selector.exponent)),
        None => Err(Error::InvalidArgument(format!(
            "unknown selector kind {}; expected 0 to {}",
            selector.kind,
            SelectorKind::ALL.len() - 1
        ))),
    }
}

/// Encodes table options without the seed, which is private to the table.
#[must_use]
pub fn encode_options(options: &TableOptions) -> pb::TableOptions {
    pb::TableOptions {
        name: options.name.clone(),
        max_size: options.max_size,
        max_bytes: options.max_bytes,
        max_times_sampled: options.max_times_sampled,
        ttl: options.ttl,
        sampler: Some(encode_selector(options.sampler)),
        remover: Some(encode_selector(options.remover)),
        limits: Some(encode_limits(&options.limits)),
        signature: options.signature.as_deref().map(encode_signature),
        seed: None,
        note: options.note.as_deref().map(str::to_owned),
    }
}

/// Size of an axis in `pb::ColumnSpec::shape` that may have any size.
const ANY_SIZE: i64 = -1;

fn encode_signature(signature: &Signature) -> pb::Signature {
    let columns = signature.columns.iter().map(|column| pb::ColumnSpec {
        name: column.name.to_string(),
        dtype: column.dtype.name().into(),
        shape: (column.shape.iter())
            .map(|size| {
                size.and_then(|size| i64::try_from(size).ok())
                    .unwrap_or(ANY_SIZE)
            })
            .collect(),
    });
    pb::Signature {
        columns: columns.collect(),
        structure: signature.structure.to_string(),
    }
}

/// Decodes table options. `seed` is used if the message has no seed.
///
/// # Errors
/// [`Error::InvalidArgument`] for missing or unknown values. Ranges are checked by the engine and by
/// [`check_signature_size`].
pub fn decode_options(options: pb::TableOptions, seed: u64) -> Result<TableOptions> {
    let signature = options.signature.map(decode_signature).transpose()?;
    Ok(TableOptions {
        name: options.name,
        max_size: options.max_size,
        max_bytes: options.max_bytes,
        max_times_sampled: options.max_times_sampled,
        ttl: options.ttl,
        sampler: decode_selector("sampler", options.sampler)?,
        remover: decode_selector("remover", options.remover)?,
        limits: decode_limits(options.limits)?,
        signature: signature.map(Arc::new),
        seed: options.seed.unwrap_or(seed),
        note: options.note.map(Into::into),
    })
}

/// Checks the numbers of columns and axes of the signature of a new table. Not part of [`decode_options`]: a table that
/// was created in the server's process may have more, and clients can read its info.
///
/// # Errors
/// [`Error::InvalidArgument`] with the number and the maximum.
pub(crate) fn check_signature_size(options: &pb::TableOptions) -> Result<()> {
    let Some(signature) = &options.signature else {
        return Ok(());
    };
    check_column_count("a signature", signature.columns.len())?;
    let mut columns = signature.columns.iter();
    let Some(column) = columns.find(|column| column.shape.len() > MAX_AXES) else {
        return Ok(());
    };
    Err(Error::InvalidArgument(format!(
        "column `{}` of a signature has {} axes; at most {MAX_AXES} are allowed",
        column.name,
        column.shape.len()
    )))
}

fn decode_signature(signature: pb::Signature) -> Result<Signature> {
    let columns = signature.columns.into_iter().map(|column| {
        Ok(ColumnSpec {
            dtype: decode_dtype(&column.dtype)?,
            name: column.name.into(),
            shape: (column.shape.iter())
                // Negative sizes mean that any size is allowed.
                .map(|size| usize::try_from(*size).ok())
                .collect(),
        })
    });
    Ok(Signature {
        columns: columns.collect::<Result<_>>()?,
        structure: signature.structure.into(),
    })
}

/// Encodes a table's info.
#[must_use]
pub fn encode_info(info: &TableInfo) -> pb::TableInfo {
    let stats = &info.stats;
    // `info.options` has the limits at the table's creation; the message has the current ones.
    let options = TableOptions {
        limits: stats.limiter.limits.clone(),
        ..(*info.options).clone()
    };
    pb::TableInfo {
        options: Some(encode_options(&options)),
        size: stats.size,
        hidden_items: stats.hidden_items,
        bytes: stats.bytes,
        num_episodes: stats.num_episodes,
        num_deleted_episodes: stats.num_deleted_episodes,
        num_unique_samples: stats.num_unique_samples,
        inserts: stats.limiter.inserts,
        samples: stats.limiter.samples,
        deletes: stats.limiter.deletes,
        inserts_per_s: info.inserts_per_s,
        samples_per_s: info.samples_per_s,
        waiting_inserts: info.waiting_inserts as u64,
        waiting_samples: info.waiting_samples as u64,
        inserting_blocked: info.inserting_blocked.clone(),
        sampling_blocked: info.sampling_blocked.clone(),
        storage_problem: info.storage_problem.clone(),
        unreadable_items: info.unreadable_items,
        leased_samples: stats.leased,
        candidates: info.distribution.candidates,
        min_probability: info.distribution.min_probability,
        total_weight: info.distribution.total_weight,
    }
}

/// Decodes a table's info.
///
/// # Errors
/// Those of [`decode_options`].
pub fn decode_info(info: pb::TableInfo) -> Result<TableInfo> {
    let options = decode_options(info.options.ok_or_else(|| missing("options"))?, 0)?;
    let mut limiter = RateLimiter::new(options.limits.clone());
    limiter.inserts = info.inserts;
    limiter.samples = info.samples;
    limiter.deletes = info.deletes;
    Ok(TableInfo {
        options: Arc::new(options),
        stats: TableStats {
            size: info.size,
            hidden_items: info.hidden_items,
            bytes: info.bytes,
            num_episodes: info.num_episodes,
            num_deleted_episodes: info.num_deleted_episodes,
            num_unique_samples: info.num_unique_samples,
            leased: info.leased_samples,
            limiter,
        },
        distribution: DrawDistribution {
            candidates: info.candidates,
            min_probability: info.min_probability,
            total_weight: info.total_weight,
        },
        inserts_per_s: info.inserts_per_s,
        samples_per_s: info.samples_per_s,
        waiting_inserts: usize::try_from(info.waiting_inserts).unwrap_or(usize::MAX),
        waiting_samples: usize::try_from(info.waiting_samples).unwrap_or(usize::MAX),
        inserting_blocked: info.inserting_blocked,
        sampling_blocked: info.sampling_blocked,
        storage_problem: info.storage_problem,
        unreadable_items: info.unreadable_items,
    })
}

fn missing(field: &str) -> Error {
    Error::InvalidArgument(format!("the required field `{field}` is missing"))
}
