//! When to be woken for what a socket receives.

use std::os::fd::AsFd;

/// Fewer bytes than this are not worth a call that sets when to wake.
const MANY: usize = 16 << 10;
/// The most bytes that are awaited: so many stay in the cache of a processor.
const MOST: usize = 512 << 10;

/// How many bytes have to be there before a socket becomes readable.
///
/// Without this, a receiver is woken for each segment of a block. Over the loopback device that costs more than the copy.
/// `None`: the kernel refuses it, and the receiver does without.
#[derive(Debug)]
pub(in crate::stream) struct Awaited(Option<usize>);

impl Awaited {
    /// As a new socket has it.
    pub(in crate::stream) fn any() -> Self {
        Self(Some(1))
    }

    /// To be called after a read that would wait, and when something else than more of a block is awaited: `left` bytes are
    /// needed, of which as many as are worth a read are awaited. If they have come meanwhile, that is an event.
    pub(in crate::stream) fn set(&mut self, socket: impl AsFd, left: usize) {
        let awaited = if left < MANY { 1 } else { left.min(MOST) };
        if self.0.is_some_and(|now| now != awaited) {
            self.0 = busbar_uapi::tcp::wake_at(socket, awaited).ok().map(|()| awaited);
        }
    }
}
