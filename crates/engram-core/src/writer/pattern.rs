//! Patterns, which describe the items to create from the newest steps.

use std::sync::Arc;

use super::condition::Condition;
use super::priority_rule::PriorityRule;
use super::selection::{CellPositions, ColumnSelection};
use super::{ConditionInput, StepPosition};
use crate::error::{Error, Result};
use crate::schema::{ActualColumn, Layout, Schema};
use crate::text::column_of;
use crate::trajectory::{Slice, SpanColumn, WindowShape};

/// Maximum number of slices of one item of a pattern.
const MAX_SLICES: u64 = 1 << 20;

/// One column of a pattern's items: every `step`-th of the steps `start..stop`, where -1 is the newest step and
/// `stop` 0 is the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternColumn {
    /// Number of the writer's column.
    pub source: usize,
    /// First step. From -(2^32 - 1) to -1.
    pub start: i64,
    /// End of the range, exclusive. Greater than `start` and at most 0.
    pub stop: i64,
    /// Distance from one step to the next. From 1 to 2^32 - 1.
    pub step: i64,
    /// True for a single step without a time axis.
    pub squeeze: bool,
}

/// Describes which items to create, when, and for which table.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The caller's number of the table.
    pub(super) table: u32,
    pub(super) priority: PriorityRule,
    pub(super) columns: Box<[PatternColumn]>,
    pub(super) conditions: Box<[Condition]>,
    /// Number of steps from the first step that the pattern uses to the newest, inclusive.
    pub(super) lookback: u64,
    /// Number of steps that follow the last step that the pattern uses: 0 if it uses the newest.
    pub(super) end_offset: u64,
    /// The item's slices if all steps lie in one chunk without missing values.
    pub(super) shape: Arc<WindowShape>,
    /// `Some(squeeze)` if every column `i` of the item selects the same consecutive steps of the writer's column `i`.
    rows_squeeze: Option<bool>,
}

impl Pattern {
    /// Returns a pattern for the caller's table number `table`. `layout` names the columns of the
    /// items.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no columns, an invalid range, condition or priority rule, or more than 2^20
    /// slices; [`Error::Priority`] for NaN.
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
                "the pattern's trajectory has no columns; select at least one".into(),
            ));
        }
        priority.check(columns.len())?;
        for (number, column) in columns.iter().enumerate() {
            column.check(layout.name(number))?;
        }
        let first = columns.iter().map(|c| c.start).min().unwrap_or(-1);
        let end_offset = columns.iter().map(PatternColumn::last).max().unwrap_or(-1) + 1;
        Ok(Self {
            table,
            priority,
            lookback: first.unsigned_abs(),
            end_offset: end_offset.unsigned_abs(),
            shape: Arc::new(build_shape(layout, &columns, first)?),
            rows_squeeze: rows_squeeze(&columns),
            columns,
            conditions,
        })
    }

    /// Number of newest steps that a writer must retain for this pattern, including the newest.
    #[must_use]
    pub fn lookback(&self) -> u64 {
        self.lookback
    }

    /// The caller's number of the table that receives the items.
    #[must_use]
    pub fn table(&self) -> u32 {
        self.table
    }

    /// Returns the columns of the items that the pattern creates from steps of this schema, to be
    /// checked against a table's signature.
    pub fn item_columns<'a>(
        &'a self,
        schema: &'a Schema,
    ) -> impl Iterator<Item = ActualColumn<'a>> + Clone + 'a {
        let names = &self.shape.layout.names;
        self.columns
            .iter()
            .zip(names)
            .map(|(column, name)| ActualColumn {
                name,
                cell: &schema.cells[column.source],
                len: (!column.squeeze)
                    .then_some(usize::try_from(column.len()).unwrap_or(usize::MAX)),
            })
    }

    /// Prepares for steps of this schema. If the layout of the items equals that of the schema, the pattern then refers
    /// to the same [`Layout`] as the schema, which [`Self::as_rows`] requires.
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

    /// Returns `Some(squeeze)` if the items are consecutive rows of all columns of this schema.
    pub(super) fn as_rows(&self, schema: &Schema) -> Option<bool> {
        self.rows_squeeze
            .filter(|_| Arc::ptr_eq(&self.shape.layout, &schema.layout))
    }

    /// Renumbers the columns after a change of structure: old column `i` is now column `map[i]`.
    pub(super) fn remap(&mut self, map: &[usize]) -> Result<()> {
        for column in &mut self.columns {
            column.source = map[column.source];
        }
        for condition in &mut self.conditions {
            if let ConditionInput::Column(column) = &mut condition.input {
                *column = map[*column];
            }
        }
        self.rows_squeeze = rows_squeeze(&self.columns);
        let first = self.columns.iter().map(|c| c.start).min().unwrap_or(-1);
        let layout = Arc::clone(&self.shape.layout);
        self.shape = Arc::new(build_shape(layout, &self.columns, first)?);
        Ok(())
    }

    /// Returns the selected cells of all columns if step `end - 1` is the newest.
    pub(super) fn column_selections(
        &self,
        end: StepPosition,
    ) -> impl Iterator<Item = ColumnSelection<'static>> {
        self.columns.iter().map(move |column| column.selection(end))
    }

    /// Returns the name of one of the items' columns.
    pub(super) fn name(&self, column: usize) -> &str {
        self.shape.layout.name(column)
    }
}

