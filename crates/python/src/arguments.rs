//! Arguments.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{OrRaise, invalid};

/// A time limit; `None` is none.
pub type Timeout = Option<Duration>;

/// A number of seconds.
#[derive(Clone)]
pub enum Seconds {
    For(Duration),
    /// Longer than a clock can count.
    Forever,
    /// What was given instead.
    Other(String),
}

impl Seconds {
    pub const fn new(seconds: u64) -> Self {
        Self::For(Duration::from_secs(seconds))
    }
}

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<f64>() {
            Ok(number) if number.is_nan() || number < 0.0 => Ok(Self::Other(number.to_string())),
            Ok(number) => Ok(Duration::try_from_secs_f64(number).map_or(Self::Forever, Self::For)),
            // A whole number of Python that no float holds.
            Err(error) if !error.is_instance_of::<PyOverflowError>(object.py()) => Err(error),
            Err(_) if object.lt(0)? => Ok(Self::Other(text(object))),
            Err(_) => Ok(Self::Forever),
        }
    }
}

/// The limit that an argument says.
pub fn timeout(argument: &str, seconds: Option<Seconds>) -> PyResult<Timeout> {
    match seconds {
        None | Some(Seconds::Forever) => Ok(None),
        Some(Seconds::For(time)) => Ok(Some(time)),
        Some(Seconds::Other(value)) => {
            Err(invalid(argument, value, "seconds, 0 or more; None for no limit"))
        }
    }
}

/// A limit that is no time at all is a mistake: nothing could be done in it.
pub fn some(argument: &str, seconds: Option<Seconds>, allowed: &str) -> PyResult<Timeout> {
    match timeout(argument, seconds)? {
        Some(Duration::ZERO) => Err(invalid(argument, "0", allowed)),
        limit => Ok(limit),
    }
}

/// A whole number.
pub enum Whole {
    Number(u64),
    /// Negative, or too large.
    Other(String),
}

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<u64>() {
            Ok(number) => Ok(Self::Number(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Ok(Self::Other(text(object)))
            }
            Err(error) => Err(error),
        }
    }
}

impl Whole {
    /// The number, if it is one of these.
    pub fn within<T: TryFrom<u64> + PartialOrd + Display>(
        self,
        argument: &str,
        range: RangeInclusive<T>,
    ) -> PyResult<T> {
        let value = match self {
            Self::Number(number) => match T::try_from(number) {
                Ok(number) if range.contains(&number) => return Ok(number),
                _ => number.to_string(),
            },
            Self::Other(value) => value,
        };
        Err(invalid(argument, value, &format!("{} to {}", range.start(), range.end())))
    }
}

/// A number of bytes: a number, or a text such as `64K` or `1M` (K is 1024).
pub enum Size {
    Bytes(usize),
    Other(String),
}

impl Size {
    /// The number, of an argument.
    pub fn of(self, argument: &str) -> PyResult<usize> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Other(value) => {
                let allowed = "a number of bytes, or a text such as \"64K\" or \"1M\" (K is 1024)";
                Err(invalid(argument, value, allowed))
            }
        }
    }

    fn parse(text: &str) -> Option<usize> {
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
            Some((at, 'M')) => (&text[..at], 1 << 20),
            Some((at, 'G')) => (&text[..at], 1 << 30),
            _ => (text, 1_usize),
        };
        let number: usize =
            digits.bytes().all(|it| it.is_ascii_digit()).then(|| digits.parse().ok())??;
        number.checked_mul(unit)
    }
}

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_string_lossy().into_owned();
            return Ok(Self::parse(&text).map_or(Self::Other(text), Self::Bytes));
        }
        Ok(match Whole::extract(object)? {
            Whole::Number(number) => usize::try_from(number)
                .map_or_else(|_| Self::Other(number.to_string()), Self::Bytes),
            Whole::Other(value) => Self::Other(value),
        })
    }
}

/// A value, for errors.
fn text(object: Borrowed<'_, '_, PyAny>) -> String {
    // Python refuses to write numbers of thousands of digits.
    object.str().map_or_else(|_| "a very large number".to_owned(), |it| it.to_string())
}

/// The text of an option, parsed by the library.
pub fn parsed<T: std::str::FromStr<Err = busbar::Error>>(
    py: Python<'_>,
    argument: &str,
    text: Option<&str>,
) -> PyResult<Option<T>> {
    text.map(|text| text.parse().or_raise_as(py, argument)).transpose()
}

/// A name or path for the system, which ends at a NUL.
pub fn without_nul<'a, T: AsRef<OsStr> + ?Sized>(argument: &str, text: &'a T) -> PyResult<&'a T> {
    if text.as_ref().as_encoded_bytes().contains(&0) {
        let value = text.as_ref().to_string_lossy();
        return Err(invalid(argument, value.escape_debug(), "no NUL"));
    }
    Ok(text)
}
