//! Finds the end of a block and the samples missing before it, as far as the samples show them.

use super::format::{Channel, Format, Lost};
use crate::block::Bytes;

/// What the samples of a block show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Samples that were filled; the rest of the block is older data.
    pub samples: usize,
    pub lost: Lost,
}

/// Follows the samples of a stream from block to block.
#[derive(Debug)]
pub(super) struct Detector {
    sample_len: usize,
    how: How,
}

#[derive(Debug)]
enum How {
    Count(Count),
    Time(Time),
    Nothing,
}

impl Detector {
    /// The best method that the format allows; `is_counter`: the values are the counter pattern.
    pub(super) fn new(format: &Format, is_counter: bool) -> Self {
        let how = Count::channel(format)
            .map(How::Count)
            .or_else(|| Time::new(format).map(How::Time))
            .or_else(|| is_counter.then(|| Count::pattern(format)).flatten().map(How::Count))
            .unwrap_or(How::Nothing);
        Self { sample_len: format.sample_len, how }
    }

    /// Whether it needs the samples.
    pub(super) fn looks(&self) -> bool {
        !matches!(self.how, How::Nothing)
    }

    /// Inspects the next block of `samples` samples. `bytes` may be empty if it does not [look](Self::looks).
    pub(super) fn inspect(&mut self, bytes: Bytes<'_>, samples: usize) -> Found {
        let view = View { bytes, sample_len: self.sample_len };
        match &mut self.how {
            How::Count(count) => count.inspect(&view, samples),
            How::Time(time) => time.inspect(&view, samples),
            How::Nothing => Found { samples, lost: Lost::Unknown },
        }
    }
}

struct View<'a> {
    bytes: Bytes<'a>,
    sample_len: usize,
}

impl View<'_> {
    /// A value of a sample; 0 beyond the end.
    fn value(&self, sample: usize, part: Part) -> u64 {
        let start = sample * self.sample_len + part.offset;
        if start + part.len > self.bytes.len() {
            return 0;
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..part.len];
        self.bytes.slice(start..start + part.len).copy_to(bytes);
        let join = |value, byte: &u8| value << 8 | u64::from(*byte);
        if part.big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
    }
}

/// A channel of up to 64 bits.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: usize,
    len: usize,
    big_endian: bool,
}

impl Part {
    /// `None` if the channel is not a plain number of these bits.
    fn new(channel: &Channel, bits: u8) -> Option<Self> {
        let plain = channel.bits == bits && channel.storage_bits == bits && channel.repeat == 1;
        plain.then_some(Self {
            offset: channel.offset,
            len: usize::from(bits) / 8,
            big_endian: channel.big_endian,
        })
    }

    fn find(format: &Format, name: &str, bits: u8) -> Option<Self> {
        Self::new(format.channels.iter().find(|channel| channel.name == name)?, bits)
    }
}

/// A number in each sample that counts them, modulo a power of two.
#[derive(Debug)]
struct Count {
    /// From the lowest bits to the highest.
    parts: Vec<Part>,
    mask: u64,
    expected: u64,
}

impl Count {
    fn new(parts: Vec<Part>) -> Option<Self> {
        let bits = 8 * parts.iter().map(|part| part.len).sum::<usize>();
        // With fewer bits, a pause of a whole turn of the counter is likely.
        let mask = match bits {
            64.. => u64::MAX,
            32.. => (1 << bits) - 1,
            _ => return None,
        };
        Some(Self { parts, mask, expected: 0 })
    }

    fn channel(format: &Format) -> Option<Self> {
        Self::new(vec![Part::find(format, "count0", 64)?])
    }

    fn pattern(format: &Format) -> Option<Self> {
        let names = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
        Self::new(names.iter().map_while(|name| Part::find(format, name, 16)).collect())
    }

    fn at(&self, view: &View<'_>, sample: usize) -> u64 {
        let parts = self.parts.iter().rev();
        parts.fold(0, |value, part| value << (8 * part.len % 64) | view.value(sample, *part))
    }

    /// The distance from one number to a later one; `None` if `to` is the earlier one.
    fn distance(&self, from: u64, to: u64) -> Option<u64> {
        let distance = to.wrapping_sub(from) & self.mask;
        (distance <= self.mask / 2).then_some(distance)
    }

