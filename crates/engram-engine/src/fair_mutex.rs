//! A lock that is passed on in turn.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose first sleeper is next: a thread that lets go and comes back at once cannot
/// overtake it. Nobody spins or yields for long: on a busy machine, a yield costs a whole slice.
#[derive(Debug)]
pub(crate) struct FairMutex<T> {
    /// Held by whoever is next.
    turn: Mutex<()>,
    value: Mutex<T>,
}

impl<T> FairMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            turn: Mutex::new(()),
            value: Mutex::new(value),
        }
    }

    /// Waits for the lock. A panic of an earlier holder is not held against the value.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_holder_that_comes_back_at_once_does_not_overtake() {
        let lock = FairMutex::new(());
        let (rounds, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut waits = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let _held = lock.lock();
                    rounds.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(1));
                }
            });
            let waits = (0..21).map(|_| {
                sleep(Duration::from_millis(3));
                let before = rounds.load(Ordering::SeqCst);
                let _held = lock.lock();
                rounds.load(Ordering::SeqCst) - before
            });
            let waits: Vec<u32> = waits.collect();
            stop.store(true, Ordering::SeqCst);
            waits
        });
        // A median: the machine may pause us between the two looks.
        waits.sort_unstable();
        assert!(waits[10] == 0, "rounds that went by meanwhile: {waits:?}");
    }
}
