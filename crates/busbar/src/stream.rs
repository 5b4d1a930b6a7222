//! Streams of samples: blocks that a converter fills or empties and nobody copies.
//!
//! A [`Source`] receives. It owns a few blocks ([`StreamSetup`]); the converter fills one after the
//! other, and [`Source::next`] hands out the oldest as a guard, [`Samples`], which goes back to the
//! driver when it is dropped. A [`Sink`] transmits: [`Sink::space`] is a block to fill, and
//! [`Sink::forward`] sends a received one as it is.
//!
//! ```
//! use busbar::stream::{Lost, StreamSetup, Source};
//!
//! # fn main() -> busbar::Result<()> {
//! let source = Source::open("synth:counter", &StreamSetup::default())?;
//! let samples = source.next()?;
//! assert_eq!((samples.meta().sequence, samples.meta().lost), (0, Lost::Samples(0)));
//! assert_eq!(samples.read()?.len(), 65536);
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//!
//! | name | stream |
//! |---|---|
//! | `iio:NAME`, `iio:iio:deviceN`, `iio:deviceN` | a device of Linux' Industrial I/O, by its name or number |
//! | `synth:counter`, `synth:sine`, `synth:noise` | made by the library, on any host; see [below](#synth) |
//!
//! # Samples as numbers
//!
//! [`Format::values`] takes one channel out of samples as `i16`, `i32`, `i64`, `f32` or `f64`, and
//! [`Format::pairs`] two of them as I and Q: `[f32; 2]`, for example. They know of lengths, shifts, signs
//! and orders of bytes. [`Source::scale`] asks the device how to make them into millivolts.
//!
//! # Interfaces
//!
//! [`Interface::Dmabuf`] is that of Linux 6.11 and later: blocks are DMABUFs, which the driver fills
//! in place. [`Interface::Fileio`] is `read` and `write`, which copy, for every driver and kernel.
//! Unless one is asked for, the first is taken where the driver and the host offer it, and otherwise
//! the second, with the same results. [`Source::copied`] tells how many bytes were copied.
//!
//! # Loss
//!
//! [`Meta::lost`] says how many samples are missing between the end of the block before and the end
//! of this one. It is known
//!
//! 1. from the channel `count0` where that is received: the converter numbers its samples, from 0
//!    when it is enabled, and counts those that it had to drop;
//! 2. else from the channel `timestamp`, where the device tells its rate and the times within a
//!    block agree with it;
//! 3. else from the data, where the device has an attribute `pattern` that says `counter` and 32
//!    bits or more of the counter are received;
//! 4. else not: [`Lost::Unknown`].
//!
//! The same three find the end of a block that the driver has not filled to the end: the kernel does
//! not tell how much of a DMABUF was filled. Without one of them, such a block has the full length,
//! and its end is what it was before.
//!
//! # Errors of single blocks
//!
//! If a driver says that a block has failed, [`Source::next`] fails with that error once; the
//! stream goes on, and the next block tells what was lost. A device that was stopped or unplugged
//! is an error of kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe), for good.
//!
//! Linux shows the error of a DMABUF only to who has asked before it was complete. That is done
//! right after the block is given to the driver; a converter that fails within these microseconds
//! is not caught by it, but by what finds short blocks, if anything does.
//!
//! # `synth:`
//!
//! `synth:PATTERN?KEY=VALUE&…` with these keys; numbers may end in `k`, `M` or `G`:
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `rate` | samples each second, or 0: as fast as blocks are fetched | 0 |
//! | `channels` | pairs of 16-bit values, I and Q: 1 or 2 | 2 |
//! | `frequency` | of the sine, as a part of the rate (below 1), or in hertz if there is a rate | 0.01 |
//! | `amplitude` | of the sine and the noise, 0 to 1 | 0.5 |
//!
//! The channels are named as those of `vconv`: `voltage0_i`, `voltage0_q`, `voltage1_i`,
//! `voltage1_q`, `count0`, `timestamp`. With a rate, it is a converter in every respect: blocks
//! fill one after the other as time goes by, and while none is queued, samples are lost.
//!
//! Pattern `counter` puts the number of the sample into the values, 16 bits in each, the lowest in
//! `voltage0_i`.

mod device;
mod dmabuf;
mod driver;
mod fileio;
pub mod frame;
mod iio;
mod loss;
pub mod net;
#[cfg(feature = "picture")]
pub mod picture;
mod scan;
pub mod sigmf;
mod sink;
mod source;
mod synth;
mod values;
pub mod verify;

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

pub use self::sink::{Filling, Sink, Space};
pub use self::source::{Parts, Samples, SamplesRead, Source};
pub use self::values::{Float, Number, Scale, Value, Values};

