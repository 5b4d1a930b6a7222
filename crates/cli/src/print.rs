//! Printing: a reader that goes away causes an error, never a panic.

use std::io::{self, Write};

use busbar::{Error, Result};
use serde::Serialize;

/// An error of writing to standard output.
#[must_use]
pub fn stdout_failed(error: io::Error) -> Error {
    Error::new("write to", "standard output", error)
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
