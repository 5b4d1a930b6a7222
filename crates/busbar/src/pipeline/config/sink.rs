//! Sinks.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::edge::Edge;
use crate::block::Memory;
use crate::bulk::Transport;
use crate::stream::{Interface, iiod, net};
use crate::{Error, Result};

const SINKS: &str = "iio:NAME, iio:NAME@ip:HOST, tcp:HOST:PORT, iiod:[[ADDRESS:]PORT], file:NAME, \
     usb: (this machine is the device), usb:VID:PID[:SERIAL], endpoint:SERVICE, bulk:TRANSPORT, null:, verify:, \
     verify:counter";

/// A sink of samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SinkConfig {
    /// Its name.
    pub name: String,
    /// The edge that its samples come from.
    pub input: Edge,
    /// Where they go to.
    pub to: SinkKind,
    /// Number of blocks of a converter, 1 to 1024. `None`: as [`StreamSetup::blocks`](crate::stream::StreamSetup#structfield.blocks).
    pub blocks: Option<usize>,
    /// Memory of the blocks of a converter. `None`: the best.
    pub memory: Option<Memory>,
    /// Interface to a converter. `None`: the best that its driver and the host offer.
    pub interface: Option<Interface>,
    /// As [`SourceConfig::patience`](super::SourceConfig#structfield.patience).
    pub patience: Option<Duration>,
    /// Whether a server, `iiod:`, is announced on the local network. At first it is not. Needs the cargo feature
    /// `dns-sd`.
    pub announce: bool,
}

/// The kind of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkKind {
    /// `iio:NAME`, or `iio:NAME@ip:HOST[:PORT]` for a device of another machine.
    Device(String),
    /// `tcp:HOST:PORT`.
    Connect(String),
    /// `iiod:[[ADDRESS:]PORT]`: a server of libiio's protocol, see [`iiod`](crate::stream::iiod).
    Iiod(String),
    /// `file:NAME`, a recording in the format `SigMF`.
    Recording(PathBuf),
    /// `usb:…`: frames, or samples alone, over USB, see [`stream::usb`](crate::stream::usb).
    #[cfg(feature = "usb")]
    Usb(crate::stream::usb::Address),
    /// `endpoint:SERVICE`: messages to a coprocessor, whole samples each.
    Endpoint(String),
    /// `bulk:TRANSPORT`: blocks to a coprocessor, see [`bulk`](crate::bulk).
    Bulk(Transport),
    /// `null:`, which discards samples.
    Null,
    /// `verify:counter`, or `verify:` for check sums alone: a wrong sample is an error.
    Verify {
        /// Whether samples have to be the counter pattern.
        counter: bool,
    },
}

impl SinkConfig {
    /// A sink with the other fields left to the pipeline.
    #[must_use]
    pub fn new(name: impl Into<String>, input: Edge, to: SinkKind) -> Self {
        Self {
            name: name.into(),
            input,
            to,
            blocks: None,
            memory: None,
            interface: None,
            patience: None,
            announce: false,
        }
    }

    /// Sets [`blocks`](Self#structfield.blocks).
    #[must_use]
    pub fn blocks(mut self, blocks: impl Into<Option<usize>>) -> Self {
        self.blocks = blocks.into();
        self
    }

    /// Sets [`memory`](Self#structfield.memory).
    #[must_use]
    pub fn memory(mut self, memory: impl Into<Option<Memory>>) -> Self {
        self.memory = memory.into();
        self
    }

    /// Sets [`interface`](Self#structfield.interface).
    #[must_use]
    pub fn interface(mut self, interface: impl Into<Option<Interface>>) -> Self {
        self.interface = interface.into();
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }

    /// Sets [`announce`](Self#structfield.announce).
    #[must_use]
    pub fn announce(mut self, announce: bool) -> Self {
        self.announce = announce;
        self
    }
}

impl SinkKind {
    /// Whether it is a device of another machine.
    pub(in crate::pipeline) fn is_remote(&self) -> bool {
        matches!(self, Self::Device(name) if iiod::is_remote(name))
    }

    /// Whether opening it may wait for a name or for another machine.
    pub(in crate::pipeline) fn may_wait(&self) -> bool {
        match self {
            Self::Connect(address) | Self::Iiod(address) => net::has_name(address),
            _ => self.is_remote(),
        }
    }
}

impl FromStr for SinkKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        #[cfg(feature = "usb")]
        if let Some(address) = text.strip_prefix("usb:") {
            return address.parse().map(Self::Usb);
        }
        if let Some(address) = text.strip_prefix("tcp:") {
            net::Options::default().of_name(address)?;
        }
        iiod::check_name(text)?;
        let known = text.split_once(':').and_then(|(kind, rest)| match (kind, rest) {
            ("null", "") => Some(Self::Null),
            ("verify", "") => Some(Self::Verify { counter: false }),
            ("verify", "counter") => Some(Self::Verify { counter: true }),
            ("iiod", "") => Some(Self::Iiod(iiod::PORT.to_string())),
            ("iiod", listen) => Some(Self::Iiod(listen.into())),
            (_, "") => None,
            ("iio", _) => Some(Self::Device(text.into())),
            ("tcp", address) if address.contains(':') => Some(Self::Connect(address.into())),
            ("file", path) => Some(Self::Recording(path.into())),
            ("endpoint", service) => Some(Self::Endpoint(service.into())),
            ("bulk", transport) => transport.parse().ok().map(Self::Bulk),
            _ => None,
        });
        known.ok_or_else(|| Error::invalid("a sink", text.escape_debug(), SINKS))
    }
}
