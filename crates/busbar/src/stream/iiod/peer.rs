//! Where clients are.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A client of a [`Server`](super::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// One that has connected from this address.
    Net(SocketAddr),
    /// The USB host, by this pipe.
    Usb(u8),
}

/// The machine of clients, which have their losses and settings in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Machine {
    /// That with this address.
    Net(IpAddr),
    /// The USB host.
    Usb,
}

impl Peer {
    /// Its machine.
    #[must_use]
    pub fn machine(self) -> Machine {
        match self {
            Self::Net(address) => Machine::Net(address.ip().to_canonical()),
            Self::Usb(_) => Machine::Usb,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(address) => address.fmt(f),
            Self::Usb(pipe) => write!(f, "usb:{pipe}"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(address) => address.fmt(f),
            Self::Usb => f.write_str("usb"),
        }
    }
}
