//! Maps dtypes to TensorFlow's and back.

use engram_core::DType;

use crate::pb::tensorflow::DataType;

/// The dtypes that both Engram and TensorFlow have. TensorFlow's strings are bytes, so `DT_STRING` is decoded as
/// `String`, the first of its two entries.
const DTYPES: [(DType, DataType); 17] = [
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
    (DType::Bytes, DataType::DtString),
    (DType::Text, DataType::DtString),
];

/// The dtype of a TensorFlow type number; `None` if Engram has none.
pub(crate) fn from_tensorflow(number: i32) -> Option<DType> {
    let pair = DTYPES.iter().find(|(_, other)| *other as i32 == number);
    pair.map(|(dtype, _)| *dtype)
}

/// The TensorFlow type of a dtype; `None` for the two float8 types, which dm-reverb 0.14 lacks.
pub(crate) fn to_tensorflow(dtype: DType) -> Option<DataType> {
    let pair = DTYPES.iter().find(|(own, _)| *own == dtype);
    pair.map(|(_, other)| *other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_dtypes_except_float8_and_text_round_trip() {
        for dtype in DType::ALL {
            let number = to_tensorflow(dtype);
            let missing = matches!(dtype, DType::Float8E4m3fn | DType::Float8E5m2);
            assert_eq!(number.is_none(), missing, "{dtype}");
            if let Some(number) = number {
                let expected = if dtype == DType::Text {
                    DType::Bytes
                } else {
                    dtype
                };
                assert_eq!(from_tensorflow(number as i32), Some(expected));
            }
        }
        assert_eq!(from_tensorflow(11), None);
        assert_eq!(from_tensorflow(-1), None);
    }
}
