//! Verifies samples.

use std::io;
use std::ops::Range;

use super::format::{Channel, Format, Lost};
use super::samples::Samples;
use crate::block::Bytes;
use crate::{Error, Result};

/// The channels of the pattern `counter`, lowest bits first.
const PARTS: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

/// Verifies the pattern `counter`: each sample is one more than the one before, plus the samples that are
/// reported as lost between them.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Offset and byte order of each part; `true` is big endian.
    parts: Vec<(usize, bool)>,
    /// The bytes of the parts, if together they are one little-endian number.
    number_at: Option<Range<usize>>,
    sample_len: usize,
    /// The bits of the counter.
    mask: u64,
    /// The next number; `None` before the first sample.
    next: Option<u64>,
    samples: u64,
    /// The beginning of a sample that ends in the next part; empty between blocks.
    begun: Vec<u8>,
}

/// What was found in the samples of a block.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of its first sample in the stream.
    first: u64,
    next: Option<u64>,
    /// Samples that are missing, as far as the bits of the counter tell. A step back is a jump of nearly all numbers.
    jumps: u64,
    /// The first jump: the number of the sample, the value found, the value expected.
    jump_at: Option<(u64, u64, u64)>,
}

impl Counter {
    /// A verifier for samples of this format.
    ///
    /// # Errors
    ///
    /// Bad input if the samples have no channel of the counter that is within a sample.
    pub fn new(format: &Format) -> Result<Self> {
        let part = |name: &&str| {
            let found = format.channels.iter().find(|channel| channel.name == **name)?;
            let Channel { storage_bits, shift, repeat, big_endian, offset, .. } = *found;
            let within = offset.checked_add(2).is_some_and(|end| end <= format.sample_len);
            (within && (storage_bits, shift, repeat) == (16, 0, 1)).then_some((offset, big_endian))
        };
        let parts: Vec<_> = PARTS.iter().map_while(part).collect();
        if parts.is_empty() {
            let names: Vec<_> = format.channels.iter().map(|one| one.name.as_str()).collect();
            let allowed =
                "16 bits each of voltage0_i and, for more bits, voltage0_q, voltage1_i, voltage1_q";
            return Err(Error::invalid("a counter in", names.join(","), allowed));
        }
        let bits = 16 * u32::try_from(parts.len()).unwrap_or(4);
        let mask = u64::MAX >> (64 - bits);
        let (first, len) = (parts[0].0, 2 * parts.len());
        let is_number =
            parts.iter().enumerate().all(|(index, part)| *part == (first + 2 * index, false));
        let number_at = is_number.then_some(first..first + len);
        let begun = Vec::with_capacity(format.sample_len);
        let sample_len = format.sample_len;
        Ok(Self { parts, number_at, sample_len, mask, next: None, samples: 0, begun })
    }

    /// Number of samples verified.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Verifies a block in place; `lost` samples are reported as missing before its end.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData), naming the first wrong sample; as [`Samples::parts`].
    pub fn verify(&mut self, samples: &Samples, lost: Lost) -> Result<()> {
        let parts = samples.parts()?;
        self.verify_parts(parts.iter(), lost)
    }

    /// As [`verify`](Self::verify), for bytes in one place.
    ///
    /// # Errors
    ///
    /// As [`verify`](Self::verify).
    pub fn verify_bytes(&mut self, bytes: &[u8], lost: Lost) -> Result<()> {
        self.verify_parts([Bytes::from(bytes)].into_iter(), lost)
    }

