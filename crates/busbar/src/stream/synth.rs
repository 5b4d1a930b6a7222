//! Computed samples, without a device.
//!
//! When a block is queued determines which samples it gets and when it is full. The samples are computed
//! when the block is taken.

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::epoll::EventFlags;

use super::about::About;
use super::driver::{Filled, Opened, Pending, Receiver, Taken};
use super::format::{Channel, Format, Lost};
use super::loss::Detector;
use super::scan::{self, Type};
use super::setup::{Interface, StreamSetup};
use crate::block::{Block, BytesMut, Memory, Purpose};
use crate::poll::{Set, Timer, later};
use crate::{Error, Result};

const VALUES: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
/// Entries of the sine table, which holds one period.
const TABLE: usize = 1 << 14;

pub(super) fn open(text: &str, setup: &StreamSetup) -> Result<Opened> {
    if setup.interface.is_some_and(|interface| interface != Interface::Synth) {
        let asked = setup.interface.map_or(String::new(), |interface| interface.to_string());
        return Err(Error::invalid("the interface of a `synth:` source", asked, "synth"));
    }
    let wanted = Wanted::parse(text)?;
    let channels = channels(&wanted, &setup.channels)?;
    let rate = (wanted.rate > 0.0).then_some(wanted.rate);
    let (channels, sample_len) = channels;
    let format = Format { channels, sample_len, rate };
    let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Program));
    let samples = (setup.block_len / sample_len).max(1);
    let generator = Generator::new(&wanted, &format);
    let blocks = Block::several(setup.count(), samples * sample_len, &memory)?;
    let synth = Synth::new(generator, rate, samples, blocks);
    let detector = Detector::new(&format, false);
    let (blocks, block_len) = (setup.count(), samples * sample_len);
    let about =
        About { format, interface: Interface::Synth, memory, blocks, block_len, device: None };
    Ok(Opened { label: format!("synth:{text}"), receiver: Box::new(synth), detector, about })
}

/// The samples of a source with all of its channels.
pub(super) fn format(text: &str) -> Result<Format> {
    let wanted = Wanted::parse(text)?;
    let values = VALUES.iter().take(2 * wanted.pairs).copied();
    let names: Vec<_> = values.chain(["count0", "timestamp"]).map(String::from).collect();
    let (channels, sample_len) = channels(&wanted, &names)?;
    Ok(Format { channels, sample_len, rate: (wanted.rate > 0.0).then_some(wanted.rate) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Counter,
    Sine,
    Noise,
}

/// The source that a name describes.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    pattern: Pattern,
    /// Samples per second; 0: without limit.
    rate: f64,
    pairs: usize,
    /// Periods per sample.
    frequency: f64,
    amplitude: f64,
}

impl Wanted {
    fn parse(text: &str) -> Result<Self> {
        let (pattern, keys) = text.split_once('?').unwrap_or((text, ""));
        let pattern = match pattern {
            "counter" => Pattern::Counter,
            "sine" => Pattern::Sine,
            "noise" => Pattern::Noise,
            _ => {
                let allowed = "counter, sine, noise";
                return Err(Error::invalid("the pattern of `synth:`", pattern, allowed));
            }
        };
        let mut wanted = Self { pattern, rate: 0.0, pairs: 2, frequency: 0.01, amplitude: 0.5 };
        let mut frequency = None;
        for pair in keys.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = |allowed: std::ops::RangeInclusive<f64>| {
                quantity(value).filter(|number| allowed.contains(number)).ok_or_else(|| {
                    let allowed = format!("{} to {}", allowed.start(), allowed.end());
                    Error::invalid(format!("`{key}` of `synth:`"), value, allowed)
                })
            };
            match key {
                "rate" => wanted.rate = number(0.0..=1e9)?,
                "channels" => {
                    wanted.pairs = match value {
                        "1" => 1,
                        "2" => 2,
                        _ => return Err(Error::invalid("`channels` of `synth:`", value, "1, 2")),
                    }
                }
                "frequency" => frequency = Some(number(0.0..=1e9)?),
                "amplitude" => wanted.amplitude = number(0.0..=1.0)?,
                _ => {
                    let allowed = "rate, channels, frequency, amplitude";
                    return Err(Error::invalid("a key of `synth:`", key, allowed));
                }
            }
        }
        if let Some(frequency) = frequency {
            wanted.frequency = if wanted.rate > 0.0 && frequency >= 1.0 {
                frequency / wanted.rate
            } else {
                frequency
            };
            if wanted.frequency >= 1.0 {
                let allowed = "a fraction of the rate, or hertz below the rate";
                return Err(Error::invalid("`frequency` of `synth:`", frequency, allowed));
            }
        }
        Ok(wanted)
    }
}

