//! Controls: commands and events of coprocessors.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::config::ControlConfig;
use super::counters::ControlCounters;
use super::endpoint;
use super::message::{Report, Request};
use crate::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use crate::poll::later;
use crate::{Error, Result};

/// The pause between two attempts to reach a coprocessor.
const PAUSE: Duration = Duration::from_millis(50);
/// Most messages of one turn, so that others have their turn.
const BATCH: usize = 32;
/// Most messages that wait for room.
const MOST_ANSWERS: usize = 256;

/// A coprocessor's service, there or not.
#[derive(Debug)]
pub(super) struct Control {
    pub config: ControlConfig,
    state: State,
    /// Messages that wait for room.
    outgoing: VecDeque<Request>,
    /// How often it came: each time it has another descriptor.
    pub opens: u64,
    pub counts: Counts,
}

#[derive(Debug)]
enum State {
    Down { again: Instant },
    Up { endpoint: Endpoint, _controller: Controller },
}

/// Totals of a control.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub commands: u64,
    pub refused: u64,
    pub events: u64,
    /// Invalid messages.
    pub malformed: u64,
    /// Reactions that took longer than the deadline.
    pub late: u64,
    /// The longest reaction, in microseconds.
    pub slowest: u64,
}

/// The result of one turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub reports: Vec<Report>,
    /// Whether it has come or come back.
    pub came: bool,
    pub trouble: Option<Error>,
}

impl Control {
    pub(super) fn new(config: &ControlConfig) -> Self {
        Self {
            config: config.clone(),
            state: State::Down { again: Instant::now() },
            outgoing: VecDeque::new(),
            opens: 0,
            counts: Counts::default(),
        }
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Down { .. } => "down",
            State::Up { .. } => "up",
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Down { again } => Some(again),
            State::Up { .. } => None,
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Up { endpoint, .. } => Some(endpoint.as_fd()),
            State::Down { .. } => None,
        }
    }

    /// Sends a message, now or when there is room.
    pub(super) fn say(&mut self, request: Request) {
        if self.outgoing.len() < MOST_ANSWERS {
            self.outgoing.push_back(request);
        }
    }

    /// Counts a reaction that took this long.
    pub(super) fn reacted(&mut self, took: Duration) {
        self.counts.late += u64::from(took > self.config.deadline);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts.slowest = self.counts.slowest.max(took);
    }

    pub(super) fn counters(&self) -> ControlCounters {
        let Counts { commands, refused, events, malformed, late, slowest } = self.counts;
        ControlCounters {
            name: self.config.name.clone(),
            state: self.state().into(),
            commands,
            refused,
            events,
            malformed,
            late,
            slowest,
            restarts: self.opens.saturating_sub(1),
        }
    }

    /// Connects, receives messages, and sends those that wait.
    pub(super) fn turn(&mut self) -> Turn {
        let mut turn = Turn::default();
        match &self.state {
            State::Down { again } if Instant::now() < *again => return turn,
            State::Down { .. } => match self.connect() {
                Ok(()) => turn.came = true,
                Err(error) => turn.trouble = Some(error),
            },
            State::Up { .. } => {}
        }
        let heard = self.hear(&mut turn.reports).and_then(|()| self.flush());
        if let Err(error) = heard {
            // Messages that wait have no receiver any more.
            self.outgoing.clear();
            self.state = State::Down { again: later(Instant::now(), PAUSE) };
            turn.trouble = Some(error);
        }
        turn
    }

    fn connect(&mut self) -> Result<()> {
        let (controller, endpoint) = match endpoint::open(&self.config.endpoint) {
            Ok(opened) => opened,
            Err(error) => {
                self.state = State::Down { again: later(Instant::now(), PAUSE) };
                return Err(error);
            }
        };
        self.state = State::Up { endpoint, _controller: controller };
        self.opens += 1;
        self.outgoing.clear();
        for source in &self.config.sources {
            // The configuration was checked: all names are valid.
            self.outgoing.extend(source.parse().map(Request::Start));
        }
        Ok(())
    }

    fn hear(&mut self, reports: &mut Vec<Report>) -> Result<()> {
        let State::Up { endpoint, .. } = &self.state else { return Ok(()) };
        let mut message = [0; MAX_MESSAGE];
        for _ in 0..BATCH {
            let Some(length) = endpoint.try_recv(&mut message)? else { break };
            match Report::decode(&message[..length]) {
                Ok(report) => reports.push(report),
                Err(_) => self.counts.malformed += 1,
            }
        }
        Ok(())
    }

    /// Sends messages that wait, as many as there is room for.
    pub(super) fn flush(&mut self) -> Result<()> {
        let State::Up { endpoint, .. } = &self.state else { return Ok(()) };
        while let Some(request) = self.outgoing.front() {
            if !endpoint.try_send(&request.encode()?)? {
                break;
            }
            self.outgoing.pop_front();
        }
        Ok(())
    }
}
