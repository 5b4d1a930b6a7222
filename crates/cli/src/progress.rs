//! What commands that pass data on share when they tell how it stands.

use std::io::{self, Write};
use std::time::Duration;

use busbar::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::endpoint::print_line;

/// How often it is told.
pub const EACH: Duration = Duration::from_secs(1);

/// A bar of this template; none where lines of JSON are printed.
pub fn bar(json: bool, template: &str) -> ProgressBar {
    let bar = if json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

/// Prints a line on standard error, for whom it may concern: nobody need listen.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says what may help where it is not possible to listen.
pub fn explain_listen(error: Error) -> Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            error.help("another program listens there, `ss -ltnp` says which; take another port")
        }
        io::ErrorKind::AddrNotAvailable => error.help("`ip address` lists those of this machine"),
        io::ErrorKind::PermissionDenied => {
            error.help("ports below 1024 take root, or CAP_NET_BIND_SERVICE")
        }
        _ => error,
    }
}

/// Prints one object.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|why| Error::new("print", "JSON", io::Error::from(why)))?;
    print_line(&text)
}

/// Seconds of processors that this process has used, in user space and in the kernel.
pub fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}
