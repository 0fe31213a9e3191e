//! Patterns: which items to make, said once.

use std::sync::Arc;

use super::condition::Condition;
use super::priority::PriorityRule;
use super::select::{CellPositions, ColumnSelection};
use super::{ConditionInput, StepPosition};
use crate::error::{Error, Result};
use crate::schema::{FoundColumn, Layout, Schema};
use crate::trajectory::{Slice, SpanColumn, WindowShape};

/// One column of a pattern's items: steps `start..stop` back from after the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternColumn {
    /// The writer's column.
    pub source: usize,
    /// Before 0.
    pub start: i64,
    /// After `start`, at most 0.
    pub stop: i64,
    /// From one step to the next; at least 1.
    pub step: i64,
    /// One cell, without a time axis.
    pub squeeze: bool,
}

/// Which items to make, when, for which table.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub(super) table: u32,
    pub(super) priority: PriorityRule,
    pub(super) columns: Box<[PatternColumn]>,
    pub(super) conditions: Box<[Condition]>,
    /// Steps back from after the newest to the first that it needs...
    pub(super) reach: u64,
    /// ...and to after the last.
    pub(super) tail: u64,
    /// The slices where all steps lie in one chunk whose every step has every value.
    pub(super) shape: Arc<WindowShape>,
    /// All columns alike: squeezed or not, as far as the columns alone tell.
    uniform: Option<bool>,
}

impl Pattern {
    /// A pattern for the table that the caller knows as `table`; `layout` names the columns of
    /// its items.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a window, a condition or a priority that makes no sense,
    /// [`Error::Priority`] for NaN.
    pub fn new(
        table: u32,
        layout: Arc<Layout>,
        columns: Box<[PatternColumn]>,
        conditions: Box<[Condition]>,
        priority: impl Into<PriorityRule>,
    ) -> Result<Self> {
        let priority = priority.into();
        conditions.iter().try_for_each(Condition::check)?;
        if columns.is_empty() {
            return Err(Error::InvalidArgument(
                "pattern has no columns; its items need one or more".into(),
            ));
        }
        priority.check(columns.len())?;
        for (number, column) in columns.iter().enumerate() {
            column.check(layout.names.get(number).map_or("", |name| name))?;
        }
        let first = columns.iter().map(|c| c.start).min().unwrap_or(-1);
        let tail = columns.iter().map(PatternColumn::last).max().unwrap_or(-1) + 1;
        Ok(Self {
            table,
            priority,
            reach: first.unsigned_abs(),
            tail: tail.unsigned_abs(),
            shape: Arc::new(shape(layout, &columns, first)?),
            uniform: uniform(&columns),
            columns,
            conditions,
        })
    }

    /// Steps that a writer must keep for this pattern.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.reach
    }

    /// The table its items are for, as the caller knows it.
    #[must_use]
    pub fn table(&self) -> u32 {
        self.table
    }

    /// The columns of its items, were they made of steps of this schema: for checking them
    /// against a table's signature before the first.
    pub fn item_columns<'a>(
        &'a self,
        schema: &'a Schema,
    ) -> impl Iterator<Item = FoundColumn<'a>> + Clone + 'a {
        let names = &self.shape.layout.names;
        self.columns
            .iter()
            .zip(names)
            .map(|(column, name)| FoundColumn {
                name,
                cell: &schema.cells[column.source],
                len: (!column.squeeze)
                    .then_some(usize::try_from(column.len()).unwrap_or(usize::MAX)),
            })
    }

    /// Says that its items are made of this schema's steps: where they have all of its columns,
    /// they share its layout.
    pub(super) fn bind(&mut self, schema: &Schema) {
        let shape = &self.shape;
        if shape.layout == schema.layout && !Arc::ptr_eq(&shape.layout, &schema.layout) {
            self.shape = Arc::new(WindowShape {
                layout: Arc::clone(&schema.layout),
                columns: shape.columns.clone(),
                slices: shape.slices.clone(),
            });
        }
    }

    /// Whether its items are rows of all columns of this schema, and then squeezed or not.
    pub(super) fn as_rows(&self, schema: &Schema) -> Option<bool> {
        self.uniform
            .filter(|_| Arc::ptr_eq(&self.shape.layout, &schema.layout))
    }

    /// Follows a change of structure: old column `i` is now `map[i]`.
    pub(super) fn remap(&mut self, map: &[usize]) -> Result<()> {
        for column in &mut self.columns {
            column.source = map[column.source];
        }
        for condition in &mut self.conditions {
            if let ConditionInput::Column(column) = &mut condition.subject {
                *column = map[*column];
            }
        }
        self.uniform = uniform(&self.columns);
        let first = self.columns.iter().map(|c| c.start).min().unwrap_or(-1);
        let layout = Arc::clone(&self.shape.layout);
        self.shape = Arc::new(shape(layout, &self.columns, first)?);
        Ok(())
    }

    /// Its cells when the step before `end` is the newest.
    pub(super) fn picked(
        &self,
        end: StepPosition,
    ) -> impl Iterator<Item = ColumnSelection<'static>> {
        self.columns.iter().map(move |column| column.picked(end))
    }

    /// What its items call a column.
    pub(super) fn name(&self, column: usize) -> &str {
        (self.shape.layout.names.get(column)).map_or("", |name| name)
    }
}

