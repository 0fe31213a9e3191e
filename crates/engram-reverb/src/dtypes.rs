//! TensorFlow's numbers of element types.

use engram_core::DType;

use crate::pb::tensorflow::DataType;

/// Both names of a type.
const BOTH: [(DType, DataType); 16] = [
    (DType::Bool, DataType::DtBool),
    (DType::Int8, DataType::DtInt8),
    (DType::Int16, DataType::DtInt16),
    (DType::Int32, DataType::DtInt32),
    (DType::Int64, DataType::DtInt64),
    (DType::Uint8, DataType::DtUint8),
    (DType::Uint16, DataType::DtUint16),
    (DType::Uint32, DataType::DtUint32),
    (DType::Uint64, DataType::DtUint64),
    (DType::Float16, DataType::DtHalf),
    (DType::Float32, DataType::DtFloat),
    (DType::Float64, DataType::DtDouble),
    (DType::Complex64, DataType::DtComplex64),
    (DType::Complex128, DataType::DtComplex128),
    (DType::Bfloat16, DataType::DtBfloat16),
    (DType::String, DataType::DtString),
];

/// Our type of TensorFlow's number; `None` where we have none.
pub(crate) fn dtype_in(number: i32) -> Option<DType> {
    let found = BOTH.iter().find(|(_, theirs)| *theirs as i32 == number);
    found.map(|(ours, _)| *ours)
}

/// TensorFlow's number of our type; `None` where dm-reverb 0.14 has none: the two of 8 bits.
pub(crate) fn dtype_out(dtype: DType) -> Option<DataType> {
    let found = BOTH.iter().find(|(ours, _)| *ours == dtype);
    found.map(|(_, theirs)| *theirs)
}

/// Whether dm-reverb's delta coding applies: integers of any width, and nothing else.
pub(crate) fn is_integer(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::Uint8
            | DType::Uint16
            | DType::Uint32
            | DType::Uint64
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_but_two_go_both_ways() {
        for dtype in DType::ALL {
            let number = dtype_out(dtype);
            let missing = matches!(dtype, DType::Float8E4m3fn | DType::Float8E5m2);
            assert_eq!(number.is_none(), missing, "{dtype}");
            if let Some(number) = number {
                assert_eq!(dtype_in(number as i32), Some(dtype));
            }
        }
        assert_eq!(dtype_in(11), None);
        assert_eq!(dtype_in(-1), None);
    }
}
