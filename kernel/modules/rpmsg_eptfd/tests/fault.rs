//! Every allocation and every copy on the way to an endpoint fails once: nothing may be left.
//!
//! Uses `fail-nth` (Documentation/fault-injection/fault-injection.rst) of the debug kernel: the
//! Nth of a task's allocations and user copies fails. N grows until a call gets through unharmed.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::path::Path;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use rustix::fs::OFlags;
use rustix::io::{Errno, pread, pwrite};
use support::{eptfd, open_descriptors, wait_until};

const DEBUGFS: &str = "/sys/kernel/debug";
const FREE: u32 = 0x321;
const FIRST: u32 = 0x400;

fn arm() {
    for fault in ["failslab", "fail_page_alloc"] {
        let fault = Path::new(DEBUGFS).join(fault);
        fs::write(fault.join("ignore-gfp-wait"), "N").expect("a debug kernel");
    }
    fs::write(Path::new(DEBUGFS).join("fail_page_alloc/min-order"), "0").unwrap();
    for fault in ["failslab", "fail_page_alloc", "fail_usercopy"] {
        fs::write(Path::new(DEBUGFS).join(fault).join("verbose"), "0").unwrap();
    }
}

/// Makes one call after another with the first, the second … fault; returns how many there were.
///
/// Between arming and the call there is nothing but the call, so that no other allocation of this
/// task is hit.
fn each_fault<T>(mut call: impl FnMut() -> Result<T, Errno>, mut check: impl FnMut(u32)) -> u32 {
    let nth = File::options().read(true).write(true).open("/proc/thread-self/fail-nth").unwrap();
    let mut texts: Vec<String> = (1..1000).map(|n| n.to_string()).collect();
    texts.insert(0, "0".into());
    for faults in 1..1000_u32 {
        let mut left = [0; 16];
        pwrite(&nth, texts[faults as usize].as_bytes(), 0).unwrap();
        let result = call();
        let len = pread(&nth, &mut left, 0).unwrap();
        pwrite(&nth, b"0", 0).unwrap();
        let unused = left[..len].trim_ascii() != b"0";
        if let Err(why) = &result {
            let expected = [Errno::NOMEM, Errno::FAULT, Errno::INVAL, Errno::NXIO, Errno::NFILE];
            assert!(!unused, "{why} without a fault");
            assert!(expected.contains(why), "fault {faults}: {why}");
        }
        drop(result);
        check(faults);
        if unused {
            return faults - 1;
        }
    }
    panic!("the call never got through");
}

fn references() -> String {
    fs::read_to_string("/sys/module/rpmsg_eptfd/refcnt").unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn create_fd_undoes_everything() {
    arm();
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let info = EndpointFdInfo { name: [b'x'; NAME_SIZE], src: FREE, dst: FIRST, flags, fd: -1 };
    let call = || rpmsg::create_ept_fd(&control, info);
    drop(call().expect("works without a fault"));
    let (descriptors, references_before) = (open_descriptors(), references());

    let faults = each_fault(call, |fault| {
        assert_eq!(open_descriptors(), descriptors, "fault {fault}");
        assert_eq!(references(), references_before, "fault {fault}");
        drop(call().unwrap_or_else(|why| panic!("fault {fault} kept the address: {why}")));
    });
    // Copy in, endpoint, rpmsg endpoint, file and its inode or dentry, copy out.
    assert!(faults >= 5, "only {faults} faults were possible");
}

#[test]
#[ignore = "needs the lab"]
fn create_node_undoes_everything() {
    arm();
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let class = Path::new("/sys/class/rpmsg").join(side.controller().file_name().unwrap());
    let nodes = || -> Vec<_> {
        let entries = fs::read_dir(&class).unwrap().flatten();
        entries.filter(|entry| entry.path().join("dst").exists()).collect()
    };
    let info = EndpointInfo { name: [b'x'; NAME_SIZE], src: ADDR_ANY, dst: FIRST };
    let references_before = references();

    let faults = each_fault(
        || rpmsg::create_ept(&control, info),
        |fault| {
            for entry in nodes() {
                let node = Path::new("/dev").join(entry.file_name());
                wait_until("the device node", || node.exists());
                let file = File::options().read(true).write(true).open(&node).unwrap();
                rpmsg::destroy_ept(&file).unwrap();
            }
            assert!(nodes().is_empty(), "fault {fault} left a node");
            assert_eq!(references(), references_before, "fault {fault}");
        },
    );
    assert!(faults >= 5, "only {faults} faults were possible");
}

#[test]
#[ignore = "needs the lab"]
fn write_loses_no_memory() {
    arm();
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let info = EndpointFdInfo { name: [b'x'; NAME_SIZE], src: ADDR_ANY, dst: FIRST, flags, fd: -1 };
    let endpoint = rpmsg::create_ept_fd(&control, info).unwrap();
    let faults = each_fault(|| rustix::io::write(&endpoint, b"message"), |_| {});
    assert!(faults >= 2, "the buffer and the copy, not {faults}");
}
