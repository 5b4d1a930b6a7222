//! Endpoints: messages to and from a coprocessor.
//!
//! A [`Controller`] is the control device of one coprocessor, `/dev/rpmsg_ctrlN`. It makes
//! [`Endpoint`]s, each with an address of its own, that exchange messages with one address of the
//! coprocessor. A message has 0 to [`MAX_MESSAGE`] bytes, and arrives whole and in order.
//!
//! ```no_run
//! use busbar::endpoint::{Controller, MAX_MESSAGE};
//!
//! # fn main() -> busbar::Result<()> {
//! let controller = Controller::open("/dev/rpmsg_ctrl0")?;
//! let echo = controller.endpoint("echo").create()?;
//! echo.send(b"hello")?;
//! let mut reply = [0; MAX_MESSAGE];
//! let length = echo.recv(&mut reply)?;
//! assert_eq!(&reply[..length], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! If the kernel offers it (`RPMSG_CREATE_EPT_FD_IOCTL`), an endpoint is only a file descriptor. Otherwise
//! it is a device node, `/dev/rpmsgN`, that the library makes, waits for, opens and destroys. Both work
//! the same, but a node takes longer to make, wakes a blocked sender later, and needs sysfs and `/dev`.
//! See [`Implementation`].
//!
//! Once the coprocessor has stopped or crashed, or the endpoint was destroyed, every call fails
//! with an error of kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).

mod builder;
mod controller;
mod error;
mod many;
mod node;
mod pass;
mod sysfs;
#[cfg(feature = "tokio")]
mod tokio;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use busbar_uapi::rpmsg;
use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

pub use self::builder::{Builder, Implementation};
pub use self::controller::{Controller, ControllerInfo};
pub use self::many::Messages;
pub use self::sysfs::{ChannelInfo, Remoteproc};
#[cfg(feature = "tokio")]
pub use self::tokio::AsyncEndpoint;
pub use busbar_uapi::rpmsg::ADDR_ANY;

use self::error::{AGAIN_IN_KERNEL, failed};
use crate::poll::{self, Deadline, Pause};
use crate::{Error, Result};

/// Maximum length of a message on the virtio bus, in bytes.
pub const MAX_MESSAGE: usize = 496;

/// Maximum length of a message on any bus: the field in its header has 16 bits.
const HEADER_LIMIT: usize = u16::MAX as usize;

/// For the calls that take an offset, -1: use the position of the file. These files have none.
const NO_OFFSET: u64 = u64::MAX;

/// An rpmsg endpoint on Linux's side.
///
/// Dropping it closes the descriptor, and the endpoint ends with the last copy of that. A device
/// node is destroyed, even if others have it open. Messages that the coprocessor sends to the address
/// afterwards are discarded.
///
/// All methods take `&self` and may be used from many threads; each message goes to one reader.
/// A signal does not end a wait: poll the descriptor together with a signal descriptor for that.
#[derive(Debug)]
pub struct Endpoint {
    // `None` only after the conversion into `OwnedFd`.
    fd: Option<OwnedFd>,
    /// Whether dropping the endpoint destroys its device node.
    node: bool,
    /// Empty while `RWF_NOWAIT` tells the kernel not to wait. If it does not support that: whether
    /// the file is in non-blocking mode.
    nonblocking: OnceLock<bool>,
    /// Whether the driver takes many messages by one call, once it was asked.
    many: OnceLock<bool>,
    label: Label,
}

/// The name of an endpoint in errors; formatted only if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    name: [u8; rpmsg::NAME_SIZE],
    destination: u32,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        match String::from_utf8_lossy(&self.name[..end]).as_ref() {
            "" => write!(f, "an endpoint of unknown name"),
            name if self.destination == ADDR_ANY => write!(f, "endpoint `{name}`"),
            name => write!(f, "endpoint `{name}` to address {:#x}", self.destination),
        }
    }
}

