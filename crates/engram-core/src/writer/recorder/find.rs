//! From a selection to an item that waits.

use std::sync::Arc;

use super::super::StepPosition;
use super::super::item_columns::{ItemColumns, Kind};
use super::super::pattern::Pattern;
use super::super::pending::Body;
use super::super::priority::{PriorityRule, Sizes};
use super::super::refusal::{Context, Refusal, kept};
use super::super::select::{ColumnSelection, Draft, View};
use super::Recorder;
use crate::error::{Error, Result};
use crate::schema::Layout;

impl Recorder {
    pub(super) fn view(&self) -> View<'_> {
        let steps = self.available_steps();
        View {
            history: &self.history,
            open: self.open.as_ref(),
            floor: steps.start,
            end: steps.end,
        }
    }

    /// Position of the oldest of the newest `len` steps.
    pub(super) fn last(&self, len: u64) -> Result<StepPosition> {
        let steps = self.available_steps();
        if len > steps.end - steps.start {
            return Err(Error::ExpiredStep(format!(
                "trajectory asks for the last {len} steps; {}",
                kept(&self.context(&self.schema.layout))
            )));
        }
        Ok(steps.end - len)
    }

    /// Row of the open chunk where these steps lie as they are, complete and in all columns.
    pub(super) fn rows_in_open(&self, first: StepPosition, len: u64, squeeze: bool) -> Option<u32> {
        let open = self.open.as_ref()?;
        let fits = open.is_dense()
            && first >= open.first
            && first >= self.available_steps().start
            && first.checked_add(len)? <= self.head
            && if squeeze { len == 1 } else { len > 0 };
        fits.then(|| u32::try_from(first - open.first).ok())?
    }

    pub(super) fn find<'s>(
        &self,
        layout: &Layout,
        columns: impl Iterator<Item = ColumnSelection<'s>>,
    ) -> Result<Draft> {
        self.view()
            .find(columns)
            .map_err(|refusal| self.refuse(refusal, layout))
    }

    /// Queues an item whose slices were found.
    pub(super) fn accept(
        &mut self,
        table: u32,
        key: u64,
        priority: f64,
        layout: &Arc<Layout>,
        draft: &Draft,
        check: impl FnOnce(&ItemColumns<'_>) -> Result<()>,
    ) -> Result<()> {
        let steps = self.available_steps();
        let view = View {
            history: &self.history,
            open: self.open.as_ref(),
            floor: steps.start,
            end: steps.end,
        };
        check(&ItemColumns(Kind::Draft {
            layout,
            draft,
            view,
        }))?;
        let body = self.shapes.body(layout, draft, &view);
        self.reached(draft.oldest);
        self.pending.push(table, key, priority, body);
        Ok(())
    }

    /// Queues the item that a pattern makes of the newest steps; false where steps or values
    /// are missing. `accepts` says whether its table takes the priority.
    pub(in super::super) fn create_from(
        &mut self,
        pattern: &Pattern,
        accepts: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<bool> {
        let end = self.available_steps().end;
        let Some(first) = end.checked_sub(pattern.reach) else {
            return Ok(false);
        };
        if first < self.available_steps().start {
            return Ok(false);
        }
        let len = pattern.reach - pattern.tail;
        if let Some(offset) = self.rows_in_open(first, len, false) {
            let body = match pattern.as_rows(&self.schema) {
                Some(squeeze) => Body::Rows {
                    offset,
                    len: u32::try_from(len).unwrap_or(u32::MAX),
                    squeeze,
                },
                None => Body::Window {
                    offset,
                    shape: Arc::clone(&pattern.shape),
                },
            };
            let priority = self.priority(pattern, accepts)?;
            let key = self.keys.next_key();
            self.reached(first);
            self.pending.push(pattern.table, key, priority, body);
            return Ok(true);
        }
        let draft = match self.view().find(pattern.picked(end)) {
            Ok(draft) => draft,
            Err(mixed @ Refusal::Mixed { .. }) if self.view().has_all(pattern.picked(end)) => {
                return Err(self.refuse(mixed, &pattern.shape.layout));
            }
            Err(_) => return Ok(false),
        };
        let priority = self.priority(pattern, accepts)?;
        let key = self.keys.next_key();
        let layout = &pattern.shape.layout;
        self.accept(pattern.table, key, priority, layout, &draft, |_| Ok(()))?;
        Ok(true)
    }

    /// The priority of the item that a pattern makes of the newest steps, all of which are there.
    fn priority(
        &self,
        pattern: &Pattern,
        accepts: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<f64> {
        let (column, max_weight) = match pattern.priority {
            PriorityRule::Constant(priority) => return Ok(priority),
            PriorityRule::TdError { column, max_weight } => (column, max_weight),
        };
        let picked = pattern.columns[column].picked(self.available_steps().end);
        let draft = self.find(&pattern.shape.layout, std::iter::once(picked))?;
        let mut sizes = Sizes::default();
        for slice in draft.slices {
            self.add_sizes(slice, pattern.name(column), &mut sizes)?;
        }
        let priority = sizes.priority(max_weight);
        accepts(pattern.table, priority)?;
        Ok(priority)
    }

    pub(super) fn reached(&mut self, oldest: StepPosition) {
        self.reach = self.reach.max(self.available_steps().end - oldest);
    }

    pub(super) fn refuse(&self, refusal: Refusal, item: &Layout) -> Error {
        refusal.into_error(&self.context(item))
    }

    fn context<'a>(&'a self, item: &'a Layout) -> Context<'a> {
        let steps = self.available_steps();
        Context {
            item,
            steps: &self.schema.layout,
            floor: steps.start,
            end: steps.end,
            history: self.options.history,
        }
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
    use crate::{DType, NewItem};
    use smallvec::smallvec;
    use std::sync::Arc;

    fn picked(source: usize, first: u64, len: u64, squeeze: bool) -> ColumnSelection<'static> {
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

    fn text(recorder: &mut Recorder, columns: &[ColumnSelection<'_>]) -> String {
        create(recorder, columns).unwrap_err().to_string()
    }

    #[test]
    fn refusals_say_what_was_asked_found_and_allowed() {
        let mut recorder = recorder(2, None);
        let all = "(history: the newest 2, since the last cleared episode): create items sooner \
                   or raise `history`";
        let none = recorder.create_item(0, 1, 1.0, &Selection::Last(1), |_| Ok(()));
        assert_eq!(
            none.unwrap_err().to_string(),
            format!("trajectory asks for the last 1 steps; no step can be referred to {all}")
        );
        append(&mut recorder, 4);
        let kept = format!("steps 2 to 3 can be referred to {all}");
        assert_eq!(
            text(&mut recorder, &[picked(0, 1, 2, false)]),
            format!("trajectory asks for step 1, which has expired; {kept}")
        );
        let last = recorder.create_item(0, 1, 1.0, &Selection::Last(3), |_| Ok(()));
        let expired = format!("trajectory asks for the last 3 steps; {kept}");
        assert_eq!(last.unwrap_err(), Error::ExpiredStep(expired));
        assert_eq!(
            text(&mut recorder, &[picked(0, 3, 2, false)]),
            format!("trajectory asks for step 4, which was not appended yet; {kept}")
        );
        assert_eq!(
            text(&mut recorder, &[]),
            "trajectory must not be empty: it has no columns; an item needs one or more"
        );
        assert_eq!(
            text(
                &mut recorder,
                &[picked(0, 3, 1, false), picked(1, 3, 0, false)]
            ),
            "trajectory must not be empty: column `after` selects no steps; every column needs \
             one or more"
        );
        assert_eq!(
            text(&mut recorder, &[picked(0, 2, 2, true)]),
            "column `before` of the trajectory is squeezed but selects 2 steps; a squeezed \
             column has exactly 1"
        );
        let nan = recorder.create_item(0, 1, f64::NAN, &Selection::Last(1), |_| Ok(()));
        assert_eq!(
            nan.unwrap_err().to_string(),
            "priority is NaN; an item's priority is a number"
        );
        recorder.cell_mut(0).unwrap().fill(1);
        recorder.finish_step(false).unwrap();
        assert_eq!(
            text(&mut recorder, &[picked(1, 4, 1, false)]),
            "trajectory asks for column `b` at step 4, which has no value there; select steps \
             that have one"
        );
        recorder.reshape(0, Shape::from_slice(&[7])).unwrap();
        append(&mut recorder, 1);
        assert_eq!(
            text(&mut recorder, &[picked(0, 4, 2, false)]),
            "column `before` of the trajectory mixes cells of shape [3] and, at step 5, of shape \
             [7]; one item's cells have one shape"
        );
        assert_eq!(recorder.pending_items(), 0);
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
        let refused = recorder.create_item(0, 1, 1.0, &Selection::Last(2), |columns| {
            columns.check("t", &signature)
        });
        assert_eq!(
            refused.unwrap_err().to_string(),
            "item does not match the signature of table `t`: column `before` is \
             missing, and the signature has no columns `a`, `b`; signature: `before` uint8[?,3]; item: \
             `a` uint8[2,3], `b` int64[2]"
        );
        assert_eq!(recorder.pending_items(), 0);
        let layout = &item_layout();
        let columns = &[picked(0, 0, 2, false)];
        let selection = Selection::Columns { layout, columns };
        let fits = |columns: &super::ItemColumns<'_>| columns.check("t", &signature);
        recorder.create_item(0, 1, 1.0, &selection, fits).unwrap();
    }

    #[test]
    fn equal_items_share_a_shape_and_all_columns_need_none() {
        let mut recorder = recorder(40, Some(4));
        for _ in 0..3 {
            append(&mut recorder, 4);
            let at = recorder.available_steps().end - 4;
            let apart = [picked(0, at, 2, false), picked(1, at + 3, 1, true)];
            create(&mut recorder, &apart).unwrap();
        }
        let key = recorder.next_key();
        recorder
            .create_item(0, key, 1.0, &Selection::Last(3), |_| Ok(()))
            .unwrap();
        let across = [picked(0, 6, 4, false), picked(1, 8, 1, true)];
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
    fn all_columns_are_rows_however_they_are_asked_for() {
        let mut recorder = recorder(40, Some(4));
        append(&mut recorder, 4);
        let layout = &Arc::new(Layout {
            names: Box::new(["a".into(), "b".into()]),
            structure: "".into(),
        });
        let columns = &[picked(0, 1, 2, false), picked(1, 1, 2, false)];
        let asked = [
            Selection::Last(4),
            Selection::Columns { layout, columns },
            Selection::Steps {
                first: 3,
                len: 1,
                squeeze: true,
            },
        ];
        // Once of the open chunk, once of the sealed one.
        for _ in 0..2 {
            for selection in &asked {
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
        let found: Vec<_> = recorder.take_ready().map(rows).collect();
        let once = [(0, 4, false), (1, 2, false), (3, 1, true)];
        assert_eq!(found, [once, once].concat());
    }
}
