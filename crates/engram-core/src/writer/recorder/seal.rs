//! Opens and seals chunks.

use std::sync::Arc;

use smallvec::smallvec;

use super::super::history::Segment;
use super::super::open_chunk::{CellState, OpenChunk};
use super::Recorder;
use crate::chunk::{Origin, PackedColumns};
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::text::describe_column;

impl Recorder {
    /// Returns an open chunk with room for the open step. Seals the current one if it is full.
    pub(super) fn writable_chunk(&mut self) -> Result<&mut OpenChunk> {
        if self.open.as_ref().is_none_or(OpenChunk::is_full) {
            self.begin_chunk()?;
        }
        let Some(open) = &mut self.open else {
            unreachable!("begin_chunk sets `open`")
        };
        Ok(open)
    }

    /// Seals the open chunk, if there is one, and begins the next one.
    fn begin_chunk(&mut self) -> Result<()> {
        let schema = Arc::clone(&self.schema);
        let length = self.options.chunk_steps(&schema);
        let overlap = self
            .options
            .overlap_steps(&schema, length, self.longest_lookback);
        self.seal_open_chunk(schema, overlap, |old| old)?;
        if self.open.is_none() {
            let schema = Arc::clone(&self.schema);
            self.open = Some(OpenChunk::new(schema, length, self.complete_steps)?);
        }
        self.longest_lookback = 0;
        Ok(())
    }

    /// Seals the open chunk, if there is one, and makes `schema` the recorder's schema. If the open step has values,
    /// or if `overlap` is above 0, also begins a chunk of `schema` with copies of the last `overlap` steps and
    /// the cells of the open step; old column `i` becomes column `map(i)`. On failure the recorder is unchanged.
    pub(super) fn seal_open_chunk(
        &mut self,
        schema: Arc<Schema>,
        overlap: u32,
        map: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let next = match &self.open {
            Some(open) if overlap > 0 || open.has_open_step_values() => {
                let overlap = overlap.min(open.steps);
                let first = open.first + u64::from(open.steps - overlap);
                let length = self.options.chunk_steps(&schema);
                let mut next = OpenChunk::new(Arc::clone(&schema), length, first)?;
                next.copy_last_steps(open, overlap, map)?;
                Some(next)
            }
            _ => None,
        };
        // A chunk that has only copies of the previous chunk's steps is dropped unless items wait for it.
        let items_wait = self.pending.needs_open_chunk();
        let is_needed = |open: &&mut OpenChunk| open.steps > open.overlap || items_wait;
        let packed = match self.open.as_mut().filter(is_needed) {
            Some(open) => Some(open.pack(&mut self.compressor)?),
            None => None,
        };
        self.schema = schema;
        let old = std::mem::replace(&mut self.open, next);
        if let Some((old, packed)) = old.zip(packed) {
            self.push_sealed(old, packed);
        }
        Ok(())
    }

    /// Seals a packed chunk, makes the waiting items ready, adds the chunk to the history, and drops expired
    /// chunks from the history.
    fn push_sealed(&mut self, open: OpenChunk, packed: PackedColumns) {
        let (first, steps) = (open.first, open.steps);
        let origin = Origin {
            key: self.keys.next_key(),
            episodes: smallvec![self.episode],
            first_step: first - self.episode_start,
            steps,
        };
        let (chunk, rows) = open.seal(packed, origin);
        let chunk = Arc::new(chunk);
        self.pending.resolve(|row| (&chunk, row));
        self.history.push(Segment::new(first, steps, chunk, rows));
        self.history.expire(self.available_steps().start);
    }