impl Endpoint {
    fn new(fd: OwnedFd, node: bool, nonblocking: OnceLock<bool>, label: Label) -> Self {
        Self { fd: Some(fd), node, nonblocking, many: OnceLock::new(), label }
    }

    /// Sends one message. Waits for a free buffer without a time limit.
    ///
    /// This is one system call if a buffer is free.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` for a message that does not fit, [`BrokenPipe`](std::io::ErrorKind::BrokenPipe)
    /// once the remote is gone, `EINVAL` if the destination is [`ADDR_ANY`].
    pub fn send(&self, message: &[u8]) -> Result<()> {
        self.send_until(Deadline::NEVER, || self.write(message)).map(drop)
    }

    /// Sends one message if that is possible at once; `false` if no buffer is free.
    ///
    /// Does not wait in any mode of the file, and does not change the mode.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and `EOPNOTSUPP` on a device node that this library has not opened and that is
    /// not in non-blocking mode: Linux does not tell whether writing to it would wait.
    pub fn try_send(&self, message: &[u8]) -> Result<bool> {
        match self.write_now(message) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(self.failed("send to", errno)),
        }
    }

    /// Sends one message; `false` if no buffer became free within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn send_timeout(&self, message: &[u8], timeout: Duration) -> Result<bool> {
        self.send_until(Deadline::after(timeout), || self.write_now(message))
    }

    /// Takes one message, and returns its length in bytes. Waits for it without a time limit.
    ///
    /// This is one system call if a message is there; always, if the file is in blocking mode. A message
    /// may be empty.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is longer than `buffer`, which loses it; [`MAX_MESSAGE`] bytes
    /// are always enough on the virtio bus. `ENOBUFS` once after messages were lost because they
    /// were not read in time. [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the remote is
    /// gone.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        poll::forever(|deadline| {
            self.recv_until(deadline, buffer, |buffer| self.read(buffer, ReadWriteFlags::empty()))
        })
    }

    /// Takes one message and returns its length in bytes, or `None` if there is none.
    ///
    /// ```no_run
    /// # fn turn(echo: &busbar::endpoint::Endpoint) -> busbar::Result<()> {
    /// use busbar::Reason;
    ///
    /// let mut message = [0; busbar::endpoint::MAX_MESSAGE];
    /// loop {
    ///     match echo.try_recv(&mut message) {
    ///         Ok(Some(len)) => println!("{:?}", &message[..len]),
    ///         Ok(None) => return Ok(()),
    ///         Err(error) if error.reason() == Reason::Lost => eprintln!("{error}"),
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// Does not wait in any mode of the file, and does not change the mode. One exception: on a device
    /// node that this library has not opened and that is in blocking mode, it waits for the next message if
    /// another reader takes this one at the same time.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn try_recv(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        check_buffer(buffer)?;
        match self.read_now(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(self.failed("receive from", errno)),
        }
    }

    /// Takes one message and returns its length in bytes, or `None` if none came within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_timeout(&self, buffer: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.recv_until(Deadline::after(timeout), buffer, |buffer| self.read_now(buffer))
    }

    /// Asks the remote to pause sending to this endpoint, or to go on.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` on a bus without flow control, such as the virtio bus.
    pub fn set_paused(&self, paused: bool) -> Result<()> {
        let tried = "ask for a pause on";
        // The in-tree driver warns in the kernel's log if the remote is gone.
        let gone = poll::wait(self, PollFlags::empty(), Some(Duration::ZERO))
            .map_err(|errno| self.failed(tried, errno))?;
        if !gone.is_empty() {
            return Err(self.failed(tried, Errno::PIPE));
        }
        rpmsg::set_incoming_flow_control(self, paused).map_err(|errno| self.failed(tried, errno))
    }

    /// Whether the remote has asked for a pause. A change is a `POLLPRI` event.
    pub fn paused_by_remote(&self) -> Result<bool> {
        rpmsg::outgoing_flow_control(self)
            .map_err(|errno| self.failed("ask for the pause of", errno))
    }

    /// Ends the endpoint for all that share it, in this and in other processes.
    pub fn destroy(&self) -> Result<()> {
        rpmsg::destroy_ept(self).map_err(|errno| self.failed("destroy", errno))
    }

    /// What the endpoint is made of: a descriptor alone, or a device node.
    ///
    /// Asks the file itself, so it also works for a descriptor that was made elsewhere.
    #[must_use]
    pub fn implementation(&self) -> Implementation {
        let is_node = rustix::fs::fstat(self)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice);
        if is_node { Implementation::Node } else { Implementation::Fd }
    }

    fn send_until(
        &self,
        deadline: Deadline,
        write: impl Fn() -> Result<(), Errno>,
    ) -> Result<bool> {
        let mut pause = Pause::default();
        loop {
            match write() {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN) if deadline.has_passed() => return Ok(false),
                Err(Errno::AGAIN) => pause
                    .until_writable(self, deadline)
                    .map_err(|errno| self.failed("wait for", errno))?,
                Err(errno) => return Err(self.failed("send to", errno)),
            }
        }
    }

    fn recv_until(
        &self,
        deadline: Deadline,
        buffer: &mut [u8],
        read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Option<usize>> {
        check_buffer(buffer)?;
        loop {
            match read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::AGAIN) if deadline.has_passed() => return Ok(None),
                Err(Errno::AGAIN) => poll::wait(self, PollFlags::IN, deadline.remaining())
                    .map(drop)
                    .map_err(|errno| self.failed("wait for", errno))?,
                Err(errno) => return Err(self.failed("receive from", errno)),
            }
        }
    }

    /// One attempt to write, which waits if the file is in blocking mode.
    fn write(&self, message: &[u8]) -> Result<(), Errno> {
        // The in-tree driver allocates what it is asked to write before it looks at the length,
        // and warns in the kernel's log if that is too much.
        if message.len() > HEADER_LIMIT {
            return Err(Errno::MSGSIZE);
        }
        again(|| rustix::io::write(self, message)).map(drop)
    }

    /// One attempt to read, which waits if the file is in blocking mode and `flags` are empty.
    ///
    /// A spare byte after the buffer shows that a message was longer, which the kernel truncates
    /// silently. The bus determines how long messages can be, so no buffer is certainly long enough.
    fn read(&self, buffer: &mut [u8], flags: ReadWriteFlags) -> Result<usize, Errno> {
        let room = buffer.len();
        let mut spare = [0];
        let mut parts = [IoSliceMut::new(buffer), IoSliceMut::new(&mut spare)];
        // Without flags this is `readv`.
        let length = again(|| rustix::io::preadv2(self, &mut parts, NO_OFFSET, flags))?;
        if length > room { Err(Errno::MSGSIZE) } else { Ok(length) }
    }

    fn read_now(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if self.nonblocking.get().is_none() {
            match self.read(buffer, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP) => self.ask_mode()?,
                done => return done,
            }
        }
        if self.nonblocking.get() == Some(&false) && !self.is_ready(PollFlags::IN)? {
            return Err(Errno::AGAIN);
        }
        self.read(buffer, ReadWriteFlags::empty())
    }

    fn write_now(&self, message: &[u8]) -> Result<(), Errno> {
        if self.nonblocking.get().is_none() {
            match self.write_nowait(message) {
                Err(Errno::OPNOTSUPP) => self.ask_mode()?,
                done => return done,
            }
        }
        if self.nonblocking.get() == Some(&false) {
            return Err(Errno::OPNOTSUPP);
        }
        self.write(message)
    }

    fn write_nowait(&self, message: &[u8]) -> Result<(), Errno> {
        if message.len() > HEADER_LIMIT {
            return Err(Errno::MSGSIZE);
        }
        // Linux does not pass an empty vector on to the driver.
        if message.is_empty() {
            return self.write_empty();
        }
        let parts = [IoSlice::new(message)];
        again(|| rustix::io::pwritev2(self, &parts, NO_OFFSET, ReadWriteFlags::NOWAIT)).map(drop)
    }

    /// Writes an empty message without waiting where `RWF_NOWAIT` cannot say so.
    fn write_empty(&self) -> Result<(), Errno> {
        let mode = rustix::fs::fcntl_getfl(self)?;
        if !mode.contains(OFlags::NONBLOCK) && !self.is_ready(PollFlags::OUT)? {
            return Err(Errno::AGAIN);
        }
        self.write(&[])
    }

    fn ask_mode(&self) -> Result<(), Errno> {
        let mode = rustix::fs::fcntl_getfl(self)?;
        // Another thread may have set it, to the same value.
        let _ = self.nonblocking.set(mode.contains(OFlags::NONBLOCK));
        Ok(())
    }

    fn is_ready(&self, events: PollFlags) -> Result<bool, Errno> {
        Ok(!poll::wait(self, events, Some(Duration::ZERO))?.is_empty())
    }

    /// Its name in errors.
    pub(crate) fn label(&self) -> String {
        self.label.to_string()
    }

    #[cold]
    fn failed(&self, tried: &str, errno: Errno) -> Error {
        failed(tried, self.label(), errno)
    }
}

