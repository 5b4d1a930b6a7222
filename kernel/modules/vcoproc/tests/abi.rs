//! `/dev/vcoprocN`: every call, each errno, and the life of a coprocessor, from the process's side.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use busbar_uapi::vcoproc::{self, EVENT_KICK, EVENT_START, EVENT_STOP, Event, Info};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::opcode;
use rustix::mm::{MapFlags, ProtFlags};
use support::{BAD_POINTER, Mapping, modprobe, raw_ioctl, wait_until};

/// A coprocessor of which nobody is the core yet.
struct Bench {
    device: PathBuf,
    state: PathBuf,
    recovery: PathBuf,
}

impl Bench {
    fn new(index: u32) -> Self {
        for module in ["virtio_rpmsg_bus", "rpmsg_ns", "vcoproc"] {
            modprobe(&[module]).unwrap();
        }
        let parent = format!("/sys/class/vcoproc/vcoproc{index}/device/remoteproc");
        let remoteproc = fs::read_dir(parent).unwrap().next().unwrap().unwrap().path();
        let bench = Self {
            device: format!("/dev/vcoproc{index}").into(),
            state: remoteproc.join("state"),
            recovery: remoteproc.join("recovery"),
        };
        wait_until("the device node", || bench.device.exists());
        bench
    }

    fn open(&self) -> std::io::Result<File> {
        File::options()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(&self.device)
    }

    fn set(&self, state: &str) {
        fs::write(&self.state, state).unwrap_or_else(|why| panic!("{state}: {why}"));
    }

    fn state(&self) -> String {
        fs::read_to_string(&self.state).unwrap().trim().into()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::write(&self.recovery, "enabled");
        let _ = fs::write(&self.state, "stop");
    }
}

/// Waits for the next event.
fn event(core: &File) -> Event {
    let mut fds = [PollFd::new(core, PollFlags::IN)];
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "an event within a minute");
    vcoproc::read_event(core).expect("an event")
}

/// Reads events until the rings are there: the first kick comes after `DRIVER_OK`.
fn wait_for_kick(core: &File) {
    while event(core).events & EVENT_KICK == 0 {}
}

#[test]
#[ignore = "needs the lab"]
fn calls_before_a_start() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    let busy = bench.open().unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(Errno::BUSY.raw_os_error()));

    assert_eq!(rustix::io::read(&core, &mut [0; 15]), Err(Errno::INVAL));
    assert_eq!(vcoproc::read_event(&core), Err(Errno::AGAIN));
    assert_eq!(vcoproc::kick(&core, 1), Err(Errno::NOTCONN));
    assert_eq!(vcoproc::kick(&core, 0), Err(Errno::INVAL));
    assert_eq!(vcoproc::kick(&core, 4), Err(Errno::INVAL));
    assert_eq!(vcoproc::stopped(&core), Err(Errno::INVAL));
    assert_eq!(vcoproc::crash(&core), Err(Errno::NOTCONN));
    let get_info = opcode::read::<Info>(0xbb, 1);
    let kick = opcode::write::<u32>(0xbb, 2);
    assert_eq!(raw_ioctl(&core, get_info, BAD_POINTER), Err(Errno::FAULT));
    assert_eq!(raw_ioctl(&core, kick, BAD_POINTER), Err(Errno::FAULT));
    assert_eq!(raw_ioctl(&core, opcode::none(0xbb, 9), 0), Err(Errno::NOTTY));

    drop(core);
    drop(bench.open().expect("free again"));
}

#[test]
#[ignore = "needs the lab"]
fn only_memory_and_table_can_be_mapped() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    let info = vcoproc::info(&core).unwrap();
    let (rw, ro) = (ProtFlags::READ | ProtFlags::WRITE, ProtFlags::READ);
    let shared = MapFlags::SHARED;
    let memory = info.memory_size;

    assert!(Mapping::new(&core, memory, rw, shared, 0).is_ok());
    assert!(Mapping::new(&core, 4096, rw, shared, memory - 4096).is_ok());
    assert!(Mapping::new(&core, info.table_size, ro, shared, info.table_offset).is_ok());

    let refused = [
        (memory + 4096, rw, shared, 0, Errno::INVAL),
        (8192, rw, shared, memory - 4096, Errno::INVAL),
        (8192, ro, shared, info.table_offset, Errno::INVAL),
        (4096, ro, shared, info.table_offset + 4096, Errno::INVAL),
        (4096, ro, shared, 1 << 39, Errno::INVAL),
        (4096, ro, MapFlags::PRIVATE, 0, Errno::INVAL),
        (4096, rw, shared, info.table_offset, Errno::ACCESS),
    ];
    for (len, access, flags, at, errno) in refused {
        let result = Mapping::new(&core, len, access, flags, at);
        assert_eq!(result.err(), Some(errno), "{len} bytes at {at:#x}, {access:?} {flags:?}");
    }
    // Nor can the table be made writable afterwards.
    let table = Mapping::new(&core, info.table_size, ro, shared, info.table_offset).unwrap();
    assert_eq!(table.make_writable(), Err(Errno::ACCESS));
}

