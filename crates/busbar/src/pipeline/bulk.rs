//! Sends blocks to a coprocessor by `bulk`. A transfer waits for messages, so it has a thread of its own, and
//! a descriptor that tells the loop of its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use rustix::io::Errno;

use super::edge::Item;
use super::endpoint::on_any;
use crate::bulk::{Link, Transport};
use crate::poll::{self, Bell};
use crate::{Error, Result};

/// The longest time of a transfer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A link with its thread.
#[derive(Debug)]
pub(super) struct Bulk {
    blocks: Sender<Item>,
    results: Receiver<Result<u64>>,
    bell: Arc<Bell>,
    /// Ends a transfer that is under way.
    quit: Arc<AtomicBool>,
    is_busy: bool,
    copied: u64,
}

impl Bulk {
    /// Opens the link of the first coprocessor that has one.
    pub(super) fn open(transport: Transport) -> Result<Self> {
        let mut link =
            on_any("a coprocessor for bulk", |controller| Link::open(&controller, transport))?;
        Self::start(move |item| send(&mut link, item))
    }

    /// Sends by `work`, in a thread that ends with this.
    fn start(mut work: impl FnMut(&Item) -> Result<u64> + Send + 'static) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let (blocks, incoming) = channel::<Item>();
        let (outgoing, results) = channel();
        let quit = Arc::new(AtomicBool::new(false));
        let (done, asked) = (Arc::clone(&bell), Arc::clone(&quit));
        let run = move || {
            poll::quit_when(asked);
            for item in incoming {
                let sent = work(&item);
                // The block goes back to its driver before the result is sent.
                drop(item);
                if outgoing.send(sent).is_err() {
                    return;
                }
                let _ = done.ring();
            }
        };
        poll::spawn("busbar-bulk", run)?;
        Ok(Self { blocks, results, bell, quit, is_busy: false, copied: 0 })
    }

    /// Takes a block; `false` if there is no room.
    pub(super) fn take(&mut self, item: &Item) -> Result<bool> {
        if self.is_busy {
            return Ok(false);
        }
        self.blocks.send(item.clone()).map_err(|_| gone())?;
        self.is_busy = true;
        Ok(true)
    }

    /// Returns how many blocks it has: 0 or 1.
    pub(super) fn turn(&mut self) -> Result<usize> {
        self.bell.clear();
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

impl Drop for Bulk {
    /// The thread lets go of its link and its block a moment later.
    fn drop(&mut self) {
        self.quit.store(true, Ordering::Relaxed);
    }
}

impl AsFd for Bulk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Sends a block; how many bytes were copied for it.
fn send(link: &mut Link, item: &Item) -> Result<u64> {
    let bytes = item.samples.read()?.bytes().to_vec();
    link.send_timeout(&bytes, PATIENCE)?;
    // Once here, once by the link.
    Ok(2 * bytes.len() as u64)
}

fn gone() -> Error {
    Error::new("send to", "a thread for bulk", Errno::PIPE)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use rustix::event::PollFlags;

    use super::*;
    use crate::poll::Deadline;
    use crate::stream::{Source, StreamSetup};

    #[test]
    fn a_transfer_that_nobody_answers_ends_with_the_sink() {
        let source = Source::open("synth:counter", &StreamSetup::default()).unwrap();
        let item = Item::new(source.next().unwrap(), 8);
        let link = Arc::new(());
        let (silent, held) = (rustix::pipe::pipe().unwrap(), Arc::clone(&link));
        let hour = Duration::from_secs(3600);
        let mut bulk = Bulk::start(move |_| {
            assert!(Arc::strong_count(&held) > 1, "it ends while the test has its own");
            let deadline = Deadline::after(hour);
            while !deadline.has_passed() {
                poll::wait(&silent.0, PollFlags::IN, deadline.remaining()).unwrap();
            }
            Err(gone())
        })
        .unwrap();
        assert!(bulk.take(&item).unwrap());
        assert_eq!(bulk.turn().unwrap(), 1);
        drop(bulk);
        let since = Instant::now();
        while Arc::strong_count(&link) > 1 {
            assert!(since.elapsed() < Duration::from_secs(60), "the thread still waits");
            thread::yield_now();
        }
    }
}