    /// Rejects a column that an earlier partial append has set in the open step.
    pub(super) fn check_unset(&self, column: usize) -> Result<()> {
        match &self.open {
            Some(open) if open.cell_state(column) == CellState::SetByEarlierAppend => {
                Err(Error::InvalidArgument(format!(
                    "{} already has a value in the open step; a step can have only one value \
                     per column",
                    describe_column(&self.schema.layout.names[column])
                )))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{append, recorder};
    use crate::aligned::failing;
    use crate::writer::{ItemRecorder, Selection};

    #[test]
    fn a_full_chunk_is_sealed_by_the_next_step_and_an_open_one_at_the_end_of_the_episode() {
        let mut recorder = recorder(8, Some(2));
        let create = |recorder: &mut super::Recorder, steps| {
            let key = recorder.next_key();
            recorder
                .create_item(0, key, 1.0, &Selection::Last(steps), |_| Ok(()))
                .unwrap();
        };
        append(&mut recorder, 1);
        create(&mut recorder, 1);
        assert!(!recorder.has_full_unsent_chunk());
        append(&mut recorder, 1);
        create(&mut recorder, 2);
        // The chunk is full, but is sealed only when another step needs room.
        assert_eq!(recorder.take_ready().count(), 0);
        assert!(recorder.has_full_unsent_chunk());
        append(&mut recorder, 1);
        assert!(!recorder.has_full_unsent_chunk());
        let ready: Vec<_> = recorder.take_ready().collect();
        let origin = ready[1].1.trajectory.chunks()[0].origin();
        assert_eq!((origin.first_step, origin.steps), (0, 2));
        // No item waits, so a flush leaves the open chunk open.
        recorder.flush().unwrap();
        append(&mut recorder, 1);
        create(&mut recorder, 2);
        recorder.end_episode(false).unwrap();
        append(&mut recorder, 1);
        create(&mut recorder, 3);
        recorder.flush().unwrap();
        let ready: Vec<_> = recorder.take_ready().collect();
        let origins = |index: usize| {
            let chunks = ready[index].1.trajectory.chunks().iter();
            chunks.map(|c| c.origin().clone()).collect::<Vec<_>>()
        };
        assert_eq!((origins(0).len(), origins(1).len()), (1, 2));
        let [old, new] = &origins(1)[..] else {
            panic!()
        };
        assert_eq!((old.first_step, old.steps), (2, 2));
        assert_eq!((new.first_step, new.steps), (0, 1));
        assert_ne!(old.episodes, new.episodes);
    }

    #[test]
    fn a_chunk_that_cannot_be_sealed_stays_open() {
        let mut recorder = recorder(8, Some(4));
        append(&mut recorder, 2);
        let key = recorder.next_key();
        let selection = Selection::Last(2);
        recorder
            .create_item(0, key, 1.0, &selection, |_| Ok(()))
            .unwrap();
        recorder.cell_mut(0).unwrap().fill(7);
        recorder.finish_step(true).unwrap();
        // First the allocation of the next chunk fails, then that of this chunk's bytes.
        for allocation in 0..2 {
            failing::after(allocation);
            let error = recorder.flush().unwrap_err().to_string();
            assert!(
                error.ends_with("bytes, more than can be allocated"),
                "{error}"
            );
            assert_eq!((recorder.pending_items(), recorder.unsent_items()), (1, 1));
        }
        recorder.cell_mut(1).unwrap().fill(8);
        recorder.finish_step(false).unwrap();
        let key = recorder.next_key();
        recorder
            .create_item(0, key, 1.0, &selection, |_| Ok(()))
            .unwrap();
        recorder.flush().unwrap();
        let ready: Vec<_> = recorder.take_ready().collect();
        let chunk = &ready[0].1.trajectory.chunks()[0];
        assert_eq!((ready.len(), chunk.origin().steps), (2, 3));
        assert_eq!(chunk.raw(0).unwrap(), [1, 1, 1, 1, 1, 1, 7, 7, 7]);
    }

    #[test]
    fn steps_without_items_yield_no_items() {
        let mut recorder = recorder(8, Some(2));
        append(&mut recorder, 20);
        recorder.end_episode(true).unwrap();
        assert_eq!(
            (recorder.take_ready().count(), recorder.pending_items()),
            (0, 0)
        );
    }

    #[test]
    fn short_windows_over_small_steps_stay_in_one_chunk() {
        let mut recorder = recorder(8, None);
        for _ in 0..100 {
            append(&mut recorder, 1);
            let key = recorder.next_key();
            let steps = recorder.episode_steps().min(2);
            recorder
                .create_item(0, key, 1.0, &Selection::Last(steps), |_| Ok(()))
                .unwrap();
        }
        recorder.flush().unwrap();
        let mut split = 0;
        for (_, item) in recorder.take_ready() {
            split += usize::from(item.trajectory.chunks().len() > 1);
        }
        assert_eq!(split, 0);
    }
}
