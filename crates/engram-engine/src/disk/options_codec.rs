//! Encoding of table options in record bodies.

use std::sync::Arc;

use engram_core::{ColumnSpec, RateLimits, SelectorKind, Signature, TableOptions};

use super::byte_codec::{BodyReader, BodyWriter, UnusableData};
use super::record_codec::dtype_from_code;

pub(crate) fn put_limits(body: &mut Vec<u8>, limits: &RateLimits) {
    body.put_text(&limits.kind);
    body.put_f64(limits.samples_per_insert);
    body.put_u64(limits.min_size);
    body.put_f64(limits.min_diff);
    body.put_f64(limits.max_diff);
}

pub(crate) fn read_limits(reader: &mut BodyReader<'_>) -> Result<RateLimits, UnusableData> {
    Ok(RateLimits {
        kind: reader.text()?.into(),
        samples_per_insert: reader.f64()?,
        min_size: reader.u64()?,
        min_diff: reader.f64()?,
        max_diff: reader.f64()?,
    })
}

/// The number of a selector's kind.
fn selector_number(selector: SelectorKind) -> u8 {
    match selector {
        SelectorKind::Fifo => 0,
        SelectorKind::Lifo => 1,
        SelectorKind::Uniform => 2,
        SelectorKind::Prioritized { .. } => 3,
        SelectorKind::MinHeap => 4,
        SelectorKind::MaxHeap => 5,
    }
}

fn put_selector(body: &mut Vec<u8>, selector: SelectorKind) {
    body.put_u8(selector_number(selector));
    body.put_f64(selector.exponent().unwrap_or(0.0));
}

fn read_selector(reader: &mut BodyReader<'_>) -> Result<SelectorKind, UnusableData> {
    let (number, exponent) = (reader.u8()?, reader.f64()?);
    let mut known = SelectorKind::ALL.iter();
    match known.find(|selector| selector_number(**selector) == number) {
        Some(selector) => Ok(selector.with_exponent(exponent)),
        None => UnusableData::err(format!(
            "unknown selector kind {number}, expected 0 to {}",
            SelectorKind::ALL.len() - 1
        )),
    }
}

pub(crate) fn put_options(body: &mut Vec<u8>, options: &TableOptions) {
    body.put_text(&options.name);
    body.put_u64(options.max_size);
    body.put_option(options.max_bytes, Vec::put_u64);
    body.put_u32(options.max_times_sampled);
    body.put_option(options.ttl, Vec::put_u64);
    put_selector(body, options.sampler);
    put_selector(body, options.remover);
    put_limits(body, &options.limits);
    let signature_flag = u8::from(options.signature.is_some());
    let note_flag = u8::from(options.note.is_some()) << 1;
    body.put_u8(signature_flag | note_flag);
    if let Some(signature) = &options.signature {
        body.put_text(&signature.structure);
        body.put_len(signature.columns.len());
        for column in &signature.columns {
            body.put_text(&column.name);
            body.put_u8(column.dtype as u8);
            body.put_len(column.shape.len());
            for axis in &column.shape {
                body.put_option(*axis, |body, axis| body.put_u64(axis as u64));
            }
        }
    }
    if let Some(note) = &options.note {
        body.put_text(note);
    }
    body.put_u64(options.seed);
}

pub(crate) fn read_options(reader: &mut BodyReader<'_>) -> Result<TableOptions, UnusableData> {
    let mut options = TableOptions {
        name: reader.text()?.into(),
        max_size: reader.u64()?,
        max_bytes: reader.option(BodyReader::u64)?,
        max_times_sampled: reader.u32()?,
        ttl: reader.option(BodyReader::u64)?,
        sampler: read_selector(reader)?,
        remover: read_selector(reader)?,
        limits: read_limits(reader)?,
        signature: None,
        seed: 0,
        note: None,
    };
    let flags = reader.u8()?;
    if flags > 3 {
        return UnusableData::err(format!("unknown option flags {flags}, expected 0 to 3"));
    }
    if flags & 1 != 0 {
        options.signature = Some(Arc::new(read_signature(reader)?));
    }
    if flags & 2 != 0 {
        options.note = Some(reader.text()?.into());
    }
    options.seed = reader.u64()?;
    Ok(options)
}

fn read_signature(reader: &mut BodyReader<'_>) -> Result<Signature, UnusableData> {
    let structure = reader.text()?.into();
    let columns = reader.list(9, |reader| {
        let name = reader.text()?.into();
        let dtype = dtype_from_code(reader.u8()?)?;
        let axis = |reader: &mut BodyReader<'_>| {
            let axis = reader.option(BodyReader::u64)?;
            Ok(axis.map(|axis| usize::try_from(axis).unwrap_or(usize::MAX)))
        };
        let shape = reader.list(1, axis)?.into();
        Ok(ColumnSpec { name, dtype, shape })
    })?;
    Ok(Signature {
        columns: columns.into(),
        structure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_have_the_numbers_of_the_file_format() {
        for (number, selector) in (0..).zip(SelectorKind::ALL) {
            let selector = selector.with_exponent(0.5);
            let mut body = Vec::new();
            put_selector(&mut body, selector);
            assert_eq!(body[0], number);
            assert_eq!(read_selector(&mut BodyReader(&body)).unwrap(), selector);
        }
    }
}
