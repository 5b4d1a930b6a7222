//! When to be woken for what a socket receives.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// Fewer bytes than this are not worth a call that sets when to wake.
const MANY: usize = 16 << 10;
/// The most bytes that are awaited: so many stay in the cache of a processor.
const MOST: usize = 512 << 10;

/// How many bytes have to be there before a socket becomes readable.
///
/// Without this, a receiver is woken for each segment of a block. Over the loopback device that costs more than the copy.
#[derive(Debug)]
pub(in crate::stream) struct Awaited(usize);

impl Awaited {
    /// As a new socket has it.
    pub(in crate::stream) fn any() -> Self {
        Self(1)
    }

    /// To be called after a read that would wait: `left` bytes are needed, of which as many as are worth a read are
    /// awaited. If they have come meanwhile, that is an event.
    pub(in crate::stream) fn set(&mut self, socket: impl AsFd, left: usize) -> Result<(), Errno> {
        let awaited = if left < MANY { 1 } else { left.min(MOST) };
        if awaited == self.0 {
            return Ok(());
        }
        busbar_uapi::tcp::wake_at(socket, awaited)?;
        self.0 = awaited;
        Ok(())
    }
}