impl PatternColumn {
    fn check(&self, name: &str) -> Result<()> {
        let Self {
            start, stop, step, ..
        } = *self;
        // Windows are counted in 32 bits once they are found.
        let fits = start >= -i64::from(u32::MAX) && step <= i64::from(u32::MAX);
        if start >= stop || stop > 0 || step < 1 || !fits {
            return Err(Error::InvalidArgument(format!(
                "pattern asks for `[{start}:{stop}:{step}]` of column `{name}`; the start is \
                 negative, the stop after it and at most 0, the step at least 1"
            )));
        }
        if self.squeeze && self.len() != 1 {
            return Err(Error::InvalidArgument(format!(
                "pattern squeezes `[{start}:{stop}:{step}]` of column `{name}`, which is {} \
                 steps; a squeezed column has exactly 1",
                self.len()
            )));
        }
        Ok(())
    }

    /// Its cells when the step before `end` is the newest.
    pub(super) fn picked(&self, end: StepPosition) -> ColumnSelection<'static> {
        ColumnSelection {
            source: self.source,
            cells: CellPositions::Range {
                first: end.saturating_sub(self.start.unsigned_abs()),
                stride: self.step.unsigned_abs(),
                len: self.len(),
            },
            squeeze: self.squeeze,
        }
    }

    /// Cells it has.
    fn len(&self) -> u64 {
        (self.stop - self.start)
            .unsigned_abs()
            .div_ceil(self.step.unsigned_abs())
    }

    /// The last step it has, counted as `start` is.
    fn last(&self) -> i64 {
        self.start + (self.stop - 1 - self.start) / self.step * self.step
    }
}

/// Whether all columns have the same consecutive steps, in order, and then squeezed or not.
fn uniform(columns: &[PatternColumn]) -> Option<bool> {
    let first = columns.first()?;
    let alike = columns.iter().enumerate().all(|(number, column)| {
        *column
            == PatternColumn {
                source: number,
                ..*first
            }
    });
    (alike && (first.step == 1 || first.squeeze)).then_some(first.squeeze)
}

