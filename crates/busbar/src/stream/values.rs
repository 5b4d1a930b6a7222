//! Samples as numbers.

use std::marker::PhantomData;

use super::format::{Channel, Format};
use super::samples::Samples;
use crate::{Error, Result};

/// How to convert the value of a channel into a unit: `(value + offset) * scale`, as in IIO. The
/// unit is that of the channel's kind in `Documentation/ABI/testing/sysfs-bus-iio`: millivolts for a
/// voltage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// What is added first.
    pub offset: f64,
    /// The factor of the sum.
    pub scale: f64,
}

/// Leaves values as they are.
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

/// Samples that are read at a time.
const SOME: usize = 1024;

mod sealed {
    /// A value as it was received, sign-extended to 64 bits where it has a sign.
    #[derive(Clone, Copy)]
    pub struct Raw {
        pub bits: u64,
        pub signed: bool,
    }

    pub trait Number: Default {
        /// Whether the type holds every integer of so many bits, or rounds those that it does not hold.
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

/// A number type that values are converted into: `i16`, `i32`, `i64`, `f32`, `f64`.
pub trait Number: sealed::Number + Value {}

/// A number type that can be scaled: `f32`, `f64`.
pub trait Float: Number {}

/// A [`Number`], or an array of two for I and Q, laid out like a complex number.
pub trait Value: sealed::Value + Copy {}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl sealed::Number for $type {
            fn holds(bits: u8, signed: bool) -> bool {
                u32::from(bits) + u32::from(!signed) <= Self::BITS
            }

            #[allow(clippy::cast_possible_truncation)] // `holds` was checked
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

            // The conversion rounds.
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
    /// One part, or two for I and Q.
    parts: Vec<Part>,
    sample_len: usize,
    scale: Scale,
    kind: PhantomData<fn() -> T>,
}

/// The place of a number in a sample, and its type.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: usize,
    /// Its bytes.
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
    /// Bad input if there is no channel of this name; the error lists the names.
    pub fn channel(&self, name: &str) -> Result<&Channel> {
        self.channels.iter().find(|channel| channel.name == name).ok_or_else(|| {
            let names: Vec<_> = self.channels.iter().map(|it| it.name.as_str()).collect();
            Error::invalid("the name of a channel", name, names.join(", "))
        })
    }

    /// Takes the values of this channel out of samples.
    ///
    /// Integers are those of the converter, shifted and sign-extended. Floats are the same values, rounded
    /// if they have more bits, or [scaled](Values::scaled).
    ///
    /// # Errors
    ///
    /// Bad input if there is no such channel, for a channel of several numbers or of more than 64 bits,
    /// and if the type does not hold all its values.
    pub fn values<N: Number>(&self, channel: &str) -> Result<Values<N>> {
        self.parts::<N>(&[channel])
    }

    /// Takes the values of two channels, I and Q, out of samples.
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
    /// Fills `to` with the first samples. Returns the number of values: the shorter length of both.
    ///
    /// Samples in several parts are copied together first, as by [`Samples::read`].
    ///
    /// # Errors
    ///
    /// As [`Samples::read`].
    pub fn read(&self, samples: &Samples, to: &mut [T]) -> Result<usize> {
        let read = samples.read()?;
        let mut rest = read.bytes();
        let count = to.len().min(rest.len() / self.sample_len);
        let mut some = Vec::new();
        for to in to[..count].chunks_mut(SOME) {
            let (next, behind) = rest.split_at(to.len() * self.sample_len);
            some.clear();
            next.append_to(&mut some);
            self.copy(&some, to);
            rest = behind;
        }
        Ok(count)
    }

    /// As [`read`](Self::read), from bytes that begin with a sample.
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
    /// Converts values into a unit from now on. I and Q get the same scale.
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
            return bad("bits within the number, and a number within the sample");
        }
        if !N::holds(bits, signed) {
            return bad("at most the bits of the type, one of which is the sign");
        }
        Ok(Self { offset, len: channel.len(), big_endian, shift, unused: 64 - bits, signed })
    }

    /// Has one loop for each length and byte order.
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

    /// The valid bits, sign-extended.
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
