//! Printing: a reader that goes away causes an error, never a panic.

use std::error::Error as _;
use std::fmt;
use std::io::{self, Write};

use busbar::{Error, Result};
use serde::Serialize;

/// Why standard output cannot be written to: its reader has left, such as `head`. That ends a command, and is nothing to
/// complain about.
#[derive(Debug)]
struct ReaderLeft;

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its reader has left")
    }
}

impl std::error::Error for ReaderLeft {}

/// An error of writing to standard output.
#[must_use]
pub fn stdout_failed(error: io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(error.kind(), ReaderLeft),
        _ => error,
    };
    Error::new("write to", "standard output", why)
}

/// Whether an error is that the reader of standard output has left.
#[must_use]
pub fn has_reader_left(error: &Error) -> bool {
    let why = error.source().and_then(|why| why.downcast_ref::<io::Error>());
    why.and_then(io::Error::get_ref).and_then(|why| why.downcast_ref::<ReaderLeft>()).is_some()
}

/// Prints a line on standard output.
pub fn print_line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(stdout_failed)
}

/// Prints a value over several lines.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_text(serde_json::to_string_pretty(value))
}

/// Prints a value as one line.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    print_text(serde_json::to_string(value))
}

fn print_text(json: serde_json::Result<String>) -> Result<()> {
    print_line(&json.map_err(|why| Error::new("print", "JSON", io::Error::from(why)))?)
}

/// Prints a line on standard error, and ignores an error of that.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reader_of_standard_output_may_leave_in_silence() {
        let closed = || io::Error::from_raw_os_error(libc::EPIPE);
        assert!(has_reader_left(&stdout_failed(closed())));
        assert!(!has_reader_left(&stdout_failed(io::Error::from_raw_os_error(libc::ENOSPC))));
        assert!(!has_reader_left(&Error::new("write to", "standard output", closed())));
    }
}
