//! A server of libiio's protocol as a sink.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::Result;
use crate::stream::iiod::{Server, ServerSetup};
use crate::stream::{Format, Lost, Samples};

/// How often events are told: losses are added up meanwhile.
const EACH: Duration = Duration::from_secs(1);
/// How long clients may take to read what there is at the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most turns of the server in one of the sink.
const TURNS: usize = 16;

/// A server with one device, whose samples are those that the sink takes.
#[derive(Debug)]
pub(super) struct Serving {
    server: Server,
    told: Instant,
    /// When the end began.
    ending: Option<Instant>,
}

impl Serving {
    /// `from` is the name of the converter that the samples come from.
    pub(super) fn open(
        setup: &ServerSetup,
        sink: &str,
        format: &Format,
        from: Option<&str>,
    ) -> Result<Self> {
        let device = from.and_then(|from| from.split_once(':'));
        let name = device.map_or(sink, |(_, name)| name.split(['?', '@']).next().unwrap_or(name));
        // A converter with a rate goes on, whether its samples are taken or not.
        let is_paced = device.is_some() && format.rate.is_some();
        let server = Server::pushed(setup, name, format, is_paced)?;
        Ok(Self { server, told: Instant::now(), ending: None })
    }

    /// Takes a block; `false` if a client has no room for it, and its source can wait.
    pub(super) fn take(&mut self, samples: &Samples, lost: Lost) -> bool {
        self.server.push(samples, lost) || self.is_over()
    }

    /// The source has ended: what no client takes soon is dropped.
    pub(super) fn hurry(&mut self) {
        self.ending.get_or_insert_with(Instant::now);
    }

    fn is_over(&self) -> bool {
        let is_late = |since: Instant| !self.server.has_readers() || since.elapsed() >= FAREWELL;
        self.ending.is_some_and(is_late)
    }

    pub(super) fn turn(&mut self) -> Result<()> {
        for _ in 0..TURNS {
            if !self.server.try_turn()? {
                break;
            }
        }
        Ok(())
    }

    /// No more samples come. Returns whether clients have read all, or had the time for it.
    pub(super) fn finish(&mut self) -> Result<bool> {
        self.hurry();
        self.server.finish();
        self.turn()?;
        Ok(!self.server.has_waiting() || self.is_over())
    }

    /// What has happened, once a second.
    pub(super) fn news(&mut self) -> Vec<String> {
        if self.told.elapsed() < EACH {
            return Vec::new();
        }
        self.told = Instant::now();
        self.server.take_events().iter().map(ToString::to_string).collect()
    }

    pub(super) fn copied(&self) -> u64 {
        self.server.counters().copied
    }
}

impl AsFd for Serving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.server.as_fd()
    }
}
