//! From a selection to an item that waits.

use std::sync::Arc;

use super::super::Position;
use super::super::item_columns::{ItemColumns, Kind};
use super::super::pattern::Pattern;
use super::super::pending::Body;
use super::super::refusal::{Context, Refusal, kept};
use super::super::select::{Draft, PickedColumn, View};
use super::Recorder;
use crate::error::{Error, Result};
use crate::schema::Layout;

impl Recorder {
    pub(super) fn view(&self) -> View<'_> {
        let steps = self.referable();
        View {
            history: &self.history,
            open: self.open.as_ref(),
            floor: steps.start,
            end: steps.end,
        }
    }

    /// Position of the oldest of the newest `len` steps.
    pub(super) fn last(&self, len: u64) -> Result<Position> {
        let steps = self.referable();
        if len > steps.end - steps.start {
            return Err(Error::ExpiredStep(format!(
                "trajectory asks for the last {len} steps; {}",
                kept(&self.context(&self.schema.layout))
            )));
        }
        Ok(steps.end - len)
    }

    /// Row of the open chunk where these steps lie as they are, complete and in all columns.
    pub(super) fn rows_in_open(&self, first: Position, len: u64, squeeze: bool) -> Option<u32> {
        let open = self.open.as_ref()?;
        let fits = open.is_dense()
            && first >= open.first
            && first >= self.referable().start
            && first.checked_add(len)? <= self.head
            && if squeeze { len == 1 } else { len > 0 };
        fits.then(|| u32::try_from(first - open.first).ok())?
    }

    pub(super) fn find<'s>(
        &self,
        layout: &Layout,
        columns: impl Iterator<Item = PickedColumn<'s>>,
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
        let steps = self.referable();
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
    /// are missing.
    pub(in super::super) fn create_from(&mut self, pattern: &Pattern) -> Result<bool> {
        let end = self.referable().end;
        let Some(first) = end.checked_sub(pattern.reach) else {
            return Ok(false);
        };
        if first < self.referable().start {
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
            let key = self.keys.next_key();
            self.reached(first);
            self.pending
                .push(pattern.table, key, pattern.priority, body);
            return Ok(true);
        }
        let draft = match self.view().find(pattern.picked(end)) {
            Ok(draft) => draft,
            Err(mixed @ Refusal::Mixed { .. }) if self.view().has_all(pattern.picked(end)) => {
                return Err(self.refuse(mixed, &pattern.shape.layout));
            }
            Err(_) => return Ok(false),
        };
        let key = self.keys.next_key();
        let layout = &pattern.shape.layout;
        self.accept(pattern.table, key, pattern.priority, layout, &draft, |_| {
            Ok(())
        })?;
        Ok(true)
    }

    pub(super) fn reached(&mut self, oldest: Position) {
        self.reach = self.reach.max(self.referable().end - oldest);
    }

    pub(super) fn refuse(&self, refusal: Refusal, item: &Layout) -> Error {
        refusal.into_error(&self.context(item))
    }

    fn context<'a>(&'a self, item: &'a Layout) -> Context<'a> {
        let steps = self.referable();
        Context {
            item,
            steps: &self.schema.layout,
            floor: steps.start,
            end: steps.end,
            history: self.options.history,
        }
    }
}
