//! Blocks to a coprocessor by `bulk`. Such a transfer is a conversation that waits, so it has a thread
//! of its own, which the loop meets at a descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::edge::Item;
use super::endpoint::on_any;
use crate::bulk::{Link, Transport};
use crate::{Error, Result};

/// Longer no block takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A link, and what is on it.
#[derive(Debug)]
pub(super) struct Bulk {
    blocks: Sender<Item>,
    results: Receiver<Result<u64>>,
    event: Arc<OwnedFd>,
    is_busy: bool,
    copied: u64,
}

impl Bulk {
    /// Opens the first coprocessor's that has one.
    pub(super) fn open(transport: Transport) -> Result<Self> {
        let mut link =
            on_any("a coprocessor for bulk", |controller| Link::open(&controller, transport))?;
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = Arc::new(made.map_err(|errno| Error::new("make", "an event", errno))?);
        let (blocks, incoming) = channel::<Item>();
        let (outgoing, results) = channel();
        let bell = Arc::clone(&event);
        let work = move || {
            for item in incoming {
                let sent = send(&mut link, &item);
                // Back to its driver before anybody hears of it.
                drop(item);
                if outgoing.send(sent).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("bulk".into()).spawn(work);
        thread.map_err(|why| Error::new("start", "a thread for bulk", why))?;
        Ok(Self { blocks, results, event, is_busy: false, copied: 0 })
    }

    /// Whether it has taken the block.
    pub(super) fn take(&mut self, item: &Item) -> Result<bool> {
        if self.is_busy {
            return Ok(false);
        }
        self.blocks.send(item.clone()).map_err(|_| gone())?;
        self.is_busy = true;
        Ok(true)
    }

    /// How many blocks it has.
    pub(super) fn turn(&mut self) -> Result<usize> {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        match self.results.try_recv() {
            Ok(sent) => {
                self.is_busy = false;
                self.copied += sent?;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(gone()),
        }
        Ok(usize::from(self.is_busy))
    }

    pub(super) fn copied(&self) -> u64 {
        self.copied
    }
}

impl AsFd for Bulk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Sends a block; how many bytes were copied for it.
fn send(link: &mut Link, item: &Item) -> Result<u64> {
    let bytes = item.samples.read()?;
    link.send_timeout(&bytes, PATIENCE)?;
    Ok(bytes.len() as u64)
}

fn gone() -> Error {
    Error::new("send to", "a thread for bulk", Errno::PIPE)
}
