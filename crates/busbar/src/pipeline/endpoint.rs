//! Opens endpoints on any coprocessor.

use crate::endpoint::{Controller, Endpoint};
use crate::{Error, Result};

/// The result of `open` for the first coprocessor for which it succeeds; `what` is its name in errors.
///
/// # Errors
///
/// `NotFound` if there is no coprocessor; else the error of `open` for the last one.
pub(super) fn on_any<T>(what: &str, open: impl Fn(Controller) -> Result<T>) -> Result<T> {
    let mut last = None;
    for info in Controller::list()? {
        match Controller::open(&info.path).and_then(&open) {
            Ok(opened) => return Ok(opened),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        let why = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::new("find", what, why).help("no coprocessor is running: see `busbar doctor`")
    }))
}

/// An endpoint to a service of the first coprocessor that announces it.
///
/// # Errors
///
/// As [`on_any`] and [`Builder::create`](crate::endpoint::Builder::create).
pub(super) fn open(service: &str) -> Result<(Controller, Endpoint)> {
    on_any(&format!("service `{service}`"), |controller| {
        let endpoint = controller.endpoint(service).create()?;
        Ok((controller, endpoint))
    })
}
