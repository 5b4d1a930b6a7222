//! The description of a stream.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::field::{bad, require};
use super::header::{Header, Kind, MAX_DATA};
use crate::stream::format::{Channel, Format};
use crate::{Error, Result};

/// Most channels of a sample.
const MAX_CHANNELS: usize = 256;
/// Bytes of the longest name of a channel.
const MAX_NAME: usize = 64;
/// Bytes of the longest sample.
const MAX_SAMPLE: usize = 4096;
/// Most bits of a value.
const MAX_BITS: u8 = 248;

/// The longest time that is computed from what a sender tells.
const LONGEST: Duration = Duration::from_secs(3600);

/// The description of a stream: the payload of the sender's first frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// What a sample looks like.
    pub format: Format,
    /// Bytes of the longest block.
    pub block_len: u32,
}

/// A [`Hello`] as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    block_len: u32,
    sample_len: usize,
    rate: Option<f64>,
    channels: Vec<ChannelBody>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelBody {
    name: String,
    signed: bool,
    bits: u8,
    storage_bits: u8,
    shift: u8,
    big_endian: bool,
    repeat: u8,
    offset: usize,
}

impl Hello {
    /// Bytes of the longest block.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.block_len).unwrap_or(usize::MAX)
    }

    /// How long the samples of the longest block take, if the sender tells its rate: an hour at most.
    pub(crate) fn block_time(&self) -> Option<Duration> {
        let Format { sample_len, rate, .. } = &self.format;
        // An estimate.
        #[allow(clippy::cast_precision_loss)]
        let seconds = (self.len() / sample_len.max(&1)) as f64 / (*rate)?;
        Some(Duration::try_from_secs_f64(seconds).map_or(LONGEST, |time| time.min(LONGEST)))
    }

    /// Encodes the payload.
    ///
    /// # Errors
    ///
    /// Bad input if it is longer than [`MAX_HELLO`](super::MAX_HELLO), or what [`decode`](Self::decode)
    /// refuses.
    pub fn encode(&self) -> Result<Vec<u8>> {
        verify(self)?;
        let Format { channels, sample_len, rate } = &self.format;
        let body = Body {
            block_len: self.block_len,
            sample_len: *sample_len,
            rate: *rate,
            channels: channels.iter().map(ChannelBody::from).collect(),
        };
        let bytes = serde_json::to_vec(&body).map_err(|why| {
            Error::new("write", "the hello of a stream", std::io::Error::from(why))
        })?;
        Header::payload_len(Kind::Hello, bytes.len())?;
        Ok(bytes)
    }

    /// Decodes the payload of a hello.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) for a payload that is no hello or describes an
    /// impossible sample.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let body: Body = serde_json::from_slice(payload).map_err(|why| bad("hello", why))?;
        let Body { block_len, sample_len, rate, channels } = body;
        let channels = channels.into_iter().map(Channel::from).collect();
        let hello = Self { format: Format { channels, sample_len, rate }, block_len };
        verify(&hello)?;
        Ok(hello)
    }
}

fn verify(hello: &Hello) -> Result<()> {
    let Format { channels, sample_len, rate } = &hello.format;
    require("sample_len", (1..=MAX_SAMPLE).contains(sample_len), || *sample_len)?;
    let whole = usize::try_from(hello.block_len).is_ok_and(|len| len % sample_len == 0);
    let fits = (1..=MAX_DATA).contains(&hello.block_len) && whole;
    require("block_len", fits, || hello.block_len)?;
    let count = channels.len();
    require("channels", (1..=MAX_CHANNELS).contains(&count), || count)?;
    let positive = rate.is_none_or(|rate| rate.is_finite() && rate > 0.0);
    require("rate", positive, || format!("{rate:?}"))?;
    channels.iter().try_for_each(|channel| verify_channel(channel, *sample_len))
}

fn verify_channel(channel: &Channel, sample_len: usize) -> Result<()> {
    let Channel { name, bits, storage_bits, shift, repeat, offset, .. } = channel;
    let printable =
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    require("name", printable, || name.escape_debug())?;
    let whole = storage_bits.is_multiple_of(8) && (8..=MAX_BITS).contains(storage_bits);
    require("storage_bits", whole, || *storage_bits)?;
    require("bits", (1..=*storage_bits).contains(bits), || *bits)?;
    require("shift", *shift <= storage_bits - bits, || *shift)?;
    require("repeat", *repeat > 0, || *repeat)?;
    let end = offset.checked_add(channel.len());
    require("offset", end.is_some_and(|end| end <= sample_len), || *offset)
}

impl From<&Channel> for ChannelBody {
    fn from(channel: &Channel) -> Self {
        let Channel { name, signed, bits, storage_bits, shift, big_endian, repeat, offset } =
            channel.clone();
        Self { name, signed, bits, storage_bits, shift, big_endian, repeat, offset }
    }
}

impl From<ChannelBody> for Channel {
    fn from(body: ChannelBody) -> Self {
        let ChannelBody { name, signed, bits, storage_bits, shift, big_endian, repeat, offset } =
            body;
        Self { name, signed, bits, storage_bits, shift, big_endian, repeat, offset }
    }
}
