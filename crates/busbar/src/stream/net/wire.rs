//! Connections that are not sockets.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::Result;
use crate::block::{Block, BytesMut};
use crate::stream::frame::HEADER_LEN;
use crate::stream::samples::Samples;

/// A connection that never waits. A call that would wait returns [`WouldBlock`](io::ErrorKind::WouldBlock); its
/// descriptor then has an event when to try again.
///
/// Bytes come out at the other end in their order. Behind each payload of a data frame there is padding, which
/// is not part of the frame.
pub(crate) trait Wire: fmt::Debug + Send {
    /// Reads bytes; 0 for an empty `into` only.
    fn read(&mut self, into: BytesMut<'_>) -> io::Result<usize>;

    /// Queues bytes of frames without samples.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Queues a frame with samples, which stay with the caller until they have arrived. Returns the number of
    /// bytes that a processor has copied.
    fn send(&mut self, header: &[u8; HEADER_LEN], samples: &Samples) -> io::Result<u64>;

    /// Whether the block of samples that were [sent](Self::send) is still read in place.
    fn holds(&self, _: &Samples) -> bool {
        false
    }

    /// From now on there are data frames, with blocks of up to `block_len` bytes. `like` is one of the blocks that they
    /// are received into.
    fn settle(&mut self, block_len: usize, like: Option<&Block>) -> io::Result<()>;

    /// Whether payloads come in blocks that are [given](Self::give) before, not by [`read`](Self::read).
    fn is_in_place(&self) -> bool {
        false
    }

    /// Whether to give it a further block.
    fn wants(&self) -> bool {
        false
    }

    /// Has the next payload put into a block.
    fn give(&mut self, _: Block) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether it has a block for the next payload.
    fn has_given(&self) -> bool {
        false
    }

    /// The block with the payload of the header that was read last.
    fn take(&mut self) -> io::Result<Block> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The blocks that were given and not taken: the connection ends.
    fn reclaim(&mut self) -> Vec<Block> {
        Vec::new()
    }

    /// Bytes of padding behind a payload.
    fn padding(&self, payload: usize) -> usize;

    /// Since when bytes wait that the other end does not take.
    fn stalled(&self) -> Option<Instant>;

    /// Whether the other end can still take what was written, and has not. Does what can be done without waiting.
    fn lingers(&mut self) -> bool;

    /// What to watch.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
}

/// Makes connections, one at a time.
pub(crate) trait Port: fmt::Debug + Send {
    /// A new connection, if there is a peer. Never waits. The one before has to be dropped first.
    fn open(&mut self) -> Result<Option<Box<dyn Wire>>>;

    /// Whether it is the peer who decides when it comes, so that nobody is to blame if it does not.
    fn waits(&self) -> bool;

    /// Handles events besides those of the connection.
    fn hear(&mut self);

    /// What to watch all the time.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
