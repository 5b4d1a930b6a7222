//! Sources.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::block::Memory;
use crate::stream::sigmf::Datatype;
use crate::stream::{Interface, iiod, net};
use crate::{Error, Result};

const SOURCES: &str = "iio:NAME, synth:PATTERN, tcp-listen:[HOST:]PORT, \
     receive:DEVICE:ADDRESS:PORT (host for the device: ordinary receive), file:NAME, \
     usb:VID:PID[:SERIAL], usb: (this machine is the device), \
     endpoint:SERVICE?type=ci16_le&channels=1";
/// A source of samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SourceConfig {
    /// Its name.
    pub name: String,
    /// Where its samples come from.
    pub from: SourceKind,
    /// Number of blocks, 1 to 1024. `None`: as many as the edges behind it need.
    pub blocks: Option<usize>,
    /// Bytes of a block.
    pub block_len: usize,
    /// Memory of the blocks. `None`: the best for the sinks.
    pub memory: Option<Memory>,
    /// Interface to a converter. `None`: the best that its driver and the host offer.
    pub interface: Option<Interface>,
    /// Channels of a converter. Empty: all voltages.
    pub channels: Vec<String>,
    /// Number of samples, from 1 on: the source ends after the block that reaches it. `None`: it does not
    /// end.
    pub count: Option<u64>,
    /// How long to try to open it again after a failure before that is an error. `None`: without a limit.
    pub patience: Option<Duration>,
    /// Most bytes of all blocks for a sender, see
    /// [`Options::memory_limit`](crate::stream::net::Options::memory_limit). `None`: its default.
    pub memory_limit: Option<usize>,
}

/// The kind of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceKind {
    /// `iio:NAME` or `synth:PATTERN`, see [`stream`](crate::stream#names).
    Device(String),
    /// `tcp-listen:[HOST:]PORT`.
    Listen(String),
    /// `receive:DEVICE:ADDRESS:PORT`, or `host` for the device: frames by
    /// [`receive`](crate::receive).
    Receive {
        /// The network device; `None` for ordinary receive.
        device: Option<String>,
        /// The address to listen on.
        address: SocketAddr,
    },
    /// `file:NAME`, a recording in the format `SigMF`.
    Recording(PathBuf),
    /// `usb:…`: frames over USB, see [`stream::usb`](crate::stream::usb).
    #[cfg(feature = "usb")]
    Usb(crate::stream::usb::Address),
    /// `endpoint:SERVICE?type=TYPE&channels=N`: messages of a coprocessor, whole samples each.
    Endpoint {
        /// The service.
        service: String,
        /// The type of a value.
        datatype: Datatype,
        /// Number of channels; a channel of a complex type has two values.
        channels: usize,
    },
}

impl SourceConfig {
    /// A source with blocks of 64 KiB, the rest left to the pipeline.
    #[must_use]
    pub fn new(name: impl Into<String>, from: SourceKind) -> Self {
        Self {
            name: name.into(),
            from,
            blocks: None,
            block_len: 64 << 10,
            memory: None,
            interface: None,
            channels: Vec::new(),
            count: None,
            patience: None,
            memory_limit: None,
        }
    }

    /// Sets [`blocks`](Self#structfield.blocks).
    #[must_use]
    pub fn blocks(mut self, blocks: impl Into<Option<usize>>) -> Self {
        self.blocks = blocks.into();
        self
    }

    /// Sets [`block_len`](Self#structfield.block_len).
    #[must_use]
    pub fn block_len(mut self, block_len: usize) -> Self {
        self.block_len = block_len;
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

    /// Sets [`channels`](Self#structfield.channels).
    #[must_use]
    pub fn channels<T: Into<String>>(mut self, channels: impl IntoIterator<Item = T>) -> Self {
        self.channels = channels.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`count`](Self#structfield.count).
    #[must_use]
    pub fn count(mut self, count: impl Into<Option<u64>>) -> Self {
        self.count = count.into();
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }

    /// Sets [`memory_limit`](Self#structfield.memory_limit).
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: impl Into<Option<usize>>) -> Self {
        self.memory_limit = memory_limit.into();
        self
    }
}

impl SourceKind {
    /// Whether opening it may wait for a name or for another machine.
    pub(in crate::pipeline) fn may_wait(&self) -> bool {
        match self {
            Self::Device(name) => iiod::is_remote(name),
            Self::Listen(address) => net::has_name(address),
            _ => false,
        }
    }
}

impl FromStr for SourceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        #[cfg(feature = "usb")]
        if let Some(address) = text.strip_prefix("usb:") {
            return framed(address).map(Self::Usb);
        }
        if let Some(address) = text.strip_prefix("tcp-listen:") {
            net::Options::default().of_name(address)?;
        }
        iiod::check_name(text)?;
        let known = text.split_once(':').and_then(|(kind, rest)| match kind {
            "iio" | "synth" if !rest.is_empty() => Some(Self::Device(text.into())),
            "tcp-listen" if !rest.is_empty() => Some(Self::Listen(rest.into())),
            "file" if !rest.is_empty() => Some(Self::Recording(rest.into())),
            "receive" => receive(rest),
            "endpoint" => endpoint(rest),
            _ => None,
        });
        known.ok_or_else(|| Error::invalid("a source", text.escape_debug(), SOURCES))
    }
}

/// A USB connection with frames: samples alone do not tell their format.
#[cfg(feature = "usb")]
fn framed(rest: &str) -> Result<crate::stream::usb::Address> {
    use crate::stream::usb::Address;
    match rest.parse()? {
        Address::Gadget(gadget) if gadget.raw => {
            let shown = format!("usb:{}", rest.escape_debug());
            Err(Error::invalid("a source", shown, "a USB connection without `raw`"))
        }
        address => Ok(address),
    }
}

/// `DEVICE:ADDRESS:PORT`.
fn receive(rest: &str) -> Option<SourceKind> {
    let (device, address) = rest.split_once(':')?;
    let address = address.parse().ok()?;
    match device {
        "" => None,
        "host" => Some(SourceKind::Receive { device: None, address }),
        device => Some(SourceKind::Receive { device: Some(device.into()), address }),
    }
}

/// `SERVICE?type=TYPE&channels=N`, both of them optional.
fn endpoint(rest: &str) -> Option<SourceKind> {
    let (service, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut datatype, mut channels) = ("ci16_le", 1);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("type", value) => datatype = value,
            ("channels", value) => channels = value.parse().ok()?,
            _ => return None,
        }
    }
    let datatype = datatype.parse().ok()?;
    let fits = !service.is_empty() && (1..=16).contains(&channels);
    fits.then(|| SourceKind::Endpoint { service: service.into(), datatype, channels })
}
