//! The one error of the library.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// What was tried, on what, why it failed and what to do about it.
#[derive(Debug)]
pub struct Error {
    tried: String,
    on: String,
    source: io::Error,
    help: Option<String>,
}

/// Shorthand for a result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `tried` is a phrase such as "open", `on` the object it was tried on.
    pub fn new(
        tried: impl Into<String>,
        on: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self { tried: tried.into(), on: on.into(), source: source.into(), help: None }
    }

    /// For bad input: `field` is what holds `value`, `allowed` what it may hold.
    pub fn invalid(
        field: impl Into<String>,
        value: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Self {
        let why = io::Error::new(io::ErrorKind::InvalidInput, format!("`{value}` is not allowed"));
        Self::new("use", field, why).help(format!("allowed: {allowed}"))
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The kind of the underlying error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// The system's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.tried, self.on, self.source)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
