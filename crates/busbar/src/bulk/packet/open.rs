//! The reset with which a client begins.

use busbar_uapi::rpmsg_bulk::LONG_HEADER_SIZE;

use super::control::{Control, Encoded};

/// Clears the state that an earlier user of an address has left, on both ends.
///
/// Send the messages, and discard what is received until the reset is done. Only then use a
/// [`Joiner`](super::Joiner).
#[derive(Clone, Debug)]
pub struct Opening {
    value: u32,
    seen: Vec<u8>,
}

impl Opening {
    /// `value` must differ from those of earlier users: use a random one.
    #[must_use]
    pub fn new(value: u32) -> Self {
        Self { value, seen: Vec::with_capacity(LONG_HEADER_SIZE) }
    }

    /// The three messages to send.
    #[must_use]
    pub fn messages(&self) -> [Encoded; 3] {
        // The first may complete an unfinished packet; then the second is not a packet.
        let zero = Encoded::new(&[0]);
        [zero, zero, Control::Reset { value: self.value }.encode()]
    }

    /// Whether `message` says that the reset is done.
    #[must_use]
    pub fn is_done(&self, message: &[u8]) -> bool {
        *self.done() == *message
    }

    /// As [`is_done`](Self::is_done), on a carrier without boundaries of messages: takes bytes until the reset
    /// is done, and leaves those after it.
    pub fn find(&mut self, bytes: &mut &[u8]) -> bool {
        let done = self.done();
        while let Some((byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if self.seen.len() == done.len() {
                self.seen.remove(0);
            }
            self.seen.push(*byte);
            if *self.seen == *done {
                self.seen.clear();
                return true;
            }
        }
        false
    }

    fn done(&self) -> Encoded {
        Control::ResetDone { value: self.value }.encode()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_its_own_answer_ends_it() {
        let opening = Opening::new(7);
        assert!(opening.is_done(&Control::ResetDone { value: 7 }.encode()));
        assert!(!opening.is_done(&Control::ResetDone { value: 8 }.encode()));
        assert!(!opening.is_done(&Control::Reset { value: 7 }.encode()));
        assert!(!opening.is_done(&[]));
    }

    proptest! {
        #[test]
        fn found_in_any_stream_in_any_pieces(
            before in prop::collection::vec(any::<u8>(), 0..100),
            cut_off in 0usize..16,
            behind in prop::collection::vec(any::<u8>(), 0..20),
            size in 1usize..40,
        ) {
            let mut opening = Opening::new(0x1234_5678);
            let done = opening.done();
            let stream = [&before, &done[..cut_off], &done, &behind].concat();
            let (mut found, mut rest) = (false, Vec::new());
            for mut piece in stream.chunks(size) {
                found |= !found && opening.find(&mut piece);
                if found {
                    rest.extend_from_slice(piece);
                }
            }
            prop_assert!(found);
            prop_assert_eq!(rest, behind);
        }
    }
}
