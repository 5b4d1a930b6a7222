//! Packets of one message, and answers.

use std::ops::Deref;

use busbar_uapi::rpmsg_bulk::{
    CREDIT, LONG_HEADER_SIZE, RECEIVE, RESET, RESET_DONE, STATUS, STATUS_PROTOCOL,
};
use rustix::io::Errno;

use super::header::Header;

/// A packet without a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The answer to a block.
    Status {
        /// Bytes of the block that were received, header not included.
        length: u32,
        /// 0, or why it was refused; see [`errno`].
        status: u32,
    },
    /// Linux asks for a block.
    Receive {
        /// Length of a block in which byte i is `i & 0xff`, or 0 for the last good block.
        length: u32,
        /// Bytes of the packet that may be sent, header included.
        credit: u32,
    },
    /// Linux grants more credit.
    Credit {
        /// How many more bytes may be sent.
        bytes: u32,
    },
    /// Linux asks the remote to discard everything that came from this address.
    Reset {
        /// The answer has the same value.
        value: u32,
    },
    /// The answer to a reset.
    ResetDone {
        /// The value of the reset.
        value: u32,
    },
}

impl Control {
    /// The message on the wire.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let (kind, length, value) = match *self {
            Self::Status { length, status } => (STATUS, length, status),
            Self::Receive { length, credit } => (RECEIVE, length, credit),
            Self::Credit { bytes } => (CREDIT, 0, bytes),
            Self::Reset { value } => (RESET, 0, value),
            Self::ResetDone { value } => (RESET_DONE, 0, value),
        };
        Encoded::new(&Header::alone(kind, length, value).encode())
    }

    /// `None` if the type is that of a block, or unknown.
    pub(super) fn from_header(header: &Header) -> Option<Self> {
        let Header { length, value, .. } = *header;
        Some(match header.kind {
            STATUS => Self::Status { length, status: value },
            RECEIVE => Self::Receive { length, credit: value },
            CREDIT => Self::Credit { bytes: value },
            RESET => Self::Reset { value },
            RESET_DONE => Self::ResetDone { value },
            _ => return None,
        })
    }
}

/// A short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; LONG_HEADER_SIZE],
    size: usize,
}

impl Encoded {
    /// `message` is at most a long header.
    pub(super) fn new(message: &[u8]) -> Self {
        let mut bytes = [0; LONG_HEADER_SIZE];
        bytes[..message.len()].copy_from_slice(message);
        Self { bytes, size: message.len() }
    }
}

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// The error of a status on the wire, `None` for 0.
///
/// A status that is no number of `errno.h` becomes `EPROTO`.
#[must_use]
pub fn errno(status: u32) -> Option<Errno> {
    match i32::try_from(status) {
        Ok(0) => None,
        Ok(number @ 1..4096) => Some(Errno::from_raw_os_error(number)),
        _ => Some(Errno::PROTO),
    }
}

/// The status of an error on the wire.
#[must_use]
pub fn status(errno: Errno) -> u32 {
    u32::try_from(errno.raw_os_error()).unwrap_or(STATUS_PROTOCOL)
}

#[cfg(test)]
mod tests {
    use busbar_uapi::rpmsg_bulk::{
        STATUS_BAD_MESSAGE, STATUS_FAULT, STATUS_MESSAGE_SIZE, STATUS_NO_BUFFERS, STATUS_NO_DATA,
    };

    use super::*;

    #[test]
    fn any_status_is_an_error_or_none() {
        assert_eq!(errno(0), None);
        for number in [4096, 0xffff, 0x8000_0000, u32::MAX] {
            assert_eq!(errno(number), Some(Errno::PROTO));
        }
        for number in 1..4096 {
            assert_eq!(errno(number).map(status), Some(number));
        }
    }

    #[test]
    fn numbers_on_the_wire_are_those_of_this_machine() {
        let pairs = [
            (STATUS_FAULT, Errno::FAULT),
            (STATUS_NO_DATA, Errno::NODATA),
            (STATUS_PROTOCOL, Errno::PROTO),
            (STATUS_BAD_MESSAGE, Errno::BADMSG),
            (STATUS_MESSAGE_SIZE, Errno::MSGSIZE),
            (STATUS_NO_BUFFERS, Errno::NOBUFS),
        ];
        assert!(pairs.into_iter().all(|(number, errno)| status(errno) == number));
    }
}
