//! What the commands that pass data on share: progress, and what ends them.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use busbar::{Error, Result};
use busbar_coprocessor::{Stop, StopHandle};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

/// How often progress is printed.
pub const EACH: Duration = Duration::from_secs(1);
/// Time between two looks at the clock.
pub const TICK: Duration = Duration::from_millis(100);

/// A bar of this template; hidden where lines of JSON are printed.
pub fn bar(json: bool, template: &str) -> ProgressBar {
    let bar = if json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

/// Adds what may help if listening fails.
pub fn explain_listen(error: Error) -> Error {
    match error.kind() {
        // It is about something else, such as a USB function.
        _ if error.advice().is_some() => error,
        io::ErrorKind::AddrInUse => {
            error.help("another program listens there, see `ss -ltnp`; use another port")
        }
        io::ErrorKind::AddrNotAvailable => error.help("`ip address` lists those of this machine"),
        io::ErrorKind::PermissionDenied => {
            error.help("ports below 1024 need root, or CAP_NET_BIND_SERVICE")
        }
        _ => error,
    }
}

/// SIGINT, SIGTERM and SIGHUP as a descriptor: settings and memory have to be given back before the end, and recordings
/// to be completed. SIGUSR1 and SIGUSR2 have no effect: other servers know them, so they are sent by habit.
///
/// `is_read`: standard output is what the command is run for. Then it also ends when the reader of that leaves, however
/// long there is nothing to print.
pub fn interruption(is_read: bool) -> Result<Stop> {
    for signal in [Signal::USR1, Signal::USR2] {
        signal_hook::flag::register(signal.as_raw(), Arc::default())
            .map_err(|why| Error::new("catch", "SIGUSR1 and SIGUSR2", why))?;
    }
    let stop = Stop::new()?.on_signal(Signal::INT.as_raw())?.on_signal(Signal::TERM.as_raw())?;
    if is_read {
        let handle = stop.handle();
        let thread = thread::Builder::new().name("busbar-reader".into());
        thread
            .spawn(move || wait_for_end_of_reader(&handle))
            .map_err(|why| Error::new("start", "a thread", why))?;
    }
    stop.on_hangup()
}

/// Goes on for as long as the process does, unless the reader leaves. A file has none.
fn wait_for_end_of_reader(handle: &StopHandle) {
    let out = io::stdout();
    loop {
        // Without an event to wait for, there are errors and the end.
        match poll(&mut [PollFd::new(&out, PollFlags::empty())], None) {
            // After Ctrl-C, the reader in the same terminal has left, too.
            Ok(_) => return handle.stop_in_order(),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Processor time of this process in seconds, in user space and in the kernel.
pub fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}
