//! Threads that can be told to wait no longer.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a thread that is told to quit may wait on.
pub(super) const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    static QUIT: OnceCell<Arc<AtomicBool>> = const { OnceCell::new() };
}

/// From now on, all deadlines of this thread have passed once `quit` is set, and its waits notice that
/// within a tenth of a second: for a thread that only waits, and for which nobody is to wait. What it does
/// needs a deadline.
#[cfg(feature = "pipeline")]
pub(crate) fn quit_when(quit: Arc<AtomicBool>) {
    // A thread that has one keeps it.
    QUIT.with(|cell| _ = cell.set(quit));
}

/// Whether this thread is to quit; nothing where it cannot be told to.
pub(super) fn quits() -> Option<bool> {
    QUIT.with(|cell| cell.get().map(|quit| quit.load(Ordering::Relaxed)))
}
