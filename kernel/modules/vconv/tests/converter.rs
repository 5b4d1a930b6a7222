//! Shared by the tests of `vconv`: a converter for each test, its devices, and blocks for them.

#![allow(dead_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use busbar_uapi::dmabuf::{self, Access};
use busbar_uapi::iio;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::support::{Mapping, modprobe, wait_until};

pub const FOLDER: &str = "/sys/kernel/config/iio/devices/vconv";
/// Bytes of a sample of all four voltages.
pub const FRAME: usize = 8;
pub const RX_VOLTAGES: [&str; 4] =
    ["in_voltage0_i", "in_voltage0_q", "in_voltage1_i", "in_voltage1_q"];
pub const TX_VOLTAGES: [&str; 4] =
    ["out_voltage0_i", "out_voltage0_q", "out_voltage1_i", "out_voltage1_q"];

pub fn load() {
    modprobe(&["vconv"]).unwrap();
    if !Path::new("/sys/kernel/config/iio").exists() {
        let mount = ["-t", "configfs", "none", "/sys/kernel/config"];
        assert!(Command::new("mount").args(mount).status().unwrap().success());
    }
    assert!(Path::new(FOLDER).exists());
}

/// A converter created with configfs, and removed when this is dropped.
pub struct Converter {
    folder: PathBuf,
    pub rx: Device,
    pub tx: Device,
}

impl Converter {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("test-{}-{next}", std::process::id()))
    }

    pub fn named(name: &str) -> Self {
        load();
        let folder = Path::new(FOLDER).join(name);
        fs::create_dir(&folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        let rx = Device::find(name).expect("the receiver");
        let tx = Device::find(&format!("{name}-tx")).expect("the transmitter");
        Self { folder, rx, tx }
    }

    /// A converter that receives what it transmits, with all voltages.
    pub fn looped() -> Self {
        let converter = Self::new();
        converter.rx.set("loopback", 1);
        converter.rx.channels(&RX_VOLTAGES);
        converter.tx.channels(&TX_VOLTAGES);
        converter
    }

    /// Removes the device, as if the hardware were unplugged.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.folder)
    }
}

impl Drop for Converter {
    fn drop(&mut self) {
        let result = self.remove();
        if !std::thread::panicking() {
            assert!(result.is_ok() || !self.folder.exists(), "{result:?}");
        }
    }
}

pub struct Device {
    pub name: String,
    pub folder: PathBuf,
    node: PathBuf,
}

impl Device {
    pub fn find(name: &str) -> Option<Self> {
        let folder = fs::read_dir("/sys/bus/iio/devices").ok()?.flatten().map(|e| e.path()).find(
            |folder| fs::read_to_string(folder.join("name")).is_ok_and(|text| text.trim() == name),
        )?;
        let node = Path::new("/dev").join(folder.file_name()?);
        wait_until("the device node", || node.exists());
        Some(Self { name: name.into(), folder, node })
    }

    pub fn open(&self) -> File {
        self.open_with(OFlags::empty())
    }

    pub fn open_with(&self, flags: OFlags) -> File {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = flags.bits().cast_signed();
        File::options().read(true).write(true).custom_flags(flags).open(&self.node).unwrap()
    }

    /// The file of the buffer, non-blocking.
    pub fn buffer(&self) -> OwnedFd {
        let buffer = iio::buffer_fd(self.open(), 0).expect("the buffer");
        non_blocking(&buffer, true);
        buffer
    }

    pub fn get(&self, attribute: &str) -> String {
        let path = self.folder.join(attribute);
        let text = fs::read_to_string(&path);
        text.unwrap_or_else(|why| panic!("{}: {why}", path.display())).trim().into()
    }

    pub fn number(&self, attribute: &str) -> u64 {
        self.get(attribute).parse().unwrap()
    }

    pub fn set(&self, attribute: &str, value: impl ToString) {
        if let Err(why) = self.try_set(attribute, value) {
            panic!("{} {attribute}: {why}", self.name);
        }
    }

    // For numbers and words.
    #[allow(clippy::needless_pass_by_value)]
    pub fn try_set(&self, attribute: &str, value: impl ToString) -> Result<(), Errno> {
        let result = fs::write(self.folder.join(attribute), value.to_string());
        result.map_err(|why| Errno::from_io_error(&why).expect("an errno"))
    }

    /// Switches these channels on and all others off.
    pub fn channels(&self, names: &[&str]) {
        for entry in fs::read_dir(self.folder.join("scan_elements")).unwrap().flatten() {
            let file = entry.file_name().into_string().unwrap();
            if let Some(channel) = file.strip_suffix("_en") {
                let on = u8::from(names.contains(&channel));
                fs::write(entry.path(), on.to_string()).unwrap();
            }
        }
    }