#[test]
#[ignore = "needs the lab"]
fn starts_and_stops_again_and_again() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    let mut boots = Vec::new();
    for _ in 0..3 {
        bench.set("start");
        let first = event(&core);
        assert_ne!(first.events & EVENT_START, 0, "{first:?}");
        if first.events & EVENT_KICK == 0 {
            wait_for_kick(&core);
        }
        boots.push(first.boot);
        vcoproc::kick(&core, 3).expect("kick a running core");
        assert_eq!(vcoproc::stopped(&core), Err(Errno::INVAL));

        let stopper = {
            let state = bench.state.clone();
            std::thread::spawn(move || fs::write(state, "stop"))
        };
        let stop = loop {
            let event = event(&core);
            if event.events != EVENT_KICK {
                break event;
            }
        };
        assert_eq!(stop.events, EVENT_STOP, "STOP comes alone");
        assert_eq!(vcoproc::kick(&core, 1), Err(Errno::NOTCONN));
        vcoproc::stopped(&core).expect("acknowledge");
        stopper.join().unwrap().unwrap();
        assert_eq!(bench.state(), "offline");
        assert_eq!(vcoproc::read_event(&core), Err(Errno::AGAIN));
    }
    assert!(boots.is_sorted_by(|a, b| *a + 1 == *b), "{boots:?}");
}

#[test]
#[ignore = "needs the lab"]
fn start_waits_for_the_process_that_comes_later() {
    let bench = Bench::new(0);
    bench.set("start");
    assert_eq!(bench.state(), "running");
    let core = bench.open().unwrap();
    let first = event(&core);
    assert_eq!(first.events, EVENT_START | EVENT_KICK, "{first:?}");
}

#[test]
#[ignore = "needs the lab"]
fn end_of_the_process_is_a_crash_and_the_next_one_recovers() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    bench.set("start");
    let boot = event(&core).boot;
    drop(core);
    let core = bench.open().unwrap();
    let next = event(&core);
    assert_ne!(next.events & EVENT_START, 0);
    assert_eq!(next.boot, boot + 1, "a start of its own, not what the dead one left");

    if next.events & EVENT_KICK == 0 {
        wait_for_kick(&core);
    }
    vcoproc::crash(&core).expect("a crash that is reported");
    let recovered = event(&core);
    assert_ne!(recovered.events & EVENT_START, 0);
    assert_eq!(recovered.boot, boot + 2);
}

#[test]
#[ignore = "needs the lab"]
fn without_recovery_the_crash_stays() {
    let bench = Bench::new(0);
    fs::write(&bench.recovery, "disabled").unwrap();
    let core = bench.open().unwrap();
    bench.set("start");
    event(&core);
    drop(core);
    wait_until("the crash", || bench.state() == "crashed");
    let core = bench.open().unwrap();
    assert_eq!(vcoproc::read_event(&core), Err(Errno::AGAIN));
    fs::write(&bench.recovery, "recover").unwrap();
    assert_ne!(event(&core).events & EVENT_START, 0);
    assert_eq!(bench.state(), "running");
}

