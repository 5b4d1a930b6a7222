//! `/dev/vcoprocN`, the core of a virtual coprocessor (`kernel/uapi/linux/vcoproc.h`).

use std::os::fd::AsFd;

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, NoArg, Setter, ioctl, opcode};

/// Linux has started the core.
pub const EVENT_START: u32 = 1 << 0;
/// Linux stops the core and waits for [`stopped`].
pub const EVENT_STOP: u32 = 1 << 1;
/// Linux has kicked the vrings in [`Event::vrings`].
pub const EVENT_KICK: u32 = 1 << 2;

/// Device address and `mmap` offset at which buffers that Linux shares begin (`VCOPROC_BUFFERS`).
pub const BUFFERS: u64 = 1 << 40;

const MAGIC: u8 = 0xbb;

/// `struct vcoproc_event`: what one `read` returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `EVENT_*` bits; `EVENT_STOP` comes alone.
    pub events: u32,
    /// With [`EVENT_KICK`], one bit for each kicked vring, by notify id.
    pub vrings: u32,
    /// How often Linux has started this core.
    pub boot: u64,
}

/// `struct vcoproc_info`: where the memory of the coprocessor is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Device address of the first byte of the shared memory.
    pub device_address: u64,
    /// Bytes of shared memory, mapped at offset 0.
    pub memory_size: u64,
    /// `mmap` offset of the copy of the resource table that the process has.
    pub table_offset: u64,
    /// Bytes of the mapping of the resource table.
    pub table_size: u64,
}

/// Waits for an event, or fails with `AGAIN` on a non-blocking descriptor.
pub fn read_event(core: impl AsFd) -> io::Result<Event> {
    let mut bytes = [0; size_of::<Event>()];
    if rustix::io::read(core, &mut bytes)? != bytes.len() {
        return Err(Errno::IO);
    }
    // SAFETY: `Event` consists of integers without padding, so any bytes are valid.
    Ok(unsafe { std::mem::transmute::<[u8; size_of::<Event>()], Event>(bytes) })
}

/// `VCOPROC_GET_INFO`.
pub fn info(core: impl AsFd) -> io::Result<Info> {
    // SAFETY: the opcode is that of a call that fills a `struct vcoproc_info`, which `Info` mirrors.
    unsafe { ioctl(core, Getter::<{ opcode::read::<Info>(MAGIC, 0x1) }, Info>::new()) }
}

/// `VCOPROC_KICK`: kicks Linux on the vrings in `mask`, one bit for each notify id.
pub fn kick(core: impl AsFd, mask: u32) -> io::Result<()> {
    // SAFETY: the opcode is that of a call that reads one `__u32`.
    unsafe { ioctl(core, Setter::<{ opcode::write::<u32>(MAGIC, 0x2) }, u32>::new(mask)) }
}

/// `VCOPROC_STOPPED`: acknowledges an [`EVENT_STOP`].
pub fn stopped(core: impl AsFd) -> io::Result<()> {
    // SAFETY: the opcode is that of a call without an argument.
    unsafe { ioctl(core, NoArg::<{ opcode::none(MAGIC, 0x3) }>::new()) }
}

/// `VCOPROC_CRASH`: reports that the firmware has crashed.
pub fn crash(core: impl AsFd) -> io::Result<()> {
    // SAFETY: the opcode is that of a call without an argument.
    unsafe { ioctl(core, NoArg::<{ opcode::none(MAGIC, 0x4) }>::new()) }
}
