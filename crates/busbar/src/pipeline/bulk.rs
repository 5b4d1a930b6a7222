//! Blocks to a coprocessor by `bulk`. Such a transfer is a conversation that waits, so it has a thread
//! of its own, which the loop meets at a descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::edge::Item;
use super::endpoint::on_any;
use crate::bulk::{Link, Transport};
use crate::{Error, Result, poll};

/// Longer no block takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A link, and what is on it.
#[derive(Debug)]
pub(super) struct Bulk {
    blocks: Sender<Item>,
    results: Receiver<Result<u64>>,
    event: Arc<OwnedFd>,
    /// Ends a transfer that is under way.
    quit: Arc<AtomicBool>,
    is_busy: bool,
    copied: u64,
}

impl Bulk {
    /// Opens the first coprocessor's that has one.
    pub(super) fn open(transport: Transport) -> Result<Self> {
        let mut link =
            on_any("a coprocessor for bulk", |controller| Link::open(&controller, transport))?;
        Self::start(move |item| send(&mut link, item))
    }

    /// Sends by `work`, in a thread that ends with this.
    fn start(mut work: impl FnMut(&Item) -> Result<u64> + Send + 'static) -> Result<Self> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = Arc::new(made.map_err(|errno| Error::new("make", "an event", errno))?);
        let (blocks, incoming) = channel::<Item>();
        let (outgoing, results) = channel();
        let quit = Arc::new(AtomicBool::new(false));
        let (bell, asked) = (Arc::clone(&event), Arc::clone(&quit));
        let run = move || {
            poll::quit_when(asked);
            for item in incoming {
                let sent = work(&item);
                // Back to its driver before anybody hears of it.
                drop(item);
                if outgoing.send(sent).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("bulk".into()).spawn(run);
        thread.map_err(|why| Error::new("start", "a thread for bulk", why))?;
        Ok(Self { blocks, results, event, quit, is_busy: false, copied: 0 })
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

impl Drop for Bulk {
    /// The thread lets go of its link and its block a moment later.
    fn drop(&mut self) {
        self.quit.store(true, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
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
