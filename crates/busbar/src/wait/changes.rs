//! Changes to what a poller waits for, and their results.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use busbar_uapi::epoll::{CTL_ADD, CTL_DEL, CTL_MOD, EpollCtlCmd};
use rustix::io::Errno;

use super::Interest;
use crate::{Error, Reason};

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Wait for a descriptor.
    Add,
    /// Replace its interest and its key.
    Change,
    /// Stop waiting for it.
    Remove,
}

impl Operation {
    pub(super) fn number(self) -> i32 {
        match self {
            Self::Add => CTL_ADD,
            Self::Change => CTL_MOD,
            Self::Remove => CTL_DEL,
        }
    }

    fn of(command: &EpollCtlCmd) -> Self {
        match command.op {
            CTL_ADD => Self::Add,
            CTL_MOD => Self::Change,
            _ => Self::Remove,
        }
    }
}

pub(super) fn set(operation: Operation, fd: RawFd, key: u64, interest: Interest) -> EpollCtlCmd {
    let (op, events) = (operation.number(), interest.bits());
    EpollCtlCmd { op, fd, events, data: key, ..EpollCtlCmd::default() }
}

pub(super) fn removal(fd: RawFd) -> EpollCtlCmd {
    set(Operation::Remove, fd, 0, Interest::NONE)
}

/// A change that the kernel did not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    operation: Operation,
    fd: RawFd,
    key: u64,
    errno: Errno,
}

impl Failure {
    pub(super) fn new(command: &EpollCtlCmd, errno: Errno) -> Self {
        let operation = Operation::of(command);
        Self { operation, fd: command.fd, key: command.data, errno }
    }

    /// The kind of the change.
    #[must_use]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// The number of the descriptor; it may have been closed since.
    #[must_use]
    pub const fn fd(self) -> RawFd {
        self.fd
    }

    /// The key that it was to have; `None` for a removal.
    #[must_use]
    pub fn key(self) -> Option<u64> {
        (self.operation != Operation::Remove).then_some(self.key)
    }

    /// Why it failed.
    #[must_use]
    pub const fn errno(self) -> Errno {
        self.errno
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let Failure { operation, fd, key, errno } = failure;
        let (tried, on) = match operation {
            Operation::Add => ("add", format!("descriptor {fd} with key {key} to a poller")),
            Operation::Change => ("change", format!("descriptor {fd} with key {key} in a poller")),
            Operation::Remove => ("remove", format!("descriptor {fd} from a poller")),
        };
        let error = Self::new(tried, on, errno);
        // Epoll has no permission to give: such files have no way to wait for them.
        let error = if errno == Errno::PERM { error.because(Reason::Unsupported) } else { error };
        match help(operation, errno) {
            Some(help) => error.help(help),
            None => error,
        }
    }
}

fn help(operation: Operation, errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::EXIST => Some("it is in the poller already: change it"),
        Errno::NOENT => Some("it is not in the poller, or was closed and opened since: add it"),
        Errno::PERM => Some("this file cannot be polled: it is always ready"),
        Errno::LOOP => Some("the poller would wait for itself, or pollers nest too deep"),
        Errno::NOSPC => Some("the limit is /proc/sys/fs/epoll/max_user_watches"),
        Errno::INVAL if operation == Operation::Change => {
            Some("an exclusive interest cannot be changed: remove and add the descriptor")
        }
        Errno::INVAL => Some(
            "a poller cannot wait for itself; exclusive goes with readable, writable and edge, \
             and not with a poller",
        ),
        _ => None,
    }
}

/// Changes that are passed to the kernel together.
///
/// They are made in order, each as if it were made alone. This borrows the descriptors, so none of them
/// is closed before.
#[derive(Clone, Debug, Default)]
pub struct Changes<'fd> {
    pub(super) commands: Vec<EpollCtlCmd>,
    descriptors: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> Changes<'fd> {
    /// No changes yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { commands: Vec::new(), descriptors: PhantomData }
    }

    /// Adds `fd` under `key`.
    pub fn add(&mut self, fd: &'fd impl AsFd, key: u64, interest: Interest) -> &mut Self {
        self.push(set(Operation::Add, number(fd), key, interest))
    }

    /// Replaces the key and the interest of `fd`.
    pub fn change(&mut self, fd: &'fd impl AsFd, key: u64, interest: Interest) -> &mut Self {
        self.push(set(Operation::Change, number(fd), key, interest))
    }

    /// Removes `fd`.
    pub fn remove(&mut self, fd: &'fd impl AsFd) -> &mut Self {
        self.push(removal(number(fd)))
    }

    fn push(&mut self, command: EpollCtlCmd) -> &mut Self {
        self.commands.push(command);
        self
    }

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Deletes the first `count`, to go on after one that failed.
    pub fn skip(&mut self, count: usize) -> &mut Self {
        self.commands.drain(..count.min(self.commands.len()));
        self
    }

    /// Deletes all of them, and keeps the memory.
    pub fn clear(&mut self) -> &mut Self {
        self.commands.clear();
        self
    }
}

/// The result of [`Changes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "changes may have failed"]
pub struct Applied {
    pub(super) done: usize,
    pub(super) failure: Option<Failure>,
}

impl Applied {
    /// How many succeeded. If one failed, this is its index, and those after it were not tried.
    #[must_use]
    pub const fn done(self) -> usize {
        self.done
    }

    /// The change that failed.
    #[must_use]
    pub const fn failure(self) -> Option<Failure> {
        self.failure
    }

    /// An error that names the change that failed, if one did.
    pub fn ok(self) -> crate::Result<()> {
        self.failure.map_or(Ok(()), |failure| Err(self.error(failure)))
    }

    fn error(self, failure: Failure) -> Error {
        let (error, done) = (Error::from(failure), self.done);
        let help = help(failure.operation, failure.errno).map(|help| format!("{help}; "));
        error.help(format!(
            "{}it is change {done} of the batch, counted from 0",
            help.unwrap_or_default()
        ))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "add",
            Self::Change => "change",
            Self::Remove => "remove",
        })
    }
}

pub(super) fn number(fd: &impl AsFd) -> RawFd {
    fd.as_fd().as_raw_fd()
}
