//! When to open a failed part again.

use std::time::{Duration, Instant};

use super::config::Config;
use crate::poll::later;
use crate::stream::net::Options;
use crate::{Error, Result};

/// Pauses between two attempts.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A patience without a limit: more than a hundred years.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// When to try again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub at: Instant,
    since: Instant,
    pause: Duration,
    patience: Duration,
}

impl Retry {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        let now = Instant::now();
        let patience = patience.unwrap_or(FOREVER);
        Self { at: now, since: now, pause: SHORTEST_PAUSE, patience }
    }

    /// An attempt has succeeded.
    pub(super) fn succeeded(&mut self) {
        self.at = Instant::now();
    }

    /// Whether a failure now, before a block was delivered, is one of the same series: a part that had nothing to
    /// deliver for longer than the patience has a new one.
    pub(super) fn goes_on(&self) -> bool {
        self.at.elapsed() < self.patience
    }

    /// Whether there is no time left.
    pub(super) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.patience
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Plans the next attempt after a failed one; returns `error` as the error if there is no time left.
    pub(super) fn failed(&mut self, error: Error) -> Result<Error> {
        if self.is_over() {
            return Err(error);
        }
        self.at = later(Instant::now(), self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(error)
    }
}

/// How long to try to open a part again.
pub(super) fn patience(own: Option<Duration>, all: &Config) -> Option<Duration> {
    if all.fail_fast { Some(Duration::ZERO) } else { own }
}

/// Options of a connection that is not given up before `patience`.
pub(super) fn options(patience: Option<Duration>) -> Options {
    Options { patience: patience.unwrap_or(FOREVER), ..Options::default() }
}
