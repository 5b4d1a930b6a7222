//! Data from the network that lands in a block.
//!
//! A [`Receiver`] has a [`Block`](crate::block::Block) into which data is received. From a network
//! device that can do it ([`Receiver::open`]), the payload of TCP goes there by itself and no
//! processor touches it: device-memory TCP. On any host ([`Receiver::host`]), ordinary receive copies
//! it there, once. What follows is the same: a [`Listener`] accepts, or [`Receiver::connect`] calls; a
//! [`Connection`] hands out the stream as [`Piece`]s in their order. A [`View`] is a part of the block,
//! and its memory is free for other data when it is dropped. Streams of samples come in blocks that way,
//! see [`stream::net::FrameReceiver::over`](crate::stream::net::FrameReceiver::over).
//!
//! ```
//! use std::io::Write;
//! use std::net::TcpStream;
//!
//! use busbar::block::{Block, Memory};
//! use busbar::receive::{Piece, Receiver};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let receiver = Receiver::host(Block::with(1 << 20, &Memory::Memfd)?)?;
//! let listener = receiver.listen("127.0.0.1:0".parse()?)?;
//!
//! TcpStream::connect(listener.local_addr()?)?.write_all(b"hello")?;
//!
//! let mut connection = listener.accept()?;
//! let mut text = Vec::new();
//! while let Some(piece) = connection.next()? {
//!     match piece {
//!         Piece::View(view) => text.extend_from_slice(&*view.read()?),
//!         Piece::Bytes(bytes) => text.extend(bytes),
//!     }
//! }
//! assert_eq!(text, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Devices
//!
//! A device needs a driver that keeps headers and data apart, has queues that can be given memory on
//! their own, and n-tuple rules; a kernel with `CONFIG_NET_DEVMEM`; and `CAP_NET_ADMIN`. `vnic`, the
//! virtual pair of this project, is one that everybody has. [`Receiver::offered`] tells beforehand
//! what is missing.
//!
//! ```no_run
//! use busbar::block::{Block, Memory};
//! use busbar::receive::{Queues, Receiver, ReceiveSetup};
//!
//! # fn main() -> busbar::Result<()> {
//! let block = Block::with(32 << 20, &Memory::Pages)?;
//! let setup = ReceiveSetup::new().queues(Queues::Count(2));
//! let receiver = Receiver::open("nic0", block, &setup)?;
//! let listener = receiver.listen(([0, 0, 0, 0], 5201).into())?;
//! # Ok(())
//! # }
//! ```
//!
//! # Settings, and how they are undone
//!
//! [`Receiver::open`] switches on n-tuple rules and the splitting of headers, keeps all other
//! connections away from the queues by the table of receive-side scaling, and binds the block to the
//! queues. Each listener, and each connection that was called from here, adds a rule for its port.
//! When the receiver is dropped, at a panic too, or by [`Receiver::close`], which tells of errors, all
//! of that is undone in reverse, to what was found: but for what somebody else needs by then, a second
//! receiver for example, or has changed since. A rule goes earlier when the listener and all its
//! connections are dropped; one that was there for the same port is put back.
//!
//! The kernel itself undoes only the binding when a process is killed. So a program has to catch
//! `SIGINT` and `SIGTERM` and to drop the receiver then, as `busbar receive` does: no wait of this
//! module ends with a signal, but one with a [`Poller`](crate::wait::Poller) does that has a descriptor
//! of the crate `signal-hook`. What a killed process has left does not hinder the next one, which then
//! takes it for what was there before.
//!
//! # Tokens
//!
//! Each view of device memory has a token, which is returned to the kernel when the view is dropped:
//! in batches, at the latest before [`Connection::next`] waits or finds nothing; at once while little
//! memory is free or nobody receives. [`Tokens`] says who keeps the account.
//!
//! # When memory runs out
//!
//! Memory that views hold is not received into. If nothing is free, the device drops frames and the
//! sender, as TCP is made, slows down and repeats them; on a host without such a device the data waits
//! in the socket. Nothing is lost either way. [`Statistics`] tells how much is held, and how often that
//! happened. Connections by a device share three quarters of the block for what nobody has received yet:
//! many of them need a large block to be fast.

mod connection;
mod ethtool;
mod fragments;
mod host;
mod listener;
mod memory;
mod netdev;
mod nic;
mod pages;
mod receiver;
mod rule;
mod settings;
mod share;
mod tokens;
mod view;

use std::fmt;
use std::str::FromStr;

pub use self::connection::Connection;
pub use self::listener::Listener;
pub use self::receiver::Receiver;
pub use self::view::{Piece, Reading, View};

