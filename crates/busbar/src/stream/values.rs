//! Samples as numbers.

use std::marker::PhantomData;

use super::{Channel, Format, Samples};
use crate::{Error, Result};

/// How to make the value of a channel one with a unit: `(value + offset) * scale`, as IIO has it. The
/// unit is that of the channel's kind in `Documentation/ABI/testing/sysfs-bus-iio`: millivolts for a
/// voltage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Is added first.
    pub offset: f64,
    /// Is multiplied by then.
    pub scale: f64,
}

/// Values as they are.
impl Default for Scale {
    fn default() -> Self {
        Self { offset: 0.0, scale: 1.0 }
    }
}

impl Scale {
    fn apply(self, value: f64) -> f64 {
        (value + self.offset) * self.scale
    }
}

mod sealed {
    /// A value as it was received, sign-extended to 64 bits where it has a sign.
    #[derive(Clone, Copy)]
    pub struct Raw {
        pub bits: u64,
        pub signed: bool,
    }

    pub trait Number: Default {
        /// Whether it holds every integer of so many bits, or rounds those that it does not hold.
        fn holds(bits: u8, signed: bool) -> bool;
        fn from_raw(raw: Raw, scale: super::Scale) -> Self;
    }

    pub trait Value {
        type Number: super::Number;
        const PARTS: usize;
        fn part(&mut self, index: usize) -> &mut Self::Number;
    }
}

use self::sealed::Raw;

/// A number that values are made into: `i16`, `i32`, `i64`, `f32`, `f64`.
pub trait Number: sealed::Number + Value {}

/// A number that can be scaled: `f32`, `f64`.
pub trait Float: Number {}

/// A [`Number`], or two for I and Q, in the memory of one complex number.
pub trait Value: sealed::Value + Copy {}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl sealed::Number for $type {
            fn holds(bits: u8, signed: bool) -> bool {
                u32::from(bits) + u32::from(!signed) <= Self::BITS
            }

            #[allow(clippy::cast_possible_truncation)] // it holds as many bits
            fn from_raw(raw: Raw, _: Scale) -> Self {
                raw.bits.cast_signed() as Self
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl sealed::Number for $type {
            fn holds(_: u8, _: bool) -> bool {
                true
            }

            // A float rounds.
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            fn from_raw(Raw { bits, signed }: Raw, scale: Scale) -> Self {
                let value = if signed { bits.cast_signed() as f64 } else { bits as f64 };
                scale.apply(value) as Self
            }
        }

        impl Float for $type {}
    )*};
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {}

        impl sealed::Value for $type {
            type Number = Self;
            const PARTS: usize = 1;

            fn part(&mut self, _: usize) -> &mut Self {
                self
            }
        }

        impl Value for $type {}
    )*};
}

integers!(i16 i32 i64);
floats!(f32 f64);
numbers!(i16 i32 i64 f32 f64);

impl<N: Number> sealed::Value for [N; 2] {
    type Number = N;
    const PARTS: usize = 2;

    fn part(&mut self, index: usize) -> &mut N {
        &mut self[index]
    }
}

impl<N: Number> Value for [N; 2] {}

/// Takes the values of one channel, or of I and Q, out of samples.
///
/// Made by [`Format::values`] and [`Format::pairs`], which check once that the type holds the values.
///
/// ```
/// use busbar::stream::{Source, StreamSetup};
///
/// # fn main() -> busbar::Result<()> {
/// let source = Source::open("synth:counter?channels=1", &StreamSetup::new())?;
/// let number = source.format().values::<i32>("voltage0_i")?;
/// let signal = source.format().pairs::<f32>("voltage0_i", "voltage0_q")?;
/// let signal = signal.scaled(source.scale("voltage0_i")?);
///
/// let samples = source.next()?;
/// let (mut numbers, mut iq) = ([0; 100], [[0.0; 2]; 100]);
/// assert_eq!(number.read(&samples, &mut numbers)?, 100);
/// assert_eq!(signal.read(&samples, &mut iq)?, 100);
/// assert_eq!((numbers[99], iq[99]), (99, [99.0, 0.0]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Values<T> {
    /// As many as a value has parts.
    parts: Vec<Part>,
    sample_len: usize,
    scale: Scale,
    kind: PhantomData<fn() -> T>,
}

/// Where a number lies in a sample, and what it means.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: usize,
    /// Bytes.
    len: usize,
    big_endian: bool,
    shift: u8,
    /// Bits above the valid ones, once all are shifted.
    unused: u8,
    signed: bool,
}

impl Format {
    /// The channel of this name.
    ///
    /// # Errors
    ///
    /// Bad input, with the names that there are.
    pub fn channel(&self, name: &str) -> Result<&Channel> {
        self.channels.iter().find(|channel| channel.name == name).ok_or_else(|| {
            let names: Vec<_> = self.channels.iter().map(|it| it.name.as_str()).collect();
            Error::invalid("the name of a channel", name, names.join(", "))
        })
    }