/// A number that may end in `k`, `M` or `G`.
fn quantity(text: &str) -> Option<f64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        b'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok()? * factor;
    number.is_finite().then_some(number)
}

fn channels(wanted: &Wanted, names: &[String]) -> Result<(Vec<Channel>, usize)> {
    let values = VALUES.iter().take(2 * wanted.pairs).map(|name| (*name, "le:s16/16"));
    let all = values.chain([("count0", "le:u64/64"), ("timestamp", "le:s64/64")]);
    let all: Vec<_> = all.zip(0..).collect();
    for name in names {
        if !all.iter().any(|((known, _), _)| known == name) {
            let known: Vec<_> = all.iter().map(|((known, _), _)| *known).collect();
            return Err(Error::invalid("a channel of `synth:`", name, known.join(", ")));
        }
    }
    let is_wanted = |name: &str| {
        if names.is_empty() { VALUES.contains(&name) } else { names.iter().any(|one| one == name) }
    };
    let scan = all.into_iter().filter(|((name, _), _)| is_wanted(name));
    let scan =
        scan.filter_map(|((name, text), index)| Some((index, name.to_owned(), Type::parse(text)?)));
    scan::layout(scan.collect())
        .ok_or_else(|| Error::invalid("the channels of `synth:`", names.join(", "), "one or more"))
}

/// Determines which samples blocks get, and when.
#[derive(Debug)]
struct Synth {
    generator: Generator,
    rate: Option<f64>,
    /// Samples in a block.
    samples: u64,
    started: Instant,
    /// The same moment on the wall clock.
    started_wall: SystemTime,
    queued: VecDeque<Queued>,
    /// The sample after the last one that has a block.
    next: u64,
    watched: Option<Timer>,
}

#[derive(Debug)]
struct Queued {
    block: Block,
    /// Its first sample.
    first: u64,
    /// Samples missing before that.
    lost: u64,
}

impl Synth {
    /// Starts now, with `blocks` queued.
    fn new(generator: Generator, rate: Option<f64>, samples: usize, blocks: Vec<Block>) -> Self {
        let started = Instant::now();
        let mut synth = Self {
            generator,
            rate,
            samples: samples as u64,
            started,
            started_wall: SystemTime::now(),
            queued: VecDeque::new(),
            next: 0,
            watched: None,
        };
        for block in blocks {
            synth.queue_at(block, started);
        }
        synth
    }

    /// The sample that is taken at this time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not negative
    fn sample_at(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.started).as_secs_f64();
        self.rate.map_or(0, |rate| (elapsed * rate) as u64)
    }

    /// When this many samples have been taken.
    #[allow(clippy::cast_precision_loss)] // exact for 100 days at 1 GHz
    fn time_of(&self, samples: u64) -> Instant {
        let elapsed = self.rate.map_or(0.0, |rate| samples as f64 / rate);
        let elapsed = Duration::try_from_secs_f64(elapsed).unwrap_or(Duration::MAX);
        // The clock cannot represent a time that far away.
        self.started
            .checked_add(elapsed)
            .unwrap_or_else(|| later(Instant::now(), Duration::from_secs(3600)))
    }

    fn ready(&self) -> Option<Instant> {
        Some(self.time_of(self.queued.front()?.first + self.samples))
    }

    fn queue_at(&mut self, block: Block, now: Instant) {
        // Samples that were taken while no block was queued are lost.
        let first = self.next.max(self.sample_at(now));
        self.queued.push_back(Queued { block, first, lost: first - self.next });
        self.next = first + self.samples;
    }

    fn rearm(&self) -> Result<()> {
        let Some(timer) = &self.watched else { return Ok(()) };
        timer.set(self.ready())
    }

    /// As [`rearm`](Self::rearm), after a block was taken. If the next one is ready as well, the timer has expired
    /// already.
    fn rearm_after(&self, now: Instant) -> Result<()> {
        if self.ready().is_some_and(|ready| ready <= now) { Ok(()) } else { self.rearm() }
    }
}