    pub fn enable(&self) {
        self.set("buffer/enable", 1);
    }

    pub fn disable(&self) {
        self.set("buffer/enable", 0);
    }

    /// The file of a fault in debugfs.
    pub fn fault(&self, name: &str) -> PathBuf {
        let device = self.folder.file_name().unwrap();
        Path::new("/sys/kernel/debug/iio").join(device).join(name)
    }

    pub fn inject(&self, name: &str, value: u64) {
        fs::write(self.fault(name), value.to_string()).unwrap();
    }

    pub fn pending(&self, name: &str) -> u64 {
        fs::read_to_string(self.fault(name)).unwrap().trim().parse().unwrap()
    }
}

pub fn non_blocking(file: impl AsFd, on: bool) {
    let mut flags = fcntl_getfl(&file).unwrap();
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(&file, flags).unwrap();
}

/// Memory of the system heap.
pub struct Block {
    fd: OwnedFd,
    mapping: Mapping,
    pub len: usize,
}

impl AsFd for Block {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[allow(unsafe_code)]
impl Block {
    pub fn new(len: usize) -> Self {
        let heap =
            File::options().read(true).write(true).open("/dev/dma_heap/system").expect("heap");
        let len = len.next_multiple_of(4096);
        Self::of(dmabuf::heap_alloc(&heap, len as u64).expect("memory"), len)
    }

    pub fn of(fd: OwnedFd, len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(&fd, len as u64, access, MapFlags::SHARED, 0).expect("a map");
        Self { fd, mapping, len }
    }

    /// Its first `len` bytes. Waits until the device is done.
    pub fn read(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.len);
        dmabuf::begin(self, Access::Read).unwrap();
        // SAFETY: within the mapping, and no reference to it outlives the copy.
        let bytes = unsafe { std::slice::from_raw_parts(self.mapping.base, len) }.to_vec();
        dmabuf::end(self, Access::Read).unwrap();
        bytes
    }

    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        dmabuf::begin(self, Access::Write).unwrap();
        // SAFETY: within the mapping, which no reference points into.
        unsafe { self.mapping.base.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        dmabuf::end(self, Access::Write).unwrap();
    }

    /// The number of its descriptor, as reports name it.
    pub fn number(&self) -> u32 {
        self.fd.as_raw_fd().cast_unsigned()
    }

    /// Whether the device has finished with it within `patience`.
    pub fn done_within(&self, patience: std::time::Duration) -> bool {
        let patience = Timespec::try_from(patience).unwrap();
        let mut fds = [PollFd::new(self, PollFlags::OUT)];
        poll(&mut fds, Some(&patience)).unwrap() == 1
    }

    /// A sync file of the current fences; it has to be exported before they are signalled.
    pub fn fences(&self) -> OwnedFd {
        dmabuf::export_sync_file(self, Access::ReadWrite).expect("a sync file")
    }
}

/// Waits until the fences in a sync file are signalled, and returns the status.
pub fn outcome(fences: &OwnedFd) -> Result<(), Errno> {
    let mut end = None;
    wait_until("a fence", || {
        end = dmabuf::sync_file_status(fences).unwrap().1;
        end.is_some()
    });
    end.unwrap()
}

/// New blocks that the device may use.
pub fn attached(buffer: &OwnedFd, count: usize, len: usize) -> Vec<Block> {
    let blocks: Vec<_> = (0..count).map(|_| Block::new(len)).collect();
    for block in &blocks {
        iio::attach(buffer, block).expect("attach");
    }
    blocks
}

/// Gives the first `len` bytes of each block to the device.
#[track_caller]
pub fn enqueue_all(buffer: &OwnedFd, blocks: &[Block], len: usize, flags: u32) {
    for block in blocks {
        iio::enqueue(buffer, block, len as u64, flags).unwrap();
    }
}

/// Gives a block to the device and waits until it is done.
pub fn transfer(buffer: &OwnedFd, block: &Block, len: usize) -> Result<(), Errno> {
    iio::enqueue(buffer, block, len as u64, 0)?;
    let fences = block.fences();
    outcome(&fences)
}

pub fn u64s(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap()))
}

pub fn i16s(bytes: &[u8]) -> Vec<i16> {
    bytes.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect()
}

/// Every sample of the pattern `counter`, the first being number `first`.
#[track_caller]
pub fn assert_counter(bytes: &[u8], first: u64) {
    for (index, value) in u64s(bytes).enumerate() {
        assert_eq!(value, first + index as u64, "sample {index}");
    }
}