    /// Takes the values of this channel out of samples.
    ///
    /// Integers are those that the converter has sent: shifted, and extended by their sign. Floats are the
    /// same, rounded where they have more bits, or [scaled](Values::scaled).
    ///
    /// # Errors
    ///
    /// Bad input for a name that is not there, a channel of more than one number or of more than 64 bits,
    /// and where the type does not hold all its values.
    pub fn values<N: Number>(&self, channel: &str) -> Result<Values<N>> {
        self.parts::<N>(&[channel])
    }

    /// Takes the values of two channels out of samples: I and Q.
    ///
    /// # Errors
    ///
    /// As [`values`](Self::values).
    pub fn pairs<N: Number>(&self, i: &str, q: &str) -> Result<Values<[N; 2]>> {
        self.parts::<[N; 2]>(&[i, q])
    }

    fn parts<T: Value>(&self, names: &[&str]) -> Result<Values<T>> {
        let part = |name: &&str| Part::of::<T::Number>(self.channel(name)?, self.sample_len);
        let parts = names.iter().map(part).collect::<Result<_>>()?;
        let sample_len = self.sample_len.max(1);
        Ok(Values { parts, sample_len, scale: Scale::default(), kind: PhantomData })
    }
}

impl<T: Value> Values<T> {
    /// Fills `to` from the first samples on, as far as both go; returns how many values there were.
    ///
    /// Samples that the network has put into parts are copied together first, as by [`Samples::read`].
    ///
    /// # Errors
    ///
    /// As [`Samples::read`].
    pub fn read(&self, samples: &Samples, to: &mut [T]) -> Result<usize> {
        Ok(self.copy(&samples.read()?, to))
    }

    /// The same from bytes, which begin with a sample.
    pub fn copy(&self, samples: &[u8], to: &mut [T]) -> usize {
        let count = to.len().min(samples.len() / self.sample_len);
        let (samples, to) = (samples.chunks_exact(self.sample_len), &mut to[..count]);
        for (index, part) in self.parts.iter().enumerate().take(T::PARTS) {
            let to = to.iter_mut().map(|value| value.part(index));
            part.copy(samples.clone(), to, self.scale);
        }
        count
    }
}

impl<T: Value<Number: Float>> Values<T> {
    /// Makes values with a unit from now on. The same for I and Q.
    #[must_use]
    pub fn scaled(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }
}

impl Part {
    fn of<N: Number>(channel: &Channel, sample_len: usize) -> Result<Self> {
        let Channel { signed, bits, storage_bits, shift, big_endian, offset, .. } = *channel;
        let bad = |allowed: &str| {
            let kind = format!(
                "{}{bits}/{storage_bits}>>{shift} times {}",
                if signed { 's' } else { 'u' },
                channel.repeat
            );
            Err(Error::invalid(format!("channel `{}`", channel.name), kind, allowed))
        };
        if !matches!(storage_bits, 8 | 16 | 32 | 64) || channel.repeat != 1 {
            return bad("one number of 8, 16, 32 or 64 bits");
        }
        let fits = u16::from(bits) + u16::from(shift) <= u16::from(storage_bits);
        let within = offset.checked_add(channel.len()).is_some_and(|end| end <= sample_len);
        if bits == 0 || !fits || !within {
            return bad("bits that lie in their number, and in the sample");
        }
        if !N::holds(bits, signed) {
            return bad("as many bits as the type has, of which the sign is one");
        }
        Ok(Self { offset, len: channel.len(), big_endian, shift, unused: 64 - bits, signed })
    }

    /// One loop for each length and order of bytes.
    fn copy<'a, N: Number + 'a>(
        self,
        samples: impl Iterator<Item = &'a [u8]>,
        to: impl Iterator<Item = &'a mut N>,
        scale: Scale,
    ) {
        macro_rules! copy {
            ($type:ty, $from:ident) => {{
                for (sample, to) in samples.zip(to) {
                    let bytes = sample[self.offset..].first_chunk();
                    let bits = bytes.map_or(0, |bytes| u64::from(<$type>::$from(*bytes)));
                    *to = N::from_raw(self.extend(bits), scale);
                }
            }};
        }
        match (self.len, self.big_endian) {
            (1, _) => copy!(u8, from_le_bytes),
            (2, false) => copy!(u16, from_le_bytes),
            (2, true) => copy!(u16, from_be_bytes),
            (4, false) => copy!(u32, from_le_bytes),
            (4, true) => copy!(u32, from_be_bytes),
            (_, false) => copy!(u64, from_le_bytes),
            (_, true) => copy!(u64, from_be_bytes),
        }
    }

    /// Without what is not valid.
    fn extend(self, bits: u64) -> Raw {
        let high = bits >> self.shift << self.unused;
        let bits = if self.signed {
            (high.cast_signed() >> self.unused).cast_unsigned()
        } else {
            high >> self.unused
        };
        Raw { bits, signed: self.signed }
    }
}

#[cfg(test)]
mod tests;