impl PatternColumn {
    /// Checks the range of steps. `name` is the name of the item's column.
    fn check(&self, name: &str) -> Result<()> {
        let Self {
            start, stop, step, ..
        } = *self;
        // Slices store steps as 32-bit numbers.
        let in_range = start >= -i64::from(u32::MAX) && step <= i64::from(u32::MAX);
        if start >= stop || stop > 0 || step < 1 || !in_range {
            return Err(Error::InvalidArgument(format!(
                "{} selects `[{start}:{stop}:{step}]`; the start must be from -{max} to -1, the stop greater \
                 than the start and at most 0, and the step from 1 to {max}",
                column_of("the pattern", name),
                max = u32::MAX
            )));
        }
        if self.squeeze && self.len() != 1 {
            return Err(Error::InvalidArgument(format!(
                "{} is squeezed but selects {} steps with `[{start}:{stop}:{step}]`; a squeezed column must \
                 select exactly 1",
                column_of("the pattern", name),
                self.len()
            )));
        }
        Ok(())
    }

    /// Returns the selected cells if step `end - 1` is the newest.
    pub(super) fn selection(&self, end: StepPosition) -> ColumnSelection<'static> {
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

    /// Number of selected steps.
    fn len(&self) -> u64 {
        (self.stop - self.start)
            .unsigned_abs()
            .div_ceil(self.step.unsigned_abs())
    }

    /// Number of runs of consecutive selected steps, and the length of each.
    fn runs(&self) -> (u64, u64) {
        match self.step {
            1 => (1, self.len()),
            _ => (self.len(), 1),
        }
    }

    /// Last selected step, a negative number like `start`.
    pub(super) fn last(&self) -> i64 {
        self.start + (self.stop - 1 - self.start) / self.step * self.step
    }
}

/// Returns `Some(squeeze)` if every column `i` selects the same consecutive steps of the writer's
/// column `i`.
fn rows_squeeze(columns: &[PatternColumn]) -> Option<bool> {
    let first = columns.first()?;
    let same = columns.iter().enumerate().all(|(number, column)| {
        *column
            == PatternColumn {
                source: number,
                ..*first
            }
    });
    (same && (first.step == 1 || first.squeeze)).then_some(first.squeeze)
}

