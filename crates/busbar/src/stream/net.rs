//! Streams over TCP.
//!
//! A [`FrameSender`] connects and sends the blocks of a source as [frames](super::frame); a [`FrameReceiver`]
//! listens and hands them out as [`Samples`](super::Samples). Neither ever waits, but for
//! [`FrameReceiver::next`]: each has a descriptor that is readable when its `advance` has something to do.
//!
//! ```no_run
//! use busbar::stream::net::{Options, FrameSender};
//! use busbar::stream::{Lost, StreamSetup, Source};
//!
//! # fn main() -> busbar::Result<()> {
//! let source = Source::open("synth:sine?rate=1M", &StreamSetup::default())?;
//! let (format, len) = (source.format(), source.block_len());
//! let mut sender = FrameSender::open("receiver.example:4950", format, len, &Options::default())?;
//! for _ in 0..100 {
//!     sender.push(source.next()?)?;
//!     sender.advance()?;
//! }
//! sender.finish(Lost::Samples(0));
//! sender.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is copied
//!
//! | memory of a block | sent by | copied |
//! |---|---|---|
//! | pages, memfd | `sendfile` from the memfd | nothing |
//! | huge pages | `MSG_ZEROCOPY` from the memfd's mapping | nothing, or what the kernel says it had to |
//! | a heap, from elsewhere | `sendmsg` from the mapping | everything |
//!
//! Receiving copies from the socket's memory straight into a block, or not at all: below.
//! [`FrameSender::copied`] and [`FrameReceiver::copied`] count.
//!
//! # Device memory
//!
//! [`FrameReceiver::over`] takes what a [`receive::Receiver`](crate::receive::Receiver) receives, and leaves
//! blocks where that has put them: with a network device that can do it, no processor has touched them.
//! Such a block has [parts](super::Samples::parts), which may end anywhere, and is no
//! [`Block`](super::Samples::block) to hand over. Everything else is as with [`FrameReceiver::listen`].
//!
//! * A block that is out holds its part of the memory. At most [`StreamSetup::blocks`](super::StreamSetup::blocks) are
//!   out at a time; what comes meanwhile waits in the socket, up to three quarters of the memory, and
//!   then in the sender. A megabyte of it is taken from there beforehand. So memory of four times what
//!   the blocks take and 4 MiB more is enough, if the sender's segments fill their pages.
//! * With less, nothing hangs. While blocks hold more than a quarter of the memory (of three quarters
//!   without a device), the block that comes next is copied out of it, as far as it has come: always
//!   enough is left for the rest. The smallest segments, which take a page each, are no different.
//! * A sender whose blocks are longer than all of the memory is refused, and told so.
//!
//! # Blocks in flight
//!
//! A block that was sent without a copy still belongs to the network, even when TCP has had its
//! acknowledgement: over `veth` and `lo` the receiver's queue refers to the same pages. So a block
//! goes back to its driver only when the receiver has said that it has taken the block over. Until then
//! the sender keeps it, and sends it again after a reconnect if the receiver says that it does not
//! have it. The source runs out of blocks where the receiver is slow; what it then loses, it tells
//! with the next block.
//!
//! # Connections that end
//!
//! The receiver says each second that it is there. A sender that hears nothing for
//! [`Options::silence`], or reads what cannot be, closes and connects anew, at once and then
//! with growing pauses; if it hears nothing for [`Options::patience`], it fails. A receiver whose
//! sender is gone waits as long for it to come back, takes up where it was, and meanwhile refuses
//! nobody else who has a stream of the same format: the first block of that one is told as
//! [`Lost::Unknown`](super::Lost::Unknown).

mod conn;
mod pieces;
mod pool;
mod receiver;
mod sender;
mod watch;

use std::time::{Duration, SystemTime};

pub use self::receiver::FrameReceiver;
pub use self::sender::FrameSender;

pub(crate) use self::pool::Pool;

/// How a stream goes over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether the sender computes a check sum of each block. The receiver verifies all there are.
    pub checksum: bool,
    /// How long to go on without a connection before it is an error: at first, and whenever it
    /// breaks. A receiver waits for its first sender without a limit.
    pub patience: Duration,
    /// After how long without a sign of life a connection is given up. The sign is sent each
    /// second: less than 3 seconds are 3 seconds.
    pub silence: Duration,
    /// Bytes of all blocks of a [`FrameReceiver::listen`] together. The sender says how long its blocks are; one
    /// whose blocks would take more is refused, and told so.
    pub memory_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        let (patience, silence) = (Duration::from_secs(30), Duration::from_secs(10));
        Self { checksum: false, patience, silence, memory_limit: 64 << 20 }
    }
}

impl Options {
    /// No check sums, patience of 30 s, silence of 10 s, a memory limit of 64 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`checksum`](Self#structfield.checksum).
    #[must_use]
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.checksum = checksum;
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets [`silence`](Self#structfield.silence).
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sets [`memory_limit`](Self#structfield.memory_limit).
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: usize) -> Self {
        self.memory_limit = memory_limit;
        self
    }

    /// Long enough for a sign or two to get lost.
    fn mute_after(&self) -> Duration {
        self.silence.max(3 * BEAT)
    }
}

/// How often a receiver says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// Nanoseconds since 1970, as far as the field holds.
fn to_nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before)
        }
    }
}

fn from_nanoseconds(time: i64) -> SystemTime {
    let distance = Duration::from_nanos(time.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if time < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    time.unwrap_or(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_before_and_after_1970() {
        for time in [0, 1, -1, 1_795_000_000_123_456_789, i64::MAX, -i64::MAX] {
            assert_eq!(to_nanoseconds(from_nanoseconds(time)), time);
        }
    }
}