/// Tries again after a signal, and after the 15 s that the in-tree driver waits for a buffer.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR | AGAIN_IN_KERNEL) => {}
            done => return done,
        }
    }
}

fn check_buffer(buffer: &[u8]) -> Result<()> {
    if buffer.is_empty() {
        return Err(Error::invalid("a receive buffer", "0 bytes", "1 byte or more"));
    }
    Ok(())
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.node) {
            // Fails only if the node has already gone.
            let _ = rpmsg::destroy_ept(fd);
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("taken only with the endpoint").as_fd()
    }
}

impl AsRawFd for Endpoint {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// For a descriptor that was made elsewhere, for example an inherited one.
///
/// Dropping the endpoint closes the descriptor. A device node behind it stays, until its owner or
/// [`Endpoint::destroy`] destroys it.
impl From<OwnedFd> for Endpoint {
    fn from(fd: OwnedFd) -> Self {
        let label = Label { name: [0; rpmsg::NAME_SIZE], destination: ADDR_ANY };
        Self::new(fd, false, OnceLock::new(), label)
    }
}

/// A device node behind the descriptor is not destroyed when the descriptor is closed.
impl From<Endpoint> for OwnedFd {
    fn from(mut endpoint: Endpoint) -> Self {
        endpoint.fd.take().expect("taken only with the endpoint")
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;

    type Recv<'a> = &'a dyn Fn(&mut [u8]) -> Result<Option<usize>>;

    #[test]
    fn a_message_that_is_longer_than_any_buffer_is_never_cut_in_silence() {
        // It truncates, as the in-tree driver does.
        let flags = SocketFlags::CLOEXEC;
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let endpoint = Endpoint::from(near);
        let mut buffer = [0; 2 * MAX_MESSAGE];
        for room in [1, MAX_MESSAGE - 1, MAX_MESSAGE, MAX_MESSAGE + 1, 2 * MAX_MESSAGE] {
            let now = Duration::ZERO;
            let calls: [Recv<'_>; 3] =
                [&|room| endpoint.recv(room).map(Some), &|room| endpoint.try_recv(room), &|room| {
                    endpoint.recv_timeout(room, now)
                }];
            for recv in calls {
                send(&far, &vec![7; room + 1], SendFlags::empty()).unwrap();
                let error = recv(&mut buffer[..room]).unwrap_err();
                assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{room}: {error}");
                send(&far, &vec![7; room], SendFlags::empty()).unwrap();
                assert_eq!(recv(&mut buffer[..room]).unwrap(), Some(room));
            }
        }
    }
}
