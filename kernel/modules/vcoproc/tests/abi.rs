//! `/dev/vcoprocN`: every call, each errno, and the life of a coprocessor, from the process's side.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

#[path = "../../rpmsg_eptfd/tests/remote/view.rs"]
mod view;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use busbar_coprocessor::table::{self, Image, RECEIVE, TRANSMIT};
use busbar_uapi::vcoproc::{self, EVENT_KICK, EVENT_START, EVENT_STOP, Event, Info};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::opcode;
use rustix::mm::{MapFlags, ProtFlags};
use support::{BAD_POINTER, Mapping, modprobe, raw_ioctl, wait_until};
use view::{PAGE, View};

/// A coprocessor without a process yet.
struct Bench {
    device: PathBuf,
    state: PathBuf,
    recovery: PathBuf,
    remoteproc: PathBuf,
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
            remoteproc,
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

/// A firmware file for one coprocessor, removed when this is dropped.
struct Firmware {
    file: PathBuf,
    attribute: PathBuf,
    state: PathBuf,
}

impl Firmware {
    fn of(bench: &Bench) -> Self {
        const NAME: &str = "vcoproc-test.fw";
        let attribute = bench.remoteproc.join("firmware");
        fs::write(&attribute, NAME).unwrap();
        Self { file: Path::new("/lib/firmware").join(NAME), attribute, state: bench.state.clone() }
    }

    fn write(&self, image: &[u8]) {
        fs::write(&self.file, image).unwrap();
    }
}

impl Drop for Firmware {
    fn drop(&mut self) {
        // While it runs, its firmware cannot be changed.
        let _ = fs::write(&self.state, "stop");
        let _ = fs::write(&self.attribute, "vcoproc.fw");
        let _ = fs::remove_file(&self.file);
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
    assert!(Mapping::new(&core, info.table_size, rw, shared, info.table_offset).is_ok());

    let refused = [
        (memory + 4096, rw, shared, 0, Errno::INVAL),
        (8192, rw, shared, memory - 4096, Errno::INVAL),
        (8192, ro, shared, info.table_offset, Errno::INVAL),
        (4096, ro, shared, info.table_offset + 4096, Errno::INVAL),
        (4096, ro, shared, 1 << 39, Errno::INVAL),
        (4096, ro, MapFlags::PRIVATE, 0, Errno::INVAL),
    ];
    for (len, access, flags, at, errno) in refused {
        let result = Mapping::new(&core, len, access, flags, at);
        assert_eq!(result.err(), Some(errno), "{len} bytes at {at:#x}, {access:?} {flags:?}");
    }
}

/// The copy of the resource table.
fn table(core: &File) -> View {
    let info = vcoproc::info(core).unwrap();
    View::new(core, info.table_offset, info.table_size)
}

/// The rpmsg device as Linux has set it up.
fn device(core: &File) -> table::Device {
    table::parse(&table(core).read().unwrap()).expect("a table")
}

#[test]
#[ignore = "needs the lab"]
fn firmware_that_is_written_to_the_usual_place_is_loaded() {
    const USUAL: &str = "/lib/firmware/vcoproc.fw";
    let bench = Bench::new(0);
    let before = fs::read(USUAL).expect("the lab's firmware");
    let output = support::command(&["coprocessor", "firmware", "--buffers", "16", USUAL]).output();
    assert!(output.unwrap().status.success());
    let core = bench.open().unwrap();
    bench.set("start");
    wait_for_kick(&core);
    let device = device(&core);
    fs::write(USUAL, before).unwrap();
    assert_eq!(device.vring(RECEIVE).unwrap().entries, 16);
    // Firmware built with OpenAMP does not follow the rules of event indices.
    assert!(!device.has(table::FEATURE_EVENT_INDEX));
}

#[test]
#[ignore = "needs the lab"]
fn what_linux_writes_of_a_ring_is_read_only() {
    let bench = Bench::new(0);
    let firmware = Firmware::of(&bench);
    for entries in [2, 16, 128, 256] {
        firmware.write(&Image::default().entries(entries).unwrap().build());
        let core = bench.open().unwrap();
        bench.set("start");
        wait_for_kick(&core);
        let info = vcoproc::info(&core).unwrap();
        let rings = [RECEIVE, TRANSMIT].map(|index| {
            let vring = device(&core).vring(index).unwrap();
            let ring = u64::from(vring.address) - info.device_address;
            let used = ring + u64::from(entries) * 18 + 6;
            ring / PAGE..used.div_ceil(PAGE)
        });
        let mut writable = 0;
        for page in 0..info.memory_size / PAGE {
            let all = View::new(&core, page * PAGE, PAGE);
            let bytes = all.read().expect("all of it can be read");
            let written = all.write(&bytes[..8]).is_ok();
            let driver = rings.iter().any(|ring| ring.contains(&page));
            assert!(!(driver && written), "{entries} entries: page {page} of {rings:?}");
            writable += u64::from(written);
        }
        // The used rings, and everything except the pages for the longest rings.
        let used = rings.iter().map(|ring| View::new(&core, ring.end * PAGE, PAGE));
        used.for_each(|ring| ring.write(&[0; 4]).expect("a used ring"));
        assert_eq!(writable, info.memory_size / PAGE - 4);
        bench.set("stop");
    }
}

#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn nothing_can_keep_a_page_of_the_memory() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    let view = View::new(&core, 64 * PAGE, PAGE);
    view.write(b"here").unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: only the kernel gets this address, and it checks each access.
    let bytes = unsafe { std::slice::from_raw_parts(view.base(), 4096) };
    let gifts = [rustix::pipe::IoSliceRaw::from_slice(bytes)];
    // SAFETY: as above; the pages are not gifted.
    let spliced =
        unsafe { rustix::pipe::vmsplice(&writer, &gifts, rustix::pipe::SpliceFlags::NONBLOCK) };
    assert_eq!(spliced, Err(Errno::FAULT));
}

#[test]
#[ignore = "needs the lab"]
fn a_debugger_can_do_what_the_process_can() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let view = View::new(&core, 64 * PAGE, 2 * PAGE);
    let at = |offset: u64| u64::try_from(view.base().addr()).unwrap() + offset;
    // Across the end of a page.
    memory.write_all_at(b"debugger", at(PAGE - 4)).expect("a buffer");
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, at(PAGE - 4)).unwrap();
    assert_eq!(&bytes, b"debugger");
    assert_eq!(&view.read().unwrap()[4092..4100], b"debugger");

    let descriptors = View::new(&core, 0, PAGE);
    let at = u64::try_from(descriptors.base().addr()).unwrap();
    memory.read_exact_at(&mut bytes, at).expect("descriptors");
    assert!(memory.write_at(b"x", at).is_err());
    let (shared, size) = (MapFlags::SHARED, 2 * PAGE);
    let read_only = Mapping::new(&core, size, ProtFlags::READ, shared, 64 * PAGE).unwrap();
    let at = u64::try_from(read_only.base.addr()).unwrap();
    memory.read_exact_at(&mut bytes, at).unwrap();
    assert!(memory.write_at(b"x", at).is_err());
}

