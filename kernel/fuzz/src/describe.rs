//! Types for descriptions of calls. The descriptions themselves are in [`calls`](crate::calls).

use libc::c_long;

/// Kinds of resources that calls return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Any file.
    File,
    /// An epoll set.
    Epoll,
    /// An eventfd or an end of a pipe, for epoll to wait for.
    Event,
    /// A control device of rpmsg.
    Control,
    /// An anonymous endpoint, or the file of an endpoint's device node.
    Endpoint,
    /// A DMABUF.
    Dmabuf,
    /// A heap or `/dev/udmabuf`, which create DMABUFs.
    Heap,
    /// A sync file with fences of a DMABUF.
    SyncFile,
    /// A memfd.
    Memfd,
    /// A core of `vcoproc`.
    Core,
    /// The address of a mapping of a core's memory.
    Mapping,
    /// An IIO device.
    Converter,
    /// The buffer of an IIO device.
    Buffer,
    /// A file of sysfs, configfs or debugfs that accepts a word or a number.
    Attribute,
    /// A generic netlink socket.
    Generic,
    /// A routing netlink socket.
    Route,
    /// A TCP socket.
    Tcp,
}

impl Kind {
    /// Is a resource of this kind a file descriptor?
    #[must_use]
    pub fn is_file(self) -> bool {
        self != Self::Mapping
    }
}

/// Numbers that are determined in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Number of the system call `epoll_ctl_batch`, from `EPIOCGSYSCALLS`.
    CtlBatch,
    /// Number of the system call `epoll_pwait1`.
    Pwait1,
    /// Number of the generic netlink family `rpmsg-netlink`.
    RpmsgFamily,
    /// Number of the generic netlink family `netdev`.
    NetdevFamily,
    /// Number of the generic netlink family `ethtool`.
    EthtoolFamily,
    /// Interface index of the receiving network device.
    Device,
}

/// The type of an argument, a field or an area of memory.
///
/// Types in the first half are numbers. Types in the second half are memory; they occur in a [`To`](Self::To)
/// or in other memory.
#[derive(Debug)]
pub enum Type {
    /// Always this number.
    Is(u64),
    /// Always a number that was determined in the guest.
    Found(Found),
    /// One of these numbers.
    OneOf(&'static [u64]),
    /// Any combination of these flags.
    Flags(&'static [u64]),
    /// A number from 0 to this.
    UpTo(u64),
    /// Any number.
    Any,
    /// The resource of an earlier call; sometimes one of another kind, or none.
    Given(Kind),
    /// An address in a mapping: its start plus one of these offsets.
    Inside(Kind, &'static [u64]),
    /// Number of bytes of the argument or field with this index, or of the memory that it points to.
    Length(usize),
    /// Number of elements of the argument or field with this index.
    Count(usize),
    /// The address of memory of this type.
    To(&'static Type),

    /// One of these texts, with a NUL byte.
    Text(&'static [&'static str]),
    /// Up to this number of bytes.
    Bytes(usize),
    /// Up to this number of zero bytes, for the kernel to fill.
    Room(usize),
    /// Consecutive fields.
    Struct(&'static [Field]),
    /// Up to this number of elements of one type.
    Array(&'static Type, usize),
    /// Up to this number of elements of these types, in any order.
    AnyOf(&'static [Type], usize),
    /// A netlink attribute: its number and the type of its payload.
    Attribute(u16, &'static Type),
    /// A netlink message: four bytes of length, and this type.
    Message(&'static Type),
}

/// A field: its size in bytes, which for memory is the minimum, and its type.
#[derive(Debug)]
pub struct Field(pub usize, pub Type);

/// Number of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A number of Linux.
    Is(c_long),
    /// A number that is determined in the guest.
    Found(Found),
}

/// Where a call returns its resource.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// As its result.
    Result,
    /// As 32 bits in the memory that an argument points to: index of the argument, and offset.
    Memory(usize, usize),
}

/// The description of a call.
#[derive(Debug)]
pub struct Call {
    /// Its name in a sequence.
    pub name: &'static str,
    /// The system call.
    pub number: Number,
    /// Its arguments, up to six.
    pub arguments: &'static [Type],
    /// Kind and place of the resource that it returns.
    pub gives: Option<(Kind, Place)>,
}

impl Call {
    /// Describes a call that returns no resource.
    #[must_use]
    pub const fn new(name: &'static str, number: c_long, arguments: &'static [Type]) -> Self {
        Self { name, number: Number::Is(number), arguments, gives: None }
    }

    /// Describes such a call whose number is determined in the guest.
    #[must_use]
    pub const fn found(name: &'static str, number: Found, arguments: &'static [Type]) -> Self {
        Self { name, number: Number::Found(number), arguments, gives: None }
    }

    /// Sets the kind of resource that the call returns as its result.
    #[must_use]
    pub const fn gives(self, kind: Kind) -> Self {
        Self { gives: Some((kind, Place::Result)), ..self }
    }

    /// Sets the kind and place of a resource that the call returns in memory.
    #[must_use]
    pub const fn leaves(self, kind: Kind, argument: usize, offset: usize) -> Self {
        Self { gives: Some((kind, Place::Memory(argument, offset))), ..self }
    }
}
