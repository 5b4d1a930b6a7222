//! Errors of the library as exceptions.

use busbar::{Error, Reason};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// A `ValueError` that names the argument, its value and what is allowed.
pub fn invalid(argument: &str, value: impl std::fmt::Display, allowed: &str) -> PyErr {
    PyValueError::new_err(format!("{argument}: `{value}` is not allowed; allowed: {allowed}"))
}

/// Raises an error: an `OSError` of the class that its number has, or a `ValueError` for a bad argument.
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    raise_by(py, error, str::to_owned)
}

/// The same; `argument` is told what the library calls a bad value, and returns the name of the argument.
fn raise_by(py: Python<'_>, error: Error, argument: impl FnOnce(&str) -> String) -> PyErr {
    if let Some(input) = error.input() {
        return invalid(&argument(&input.field), &input.value, &input.allowed);
    }
    let make = || {
        // `OSError` itself chooses the class, such as `BrokenPipeError`.
        let exception =
            py.get_type::<PyOSError>().call1((error.number().raw_os_error(), error.to_string()))?;
        exception.setattr("reason", word(error.reason()))?;
        Ok(PyErr::from_value(exception))
    };
    make().unwrap_or_else(|error| error)
}

/// The reason as an attribute: `not_found`, `too_long`.
fn word(reason: Reason) -> String {
    let mut word = String::new();
    for letter in format!("{reason:?}").chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}

/// Shorthand for results of the library.
pub trait OrRaise<T>: Sized {
    /// The value, or the exception. `argument` is told what the library calls a bad value, and returns the name of
    /// the argument.
    fn or_raise_by(self, py: Python<'_>, argument: impl FnOnce(&str) -> String) -> PyResult<T>;

    /// The same, where only one argument can be bad.
    fn or_raise_as(self, py: Python<'_>, argument: &str) -> PyResult<T> {
        self.or_raise_by(py, |_| argument.to_owned())
    }

    /// The same, where no argument can be bad.
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.or_raise_by(py, str::to_owned)
    }
}

impl<T> OrRaise<T> for busbar::Result<T> {
    fn or_raise_by(self, py: Python<'_>, argument: impl FnOnce(&str) -> String) -> PyResult<T> {
        self.map_err(|error| raise_by(py, error, argument))
    }
}