#[test]
#[ignore = "needs the lab"]
fn process_that_does_not_answer_is_cut_off() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    bench.set("start");
    event(&core);
    bench.set("stop");
    assert_eq!(bench.state(), "offline");

    assert_eq!(vcoproc::read_event(&core), Err(Errno::SHUTDOWN));
    assert_eq!(vcoproc::info(&core), Err(Errno::SHUTDOWN));
    assert_eq!(vcoproc::kick(&core, 1), Err(Errno::SHUTDOWN));
    let mut fds = [PollFd::new(&core, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    assert!(fds[0].revents().contains(PollFlags::HUP));

    let successor = bench.open().expect("another process can take over");
    bench.set("start");
    assert_ne!(event(&successor).events & EVENT_START, 0);
}

#[test]
#[ignore = "needs the lab"]
fn cut_off_takes_the_memory_away() {
    let bench = Bench::new(0);
    // The shell maps nothing by itself, so another test program has to: this one, as a child.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_touches_memory_for_ever", "--nocapture"])
        .env("BUSBAR_TEST_DEVICE", &bench.device)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let attached = Path::new("/sys/class/vcoproc/vcoproc0/attached");
    wait_until("the child", || fs::read_to_string(attached).is_ok_and(|on| on.trim() == "1"));
    bench.set("start");
    std::thread::sleep(Duration::from_secs(1));
    bench.set("stop");
    let status = child.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(rustix::process::Signal::BUS.as_raw()), "{status:?}");
}

#[test]
#[ignore = "helper of cut_off_takes_the_memory_away"]
fn child_touches_memory_for_ever() {
    let Some(device) = std::env::var_os("BUSBAR_TEST_DEVICE") else { return };
    let core = File::options().read(true).write(true).open(device).unwrap();
    let info = vcoproc::info(&core).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let memory = Mapping::new(&core, info.memory_size, access, MapFlags::SHARED, 0).unwrap();
    assert_ne!(event(&core).events & EVENT_START, 0);
    loop {
        #[allow(unsafe_code)]
        // SAFETY: the last byte of our mapping, in the guard that no ring lies in.
        unsafe {
            memory.base.add(usize::try_from(info.memory_size).unwrap() - 1).write_volatile(1);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs the lab"]
fn two_coprocessors_do_not_meet() {
    let (a, b) = (Bench::new(0), Bench::new(1));
    let (core_a, core_b) = (a.open().unwrap(), b.open().unwrap());
    let (info_a, info_b) = (vcoproc::info(&core_a).unwrap(), vcoproc::info(&core_b).unwrap());
    let end_a = info_a.device_address + info_a.memory_size;
    let end_b = info_b.device_address + info_b.memory_size;
    assert!(end_a <= info_b.device_address || end_b <= info_a.device_address);
    a.set("start");
    assert_ne!(event(&core_a).events & EVENT_START, 0);
    assert_eq!(vcoproc::read_event(&core_b), Err(Errno::AGAIN));
    assert_eq!(b.state(), "offline");
}

#[test]
#[ignore = "needs the lab"]
fn bad_firmware_is_refused() {
    let bench = Bench::new(0);
    let good = fs::read("/sys/module/firmware_class/parameters/path").unwrap();
    let path = PathBuf::from(String::from_utf8(good).unwrap().trim());
    let image = fs::read(path.join("vcoproc.fw")).expect("the lab's firmware");
    let firmware = bench.state.with_file_name("firmware");
    let temporary = tempfile::tempdir().unwrap();
    let parameter = "/sys/module/firmware_class/parameters/path";
    fs::write(parameter, temporary.path().to_str().unwrap()).unwrap();
    fs::write(&firmware, "bad.fw").unwrap();

    // Byte 20 begins the entry: type, then id … as in struct fw_rsc_vdev.
    let change = |at: usize, value: u32| {
        let mut bytes = image.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        bytes
    };
    let bad = [
        ("empty", Vec::new()),
        ("short", image[..image.len() - 1].to_vec()),
        ("version", change(0, 2)),
        ("no entry", change(4, 0)),
        ("two entries", change(4, 2)),
        ("reserved", change(8, 1)),
        ("offset outside", change(16, 4096)),
        ("offset that wraps", change(16, u32::MAX - 3)),
        ("odd offset", change(16, 21)),
        ("another resource", change(20, 0)),
        ("another device", change(24, 1)),
        ("config space", change(40, 4)),
        ("alignment", change(52, 16)),
        ("not a power of two", change(56, 200)),
        ("huge ring", change(56, 0x1000_0000)),
        ("unequal rings", change(76, 128)),
    ];
    for (what, bytes) in bad {
        fs::write(temporary.path().join("bad.fw"), bytes).unwrap();
        assert!(fs::write(&bench.state, "start").is_err(), "{what}");
        assert_eq!(bench.state(), "offline", "{what}");
    }
    fs::write(temporary.path().join("bad.fw"), &image).unwrap();
    bench.set("start");
    bench.set("stop");
    fs::write(parameter, path.to_str().unwrap()).unwrap();
    fs::write(&firmware, "vcoproc.fw").unwrap();
}
