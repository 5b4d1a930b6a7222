//! How a transfer is watched and limited.

use std::fmt;
use std::time::Duration;

use crate::poll::Deadline;

/// Limits of one transfer, and who is told how far it has come.
///
/// ```
/// use std::time::Duration;
/// use busbar::bulk::Transfer;
///
/// let mut print = |done, total| println!("{done} of {total} bytes");
/// let transfer = Transfer::new().timeout(Duration::from_secs(5)).progress(&mut print);
/// ```
#[derive(Default)]
pub struct Transfer<'a> {
    timeout: Option<Duration>,
    progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

impl<'a> Transfer<'a> {
    /// Takes as long as it takes, and tells nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The whole transfer, answer included, may take so long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Called with the bytes that are done and those of the whole block, now and then and with the
    /// last.
    #[must_use]
    pub fn progress(mut self, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.timeout.map_or(Deadline::NEVER, Deadline::after)
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