/// Returns the shape of the items, for chunks in which row `i` is step `i`. The offsets of its slices count from step
/// `first`, which is negative like `start`.
fn build_shape(layout: Arc<Layout>, columns: &[PatternColumn], first: i64) -> Result<WindowShape> {
    let to_u32 = |n: u64| {
        u32::try_from(n).map_err(|_| {
            Error::InvalidArgument(format!(
                "the pattern must have at most {} columns and steps; got {n}",
                u32::MAX
            ))
        })
    };
    let count = columns.iter().map(|column| column.runs().0).sum::<u64>();
    if count > MAX_SLICES {
        return Err(Error::InvalidArgument(format!(
            "the pattern's columns have {count} slices; at most {MAX_SLICES} are allowed (a slice with a step above 1 \
             counts once per selected step); select fewer steps"
        )));
    }
    let mut spans = Vec::with_capacity(columns.len());
    let mut slices = Vec::new();
    for column in columns {
        spans.push(SpanColumn {
            first_slice: to_u32(slices.len() as u64)?,
            len: to_u32(column.len())?,
            squeeze: column.squeeze,
        });
        let (runs, len) = column.runs();
        let from = (column.start - first).unsigned_abs();
        for run in 0..runs {
            slices.push(Slice {
                chunk: 0,
                column: to_u32(column.source as u64)?,
                offset: to_u32(from + run * column.step.unsigned_abs())?,
                len: to_u32(len)?,
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
    use crate::writer::{Comparison, ItemRecorder, PatternSet, Recorder, WriterOptions};
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

    fn error_text(columns: &[PatternColumn], conditions: &[Condition], priority: f64) -> String {
        let layout = layout(&["x", "y"]);
        Pattern::new(0, layout, columns.into(), conditions.into(), priority)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        let rule = "the start must be from -4294967295 to -1, the stop greater than the start and at \
                    most 0, and the step from 1 to 4294967295";
        for (start, stop, step) in [
            (0, 1, 1),
            (-2, -2, 1),
            (-2, 1, 1),
            (-2, 0, 0),
            (-4_294_967_296, 0, 1),
            (-2, 0, 4_294_967_296),
        ] {
            assert_eq!(
                error_text(&[column(start, stop, step, false)], &[], 1.0),
                format!("column `x` of the pattern selects `[{start}:{stop}:{step}]`; {rule}")
            );
        }
        assert_eq!(
            error_text(&[column(-1, 0, 1, true), column(-3, 0, 2, true)], &[], 1.0),
            "column `y` of the pattern is squeezed but selects 2 steps with `[-3:0:2]`; a squeezed \
             column must select exactly 1"
        );
        let every_second = column(-(1 << 21), 0, 2, false);
        assert_eq!(
            error_text(&[every_second, every_second], &[], 1.0),
            "the pattern's columns have 2097152 slices; at most 1048576 are allowed (a slice with a step above 1 \
             counts once per selected step); select fewer steps"
        );
        assert_eq!(
            error_text(&[], &[], 1.0),
            "the pattern's trajectory has no columns; select at least one"
        );
        assert_eq!(
            error_text(&[column(-1, 0, 1, false)], &[], f64::NAN),
            "`priority` must be a number; got NaN"
        );
        let condition = Condition {
            input: ConditionInput::StepIndex,
            comparison: Comparison::Mod {
                divisor: -1,
                remainder: 0,
            },
            inverse: false,
        };
        assert!(error_text(&[column(-1, 0, 1, false)], &[condition], 1.0).contains("`% -1 == 0`"));
    }

    #[test]
    fn patterns_of_few_distant_steps_are_accepted() {
        let columns = Box::new([column(-(1 << 31), 0, 1 << 30, false)]);
        let pattern = Pattern::new(0, layout(&["x"]), columns, Box::default(), 1.0).unwrap();
        let offsets = pattern.shape.slices.iter().map(|slice| slice.offset);
        assert_eq!(offsets.collect::<Vec<_>>(), [0, 1 << 30]);
    }

    #[test]
    fn uniform_columns_become_rows_and_others_share_a_window_shape() {
        let options = WriterOptions {
            history: 3,
            chunk_length: None,
            compression: Compression::Auto,
            shard: crate::writer::ShardId::default(),
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
