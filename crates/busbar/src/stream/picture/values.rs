//! The samples as numbers, as many as there are columns.

use crate::Result;
use crate::stream::Channel;
use crate::stream::sigmf::Recording;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// The samples of one channel in one column of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    /// Where it is: 0 for the first, up to 1.
    pub(super) at: f64,
    pub(super) first: f64,
    pub(super) last: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// For each channel, up to `most` columns of the samples from `from` on.
pub(super) fn columns(
    recording: &Recording,
    from: u64,
    samples: u64,
    most: usize,
) -> Result<Vec<Vec<Column>>> {
    let format = recording.format();
    let most = (most as u64).clamp(1, samples);
    let mut columns: Vec<Vec<Column>> = vec![Vec::new(); format.channels.len()];
    let mut chunk = vec![0; CHUNK.next_multiple_of(format.sample_len)];
    let mut index = 0;
    while index < samples {
        let read = recording.read(from + index, &mut chunk)?;
        for sample in chunk[..read].chunks_exact(format.sample_len) {
            if index == samples {
                break;
            }
            let column = column_of(index, samples, most);
            for (channel, columns) in format.channels.iter().zip(&mut columns) {
                add(columns, column, most, value(channel, sample));
            }
            index += 1;
        }
    }
    Ok(columns)
}

fn column_of(index: u64, samples: u64, most: u64) -> usize {
    let column = u128::from(index) * u128::from(most) / u128::from(samples);
    usize::try_from(column).unwrap_or(usize::MAX)
}

fn add(columns: &mut Vec<Column>, column: usize, most: u64, value: f64) {
    if let (Some(last), true) = (columns.len().checked_sub(1), column < columns.len()) {
        let into = &mut columns[last];
        into.last = value;
        into.low = into.low.min(value);
        into.high = into.high.max(value);
        return;
    }
    #[allow(clippy::cast_precision_loss)] // of a column
    let at = column as f64 / most.max(2).saturating_sub(1) as f64;
    columns.push(Column { at, first: value, last: value, low: value, high: value });
}

/// The value of a channel of a recording: an integer of up to 32 bits.
pub(super) fn value(channel: &Channel, sample: &[u8]) -> f64 {
    let bytes = &sample[channel.offset..channel.offset + channel.len()];
    let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let raw = if channel.big_endian {
        bytes.iter().fold(0, join)
    } else {
        bytes.iter().rev().fold(0, join)
    };
    let unused = 64 - u32::from(channel.bits);
    let raw = raw >> channel.shift << unused;
    #[allow(clippy::cast_precision_loss)] // of a picture
    if channel.signed { (raw.cast_signed() >> unused) as f64 } else { (raw >> unused) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_were_written() {
        let channel = |signed, bits, storage_bits, shift, big_endian| Channel {
            name: "voltage0".into(),
            signed,
            bits,
            storage_bits,
            shift,
            big_endian,
            repeat: 1,
            offset: 1,
        };
        let bytes = [9, 0xfe, 0xff, 0x7f, 0x80];
        let cases = [
            (channel(true, 8, 8, 0, false), -2.0),
            (channel(false, 8, 8, 0, false), 254.0),
            (channel(true, 16, 16, 0, false), -2.0),
            (channel(true, 16, 16, 0, true), -257.0),
            (channel(true, 12, 16, 4, true), -17.0),
            (channel(false, 12, 16, 4, true), 4079.0),
            (channel(false, 12, 16, 0, false), 4094.0),
            (channel(true, 32, 32, 0, true), f64::from(0xfeff_7f80_u32.cast_signed())),
        ];
        for (channel, expected) in cases {
            assert_eq!(value(&channel, &bytes).to_bits(), f64::to_bits(expected), "{channel:?}");
        }
    }

    #[test]
    fn each_sample_is_in_one_column() {
        let columns: Vec<_> = (0..10).map(|index| column_of(index, 10, 4)).collect();
        assert_eq!(columns, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]);
    }
}