    fn verify_parts<'a>(
        &mut self,
        parts: impl Iterator<Item = Bytes<'a>>,
        lost: Lost,
    ) -> Result<()> {
        let mut run = Run { first: self.samples, next: self.next, jumps: 0, jump_at: None };
        let mut begun = std::mem::take(&mut self.begun);
        for part in parts {
            part.for_each_chunk(|chunk| self.follow_all(chunk, &mut begun, &mut run));
        }
        begun.clear();
        self.begun = begun;
        self.judge(&run, lost)
    }

    /// Follows the samples of a chunk, which may begin and end within a sample.
    fn follow_all(&mut self, mut chunk: &[u8], begun: &mut Vec<u8>, run: &mut Run) {
        if !begun.is_empty() {
            let (rest, behind) = chunk.split_at(chunk.len().min(self.sample_len - begun.len()));
            begun.extend_from_slice(rest);
            chunk = behind;
            if begun.len() == self.sample_len {
                self.follow(begun, run);
                begun.clear();
            }
        }
        let (whole, rest) = chunk.split_at(chunk.len() - chunk.len() % self.sample_len);
        begun.extend_from_slice(rest);
        if self.follow_fast(whole, run) {
            return;
        }
        // A local copy stays in registers.
        let mut here = *run;
        whole.chunks_exact(self.sample_len).for_each(|sample| self.follow(sample, &mut here));
        *run = here;
    }

    /// As [`follow`](Self::follow) for whole samples, if none is missing before or between them: without a branch for
    /// each, and for samples that are one number, as many at a time as the processor can. Returns `false` and changes
    /// nothing if one is.
    fn follow_fast(&mut self, whole: &[u8], run: &mut Run) -> bool {
        let count = (whole.len() / self.sample_len) as u64;
        let Some(next) = run.next else { return false };
        let dense = self.number_at.as_ref().filter(|at| **at == (0..self.sample_len));
        let counts = match dense.map(Range::len) {
            Some(2) => counts_u16(whole, next),
            Some(4) => counts_u32(whole, next),
            Some(8) => counts_u64(whole, next),
            _ => {
                let samples = whole.chunks_exact(self.sample_len);
                let differ = samples.zip(0..).fold(0, |differ, (sample, index)| {
                    differ | (self.number(sample) ^ next.wrapping_add(index))
                });
                differ & self.mask == 0
            }
        };
        if counts {
            run.next = Some(next.wrapping_add(count) & self.mask);
            self.samples += count;
        }
        counts
    }

    fn follow(&mut self, sample: &[u8], run: &mut Run) {
        let number = self.number(sample);
        let jump = number.wrapping_sub(run.next.unwrap_or(number)) & self.mask;
        if jump != 0 {
            run.jumps = run.jumps.saturating_add(jump);
            run.jump_at.get_or_insert((self.samples, number, run.next.unwrap_or(0)));
        }
        run.next = Some(number.wrapping_add(1) & self.mask);
        self.samples += 1;
    }

    fn judge(&mut self, run: &Run, lost: Lost) -> Result<()> {
        let is_first = self.next.is_none();
        self.next = run.next;
        match lost {
            Lost::Unknown => Ok(()),
            // Any first sample is right.
            Lost::Samples(_) if is_first && run.jumps == 0 => Ok(()),
            // The counter may have wrapped around in what is lost, but not in what is there.
            Lost::Samples(lost) => match lost.checked_sub(run.jumps) {
                Some(more) if more & self.mask == 0 => Ok(()),
                _ => Err(self.wrong(run.first, lost, run.jump_at)),
            },
        }
    }

    fn number(&self, sample: &[u8]) -> u64 {
        if let Some(at) = &self.number_at {
            let mut bytes = [0; 8];
            bytes[..at.len()].copy_from_slice(&sample[at.clone()]);
            return u64::from_le_bytes(bytes);
        }
        let mut number = 0;
        for (index, (offset, big_endian)) in self.parts.iter().enumerate() {
            let bytes = [sample[*offset], sample[*offset + 1]];
            let part =
                if *big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
            number |= u64::from(part) << (16 * index);
        }
        number
    }

    fn wrong(&self, first: u64, said: u64, jump: Option<(u64, u64, u64)>) -> Error {
        let end = self.samples;
        let found = match jump {
            Some((at, number, next)) => format!("sample {at} is {number} instead of {next}"),
            None => "nothing is missing".into(),
        };
        let why = format!("{found}, and {said} are reported as lost in samples {first} to {end}");
        Error::new("verify", "the counter", io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

/// Defines a function that tells whether little-endian numbers of one type count up from `first`.
macro_rules! counts {
    ($name:ident, $number:ty) => {
        #[allow(clippy::cast_possible_truncation)] // The counter has so many bits.
        fn $name(bytes: &[u8], first: u64) -> bool {
            let numbers = bytes.as_chunks::<{ size_of::<$number>() }>().0;
            let differ = numbers.iter().enumerate().fold(0, |differ, (index, number)| {
                let wanted = (first as $number).wrapping_add(index as $number);
                differ | (<$number>::from_le_bytes(*number) ^ wanted)
            });
            differ == 0
        }
    };
}

counts!(counts_u16, u16);
counts!(counts_u32, u32);
counts!(counts_u64, u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn format(names: &[&str]) -> Format {
        Format::of_shorts(names)
    }

    fn verify(counter: &mut Counter, block: &[u8], lost: Lost) -> Result<()> {
        counter.verify_bytes(block, lost)
    }

    fn block(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
        numbers.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn a_channel_beyond_the_sample_is_none() {
        let whole = format(&PARTS);
        for sample_len in [0, 1] {
            let error = Counter::new(&Format { sample_len, ..whole.clone() }).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let mut far = whole.clone();
        far.channels[0].offset = usize::MAX;
        assert!(Counter::new(&far).is_err());
        // The channels that are within count alone.
        let mut counter = Counter::new(&Format { sample_len: 5, ..whole }).unwrap();
        verify(&mut counter, &[7, 0, 0, 0, 9, 8, 0, 0, 0, 9], Lost::Samples(0)).unwrap();
    }

    #[test]
    fn what_is_missing_has_to_be_said() {
        let counter = || Counter::new(&format(&PARTS)).unwrap();
        let mut good = counter();
        verify(&mut good, &block(7..10), Lost::Samples(0)).unwrap();
        verify(&mut good, &block(10..20), Lost::Samples(0)).unwrap();
        verify(&mut good, &block(25..30), Lost::Samples(5)).unwrap();
        // Some before the block and some within it.
        verify(&mut good, &block([31, 32, 35]), Lost::Samples(3)).unwrap();
        verify(&mut good, &block(90..100), Lost::Unknown).unwrap();
        verify(&mut good, &block([100]), Lost::Samples(0)).unwrap();
        assert_eq!(good.samples(), 3 + 10 + 5 + 3 + 10 + 1);
        let bad: [(Vec<u64>, u64); 5] =
            [(vec![12], 0), (vec![11, 13], 0), (vec![11, 12], 1), (vec![10], 0), (vec![11, 11], 0)];
        for (numbers, lost) in bad {
            let mut counter = counter();
            verify(&mut counter, &block(7..11), Lost::Samples(0)).unwrap();
            let error =
                verify(&mut counter, &block(numbers.clone()), Lost::Samples(lost)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{numbers:?}");
        }
        let error =
            verify(&mut counter(), &block([1, 3]), Lost::Samples(0)).unwrap_err().to_string();
        assert!(error.contains("sample 1 is 3 instead of 2"), "{error}");
    }

    #[test]
    fn fewer_channels_count_with_fewer_bits() {
        let mut counter = Counter::new(&format(&["voltage0_i"])).unwrap();
        let bytes: Vec<u8> =
            [0xfffeu16, 0xffff, 0, 1].into_iter().flat_map(u16::to_le_bytes).collect();
        verify(&mut counter, &bytes, Lost::Samples(0)).unwrap();
        // More is lost than the counter has numbers.
        verify(&mut counter, &[5, 0], Lost::Samples(0x2_0003)).unwrap();
        assert!(verify(&mut counter, &[8, 0], Lost::Samples(0x1_0003)).is_err());
        assert!(Counter::new(&format(&["voltage1_i"])).is_err());
        // A gap between the parts ends the counter.
        assert_eq!(Counter::new(&format(&["voltage0_i", "voltage1_i"])).unwrap().mask, 0xffff);
    }

    #[test]
    fn any_wrong_bit_is_found_in_every_layout() {
        let values = |names: &[&str]| format(names);
        // Numbers of 16, 32, 48 and 64 bits; another channel behind and before them; big endian.
        let mut big_endian = values(&PARTS[..2]);
        big_endian.channels.iter_mut().for_each(|channel| channel.big_endian = true);
        let layouts = [
            values(&PARTS[..1]),
            values(&PARTS[..2]),
            values(&PARTS[..3]),
            values(&PARTS),
            values(&["voltage0_i", "voltage0_q", "other"]),
            values(&["other", "voltage0_i", "voltage0_q"]),
            big_endian,
        ];
        for format in layouts {
            let mut counter = Counter::new(&format).unwrap();
            let len = format.sample_len;
            // The counter wraps around within them.
            let first = counter.mask - 99;
            let bytes: Vec<u8> = (0..1000_u64)
                .flat_map(|index| {
                    let number = first.wrapping_add(index);
                    let mut sample = vec![0xee; len];
                    for (part, (offset, big_endian)) in counter.parts.iter().enumerate() {
                        let value = (number >> (16 * part) & 0xffff) as u16;
                        let value =
                            if *big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
                        sample[*offset..*offset + 2].copy_from_slice(&value);
                    }
                    sample
                })
                .collect();
            verify(&mut counter, &bytes[..10 * len], Lost::Samples(0)).unwrap();
            verify(&mut counter, &bytes[10 * len..500 * len], Lost::Samples(0)).unwrap();
            let parts = counter.parts.clone();
            for (offset, _) in parts {
                for bit in 0..16 {
                    let mut bad = bytes[500 * len..].to_vec();
                    bad[77 * len + offset + bit / 8] ^= 1 << (bit % 8);
                    let mut counter = counter.clone();
                    let error = verify(&mut counter, &bad, Lost::Samples(0)).unwrap_err();
                    assert!(error.to_string().contains("sample 577 is "), "{error}");
                }
            }
            verify(&mut counter, &bytes[500 * len..], Lost::Samples(0)).unwrap();
            assert_eq!(counter.samples(), 1000);
        }
    }

    #[test]
    fn parts_may_end_within_a_sample() {
        let bytes = block(0..1000);
        for len in [1, 3, 7, 8, 9, 1000] {
            let mut counter = Counter::new(&format(&PARTS)).unwrap();
            counter.verify_parts(bytes.chunks(len).map(Bytes::from), Lost::Samples(0)).unwrap();
            assert_eq!(counter.samples(), 1000);
            let mut bad = bytes.clone();
            bad[4000] ^= 1;
            let bad = bad.chunks(len).map(Bytes::from);
            let mut counter = Counter::new(&format(&PARTS)).unwrap();
            assert!(counter.verify_parts(bad, Lost::Samples(0)).is_err(), "{len}");
        }
    }
}
