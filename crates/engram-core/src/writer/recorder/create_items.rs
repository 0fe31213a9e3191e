//! Creates pending items from selections and patterns.

use std::ops::Range;
use std::sync::Arc;

use super::super::StepPosition;
use super::super::item_columns::{ItemCells, ItemColumns};
use super::super::pattern::Pattern;
use super::super::pending_items::PendingTrajectory;
use super::super::priority_rule::{PriorityRule, TdErrorStats};
use super::super::selection::{ColumnSelection, HistoryView, LocatedItem};
use super::super::selection_error::{ErrorContext, SelectionError};
use super::Recorder;
use crate::error::{Error, Result};
use crate::schema::Layout;

impl Recorder {
    /// The available steps and their chunks.
    pub(super) fn view(&self) -> HistoryView<'_> {
        self.view_of(self.available_steps())
    }

    /// These steps, which must be available, and their chunks.
    pub(super) fn view_of(&self, steps: Range<StepPosition>) -> HistoryView<'_> {
        HistoryView {
            history: &self.history,
            open: self.open.as_ref(),
            first_available: steps.start,
            end: steps.end,
        }
    }

    /// Returns the first of the newest `len` steps.
    pub(super) fn first_of_last(&self, len: u64) -> Result<StepPosition> {
        let steps = self.available_steps();
        if len > steps.end - steps.start {
            let error = SelectionError::TooFewSteps { len };
            return Err(self.selection_error(error, Some(&self.schema.layout)));
        }
        Ok(steps.end - len)
    }

    /// Returns the row of step `first` if an item of all columns of these steps is a range of rows of the open chunk.
    /// `None` if a step is before `first_available`, not complete or not in the open chunk, if a complete step of the
    /// chunk lacks a value, or if `len` is 0 or a squeezed item would have several steps.
    pub(super) fn rows_in_open(
        &self,
        first: StepPosition,
        len: u64,
        squeeze: bool,
        first_available: StepPosition,
    ) -> Option<u32> {
        let open = self.open.as_ref()?;
        let matches = open.is_dense()
            && first >= open.first
            && first >= first_available
            && first.checked_add(len)? <= self.complete_steps
            && if squeeze { len == 1 } else { len > 0 };
        matches.then(|| u32::try_from(first - open.first).ok())?
    }

    /// Locates the cells of all columns of an item.
    pub(super) fn locate<'s>(
        &self,
        layout: &Layout,
        columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> Result<LocatedItem> {
        self.view()
            .locate(columns)
            .map_err(|error| self.selection_error(error, Some(layout)))
    }

    /// Queues an item of located cells, given with the number of its table, its key and its priority, unless `check`
    /// returns an error. `check` may compare the item with its table's signature. `steps` are the available steps.
    pub(super) fn push_located(
        &mut self,
        (table, key, priority): (u32, u64, f64),
        layout: &Arc<Layout>,
        located: &LocatedItem,
        steps: Range<StepPosition>,
        check: impl FnOnce(&ItemColumns<'_>) -> Result<()>,
    ) -> Result<()> {
        // Not `self.view_of`, which would borrow `self.shapes` too.
        let view = HistoryView {
            history: &self.history,
            open: self.open.as_ref(),
            first_available: steps.start,
            end: steps.end,
        };
        check(&ItemColumns(ItemCells::Located {
            layout,
            located,
            view,
        }))?;
        let trajectory = self.shapes.trajectory(layout, located, &view);
        self.record_lookback(located.oldest, steps.end);
        self.pending.push(table, key, priority, trajectory);
        Ok(())
    }

    /// Queues the item that a pattern creates from the newest of the available `steps`. Returns false if steps or
    /// values that the pattern needs are missing. `check_priority(table, priority)` checks a priority that was computed
    /// from TD errors.
    pub(in super::super) fn create_item_from(
        &mut self,
        pattern: &Pattern,
        steps: Range<StepPosition>,
        check_priority: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<bool> {
        let end = steps.end;
        let Some(first) = end.checked_sub(pattern.lookback) else {
            return Ok(false);
        };
        if first < steps.start {
            return Ok(false);
        }
        let len = pattern.lookback - pattern.end_offset;
        if let Some(offset) = self.rows_in_open(first, len, false, steps.start) {
            let trajectory = match pattern.as_rows(&self.schema) {
                Some(squeeze) => PendingTrajectory::Rows {
                    offset,
                    len: u32::try_from(len).unwrap_or(u32::MAX),
                    squeeze,
                },
                None => PendingTrajectory::Window {
                    offset,
                    shape: Arc::clone(&pattern.shape),
                },
            };
            let priority = self.priority(pattern, &steps, check_priority)?;
            let key = self.keys.next_key();
            self.record_lookback(first, end);
            self.pending.push(pattern.table, key, priority, trajectory);
            return Ok(true);
        }
        let view = self.view_of(steps.clone());
        let located = match view.locate(pattern.column_selections(end)) {
            Ok(located) => located,
            // Different shapes are an error only if no value is missing; `locate` stops at the first problem.
            Err(mixed @ SelectionError::Mixed { .. })
                if view.has_all(pattern.column_selections(end)) =>
            {
                return Err(self.selection_error(mixed, Some(&pattern.shape.layout)));
            }
            Err(_) => return Ok(false),
        };
        let priority = self.priority(pattern, &steps, check_priority)?;
        let item = (pattern.table, self.keys.next_key(), priority);
        self.push_located(item, &pattern.shape.layout, &located, steps, |_| Ok(()))?;
        Ok(true)
    }

    /// Returns the priority of the item that a pattern creates from the newest of the available `steps`, which must
    /// include all steps that the pattern needs.
    fn priority(
        &self,
        pattern: &Pattern,
        steps: &Range<StepPosition>,
        check_priority: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<f64> {
        let (column, max_weight) = match pattern.priority {
            PriorityRule::Constant(priority) => return Ok(priority),
            PriorityRule::TdError { column, max_weight } => (column, max_weight),
        };
        let selection = pattern.columns[column].selection(steps.end);
        let located = self
            .view_of(steps.clone())
            .locate(std::iter::once(selection))
            .map_err(|error| self.selection_error(error, Some(&pattern.shape.layout)))?;
        let mut stats = TdErrorStats::default();
        for slice in located.slices {
            self.add_td_errors(slice, pattern.name(column), &mut stats)?;
        }
        stats.checked_priority(max_weight, pattern.name(column), |priority| {
            check_priority(pattern.table, priority)
        })
    }

    /// Records how many steps an item reaches back from step `end - 1`, the newest when it is created. The next chunk
    /// may begin with copies of all of them but one.
    pub(super) fn record_lookback(&mut self, oldest: StepPosition, end: StepPosition) {
        self.longest_lookback = self.longest_lookback.max(end - oldest);
    }

    /// Converts a selection error to one with a text. `item` is the layout of the item; `None` if a cell is read
    /// without creating an item.
    pub(super) fn selection_error(&self, error: SelectionError, item: Option<&Layout>) -> Error {
        let steps = self.available_steps();
        error.into_error(&ErrorContext {
            item,
            steps: &self.schema.layout,
            first_available: steps.start,
            end: steps.end,
            cleared: self.cleared,
            episode_start: self.episode_start,
            history: self.options.history,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{append, recorder};
    use super::super::{CellPositions, ColumnSelection, Selection};
    use super::Recorder;
    use crate::error::Error;
    use crate::schema::{ColumnSpec, Layout, Shape, Signature};
    use crate::trajectory::Trajectory;
    use crate::writer::ItemRecorder;
    use crate::{DType, NewItem};
    use smallvec::smallvec;
    use std::sync::Arc;

    fn selection(source: usize, first: u64, len: u64, squeeze: bool) -> ColumnSelection<'static> {
        ColumnSelection {
            source,
            cells: CellPositions::Range {
                first,
                stride: 1,
                len,
            },
            squeeze,
        }
    }

    fn item_layout() -> Arc<Layout> {
        Arc::new(Layout {
            names: Box::new(["before".into(), "after".into()]),
            structure: "".into(),
        })
    }

    fn create(recorder: &mut Recorder, columns: &[ColumnSelection<'_>]) -> Result<(), Error> {
        let key = recorder.next_key();
        let layout = &item_layout();
        let selection = Selection::Columns { layout, columns };
        recorder.create_item(0, key, 1.0, &selection, |_| Ok(()))
    }

    fn error_text(recorder: &mut Recorder, columns: &[ColumnSelection<'_>]) -> String {
        create(recorder, columns).unwrap_err().to_string()
    }

    #[test]
    fn selection_errors_name_the_argument_the_value_and_the_remedy() {
        let mut recorder = recorder(2, None);
        let last = |recorder: &mut Recorder, len| {
            let selection = Selection::Last(len);
            recorder
                .create_item(0, 1, 1.0, &selection, |_| Ok(()))
                .unwrap_err()
        };
        assert_eq!(
            last(&mut recorder, 1),
            Error::InvalidArgument(
                "`num_steps` is 1, but only 0 steps were appended in this episode; append more \
                 steps first, or select fewer"
                    .into()
            )
        );
        append(&mut recorder, 1);
        assert_eq!(
            last(&mut recorder, 2),
            Error::InvalidArgument(
                "`num_steps` is 2, but only 1 step was appended in this episode; append more \
                 steps first, or select fewer"
                    .into()
            )
        );
        assert_eq!(
            last(&mut recorder, 3).to_string(),
            "`num_steps` is 3, but only 1 step was appended in this episode; append more steps \
             first and raise `history`, which is 2, to at least 3, or select fewer"
        );
        append(&mut recorder, 3);
        assert_eq!(
            last(&mut recorder, 3),
            Error::ExpiredStep(
                "`num_steps` is 3, but the writer retains only the newest 2 steps (`history`); \
                 raise `history` to at least 3 or select fewer steps"
                    .into()
            )
        );
        assert_eq!(
            error_text(&mut recorder, &[selection(0, 1, 2, false)]),
            "the trajectory refers to column `a` at step 1 of this writer (counted from 0 over all \
             episodes), which has expired: the writer retains only the newest 2 steps (`history`); \
             steps 2 to 3 are available; create items earlier or raise `history`"
        );
        assert_eq!(
            error_text(&mut recorder, &[selection(0, 3, 2, false)]),
            "the trajectory refers to column `a` at step 4 of this writer (counted from 0 over all \
             episodes), which was not appended yet; steps 2 to 3 are available; append it first"
        );
        assert_eq!(
            error_text(&mut recorder, &[]),
            "the trajectory has no columns; select at least one"
        );
        assert_eq!(
            error_text(
                &mut recorder,
                &[selection(0, 3, 1, false), selection(1, 3, 0, false)]
            ),
            "column `after` of the trajectory selects no steps; select at least one"
        );
        assert_eq!(
            error_text(&mut recorder, &[selection(0, 2, 2, true)]),
            "column `before` of the trajectory is squeezed but selects 2 steps; a squeezed \
             column must select exactly 1"
        );
        let nan = recorder.create_item(0, 1, f64::NAN, &Selection::Last(1), |_| Ok(()));
        assert_eq!(
            nan.unwrap_err().to_string(),
            "`priority` must be a number; got NaN"
        );
        recorder.cell_mut(0).unwrap().fill(1);
        recorder.finish_step(false).unwrap();
        assert_eq!(
            error_text(&mut recorder, &[selection(1, 4, 1, false)]),
            "the trajectory refers to column `b` at step 4 of this writer (counted from 0 over all \
             episodes), where it has no value; select only steps with a value"
        );
        recorder.reshape(0, Shape::from_slice(&[7])).unwrap();
        append(&mut recorder, 1);
        assert_eq!(
            error_text(&mut recorder, &[selection(0, 4, 2, false)]),
            "column `before` of the trajectory has cells of different shapes, [3] and, at step 5 of \
             this writer, [7]; within one item, a column's cells must have the same shape"
        );
        recorder.end_episode(true).unwrap();
        assert_eq!(
            error_text(&mut recorder, &[selection(0, 5, 1, false)]),
            "the trajectory refers to column `a` at step 5 of this writer (counted from 0 over all \
             episodes), which was cleared at the end of its episode; no steps are available; create \
             items before the episode ends, or end it with `clear=False`"
        );
        assert_eq!(recorder.pending_items(), 0);
    }

    #[test]
    fn expired_steps_stay_expired_when_the_history_is_extended() {
        let mut recorder = recorder(2, Some(1));
        append(&mut recorder, 5);
        recorder.extend_history(4);
        append(&mut recorder, 1);
        assert_eq!(recorder.available_steps(), 3..6);
        assert_eq!(
            create(&mut recorder, &[selection(0, 2, 2, false)]),
            Err(Error::ExpiredStep(
                "the trajectory refers to column `a` at step 2 of this writer (counted from 0 over all episodes), \
                 which had expired before `history` was raised to 4; steps 3 to 5 are available; select newer steps"
                    .into()
            ))
        );
        let last = recorder.create_item(0, 1, 1.0, &Selection::Last(4), |_| Ok(()));
        assert_eq!(
            last,
            Err(Error::ExpiredStep(
                "`num_steps` is 4, but older steps had expired before `history` was raised to 4; steps 3 to 5 are \
                 available; append more steps first or select fewer"
                    .into()
            ))
        );
        create(&mut recorder, &[selection(0, 3, 3, false)]).unwrap();
        append(&mut recorder, 2);
        assert_eq!(recorder.available_steps(), 4..8);
    }

    #[test]
    fn items_are_checked_before_they_are_queued() {
        let mut recorder = recorder(4, None);
        append(&mut recorder, 2);
        let signature = Signature {
            columns: Box::new([ColumnSpec {
                name: "before".into(),
                dtype: DType::Uint8,
                shape: smallvec![None, Some(3)],
            }]),
            structure: "".into(),
        };
        let rejected = recorder.create_item(0, 1, 1.0, &Selection::Last(2), |columns| {
            columns.check("t", &signature)
        });
        assert_eq!(
            rejected.unwrap_err().to_string(),
            "item does not match the signature of table `t`: column `before` is \
             missing, and the signature has no columns `a`, `b`; signature: `before` uint8[?,3]; item: \
             `a` uint8[2,3], `b` int64[2]"
        );
        assert_eq!(recorder.pending_items(), 0);
        let layout = &item_layout();
        let columns = &[selection(0, 0, 2, false)];
        let selection = Selection::Columns { layout, columns };
        let fits = |columns: &super::ItemColumns<'_>| columns.check("t", &signature);
        recorder.create_item(0, 1, 1.0, &selection, fits).unwrap();
    }

    #[test]
    fn items_of_the_same_shape_share_a_window_shape() {
        let mut recorder = recorder(40, Some(4));
        for _ in 0..3 {
            append(&mut recorder, 4);
            let first = recorder.available_steps().end - 4;
            let apart = [
                selection(0, first, 2, false),
                selection(1, first + 3, 1, true),
            ];
            create(&mut recorder, &apart).unwrap();
        }
        let key = recorder.next_key();
        recorder
            .create_item(0, key, 1.0, &Selection::Last(3), |_| Ok(()))
            .unwrap();
        let across = [selection(0, 6, 4, false), selection(1, 8, 1, true)];
        create(&mut recorder, &across).unwrap();
        recorder.flush().unwrap();
        let items: Vec<NewItem> = recorder.take_ready().map(|(_, item)| item).collect();
        let [first, second, third, rows, spans] = &items[..] else {
            panic!("{items:?}")
        };
        assert!(matches!(&first.trajectory, Trajectory::Spans(_)));
        match (&second.trajectory, &third.trajectory) {
            (Trajectory::Window { shape: a, .. }, Trajectory::Window { shape: b, .. }) => {
                assert!(Arc::ptr_eq(a, b));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            &rows.trajectory,
            Trajectory::Rows {
                offset: 1,
                len: 3,
                ..
            }
        ));
        let Trajectory::Spans(spans) = &spans.trajectory else {
            panic!("{spans:?}")
        };
        let slices = spans
            .slices
            .iter()
            .map(|s| (s.chunk, s.column, s.offset, s.len));
        assert_eq!(
            slices.collect::<Vec<_>>(),
            [(0, 0, 2, 2), (1, 0, 0, 2), (1, 1, 0, 1)]
        );
    }

    #[test]
    fn all_columns_of_consecutive_steps_become_rows() {
        let mut recorder = recorder(40, Some(4));
        append(&mut recorder, 4);
        let layout = &Arc::new(Layout {
            names: Box::new(["a".into(), "b".into()]),
            structure: "".into(),
        });
        let columns = &[selection(0, 1, 2, false), selection(1, 1, 2, false)];
        let selections = [
            Selection::Last(4),
            Selection::Columns { layout, columns },
            Selection::Steps {
                first: 3,
                len: 1,
                squeeze: true,
            },
        ];
        // First from the open chunk, then from the sealed chunk.
        for _ in 0..2 {
            for selection in &selections {
                recorder
                    .create_item(0, 1, 1.0, selection, |_| Ok(()))
                    .unwrap();
            }
            recorder.flush().unwrap();
        }
        let rows = |(_, item): (u32, NewItem)| match item.trajectory {
            Trajectory::Rows {
                offset,
                len,
                squeeze,
                ..
            } => (offset, len, squeeze),
            other => panic!("{other:?}"),
        };
        let items: Vec<_> = recorder.take_ready().map(rows).collect();
        let once = [(0, 4, false), (1, 2, false), (3, 1, true)];
        assert_eq!(items, [once, once].concat());
    }
}
