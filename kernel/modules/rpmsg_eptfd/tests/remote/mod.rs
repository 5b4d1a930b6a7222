//! The coprocessor's side of shared buffers, controlled by a test: it sees what it is given,
//! accesses it through the coprocessor's own mappings, and gives it back at any time.

#![allow(dead_code)]

mod view;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use busbar_coprocessor::service::Services;
use busbar_coprocessor::{Core, Options, Stop, StopHandle};
use busbar_lab::stage::Side;
use busbar_uapi::dmabuf::{self, TO_REMOTE};
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

pub use view::{PAGE, View};

use crate::support::messenger::Messenger;
use crate::support::{Mapping, eptfd, wait_until};

/// The address of the only service.
pub const SERVICE: u32 = 0x400;

const MAGIC: u32 = 0x4655_4244;
const GIVEN: u16 = 1;
const DONE: u16 = 2;

/// `struct rpmsg_dmabuf_message`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub magic: u32,
    pub kind: u16,
    pub direction: u16,
    pub cookie: u64,
    pub address: u64,
    pub offset: u64,
    pub length: u64,
    pub status: u32,
    pub reserved: u32,
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(48);
        bytes.extend(self.magic.to_le_bytes());
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.direction.to_le_bytes());
        for field in [self.cookie, self.address, self.offset, self.length] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(self.status.to_le_bytes());
        bytes.extend(self.reserved.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), 48, "a message about a buffer");
        let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Self {
            magic: u32_at(0),
            kind: u16_at(4),
            direction: u16_at(6),
            cookie: u64_at(8),
            address: u64_at(16),
            offset: u64_at(24),
            length: u64_at(32),
            status: u32_at(40),
            reserved: u32_at(44),
        }
    }

    pub fn is_given(&self) -> bool {
        self.magic == MAGIC && self.kind == GIVEN
    }

    pub fn is_done(&self) -> bool {
        self.magic == MAGIC && self.kind == DONE
    }

    /// The same message, as a reader on Linux's side gets it.
    pub fn read(&self) -> Self {
        Self { address: 0, ..*self }
    }

    /// The answer: the number of bytes used, and the status.
    pub fn done(&self, length: u64, status: u32) -> Self {
        Self { kind: DONE, length, status, ..*self }
    }
}

/// A coprocessor that is this process.
pub struct Remote {
    core: OwnedFd,
    came: Receiver<(u32, Vec<u8>)>,
    to_send: Sender<(u32, Vec<u8>)>,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    /// Opens a device as its core.
    pub fn on(device: &std::path::Path) -> Self {
        let core = Core::open(device).expect("a core that is free");
        let fd = core.as_fd().try_clone_to_owned().unwrap();
        let (messenger, came, to_send) = Messenger::new("messenger");
        let stop = Stop::new().unwrap();
        let handle = stop.handle();
        let body = move || {
            let mut services = Services::default();
            services.add(messenger).unwrap();
            let options = Options { stop: Some(&stop), ..Options::default() };
            let _ = core.run(&mut services, &options, &mut |_| {});
        };
        let thread = Some(std::thread::spawn(body));
        Self { core: fd, came, to_send, stop: handle, thread }
    }

    /// The next message, and its sender.
    pub fn message(&self) -> (u32, Vec<u8>) {
        self.came.recv_timeout(Duration::from_secs(60)).expect("a message within a minute")
    }

    /// Whether a message has come.
    pub fn has_message(&self) -> Option<(u32, Vec<u8>)> {
        self.came.try_recv().ok()
    }

    /// The next part that it is given, and the sender.
    pub fn given(&self) -> (u32, Message) {
        let (from, data) = self.message();
        let message = Message::decode(&data);
        assert!(message.is_given(), "{message:x?}");
        (from, message)
    }

    pub fn send(&self, to: u32, data: &[u8]) {
        self.to_send.send((to, data.to_vec())).expect("a core that runs");
    }

