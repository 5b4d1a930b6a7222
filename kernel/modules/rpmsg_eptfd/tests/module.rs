//! `rpmsg_eptfd` as a module: its parameters, in place of the in-tree pair, and its end.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use busbar_uapi::dmabuf;
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use support::{busbar, eptfd, modprobe, wait_until};

const ECHO: u32 = 0x400;
const INFO: EndpointInfo = EndpointInfo { name: [b'm'; NAME_SIZE], src: ADDR_ANY, dst: ECHO };

fn open(path: impl AsRef<Path>) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn fd_info() -> EndpointFdInfo {
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    EndpointFdInfo { name: INFO.name, src: ADDR_ANY, dst: ECHO, flags, fd: -1 }
}

fn unload() {
    modprobe(&["-r", "rpmsg_eptfd"]).unwrap();
}

/// Waits until udevd has processed all events.
fn udev_settles() {
    assert!(Command::new("udevadm").arg("settle").status().unwrap().success());
}

/// The module, loaded with `options` and unloaded at the end, so that other tests get the defaults.
struct Loaded;

impl Loaded {
    fn with(options: &[&str]) -> Self {
        unload();
        modprobe(&[&["rpmsg_eptfd"], options].concat()).unwrap();
        Self
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let unloaded = modprobe(&["-r", "rpmsg_eptfd"]);
        assert!(std::thread::panicking() || unloaded.is_ok(), "{unloaded:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn unloading_waits_for_the_last_descriptor() {
    let side = eptfd(&["echo"]);
    let control = open(side.controller()).unwrap();
    let refused = || assert!(modprobe(&["-r", "rpmsg_eptfd"]).unwrap_err().contains("in use"));
    refused();
    let endpoint = rpmsg::create_ept_fd(&control, fd_info()).unwrap();
    rpmsg::create_ept(&control, INFO).unwrap();
    drop(control);
    refused();
    rpmsg::destroy_ept(&endpoint).unwrap();
    refused();
    drop(endpoint);
    // A node that is not open does not prevent unloading.
    modprobe(&["-r", "rpmsg_eptfd"]).unwrap();
    assert!(!side.controller().exists());
}

#[test]
#[ignore = "needs the lab"]
fn unloading_waits_for_what_is_known_of_a_part_and_not_for_its_buffer() {
    let mut side = eptfd(&["echo"]);
    let control = open(side.controller()).unwrap();
    let refused = || assert!(modprobe(&["-r", "rpmsg_eptfd"]).unwrap_err().contains("in use"));
    let endpoint = rpmsg::create_ept_fd(&control, fd_info()).unwrap();
    let buffer = dmabuf::heap_alloc(open("/dev/dma_heap/system").unwrap(), 4096).unwrap();
    dmabuf::attach(&endpoint, &buffer).unwrap();
    dmabuf::send(&endpoint, &buffer, dmabuf::TO_REMOTE, 0, 4096).unwrap();
    let file = dmabuf::export_sync_file(&buffer, dmabuf::Access::ReadWrite).unwrap();
    drop((control, endpoint));
    refused();
    side.kill().unwrap();
    refused();
    assert_eq!(dmabuf::sync_file_status(&file), Ok((1, Some(Err(Errno::PIPE)))));
    drop(file);
    modprobe(&["-r", "rpmsg_eptfd"]).unwrap();

    // The rest of the fence in the buffer does not belong to the module.
    let file = dmabuf::export_sync_file(&buffer, dmabuf::Access::ReadWrite).unwrap();
    assert_eq!(dmabuf::sync_file_status(&file), Ok((1, Some(Ok(())))));
}

#[test]
#[ignore = "needs the lab"]
fn nodes_run_out_of_numbers() {
    let _loaded = Loaded::with(&["first_number=1048574"]);
    let side = eptfd(&["echo"]);
    assert_eq!(side.controller(), Path::new("/dev/rpmsg_ctrl1048574"));
    let control = open(side.controller()).unwrap();
    rpmsg::create_ept(&control, INFO).unwrap();
    rpmsg::create_ept(&control, INFO).unwrap();
    assert_eq!(rpmsg::create_ept(&control, INFO), Err(Errno::NOSPC));

    let last = Path::new("/dev/rpmsg1048575");
    wait_until("the last node", || last.exists());
    rpmsg::destroy_ept(open(last).unwrap()).unwrap();
    wait_until("its number", || rpmsg::create_ept(&control, INFO).is_ok());
}

#[test]
#[ignore = "needs the lab"]
fn a_first_number_beyond_the_minors_is_refused() {
    unload();
    for number in ["1048576", "-2", "none"] {
        let said = modprobe(&["rpmsg_eptfd", &format!("first_number={number}")]).unwrap_err();
        assert!(said.contains("Invalid argument"), "{said}");
    }
}

/// The file for `modprobe.d` that `make install-modules` installs.
struct Installed;

impl Installed {
    const PATH: &str = "/etc/modprobe.d/rpmsg_eptfd.conf";

    fn new() -> Self {
        fs::write(Self::PATH, include_str!("../modprobe.conf")).unwrap();
        udev_rereads();
        Self
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        fs::remove_file(Self::PATH).unwrap();
        udev_rereads();
    }
}

/// udevd loads modules, too, and caches `/etc/modprobe.d` for some seconds. (It does not see
/// `/run/modprobe.d` if that was created after udevd started.)
fn udev_rereads() {
    assert!(Command::new("udevadm").args(["control", "--reload"]).status().unwrap().success());
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A coprocessor with a control device and a channel for user space, of which the kernel tells udevd.
fn coprocessor() -> Process {
    let services = ["--service", "echo,raw"];
    let coprocessor = Command::new(busbar())
        .args(["coprocessor", "run", "--device", "/dev/vcoproc0"])
        .args(services)
        .stdout(Stdio::null())
        .spawn();
    Process(coprocessor.unwrap())
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

#[test]
#[ignore = "needs the lab"]
fn nothing_loads_it_that_does_not_mean_to() {
    unload();
    let pair = ["rpmsg_ctrl", "rpmsg_char"];
    // Only the appearance of their devices loads them.
    modprobe(&[&["-r"][..], &pair].concat()).unwrap();
    modprobe(&["-a", "virtio_rpmsg_bus", "rpmsg_ns", "vcoproc"]).unwrap();
    let coprocessor = coprocessor();
    let bound = || pair.map(is_loaded) == [true; 2] && Path::new("/dev/rpmsg0").exists();
    wait_until("the pair", bound);
    udev_settles();
    assert!(!is_loaded("rpmsg_eptfd"));
    drop(coprocessor);
}

#[test]
#[ignore = "needs the lab"]
fn it_takes_the_place_of_the_pair() {
    unload();
    modprobe(&["-a", "rpmsg_ctrl", "rpmsg_char", "vcoproc"]).unwrap();
    let installed = Installed::new();
    for other in ["rpmsg_ctrl", "rpmsg_char"] {
        let said = modprobe(&["rpmsg_eptfd"]).unwrap_err();
        assert!(said.contains("busy"), "beside {other}: {said}");
        // Not `modprobe -r`, which also removes the modules that it depends on.
        assert!(Command::new("rmmod").arg(other).status().unwrap().success());
    }

    // Only the appearance of the device loads and binds the module.
    let coprocessor = coprocessor();
    let find = || -> Option<std::path::PathBuf> {
        let nodes = fs::read_dir("/dev").unwrap().flatten();
        let mut names = nodes.map(|node| node.path());
        names.find(|path| path.to_string_lossy().starts_with("/dev/rpmsg_ctrl"))
    };
    wait_until("the control device", || find().is_some());
    assert_eq!(find().unwrap(), Path::new("/dev/rpmsg_ctrl0"));
    wait_until("the channel's node", || Path::new("/dev/rpmsg0").exists());
    udev_settles();
    assert!(!is_loaded("rpmsg_ctrl") && !is_loaded("rpmsg_char"));

    let control = open("/dev/rpmsg_ctrl0").unwrap();
    let echo = rpmsg::create_ept_fd(&control, fd_info()).unwrap();
    rpmsg::create_ept(&control, INFO).unwrap();
    wait_until("the node", || Path::new("/dev/rpmsg1").exists());
    let node = open("/dev/rpmsg1").unwrap();
    for (number, endpoint) in [echo.into(), node].iter().enumerate() {
        let message = number.to_le_bytes();
        wait_until("the service", || write(endpoint, &message).is_ok());
        let mut answer = [0; 16];
        assert_eq!(read(endpoint, &mut answer), Ok(message.len()));
        assert_eq!(&answer[..message.len()], &message);
    }
    drop(control);
    drop((coprocessor, installed));
    wait_until("it to go", || modprobe(&["-r", "rpmsg_eptfd"]).is_ok());
}
