//! The element types a column may have.

use std::fmt;

/// Element type of a column. Bytes are little-endian, as NumPy lays them out. The variants' numbers are
/// part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "named after NumPy's dtypes")]
pub enum DType {
    Bool = 0,
    Int8 = 1,
    Int16 = 2,
    Int32 = 3,
    Int64 = 4,
    Uint8 = 5,
    Uint16 = 6,
    Uint32 = 7,
    Uint64 = 8,
    Float16 = 9,
    Float32 = 10,
    Float64 = 11,
    Complex64 = 12,
    Complex128 = 13,
    Bfloat16 = 14,
    Float8E4m3fn = 15,
    Float8E5m2 = 16,
    /// Byte strings of any length, named `string`. A cell is stored as its elements, each a `u32` length and the
    /// bytes.
    Bytes = 17,
    /// Text of any length: strings that writers in Python gave as `str`. Stored like [`Self::Bytes`], in UTF-8.
    Text = 18,
}

impl DType {
    /// Every dtype; a dtype's index is its number, `dtype as u8`.
    pub const ALL: [Self; 19] = [
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Complex64,
        Self::Complex128,
        Self::Bfloat16,
        Self::Float8E4m3fn,
        Self::Float8E5m2,
        Self::Bytes,
        Self::Text,
    ];

    /// True for signed and unsigned integers; false for bool.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        self as u8 >= Self::Int8 as u8 && self as u8 <= Self::Uint64 as u8
    }

    /// True for the small floats that the package `ml_dtypes` adds to those of NumPy.
    #[must_use]
    pub const fn is_small_float(self) -> bool {
        matches!(self, Self::Bfloat16 | Self::Float8E4m3fn | Self::Float8E5m2)
    }

    /// True for strings, whose elements vary in length: bytes and text.
    #[must_use]
    pub const fn is_string(self) -> bool {
        matches!(self, Self::Bytes | Self::Text)
    }

    /// True if cells of this dtype are accepted where `expected` is required: the dtypes are equal, or both are
    /// strings, because dm-reverb's clients send bytes in place of text.
    #[must_use]
    pub fn fits(self, expected: Self) -> bool {
        self == expected || self.is_string() && expected.is_string()
    }

    /// Size of one element in bytes; 0 for strings, whose length varies.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 | Self::Float8E4m3fn | Self::Float8E5m2 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
            Self::Bytes | Self::Text => 0,
        }
    }

    /// Name of the type in NumPy or `ml_dtypes`; `string` for byte strings, `str` for text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4m3fn => "float8_e4m3fn",
            Self::Float8E5m2 => "float8_e5m2",
            Self::Bytes => "string",
            Self::Text => "str",
        }
    }

    /// The dtype with this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("datetime64"), None);
    }

    #[test]
    fn numbers_are_those_of_the_file_format() {
        let names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 \
                     bfloat16 float8_e4m3fn float8_e5m2 string str";
        let specified: Vec<_> = (0..).zip(names.split(' ')).collect();
        assert_eq!(
            DType::ALL.map(|dtype| (dtype as u8, dtype.name()))[..],
            specified
        );
    }
}
