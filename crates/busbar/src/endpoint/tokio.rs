//! Endpoints for the tokio runtime.

use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::Endpoint;
use crate::poll::{Pause, Timer, later};
use crate::{Error, Result};

/// An [`Endpoint`] whose calls wait in the tokio runtime.
///
/// A call may be dropped while it waits: no message is lost or sent then.
#[derive(Debug)]
pub struct AsyncEndpoint(AsyncFd<Endpoint>);

// If the remote is gone, the file has an error, which readers have to notice too.
const READ: Interest = Interest::READABLE.add(Interest::ERROR);
const WRITE: Interest = Interest::WRITABLE.add(Interest::ERROR);

impl AsyncEndpoint {
    /// Registers the endpoint with the current runtime.
    ///
    /// # Errors
    ///
    /// Those of the registration, `EPERM` for a file that cannot be polled.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O enabled, as for tokio's own types.
    pub fn new(endpoint: Endpoint) -> Result<Self> {
        register(endpoint, READ.add(WRITE))
            .map(Self)
            .map_err(|error| Error::new("register", "an endpoint with tokio", error))
    }

    /// Takes one message and returns its length in bytes; see [`Endpoint::recv`].
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let mut guard = self.ready(READ).await?;
            match self.0.get_ref().try_recv(buffer)? {
                Some(length) => return Ok(length),
                None => guard.clear_ready(),
            }
        }
    }

    /// Sends one message; see [`Endpoint::send`].
    pub async fn send(&self, message: &[u8]) -> Result<()> {
        let mut pause = Pause::default();
        while !self.0.get_ref().try_send(message)? {
            let (timeout, _) = pause.step();
            let timer = timer(timeout)?;
            let mut expired = pin!(timer.readable());
            let mut writable = pin!(self.ready(WRITE));
            poll_fn(|context| {
                if let Poll::Ready(guard) = writable.as_mut().poll(context) {
                    return Poll::Ready(guard.map(|mut guard| guard.clear_ready()));
                }
                expired.as_mut().poll(context).map(|done| done.map(drop).map_err(wait_failed))
            })
            .await?;
        }
        Ok(())
    }

    /// The endpoint, for its other calls.
    #[must_use]
    pub fn get_ref(&self) -> &Endpoint {
        self.0.get_ref()
    }

    /// Takes the endpoint back from the runtime.
    #[must_use]
    pub fn into_inner(self) -> Endpoint {
        self.0.into_inner()
    }

    async fn ready(&self, interest: Interest) -> Result<AsyncFdReadyGuard<'_, Endpoint>> {
        self.0.ready(interest).await.map_err(wait_failed)
    }
}

impl AsFd for AsyncEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

fn wait_failed(error: std::io::Error) -> Error {
    Error::new("wait for", "an endpoint in tokio", error)
}

/// A timer without tokio's, which panics if it is not enabled in the runtime.
fn timer(after: Duration) -> Result<AsyncFd<Timer>> {
    let timer = Timer::new()?;
    timer.set(Some(later(Instant::now(), after)))?;
    register(timer, Interest::READABLE).map_err(wait_failed)
}

/// Both types own one descriptor and keep it, which is what tokio's unsafe successor of this
/// function requires. This module has no unsafe code.
#[allow(deprecated)]
fn register<T: AsRawFd>(inner: T, interest: Interest) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(inner, interest)
}
