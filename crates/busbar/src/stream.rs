//! Streams of samples, in blocks that a converter fills or empties in place.
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
//! assert_eq!(samples.read()?.bytes().len(), 65536);
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//!
//! | name | stream |
//! |---|---|
//! | `iio:NAME`, `iio:iio:deviceN`, `iio:deviceN` | a device of Linux' Industrial I/O, by its name or number |
//! | `iio:NAME@ip:HOST[:PORT]` | a device of another machine, which `iiod` or `busbar serve` serves; feature `iiod` |
//! | `file:NAME` | a `SigMF` recording, to play as fast as its blocks are taken, or to make. An existing one is not overwritten |
//! | `tcp-listen:[HOST:]PORT` | to receive from: [frames](net) of a sender; opening waits for the first one |
//! | `tcp:HOST:PORT` | to transmit to: such a receiver |
//! | `verify:counter`, `verify:`, `null:` | to transmit to: samples are [verified](verify::Counter), or discarded |
//! | `synth:counter`, `synth:sine`, `synth:noise` | made by the library, on any host; see [below](#synth) |
//!
//! A name of another machine can end in `?silence=TIME`, such as `iio:adc@ip:pluto?silence=10s`: how long the peer may
//! send nothing, and take nothing of what waits for it, before the stream fails. Without it there is a limit as well:
//!
//! | name | default |
//! |---|---|
//! | `iio:NAME@ip:HOST`, receiving | 5 s, or the time of three blocks and 2.5 s if that is longer |
//! | `iio:NAME@ip:HOST`, transmitting | the time of four blocks, or a minute if the device tells no rate, and 7.5 s |
//! | `tcp:`, `tcp-listen:` | 10 s, at least 3 s; see [`net::Options::silence`] |
//!
//! # Samples as numbers
//!
//! [`Format::values`] takes one channel out of samples as `i16`, `i32`, `i64`, `f32` or `f64`, and
//! [`Format::pairs`] two of them as I and Q: `[f32; 2]`, for example. They handle lengths, shifts, signs
//! and byte orders. [`Source::scale`] asks the device how to convert them into millivolts.
//!
//! # Interfaces
//!
//! [`Interface::Dmabuf`] is that of Linux 6.11 and later: blocks are DMABUFs, which the driver fills
//! in place. [`Interface::Fileio`] is `read` and `write`, which copy, for every driver and kernel.
//! Unless [`StreamSetup`] names one, DMABUFs are used where the driver and the host offer them, and
//! `read` and `write` otherwise, with the same results. [`Source::copied`] counts the bytes copied.
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
//! 4. otherwise it is not known: [`Lost::Unknown`].
//!
//! The same three find the end of a block that the driver has not filled to the end: the kernel does
//! not tell how much of a DMABUF was filled. Without one of them, such a block is handed out with its
//! full length, and its end holds older data.
//!
//! # Errors of single blocks
//!
//! If a driver reports an error for a block, [`Source::next`] returns it once; the stream goes on, and
//! the next block says what was lost. Once a device was stopped or unplugged, every call returns an
//! error of kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
//!
//! Linux reports the error of a DMABUF only through a fence that was taken before the transfer ended.
//! The library takes the fence right after it has given the block to the driver. An error within these
//! microseconds is missed; the block then counts as a short one, see [above](#loss).
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
//! `voltage1_q`, `count0`, `timestamp`. With a rate, it behaves like a converter: blocks fill one
//! after the other as time goes by, and while none is queued, samples are lost.
//!
//! Pattern `counter` puts the number of the sample into the values, 16 bits in each, the lowest in
//! `voltage0_i`.

mod about;
mod clock;
mod crc;
mod device;
mod dmabuf;
mod driver;
mod feed;
mod fileio;
mod format;
pub mod frame;
mod iio;
#[cfg(feature = "iiod")]
pub mod iiod;
mod loss;
pub mod net;
#[cfg(feature = "picture")]
pub mod picture;
mod samples;
mod scan;
mod setup;
mod shared;
pub mod sigmf;
pub(crate) mod silence;
mod sink;
mod source;
mod synth;
#[cfg(feature = "usb")]
pub mod usb;
mod values;
pub mod verify;

pub use self::format::{Channel, Format, Lost, Meta};
pub use self::samples::{Parts, Samples, SamplesRead};
pub use self::setup::{Interface, StreamSetup};
pub use self::sink::{Sink, Space};
pub use self::source::Source;
pub use self::values::{Float, Number, Scale, Value, Values};

use crate::Result;

/// The value of an attribute of a device, `NAME`, `deviceN` or `NAME@ip:HOST[:PORT]`, without the newline at its end.
///
/// # Errors
///
/// As [`set_attribute`].
pub fn attribute(device: &str, attribute: &str) -> Result<String> {
    #[cfg(feature = "iiod")]
    if let Some(remote) = iiod::remote::Remote::of(device) {
        return remote.get(attribute);
    }
    device::get_attribute(device, attribute)
}

/// Writes a value to an attribute of a device, `NAME`, `deviceN` or `NAME@ip:HOST[:PORT]`, also one that the attribute has
/// already: a driver may calibrate anew. `Documentation/ABI/testing/sysfs-bus-iio` and the driver define the attributes
/// and their values. For many attributes of another machine, `iiod::Devices` keeps one connection.
///
/// # Errors
///
/// `ENOENT` if there is no such device or attribute; `EACCES`; what the driver returns, such as `EINVAL`,
/// or `EBUSY` while the device is used, unless the attribute has the value already.
pub fn set_attribute(device: &str, attribute: &str, value: &str) -> Result<()> {
    #[cfg(feature = "iiod")]
    if let Some(remote) = iiod::remote::Remote::of(device) {
        return remote.set(attribute, value);
    }
    device::set_attribute(device, attribute, value)
}
