//! Ways to spoil a message.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng as _;

/// A source of chance that can be begun again from its seed.
pub(crate) struct Chance(pub(crate) Xoshiro256PlusPlus);

impl Chance {
    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % end.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.0.next_u64().to_le_bytes()[0]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.byte()).collect()
    }
}

/// Numbers that lengths, counts and ids are likely to go wrong at, as they are written.
const EDGES: [&[u8]; 8] = [
    &[0],
    &[1],
    &[0x7f],
    &[0x80, 0x01],
    &[0xff, 0xff, 0x03],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
];

/// Spoils a message in one way, sometimes in a few.
pub(crate) fn mutate(message: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    for _ in 0..=chance.below(2) * chance.below(4) {
        let at = chance.below(message.len() + 1);
        let end = at + chance.below((message.len() - at).min(64) + 1);
        match chance.below(9) {
            0 | 1 => {
                if let Some(byte) = message.get_mut(at) {
                    *byte ^= 1 << chance.below(8);
                }
            }
            2 => {
                if let Some(byte) = message.get_mut(at) {
                    *byte = chance.byte();
                }
            }
            3 => message.truncate(at),
            4 => drop(message.drain(at..end)),
            5 => {
                let copy = message[at..end].to_vec();
                let to = chance.below(message.len() + 1);
                message.splice(to..to, copy);
            }
            6 => {
                let from = chance.below(other.len() + 1);
                let to = from + chance.below(other.len() - from + 1);
                message.splice(at..end, other[from..to].iter().copied());
            }
            7 => {
                let edge = EDGES[chance.below(EDGES.len())];
                let end = end.min(at + edge.len());
                message.splice(at..end, edge.iter().copied());
            }
            _ => drop(message.splice(at..end, chance.bytes(16))),
        }
    }
}

/// Bytes of no meaning, or two of them again and again: many tiny structures.
pub(crate) fn noise(chance: &mut Chance) -> Vec<u8> {
    match chance.below(50) {
        0 => {
            let field = u8::try_from(chance.below(16) << 3 | 2).unwrap_or(2);
            let within = chance.below(3);
            let mut tiny = vec![field, u8::try_from(2 * within).unwrap_or(0)];
            for _ in 0..within {
                tiny.extend([u8::try_from(chance.below(16) << 3 | 2).unwrap_or(2), 0]);
            }
            tiny.repeat(chance.below(20_000))
        }
        _ => chance.bytes(300),
    }
}
