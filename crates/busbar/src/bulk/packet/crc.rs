//! The check sum: CRC-16 with polynomial 0x8006, not the usual 0x8005; reflected, initial value 0,
//! no final XOR.

use crc::{Algorithm, Crc, Digest, Table};

use super::pattern::pattern;

static ALGORITHM: Algorithm<u16> = Algorithm {
    width: 16,
    poly: 0x8006,
    init: 0,
    refin: true,
    refout: true,
    xorout: 0,
    check: 0x3d56,
    residue: 0,
};

/// Sixteen tables, so that one step computes sixteen bytes.
static CRC: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&ALGORITHM);

/// The polynomial, reflected and without its highest power.
const POLYNOMIAL: u16 = 0x8006u16.reverse_bits();
/// The polynomial 1, reflected.
const ONE: u16 = 0x8000;

/// The check sum of `bytes`.
#[must_use]
pub fn crc16(bytes: &[u8]) -> u16 {
    CRC.checksum(bytes)
}

/// The check sum of bytes that are added one after another.
#[derive(Clone)]
pub struct Crc16(Digest<'static, u16, Table<16>>);

impl Crc16 {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The check sum of all bytes so far.
    #[must_use]
    pub fn value(&self) -> u16 {
        self.0.clone().finalize()
    }
}

impl Default for Crc16 {
    fn default() -> Self {
        Self(CRC.digest())
    }
}

impl std::fmt::Debug for Crc16 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc16({:#06x})", self.value())
    }
}

/// The check sum of two parts together, computed from those of each and the length of the second.
#[must_use]
pub fn combine(first: u16, second: u16, second_length: u64) -> u16 {
    if first == 0 {
        return second;
    }
    // Each byte after the first part multiplies it by x^8.
    times(first, power_of_bytes(second_length)) ^ second
}

/// The check sum of `length` bytes of which byte i is `i & 0xff`, as a coprocessor's pattern is.
///
/// The time grows with the logarithm of the length.
#[must_use]
pub fn pattern_crc(length: u64) -> u16 {
    let mut all = 0;
    // The check sum of 1, 2, 4, … periods of 256 bytes.
    let mut periods = crc16(pattern_head(256));
    for (doubled, power) in POWERS.iter().enumerate().skip(8) {
        if length >> doubled == 0 {
            break;
        }
        if length >> doubled & 1 != 0 {
            all = times(all, *power) ^ periods;
        }
        periods ^= times(periods, *power);
    }
    let rest = pattern_head(length % 256);
    combine(all, crc16(rest), rest.len() as u64)
}

fn pattern_head(length: u64) -> &'static [u8] {
    pattern(0, usize::try_from(length).unwrap_or(0))
}

/// Entry i is x^(8 * 2^i): the factor of a check sum for 2^i zero bytes.
static POWERS: [u16; 64] = {
    let mut powers = [ONE >> 8; 64];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = times(powers[at - 1], powers[at - 1]);
        at += 1;
    }
    powers
};

/// The product of two reflected polynomials.
const fn times(mut a: u16, b: u16) -> u16 {
    let mut product = 0;
    let mut bit = 16;
    while bit > 0 {
        bit -= 1;
        // Without branches, which could not be predicted.
        product ^= a & (b >> bit & 1).wrapping_neg();
        a = a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg();
    }
    product
}

/// x^(8 * `bytes`).
fn power_of_bytes(bytes: u64) -> u16 {
    let set = POWERS.iter().enumerate().filter(|(bit, _)| bytes >> bit & 1 != 0);
    set.fold(ONE, |all, (_, power)| times(all, *power))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, as the polynomial is defined.
    fn slowly(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
                if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL }
            })
        })
    }

    #[test]
    fn check_value_and_that_of_the_example_are_right() {
        assert_eq!(crc16(b"123456789"), 0x3d56);
        let example: Vec<u8> = (0..32768u32).map(|i| i.to_le_bytes()[0]).collect();
        assert_eq!(crc16(&example), 0x1818);
        assert_eq!(pattern_crc(32768), 0x1818);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn very_long_patterns_are_made_of_shorter_ones() {
        for (first, second) in [(1u64 << 40, 3), (5 << 32, 1 << 33), (256, u64::from(u32::MAX))] {
            let together = combine(pattern_crc(first), pattern_crc(second), second);
            assert_eq!(pattern_crc(first + second), together);
        }
    }

    proptest! {
        #[test]
        fn all_ways_agree(bytes in prop::collection::vec(any::<u8>(), 0..600), at: prop::sample::Index) {
            let (first, second) = bytes.split_at(at.index(bytes.len() + 1));
            let whole = slowly(&bytes);
            prop_assert_eq!(crc16(&bytes), whole);
            prop_assert_eq!(combine(crc16(first), crc16(second), second.len() as u64), whole);
            let mut parts = Crc16::default();
            parts.update(first);
            parts.update(second);
            prop_assert_eq!(parts.value(), whole);
        }

        #[test]
        fn pattern_crc_is_that_of_the_pattern(length in 0usize..=1 << 16) {
            prop_assert_eq!(pattern_crc(length as u64), crc16(pattern(0, length)));
        }
    }
}