use crate::{Error, Result};

/// How a device is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveSetup {
    /// Queues that receive into the block.
    pub queues: Queues,
    /// Who keeps the account of tokens.
    pub tokens: Tokens,
}

impl ReceiveSetup {
    /// One queue, and tokens as the kernel has them unless told.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`queues`](Self#structfield.queues).
    #[must_use]
    pub fn queues(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// Sets [`tokens`](Self#structfield.tokens).
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }
}

/// Queues of a device. At least one has to be left for everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queues {
    /// So many, those with the highest numbers that are not bound.
    Count(usize),
    /// These.
    These(Vec<u32>),
}

impl Default for Queues {
    fn default() -> Self {
        Self::Count(1)
    }
}

/// `N`: so many; `A,B,…` and `A-B`: these.
impl FromStr for Queues {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        /// More than any device has.
        const MOST: u32 = 4096;
        let bad = || {
            let allowed = "a number of queues, or a list such as 8,9 or 8-15 (8-8 for one)";
            Error::invalid("the queues", text, allowed)
        };
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < MOST);
        if let Some(count) = number(text) {
            return Ok(Self::Count(count as usize));
        }
        let range = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(number(from)?..=number(to)?)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let queues: Vec<u32> = ranges.ok_or_else(bad)?.into_iter().flatten().collect();
        if queues.is_empty() { Err(bad()) } else { Ok(Self::These(queues)) }
    }
}

/// Who keeps the account of the tokens of a binding. What a connection has not returned comes back
/// when it is closed, whoever does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tokens {
    /// As the kernel does unless told: [`Index`](Self::Index) where it can, else
    /// [`Autorelease`](Self::Autorelease).
    #[default]
    Default,
    /// A token is the number of a page, counted in the binding. Takes a kernel with Busbar's patches.
    Index,
    /// Each socket has a table of its tokens.
    Autorelease,
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Index => "index",
            Self::Autorelease => "autorelease",
        })
    }
}

impl FromStr for Tokens {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "default" => Ok(Self::Default),
            "index" => Ok(Self::Index),
            "autorelease" => Ok(Self::Autorelease),
            _ => Err(Error::invalid("the tokens", name, "default, index, autorelease")),
        }
    }
}

/// What this kernel can do with device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Whether queues can be bound to a block. `None`: it tells only who has `CAP_NET_ADMIN`.
    pub binds: Option<bool>,
    /// Whether it has [`Tokens::Index`].
    pub has_index_tokens: bool,
}

impl Offer {
    /// Asks the kernel. Needs no privilege.
    ///
    /// # Errors
    ///
    /// `ENOENT` where it does not know the netlink family `netdev`.
    pub fn ask() -> Result<Self> {
        netdev::Netdev::open()?.offer()
    }
}

/// What a receiver has done and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that were received.
    pub bytes: u64,
    /// Bytes of them that a processor has copied: all without a device, else those outside the block.
    pub copied: u64,
    /// Views that are out. Each has a token of its own, unless it was cut in two.
    pub views: usize,
    /// Bytes of the block that views hold, in whole pages.
    pub held: usize,
    /// Bytes of the block.
    pub memory: usize,
    /// How often memory was short: frames that the device has dropped for that, or times that data
    /// had to wait. `None` where the driver does not count.
    pub shortages: Option<u64>,
    /// Calls in which tokens were returned.
    pub returns: u64,
    /// Tokens that the kernel did not take back.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_a_number_or_a_list() {
        let these = |text: &str| match text.parse() {
            Ok(Queues::These(queues)) => queues,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!("4".parse::<Queues>().unwrap(), Queues::Count(4));
        assert_eq!(these("8,9"), [8, 9]);
        assert_eq!(these("12-15"), [12, 13, 14, 15]);
        assert_eq!(these("8-8"), [8]);
        assert_eq!(these("1,4-5"), [1, 4, 5]);
        for bad in ["", ",", "a", "-1", "1-", "5-4", "1,", "0-4294967295", "99999"] {
            let error = bad.parse::<Queues>().unwrap_err().to_string();
            assert!(error.contains("8-15"), "{bad}: {error}");
        }
    }

    #[test]
    fn tokens_have_names() {
        for tokens in [Tokens::Default, Tokens::Index, Tokens::Autorelease] {
            assert_eq!(tokens.to_string().parse::<Tokens>().unwrap(), tokens);
        }
        assert!("xarray".parse::<Tokens>().unwrap_err().to_string().contains("autorelease"));
    }
}
