//! Where clients are.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

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

/// Why a client was turned away, or its connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// All places of [`clients`](super::ServerSetup#structfield.clients), which are so many, are taken by clients that are busy.
    Full(usize),
    /// Its machine has so many of them, and the last ones are for machines that have fewer.
    Share(usize),
    /// It was idle, and another machine needed the place.
    Idle,
    /// It has not sent what it had begun, or nothing at all, for this time.
    Silent(Duration),
    /// It does not speak libiio's protocol, but HTTP or TLS, as a web browser does.
    Foreign,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(clients) => write!(f, "all {clients} places are taken"),
            Self::Share(clients) => {
                write!(f, "its machine has {clients} places, the others are for other machines")
            }
            Self::Idle => f.write_str("it was idle, and another machine needed its place"),
            Self::Silent(time) => {
                write!(f, "it did not send its command within {} s", time.as_secs_f64())
            }
            Self::Foreign => f.write_str("it spoke HTTP or TLS, not the protocol of libiio"),
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