pub(crate) use self::source::Home;

use crate::block::Memory;
use crate::{Error, Result};

/// How a stream is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSetup {
    /// Blocks that the stream has, 1 to 1024.
    pub blocks: usize,
    /// Bytes of a block, up to 1 GiB; rounded down to whole samples, but at least one.
    pub block_len: usize,
    /// Where the blocks' memory is from; chosen if not given, see [`Memory::choose`].
    pub memory: Option<Memory>,
    /// How to talk to the driver; chosen if not given.
    pub interface: Option<Interface>,
    /// Names of channels, without `in_` or `out_`. Empty: all voltages, or if there are none, all
    /// but `timestamp`.
    pub channels: Vec<String>,
}

impl Default for StreamSetup {
    fn default() -> Self {
        Self { blocks: 4, block_len: 64 << 10, memory: None, interface: None, channels: Vec::new() }
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

    /// 4 blocks of 64 KiB, the rest chosen by the library.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`blocks`](Self#structfield.blocks).
    #[must_use]
    pub fn blocks(mut self, blocks: usize) -> Self {
        self.blocks = blocks;
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

    fn check(&self) -> Result<()> {
        if !(1..=Self::MAX_BLOCKS).contains(&self.blocks) {
            let allowed = format!("1 to {}", Self::MAX_BLOCKS);
            return Err(Error::invalid("the number of blocks", self.blocks, allowed));
        }
        if !(1..=Self::MAX_BLOCK_LEN).contains(&self.block_len) {
            let allowed = format!("1 to {} bytes", Self::MAX_BLOCK_LEN);
            return Err(Error::invalid("the length of a block", self.block_len, allowed));
        }
        Ok(())
    }
}

/// Writes an attribute of a device, `NAME` or `deviceN`, unless it has that value: what
/// `Documentation/ABI/testing/sysfs-bus-iio` and the driver allow.
///
/// # Errors
///
/// `ENODEV` where there is no such device, `ENOENT` where it has no such attribute, `EACCES`; what the
/// driver says: `EBUSY` for many while the device is used, `EINVAL`.
pub fn set_attribute(device: &str, attribute: &str, value: &str) -> Result<()> {
    device::set_attribute(device, attribute, value)
}

/// How a stream talks to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interface {
    /// Blocks that the driver fills or empties in place.
    Dmabuf,
    /// `read` and `write`.
    Fileio,
    /// No driver: the library makes the samples.
    Synth,
}

impl Interface {
    /// What the driver of a device, `NAME` or `deviceN`, offers. The device is not started.
    ///
    /// # Errors
    ///
    /// `ENODEV` where there is no such device or it has no buffer, `EBUSY` while somebody uses it.
    pub fn offered(device: &str) -> Result<Self> {
        iio::offered(device)
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dmabuf => "dmabuf",
            Self::Fileio => "fileio",
            Self::Synth => "synth",
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
            _ => Err(Error::invalid("an interface", name, "dmabuf, fileio, synth")),
        }
    }
}

/// One value of a sample, as IIO describes it (`Documentation/ABI/testing/sysfs-bus-iio`, `_type`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Such as `voltage0_i`.
    pub name: String,
    /// Whether the value is a two's complement.
    pub signed: bool,
    /// Valid bits.
    pub bits: u8,
    /// Bits that it takes up: 8, 16, 32 or 64 and more.
    pub storage_bits: u8,
    /// By how many bits it has to be shifted right.
    pub shift: u8,
    /// Whether the first byte is the most significant one.
    pub big_endian: bool,
    /// How many of them follow each other: 1 for all but vectors.
    pub repeat: u8,
    /// First byte in the sample.
    pub offset: usize,
}

impl Channel {
    /// Bytes that it takes up in the sample.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.storage_bits) / 8 * usize::from(self.repeat)
    }

    /// Whether it takes up no byte: never so for channels of an opened stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a sample looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    /// In the order in which they lie in the sample.
    pub channels: Vec<Channel>,
    /// Bytes of a sample, padding included; at least 1.
    pub sample_len: usize,
    /// Samples each second. `None` where it is not known, or the converter runs as fast as it can.
    pub rate: Option<f64>,
}

/// How many samples are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// So many; 0 means that it is known that there are none.
    Samples(u64),
    /// Neither the driver nor the data tells.
    Unknown,
}

/// What is known of a block of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Number of the block, from 0. Counts blocks that have failed, too.
    pub sequence: u64,
    /// When the block was complete.
    pub time: SystemTime,
    /// Samples that are missing between the end of the block before and the end of this one.
    pub lost: Lost,
    /// Bytes of samples: a multiple of a sample's.
    pub len: usize,
}
