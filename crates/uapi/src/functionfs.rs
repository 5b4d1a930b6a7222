//! USB functions as files: DMABUFs on endpoints, and requests that do not wait (`<linux/usb/functionfs.h>`,
//! `<linux/aio_abi.h>`).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{self, Errno};
use rustix::ioctl::{NoArg, Opcode, Setter, Updater, ioctl, opcode};

use crate::call::last;
use crate::vector::iovec;

/// The type of the file system, as `fstatfs` returns it.
const MAGIC: u32 = 0x0a64_7361;

/// A file of `FunctionFS`.
#[derive(Debug)]
pub struct Endpoint(OwnedFd);

impl Endpoint {
    /// `EINVAL` for a file of another file system.
    pub fn new(file: OwnedFd) -> io::Result<Self> {
        // The type is signed or not, and of 32 or 64 bits, as the architecture has it.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let kind = rustix::fs::fstatfs(&file)?.f_type as u32;
        if kind == MAGIC { Ok(Self(file)) } else { Err(Errno::INVAL) }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Bytes of an event that `ep0` returns (`struct usb_functionfs_event`).
pub const EVENT_LEN: usize = 12;

/// What an event tells, its ninth byte (`enum usb_functionfs_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The gadget has got a controller.
    Bind,
    /// It has it no more.
    Unbind,
    /// The host has chosen the configuration or the interface: endpoints work, with nothing queued.
    Enable,
    /// Endpoints do not work any more.
    Disable,
    /// The host asks for something on endpoint 0; these are the first eight bytes of the event.
    Setup([u8; 8]),
    /// The bus sleeps.
    Suspend,
    /// The bus is awake again.
    Resume,
}

impl Event {
    /// The event of these bytes; `None` for one that is not known.
    #[must_use]
    pub fn decode(bytes: &[u8; EVENT_LEN]) -> Option<Self> {
        let [setup @ .., kind, _, _, _] = *bytes;
        Some(match kind {
            0 => Self::Bind,
            1 => Self::Unbind,
            2 => Self::Enable,
            3 => Self::Disable,
            4 => Self::Setup(setup),
            5 => Self::Suspend,
            6 => Self::Resume,
            _ => return None,
        })
    }
}

/// `struct usb_ffs_dmabuf_transfer_req`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug)]
struct Transfer {
    fd: i32,
    flags: u32,
    length: u64,
}

/// `struct usb_endpoint_descriptor`.
type Descriptor = [u8; 9];

const FLUSH: Opcode = opcode::none(b'g', 2);
const DESCRIPTOR: Opcode = opcode::read::<Descriptor>(b'g', 130);
const ATTACH: Opcode = opcode::write::<i32>(b'g', 131);
const DETACH: Opcode = opcode::write::<i32>(b'g', 132);
const TRANSFER: Opcode = opcode::write::<Transfer>(b'g', 133);

/// `FUNCTIONFS_FIFO_FLUSH`: has the controller forget what it holds for an endpoint, besides transfers. Some controllers
/// cannot, and do not tell. `EAGAIN` while the host has not enabled the endpoint, whose file does not wait.
pub fn flush(endpoint: &Endpoint) -> io::Result<()> {
    // SAFETY: the opcode is that of a call without a parameter.
    unsafe { ioctl(endpoint, NoArg::<FLUSH>::new()) }
}

/// Bytes of a packet at the speed of the host, by `FUNCTIONFS_ENDPOINT_DESC`. `EAGAIN` while the host has not enabled the
/// endpoint, whose file does not wait.
pub fn packet_len(endpoint: &Endpoint) -> io::Result<usize> {
    // The last two bytes are those of audio, which the kernel does not write.
    let mut descriptor: Descriptor = [0; 9];
    // SAFETY: the opcode is that of a call that writes a `struct usb_endpoint_descriptor`, or less.
    unsafe { ioctl(endpoint, Updater::<DESCRIPTOR, Descriptor>::new(&mut descriptor)) }?;
    // The upper bits are for isochronous endpoints.
    Ok(usize::from(u16::from_le_bytes([descriptor[4], descriptor[5]]) & 0x7ff))
}

/// `FUNCTIONFS_DMABUF_ATTACH`: lets `endpoint` transfer `buffer`. `EPERM` if its controller takes no
/// scatterlists.
pub fn attach(endpoint: impl AsFd, buffer: impl AsFd) -> io::Result<()> {
    let fd = buffer.as_fd().as_raw_fd();
    // SAFETY: the opcode is that of a call that reads an `int`.
    unsafe { ioctl(endpoint, Setter::<ATTACH, i32>::new(fd)) }
}

/// `FUNCTIONFS_DMABUF_DETACH`: undoes [`attach`], and cancels the last transfer of `buffer`.
pub fn detach(endpoint: impl AsFd, buffer: impl AsFd) -> io::Result<()> {
    let fd = buffer.as_fd().as_raw_fd();
    // SAFETY: the opcode is that of a call that reads an `int`.
    unsafe { ioctl(endpoint, Setter::<DETACH, i32>::new(fd)) }
}

/// `FUNCTIONFS_DMABUF_TRANSFER`: queues the first `length` bytes of an attached buffer, and returns. A fence of
/// the buffer is signalled at the end of the transfer.
pub fn transfer(endpoint: impl AsFd, buffer: impl AsFd, length: u64) -> io::Result<()> {
    let fd = buffer.as_fd().as_raw_fd();
    // SAFETY: the opcode is that of a call that reads a `struct usb_ffs_dmabuf_transfer_req`.
    unsafe { ioctl(endpoint, Setter::<TRANSFER, _>::new(Transfer { fd, flags: 0, length })) }
}

/// `struct iocb`. Its first two words depend on the byte order.
#[repr(C)]
#[derive(Debug, Default)]
struct Iocb {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: i32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    second: i64,
}

const PREAD: u16 = 0;
const PWRITEV: u16 = 8;
/// `IOCB_FLAG_RESFD`.
const TELL: u32 = 1;

/// Requests on endpoints that do not wait: `io_submit`.
///
/// Dropping it cancels what is under way, and waits until the controller has let go of it, and for two grace periods of RCU:
/// some 10 ms.
#[derive(Debug)]
pub struct Requests {
    context: libc::c_ulong,
    bell: OwnedFd,
    /// The requests under way, by the number in their events. The kernel writes to these buffers.
    slots: Vec<Option<Slot>>,
    under_way: usize,
}

#[derive(Debug)]
struct Slot {
    buffer: Vec<u8>,
    tag: u64,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The number that it was given.
    pub tag: u64,
    /// The bytes that were read; empty for a write.
    pub buffer: Vec<u8>,
    /// Bytes transferred, or why none were.
    pub result: io::Result<usize>,
}

impl Requests {
    /// Room for `most` requests at a time.
    pub fn new(most: u16) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the number of a context.
        done(unsafe {
            libc::syscall(libc::SYS_io_setup, libc::c_long::from(most), &raw mut context)
        })?;
        let slots = (0..most).map(|_| None).collect();
        Ok(Self { context, bell, slots, under_way: 0 })
    }

