//! A cache of compressed columns that were unpacked while a part of a batch is copied.

use std::collections::HashMap;
use std::sync::Arc;

use crate::aligned::AlignedBytes;
use crate::chunk::Chunk;
use crate::error::Result;

/// Maximum bytes that the cache retains, unless a single column is larger.
const MAX_CACHED_BYTES: usize = 256 << 20;

/// Unpacked columns, as a cache. Each thread that copies a part of a batch has its own. It unpacks a column of a chunk
/// once for all items of its part that share the chunk, unless the cache was cleared in between because it was full.
#[derive(Default)]
pub(super) struct UnpackedColumns {
    /// By chunk and column. The gathered items keep their chunks alive, so an address identifies one chunk.
    columns: HashMap<(*const Chunk, usize), AlignedBytes>,
    /// Bytes of all columns in the cache.
    bytes: usize,
}

impl UnpackedColumns {
    /// Fills `out` with the raw bytes of a column, from offset `from` on.
    pub(super) fn read(
        &mut self,
        chunk: &Arc<Chunk>,
        column: usize,
        from: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let key = (Arc::as_ptr(chunk), column);
        if !self.columns.is_empty()
            && let Some(bytes) = self.columns.get(&key)
        {
            out.copy_from_slice(&bytes[from..from + out.len()]);
            return Ok(());
        }
        if let Some(raw) = chunk.raw(column) {
            out.copy_from_slice(&raw[from..from + out.len()]);
            return Ok(());
        }
        let bytes = chunk.unpack(column)?;
        out.copy_from_slice(&bytes[from..from + out.len()]);
        if self.bytes + bytes.len() > MAX_CACHED_BYTES {
            self.columns.clear();
            self.bytes = 0;
        }
        self.bytes += bytes.len();
        self.columns.insert(key, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::{CellSpec, ChunkBuilder, Compression, Compressor, DType, Layout, Origin, Schema};

    /// A chunk of two rows of `width` zeros each.
    fn chunk(width: usize) -> Arc<Chunk> {
        let cell = CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![width],
        };
        let layout = Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: "".into(),
        });
        let cells = Box::new([cell]);
        let mut builder = ChunkBuilder::new(Arc::new(Schema { layout, cells }), 2).unwrap();
        builder.set_rows(0, 2);
        let mut compressor = Compressor::new(Compression::Auto);
        Arc::new(builder.seal(Origin::default(), &mut compressor).unwrap())
    }

    #[test]
    fn a_column_is_unpacked_once() {
        let chunk = chunk(5_000);
        let mut unpacked = UnpackedColumns::default();
        let mut out = [1; 10];
        unpacked.read(&chunk, 0, 5_000, &mut out).unwrap();
        assert_eq!(out, [0; 10]);
        for bytes in unpacked.columns.values_mut() {
            bytes.fill(7);
        }
        unpacked.read(&chunk, 0, 2_000, &mut out).unwrap();
        assert_eq!((out, unpacked.columns.len()), ([7; 10], 1));
    }

    #[test]
    fn the_cache_is_bounded() {
        let chunks = [(); 5].map(|()| chunk(MAX_CACHED_BYTES / 8));
        let mut unpacked = UnpackedColumns::default();
        for chunk in &chunks {
            unpacked.read(chunk, 0, 0, &mut [1; 10]).unwrap();
            assert!(
                unpacked.bytes <= MAX_CACHED_BYTES,
                "{} bytes",
                unpacked.bytes
            );
        }
        assert_eq!(
            (unpacked.columns.len(), unpacked.bytes),
            (1, MAX_CACHED_BYTES / 4)
        );
    }
}
