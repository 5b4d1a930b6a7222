//! Forks. A child has a copy of each object of its parent, but the devices and descriptors behind them are the same
//! ones: what it gives back or stops, it would take from its parent.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Python calls it in the child after each fork.
#[pyfunction]
pub fn _forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    #[cfg(target_pointer_width = "64")]
    crate::coprocessor::forget_threads();
}

/// The process that has made an object.
#[derive(Clone, Copy)]
pub struct Process(u32);

impl Process {
    pub fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a fork of that one.
    pub fn is_parent(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

/// The error of a child that uses an object of its parent.
pub fn inherited(what: &str) -> PyErr {
    let text = format!("the {what} belongs to the process that this one was forked from");
    pyo3::exceptions::PyValueError::new_err(text)
}
