//! Wakes tasks at given times.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Wakes tasks at given times. Its thread starts with the first alarm, and ends after the timer is dropped.
#[derive(Debug, Default)]
pub(crate) struct Timer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    alarms: Mutex<Alarms>,
    /// Notified when the thread must look at the alarms again.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Alarms {
    /// Tasks to wake, by time and number of the alarm.
    wakers: BTreeMap<(Instant, u64), Waker>,
    /// Number of alarms so far.
    count: u64,
    has_thread: bool,
    /// When the thread looks at the alarms again; `None`: once it is notified.
    wakes_up: Option<Instant>,
    /// True once the timer was dropped.
    is_closed: bool,
}

/// A task that will be woken. Dropping the alarm prevents that.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Arc<Shared>,
    /// When the task is woken.
    pub(crate) time: Instant,
    number: u64,
}

impl Timer {
    /// Wakes a task at this time. If no thread can be started, the task is not woken.
    pub(crate) fn wake_at(&self, time: Instant, waker: Waker) -> Alarm {
        let mut alarms = self.0.alarms.lock();
        alarms.count += 1;
        let number = alarms.count;
        alarms.wakers.insert((time, number), waker);
        if !alarms.has_thread {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("engram-timer".into());
            alarms.has_thread = thread.spawn(move || shared.run()).is_ok();
        } else if alarms.wakes_up.is_none_or(|wakes_up| time < wakes_up) {
            alarms.wakes_up = Some(time);
            self.0.changed.notify_one();
        }
        Alarm {
            timer: Arc::clone(&self.0),
            time,
            number,
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.alarms.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    /// Body of the thread.
    fn run(&self) {
        let mut alarms = self.alarms.lock();
        while !alarms.is_closed {
            let first = alarms.wakers.first_entry();
            let time = first.as_ref().map(|entry| entry.key().0);
            if let Some(first) = first.filter(|entry| entry.key().0 <= Instant::now()) {
                let waker = first.remove();
                // A panic must not end the thread, which other tasks need.
                let wake = AssertUnwindSafe(|| waker.wake());
                MutexGuard::unlocked(&mut alarms, || drop(catch_unwind(wake)));
                continue;
            }
            alarms.wakes_up = time;
            match time {
                Some(time) => drop(self.changed.wait_until(&mut alarms, time)),
                None => self.changed.wait(&mut alarms),
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // Dropped after the unlock.
        let _waker = self
            .timer
            .alarms
            .lock()
            .wakers
            .remove(&(self.time, self.number));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    /// Sends its number when it is woken.
    struct Numbered(u64, Sender<u64>);

    impl Wake for Numbered {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0).unwrap();
            assert!(self.0 != 2, "alarm 2 panics");
        }
    }

    #[test]
    fn tasks_are_woken_in_the_order_of_their_times() {
        let timer = Timer::default();
        let (sender, woken) = channel();
        let set = |number: u64, milliseconds: u64| {
            let time = Instant::now() + Duration::from_millis(milliseconds);
            timer.wake_at(
                time,
                Waker::from(Arc::new(Numbered(number, sender.clone()))),
            )
        };
        let _alarms = [set(0, 3_600_000), set(4, 90), set(3, 60), set(1, 0)];
        drop(set(9, 30));
        let _second = set(2, 20);
        assert!([1, 2, 3, 4].map(|_| woken.recv().unwrap()) == [1, 2, 3, 4]);
        // The thread waits without limit, or until an alarm that was dropped.
        let last = set(5, 10);
        assert_eq!(woken.recv().unwrap(), 5);
        assert!(last.time <= Instant::now());
        assert!(woken.try_recv().is_err());
    }

    #[test]
    fn the_thread_ends_after_the_timer() {
        let timer = Timer::default();
        let alarm = timer.wake_at(
            Instant::now() + Duration::from_secs(3_600),
            Waker::noop().clone(),
        );
        let shared = Arc::downgrade(&timer.0);
        drop((timer, alarm));
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