/// Slices relative to the step `first`, for chunks where steps are rows.
fn shape(layout: Arc<Layout>, columns: &[PatternColumn], first: i64) -> Result<WindowShape> {
    let narrow = |n: u64| {
        u32::try_from(n).map_err(|_| {
            Error::InvalidArgument(format!(
                "pattern counts to {n}; steps and columns are counted up to {}",
                u32::MAX
            ))
        })
    };
    let mut spans = Vec::with_capacity(columns.len());
    let mut slices = Vec::new();
    for column in columns {
        spans.push(SpanColumn {
            first_slice: narrow(slices.len() as u64)?,
            len: narrow(column.len())?,
            squeeze: column.squeeze,
        });
        let (runs, len) = match column.step {
            1 => (1, column.len()),
            _ => (column.len(), 1),
        };
        let from = (column.start - first).unsigned_abs();
        for run in 0..runs {
            slices.push(Slice {
                chunk: 0,
                column: narrow(column.source as u64)?,
                offset: narrow(from + run * column.step.unsigned_abs())?,
                len: narrow(len)?,
            });
        }
    }
    Ok(WindowShape {
        layout,
        columns: spans.into(),
        slices: slices.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{Comparison, PatternSet, Recorder, WriterOptions};
    use crate::{CellSpec, Compression, DType, Trajectory};
    use smallvec::smallvec;

    fn layout(names: &[&str]) -> Arc<Layout> {
        Arc::new(Layout {
            names: names.iter().map(|name| (*name).into()).collect(),
            structure: "".into(),
        })
    }

    fn column(start: i64, stop: i64, stride: i64, squeeze: bool) -> PatternColumn {
        PatternColumn {
            source: 0,
            start,
            stop,
            step: stride,
            squeeze,
        }
    }

    fn text(columns: &[PatternColumn], conditions: &[Condition], priority: f64) -> String {
        let layout = layout(&["x", "y"]);
        Pattern::new(0, layout, columns.into(), conditions.into(), priority)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn senseless_patterns_are_refused() {
        let rule = "the start is negative, the stop after it and at most 0, the step at least 1";
        for (start, stop, step) in [(0, 1, 1), (-2, -2, 1), (-2, 1, 1), (-2, 0, 0)] {
            assert_eq!(
                text(&[column(start, stop, step, false)], &[], 1.0),
                format!("pattern asks for `[{start}:{stop}:{step}]` of column `x`; {rule}")
            );
        }
        assert_eq!(
            text(&[column(-1, 0, 1, true), column(-3, 0, 2, true)], &[], 1.0),
            "pattern squeezes `[-3:0:2]` of column `y`, which is 2 steps; a squeezed column has \
             exactly 1"
        );
        assert_eq!(
            text(&[], &[], 1.0),
            "pattern has no columns; its items need one or more"
        );
        assert_eq!(
            text(&[column(-1, 0, 1, false)], &[], f64::NAN),
            "priority is NaN; an item's priority is a number"
        );
        let condition = Condition {
            subject: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: -1,
                remainder: 0,
            },
            inverse: false,
        };
        assert!(text(&[column(-1, 0, 1, false)], &[condition], 1.0).contains("`% -1 == 0`"));
    }

    #[test]
    fn all_columns_alike_are_rows_and_others_share_a_shape() {
        let options = WriterOptions {
            history: 3,
            chunk_length: None,
            compression: Compression::Auto,
        };
        let cell = CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![],
        };
        let mut recorder = Recorder::new(options, 1).unwrap();
        recorder
            .restructure(layout(&["x"]), Box::new([cell]), &[])
            .unwrap();
        let mut set = PatternSet::new(3);
        for (table, step) in [(0, 1), (1, 2)] {
            let columns = Box::new([column(-3, 0, step, false)]);
            let pattern = Pattern::new(table, layout(&["x"]), columns, Box::default(), 1.0);
            set.set(table as usize, pattern.unwrap(), recorder.schema());
        }
        for _ in 0..4 {
            recorder.cell_mut(0).unwrap().fill(0);
            recorder.finish_step(false).unwrap();
            set.apply(&mut recorder, false, |_, _| Ok(())).unwrap();
        }
        recorder.flush().unwrap();
        let items: Vec<_> = recorder.take_ready().collect();
        assert_eq!(
            items.iter().map(|(table, _)| *table).collect::<Vec<_>>(),
            [0, 1, 0, 1]
        );
        assert!(matches!(
            items[0].1.trajectory,
            Trajectory::Rows {
                offset: 0,
                len: 3,
                ..
            }
        ));
        assert!(matches!(
            items[1].1.trajectory,
            Trajectory::Window { offset: 0, .. }
        ));
        assert!(matches!(
            items[3].1.trajectory,
            Trajectory::Window { offset: 1, .. }
        ));
        assert_eq!(items[3].1.trajectory.footprint(), 0);
    }
}
