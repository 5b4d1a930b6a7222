//! A message of `ping`: number of the run, sequence number and a pattern that shows damage.

use std::fmt;

/// Bytes before the pattern: run and sequence number, little-endian, 32 bits each.
pub const HEADER: usize = 8;

/// Why a received message is not the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Too short, or of another run: no reply to this ping.
    Foreign,
    /// The length is wrong; this many bytes were sent.
    Length(usize),
    /// The byte at this offset is wrong.
    Byte { at: usize, is: u8, should: u8 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a reply to this ping"),
            Self::Length(length) => write!(f, "wrong length: {length} bytes were sent"),
            Self::Byte { at, is, should } => {
                write!(f, "wrong data byte #{at} should be {should:#x} but was {is:#x}")
            }
        }
    }
}

/// Fills `message`, of [`HEADER`] bytes or more.
pub fn fill(message: &mut [u8], run: u32, sequence: u32) {
    let header = [run.to_le_bytes(), sequence.to_le_bytes()];
    let bytes = header.as_flattened().iter().copied().chain(pattern(sequence));
    for (to, from) in message.iter_mut().zip(bytes) {
        *to = from;
    }
}

/// The sequence number of a reply, and what is wrong with the rest.
pub fn check(reply: &[u8], run: u32, size: usize) -> Result<(u32, Option<Fault>), Fault> {
    let Some(([of, sequence], data)) = header(reply) else { return Err(Fault::Foreign) };
    if of != run {
        return Err(Fault::Foreign);
    }
    if reply.len() != size {
        return Ok((sequence, Some(Fault::Length(size))));
    }
    let mut pairs = data.iter().copied().zip(pattern(sequence)).enumerate();
    let wrong = pairs.find(|(_, (is, should))| is != should);
    let fault = wrong.map(|(at, (is, should))| Fault::Byte { at: HEADER + at, is, should });
    Ok((sequence, fault))
}

fn header(reply: &[u8]) -> Option<([u32; 2], &[u8])> {
    let (run, rest) = reply.split_first_chunk()?;
    let (sequence, data) = rest.split_first_chunk()?;
    Some(([u32::from_le_bytes(*run), u32::from_le_bytes(*sequence)], data))
}

/// Differs between neighbours, so that a message mixed from two of them is found.
fn pattern(sequence: u32) -> impl Iterator<Item = u8> {
    let [first, ..] = sequence.to_le_bytes();
    (0..=u8::MAX).cycle().map(move |n| n.wrapping_add(first))
}

#[cfg(test)]
mod tests {
    use busbar::endpoint::MAX_MESSAGE;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_sent_passes(run: u32, sequence: u32, size in HEADER..=MAX_MESSAGE) {
            let mut message = vec![0; size];
            fill(&mut message, run, sequence);
            prop_assert_eq!(check(&message, run, size), Ok((sequence, None)));
        }

        #[test]
        fn a_changed_byte_is_named(
            sequence: u32, size in HEADER + 1..=MAX_MESSAGE, place: prop::sample::Index,
            change in 1u8..,
        ) {
            let mut message = vec![0; size];
            fill(&mut message, 7, sequence);
            let at = HEADER + place.index(size - HEADER);
            message[at] ^= change;
            let fault = Fault::Byte { at, is: message[at], should: message[at] ^ change };
            prop_assert_eq!(check(&message, 7, size), Ok((sequence, Some(fault))));
        }

        #[test]
        fn another_length_is_a_fault(size in HEADER..=MAX_MESSAGE, other in HEADER..=MAX_MESSAGE) {
            prop_assume!(size != other);
            let mut message = vec![0; other];
            fill(&mut message, 7, 3);
            prop_assert_eq!(check(&message, 7, size), Ok((3, Some(Fault::Length(size)))));
        }

        #[test]
        fn no_message_panics(message: Vec<u8>, run: u32, size in HEADER..=MAX_MESSAGE) {
            let _ = check(&message, run, size);
        }
    }

    #[test]
    fn messages_of_others_are_no_replies() {
        let mut message = [0; 16];
        fill(&mut message, 1, 1);
        assert_eq!(check(&message, 2, 16), Err(Fault::Foreign));
        assert_eq!(check(&message[..7], 1, 16), Err(Fault::Foreign));
        assert_eq!(check(&[], 1, 16), Err(Fault::Foreign));
    }
}
