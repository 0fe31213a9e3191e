//! Reading a writer's own history back.

use super::super::StepPosition;
use super::super::priority::Sizes;
use super::super::select::OPEN;
use super::Recorder;
use crate::chunk::string_cells;
use crate::dtype::DType;
use crate::error::Result;
use crate::schema::CellSpec;
use crate::trajectory::Slice;

impl Recorder {
    /// True when items may refer to this column at this step.
    #[must_use]
    pub fn has_value(&self, column: usize, at: StepPosition) -> bool {
        self.view().run(column, at, 1).is_ok()
    }

    /// What the cell of a column at a step is, where it has one.
    #[must_use]
    pub fn cell_spec(&self, column: usize, at: StepPosition) -> Option<&CellSpec> {
        let slice = self.view().run(column, at, 1).ok()?;
        let schema = match slice.chunk {
            OPEN => &self.schema,
            index => self.history.get(index as usize).chunk.schema(),
        };
        schema.cells.get(slice.column as usize)
    }

    /// Appends the bytes of one cell to `out`; strings come encoded.
    ///
    /// # Errors
    /// As [`Self::create_item`] for a selection of this one cell.
    pub fn read_cell(&self, column: usize, at: StepPosition, out: &mut Vec<u8>) -> Result<()> {
        let slice = self
            .view()
            .run(column, at, 1)
            .map_err(|refusal| self.refuse(refusal, &self.schema.layout))?;
        let (own, row) = (slice.column as usize, slice.offset as usize);
        if slice.chunk == OPEN {
            if let Some(open) = &self.open {
                out.extend_from_slice(open.cell(own, slice.offset));
            }
        } else {
            let chunk = &self.history.get(slice.chunk as usize).chunk;
            let pinned = chunk.payload().pin()?;
            let cell = &chunk.schema().cells[own];
            let from = row * cell.bytes();
            match chunk.raw(&pinned, own) {
                Some(raw) if cell.dtype == DType::String => {
                    let rows = chunk.extents()[own].rows as usize;
                    out.extend_from_slice(string_cells(raw, rows, row, 1)?);
                }
                Some(raw) => out.extend_from_slice(&raw[from..from + cell.bytes()]),
                None => {
                    let raw = chunk.unpack(&pinned, own)?;
                    out.extend_from_slice(&raw[from..from + cell.bytes()]);
                }
            }
        }
        Ok(())
    }

    /// Takes the cells of a slice that was found as the TD errors of an item's column `name`.
    pub(super) fn add_sizes(&self, slice: Slice, name: &str, sizes: &mut Sizes) -> Result<()> {
        let own = slice.column as usize;
        if slice.chunk != OPEN {
            let chunk = &self.history.get(slice.chunk as usize).chunk;
            let (first, len) = (slice.offset as usize, slice.len as usize);
            return sizes.add_rows(name, chunk, own, first, len);
        }
        let spec = &self.schema.cells[own];
        for row in slice.offset..slice.offset + slice.len {
            if let Some(open) = &self.open {
                sizes.add(name, spec, open.cell(own, row))?;
            }
        }
        Ok(())
    }
}
