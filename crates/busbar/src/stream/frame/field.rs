//! Errors of fields.

use std::fmt;
use std::io;

use crate::{Error, Result};

/// The error of a frame with an invalid `value` in `field`.
pub(in crate::stream) fn bad(field: &str, value: impl fmt::Display) -> Error {
    let why = io::Error::new(io::ErrorKind::InvalidData, format!("invalid value `{value}`"));
    Error::new("read", format!("the field `{field}` of a frame"), why)
}

/// Returns an error unless `is_valid`.
pub(in crate::stream) fn require<V: fmt::Display>(
    field: &str,
    is_valid: bool,
    value: impl FnOnce() -> V,
) -> Result<()> {
    if is_valid { Ok(()) } else { Err(bad(field, value())) }
}
