//! Verifies every byte of a stream.

use std::io;

use busbar::{Error, Result};

/// The expected bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// 64-bit numbers from 0, the least significant byte first.
    Counter,
    /// 1, 2, …, up to one below this, 0 and so on: as `ncdevmem` verifies it.
    Bytes(u16),
}

impl Pattern {
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Counter);
        }
        text.parse().ok().filter(|count| (2..=256).contains(count)).map(Self::Bytes)
    }

    /// The byte at this offset of the stream.
    fn byte(self, at: u64) -> u8 {
        let [first, ..] = match self {
            Self::Counter => ((at / 8) >> (8 * (at % 8))).to_le_bytes(),
            Self::Bytes(count) => ((at + 1) % u64::from(count)).to_le_bytes(),
        };
        first
    }
}

/// Verifies a stream.
pub struct Verify {
    pattern: Pattern,
    at: u64,
}

impl Verify {
    pub fn new(pattern: Pattern) -> Self {
        Self { pattern, at: 0 }
    }

    /// How many bytes were verified.
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        for found in bytes {
            let expected = self.pattern.byte(self.at);
            if *found != expected {
                let why = format!("byte {} is {found} instead of {expected}", self.at);
                let why = io::Error::new(io::ErrorKind::InvalidData, why);
                return Err(Error::new("verify", "the received data", why));
            }
            self.at += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(pattern: Pattern, pieces: &[&[u8]]) -> Result<u64, String> {
        let mut verify = Verify::new(pattern);
        for piece in pieces {
            verify.bytes(piece).map_err(|error| error.to_string())?;
        }
        Ok(verify.at())
    }

    #[test]
    fn patterns_go_on_from_piece_to_piece() {
        assert_eq!(verify(Pattern::Bytes(7), &[&[1, 2, 3], &[4, 5, 6, 0, 1], &[2]]), Ok(9));
        let bytes: Vec<u8> = (0..300u64).flat_map(u64::to_le_bytes).collect();
        let (first, second) = bytes.split_at(1001);
        assert_eq!(verify(Pattern::Counter, &[first, second]), Ok(2400));
        let all: Vec<u8> = (1..=255).chain([0, 1]).collect();
        assert_eq!(verify(Pattern::Bytes(256), &[&all]), Ok(257));
    }

    #[test]
    fn the_first_wrong_byte_is_told() {
        let error = verify(Pattern::Bytes(7), &[&[1, 2], &[3, 9]]).unwrap_err();
        assert!(error.contains("byte 3 is 9 instead of 4"), "{error}");
        assert!(verify(Pattern::Counter, &[&[0; 9]]).unwrap_err().contains("byte 8 is 0"));
    }
}
