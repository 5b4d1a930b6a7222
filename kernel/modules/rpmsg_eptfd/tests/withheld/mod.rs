//! A page of memory, writing to which takes as long as this wants: one of a FUSE file under
//! write-back, and the server does not answer.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mm::{MapFlags, ProtFlags};

use crate::support::Mapping;

const PAGE: usize = 4096;

// Requests of <linux/fuse.h>.
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;

fn numbers(fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|each| each.to_le_bytes()).collect()
}

/// `struct fuse_attr_out` of a regular file of one page.
fn attributes() -> Vec<u8> {
    let mode = 0o100_666;
    let valid_long = [1000, 0, 0, 0];
    let inode_size_blocks = [1, 0, 4096, 0, 8, 0];
    let times = [0; 9];
    let mode_links_owner_device_block_flags = [mode, 1, 0, 0, 0, 4096, 0];
    numbers(
        &[&valid_long[..], &inode_size_blocks, &times, &mode_links_owner_device_block_flags]
            .concat(),
    )
}

/// The server of a file system that is one file. Keeps each request to write for itself.
struct Server {
    device: File,
    writes: Sender<(u64, u32)>,
}

impl Server {
    fn serve(mut self) {
        let mut request = vec![0; 1 << 17];
        while let Some(length) = self.request(&mut request) {
            let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
            let unique = u64::from_le_bytes(request[8..16].try_into().unwrap());
            assert!(length >= 40);
            match number(4) {
                INIT => self.answer(unique, 0, &numbers(&init())),
                GETATTR | SETATTR => self.answer(unique, 0, &attributes()),
                OPEN => self.answer(unique, 0, &[0; 16]),
                READ => self.answer(unique, 0, &[0; PAGE]),
                WRITE => self.writes.send((unique, number(56))).unwrap_or_default(),
                FLUSH | RELEASE | FSYNC => self.answer(unique, 0, &[]),
                INTERRUPT | FORGET => {}
                _ => self.answer(unique, -38, &[]),
            }
        }
    }

    /// Reads a request; none comes after the unmount.
    fn request(&mut self, request: &mut [u8]) -> Option<usize> {
        loop {
            match self.device.read(request) {
                Ok(length) => return Some(length),
                // Not mounted yet, or the request was taken back.
                Err(why)
                    if [ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&why.kind()) =>
                {
                    sleep(Duration::from_millis(5));
                }
                Err(_) => return None,
            }
        }
    }

    fn answer(&self, unique: u64, error: i32, data: &[u8]) {
        answer(&self.device, unique, error, data);
    }
}

/// `struct fuse_init_out` of version 7.31.
fn init() -> [u32; 16] {
    let (major, minor, read_ahead, flags) = (7, 31, 4096, 0);
    // Two halves: requests in the background, and how many of them are many.
    let background = 0x0009_000c;
    let (longest_write, granularity) = (1 << 16, 1);
    let mut fields = [0; 16];
    let known = [major, minor, read_ahead, flags, background, longest_write, granularity];
    fields[..7].copy_from_slice(&known);
    fields
}

fn answer(mut device: &File, unique: u64, error: i32, data: &[u8]) {
    let length = u32::try_from(16 + data.len()).unwrap();
    let mut bytes = numbers(&[length, error.cast_unsigned()]);
    bytes.extend(unique.to_le_bytes());
    bytes.extend(data);
    // Whoever has asked may have given up.
    let _ = device.write(&bytes);
}

/// The page.
pub struct Withheld {
    folder: tempfile::TempDir,
    device: File,
    page: Mapping,
    writes: Receiver<(u64, u32)>,
    sync: Option<JoinHandle<()>>,
    held: Option<(u64, u32)>,
}

impl Withheld {
    /// A page that begins with `bytes`. It can be read at once, and written after
    /// [`release`](Self::release).
    #[allow(unsafe_code)]
    pub fn new(bytes: &[u8]) -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("FUSE");
        let (sender, writes) = channel();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        File::create(&path).unwrap();
        fcntl_setfd(&device, FdFlags::empty()).unwrap();
        let options = format!("fd={},rootmode=100666,user_id=0,group_id=0", device.as_raw_fd());
        // Before it is mounted: who mounts it looks at it.
        let server = Server { device: device.try_clone().unwrap(), writes: sender };
        spawn(move || server.serve());
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", &options, "page"]).arg(&path);
        assert!(mount.status().expect("mount").success());
        fcntl_setfd(&device, FdFlags::CLOEXEC).unwrap();

        let file = OpenOptions::new().read(true).write(true).open(&path).expect("the file");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let page = Mapping::new(&file, PAGE as u64, access, MapFlags::SHARED, 0).unwrap();
        assert!(bytes.len() <= PAGE);
        // SAFETY: within the mapping, to which there is no reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.base, bytes.len()) };
        let sync = Some(spawn(move || file.sync_data().expect("what was written back")));
        let held = Some(writes.recv().expect("the write-back"));
        Self { folder, device, page, writes, sync, held }
    }

    /// Where it is.
    pub fn address(&self) -> usize {
        self.page.base.expose_provenance()
    }

    /// Lets it be written.
    pub fn release(&mut self) {
        if let Some((unique, size)) = self.held.take() {
            answer(&self.device, unique, 0, &numbers(&[size, 0]));
        }
        if let Some(sync) = self.sync.take() {
            let _ = sync.join();
        }
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.release();
        // What was written since is written back by the unmount: nobody waits for it.
        let device = self.device.try_clone();
        let path = self.folder.path().join("page");
        let unmount = spawn(move || Command::new("umount").arg("-l").arg(path).status());
        while !unmount.is_finished() {
            let patience = Duration::from_millis(10);
            if let (Ok((unique, size)), Ok(device)) = (self.writes.recv_timeout(patience), &device)
            {
                answer(device, unique, 0, &numbers(&[size, 0]));
            }
        }
    }
}
