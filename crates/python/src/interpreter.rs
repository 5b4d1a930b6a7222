//! The interpreter that loads the package.

#![allow(unsafe_code)]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The number of the interpreter with which a process begins.
const MAIN: i64 = 0;

/// An `ImportError` in a sub-interpreter. The classes exist once in a process, so interpreters would share them, and the
/// end of one would leave the others with classes of an interpreter that is gone; and threads that are not Python's, such
/// as that of a coprocessor, can only call the main interpreter.
pub fn check_main(py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached to an interpreter, as `py` shows, so there is one, and it stays meanwhile.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        MAIN => Ok(()),
        -1 => Err(PyErr::fetch(py)),
        id => Err(PyImportError::new_err(format!(
            "busbar: interpreter {id} of the process is not allowed; allowed: the main interpreter (sub-interpreters \
             are not supported: use processes)"
        ))),
    }
}
