//! The minimum of BPF and `AF_XDP` for the tests: two programs, as instructions, and a socket of frames.

use std::ffi::CString;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, send, socket};

use crate::support::Mapping;

/// `enum bpf_cmd`
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const PROG_TYPE_XDP: u32 = 6;
const MAP_TYPE_XSKMAP: u32 = 17;
const FUNC_REDIRECT_MAP: i32 = 51;
/// `enum xdp_action`
pub const XDP_DROP: i32 = 1;
pub const XDP_PASS: i32 = 2;
const PSEUDO_MAP_FD: u8 = 1;

/// The parts of `union bpf_attr` that are used here: each call's fields, one after another.
#[repr(C, align(8))]
#[derive(Default)]
struct Attr([u32; 30]);

impl Attr {
    fn set(mut self, at: usize, value: u32) -> Self {
        self.0[at] = value;
        self
    }

    /// A pointer or another 64-bit value.
    fn set_long(self, at: usize, value: u64) -> Self {
        let [low, high] = if cfg!(target_endian = "little") { [0, 32] } else { [32, 0] };
        #[expect(clippy::cast_possible_truncation)]
        self.set(at, (value >> low) as u32).set(at + 1, (value >> high) as u32)
    }

    fn set_pointer<T>(self, at: usize, to: *const T) -> Self {
        self.set_long(at, to.expose_provenance() as u64)
    }

    fn call(&self, command: libc::c_int) -> i32 {
        #[allow(unsafe_code)]
        // SAFETY: the targets of its pointers live longer than this call, and are only read.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self, size_of::<Self>()) };
        assert!(result >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
        i32::try_from(result).unwrap()
    }

    fn call_for_fd(&self, command: libc::c_int) -> OwnedFd {
        let fd = self.call(command);
        #[allow(unsafe_code)]
        // SAFETY: a new descriptor.
        unsafe {
            OwnedFd::from_raw_fd(fd)
        }
    }
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let [offset_0, offset_1] = offset.to_ne_bytes();
    let [value_0, value_1, value_2, value_3] = value.to_ne_bytes();
    u64::from_ne_bytes([code, registers, offset_0, offset_1, value_0, value_1, value_2, value_3])
}

fn mov(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

fn exit() -> u64 {
    instruction(0x95, 0, 0, 0, 0)
}

fn load(instructions: &[u64]) -> OwnedFd {
    Attr::default()
        .set(0, PROG_TYPE_XDP)
        .set(1, u32::try_from(instructions.len()).unwrap())
        .set_pointer(2, instructions.as_ptr())
        .set_pointer(4, c"GPL".as_ptr())
        .call_for_fd(PROG_LOAD)
}

/// An XDP program with this result for each frame.
pub fn always(action: i32) -> OwnedFd {
    load(&[mov(0, action), exit()])
}

/// An XDP program that passes each frame to the socket of its queue, or to the stack if there is none.
pub fn to_sockets(sockets: &SocketMap) -> OwnedFd {
    load(&[
        // r2 = xdp_md.rx_queue_index
        instruction(0x61, 2, 1, 16, 0),
        // r1 = sockets
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, sockets.0.as_raw_fd()),
        0,
        mov(3, XDP_PASS),
        instruction(0x85, 0, 0, 0, FUNC_REDIRECT_MAP),
        exit(),
    ])
}

/// Pins a program with a name in a mounted `bpf`.
pub fn pin(program: &OwnedFd, path: &Path) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let fd = program.as_raw_fd().cast_unsigned();
    Attr::default().set_pointer(0, path.as_ptr()).set(2, fd).call(OBJ_PIN);
}

/// The sockets of a device's queues.
pub struct SocketMap(OwnedFd);

impl SocketMap {
    pub fn new(queues: u32) -> Self {
        let attr = Attr::default().set(0, MAP_TYPE_XSKMAP).set(1, 4).set(2, 4).set(3, queues);
        Self(attr.call_for_fd(MAP_CREATE))
    }

    pub fn insert(&self, queue: u32, socket: &Socket) {
        let fd = socket.fd.as_raw_fd();
        Attr::default()
            .set(0, self.0.as_raw_fd().cast_unsigned())
            .set_pointer(2, &raw const queue)
            .set_pointer(4, &raw const fd)
            .call(MAP_UPDATE_ELEM);
    }
}

const ENTRIES: u32 = 64;
const FRAME: u32 = 4096;

/// A ring of `T` that we share with the kernel: each side advances one of the two indices.
struct Ring<T> {
    mapping: Mapping,
    offset: XdpRingOffset,
    entry: std::marker::PhantomData<T>,
}

