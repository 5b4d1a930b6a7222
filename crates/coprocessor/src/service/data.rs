//! Numbered messages that can be checked: what [`Source`](super::Source) sends and what
//! [`Sink`](super::Sink) takes.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | `DATA` |
//! | 4–7 | sequence number, little-endian, from 0 |
//! | 8–11 | CRC-32 (IEEE 802.3) of the sequence number and the payload, little-endian |
//! | 12–… | payload, any bytes; [`fill`] writes `(sequence + i) mod 256` at byte `i` |

use busbar::{Error, Result};

use crate::message::MTU;
use crate::wire::u32_at;

/// The first bytes of a numbered message.
pub const TAG: [u8; 4] = *b"DATA";
/// Bytes before the payload, and so the shortest numbered message.
pub const HEADER_SIZE: usize = 12;

/// A numbered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// Sequence number, from 0.
    pub sequence: u32,
    /// Payload.
    pub payload: &'a [u8],
}

/// Why a message is no [`Data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin with `DATA`.
    Foreign,
    /// It is shorter than its header, or its checksum is wrong.
    Corrupt,
}

impl<'a> Data<'a> {
    /// Checks a message.
    pub fn decode(message: &'a [u8]) -> Result<Self, Fault> {
        if !message.starts_with(&TAG) {
            return Err(Fault::Foreign);
        }
        let sequence = u32_at(message, 4).ok_or(Fault::Corrupt)?;
        let sum = u32_at(message, 8).ok_or(Fault::Corrupt)?;
        let payload = &message[HEADER_SIZE..];
        let intact = checksum(sequence, payload) == sum;
        intact.then_some(Self { sequence, payload }).ok_or(Fault::Corrupt)
    }

    /// Whether the payload is what [`fill`] writes.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.payload.iter().copied().eq(pattern(self.sequence).take(self.payload.len()))
    }
}

/// Makes `message`, of 12 to 496 bytes, the numbered message `sequence` with the usual payload.
pub fn fill(sequence: u32, message: &mut [u8]) -> Result<()> {
    check_size(message.len())?;
    for (byte, value) in message[HEADER_SIZE..].iter_mut().zip(pattern(sequence)) {
        *byte = value;
    }
    seal(sequence, message)
}

/// Makes `message`, of 12 to 496 bytes, the numbered message `sequence` with the payload that
/// it holds from byte 12 on.
pub fn seal(sequence: u32, message: &mut [u8]) -> Result<()> {
    check_size(message.len())?;
    let sum = checksum(sequence, &message[HEADER_SIZE..]);
    message[..4].copy_from_slice(&TAG);
    message[4..8].copy_from_slice(&sequence.to_le_bytes());
    message[8..12].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Fails where no numbered message can have `size` bytes.
pub fn check_size(size: usize) -> Result<()> {
    if (HEADER_SIZE..=MTU).contains(&size) {
        return Ok(());
    }
    Err(Error::invalid("message size", size, format!("{HEADER_SIZE} to {MTU} bytes")))
}

fn pattern(sequence: u32) -> impl Iterator<Item = u8> {
    let [first, ..] = sequence.to_le_bytes();
    (0..=u8::MAX).cycle().map(move |i| first.wrapping_add(i))
}

fn checksum(sequence: u32, payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&sequence.to_le_bytes());
    sum.update(payload);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksum_is_the_usual_crc_32() {
        // "1234" as the sequence number: the check value of CRC-32 is over "123456789".
        let sequence = u32::from_le_bytes(*b"1234");
        assert_eq!(checksum(sequence, b"56789"), 0xcbf4_3926);
    }

    #[test]
    fn sizes_that_no_message_has_are_refused() {
        for size in [0, 11, 497] {
            assert!(fill(0, &mut vec![0; size]).is_err(), "{size}");
        }
        assert!(fill(0, &mut [0; 12]).is_ok() && fill(0, &mut [0; 496]).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_filled_decodes(sequence: u32, size in 12usize..=496) {
            let mut message = vec![0; size];
            fill(sequence, &mut message).unwrap();
            let data = Data::decode(&message).unwrap();
            prop_assert_eq!((data.sequence, data.payload.len()), (sequence, size - 12));
            prop_assert!(data.is_pattern());
        }

        #[test]
        fn a_changed_bit_is_found(sequence: u32, size in 12usize..=64, bit in 0usize..512) {
            let mut message = vec![0; size];
            fill(sequence, &mut message).unwrap();
            let bit = bit % (size * 8);
            message[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 32 { Fault::Foreign } else { Fault::Corrupt };
            prop_assert_eq!(Data::decode(&message), Err(expected));
        }

        #[test]
        fn a_cut_message_is_found(size in 12usize..=64, cut in 0usize..64) {
            let mut message = vec![0; size];
            fill(9, &mut message).unwrap();
            prop_assert!(Data::decode(&message[..cut % size]).is_err());
        }
    }
}
