//! Endpoints of a coprocessor that may crash and come back.

use crate::endpoint::{Controller, Endpoint};
use crate::{Error, Result};

/// An endpoint to a service, on whichever coprocessor announces it.
///
/// # Errors
///
/// `NotFound` where none does; as [`Builder::create`](crate::endpoint::Builder::create).
pub(super) fn open(service: &str) -> Result<(Controller, Endpoint)> {
    let mut last = None;
    for info in Controller::list()? {
        let made = Controller::open(&info.path).and_then(|controller| {
            let endpoint = controller.endpoint(service).create()?;
            Ok((controller, endpoint))
        });
        match made {
            Ok(made) => return Ok(made),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        let why = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::new("find", format!("service `{service}`"), why)
            .help("no coprocessor is running: see `busbar doctor`")
    }))
}
