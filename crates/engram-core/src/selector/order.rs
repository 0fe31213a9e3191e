//! Fifo and Lifo: the first or last item in insertion order.

use std::collections::BTreeMap;

use crate::item::Slot;
use crate::pages::Pages;

/// In place of a slot: the list ends here.
const NONE: Slot = Slot::MAX;

/// Neighbours of a slot in insertion order, and its insertion number.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: Slot,
    newer: Slot,
    seq: u64,
}

/// A linked list of slots from oldest to newest, and a map of the few slots that were reinserted.
#[derive(Debug)]
pub struct InsertionOrder {
    links: Pages<Link>,
    oldest: Slot,
    newest: Slot,
    /// Reinserted slots by insertion number. Finding their position in the list would take a
    /// search, so [`InsertionOrder::first`] compares the ends of the map and the list instead.
    reinserted: BTreeMap<u64, Slot>,
    len: usize,
    pub(super) newest_first: bool,
}

impl InsertionOrder {
    pub(super) fn oldest_first() -> Self {
        Self {
            links: Pages::new(Link {
                older: NONE,
                newer: NONE,
                seq: 0,
            }),
            oldest: NONE,
            newest: NONE,
            reinserted: BTreeMap::new(),
            len: 0,
            newest_first: false,
        }
    }

    pub(super) fn newest_first() -> Self {
        Self {
            newest_first: true,
            ..Self::oldest_first()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_newest(&mut self, slot: Slot, seq: u64) {
        self.links.set(
            slot as usize,
            Link {
                older: self.newest,
                newer: NONE,
                seq,
            },
        );
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    pub(super) fn reinsert(&mut self, slot: Slot, seq: u64) {
        let link = Link {
            older: NONE,
            newer: NONE,
            seq,
        };
        self.links.set(slot as usize, link);
        self.reinserted.insert(seq, slot);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let Link { older, newer, seq } = self.links[slot as usize];
        self.len -= 1;
        if !self.reinserted.is_empty() && self.reinserted.remove(&seq).is_some() {
            return;
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    /// The slots of the list, from the oldest or the newest one on.
    pub(super) fn linked(&self, newest_first: bool) -> impl Iterator<Item = Slot> {
        let first = if newest_first {
            self.newest
        } else {
            self.oldest
        };
        let some = |slot| (slot != NONE).then_some(slot);
        std::iter::successors(some(first), move |slot| {
            let Link { older, newer, .. } = self.links[*slot as usize];
            some(if newest_first { older } else { newer })
        })
    }

    /// The `n` oldest or newest slots, in order.
    pub(crate) fn ends(&self, n: usize, newest_first: bool) -> Vec<Slot> {
        let mut ends = Vec::with_capacity(n.min(self.len));
        let linked = self.linked(newest_first).take(n);
        ends.extend(linked.map(|slot| (self.links[slot as usize].seq, slot)));
        if !self.reinserted.is_empty() {
            let reinserted = self.reinserted.iter().map(|(seq, slot)| (*seq, *slot));
            if newest_first {
                ends.extend(reinserted.rev().take(n));
            } else {
                ends.extend(reinserted.take(n));
            }
            ends.sort_unstable();
            if newest_first {
                ends.reverse();
            }
            ends.truncate(n);
        }
        ends.into_iter().map(|(_, slot)| slot).collect()
    }

    /// The slot that is chosen next. There must be one.
    pub(crate) fn first(&self) -> Slot {
        let (linked, reinserted) = if self.newest_first {
            (self.newest, self.reinserted.last_key_value())
        } else {
            (self.oldest, self.reinserted.first_key_value())
        };
        match reinserted {
            None => linked,
            Some((_, &slot)) if linked == NONE => slot,
            Some((&seq, &slot)) => {
                let linked_is_older = self.links[linked as usize].seq < seq;
                if linked_is_older == self.newest_first {
                    slot
                } else {
                    linked
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut InsertionOrder) -> Vec<Slot> {
        std::iter::from_fn(|| {
            (order.len() > 0).then(|| {
                let slot = order.first();
                order.remove(slot);
                slot
            })
        })
        .collect()
    }

    #[test]
    fn reinserted_slots_regain_their_position() {
        for (mut order, expected) in [
            (InsertionOrder::oldest_first(), [0, 1, 2, 3, 4]),
            (InsertionOrder::newest_first(), [4, 3, 2, 1, 0]),
        ] {
            for slot in 0..4 {
                order.push_newest(slot, 10 + u64::from(slot));
            }
            for slot in [2, 0, 3] {
                order.remove(slot);
            }
            order.push_newest(4, 14);
            for slot in [3, 0, 2] {
                order.reinsert(slot, 10 + u64::from(slot));
            }
            let mut oldest_first = expected;
            oldest_first.sort_unstable();
            for n in 0..=6 {
                let len = n.min(5);
                assert_eq!(order.ends(n, false), oldest_first[..len]);
                let newest: Vec<Slot> = oldest_first.into_iter().rev().take(n).collect();
                assert_eq!(order.ends(n, true), newest);
            }
            assert_eq!(drain(&mut order), expected);
        }
    }
}
