//! Shared by the tests of the kernel modules, which run as root in the lab, one after another.

#![allow(dead_code)]

pub mod fault;
pub mod iiod;
pub mod messenger;
pub mod usb;

use std::ffi::c_void;
use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use busbar_lab::stage::{Driver, Side};
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The command under test: the guest's own copy if there is one.
pub fn busbar() -> PathBuf {
    std::env::var_os("BUSBAR_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_busbar").into()).into()
}

/// `busbar` with these arguments, without the streams of this process.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(busbar());
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output of a command, as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON of the last line, a summary.
pub fn last(out: &str) -> Value {
    let summary: Value = serde_json::from_str(out.lines().last().unwrap_or_default()).expect(out);
    assert_eq!(summary["event"], "summary", "{out}");
    summary
}

/// The summary of a command that has succeeded.
pub fn summary(output: &Output) -> Value {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    last(&out)
}

/// The summary of a command, once it has succeeded.
pub fn finish(child: Child) -> Value {
    summary(&child.wait_with_output().unwrap())
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A port that was free a moment ago.
pub fn port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).find(is_free).unwrap()
}

/// The first coprocessor, its control device with `rpmsg_eptfd`.
pub fn eptfd(services: &[&str]) -> Side {
    Side::up(0, Driver::Eptfd, &busbar(), services).expect("a coprocessor")
}

/// The second coprocessor, its control device with the in-tree driver.
pub fn in_tree(services: &[&str]) -> Side {
    Side::up(1, Driver::InTree, &busbar(), services).expect("a coprocessor")
}

/// The node of the channel that service `raw` has announced, with `rpmsg_eptfd` as its driver.
pub fn default_endpoint() -> PathBuf {
    let channel = fs::read_dir("/sys/bus/rpmsg/devices")
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().contains("rpmsg-raw"))
        .expect("the channel");
    let name = channel.file_name().into_string().unwrap();
    // rpmsg_char is bound a moment after the channel appears.
    let driver = channel.path().join("driver/unbind");
    wait_until("the channel's first driver", || driver.exists());
    fs::write(driver, &name).unwrap();
    fs::write(channel.path().join("driver_override"), "rpmsg_eptfd_chrdev").unwrap();
    fs::write("/sys/bus/rpmsg/drivers/rpmsg_eptfd_chrdev/bind", &name).unwrap();
    let node = fs::read_dir(channel.path().join("rpmsg")).unwrap().flatten().next();
    let node = Path::new("/dev").join(node.expect("a node for the channel").file_name());
    wait_until("the device node", || node.exists());
    node
}

/// The error text of `modprobe`, if it fails.
pub fn modprobe(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("modprobe").args(arguments).output().expect("modprobe");
    if output.status.success() {
        return Ok(());
    }
    Err(text(&output.stderr))
}

/// An address that no process can read or write.
pub const BAD_POINTER: usize = 8;

struct Raw {
    opcode: Opcode,
    argument: usize,
}

// SAFETY: for any access of the call, tests pass an address that cannot be accessed,
// or one of their own memory.
#[allow(unsafe_code)]
unsafe impl Ioctl for Raw {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.argument)
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> io::Result<()> {
        Ok(())
    }
}

/// Any call with any argument.
pub fn raw_ioctl(fd: impl AsFd, opcode: Opcode, argument: usize) -> io::Result<()> {
    // SAFETY: see `Raw`.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(fd, Raw { opcode, argument })
    }
}

/// Number of open descriptors of this process.
pub fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Number of repetitions: `quick` in CI, where `BUSBAR_QUICK` is set.
pub fn rounds(full: u64, quick: u64) -> u64 {
    if std::env::var_os("BUSBAR_QUICK").is_some() { quick } else { full }
}

/// How long a test waits for others: an emulated debug kernel beside another guest is slow.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `done`, and fails after [`PATIENCE`].
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

/// A mapping of a part of a file, shared or private, unmapped when this is dropped.
pub struct Mapping {
    /// The first byte.
    pub base: *mut u8,
    len: usize,
}

#[allow(unsafe_code)]
impl Mapping {
    /// Maps `len` bytes at offset `at`.
    pub fn new(
        file: impl AsFd,
        len: u64,
        access: ProtFlags,
        flags: MapFlags,
        at: u64,
    ) -> io::Result<Self> {
        let len = usize::try_from(len).expect("a length");
        // SAFETY: a new mapping, of which only its own bytes are accessed.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, flags, file, at) }?;
        Ok(Self { base: base.cast(), len })
    }

    /// The result of `mprotect` for writing.
    pub fn make_writable(&self) -> io::Result<()> {
        // SAFETY: our own mapping.
        unsafe { mprotect(self.base.cast(), self.len, MprotectFlags::WRITE) }
    }
}

#[allow(unsafe_code)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: there are no references to the mapping any more.
        unsafe { munmap(self.base.cast(), self.len) }.expect("unmap what was mapped");
    }
}