impl Receiver for Synth {
    fn queue(&mut self, block: Block) -> Result<()> {
        self.queue_at(block, Instant::now());
        if self.queued.len() == 1 { self.rearm() } else { Ok(()) }
    }

    fn take(&mut self) -> Result<Taken> {
        let now = Instant::now();
        let Some(ready) = self.ready().filter(|ready| *ready <= now) else {
            return Ok(Taken::Nothing);
        };
        let Some(Queued { mut block, first, lost }) = self.queued.pop_front() else {
            return Ok(Taken::Nothing);
        };
        let time = self.rate.and_then(|_| {
            self.started_wall.checked_add(ready.saturating_duration_since(self.started))
        });
        let time = time.unwrap_or_else(SystemTime::now);
        let samples = usize::try_from(self.samples).unwrap_or(usize::MAX);
        let filled = block.write().map(|mut filling| {
            let mut bytes = filling.bytes_mut();
            let len = (samples * self.generator.sample_len).min(bytes.len());
            let times = Times::new(self.rate, self.started_wall, time);
            self.generator.fill_block(bytes.slice(..len), first, &times);
        });
        self.rearm_after(now)?;
        Ok(match filled {
            Ok(()) => {
                Taken::Filled(Filled { block, time, samples, lost: Some(Lost::Samples(lost)) })
            }
            Err(error) => Taken::Failed(block, error),
        })
    }

    fn pending(&self) -> Pending {
        self.ready().map_or(Pending::Block, Pending::Until)
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        let timer = Timer::new()?;
        set.add(&timer, 0, EventFlags::IN)?;
        self.watched = Some(timer);
        self.rearm()
    }

    fn stop(&mut self) -> Result<()> {
        self.queued.clear();
        Ok(())
    }
}

/// Computes the samples.
#[derive(Debug)]
struct Generator {
    pattern: Pattern,
    sample_len: usize,
    /// Number and offset of each value.
    values: Vec<(usize, usize)>,
    count: Option<usize>,
    timestamp: Option<usize>,
    /// Periods per sample, in units of 2⁻⁶⁴.
    step: u64,
    amplitude: f64,
    table: Vec<i16>,
}

impl Generator {
    fn new(wanted: &Wanted, format: &Format) -> Self {
        let offset = |name: &str| {
            format.channels.iter().find(|channel| channel.name == name).map(|one| one.offset)
        };
        let values = VALUES.iter().enumerate();
        Self {
            pattern: wanted.pattern,
            sample_len: format.sample_len,
            values: values.filter_map(|(number, name)| Some((number, offset(name)?))).collect(),
            count: offset("count0"),
            timestamp: offset("timestamp"),
            step: part(wanted.frequency),
            amplitude: wanted.amplitude,
            table: if wanted.pattern == Pattern::Sine {
                table(wanted.amplitude)
            } else {
                Vec::new()
            },
        }
    }

    /// As [`fill`](Self::fill), into a block, by a buffer on the stack.
    fn fill_block(&self, mut bytes: BytesMut<'_>, first: u64, times: &Times) {
        let mut some = [0; 4096];
        let samples = some.len() / self.sample_len;
        let starts = (0..bytes.len()).step_by(samples * self.sample_len);
        for (start, number) in starts.zip((first..).step_by(samples)) {
            let end = bytes.len().min(start + samples * self.sample_len);
            let some = &mut some[..end - start];
            self.fill(some, number, times);
            bytes.slice(start..end).copy_from(some);
        }
    }

