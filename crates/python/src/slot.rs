//! What an object has until it is closed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::Timeout;
use crate::error::OrRaise;
use crate::process::{Process, inherited};
use crate::wait;

/// A part of the library that several threads use, until it is closed.
pub struct Slot<T: Send + Sync> {
    /// Locked only for moments, and by threads that have the interpreter. So no fork finds it locked.
    held: Mutex<Option<Arc<T>>>,
    what: &'static str,
    home: Process,
}

impl<T: Send + Sync> Slot<T> {
    /// `what` names it in errors.
    pub fn new(held: T, what: &'static str) -> Self {
        Self { held: Mutex::new(Some(Arc::new(held))), what, home: Process::current() }
    }

    /// A `ValueError` once it is closed, as of a file.
    pub fn get(&self) -> PyResult<Arc<T>> {
        if self.home.is_parent() {
            return Err(inherited(self.what));
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        held.ok_or_else(|| PyValueError::new_err(format!("the {} is closed", self.what)))
    }

    /// Takes it out: it is closed from now on, and tasks of asyncio that wait for it are woken.
    pub fn close(&self, thing: &Bound<'_, PyAny>) -> PyResult<Option<Arc<T>>> {
        let Some(held) = self.take() else { return Ok(None) };
        let modules = thing.py().import("sys")?.getattr("modules")?;
        // Where it was not imported, no task waits.
        if let Ok(aio) = modules.get_item("busbar._aio") {
            aio.call_method1("wake", (thing,))?;
        }
        Ok(Some(held))
    }

    fn take(&self) -> Option<Arc<T>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.home.is_parent() {
            std::mem::forget(held);
            return None;
        }
        held
    }

    pub fn is_closed(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// How an object is written: its class, which one it is, and whether it is closed.
    pub fn repr(&self, class: &str, which: impl std::fmt::Debug) -> String {
        let closed = if self.is_closed() { ", closed" } else { "" };
        format!("<busbar.{class} {which:?}{closed}>")
    }
}

impl<T: Send + Sync> Slot<T> {
    /// Waits as [`wait::until`], until it is closed.
    pub fn until<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        mut attempt: impl FnMut(&T, Duration) -> busbar::Result<Option<R>> + Send,
    ) -> PyResult<Option<R>> {
        wait::slices(py, timeout, |slice| {
            let held = self.get()?;
            // The thread that drops it last closes it, which other threads need not wait for.
            let attempt = || {
                let held = held;
                attempt(&held, slice)
            };
            match py.detach(attempt) {
                // To be closed is why it has failed.
                Err(_) if self.is_closed() => self.get().map(|_| None),
                result => result.or_raise(py),
            }
        })
    }
}

impl<T: Send + Sync> Drop for Slot<T> {
    fn drop(&mut self) {
        let mut held = self.take();
        if held.is_some() {
            // To close it may take long, and other threads of Python go on. At the end of the interpreter there are none.
            Python::try_attach(|py| py.detach(|| drop(held.take())));
        }
    }
}

/// The end of a `with` block: an exception of its body is not replaced by one of the end, but gets a note of that.
pub fn leave(py: Python<'_>, args: &Bound<'_, PyTuple>, ended: PyResult<()>) -> PyResult<()> {
    let body = args.get_item(1).ok().filter(|it| !it.is_none());
    match body {
        Some(body) => note(py, &body, ended),
        None => ended,
    }
}

/// Makes the error of an end a note of an exception. What is no `Exception`, such as `KeyboardInterrupt`, is returned.
pub fn note(py: Python<'_>, raised: &Bound<'_, PyAny>, ended: PyResult<()>) -> PyResult<()> {
    match ended {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            raised.call_method1("add_note", (error.value(py).str()?,)).map(drop)
        }
        ended => ended,
    }
}
