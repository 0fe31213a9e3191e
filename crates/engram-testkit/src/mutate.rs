//! Random mutations of messages.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A random number generator, reproducible from its seed.
#[derive(Debug)]
pub struct RandomSource(Xoshiro256PlusPlus);

impl RandomSource {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % end.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.0.next_u64().to_le_bytes()[0]
    }

    fn bytes(&mut self, max_len: usize) -> Vec<u8> {
        (0..self.below(max_len + 1)).map(|_| self.byte()).collect()
    }
}

/// Encoded numbers that are likely to cause errors as lengths, counts and ids.
const EDGE_CASES: [&[u8]; 8] = [
    &[0],
    &[1],
    &[0x7f],
    &[0x80, 0x01],
    &[0xff, 0xff, 0x03],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
];

/// Applies one mutation to a message, and sometimes up to three more. Some copy a part of `other` into it.
pub fn mutate(message: &mut Vec<u8>, other: &[u8], random: &mut RandomSource) {
    for _ in 0..=random.below(2) * random.below(4) {
        let start = random.below(message.len() + 1);
        let end = start + random.below((message.len() - start).min(64) + 1);
        match random.below(9) {
            0 | 1 => {
                if let Some(byte) = message.get_mut(start) {
                    *byte ^= 1 << random.below(8);
                }
            }
            2 => {
                if let Some(byte) = message.get_mut(start) {
                    *byte = random.byte();
                }
            }
            3 => message.truncate(start),
            4 => drop(message.drain(start..end)),
            5 => {
                let copy = message[start..end].to_vec();
                let to = random.below(message.len() + 1);
                message.splice(to..to, copy);
            }
            6 => {
                let from = random.below(other.len() + 1);
                let to = from + random.below(other.len() - from + 1);
                message.splice(start..end, other[from..to].iter().copied());
            }
            7 => {
                let number = EDGE_CASES[random.below(EDGE_CASES.len())];
                let end = end.min(start + number.len());
                message.splice(start..end, number.iter().copied());
            }
            _ => drop(message.splice(start..end, random.bytes(16))),
        }
    }
}

/// Returns random bytes, or sometimes a few bytes repeated many times, which encode many tiny
/// structures.
#[must_use]
pub fn random_message(random: &mut RandomSource) -> Vec<u8> {
    match random.below(50) {
        0 => {
            let field = u8::try_from(random.below(16) << 3 | 2).unwrap_or(2);
            let nested_fields = random.below(3);
            let mut tiny = vec![field, u8::try_from(2 * nested_fields).unwrap_or(0)];
            for _ in 0..nested_fields {
                tiny.extend([u8::try_from(random.below(16) << 3 | 2).unwrap_or(2), 0]);
            }
            tiny.repeat(random.below(20_000))
        }
        _ => random.bytes(300),
    }
}
