//! Threads that can be told to stop waiting.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a thread that is told to quit may go on waiting.
pub(super) const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    static QUIT: OnceCell<Arc<AtomicBool>> = const { OnceCell::new() };
}

/// Once `quit` is set, all deadlines of this thread have passed, and its waits notice that within 100 ms.
///
/// This is for a thread that runs an operation which another thread may end, such as `Receiver::connect_timeout`. The
/// operation returns what it returns after its time limit, and undoes the same. It needs a limit: `Duration::MAX` will do.
pub fn quit_when(quit: Arc<AtomicBool>) {
    // A second call has no effect.
    QUIT.with(|cell| _ = cell.set(quit));
}

/// Whether this thread is to quit; `None` if it cannot be told to.
pub(super) fn quits() -> Option<bool> {
    QUIT.with(|cell| cell.get().map(|quit| quit.load(Ordering::Relaxed)))
}
