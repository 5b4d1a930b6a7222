//! The type of the values of a recording.

use std::fmt;
use std::str::FromStr;

use crate::stream::format::{Channel, Format};
use crate::{Error, Result};

/// The type of all values of a recording, `core:datatype`: integers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datatype {
    /// Whether values come in pairs, I and Q.
    pub complex: bool,
    /// Whether a value is a two's complement.
    pub signed: bool,
    /// Bits of a value: 8, 16 or 32.
    pub bits: u8,
    /// Whether the first byte is the most significant one; `false` for 8 bits.
    pub big_endian: bool,
}

impl Datatype {
    /// The type of the values of `format`, and the number of channels of this type.
    ///
    /// # Errors
    ///
    /// Bad input for values of different types, of other lengths, shifted, or with gaps between them.
    pub fn of(format: &Format) -> Result<(Self, usize)> {
        let channels = &format.channels;
        let fits = channels.first().is_some_and(|first| {
            let len = first.len();
            let alike = |(at, channel): (usize, &Channel)| {
                is_alike(channel, first) && channel.offset == at * len
            };
            is_plain(first)
                && channels.iter().enumerate().all(alike)
                && format.sample_len == channels.len() * len
        });
        let [first, ..] = &channels[..] else { return Err(odd(format)) };
        if !fits {
            return Err(odd(format));
        }
        let complex = are_pairs(channels);
        let big_endian = first.big_endian && first.storage_bits > 8;
        let datatype = Self { complex, signed: first.signed, bits: first.storage_bits, big_endian };
        Ok((datatype, if complex { channels.len() / 2 } else { channels.len() }))
    }

    /// Bytes of one value.
    #[must_use]
    pub fn value_len(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// The format of `count` channels of this type, one after another. Without `names`, they are `voltage0`,
    /// `voltage1`, …, or `voltage0_i`, `voltage0_q`, … for pairs. Without `bits`, all bits are valid.
    #[must_use]
    pub fn format(
        self,
        count: usize,
        names: Option<&[String]>,
        bits: Option<u8>,
        rate: Option<f64>,
    ) -> Format {
        let values = if self.complex { 2 * count } else { count };
        let names = names.filter(|names| names.len() == values);
        let name = |index: usize| match (names, self.complex) {
            (Some(names), _) => names[index].clone(),
            (None, false) => format!("voltage{index}"),
            (None, true) => format!("voltage{}_{}", index / 2, ["i", "q"][index % 2]),
        };
        let channel = |index| Channel {
            name: name(index),
            signed: self.signed,
            bits: bits.filter(|bits| (1..=self.bits).contains(bits)).unwrap_or(self.bits),
            storage_bits: self.bits,
            shift: 0,
            big_endian: self.big_endian,
            repeat: 1,
            offset: index * self.value_len(),
        };
        let channels = (0..values).map(channel).collect();
        Format { channels, sample_len: values * self.value_len(), rate }
    }
}

fn is_plain(channel: &Channel) -> bool {
    matches!(channel.storage_bits, 8 | 16 | 32) && channel.shift == 0 && channel.repeat == 1
}

fn is_alike(channel: &Channel, first: &Channel) -> bool {
    let kind = |channel: &Channel| {
        let Channel { signed, bits, storage_bits, shift, big_endian, repeat, .. } = *channel;
        (signed, bits, storage_bits, shift, big_endian, repeat)
    };
    kind(channel) == kind(first)
}

fn are_pairs(channels: &[Channel]) -> bool {
    channels.len().is_multiple_of(2)
        && channels.chunks(2).all(|pair| {
            let bases = pair[0].name.strip_suffix("_i").zip(pair[1].name.strip_suffix("_q"));
            bases.is_some_and(|(i, q)| i == q)
        })
}

/// The error of a format that cannot be recorded, with the channels that can be recorded together.
fn odd(format: &Format) -> Error {
    let plain: Vec<_> = format.channels.iter().filter(|channel| is_plain(channel)).collect();
    let alike = |first: &&Channel| plain.iter().filter(|one| is_alike(one, first)).count();
    let most = plain.iter().copied().max_by_key(alike);
    let names = |channels: &mut dyn Iterator<Item = &Channel>| {
        channels.map(|channel| channel.name.as_str()).collect::<Vec<_>>().join(",")
    };
    let allowed = match most {
        None => {
            "values of 8, 16 or 32 bits that are not shifted, of which the device has none".into()
        }
        Some(first) => format!(
            "values of one type, without gaps: select --channels {}",
            names(&mut plain.iter().copied().filter(|one| is_alike(one, first)))
        ),
    };
    Error::invalid("a SigMF recording of", names(&mut format.channels.iter()), allowed)
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complex = if self.complex { 'c' } else { 'r' };
        let signed = if self.signed { 'i' } else { 'u' };
        let order = match (self.bits, self.big_endian) {
            (8, _) => "",
            (_, false) => "_le",
            (_, true) => "_be",
        };
        write!(f, "{complex}{signed}{}{order}", self.bits)
    }
}

impl FromStr for Datatype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let booleans = [false, true];
        let all = booleans.into_iter().flat_map(|complex| {
            booleans.into_iter().flat_map(move |signed| {
                [(8, false), (16, false), (16, true), (32, false), (32, true)]
                    .map(|(bits, big_endian)| Self { complex, signed, bits, big_endian })
            })
        });
        let mut all = all.into_iter();
        all.find(|one| one.to_string() == text).ok_or_else(|| {
            let allowed = "integers of 8, 16 or 32 bits, such as ci16_le";
            Error::invalid("core:datatype", text.escape_debug(), allowed)
        })
    }
}