#[test]
#[ignore = "needs the lab"]
fn what_the_process_writes_to_the_table_linux_does_not_see() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    bench.set("start");
    wait_for_kick(&core);
    let first = device(&core);
    assert!(first.is_ready());
    table(&core).write(&[0xff; 4096]).expect("a copy");

    let name = bench.remoteproc.file_name().unwrap().to_str().unwrap();
    let seen = format!("/sys/kernel/debug/remoteproc/{name}/resource_table");
    let seen = fs::read_to_string(seen).expect("debugfs");
    assert_eq!(seen.matches("Entry").count(), 1, "{seen}");
    drop(core);

    // The next process finds Linux's own values.
    let core = bench.open().unwrap();
    wait_for_kick(&core);
    let next = device(&core);
    assert!(next.is_ready());
    assert_eq!(next.vring(TRANSMIT).unwrap(), first.vring(TRANSMIT).unwrap());
}

#[test]
#[ignore = "needs the lab"]
fn the_copy_of_the_table_follows_the_driver() {
    let bench = Bench::new(0);
    let core = bench.open().unwrap();
    bench.set("start");
    wait_for_kick(&core);
    assert!(device(&core).is_ready());
    let drivers = Path::new("/sys/bus/virtio/drivers/virtio_rpmsg_bus");
    let own = |entry: &fs::DirEntry| {
        let device = fs::canonicalize(entry.path()).unwrap();
        device.starts_with(fs::canonicalize(&bench.remoteproc).unwrap())
    };
    let bus = fs::read_dir(drivers).unwrap().flatten().find(own).expect("the bus").file_name();
    let bus = bus.to_str().unwrap();
    fs::write(drivers.join("unbind"), bus).unwrap();
    assert_eq!(device(&core).status, 0, "reset");
    fs::write(drivers.join("bind"), bus).unwrap();
    wait_for_kick(&core);
    assert!(device(&core).is_ready());
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

/// Each start is counted, also of a running core. Removal has to undo all of them.
#[test]
#[ignore = "needs the lab"]
fn one_that_was_started_twice_ends_with_its_device() {
    let bench = Bench::new(1);
    let device = fs::canonicalize("/sys/class/vcoproc/vcoproc1/device").unwrap();
    let core = bench.open().unwrap();
    bench.set("start");
    bench.set("start");
    wait_for_kick(&core);
    let name = device.file_name().unwrap().as_encoded_bytes();
    fs::write("/sys/bus/platform/drivers/vcoproc/unbind", name).unwrap();
    let left = fs::read_dir("/sys/bus/virtio/devices").unwrap();
    let left: Vec<_> = left.map(|entry| fs::canonicalize(entry.unwrap().path()).unwrap()).collect();
    let of_it = left.iter().any(|path| path.starts_with(&device));
    drop(core);
    fs::write("/sys/bus/platform/drivers/vcoproc/bind", name).unwrap();
    assert!(!of_it, "{left:?}");
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
    // The shell cannot map it, so this test program runs as a child.
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
        // SAFETY: the last byte of our mapping, in the guard page without rings.
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
    let firmware = Firmware::of(&bench);
    let image = Image::default().build();

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
        firmware.write(&bytes);
        assert!(fs::write(&bench.state, "start").is_err(), "{what}");
        assert_eq!(bench.state(), "offline", "{what}");
    }
    firmware.write(&image);
    bench.set("start");
    bench.set("stop");
}
