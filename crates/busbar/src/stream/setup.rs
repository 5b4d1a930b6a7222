//! How a stream is opened.

use std::fmt;
use std::str::FromStr;

use crate::block::Memory;
use crate::{Error, Result};

/// How a stream is opened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StreamSetup {
    /// Number of blocks, 1 to 1024. `None`: as many as have a megabyte together, at least 4 and at most 64.
    pub blocks: Option<usize>,
    /// Bytes of a block, up to 1 GiB; rounded down to whole samples, at least one sample.
    pub block_len: usize,
    /// The memory of the blocks. `None`: [`Memory::choose`] chooses it.
    pub memory: Option<Memory>,
    /// The interface to the driver. `None`: the best that the driver and the host offer.
    pub interface: Option<Interface>,
    /// Names of channels, without `in_` or `out_`. Empty: all voltages, or if there are none, all
    /// but `timestamp`.
    pub channels: Vec<String>,
    /// Samples per second of a sink that is no device, such as `file:`. `None`: not known.
    pub rate: Option<f64>,
}

impl Default for StreamSetup {
    fn default() -> Self {
        Self {
            blocks: None,
            block_len: 64 << 10,
            memory: None,
            interface: None,
            channels: Vec::new(),
            rate: None,
        }
    }
}

/// ```
/// use busbar::stream::StreamSetup;
///
/// let setup = StreamSetup::new().blocks(8).block_len(1 << 20).channels(["voltage0_i", "voltage0_q"]);
/// ```
impl StreamSetup {
    pub(crate) const MAX_BLOCKS: usize = 1024;
    const MAX_BLOCK_LEN: usize = 1 << 30;
    /// Bytes of all blocks by default.
    const ENOUGH: usize = 1 << 20;

    /// Blocks of 64 KiB; the library chooses the rest.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
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

    /// Sets [`rate`](Self#structfield.rate).
    #[must_use]
    pub fn rate(mut self, rate: impl Into<Option<f64>>) -> Self {
        self.rate = rate.into();
        self
    }

    /// How many blocks of a length are enough: while some are filled, others wait, are under way, or come back. Short
    /// ones are many, so that a turn of the program has work for a while.
    pub(crate) fn enough(block_len: usize) -> usize {
        (Self::ENOUGH / block_len.max(1)).clamp(4, 64)
    }

    /// The same for each of several destinations of one source: they share what is [enough](Self::enough), since
    /// each block takes descriptors, of which a process has 1024.
    pub(crate) fn enough_of(block_len: usize, destinations: usize) -> usize {
        (Self::enough(block_len) / destinations.max(1)).max(4)
    }

    /// The number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.unwrap_or_else(|| Self::enough(self.block_len))
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Some(blocks) = self.blocks
            && !(1..=Self::MAX_BLOCKS).contains(&blocks)
        {
            let allowed = format!("1 to {}", Self::MAX_BLOCKS);
            return Err(Error::invalid("the number of blocks", blocks, allowed));
        }
        if !(1..=Self::MAX_BLOCK_LEN).contains(&self.block_len) {
            let allowed = format!("1 to {} bytes", Self::MAX_BLOCK_LEN);
            return Err(Error::invalid("the length of a block", self.block_len, allowed));
        }
        if let Some(rate) = self.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(Error::invalid("the rate", rate, "a number above 0"));
        }
        Ok(())
    }

    /// A device has a rate of its own.
    pub(super) fn expect_no_rate(&self) -> Result<()> {
        let allowed = "none: a source or a device has one of its own";
        self.rate.map_or(Ok(()), |rate| Err(Error::invalid("the rate", rate, allowed)))
    }

    /// That no other interface than this one is asked for.
    pub(super) fn expect_interface(&self, only: Interface) -> Result<()> {
        let other = self.interface.filter(|asked| *asked != only);
        other.map_or(Ok(()), |asked| Err(Error::invalid("the interface", asked, only)))
    }
}

/// How a stream talks to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interface {
    /// Blocks that the driver fills or empties in place.
    Dmabuf,
    /// `read` and `write`.
    Fileio,
    /// No driver: the library computes the samples.
    Synth,
    /// The network, from or to a server of libiio's protocol.
    Iiod,
    /// No driver: the library itself plays, records, sends, receives, verifies or discards samples.
    Library,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dmabuf => "dmabuf",
            Self::Fileio => "fileio",
            Self::Synth => "synth",
            Self::Iiod => "iiod",
            Self::Library => "library",
        })
    }
}

impl FromStr for Interface {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "dmabuf" => Ok(Self::Dmabuf),
            "fileio" => Ok(Self::Fileio),
            "synth" => Ok(Self::Synth),
            "iiod" => Ok(Self::Iiod),
            "library" => Ok(Self::Library),
            _ => Err(Error::invalid("an interface", name, "dmabuf, fileio, synth, iiod, library")),
        }
    }
}
