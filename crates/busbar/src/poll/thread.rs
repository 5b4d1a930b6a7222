//! Threads of the library.

use std::thread::Builder;

use busbar_uapi::signal::Blocked;

use crate::{Error, Result};

/// Starts a thread that is not joined. It gets no signals: those of the program are for its own threads.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let _blocked = Blocked::new();
    let thread = Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|why| Error::new("start", format!("the thread `{name}`"), why))
}
