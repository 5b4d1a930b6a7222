//! Messages about shared buffers, which are sent instead of their bytes.

use busbar_uapi::rpmsg_bulk::{
    DMABUF_DONE, DMABUF_FROM_REMOTE, DMABUF_GIVEN, DMABUF_MAGIC, DMABUF_MESSAGE_SIZE,
    DMABUF_TO_REMOTE,
};

use super::header::{u16_at, u32_at, u64_at};

/// The kind of a message about a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linux gives the part to the coprocessor.
    Given,
    /// The coprocessor gives it back and does not touch it any more.
    Done,
}

/// What the coprocessor does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It reads the buffer.
    ToRemote,
    /// It fills the buffer.
    FromRemote,
}

/// A part of a shared buffer is given or given back (`struct rpmsg_dmabuf_message`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferMessage {
    /// Whether it is given or given back.
    pub kind: Kind,
    /// What the coprocessor does with it.
    pub direction: Direction,
    /// Identifies this use of the buffer; the answer has the same.
    pub cookie: u64,
    /// Address of the buffer for the coprocessor; 0 in an answer that Linux has passed on.
    pub address: u64,
    /// Offset of the part from `address`.
    pub offset: u64,
    /// Length of the part; in the answer, how many bytes from `offset` on were used.
    pub length: u64,
    /// In the answer, 0 or an error; see [`errno`](super::errno).
    pub status: u32,
}

impl BufferMessage {
    /// The message on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; DMABUF_MESSAGE_SIZE] {
        let kind = match self.kind {
            Kind::Given => DMABUF_GIVEN,
            Kind::Done => DMABUF_DONE,
        };
        let direction = match self.direction {
            Direction::ToRemote => DMABUF_TO_REMOTE,
            Direction::FromRemote => DMABUF_FROM_REMOTE,
        };
        let mut bytes = [0; DMABUF_MESSAGE_SIZE];
        bytes[..4].copy_from_slice(&DMABUF_MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&kind.to_le_bytes());
        bytes[6..8].copy_from_slice(&direction.to_le_bytes());
        let numbers = [self.cookie, self.address, self.offset, self.length];
        for (field, number) in bytes[8..40].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..44].copy_from_slice(&self.status.to_le_bytes());
        bytes
    }

    /// `None` if `message` is not such a message, or if a reserved field is not 0.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Self> {
        if message.len() != DMABUF_MESSAGE_SIZE || u32_at(message, 0)? != DMABUF_MAGIC {
            return None;
        }
        let kind = match u16_at(message, 4)? {
            DMABUF_GIVEN => Kind::Given,
            DMABUF_DONE => Kind::Done,
            _ => return None,
        };
        let direction = match u16_at(message, 6)? {
            DMABUF_TO_REMOTE => Direction::ToRemote,
            DMABUF_FROM_REMOTE => Direction::FromRemote,
            _ => return None,
        };
        let status = u32_at(message, 40)?;
        if u32_at(message, 44)? != 0 || (kind == Kind::Given && status != 0) {
            return None;
        }
        Some(Self {
            kind,
            direction,
            cookie: u64_at(message, 8)?,
            address: u64_at(message, 16)?,
            offset: u64_at(message, 24)?,
            length: u64_at(message, 32)?,
            status,
        })
    }

    /// The answer: `length` bytes were used, or an error.
    #[must_use]
    pub fn done(&self, length: u64, status: u32) -> Self {
        Self { kind: Kind::Done, length, status, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn message_is_laid_out_like_the_structure() {
        let given = BufferMessage {
            kind: Kind::Given,
            direction: Direction::FromRemote,
            cookie: 1,
            address: 1 << 40,
            offset: 4096,
            length: 512,
            status: 0,
        };
        let mut expected = *b"DBUF\x01\0\x02\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x10\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(given.encode(), expected);
        expected[4] = 2;
        expected[33] = 1;
        expected[40] = 14;
        assert_eq!(given.done(256, 14).encode(), expected);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_the_same_message_or_none(
            mut bytes: [u8; DMABUF_MESSAGE_SIZE],
            fixed: bool,
        ) {
            if fixed {
                bytes[..8].copy_from_slice(b"DBUF\x02\0\x01\0");
                bytes[44..].fill(0);
            }
            let decoded = BufferMessage::decode(&bytes);
            prop_assert!(!fixed || decoded.is_some());
            prop_assert!(decoded.is_none_or(|decoded| decoded.encode() == bytes));
        }
    }
}