    /// Gives a part back, all of it used.
    pub fn give_back(&self, to: u32, part: &Message) {
        self.send(to, &part.done(part.length, 0).encode());
    }

    /// The core's descriptor.
    pub fn core(&self) -> &OwnedFd {
        &self.core
    }

    /// The pages of a part, and its offset in them.
    pub fn map(&self, part: &Message) -> View {
        View::new(&self.core, part.address + part.offset, part.length)
    }

    /// The end of the process as Linux sees it: a crash.
    pub fn crash(mut self) {
        self.end();
    }

    /// A crash, after which another coprocessor starts once Linux has removed the devices of this one.
    pub fn again(self, side: &mut Side) -> Self {
        self.crash();
        side.gone().expect("a recovery");
        Self::on(side.core())
    }

    fn end(&mut self) {
        self.stop.stop_at_once();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end();
    }
}

/// A coprocessor that is this process, its control device with `rpmsg_eptfd`, and an endpoint that
/// talks to it.
pub struct Bench {
    pub remote: Remote,
    pub side: Side,
    pub control: File,
}

impl Bench {
    pub fn new() -> Self {
        let mut side = eptfd(&["echo"]);
        side.kill().unwrap();
        let remote = Remote::on(side.core());
        let control = bind(&mut side);
        // Long enough for an emulated debug kernel.
        set_timeout(600_000);
        Self { remote, side, control }
    }

    pub fn endpoint_with(&self, src: u32, dst: u32, flags: OFlags) -> OwnedFd {
        let flags = (OFlags::CLOEXEC | flags).bits();
        let mut name = [0; NAME_SIZE];
        name[..4].copy_from_slice(b"test");
        rpmsg::create_ept_fd(&self.control, EndpointFdInfo { name, src, dst, flags, fd: -1 })
            .expect("an endpoint")
    }

    pub fn endpoint(&self) -> OwnedFd {
        self.endpoint_with(ADDR_ANY, SERVICE, OFlags::RDWR)
    }

    pub fn nonblocking(&self) -> OwnedFd {
        self.endpoint_with(ADDR_ANY, SERVICE, OFlags::RDWR | OFlags::NONBLOCK)
    }

    /// The same after a crash.
    pub fn crash(self) -> Self {
        let Self { remote, mut side, control } = self;
        drop(control);
        let remote = remote.again(&mut side);
        let control = bind(&mut side);
        Self { remote, side, control }
    }

    /// Sends a part, which the remote then has; also returns its sender.
    pub fn give(
        &self,
        endpoint: &OwnedFd,
        buffer: &OwnedFd,
        direction: u32,
        offset: u64,
        length: u64,
    ) -> (u32, Message) {
        let cookie = dmabuf::send(endpoint, buffer, direction, offset, length).expect("send");
        let (from, part) = self.remote.given();
        let expected = Message {
            magic: MAGIC,
            kind: GIVEN,
            direction: u16::try_from(direction).unwrap(),
            cookie,
            address: part.address,
            offset,
            length,
            status: 0,
            reserved: 0,
        };
        assert_eq!(part, expected);
        (from, part)
    }

    /// Sends a part to be read by the remote.
    pub fn show(&self, endpoint: &OwnedFd, buffer: &OwnedFd) -> (u32, Message) {
        self.give(endpoint, buffer, TO_REMOTE, 0, PAGE)
    }
}

/// Sets the timeout of parts.
pub fn set_timeout(milliseconds: u32) {
    let file = "/sys/module/rpmsg_eptfd/parameters/give_timeout_ms";
    std::fs::write(file, milliseconds.to_string()).expect("the module's parameter");
}

/// Gives the control device of `side` to `rpmsg_eptfd` and opens it.
///
/// Call it after the remote has started, and after a crash only behind [`Remote::again`].
pub fn bind(side: &mut Side) -> File {
    wait_until("the remote", || {
        let devices = std::fs::read_dir("/sys/bus/rpmsg/devices").unwrap().flatten();
        devices.map(|each| each.file_name()).any(|n| n.to_string_lossy().contains("messenger"))
    });
    // The bus binds the in-tree driver at the same time.
    wait_until("the control device", || side.bind().is_ok());
    File::options().read(true).write(true).open(side.controller()).expect("the control device")
}

