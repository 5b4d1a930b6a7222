//! Samples of any format are decoded as numbers, or the format is refused; a slow decoder gives the same
//! numbers.

#![no_main]

use arbitrary::Arbitrary;
use busbar::stream::{Channel, Format};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    channels: [Place; 2],
    sample_len: u8,
    bytes: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Place {
    signed: bool,
    big_endian: bool,
    bits: u8,
    storage_bits: u8,
    shift: u8,
    repeat: u8,
    offset: u8,
}

fuzz_target!(|input: Input| {
    let channels: Vec<_> = input.channels.iter().zip(["i", "q"]).map(channel).collect();
    let sample_len = usize::from(input.sample_len);
    let format = Format { channels, sample_len, rate: None };
    let bytes = &input.bytes[..];
    let Ok(values) = format.values::<i64>("i") else { return };
    let count = bytes.len() / sample_len;
    let mut numbers = vec![0; count + 1];
    assert_eq!(values.copy(bytes, &mut numbers), count);
    for (sample, number) in bytes.chunks_exact(sample_len).zip(&numbers) {
        assert_eq!(i128::from(*number), naive(&format.channels[0], sample));
    }
    let Ok(pairs) = format.pairs::<f64>("i", "q") else { return };
    let mut pairs_of = vec![[0.0; 2]; count];
    assert_eq!(pairs.copy(bytes, &mut pairs_of), count);
    for (sample, pair) in bytes.chunks_exact(sample_len).zip(pairs_of) {
        for (channel, number) in format.channels.iter().zip(pair) {
            assert_eq!(number, naive(channel, sample) as f64);
        }
    }
});

fn channel((place, name): (&Place, &str)) -> Channel {
    Channel {
        name: name.into(),
        signed: place.signed,
        bits: place.bits,
        storage_bits: place.storage_bits,
        shift: place.shift,
        big_endian: place.big_endian,
        repeat: place.repeat,
        offset: usize::from(place.offset),
    }
}

/// Bit by bit: slow, but not the code under test.
fn naive(channel: &Channel, sample: &[u8]) -> i128 {
    let bytes = &sample[channel.offset..][..channel.len()];
    let bit = |index: usize| {
        let byte = if channel.big_endian { bytes.len() - 1 - index / 8 } else { index / 8 };
        i128::from(bytes[byte] >> (index % 8) & 1)
    };
    let bits = usize::from(channel.bits);
    let value: i128 = (0..bits).map(|index| bit(usize::from(channel.shift) + index) << index).sum();
    if channel.signed && value >> (bits - 1) == 1 { value - (1 << bits) } else { value }
}
