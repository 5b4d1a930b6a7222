//! A small converter of the coprocessor's own: samples in messages.
//!
//! The sender of a message is sent samples from then on, until another one asks: 64-bit counters from 0,
//! the least significant byte first, which is the pattern `counter` of four 16-bit channels, as many
//! in a message as fit. Samples that a full ring has delayed are sent afterwards.

use std::time::{Duration, Instant};

use busbar::{Result, later};

use super::{Port, Service};
use crate::message::MTU;

/// Samples in a message.
const SAMPLES: u64 = MTU as u64 / 8;
/// Default number of samples per second.
const RATE: u64 = 20_000;

/// Sends samples, see the [module](self).
#[derive(Clone, Debug)]
pub struct Converter {
    name: String,
    rate: u64,
    to: Option<u32>,
    begun: Instant,
    sent: u64,
}

impl Converter {
    /// A converter that is announced as `name`, with this many samples per second, at least 1.
    #[must_use]
    pub fn new(name: impl Into<String>, rate: Option<u64>) -> Self {
        let rate = rate.unwrap_or(RATE).max(1);
        Self { name: name.into(), rate, to: None, begun: Instant::now(), sent: 0 }
    }

    /// When the next message is due.
    fn due(&self) -> Instant {
        let nanoseconds = u128::from(self.sent + SAMPLES) * 1_000_000_000 / u128::from(self.rate);
        later(self.begun, Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }
}

impl Service for Converter {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        self.to = None;
        Ok(())
    }

    fn on_message(&mut self, _port: &mut Port<'_>, from: u32, _data: &[u8]) -> Result<()> {
        (self.to, self.begun, self.sent) = (Some(from), Instant::now(), 0);
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.to.map(|_| self.due())
    }

    fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        let Some(to) = self.to else { return Ok(()) };
        while self.due() <= now && port.room() > 0 {
            let message: Vec<u8> =
                (self.sent..self.sent + SAMPLES).flat_map(u64::to_le_bytes).collect();
            port.send(to, &message)?;
            self.sent += SAMPLES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;
    use super::*;

    #[test]
    fn whoever_asks_gets_samples_from_the_first_on() {
        let mut bench = Bench::new(Converter::new("converter", Some(1_000_000)));
        assert!(bench.message(77, b"").unwrap().is_empty());
        let later = Instant::now() + Duration::from_micros(200);
        let sent = bench.tick(later).unwrap();
        // More on a busy machine.
        assert!(sent.len() >= 2, "{}", sent.len());
        let samples: Vec<u64> = sent
            .iter()
            .inspect(|(to, _)| assert_eq!(*to, 77))
            .flat_map(|(_, message)| message.chunks_exact(8))
            .map(|sample| u64::from_le_bytes(sample.try_into().unwrap()))
            .collect();
        assert!(samples.iter().copied().eq(0..samples.len() as u64));
        bench.message(78, b"x").unwrap();
        assert_eq!(bench.tick(Instant::now() + Duration::from_millis(1)).unwrap()[0].0, 78);
    }
}
