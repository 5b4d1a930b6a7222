//! Options of a stream over the network.

use std::time::Duration;

use crate::stream::silence;
use crate::{Error, Result};

/// Options of a stream over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether the sender computes a check sum of each block. The receiver verifies those that are there.
    pub checksum: bool,
    /// How long to try to connect before it is an error, at first and after each break. A receiver waits
    /// for its first sender without a limit.
    pub patience: Duration,
    /// How long a connection may be silent before it is closed: 3 seconds at least, as both ends send a frame each
    /// second. For each frame that it has begun, a sender has this time and a second for each
    /// 16 KiB. A sender that does not say that it is there, since its program does not let it work in between, may be silent
    /// for the time of four blocks, or for a minute if it tells no rate, if that is longer. Over USB, where there is one
    /// sender, it may be silent between frames. [`Duration::MAX`] is no limit, but for the kernel, which closes a connection
    /// whose peer acknowledges nothing for 24 days.
    pub silence: Duration,
    /// Most bytes of all blocks of a [`FrameReceiver`](super::FrameReceiver) together, in whole pages. The sender
    /// determines the length of the blocks; a sender whose blocks would take more is refused. The memory that was
    /// given to [`FrameReceiver::over`](super::FrameReceiver::over) is not part of it: blocks that are copied out
    /// of that are.
    pub memory_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        let (patience, silence) = (Duration::from_secs(30), Duration::from_secs(10));
        Self { checksum: false, patience, silence, memory_limit: 64 << 20 }
    }
}

impl Options {
    /// No check sums, patience of 30 s, silence of 10 s, a memory limit of 64 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`checksum`](Self#structfield.checksum).
    #[must_use]
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.checksum = checksum;
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets [`silence`](Self#structfield.silence).
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sets [`memory_limit`](Self#structfield.memory_limit).
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: usize) -> Self {
        self.memory_limit = memory_limit;
        self
    }

    /// The address of `ADDRESS[?silence=TIME]`, and these options with the time that it says.
    ///
    /// # Errors
    ///
    /// As [`silence::split`]; as [`check`](Self::check).
    pub(crate) fn of_name<'a>(&self, name: &'a str) -> Result<(&'a str, Self)> {
        let (address, silence) = silence::split(name)?;
        let options = Self { silence: silence.unwrap_or(self.silence), ..self.clone() };
        options.check()?;
        Ok((address, options))
    }

    /// Fails if a peer that sends a frame each second could be taken for a silent one.
    pub(super) fn check(&self) -> Result<()> {
        if self.silence >= LEAST_SILENCE {
            return Ok(());
        }
        Err(Error::invalid("silence", format!("{:?}", self.silence), "3s or more"))
    }

    /// How long a frame with a payload of so many bytes may take.
    pub(super) fn frame_time(&self, len: u32) -> Duration {
        self.silence.saturating_add(Duration::from_secs((len / SLOWEST).into()))
    }
}

/// Bytes of a frame that a sender must send in a second, on average.
const SLOWEST: u32 = 16 << 10;

/// A frame or two may be late.
const LEAST_SILENCE: Duration = Duration::from_secs(3);

/// How often each end sends a frame at least.
pub(super) const BEAT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_time_for_a_frame_each_second() {
        let options = Options::new().checksum(true);
        assert_eq!(options.of_name("host:1").unwrap(), ("host:1", options.clone()));
        let short = options.clone().silence(LEAST_SILENCE);
        assert_eq!(options.of_name("host:1?silence=3").unwrap(), ("host:1", short));
        let error = options.of_name("host:1?silence=2999ms").unwrap_err().to_string();
        assert!(
            error.contains("silence: `2.999s` is not allowed (allowed: 3s or more)"),
            "{error}"
        );
    }
}
