//! Streams over TCP.
//!
//! A [`FrameSender`] connects and sends the blocks of a source as [frames](super::frame); a [`FrameReceiver`]
//! listens and hands them out as [`Samples`](super::Samples). Each has a descriptor that is readable when
//! its `advance`, which never waits, has something to do.
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
//! | memfd, blocks of up to 16 KiB | `sendmsg`, up to 32 blocks at a time | everything |
//! | huge pages | `MSG_ZEROCOPY` from the memfd's mapping | nothing, or what the kernel reports as copied |
//! | a heap, from elsewhere | `sendmsg` from the mapping | everything |
//!
//! Receiving copies once, from the socket's memory into a block, or not at all, see [below](#device-memory).
//! [`FrameSender::copied`] and [`FrameReceiver::copied`] count the bytes.
//!
//! # Device memory
//!
//! [`FrameReceiver::over`] receives by a [`receive::Receiver`](crate::receive::Receiver) and leaves blocks
//! where that has put them: with device-memory TCP, no processor touches them. Such a block has
//! [parts](super::Samples::parts), which may end anywhere, and no [`Block`](super::Samples::block) to
//! pass on. Everything else is as with [`FrameReceiver::listen`].
//!
//! * A block that is handed out holds its part of the memory. At most
//!   [`StreamSetup::blocks`](super::StreamSetup::blocks) are handed out at a time. Data that arrives meanwhile waits in
//!   the socket, up to three quarters of the memory, and then in the sender. A megabyte of it is taken from the
//!   socket in advance. So four times the memory of the blocks and 4 MiB is enough, if the sender's segments
//!   fill their pages.
//! * Less memory costs copies. While blocks hold more than a quarter of the memory (of three quarters
//!   without a device), the next block is copied out of it as it arrives. So the rest of a block always
//!   finds room, even if its segments are small and take a page each.
//! * A sender is refused if one of its blocks is longer than all of the memory, or if all blocks together are
//!   longer than [`Options::memory_limit`]: that is the most that copies take.
//!
//! # Blocks in flight
//!
//! The network still refers to a block that was sent without a copy, even after TCP's acknowledgement: over
//! `veth` and `lo` the receiver's queue has the same pages. So a block goes back to its driver only when
//! the receiver has acknowledged, in a frame, that it has taken the block over. Until then the sender keeps
//! it, and sends it again after a reconnect if the receiver does not have it. With a slow receiver, the
//! source runs out of blocks; its next block then says what was lost.
//!
//! # Connections that end
//!
//! The receiver sends an acknowledgement each second at least. A sender that receives none for
//! [`Options::silence`], or receives an invalid frame, closes the connection and connects anew, at once and then
//! with growing pauses, to the address that the name then has; if it receives none for [`Options::patience`], it fails. A
//! receiver whose sender is gone waits for `patience` as well. A sender without a block says each second that it is there,
//! if its program calls [`FrameSender::advance`] whenever the sender is readable. The receiver closes the connection of
//! a sender that is silent, or does not complete a frame, for the time that [`Options::silence`] gives. If the sender comes back, the stream goes on where it was. If another sender
//! with a stream of the same format comes, that one goes on instead, and its first block has
//! [`Lost::Unknown`](super::Lost::Unknown).

pub(in crate::stream) mod awaited;
mod conn;
mod options;
mod pieces;
mod pool;
mod receiver;
mod sender;
mod time;
pub(in crate::stream) mod transmit;
pub(in crate::stream) mod watch;
mod wire;

use std::io;
use std::net::{SocketAddr, TcpListener};

pub(crate) use self::conn::user_timeout;
pub use self::options::Options;
pub(crate) use self::receiver::Count;
pub use self::receiver::FrameReceiver;
pub use self::sender::FrameSender;

pub(crate) use self::pool::Pool;
#[cfg(feature = "usb")]
pub(crate) use self::wire::{Port, Wire};

/// Whether an address, `[HOST:]PORT` with options or without, has the name of a host, which has to be looked up.
pub(crate) fn has_name(address: &str) -> bool {
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    address.parse::<u16>().is_err() && address.parse::<SocketAddr>().is_err()
}

/// Listens on `[ADDRESS:]PORT`; without an address, on all of IPv6 and IPv4, as far as the kernel has them.
pub(super) fn bind(address: &str) -> io::Result<TcpListener> {
    match address.parse::<u16>() {
        Ok(port) => {
            TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        }
        Err(_) => TcpListener::bind(address),
    }
}

#[cfg(test)]
mod tests {
    use super::has_name;

    #[test]
    fn an_address_in_numbers_is_not_looked_up() {
        for address in ["1", "127.0.0.1:1", "[::1]:1", "[::1]:1?silence=5s"] {
            assert!(!has_name(address), "{address}");
        }
        for address in ["localhost:1", "a.name:1?silence=5s", "a.name"] {
            assert!(has_name(address), "{address}");
        }
    }
}
