//! A fair mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that serves waiting threads first: a thread that has released it and locks it again usually waits until at
/// least one of the threads that were already waiting has had it. Not if it was held so briefly that the thread that
/// is next has not woken up yet.
///
/// Waiting threads spin only briefly, then block, and never yield: on a busy machine, a yield costs a whole time slice.
#[derive(Debug)]
pub(crate) struct FairMutex<T> {
    /// Locked by the next owner while it waits for `value`.
    next: Mutex<()>,
    value: Mutex<T>,
}

impl<T> FairMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            next: Mutex::new(()),
            value: Mutex::new(value),
        }
    }

    /// Waits for the lock. Ignores poisoning: the mutex can be locked after a panic of an earlier owner.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn relocking_does_not_overtake_a_waiting_thread() {
        let lock = FairMutex::new(());
        let (rounds, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut rounds_per_wait = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let _guard = lock.lock();
                    rounds.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(1));
                }
            });
            let rounds_per_wait = (0..21).map(|_| {
                sleep(Duration::from_millis(3));
                let before = rounds.load(Ordering::SeqCst);
                let _guard = lock.lock();
                rounds.load(Ordering::SeqCst) - before
            });
            let rounds_per_wait: Vec<u32> = rounds_per_wait.collect();
            stop.store(true, Ordering::SeqCst);
            rounds_per_wait
        });
        // The median, because the machine may pause this thread between the two reads of `rounds`.
        rounds_per_wait.sort_unstable();
        assert!(
            rounds_per_wait[10] == 0,
            "the other thread locked it this often during each wait: {rounds_per_wait:?}"
        );
    }
}
