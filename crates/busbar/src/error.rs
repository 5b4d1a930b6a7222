//! The error type of the library.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// An error: what was tried, on what, why it failed and what to do about it.
#[derive(Debug)]
pub struct Error {
    tried: String,
    on: String,
    source: io::Error,
    help: Option<String>,
    input: Option<Box<Input>>,
    /// The reason, where the source does not tell.
    reason: Option<Reason>,
}

/// A value that is not allowed, and what is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Input {
    /// What the value was given for.
    pub field: String,
    /// The value.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

/// The reason of an error, by which a program decides what to do. It does not depend on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A value is not allowed; [`Error::input`] says which one, if the library has checked it.
    Invalid,
    /// There is no such device, service, file or kernel part.
    NotFound,
    /// It exists already.
    Exists,
    /// This user or process is not permitted to do it.
    Denied,
    /// Another process uses it. It may be free later.
    Busy,
    /// This kernel, driver or device cannot do it.
    Unsupported,
    /// The time limit was reached.
    TimedOut,
    /// A signal ended a wait.
    Interrupted,
    /// A message or a block is longer than the receiver accepts.
    TooLong,
    /// Earlier data was lost, because it was not read in time. What comes next can be read.
    Lost,
    /// The peer is gone: the coprocessor, the converter or the other end of a connection.
    Ended,
    /// The peer cannot be reached. It may be later.
    Unreachable,
    /// The peer has refused the data, and would refuse it again.
    Refused,
    /// Data is invalid: changed on its way, or wrong from the start.
    Corrupted,
    /// Memory, descriptors or space are used up.
    Exhausted,
    /// None of these; [`Error::errno`] may say more.
    Other,
}

impl Reason {
    fn of(why: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match Errno::from_io_error(why) {
            Some(Errno::NOBUFS) => return Self::Lost,
            Some(Errno::MSGSIZE) => return Self::TooLong,
            Some(Errno::MFILE | Errno::NFILE) => return Self::Exhausted,
            _ => {}
        }
        match kind(why) {
            Kind::InvalidInput => Self::Invalid,
            Kind::NotFound => Self::NotFound,
            Kind::AlreadyExists => Self::Exists,
            Kind::PermissionDenied => Self::Denied,
            Kind::ResourceBusy | Kind::AddrInUse => Self::Busy,
            Kind::Unsupported => Self::Unsupported,
            Kind::TimedOut => Self::TimedOut,
            Kind::Interrupted => Self::Interrupted,
            Kind::BrokenPipe
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::UnexpectedEof => Self::Ended,
            Kind::ConnectionRefused
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable => Self::Unreachable,
            Kind::InvalidData => Self::Corrupted,
            Kind::OutOfMemory | Kind::StorageFull | Kind::QuotaExceeded => Self::Exhausted,
            _ => Self::Other,
        }
    }

    /// The usual error number, for an error to which the system has given none.
    fn errno(self) -> Errno {
        match self {
            Self::Invalid => Errno::INVAL,
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::Denied => Errno::ACCESS,
            Self::Busy => Errno::BUSY,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::TimedOut => Errno::TIMEDOUT,
            Self::Interrupted => Errno::INTR,
            Self::TooLong => Errno::MSGSIZE,
            Self::Lost => Errno::NOBUFS,
            Self::Ended => Errno::PIPE,
            Self::Unreachable => Errno::HOSTUNREACH,
            Self::Refused => Errno::CONNREFUSED,
            Self::Corrupted => Errno::BADMSG,
            Self::Exhausted => Errno::NOMEM,
            Self::Other => Errno::IO,
        }
    }
}

/// The [`io::ErrorKind`] of an error, also for some error numbers to which `std` gives none.
fn kind(why: &io::Error) -> io::ErrorKind {
    match Errno::from_io_error(why) {
        Some(Errno::NODEV | Errno::NXIO) => io::ErrorKind::NotFound,
        Some(Errno::NOTTY) => io::ErrorKind::Unsupported,
        Some(Errno::BADMSG | Errno::PROTO) => io::ErrorKind::InvalidData,
        _ => why.kind(),
    }
}

