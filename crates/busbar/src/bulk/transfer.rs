//! Limits and progress of a transfer.

use std::fmt;
use std::time::Duration;

use crate::poll::Deadline;

/// Length of the longest block that is received by default.
const LIMIT: u32 = 64 << 20;

/// Limits of one transfer, and a callback for its progress.
///
/// ```
/// use std::time::Duration;
/// use busbar::bulk::Transfer;
///
/// let mut print = |done, total| println!("{done} of {total} bytes");
/// let transfer = Transfer::new().timeout(Duration::from_secs(5)).progress(&mut print);
/// ```
pub struct Transfer<'a> {
    timeout: Option<Duration>,
    limit: u32,
    progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

impl Default for Transfer<'_> {
    fn default() -> Self {
        Self { timeout: None, limit: LIMIT, progress: None }
    }
}

impl<'a> Transfer<'a> {
    /// No time limit and no callback.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the time of the whole transfer, including the answer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The longest block that is received, in bytes; 64 MiB by default. The coprocessor determines how long a
    /// block is, and memory is allocated for it. A block of the requested length, or as long as the last one
    /// that was sent, is always allowed.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Sets a callback for the number of bytes that are done and that of the whole block. It is called now
    /// and then, and with the last byte.
    #[must_use]
    pub fn progress(mut self, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.timeout.map_or(Deadline::NEVER, Deadline::after)
    }

    pub(super) fn longest(&self) -> u32 {
        self.limit
    }

    /// Allows a block of this length in any case.
    pub(super) fn allow(&mut self, len: u32) {
        self.limit = self.limit.max(len);
    }

    pub(super) fn tell(&mut self, done: u64, total: u64) {
        if let Some(progress) = &mut self.progress {
            progress(done, total);
        }
    }
}

impl fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