/// Memory of the system heap.
pub fn heap(len: u64) -> OwnedFd {
    let heap = File::options().read(true).write(true).open("/dev/dma_heap/system").expect("a heap");
    dmabuf::heap_alloc(&heap, len).expect("memory")
}

/// Pages of a memfd, for which `flags` can ask to be huge.
pub fn pages(len: u64, flags: MemfdFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("pages", flags).expect("a memfd");
    ftruncate(&memory, len).unwrap();
    // Linux 6.12 miscounts huge pages that udmabuf has to allocate (alloc_hugetlb_folio_reserve()).
    fallocate(&memory, FallocateFlags::empty(), 0, len).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    let device = File::options().read(true).write(true).open("/dev/udmabuf").expect("udmabuf");
    dmabuf::udmabuf_create(&device, &memory, 0, len).expect("a DMABUF")
}

/// Huge pages of 2 MiB, after making enough of them available.
pub fn huge_pages(len: u64) -> OwnedFd {
    let reserved = "/proc/sys/vm/nr_hugepages";
    let wanted = (len >> 21) + 2;
    std::fs::write(reserved, wanted.to_string()).unwrap();
    let all = std::fs::read_to_string(reserved).unwrap();
    assert!(all.trim().parse::<u64>().unwrap() >= len >> 21, "{all} huge pages");
    pages(len, MemfdFlags::HUGETLB)
}

/// The content of a DMABUF for the processor.
#[allow(unsafe_code)]
pub fn contents(buffer: &OwnedFd, offset: u64, len: u64) -> Vec<u8> {
    let (mapping, all) = map_all(buffer);
    let (offset, len) = (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap());
    assert!(offset + len <= all);
    // SAFETY: within the mapping, to which there is no other reference.
    unsafe { std::slice::from_raw_parts(mapping.base.add(offset), len) }.to_vec()
}

/// Writes to a DMABUF by the processor.
#[allow(unsafe_code)]
pub fn fill(buffer: &OwnedFd, offset: u64, bytes: &[u8]) {
    let (mapping, all) = map_all(buffer);
    let offset = usize::try_from(offset).unwrap();
    assert!(offset + bytes.len() <= all);
    // SAFETY: within the mapping, to which there is no other reference.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.base.add(offset), bytes.len());
    }
}

fn map_all(buffer: &OwnedFd) -> (Mapping, usize) {
    let len = rustix::fs::seek(buffer, rustix::fs::SeekFrom::End(0)).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let mapping = Mapping::new(buffer, len, access, MapFlags::SHARED, 0).unwrap();
    (mapping, usize::try_from(len).unwrap())
}

/// Reads the answer from an endpoint, waiting for it.
pub fn answer(endpoint: &OwnedFd) -> Message {
    let mut bytes = [0; 512];
    let mut len = 0;
    wait_until("an answer", || match rustix::io::read(endpoint, &mut bytes) {
        Ok(read) => {
            len = read;
            true
        }
        Err(Errno::AGAIN) => false,
        Err(why) => panic!("{why}"),
    });
    let message = Message::decode(&bytes[..len]);
    assert!(message.is_done(), "{message:x?}");
    message
}

/// The lines of `/proc/self/fdinfo` for a descriptor.
pub fn fdinfo(fd: &OwnedFd, key: &str) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().parse().expect("a number"))
}

/// The use count of the module.
pub fn references() -> u32 {
    let count = std::fs::read_to_string("/sys/module/rpmsg_eptfd/refcnt").unwrap();
    count.trim().parse().unwrap()
}

/// Bytes that differ from those of another `seed`.
pub fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Waits a moment, in which nothing should happen.
pub fn moment() {
    sleep(Duration::from_millis(200));
}
