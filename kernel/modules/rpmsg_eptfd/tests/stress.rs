//! Four threads create, use and destroy endpoints while the coprocessor is killed and restarted.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{read, write};
use support::{eptfd, open_descriptors};

const ECHO: u32 = 0x400;

/// Creates an endpoint and sends through it; returns whether an answer came. A call may fail only because
/// the coprocessor is gone at that moment.
fn use_one(controller: &Path, number: u64) -> Option<()> {
    let control = File::options().read(true).write(true).open(controller).ok()?;
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let info = EndpointFdInfo { name: [b's'; NAME_SIZE], src: ADDR_ANY, dst: ECHO, flags, fd: -1 };
    let endpoint = rpmsg::create_ept_fd(&control, info).ok()?;
    // Every order of closing occurs.
    let control = number.is_multiple_of(2).then_some(control);
    let message = number.to_le_bytes();
    write(&endpoint, &message).ok()?;
    let mut fds = [PollFd::new(&endpoint, PollFlags::IN)];
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_ne!(poll(&mut fds, Some(&patience)).unwrap(), 0, "neither an answer nor the end");
    let mut answer = [0; 16];
    let len = read(&endpoint, &mut answer).ok()?;
    assert_eq!(&answer[..len], &message);
    if number.is_multiple_of(3) {
        rpmsg::destroy_ept(&endpoint).unwrap();
    }
    drop(endpoint);
    drop(control);
    Some(())
}

#[test]
#[ignore = "needs the lab"]
fn endpoints_come_and_go_while_the_coprocessor_crashes() {
    let rounds = support::rounds(100, 8);
    let mut side = eptfd(&["echo"]);
    let descriptors = open_descriptors();
    let controller = Mutex::new(side.controller().to_path_buf());
    let (done, answered, tried) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));

    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let path = controller.lock().unwrap().clone();
                    let number = tried.fetch_add(1, Ordering::Relaxed);
                    if use_one(&path, number).is_some() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    } else {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        for round in 0..rounds {
            let before = answered.load(Ordering::Relaxed);
            support::wait_until("an answer", || answered.load(Ordering::Relaxed) > before);
            side.kill().unwrap_or_else(|why| panic!("round {round}: {why}"));
            side.start().unwrap_or_else(|why| panic!("round {round}: {why}"));
            *controller.lock().unwrap() = side.controller().to_path_buf();
        }
        let before = answered.load(Ordering::Relaxed);
        support::wait_until("an answer", || answered.load(Ordering::Relaxed) > before);
        done.store(true, Ordering::Relaxed);
    });

    assert_eq!(open_descriptors(), descriptors);
    let references = std::fs::read_to_string("/sys/module/rpmsg_eptfd/refcnt").unwrap();
    assert_eq!(references.trim(), "0");
    println!("{rounds} crashes, {answered:?} of {tried:?} endpoints got their answer");
}
