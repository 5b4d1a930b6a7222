//! Data from the network, received into a block.
//!
//! A [`Receiver`] has a [`Block`](crate::block::Block) into which data is received. A network device that
//! supports device-memory TCP ([`Receiver::open`]) writes the payload of TCP segments there, and no
//! processor copies it. On any host ([`Receiver::host`]), ordinary receive copies it there, once. The rest is
//! the same: a [`Listener`] accepts connections, or [`Receiver::connect`] makes them; a [`Connection`]
//! returns the stream as [`Piece`]s in order. A [`View`] is a part of the block; its memory is free for other
//! data when it is dropped. Streams of samples can be received in blocks this way, see
//! [`stream::net::FrameReceiver::over`](crate::stream::net::FrameReceiver::over).
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
//!         Piece::View(view) => view.read()?.bytes().append_to(&mut text),
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
//! Device-memory TCP needs a driver with header split, with queues to which memory can be bound, and with
//! n-tuple rules; a kernel with `CONFIG_NET_DEVMEM`; and `CAP_NET_ADMIN`. `vnic`, the virtual pair of this
//! project, works on any machine. [`Receiver::offered`] reports in advance what is missing.
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
//! [`Receiver::open`] switches on n-tuple rules and header split, keeps all other connections away from the
//! queues by the table of receive-side scaling, and binds the block to the queues. Each listener, and each
//! connection that was made by [`Receiver::connect`], adds a rule for its port. When the receiver is dropped,
//! also by a panic, or by [`Receiver::close`], which returns errors, all of that is undone in reverse, to the
//! settings that were found. A setting that another process, such as a second receiver, needs by then or has
//! changed since is left as it is. A rule is removed earlier, when the listener and all its connections are
//! dropped; an earlier rule for the same port is restored.
//!
//! If a process is killed, the kernel undoes only the binding. So a program has to catch `SIGINT` and
//! `SIGTERM` and to drop the receiver then, as `busbar receive` does. Signals do not end the waits of this
//! module; wait with a [`Poller`](crate::wait::Poller) that also has a descriptor of the crate `signal-hook`.
//! Settings that a killed process has left do not disturb the next one, which then takes them for those
//! that were there before.
//!
//! # Tokens
//!
//! Each view of device memory has a token, which is returned to the kernel after the view is dropped:
//! in batches, at the latest before [`Connection::next`] waits or finds nothing; at once while little
//! memory is free or no call receives. [`Tokens`] determines who records them.
//!
//! # When memory runs out
//!
//! Nothing is received into memory that views hold. If no memory is free, the device drops frames, and TCP
//! slows the sender down and repeats them; on a host without such a device the data waits
//! in the socket. Nothing is lost in either case. [`Statistics`] has how much is held, and how often that
//! happened. Connections by a device share three quarters of the block for data that was not received by the
//! program yet: many of them need a large block to be fast.

mod connection;
mod ethtool;
mod filled;
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
pub use self::view::{Piece, View};

use crate::{Error, Result};

/// How to use a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveSetup {
    /// Queues that receive into the block.
    pub queues: Queues,
    /// Who records tokens.
    pub tokens: Tokens,
}

impl ReceiveSetup {
    /// One queue, and the kernel's default for tokens.
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

/// Queues of a device. At least one queue has to remain for other connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queues {
    /// This many: those with the highest numbers that are not bound.
    Count(usize),
    /// Exactly these.
    These(Vec<u32>),
}

impl Default for Queues {
    fn default() -> Self {
        Self::Count(1)
    }
}

/// `N`: this many; `A,B,…` and `A-B`: exactly these.
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

/// Who records which tokens of a binding are in use. When a connection is closed, the kernel takes back all
/// of its tokens in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tokens {
    /// The kernel's default: [`Index`](Self::Index) if it has that, else
    /// [`Autorelease`](Self::Autorelease).
    #[default]
    Default,
    /// A token is a page index; the binding counts the uses of each page. This needs a kernel with Busbar's
    /// patches.
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

/// The kernel's support of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Whether queues can be bound to a block. `None`: this can be found out only with `CAP_NET_ADMIN`, and on
    /// Linux 7.3 only with a device that is up and has such queues.
    pub binds: Option<bool>,
    /// Whether it has [`Tokens::Index`].
    pub has_index_tokens: bool,
}

impl Offer {
    /// Asks the kernel. This needs no privilege.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it does not have the netlink family `netdev`.
    pub fn ask() -> Result<Self> {
        netdev::Netdev::open()?.offer()
    }
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes that were received.
    pub bytes: u64,
    /// Bytes of these that a processor has copied: all without a device, else those outside the block.
    pub copied: u64,
    /// Views that exist. Each has its own token, unless it was cut in two.
    pub views: usize,
    /// Bytes of the block that views hold, in whole pages.
    pub held: usize,
    /// Length of the block in bytes.
    pub memory: usize,
    /// How often memory was short: frames that the device has dropped for that reason, or times that data
    /// had to wait. `None` if the driver does not count.
    pub shortages: Option<u64>,
    /// Calls in which tokens were returned.
    pub returns: u64,
    /// Tokens that the kernel has refused to take back.
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