    /// Fills whole samples, the first of which has the number `first`.
    fn fill(&self, bytes: &mut [u8], first: u64, times: &Times) {
        let is_dense = self.values.iter().all(|(number, offset)| 2 * number == *offset);
        match self.sample_len {
            8 if is_dense && self.values.len() == 4 => self.fill_dense::<8>(bytes, first),
            4 if is_dense && self.values.len() == 2 => self.fill_dense::<4>(bytes, first),
            _ => self.fill_any(bytes, first, times),
        }
    }

    /// Fills samples that have nothing but values, in their order.
    fn fill_dense<const LEN: usize>(&self, bytes: &mut [u8], first: u64) {
        if self.pattern == Pattern::Counter {
            // As many at a time as the processor can.
            for (sample, index) in bytes.as_chunks_mut::<LEN>().0.iter_mut().zip(0..) {
                sample.copy_from_slice(&first.wrapping_add(index).to_le_bytes()[..LEN]);
            }
            return;
        }
        for (sample, number) in bytes.as_chunks_mut::<LEN>().0.iter_mut().zip(first..) {
            sample.copy_from_slice(&join(self.values(number)).to_le_bytes()[..LEN]);
        }
    }

    fn fill_any(&self, bytes: &mut [u8], first: u64, times: &Times) {
        for (sample, number) in bytes.chunks_exact_mut(self.sample_len).zip(first..) {
            let values = self.values(number);
            for &(value, offset) in &self.values {
                sample[offset..offset + 2].copy_from_slice(&values[value].to_le_bytes());
            }
            if let Some(offset) = self.count {
                sample[offset..offset + 8].copy_from_slice(&number.to_le_bytes());
            }
            if let Some(offset) = self.timestamp {
                sample[offset..offset + 8].copy_from_slice(&times.at(number).to_le_bytes());
            }
        }
    }

    /// The four values of a sample.
    fn values(&self, number: u64) -> [u16; 4] {
        #[allow(clippy::cast_possible_truncation)] // 16 bits
        let split = |all: u64| [0, 16, 32, 48].map(|shift| (all >> shift & 0xffff) as u16);
        match self.pattern {
            Pattern::Counter => split(number),
            Pattern::Noise => split(mix(number)).map(|value| {
                #[allow(clippy::cast_possible_truncation)] // no more than an i16
                let scaled = (f64::from(value.cast_signed()) * self.amplitude) as i16;
                scaled.cast_unsigned()
            }),
            Pattern::Sine => {
                let phase = self.step.wrapping_mul(number);
                let at = |phase: u64| {
                    let place = usize::try_from(phase >> (64 - TABLE.ilog2())).unwrap_or(0);
                    self.table.get(place).copied().unwrap_or(0).cast_unsigned()
                };
                // I leads Q by a quarter; the second pair is the first one swapped.
                let (i, q) = (at(phase.wrapping_add(1 << 62)), at(phase));
                [i, q, q, i]
            }
        }
    }
}

/// The times of the samples, in nanoseconds since 1970.
struct Times {
    /// The time of sample 0.
    start: i64,
    /// From one sample to the next.
    period: f64,
}

impl Times {
    /// Without a rate, all samples of a block have the time `now`.
    fn new(rate: Option<f64>, started: SystemTime, now: SystemTime) -> Self {
        let time = if rate.is_some() { started } else { now };
        let start = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let start = i64::try_from(start).unwrap_or(i64::MAX);
        Self { start, period: rate.map_or(0.0, |rate| 1e9 / rate) }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // exact for 104 days
    fn at(&self, number: u64) -> i64 {
        self.start.saturating_add((number as f64 * self.period) as i64)
    }
}

/// The values of a sample as one number, the first in the lowest bits.
fn join(values: [u16; 4]) -> u64 {
    values.iter().rev().fold(0, |all, value| all << 16 | u64::from(*value))
}

/// A number below 1, in units of 2⁻⁶⁴.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
fn part(of_one: f64) -> u64 {
    (of_one * 2_f64.powi(64)) as u64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // within i16
fn table(amplitude: f64) -> Vec<i16> {
    let value = |place: usize| (place as f64 / TABLE as f64 * TAU).sin();
    (0..TABLE)
        .map(|place| (value(place) * amplitude * f64::from(i16::MAX)).round() as i16)
        .collect()
}

/// 64 pseudo-random bits, always the same ones for a number (`SplitMix64`).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