    /// Samples that are missing between the first and the last of so many. Another process that writes to the
    /// block can make the numbers closer than that.
    fn missing(&self, first: u64, last: u64, samples: usize) -> u64 {
        self.distance(first, last).map_or(0, |far| far.saturating_sub(samples as u64 - 1))
    }

    fn inspect(&mut self, view: &View<'_>, samples: usize) -> Found {
        let first = self.at(view, 0);
        let Some(before) = self.distance(self.expected, first).filter(|_| samples > 0) else {
            // Older data: nothing was filled.
            return Found { samples: 0, lost: Lost::Samples(0) };
        };
        // Numbers grow by at least one, and samples that were not filled are older than the first.
        let filled = partition(samples, |sample| {
            self.distance(first, self.at(view, sample)).is_some_and(|far| far >= sample as u64)
        });
        let last = self.at(view, filled - 1);
        let inside = self.missing(first, last, filled);
        self.expected = last.wrapping_add(1) & self.mask;
        Found { samples: filled, lost: Lost::Samples(before.saturating_add(inside)) }
    }
}

/// The number of leading samples for which `is_good` holds, by bisection; the first counts as good.
fn partition(count: usize, is_good: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (1, count);
    while good < bad {
        let middle = good + (bad - good) / 2;
        if is_good(middle) { good = middle + 1 } else { bad = middle }
    }
    good
}

/// The time of each sample, in nanoseconds.
#[derive(Debug)]
struct Time {
    part: Part,
    /// Nanoseconds from sample to sample.
    period: f64,
    last: Option<i64>,
}

impl Time {
    /// How far a distance may be from a whole number of periods. Beyond it, the times are not those of
    /// the samples, or the rate is not that of the converter.
    const TOLERANCE: f64 = 0.25;

    fn new(format: &Format) -> Option<Self> {
        let part = Part::find(format, "timestamp", 64)?;
        // With a shorter period, the tolerance is less than a nanosecond.
        let period = 1e9 / format.rate?;
        (period.is_finite() && period >= 4.0).then_some(Self { part, period, last: None })
    }

    fn at(&self, view: &View<'_>, sample: usize) -> i64 {
        view.value(sample, self.part).cast_signed()
    }

    #[allow(clippy::cast_precision_loss)] // whole nanoseconds of 104 days
    fn periods(&self, from: i64, to: i64) -> f64 {
        to.wrapping_sub(from) as f64 / self.period
    }

    /// Samples missing between two neighbours; `None` if the rate does not explain their times.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked
    fn between(&self, from: i64, to: i64) -> Option<u64> {
        let periods = self.periods(from, to);
        let whole = periods.round();
        let good = (periods - whole).abs() <= Self::TOLERANCE && (1.0..1e15).contains(&whole);
        good.then(|| whole as u64 - 1)
    }

    fn inspect(&mut self, view: &View<'_>, samples: usize) -> Found {
        let first = self.at(view, 0);
        if samples == 0 || self.last.is_some_and(|last| first <= last) {
            return Found { samples: 0, lost: Lost::Samples(0) };
        }
        let filled = partition(samples, |sample| self.at(view, sample) > first);
        let before = self.last.map_or(Some(0), |last| self.between(last, first));
        self.last = Some(self.at(view, filled - 1));
        let lost = before
            .zip(self.inside(view, filled))
            .map(|(before, inside)| before.saturating_add(inside));
        Found { samples: filled, lost: lost.map_or(Lost::Unknown, Lost::Samples) }
    }

