//! Encoding of numbers, texts and lists in record bodies: numbers are little-endian; texts and lists
//! begin with their length.

/// Why a file or a record in it cannot be used: its bytes are invalid, or they cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnusableData(pub String);

impl UnusableData {
    /// Returns an `Err` with this reason.
    pub(crate) fn err<T>(reason: impl Into<String>) -> Result<T, Self> {
        Err(Self(reason.into()))
    }
}

impl From<engram_core::Error> for UnusableData {
    fn from(error: engram_core::Error) -> Self {
        Self(error.to_string())
    }
}

/// Appends encoded values to a record body.
pub(crate) trait BodyWriter {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn put_f64(&mut self, value: f64) {
        self.put_u64(value.to_bits());
    }

    /// Writes a length as `u32`. All lengths fit: chunks, names and batches have smaller limits.
    fn put_len(&mut self, len: usize) {
        self.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn put_text(&mut self, text: &str) {
        self.put_len(text.len());
        self.put(text.as_bytes());
    }

    fn put_u64s(&mut self, values: &[u64]) {
        self.put_len(values.len());
        for value in values {
            self.put_u64(*value);
        }
    }

    /// Writes 0 for `None`, or 1 and the value as written by `put`.
    fn put_option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T))
    where
        Self: Sized,
    {
        self.put_u8(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
    }
}

impl BodyWriter for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Decodes the remaining bytes of a record body. A length in the body is checked against the remaining
/// bytes before memory is allocated for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyReader<'a>(pub(crate) &'a [u8]);

impl<'a> BodyReader<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], UnusableData> {
        let Some((bytes, rest)) = self.0.split_at_checked(len) else {
            return UnusableData::err(format!(
                "expected {}, found {}",
                engram_core::text::count(len, "more byte"),
                self.0.len()
            ));
        };
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], UnusableData> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, UnusableData> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, UnusableData> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, UnusableData> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn f64(&mut self) -> Result<f64, UnusableData> {
        self.u64().map(f64::from_bits)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, UnusableData> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => UnusableData::err(format!("expected 0 or 1; got {other}")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, UnusableData> {
        let len = self.u32()? as usize;
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes)
            .map_err(|error| UnusableData(format!("a text is not UTF-8: {error}")))
    }

    /// Reads a list of entries. `min_bytes` is a lower bound of an entry's size in bytes.
    pub(crate) fn list<T>(
        &mut self,
        min_bytes: usize,
        mut read_entry: impl FnMut(&mut Self) -> Result<T, UnusableData>,
    ) -> Result<Vec<T>, UnusableData> {
        let len = self.u32()? as usize;
        if len.saturating_mul(min_bytes) > self.0.len() {
            return UnusableData::err(format!(
                "a list of {len} entries does not fit into the {} left",
                engram_core::text::count(self.0.len(), "byte")
            ));
        }
        (0..len).map(|_| read_entry(self)).collect()
    }

    pub(crate) fn u64s(&mut self) -> Result<Vec<u64>, UnusableData> {
        self.list(8, Self::u64)
    }

    pub(crate) fn option<T>(
        &mut self,
        read_value: impl FnOnce(&mut Self) -> Result<T, UnusableData>,
    ) -> Result<Option<T>, UnusableData> {
        self.bool()?.then(|| read_value(self)).transpose()
    }

    /// Fails if bytes are left.
    pub(crate) fn check_end(self) -> Result<(), UnusableData> {
        if self.0.is_empty() {
            return Ok(());
        }
        let extra = engram_core::text::count(self.0.len(), "extra byte");
        UnusableData::err(format!("{extra} at the end"))
    }
}
