//! Beginning chunks and cutting them.

use std::sync::Arc;

use smallvec::smallvec;

use super::super::history::Segment;
use super::super::open::{Mark, OpenChunk};
use super::Recorder;
use crate::chunk::{Origin, PackedColumns};
use crate::error::{Error, Result};
use crate::schema::Schema;

impl Recorder {
    /// The open chunk, with room for the step in progress.
    pub(super) fn room(&mut self) -> Result<&mut OpenChunk> {
        if self.open.as_ref().is_none_or(OpenChunk::is_full) {
            self.begin()?;
        }
        let Some(open) = &mut self.open else {
            unreachable!("a chunk was just begun")
        };
        Ok(open)
    }

    fn begin(&mut self) -> Result<()> {
        let schema = Arc::clone(&self.schema);
        let length = self.options.chunk_steps(&schema);
        let carried = self.options.carried_steps(&schema, length, self.reach);
        self.cut(schema, carried, |old| old)?;
        if self.open.is_none() {
            let schema = Arc::clone(&self.schema);
            self.open = Some(OpenChunk::new(schema, length, self.head)?);
        }
        self.reach = 0;
        Ok(())
    }

    /// Seals the open chunk. What the step in progress has, and copies of the last `carried`
    /// steps, begin the next one: old column `i` as column `map(i)` of `schema`. Where it fails
    /// nothing has changed.
    pub(super) fn cut(
        &mut self,
        schema: Arc<Schema>,
        carried: u32,
        map: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let next = match &self.open {
            Some(open) if carried > 0 || open.has_marks() => {
                let carried = carried.min(open.steps);
                let first = open.first + u64::from(open.steps - carried);
                let length = self.options.chunk_steps(&schema);
                let mut next = OpenChunk::new(Arc::clone(&schema), length, first)?;
                next.carry(open, carried, map)?;
                Some(next)
            }
            _ => None,
        };
        // Copies of steps that the chunk before has are worth a chunk only to items.
        let waiting = self.pending.is_waiting();
        let worth = |open: &&mut OpenChunk| open.steps > open.carried || waiting;
        let packed = match self.open.as_mut().filter(worth) {
            Some(open) => Some(open.pack(&mut self.compressor)?),
            None => None,
        };
        self.schema = schema;
        let old = std::mem::replace(&mut self.open, next);
        if let Some((old, packed)) = old.zip(packed) {
            self.seal(old, packed);
        }
        Ok(())
    }

    fn seal(&mut self, open: OpenChunk, packed: PackedColumns) {
        let (first, steps) = (open.first, open.steps);
        let origin = Origin {
            key: self.keys.next_key(),
            episodes: smallvec![self.episode],
            first_step: first - self.episode_first,
            steps,
        };
        let (chunk, rows) = open.seal(packed, origin);
        let chunk = Arc::new(chunk);
        self.pending.resolve(|row| (&chunk, row));
        self.history.push(Segment::new(first, steps, chunk, rows));
        self.history.expire(self.available_steps().start);
    }

    pub(super) fn check_unset(&self, column: usize) -> Result<()> {
        match &self.open {
            Some(open) if open.mark(column) == Mark::Set => Err(Error::InvalidArgument(format!(
                "column `{}` has a value in the open step already; a step takes one value per \
                 column",
                self.schema.layout.names[column]
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{append, recorder};
    use crate::aligned::failing;
    use crate::writer::Selection;

    #[test]
    fn chunks_are_cut_late_and_keep_to_their_episode() {
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
        // The chunk is full, but nothing needs its room yet.
        assert_eq!(recorder.take_ready().count(), 0);
        assert!(recorder.has_full_unsent_chunk());
        append(&mut recorder, 1);
        assert!(!recorder.has_full_unsent_chunk());
        let ready: Vec<_> = recorder.take_ready().collect();
        let origin = ready[1].1.trajectory.chunks()[0].origin();
        assert_eq!((origin.first_step, origin.steps), (0, 2));
        // Nothing waits: a flush leaves the open chunk alone.
        recorder.flush().unwrap();
        append(&mut recorder, 1);
        create(&mut recorder, 2);
        recorder.end_episode(false).unwrap();
        append(&mut recorder, 1);
        create(&mut recorder, 3);
        recorder.flush().unwrap();
        let ready: Vec<_> = recorder.take_ready().collect();
        let origins = |at: usize| {
            let chunks = ready[at].1.trajectory.chunks().iter();
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
        // Neither the next chunk nor this one's bytes can be had.
        for allocation in 0..2 {
            failing::after(allocation);
            let error = recorder.flush().unwrap_err().to_string();
            assert!(
                error.ends_with("bytes, more than can be allocated"),
                "{error}"
            );
            assert_eq!((recorder.pending_items(), recorder.ready_items()), (1, 0));
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
        let pinned = chunk.payload().pin().unwrap();
        assert_eq!(chunk.raw(&pinned, 0).unwrap(), [1, 1, 1, 1, 1, 1, 7, 7, 7]);
    }

    #[test]
    fn steps_without_items_are_not_handed_out() {
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
