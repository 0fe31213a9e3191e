//! Draws a part of each batch from the newest items.

use super::{Drawn, ItemIndex, ItemStart, Ring};
use crate::selector::{DrawDistribution, TableRng, uniform_below, uniform_unit};

/// Which part of a batch is drawn from the newest items; the rest is drawn from all items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecentMix {
    /// Part of a batch, from 0 to 1. The number of items is rounded up or down at random, so that this is their mean part.
    pub fraction: f64,
    /// Number of newest items of each environment, at least 1.
    pub newest: usize,
}

impl RecentMix {
    /// Draws `n` items with replacement, those from the newest ones first. There must be at least one item.
    pub(super) fn draw(
        &self,
        index: &mut ItemIndex,
        ring: &Ring,
        n: usize,
        random: &mut TableRng,
    ) -> Drawn {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "from 0 to `n`, which is far below 2^53"
        )]
        let recent_draws = {
            let mean = self.fraction * n as f64;
            mean as usize + usize::from(uniform_unit(random) < mean.fract())
        };
        let mut recent_items = 0;
        let ends = index.lens().map(|len| {
            recent_items += len.min(self.newest);
            recent_items
        });
        let ends: Vec<usize> = ends.collect(); // for each environment, with the recent items of those before it
        let recent = (0..recent_draws).map(|_| {
            let number = uniform_below(random, recent_items);
            let env = ends.partition_point(|end| *end <= number);
            index.start_from_newest(ring, env, ends[env] - 1 - number)
        });
        let mut starts: Vec<ItemStart> = recent.collect();
        starts.extend(index.draw_uniformly(ring, n - recent_draws, random));
        self.drawn(index, ring, starts, recent_items)
    }

    /// The result of a draw of these items.
    #[expect(
        clippy::cast_precision_loss,
        reason = "numbers of items stay far below 2^53"
    )]
    fn drawn(
        &self,
        index: &ItemIndex,
        ring: &Ring,
        starts: Vec<ItemStart>,
        recent_items: usize,
    ) -> Drawn {
        let (all, any) = (index.len(), (1.0 - self.fraction) / index.len() as f64);
        let recent = any + self.fraction / recent_items as f64;
        let probability = |start: &ItemStart| {
            let is_recent = index.is_among_newest(ring, start, self.newest);
            if is_recent { recent } else { any }
        };
        let probabilities = starts.iter().map(probability).collect();
        let distribution = DrawDistribution {
            total_weight: 1.0,
            candidates: if any > 0.0 { all } else { recent_items } as u64,
            min_probability: if any > 0.0 && recent_items < all {
                any
            } else {
                recent
            },
        };
        Drawn {
            probabilities,
            distribution,
            ..index.equally_likely_draw(ring, starts)
        }
    }
}
