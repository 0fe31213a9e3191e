//! Discounted sums of the last rewards of each environment.

/// For each `k` below `n`, the discounted sums of the last `k` rewards of each environment. They may be used only if
/// the current episode has at least `k` transitions: otherwise they have rewards of earlier episodes.
#[derive(Debug)]
pub(super) struct Returns {
    /// `discount ** k` for `k` from 0 to `n`.
    powers: Vec<f64>,
    /// `sums[k - 1]` has the sums of `k` rewards.
    sums: Vec<Vec<f64>>,
}

impl Returns {
    pub(super) fn new(n_step: u64, discount: f64, envs: usize) -> Self {
        let n_step = i32::try_from(n_step).unwrap_or(i32::MAX);
        Self {
            powers: (0..=n_step).map(|k| discount.powi(k)).collect(),
            sums: (1..n_step).map(|_| vec![0.0; envs]).collect(),
        }
    }

    /// Writes the encoded returns and discounts of full windows that end with the next transition, whose `rewards` and
    /// `terminated` are given.
    pub(super) fn encode_full(
        &self,
        rewards: &[f64],
        terminated: &[bool],
        returns: &mut Vec<u8>,
        discounts: &mut Vec<u8>,
    ) {
        let power = self.powers[self.sums.len()];
        let full_discount = encode(self.powers[self.sums.len() + 1]);
        match self.sums.last() {
            Some(sums) => {
                let sums = sums.iter().zip(rewards);
                encode_all(
                    returns,
                    sums.map(|(sum, reward)| encode(sum + power * reward)),
                );
            }
            None => encode_all(returns, rewards.iter().map(|reward| encode(*reward))),
        }
        let discount = |terminated: &bool| if *terminated { [0; 4] } else { full_discount };
        encode_all(discounts, terminated.iter().map(discount));
    }

    /// Adds the rewards of the next transition.
    pub(super) fn push(&mut self, rewards: &[f64]) {
        for k in (1..self.sums.len()).rev() {
            let (shorter, longer) = self.sums.split_at_mut(k);
            let shorter = shorter[k - 1].iter();
            for ((sum, shorter), reward) in longer[0].iter_mut().zip(shorter).zip(rewards) {
                *sum = shorter + self.powers[k] * reward;
            }
        }
        if let Some(sums) = self.sums.first_mut() {
            sums.copy_from_slice(rewards);
        }
    }

    /// Returns the encoded return of an environment's last `k` transitions, fewer than a full window has, and its
    /// discount.
    pub(super) fn of_last(&self, k: usize, env: usize, terminated: bool) -> [[u8; 4]; 2] {
        let discount = if terminated { 0.0 } else { self.powers[k] };
        [encode(self.sums[k - 1][env]), encode(discount)]
    }
}

/// Encodes a number as float32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a float32 column rounds values"
)]
pub(super) fn encode(value: f64) -> [u8; 4] {
    (value as f32).to_le_bytes()
}

/// Replaces the contents of a buffer by encoded numbers.
pub(super) fn encode_all(buffer: &mut Vec<u8>, cells: impl ExactSizeIterator<Item = [u8; 4]>) {
    buffer.resize(4 * cells.len(), 0);
    for (target, cell) in buffer.as_chunks_mut().0.iter_mut().zip(cells) {
        *target = cell;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_a_loop_over_the_last_rewards() {
        let rewards = [1.5, -2.0, 0.25, 4.0, -1.0, 3.0];
        for n_step in 1..5 {
            let discount = 0.5_f64;
            let mut returns = Returns::new(n_step as u64, discount, 2);
            for t in 0..rewards.len() {
                let batch = [rewards[t], 10.0 * rewards[t]];
                let sum = |k: usize| {
                    let last = rewards[t + 1 - k..=t].iter().enumerate();
                    last.map(|(i, r)| discount.powi(i32::try_from(i).unwrap()) * r)
                        .sum::<f64>()
                };
                let (mut full, mut discounts) = (Vec::new(), Vec::new());
                returns.encode_full(&batch, &[false, true], &mut full, &mut discounts);
                if t + 1 >= n_step {
                    let expected = [encode(sum(n_step)), encode(10.0 * sum(n_step))];
                    assert_eq!(full, expected.concat());
                }
                let n = i32::try_from(n_step).unwrap();
                assert_eq!(discounts, [encode(discount.powi(n)), [0; 4]].concat());
                returns.push(&batch);
                for k in 1..n_step.min(t + 2) {
                    let n = i32::try_from(k).unwrap();
                    let expected = [encode(sum(k)), encode(discount.powi(n))];
                    assert_eq!(returns.of_last(k, 0, false), expected);
                    assert_eq!(returns.of_last(k, 1, true)[1], [0; 4]);
                }
            }
        }
    }
}
