//! Errors of a configuration.

use std::fmt;

use crate::Error;

/// An invalid value in a [`Config`](super::Config).
#[derive(Debug)]
pub(in crate::pipeline) struct Fault {
    /// The path of the key, such as `sink`, `net`, `input`.
    pub path: Vec<String>,
    pub value: String,
    pub allowed: String,
}

impl Fault {
    pub(in crate::pipeline) fn new(
        path: &[&str],
        value: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Self {
        let path = path.iter().map(ToString::to_string).collect();
        Self { path, value: value.to_string(), allowed: allowed.to_string() }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::invalid(format!("`{}`", fault.path.join(".")), fault.value, fault.allowed)
    }
}
