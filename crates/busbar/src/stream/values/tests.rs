use proptest::prelude::*;

use super::*;
use crate::stream::{Source, StreamSetup};

fn channel(name: &str, kind: &str, offset: usize) -> Channel {
    let found = super::super::scan::Type::parse(kind).unwrap_or_else(|| panic!("{kind}"));
    let super::super::scan::Type { big_endian, signed, bits, storage_bits, repeat, shift } = found;
    let name = name.into();
    Channel { name, signed, bits, storage_bits, shift, big_endian, repeat, offset }
}

fn format(channels: Vec<Channel>, sample_len: usize) -> Format {
    Format { channels, sample_len, rate: None }
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

fn any_channel() -> impl Strategy<Value = Channel> {
    let storage = prop_oneof![Just(8_u8), Just(16), Just(32), Just(64)];
    let bits = storage.prop_flat_map(|storage| (Just(storage), 1..=storage));
    let shifted =
        bits.prop_flat_map(|(storage, bits)| (Just(storage), Just(bits), 0..=storage - bits));
    (shifted, any::<(bool, bool)>(), 0..12_usize).prop_map(
        |((storage_bits, bits, shift), (signed, big_endian), offset)| Channel {
            name: "voltage0".into(),
            signed,
            bits,
            storage_bits,
            shift,
            big_endian,
            repeat: 1,
            offset,
        },
    )
}

fn as_integers<N: Number + Into<i128>>(channel: &Channel, len: usize, bytes: &[u8]) {
    let room = u32::from(channel.bits) + u32::from(!channel.signed);
    match format(vec![channel.clone()], len).values::<N>("voltage0") {
        Ok(values) => {
            let mut to = vec![N::default(); bytes.len() / len + 1];
            assert_eq!(values.copy(bytes, &mut to), bytes.len() / len);
            for (sample, value) in bytes.chunks_exact(len).zip(to) {
                assert_eq!(value.into(), naive(channel, sample), "{channel:?}");
            }
        }
        Err(error) => assert!(room as usize > 8 * size_of::<N>(), "{error}"),
    }
}

proptest! {
    #[test]
    fn values_are_what_a_slow_decoder_finds(
        channel in any_channel(),
        padding in 0..5_usize,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let len = channel.offset + channel.len() + padding;
        as_integers::<i16>(&channel, len, &bytes);
        as_integers::<i32>(&channel, len, &bytes);
        as_integers::<i64>(&channel, len, &bytes);
        let values = format(vec![channel.clone()], len).values::<f64>("voltage0").unwrap();
        let scaled = values.clone().scaled(Scale { offset: -3.5, scale: 0.25 });
        let (mut plain, mut millivolts) = ([0.0; 8], [0.0; 8]);
        let count = values.copy(&bytes, &mut plain);
        prop_assert_eq!(count, (bytes.len() / len).min(8));
        prop_assert_eq!(scaled.copy(&bytes, &mut millivolts), count);
        for (index, sample) in bytes.chunks_exact(len).take(8).enumerate() {
            #[allow(clippy::cast_precision_loss)] // as the code under test
            let expected = naive(&channel, sample) as f64;
            prop_assert_eq!(plain[index].to_bits(), (expected + 0.0).to_bits());
            prop_assert_eq!(millivolts[index].to_bits(), ((expected - 3.5) * 0.25).to_bits());
        }
    }

    #[test]
    fn any_format_is_taken_or_refused(
        numbers in any::<[u8; 4]>(),
        flags in any::<(bool, bool)>(),
        places in (0..20_usize, 0..20_usize),
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let [bits, storage_bits, shift, repeat] = numbers;
        let (signed, big_endian) = flags;
        let name = "voltage0".into();
        let channel =
            Channel { name, signed, bits, storage_bits, shift, big_endian, repeat, offset: places.0 };
        let format = format(vec![channel], places.1);
        if let Ok(values) = format.values::<i32>("voltage0") {
            values.copy(&bytes, &mut [0; 7]);
        }
        if let Ok(values) = format.pairs::<f32>("voltage0", "voltage0") {
            values.copy(&bytes, &mut [[0.0; 2]; 7]);
        }
    }
}

#[test]
fn i_and_q_are_pairs() {
    let channels = vec![channel("i", "le:s12/16>>4", 0), channel("q", "be:u8/16", 2)];
    let format = format(channels, 4);
    let bytes = [0x10, 0x00, 0x01, 0x02, 0xff, 0xff, 0x00, 0xff];
    let mut pairs = [[0; 2]; 2];
    assert_eq!(format.pairs::<i16>("i", "q").unwrap().copy(&bytes, &mut pairs), 2);
    assert_eq!(pairs, [[1, 2], [-1, 255]]);
    let mut pairs = [[0.0; 2]; 1];
    let scale = Scale { offset: 1.0, scale: 0.5 };
    let volts = format.pairs::<f32>("i", "q").unwrap().scaled(scale);
    assert_eq!(volts.copy(&bytes, &mut pairs), 1);
    assert_eq!(pairs.map(|pair| pair.map(f32::to_bits)), [[1.0_f32, 1.5].map(f32::to_bits)]);
}

#[test]
fn a_type_that_does_not_hold_the_values_is_refused() {
    let wide = vec![channel("u16", "le:u16/16", 0), channel("s24", "le:s24/32", 4)];
    let format = format(wide, 8);
    for error in [
        format.values::<i16>("u16").unwrap_err(),
        format.values::<i16>("s24").unwrap_err(),
        format.values::<i16>("none").unwrap_err(),
    ] {
        assert!(error.input().is_some(), "{error}");
    }
    assert!(format.values::<i16>("none").unwrap_err().to_string().contains("u16, s24"));
    assert!(format.values::<i32>("u16").is_ok() && format.values::<i32>("s24").is_ok());
}

#[test]
fn numbers_of_a_source_are_those_of_its_samples() {
    let source = Source::open("synth:counter", &StreamSetup::new().block_len(800)).unwrap();
    let low = source.format().values::<i32>("voltage0_i").unwrap();
    let mut numbers = vec![0; 1000];
    for first in [0, 100] {
        let samples = source.next().unwrap();
        assert_eq!(low.read(&samples, &mut numbers).unwrap(), 100);
        assert_eq!(numbers[..100], (first..first + 100).collect::<Vec<_>>());
    }
    assert_eq!(source.scale("voltage0_i").unwrap(), Scale::default());
    assert!(source.scale("voltage9").unwrap_err().input().is_some());
}