    /// Samples that are missing within a block.
    #[allow(clippy::cast_precision_loss)] // blocks are not that long
    fn inside(&self, view: &View<'_>, samples: usize) -> Option<u64> {
        let steps = samples - 1;
        let periods = self.periods(self.at(view, 0), self.at(view, steps));
        if (periods - steps as f64).abs() <= Self::TOLERANCE {
            return Some(0);
        }
        // A gap, or clocks that differ by some millionths: the distances of neighbours tell which.
        (0..steps)
            .map(|one| self.between(self.at(view, one), self.at(view, one + 1)))
            .try_fold(0_u64, |sum, lost| Some(sum.saturating_add(lost?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stream::scan::{Type, layout};

    fn format(names: &[&str], rate: Option<f64>) -> Format {
        let scan = names.iter().zip(0..).map(|(name, index)| {
            let text = match *name {
                "timestamp" => "le:s64/64>>0",
                "count0" => "be:u64/64>>0",
                _ => "le:s16/16>>0",
            };
            (index, (*name).to_owned(), Type::parse(text).unwrap())
        });
        let (channels, sample_len) = layout(scan.collect()).unwrap();
        Format { channels, sample_len, rate }
    }

    /// A block whose samples have these numbers.
    fn block(format: &Format, numbers: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; numbers.len() * format.sample_len];
        for (sample, &number) in bytes.chunks_exact_mut(format.sample_len).zip(numbers) {
            for channel in &format.channels {
                let value = match channel.name.as_str() {
                    "timestamp" => 1_000_000_000 + number * 1000,
                    "voltage0_q" => number >> 16,
                    "voltage1_i" => number >> 32,
                    "voltage1_q" => number >> 48,
                    _ => number,
                };
                let field = &mut sample[channel.offset..channel.offset + channel.len()];
                if channel.big_endian {
                    field.copy_from_slice(&value.to_be_bytes());
                } else {
                    field.copy_from_slice(&value.to_le_bytes()[..channel.len()]);
                }
            }
        }
        bytes
    }

    /// Every format that tells, with its detector.
    fn telling() -> Vec<(Format, Detector)> {
        let voltages = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
        let formats = [
            (format(&["voltage0_i", "count0"], None), false),
            (format(&["voltage0_i", "timestamp"], Some(1e6)), false),
            (format(&voltages, None), true),
            (format(&voltages[..2], None), true),
        ];
        formats
            .map(|(format, is_counter)| {
                let detector = Detector::new(&format, is_counter);
                (format, detector)
            })
            .into()
    }

    fn inspect(detector: &mut Detector, bytes: &[u8], samples: usize) -> Found {
        detector.inspect(Bytes::from(bytes), samples)
    }

    fn found(samples: usize, lost: u64) -> Found {
        Found { samples, lost: Lost::Samples(lost) }
    }

    #[test]
    fn nothing_is_lost_where_numbers_go_on() {
        for (format, mut detector) in telling() {
            assert!(detector.looks());
            for start in [0, 4, 8] {
                let numbers: Vec<_> = (start..start + 4).collect();
                let bytes = block(&format, &numbers);
                assert_eq!(inspect(&mut detector, &bytes, 4), found(4, 0), "{detector:?}");
            }
        }
    }

    #[test]
    fn gaps_between_blocks_and_within_are_counted() {
        for (format, mut detector) in telling() {
            let mut see =
                |numbers: &[u64]| inspect(&mut detector, &block(&format, numbers), numbers.len());
            assert_eq!(see(&[0, 1, 2, 3]), found(4, 0));
            assert_eq!(see(&[5, 6, 7, 8]), found(4, 1));
            assert_eq!(see(&[9, 10, 20, 21]), found(4, 9));
            assert_eq!(see(&[70_000, 70_001, 70_002, 70_004]), found(4, 70_000 - 22 + 1));
        }
    }

    #[test]
    fn numbers_that_somebody_changes_meanwhile_are_no_loss() {
        let count = Count::channel(&format(&["count0"], None)).unwrap();
        assert_eq!(count.missing(10, 15, 4), 2);
        assert_eq!([10, 11, 9].map(|last| count.missing(10, last, 4)), [0; 3]);
    }

    #[test]
    fn the_end_of_a_short_block_is_found() {
        for (format, mut detector) in telling() {
            let mut see =
                |numbers: &[u64]| inspect(&mut detector, &block(&format, numbers), numbers.len());
            assert_eq!(see(&[0, 1, 2, 3]), found(4, 0));
            assert_eq!(see(&[4, 1, 2, 3]), found(1, 0));
            assert_eq!(see(&[5, 6, 7, 3]), found(3, 0));
            assert_eq!(see(&[10, 12, 2, 3]), found(2, 3));
            assert_eq!(see(&[2, 3, 4, 5]), found(0, 0), "nothing was filled");
            assert_eq!(see(&[14, 15, 16, 17]), found(4, 1));
        }
    }

    #[test]
    fn a_short_first_block_ends_where_its_memory_is_zero() {
        let format = format(&["count0"], None);
        let mut detector = Detector::new(&format, false);
        assert_eq!(inspect(&mut detector, &block(&format, &[0, 1, 0, 0]), 4), found(2, 0));
        assert_eq!(inspect(&mut detector, &block(&format, &[2, 0, 0, 0]), 4), found(1, 0));
    }

    #[test]
    fn numbers_may_begin_again_where_they_have_fewer_bits() {
        let format = format(&["voltage0_i", "voltage0_q"], None);
        let mut detector = Detector::new(&format, true);
        // In steps that are no more than half of what the numbers count to.
        for start in [0x7fff_fff0, 0xffff_ff00] {
            inspect(&mut detector, &block(&format, &[start, start + 1]), 2);
        }
        let end = [0xffff_fffe, 0xffff_ffff, 0, 1];
        assert_eq!(inspect(&mut detector, &block(&format, &end), 4), found(4, 0xfc));
        assert_eq!(inspect(&mut detector, &block(&format, &[3, 4, 5, 6]), 4), found(4, 1));
    }

    #[test]
    fn clocks_that_differ_a_little_do_not_make_a_loss() {
        let format = format(&["timestamp"], Some(1e6 * 1.001));
        let mut detector = Detector::new(&format, false);
        let numbers: Vec<_> = (0..2000).collect();
        assert_eq!(inspect(&mut detector, &block(&format, &numbers), 2000), found(2000, 0));
        let numbers: Vec<_> = (2000..2900).chain(2910..4010).collect();
        assert_eq!(inspect(&mut detector, &block(&format, &numbers), 2000), found(2000, 10));
    }

    #[test]
    fn a_rate_that_is_not_that_of_the_times_tells_nothing() {
        for rate in [0.7e6, 1.4e6, 52.0] {
            let format = format(&["timestamp"], Some(rate));
            let mut detector = Detector::new(&format, false);
            let found = inspect(&mut detector, &block(&format, &[0, 1, 2, 3]), 4);
            assert_eq!(found, Found { samples: 4, lost: Lost::Unknown }, "{rate}");
        }
    }

    #[test]
    fn unknown_is_said_where_nothing_tells() {
        let cases = [
            (format(&["voltage0_i", "voltage0_q"], Some(1e6)), false),
            (format(&["voltage0_i", "timestamp"], None), false),
            (format(&["timestamp"], Some(f64::INFINITY)), false),
            (format(&["timestamp"], Some(1e9)), false),
            (format(&["voltage0_i", "voltage1_i"], None), true),
        ];
        for (format, is_counter) in cases {
            let mut detector = Detector::new(&format, is_counter);
            assert!(!detector.looks(), "{format:?}");
            assert_eq!(inspect(&mut detector, &[], 7), Found { samples: 7, lost: Lost::Unknown });
        }
    }

    proptest! {
        #[test]
        fn any_gaps_and_short_ends_are_told_exactly(
            blocks in prop::collection::vec((prop::collection::vec(prop_oneof![9 => Just(0_u64), 1 => 0_u64..100_000], 8), 1_usize..=8), 1..20)
        ) {
            for (format, mut detector) in telling() {
                // Each block lies where the one before has been, as with one block in memory.
                let mut memory = [0_u64; 8];
                let mut next = 0;
                for (number, (gaps, filled)) in blocks.iter().enumerate() {
                    // The first block has nothing before it that times could tell; and memory that
                    // was never filled is what the test above is about.
                    let filled = if number == 0 { 8 } else { *filled };
                    let mut lost = 0;
                    for (slot, gap) in memory.iter_mut().zip(gaps).take(filled) {
                        let gap = if number == 0 { 0 } else { *gap };
                        lost += gap;
                        next += gap;
                        *slot = next;
                        next += 1;
                    }
                    prop_assert_eq!(inspect(&mut detector, &block(&format, &memory), 8), found(filled, lost));
                }
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), samples in 0_usize..20) {
            for (_, mut detector) in telling() {
                for _ in 0..3 {
                    let found = inspect(&mut detector, &bytes, samples);
                    prop_assert!(found.samples <= samples);
                }
            }
        }
    }
}
