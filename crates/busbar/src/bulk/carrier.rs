//! The interface of every transport of blocks, and its errors.

use std::io;

use rustix::io::Errno;

use super::transfer::Transfer;
use crate::{Error, Result};

/// The block to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The last one that this link has sent; before it has sent any, the last one that any client has sent.
    Last,
    /// A block of this length, at least 1, in which byte `i` is `i & 0xff`.
    Pattern(u32),
}

impl Wanted {
    /// The length field of a RECEIVE packet.
    pub(super) fn on_the_wire(self) -> Result<u32> {
        match self {
            Self::Last => Ok(0),
            Self::Pattern(0) => Err(Error::invalid("the length to receive", 0, "1 byte or more")),
            Self::Pattern(length) => Ok(length),
        }
    }
}

/// How a transport sends and receives a block.
pub(super) trait Carrier: Send {
    fn send(&mut self, block: &[u8], transfer: &mut Transfer<'_>) -> Result<()>;
    fn receive(&mut self, wanted: Wanted, transfer: &mut Transfer<'_>) -> Result<Vec<u8>>;
}

/// The error of a transfer after its deadline.
pub(super) fn timed_out(tried: &str, on: String) -> Error {
    Error::new(tried, on, io::Error::from(io::ErrorKind::TimedOut))
        .help("allow more time, or check whether the coprocessor still runs")
}

/// The error if one of the two sides has refused a block.
pub(super) fn refusal(tried: &str, on: String, errno: Errno) -> Error {
    let error = Error::new(tried, on, errno);
    match errno {
        Errno::BADMSG => error.help("the check sum is wrong: bytes were changed on the way"),
        Errno::PROTO => error.help("the length of a packet differs from its header"),
        Errno::MSGSIZE => error.help("the block is longer than the other side accepts"),
        Errno::NODATA => error.help("no block to receive has been sent yet"),
        _ => error,
    }
}
