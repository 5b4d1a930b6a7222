//! What a sample looks like, and what is known of a block of samples.

use std::time::SystemTime;

/// One value of a sample, as IIO describes it (`Documentation/ABI/testing/sysfs-bus-iio`, `_type`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Its name, such as `voltage0_i`.
    pub name: String,
    /// Whether the value is a two's complement.
    pub signed: bool,
    /// Valid bits.
    pub bits: u8,
    /// Bits that the value takes up: 8, 16, 32 or 64 and more.
    pub storage_bits: u8,
    /// How many bits the value is to be shifted to the right.
    pub shift: u8,
    /// Whether the first byte is the most significant one.
    pub big_endian: bool,
    /// Number of values in a row: 1 for all but vectors.
    pub repeat: u8,
    /// Offset of its first byte in the sample.
    pub offset: usize,
}

impl Channel {
    /// Bytes that the channel takes up in the sample.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.storage_bits) / 8 * usize::from(self.repeat)
    }

    /// Whether the channel takes up no byte. This is never so for a channel of an opened stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a sample looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    /// The channels, in their order in the sample.
    pub channels: Vec<Channel>,
    /// Bytes of a sample, padding included; at least 1.
    pub sample_len: usize,
    /// Samples per second. `None` if the rate is not known, or the converter runs as fast as it can.
    pub rate: Option<f64>,
}

/// Formats of tests.
#[cfg(any(test, fuzzing))]
impl Format {
    /// Channels of 16 bits, signed.
    #[must_use]
    pub fn of_shorts(names: &[&str]) -> Self {
        let channel = |(index, name): (usize, &&str)| Channel {
            name: (*name).into(),
            signed: true,
            bits: 16,
            storage_bits: 16,
            shift: 0,
            big_endian: false,
            repeat: 1,
            offset: 2 * index,
        };
        let channels = names.iter().enumerate().map(channel).collect();
        Self { channels, sample_len: 2 * names.len(), rate: None }
    }
}

/// Number of samples that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// This many. 0 means that no sample is missing.
    Samples(u64),
    /// Neither the driver nor the data tells how many.
    Unknown,
}

/// What is known of a block of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// Number of the block, from 0. Failed blocks count, too.
    pub sequence: u64,
    /// When the block was complete.
    pub time: SystemTime,
    /// Samples that are missing between the end of the block before and the end of this one.
    pub lost: Lost,
    /// Bytes of the samples: a multiple of the length of a sample.
    pub len: usize,
}
