//! A TTY of the in-tree `rpmsg_tty` as the carrier of packets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;

use rustix::event::PollFlags;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, QueueSelector};

use super::carrier::timed_out;
use super::messages::Messages;
use super::packet::{Event, Joiner, Opening, Piece};
use crate::endpoint::MAX_MESSAGE;
use crate::poll::{self, Deadline, Pause};
use crate::{Error, Result};

/// An open TTY in raw mode, which no other process can open.
#[derive(Debug)]
pub(super) struct Tty {
    fd: OwnedFd,
    label: String,
    message: Vec<u8>,
}

impl Tty {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let label = path.display().to_string();
        let failed = |errno| {
            let error = Error::new("open as a TTY", path.display().to_string(), errno);
            match errno {
                Errno::BUSY => error.help("another process uses it"),
                Errno::NOTTY => error.help("it is not a TTY, such as /dev/ttyRPMSG0"),
                _ => error,
            }
        };
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        raw(fd.as_fd()).map_err(failed)?;
        Ok(Self { fd, label, message: Vec::with_capacity(MAX_MESSAGE) })
    }

    #[cold]
    fn failed(&self, tried: &str, errno: Errno) -> Error {
        // The errors of a TTY whose device is gone.
        let gone = matches!(errno, Errno::IO | Errno::NODEV | Errno::NXIO);
        let errno = if gone { Errno::PIPE } else { errno };
        let error = Error::new(tried, &self.label, errno);
        if gone { error.help("the coprocessor stopped or crashed") } else { error }
    }

    fn wait(&self, events: PollFlags, deadline: Deadline) -> Result<PollFlags> {
        poll::wait(&self.fd, events, deadline.remaining())
            .map_err(|errno| self.failed("wait for", errno))
    }
}

/// Sets raw mode without buffering, excludes other users, and discards earlier input.
///
/// `TIOCEXCL` does not exclude root; the lock does.
fn raw(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    flock(fd, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => Errno::BUSY,
        errno => errno,
    })?;
    termios::ioctl_tiocexcl(fd)?;
    let mut attributes = termios::tcgetattr(fd)?;
    attributes.make_raw();
    termios::tcsetattr(fd, OptionalActions::Now, &attributes)?;
    termios::tcflush(fd, QueueSelector::IOFlush)
}

impl Messages for Tty {
    fn label(&self) -> String {
        self.label.clone()
    }

    /// One write is one message, up to the length of one.
    ///
    /// The driver returns `ENOMEM` for a full ring, and always reports that it is writable.
    fn send(&mut self, message: Piece<'_>, deadline: Deadline) -> Result<()> {
        message.write_to(&mut self.message);
        let mut pause = Pause::default();
        loop {
            match rustix::io::write(&self.fd, &self.message) {
                Ok(length) if length == self.message.len() => return Ok(()),
                Ok(_) => return Err(self.failed("send a whole message to", Errno::PROTO)),
                Err(Errno::INTR) => {}
                Err(Errno::NOMEM | Errno::AGAIN) if deadline.has_passed() => {
                    return Err(timed_out("send to", self.label()));
                }
                Err(Errno::NOMEM | Errno::AGAIN) => sleep(pause.step().0),
                Err(errno) => return Err(self.failed("send to", errno)),
            }
        }
    }

    fn recv(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<usize> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                // The end of the file means that the device is gone.
                Ok(0) => return Err(self.failed("receive from", Errno::NODEV)),
                Ok(length) => return Ok(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if deadline.has_passed() => {
                    return Err(timed_out("receive from", self.label()));
                }
                Err(Errno::AGAIN) => _ = self.wait(PollFlags::IN, deadline)?,
                Err(errno) => return Err(self.failed("receive from", errno)),
            }
        }
    }

    fn join(&self, joiner: &mut Joiner, mut received: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = joiner.push_stream(&mut received) {
            events.push(event);
        }
        events
    }

    fn opened(&self, opening: &mut Opening, mut received: &[u8]) -> bool {
        opening.find(&mut received)
    }
}