/// Shorthand for a result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `tried` is a verb phrase such as "open", `on` its object.
    pub fn new(
        tried: impl Into<String>,
        on: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        let (tried, on, source) = (tried.into(), on.into(), source.into());
        Self { tried, on, source, help: None, input: None, reason: None }
    }

    /// For invalid input: `field` says what `value` was given for, `allowed` what is allowed there.
    pub fn invalid(
        field: impl Into<String>,
        value: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Self {
        let (field, value, allowed) = (field.into(), value.to_string(), allowed.to_string());
        let why = io::Error::new(io::ErrorKind::InvalidInput, format!("`{value}` is not allowed"));
        let error = Self::new("use", field.as_str(), why).help(format!("allowed: {allowed}"));
        Self { input: Some(Box::new(Input { field, value, allowed })), ..error }
    }

    /// Says which part of a configuration has the invalid input, if it is that.
    pub(crate) fn within(self, part: &str) -> Self {
        let Some(input) = self.input else { return self };
        let Input { field, value, allowed } = *input;
        Self::invalid(format!("{part}: {field}"), value, allowed)
    }

    /// Adds a text that says what to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Sets the reason, where the source has another meaning than elsewhere.
    #[must_use]
    pub(crate) fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// What to do about it, if that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The reason, by which a program distinguishes errors.
    ///
    /// ```
    /// use busbar::{Error, Reason};
    ///
    /// let error = Error::invalid("the number of blocks", 0, "1 to 1024");
    /// assert_eq!(error.reason(), Reason::Invalid);
    /// assert_eq!(error.input().unwrap().allowed, "1 to 1024");
    /// ```
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason.unwrap_or_else(|| Reason::of(&self.source))
    }

    /// The value that is not allowed, and what is, if the library has checked it.
    #[must_use]
    pub fn input(&self) -> Option<&Input> {
        self.input.as_deref()
    }

    /// The reason as `std` names it: the kind of the [`io::Error`] that this converts into.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        kind(&self.source)
    }

    /// The error number of the system, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }

    /// The error number of the system, or else the usual one of the [reason](Self::reason): for languages in which
    /// each error has a number.
    #[must_use]
    pub fn number(&self) -> Errno {
        self.errno().unwrap_or_else(|| self.reason().errno())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.tried, self.on, self.source)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The [`io::Error`] has the same [kind](Error::kind) and contains the whole error: `downcast` returns it.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> Error {
        Error::new("open", "a thing", errno)
    }

    #[test]
    fn every_error_has_a_number_of_the_system_or_of_its_reason() {
        assert_eq!(Error::new("open", "x", Errno::XDEV).number(), Errno::XDEV);
        let ended = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Error::new("send", "x", ended).number(), Errno::PIPE);
        assert_eq!(Error::invalid("x", 1, 2).number(), Errno::INVAL);
    }

    #[test]
    fn reasons_are_told_apart_without_text() {
        for (errno, reason) in [
            (Errno::INVAL, Reason::Invalid),
            (Errno::NOENT, Reason::NotFound),
            (Errno::NODEV, Reason::NotFound),
            (Errno::EXIST, Reason::Exists),
            (Errno::PERM, Reason::Denied),
            (Errno::ACCESS, Reason::Denied),
            (Errno::BUSY, Reason::Busy),
            (Errno::ADDRINUSE, Reason::Busy),
            (Errno::NOSYS, Reason::Unsupported),
            (Errno::OPNOTSUPP, Reason::Unsupported),
            (Errno::NOTTY, Reason::Unsupported),
            (Errno::TIMEDOUT, Reason::TimedOut),
            (Errno::INTR, Reason::Interrupted),
            (Errno::MSGSIZE, Reason::TooLong),
            (Errno::NOBUFS, Reason::Lost),
            (Errno::PIPE, Reason::Ended),
            (Errno::CONNRESET, Reason::Ended),
            (Errno::CONNREFUSED, Reason::Unreachable),
            (Errno::BADMSG, Reason::Corrupted),
            (Errno::NOMEM, Reason::Exhausted),
            (Errno::MFILE, Reason::Exhausted),
            (Errno::IO, Reason::Other),
        ] {
            assert_eq!(error(errno).reason(), reason, "{errno}");
        }
        let eof = Error::new("read", "a thing", io::ErrorKind::UnexpectedEof);
        assert_eq!(eof.reason(), Reason::Ended);
    }

    #[test]
    fn bad_input_names_the_field_the_value_and_what_is_allowed() {
        let error = Error::invalid("the number of blocks", 0, "1 to 1024");
        let input = error.input().unwrap();
        assert_eq!((input.field.as_str(), input.value.as_str()), ("the number of blocks", "0"));
        assert_eq!((input.allowed.as_str(), error.reason()), ("1 to 1024", Reason::Invalid));
        assert!(super::Error::new("use", "a thing", Errno::INVAL).input().is_none());
    }

    #[test]
    fn an_error_of_std_has_the_whole_error_inside() {
        let text = error(Errno::NOBUFS).help("read faster").to_string();
        let why = io::Error::from(error(Errno::NOBUFS).help("read faster"));
        assert_eq!(why.to_string(), text);
        let back = why.downcast::<Error>().unwrap();
        assert_eq!((back.errno(), back.advice()), (Some(Errno::NOBUFS), Some("read faster")));
        for (errno, kind) in [
            (Errno::NODEV, io::ErrorKind::NotFound),
            (Errno::NOTTY, io::ErrorKind::Unsupported),
            (Errno::PIPE, io::ErrorKind::BrokenPipe),
        ] {
            assert_eq!(io::Error::from(error(errno)).kind(), kind);
        }
    }
}