    /// Requests that have not ended, or whose end was not taken.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// How many further requests it takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len() - self.under_way
    }

    /// Queues a read into all of `buffer`. `EAGAIN` while there is no room, or no memory. Without a host, the read ends with
    /// that.
    pub fn read(&mut self, endpoint: impl AsFd, mut buffer: Vec<u8>, tag: u64) -> io::Result<()> {
        let (address, bytes) =
            (buffer.as_mut_ptr().expose_provenance() as u64, buffer.len() as u64);
        let iocb = Iocb { opcode: PREAD, buffer: address, bytes, ..Iocb::default() };
        // SAFETY: the slot owns the buffer until the request has ended, and moving a `Vec` moves no byte of it.
        unsafe { self.submit(endpoint.as_fd(), iocb, true, Slot { buffer, tag }) }
    }

    /// Queues a write of all parts as one transfer. `tells`: [`Requests`] is readable at its end.
    ///
    /// # Safety
    ///
    /// The memory that `parts` name has to be mapped during the call: `FunctionFS` copies it.
    pub unsafe fn write(
        &mut self,
        endpoint: &Endpoint,
        parts: &[iovec],
        tells: bool,
        tag: u64,
    ) -> io::Result<()> {
        let (address, bytes) = (parts.as_ptr().expose_provenance() as u64, parts.len() as u64);
        let iocb = Iocb { opcode: PWRITEV, buffer: address, bytes, ..Iocb::default() };
        // SAFETY: the caller guarantees that it can be read now, and later the kernel has a copy.
        unsafe { self.submit(endpoint.as_fd(), iocb, tells, Slot { buffer: Vec::new(), tag }) }
    }

    /// # Safety
    ///
    /// The kernel may use the memory that `iocb` names as long as `slot` exists.
    unsafe fn submit(
        &mut self,
        endpoint: BorrowedFd<'_>,
        mut iocb: Iocb,
        tells: bool,
        slot: Slot,
    ) -> io::Result<()> {
        let free = self.slots.iter().position(Option::is_none).ok_or(Errno::AGAIN)?;
        iocb.data = free as u64;
        iocb.fd = endpoint.as_raw_fd().cast_unsigned();
        if tells {
            (iocb.flags, iocb.resfd) = (TELL, self.bell.as_raw_fd().cast_unsigned());
        }
        self.slots[free] = Some(slot);
        let mut list = [&raw mut iocb];
        // SAFETY: the call reads one address of a `struct iocb`, and that; the caller guarantees the rest.
        let result = done(unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context,
                libc::c_long::from(1_u8),
                list.as_mut_ptr(),
            )
        });
        match result {
            Ok(_) => {
                self.under_way += 1;
                Ok(())
            }
            Err(errno) => {
                self.slots[free] = None;
                Err(errno)
            }
        }
    }

    /// Makes it readable until the next [`reap`](Self::reap).
    pub fn ring(&self) -> io::Result<()> {
        io::write(&self.bell, &1_u64.to_ne_bytes()).map(drop)
    }

    /// Calls `each` with the requests that have ended since the last call, in their order.
    pub fn reap(&mut self, mut each: impl FnMut(Ended)) -> io::Result<()> {
        const MOST: u8 = 32;
        // This fails only if it is not readable. The kernel rings after the result is there: the last call may have taken
        // that before.
        let _ = io::read(&self.bell, &mut [0; 8]);
        if self.under_way == 0 {
            return Ok(());
        }
        loop {
            let mut events = [MaybeUninit::<IoEvent>::uninit(); MOST as usize];
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the call fills as many events as it returns, at most MOST, and reads the time.
            let count = done(unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    libc::c_long::from(0_u8),
                    libc::c_long::from(MOST),
                    events.as_mut_ptr(),
                    &raw mut now,
                )
            });
            let count = match count {
                Err(Errno::INTR) => continue,
                count => count?,
            };
            for event in &events[..count.min(events.len())] {
                // SAFETY: the kernel has filled it.
                let event = unsafe { event.assume_init() };
                let index = usize::try_from(event.data).unwrap_or(usize::MAX);
                let Some(slot) = self.slots.get_mut(index).and_then(Option::take) else { continue };
                self.under_way -= 1;
                let result = usize::try_from(event.result).map_err(|_| {
                    let errno = i32::try_from(event.result.unsigned_abs()).unwrap_or(i32::MAX);
                    Errno::from_raw_os_error(errno)
                });
                each(Ended { tag: slot.tag, buffer: slot.buffer, result });
            }
            if count < events.len() {
                return Ok(());
            }
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // SAFETY: the context is ours. The call cancels its requests, and returns when none is under way: after that
        // the kernel does not use their buffers.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// Readable when a request has ended.
impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn done(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_numbers_are_those_of_the_headers() {
        // As printed by a C program that includes them.
        assert_eq!(FLUSH, 0x6702);
        assert_eq!(DESCRIPTOR, 0x8009_6782);
        assert_eq!(ATTACH, 0x4004_6783);
        assert_eq!(DETACH, 0x4004_6784);
        assert_eq!(TRANSFER, 0x4010_6785);
        assert_eq!((size_of::<Transfer>(), size_of::<Iocb>(), size_of::<IoEvent>()), (16, 64, 32));
        assert_eq!(std::mem::offset_of!(Iocb, opcode), 16);
        assert_eq!(std::mem::offset_of!(Iocb, resfd), 60);
    }

    #[test]
    fn every_call_fails_on_a_file_that_does_not_know_it() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(attach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(detach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(transfer(&null, &null, 1), Err(Errno::NOTTY));
    }

    #[test]
    fn events_are_told_apart() {
        let mut bytes = [0; EVENT_LEN];
        (bytes[0], bytes[8]) = (7, 4);
        assert_eq!(Event::decode(&bytes), Some(Event::Setup([7, 0, 0, 0, 0, 0, 0, 0])));
        bytes[8] = 2;
        assert_eq!(Event::decode(&bytes), Some(Event::Enable));
        bytes[8] = 7;
        assert_eq!(Event::decode(&bytes), None);
    }

    #[test]
    fn requests_end_once_and_in_their_order() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut requests = Requests::new(2).unwrap();
        requests.read(&file, vec![0; 4], 5).unwrap();
        requests.read(&file, vec![0; 2], 6).unwrap();
        assert_eq!(requests.room(), 0);
        assert_eq!(requests.read(&file, vec![0; 2], 7), Err(Errno::AGAIN));
        let mut ended = Vec::new();
        while ended.len() < 2 {
            requests.reap(|one| ended.push((one.tag, one.buffer, one.result))).unwrap();
        }
        assert_eq!(ended[0], (5, b"\x7fELF".to_vec(), Ok(4)));
        assert_eq!(ended[1], (6, b"\x7fE".to_vec(), Ok(2)));
        assert_eq!(requests.under_way(), 0);
        let write = requests.read(std::fs::File::create("/dev/null").unwrap(), vec![0; 1], 8);
        assert_eq!(write, Err(Errno::BADF));
        assert_eq!(requests.under_way(), 0);
    }
}
