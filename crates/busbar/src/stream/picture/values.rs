//! Condenses samples into columns.

use crate::Result;
use crate::stream::sigmf::Recording;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// The samples of one channel in one column of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    /// The position of the column, from 0 to 1.
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
    let values = format.channels.iter().map(|channel| format.values::<f64>(&channel.name));
    let values: Vec<_> = values.collect::<Result<_>>()?;
    let mut chunk = vec![0; CHUNK.next_multiple_of(format.sample_len)];
    let mut numbers = vec![0.0; chunk.len() / format.sample_len];
    let mut index = 0;
    while index < samples {
        let read = recording.read(from + index, &mut chunk)?;
        let count = (read / format.sample_len) as u64;
        for (values, columns) in values.iter().zip(&mut columns) {
            values.copy(&chunk[..read], &mut numbers);
            for (index, number) in (index..samples.min(index + count)).zip(&numbers) {
                add(columns, column_of(index, samples, most), most, *number);
            }
        }
        index += count;
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
    #[allow(clippy::cast_precision_loss)] // only a position
    let at = column as f64 / most.max(2).saturating_sub(1) as f64;
    columns.push(Column { at, first: value, last: value, low: value, high: value });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_in_one_column() {
        let columns: Vec<_> = (0..10).map(|index| column_of(index, 10, 4)).collect();
        assert_eq!(columns, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]);
    }
}
