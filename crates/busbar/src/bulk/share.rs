//! Endpoints that pass blocks to the coprocessor by reference and get them back.
//!
//! The bytes are not copied: a message says where they are, and an answer says that the coprocessor is done
//! with them (`kernel/uapi/linux/rpmsg_eptfd.h`).

use std::ops::Range;

use busbar_uapi::dmabuf;
use rustix::io::{Errno, retry_on_intr};

use super::packet::{BufferMessage, Direction, Kind};
use crate::block::Block;
use crate::endpoint::Endpoint;
use crate::{Error, Result};

impl Endpoint {
    /// Attaches `block` to this endpoint, so that it can be given: maps it for the coprocessor's device.
    ///
    /// # Errors
    ///
    /// `ENOTTY` if the driver cannot share blocks, `EBUSY` if the block is attached already,
    /// `EOPNOTSUPP` if the device cannot see the block as one piece,
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the remote is gone.
    pub fn attach(&self, block: &Block) -> Result<()> {
        retry_on_intr(|| dmabuf::attach(self, block))
            .map_err(|errno| self.sharing_failed("attach", block, errno))
    }

    /// Undoes [`attach`](Self::attach). Parts that the coprocessor still uses are released when it is done.
    ///
    /// # Errors
    ///
    /// `EPERM` if the block is not attached.
    pub fn detach(&self, block: &Block) -> Result<()> {
        retry_on_intr(|| dmabuf::detach(self, block))
            .map_err(|errno| self.sharing_failed("detach", block, errno))
    }

    /// Gives a part of an attached block to the coprocessor, to read or to fill it.
    ///
    /// Returns the cookie of the answer, which comes as a message: see [`done`]. The block itself can be
    /// waited for too: [`Block::wait_filled`], [`Block::wait_unused`].
    ///
    /// # Errors
    ///
    /// `EPERM` if the block is not attached, `EINVAL` if the part is not in it, `EBUSY` if bytes of
    /// it are in use already, [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the remote is gone.
    pub fn give(&self, block: &mut Block, part: Range<usize>, direction: Direction) -> Result<u64> {
        if part.is_empty() || part.end > block.len() {
            let allowed = format!("at least one byte within 0..{}", block.len());
            return Err(Error::invalid("a part of a block", format!("{part:?}"), allowed));
        }
        let flags = match direction {
            Direction::ToRemote => dmabuf::TO_REMOTE,
            Direction::FromRemote => dmabuf::FROM_REMOTE,
        };
        let (offset, length) = (part.start as u64, part.len() as u64);
        retry_on_intr(|| dmabuf::send(self, &*block, flags, offset, length))
            .map_err(|errno| self.sharing_failed("give", block, errno))
    }

    fn sharing_failed(&self, tried: &str, block: &Block, errno: Errno) -> Error {
        let errno = if errno == Errno::NODEV { Errno::PIPE } else { errno };
        let error = Error::new(format!("{tried} {}", block.label()), self.label(), errno);
        match errno {
            Errno::NOTTY => error.help("sharing blocks needs rpmsg_eptfd: see `busbar doctor`"),
            Errno::OPNOTSUPP => {
                error.help("the device sees the block in pieces: use a heap of contiguous memory")
            }
            Errno::PIPE => error.help("the coprocessor stopped or crashed"),
            _ => error,
        }
    }
}

/// The coprocessor's answer to a block that it was given, if `message` is one.
#[must_use]
pub fn done(message: &[u8]) -> Option<BufferMessage> {
    BufferMessage::decode(message).filter(|message| message.kind == Kind::Done)
}
