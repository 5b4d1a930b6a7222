//! What a description of a call is made of. The descriptions themselves are in [`calls`](crate::calls).

use libc::c_long;

/// What a number that the kernel gives out stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Any file at all.
    File,
    /// An epoll set.
    Epoll,
    /// An eventfd, a pipe's end: something to wait for.
    Event,
    /// A control device of rpmsg.
    Control,
    /// An endpoint that is a descriptor, or the file of an endpoint's node.
    Endpoint,
    /// A DMABUF.
    Dmabuf,
    /// A heap or `/dev/udmabuf`, which make DMABUFs.
    Heap,
    /// What a DMABUF waits for, as a file.
    SyncFile,
    /// A memfd.
    Memfd,
    /// A core of `vcoproc`.
    Core,
    /// The address of a mapping of a core's memory.
    Mapping,
    /// An IIO device.
    Converter,
    /// The buffer of one.
    Buffer,
    /// A file of sysfs, configfs or debugfs that takes a word or a number.
    Attribute,
    /// A generic netlink socket.
    Generic,
    /// A routing netlink socket.
    Route,
    /// A TCP socket.
    Tcp,
}

impl Kind {
    /// Whether the number is a descriptor.
    #[must_use]
    pub fn is_file(self) -> bool {
        self != Self::Mapping
    }
}

/// Numbers that are known only in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Number of the system call, as `EPIOCGSYSCALLS` tells it.
    CtlBatch,
    /// The same.
    Pwait1,
    /// Number of the generic netlink family.
    RpmsgFamily,
    /// The same.
    NetdevFamily,
    /// The same.
    EthtoolFamily,
    /// Number of the network device that receives.
    Device,
}

/// What an argument, a field or a piece of memory is.
///
/// Those in the first half are numbers. Those in the second are memory, and stand behind a [`To`](Self::To)
/// or in other memory.
#[derive(Debug)]
pub enum Type {
    /// Always this.
    Is(u64),
    /// Always what was found in the guest.
    Found(Found),
    /// One of these.
    OneOf(&'static [u64]),
    /// Any of these together.
    Flags(&'static [u64]),
    /// A number from 0 to this.
    UpTo(u64),
    /// Any number at all.
    Any,
    /// What another call was given: seldom one of another kind, or none.
    Given(Kind),
    /// An address in a mapping: its start, and one of these offsets.
    Inside(Kind, &'static [u64]),
    /// Bytes of what the argument or field with this index is or points to.
    Length(usize),
    /// Elements of the same.
    Count(usize),
    /// The address of this.
    To(&'static Type),

    /// A text with its NUL byte.
    Text(&'static [&'static str]),
    /// Up to so many bytes.
    Bytes(usize),
    /// Up to so many bytes of zeroes, for the kernel to fill.
    Room(usize),
    /// Fields, one after another.
    Struct(&'static [Field]),
    /// Up to so many of the same.
    Array(&'static Type, usize),
    /// Up to so many of these, in any order.
    AnyOf(&'static [Type], usize),
    /// An attribute of netlink: its number and what is in it.
    Attribute(u16, &'static Type),
    /// A message of netlink: four bytes of length, and this.
    Message(&'static Type),
}

/// Bytes that a field takes, and what it is. Of memory: at least so many.
#[derive(Debug)]
pub struct Field(pub usize, pub Type);

/// Which system call.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// That of Linux.
    Is(c_long),
    /// One that Linux does not know.
    Found(Found),
}

/// Where a call leaves what it gives.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// It returns it.
    Result,
    /// In the memory that an argument points to: 32 bits, so many bytes from its start.
    Memory(usize, usize),
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// What it is called in a sequence.
    pub name: &'static str,
    /// The system call.
    pub number: Number,
    /// Its arguments, up to six.
    pub arguments: &'static [Type],
    /// What it gives, and where.
    pub gives: Option<(Kind, Place)>,
}

impl Call {
    /// A call that gives nothing.
    #[must_use]
    pub const fn new(name: &'static str, number: c_long, arguments: &'static [Type]) -> Self {
        Self { name, number: Number::Is(number), arguments, gives: None }
    }

    /// The same for one whose number is found in the guest.
    #[must_use]
    pub const fn found(name: &'static str, number: Found, arguments: &'static [Type]) -> Self {
        Self { name, number: Number::Found(number), arguments, gives: None }
    }

    /// The same, returning something.
    #[must_use]
    pub const fn gives(self, kind: Kind) -> Self {
        Self { gives: Some((kind, Place::Result)), ..self }
    }

    /// The same, leaving something in memory.
    #[must_use]
    pub const fn leaves(self, kind: Kind, argument: usize, offset: usize) -> Self {
        Self { gives: Some((kind, Place::Memory(argument, offset))), ..self }
    }
}
