//! What commands print: a reader that goes away is an error, and never a panic.

use std::io::{self, Write};

use busbar::{Error, Result};
use serde::Serialize;

/// What is the matter with standard output.
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
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::new("print", "JSON", io::Error::from(error)))?;
    print_line(&text)
}

/// Prints a value as one line.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|why| Error::new("print", "JSON", io::Error::from(why)))?;
    print_line(&text)
}

/// Prints a line on standard error, for whom it may concern: nobody need listen.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
