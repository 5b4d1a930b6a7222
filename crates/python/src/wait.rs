//! Waits that signals end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::arguments::Timeout;
use crate::error::OrRaise;
use crate::process::{Process, inherited};

/// How long a signal may go unnoticed: a handler of Python runs only in the interpreter.
const SLICE: Duration = Duration::from_millis(100);

/// Repeats `attempt`, which waits for the time that it is told, until it returns something or the timeout is over.
/// The interpreter is free meanwhile. An exception of a signal handler, such as `KeyboardInterrupt`, ends it.
// Only a coprocessor waits so.
#[cfg(target_pointer_width = "64")]
pub fn until<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    mut attempt: impl FnMut(Duration) -> busbar::Result<Option<T>> + Send,
) -> PyResult<Option<T>> {
    slices(py, timeout, |slice| py.detach(|| attempt(slice)).or_raise(py))
}

/// The same; `attempt` has the interpreter, and frees it.
pub fn slices<T>(
    py: Python<'_>,
    timeout: Timeout,
    mut attempt: impl FnMut(Duration) -> PyResult<Option<T>>,
) -> PyResult<Option<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let found = attempt(slice)?;
        if found.is_some() {
            return Ok(found);
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}

/// What a thread tells when its call has returned.
struct Told<T> {
    result: Receiver<busbar::Result<T>>,
    /// The process that has the thread.
    home: Process,
}

/// What a call has returned, or why the wait for it has ended and, unless in a child, what still tells.
type Finished<T> = Result<PyResult<busbar::Result<T>>, (PyErr, Option<Told<T>>)>;

/// Begins a call in a thread of its own.
fn begin<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<Told<T>> {
    let (tell, result) = mpsc::channel();
    std::thread::Builder::new()
        .name("busbar-call".into())
        // If nobody waits any more, this drops it.
        .spawn(move || drop(tell.send(call())))
        .map_err(|why| busbar::Error::new("start", "a thread", why))
        .or_raise(py)?;
    Ok(Told { result, home: Process::current() })
}

/// Waits for the result. If `goes_on` fails, or a signal handler, the wait ends; it can be begun again by the process that
/// has the thread.
fn finish<T: Send>(
    py: Python<'_>,
    mut told: Told<T>,
    goes_on: impl Fn() -> PyResult<()>,
) -> Finished<T> {
    loop {
        let result;
        (result, told) = py.detach(move || (told.result.recv_timeout(SLICE), told));
        match result {
            Ok(result) => return Ok(Ok(result)),
            Err(RecvTimeoutError::Timeout) => {
                let ends = py.check_signals().and_then(|()| goes_on()).err();
                if told.home.is_parent() {
                    // A signal handler has forked: nobody will tell the child, and the thread of its parent may have had a lock.
                    std::mem::forget(told);
                    return Err((ends.unwrap_or_else(|| inherited("call")), None));
                }
                if let Some(why) = ends {
                    return Err((why, Some(told)));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(PyRuntimeError::new_err("the thread of the call has ended")));
            }
        }
    }
}

/// Runs a call that cannot be ended in a thread of its own, and waits for it. If a signal or `goes_on` ends the wait,
/// the call goes on for nothing, so it is one that changes nothing of this machine.
pub fn aside<T: Send + 'static>(
    py: Python<'_>,
    goes_on: impl Fn() -> PyResult<()>,
    call: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<busbar::Result<T>> {
    finish(py, begin(py, call)?, goes_on).unwrap_or_else(|(why, _)| Err(why))
}

/// Runs a call of the library that has a deadline in a thread of its own, and waits for it. If a signal or `goes_on`
/// ends the wait, the deadline has passed, and what the call leaves is undone before the exception is raised; another
/// signal does not wait for that.
pub fn ended<T: Send + 'static>(
    py: Python<'_>,
    goes_on: impl Fn() -> PyResult<()>,
    call: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<busbar::Result<T>> {
    undone(py, goes_on, Duration::MAX, call)
}

/// As [`ended`], for a call that may notice late that its deadline has passed, such as one that waits for a name server or
/// for another machine: after a moment it is left to its thread, which undoes what it leaves.
pub fn opened<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<busbar::Result<T>> {
    undone(py, || Ok(()), SLICE, call)
}

/// Waits up to `patience` until what an ended call leaves is undone.
fn undone<T: Send + 'static>(
    py: Python<'_>,
    goes_on: impl Fn() -> PyResult<()>,
    patience: Duration,
    call: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<busbar::Result<T>> {
    let quit = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&quit);
    let told = begin(py, move || {
        busbar::quit_when(asked);
        call()
    })?;
    finish(py, told, goes_on).unwrap_or_else(|(why, told)| {
        let Some(told) = told else { return Err(why) };
        quit.store(true, Ordering::Relaxed);
        let begin = Instant::now();
        let is_over = || begin.elapsed() >= patience;
        let waits =
            || if is_over() { Err(PyRuntimeError::new_err("it takes long")) } else { Ok(()) };
        match finish(py, told, waits) {
            Ok(result) => py.detach(move || drop(result)),
            Err((another, _)) if !is_over() => return Err(another),
            Err(_) => {}
        }
        Err(why)
    })
}
