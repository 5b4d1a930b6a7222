//! How long the transfers are that a receiver queues.

use super::{CHUNK, PACKET};

/// Most transfers of [`CHUNK`] bytes under way: Linux has 16 MiB for those of all programs of a host.
const MOST_CHUNKS: usize = 24;

/// The lengths of transfers, one after the other.
///
/// A header fills its transfer of a packet, or ends it as a short one. A payload fills the transfers after it to the last
/// byte, so none of them waits for the next frame. Without data frames, each transfer is a packet.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    /// Bytes of a payload with its padding; 0 without data frames.
    payload: usize,
    /// Bytes of it that are queued; `None` before the header.
    queued: Option<usize>,
}

impl Pattern {
    /// Begins with the header of the first data frame.
    pub(super) fn of(payload: usize) -> Self {
        Self { payload, queued: None }
    }

    pub(super) fn has_data(&self) -> bool {
        self.payload > 0
    }

    /// Whether the next transfer is for the header of a data frame, or for the end.
    pub(super) fn is_at_header(&self) -> bool {
        self.has_data() && self.queued.is_none()
    }

    /// Bytes of the next transfer.
    pub(super) fn next(&mut self) -> usize {
        let Some(queued) = self.queued else {
            self.queued = self.has_data().then_some(0);
            return PACKET;
        };
        let len = (self.payload - queued).min(CHUNK);
        self.queued = Some(queued + len).filter(|queued| *queued < self.payload);
        len
    }

    /// Transfers that should be under way: of about 2 MiB, or two blocks.
    pub(super) fn depth(&self) -> usize {
        if !self.has_data() {
            return 4;
        }
        let each = 1 + self.payload.div_ceil(CHUNK);
        let most = if self.payload > CHUNK { MOST_CHUNKS } else { 64 };
        ((2 << 20) / self.payload).clamp(2, 32).saturating_mul(each).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_a_payload_come_in_turn() {
        let mut pattern = Pattern::of(2 * CHUNK + PACKET);
        let lens: Vec<_> = (0..6).map(|_| pattern.next()).collect();
        assert_eq!(lens, [PACKET, CHUNK, CHUNK, PACKET, PACKET, CHUNK]);
        let mut pattern = Pattern::default();
        assert_eq!([pattern.next(), pattern.next()], [PACKET, PACKET]);
        assert_eq!(Pattern::of(1 << 30).depth(), MOST_CHUNKS);
        assert_eq!(Pattern::of(16 << 10).depth(), 64);
    }
}