#[allow(unsafe_code)]
impl<T: Copy> Ring<T> {
    fn new(socket: BorrowedFd<'_>, offset: XdpRingOffset, at: u64) -> Self {
        let len = offset.desc + u64::from(ENTRIES) * size_of::<T>() as u64;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let mapping = Mapping::new(socket, len, access, flags, at).expect("a ring");
        Self { mapping, offset, entry: std::marker::PhantomData }
    }

    fn number(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel's offset, within the mapping, of a number that both sides access atomically.
        unsafe {
            AtomicU32::from_ptr(self.mapping.base.add(usize::try_from(offset).unwrap()).cast())
        }
    }

    fn entry(&self, number: u32) -> *mut T {
        let at = usize::try_from(self.offset.desc).unwrap();
        let index = usize::try_from(number % ENTRIES).unwrap();
        // SAFETY: the kernel's offset, and an index within what is mapped.
        unsafe { self.mapping.base.add(at).cast::<T>().add(index) }
    }

    /// Adds an entry to a ring that the kernel empties, which has room.
    fn push(&self, entry: T) {
        let producer = self.number(self.offset.producer);
        let number = producer.load(Ordering::Relaxed);
        // SAFETY: this entry is ours until the index is advanced.
        unsafe { self.entry(number).write(entry) };
        producer.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Takes an entry from a ring that the kernel fills.
    fn pop(&self) -> Option<T> {
        let consumer = self.number(self.offset.consumer);
        let number = consumer.load(Ordering::Relaxed);
        if number == self.number(self.offset.producer).load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: this entry is ours until the index is advanced.
        let entry = unsafe { self.entry(number).read() };
        consumer.store(number.wrapping_add(1), Ordering::Release);
        Some(entry)
    }
}

/// A socket of one queue's frames.
pub struct Socket {
    receive: Ring<XdpDesc>,
    transmit: Ring<XdpDesc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    frames: Mapping,
    fd: OwnedFd,
}

impl Socket {
    /// A socket in copy mode, which works with every device.
    pub fn new(interface: u32, queue: u32) -> Self {
        let fd = socket(AddressFamily::XDP, SocketType::RAW, None).expect("AF_XDP");
        let len = u64::from(ENTRIES * FRAME);
        let memory = memfd_create("frames", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, len).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let frames = Mapping::new(&memory, len, access, MapFlags::SHARED, 0).unwrap();
        let region = XdpUmemReg {
            addr: frames.base.expose_provenance() as u64,
            len,
            chunk_size: FRAME,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&fd, region).unwrap();
        set_xdp_umem_fill_ring_size(&fd, ENTRIES).unwrap();
        set_xdp_umem_completion_ring_size(&fd, ENTRIES).unwrap();
        set_xdp_rx_ring_size(&fd, ENTRIES).unwrap();
        set_xdp_tx_ring_size(&fd, ENTRIES).unwrap();
        let offsets = xdp_mmap_offsets(&fd).unwrap();
        let socket = Self {
            receive: Ring::new(fd.as_fd(), offsets.rx, XDP_PGOFF_RX_RING),
            transmit: Ring::new(fd.as_fd(), offsets.tx, XDP_PGOFF_TX_RING),
            fill: Ring::new(fd.as_fd(), offsets.fr, XDP_UMEM_PGOFF_FILL_RING),
            completion: Ring::new(fd.as_fd(), offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING),
            frames,
            fd,
        };
        for frame in 0..ENTRIES {
            socket.fill.push(u64::from(frame * FRAME));
        }
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, interface, queue);
        bind(&socket.fd, &address).expect("bind to a queue");
        socket
    }

    /// A received frame.
    pub fn receive(&self) -> Option<Frame<'_>> {
        self.receive.pop().map(|entry| Frame { socket: self, entry })
    }

    /// Takes back a frame that was sent.
    pub fn completed(&self) -> bool {
        self.completion.pop().is_some()
    }
}

/// A frame in memory that is shared with the kernel, owned by us at the moment.
pub struct Frame<'a> {
    socket: &'a Socket,
    entry: XdpDesc,
}

impl Frame<'_> {
    pub fn bytes(&mut self) -> &mut [u8] {
        let at = usize::try_from(self.entry.addr).unwrap();
        let len = usize::try_from(self.entry.len).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the kernel has given us these bytes, and gets them back only with the frame.
        unsafe {
            std::slice::from_raw_parts_mut(self.socket.frames.base.add(at), len)
        }
    }

    /// Shortens it to its first bytes.
    pub fn truncate(&mut self, len: u32) {
        assert!(len <= self.entry.len);
        self.entry.len = len;
    }

    /// Sends it.
    pub fn send(self) {
        self.socket.transmit.push(XdpDesc { options: XdpDescOptions::empty(), ..self.entry });
        send(&self.socket.fd, &[], SendFlags::DONTWAIT).expect("send");
    }
}
