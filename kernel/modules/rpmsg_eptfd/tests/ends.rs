//! What must not hold up the end of endpoints: those that linger.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod remote;

use std::fs;
use std::os::fd::OwnedFd;
use std::thread::{JoinHandle, spawn};

use busbar_uapi::dmabuf;
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use remote::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use support::wait_until;

/// Endpoints of a control device that can wait for the remote.
const LINGERING_MAX: usize = 256;

fn create(bench: &Bench) -> Result<OwnedFd, Errno> {
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let name = [b'l'; NAME_SIZE];
    rpmsg::create_ept_fd(
        &bench.control,
        EndpointFdInfo { name, src: ADDR_ANY, dst: SERVICE, flags, fd: -1 },
    )
}

/// Makes an endpoint, gives a part to the remote, and closes the endpoint.
fn leave_one(bench: &Bench, buffer: &OwnedFd) -> Result<(u32, Message), Errno> {
    let endpoint = create(bench)?;
    dmabuf::attach(&endpoint, buffer).expect("attach");
    Ok(bench.show(&endpoint, buffer))
}

/// Stops the coprocessor; a thread, because it is to be seen that this comes to an end.
fn stop(bench: &Bench) -> JoinHandle<()> {
    let state = bench.side.remoteproc().join("state");
    spawn(move || fs::write(state, "stop").expect("stop"))
}

fn start(bench: &Bench) {
    fs::write(bench.side.remoteproc().join("state"), "start").expect("start");
}

fn is_usable(buffer: &OwnedFd) -> bool {
    let interest = PollFlags::IN | PollFlags::OUT;
    let mut fds = [PollFd::new(buffer, interest)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll");
    fds[0].revents() == interest
}

#[test]
#[ignore = "needs the lab"]
fn endpoints_that_linger_are_bounded_and_end_with_the_remote() {
    let bench = Bench::new();
    let before = references();
    let buffer = heap(PAGE);
    let mut left = Vec::new();
    let refused = loop {
        match leave_one(&bench, &buffer) {
            Ok(one) => left.push(one),
            Err(why) => break Some(why),
        }
        if left.len() == 600 {
            break None;
        }
    };
    let count = left.len();
    let replaced = refused.map(|_| {
        let (from, part) = left.swap_remove(count / 2);
        bench.remote.give_back(from, &part);
        let mut next = None;
        wait_until("room for another one", || {
            next = leave_one(&bench, &buffer).ok();
            next.is_some()
        });
        create(&bench).map(drop)
    });

    let stopping = stop(&bench);
    wait_until("the stop", || stopping.is_finished());
    stopping.join().unwrap();
    assert!(is_usable(&buffer));
    wait_until("the end of all endpoints", || references() == before);
    start(&bench);
    assert_eq!((count, refused), (LINGERING_MAX, Some(Errno::BUSY)));
    assert_eq!(replaced, Some(Err(Errno::BUSY)));
}

/// Memory of the kernel that is not given back on demand.
fn kernel_memory() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn an_endpoint_that_lingers_keeps_no_message() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let listener = bench.endpoint();
    let buffer = heap(PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    let (from, part) = bench.show(&endpoint, &buffer);
    rustix::io::write(&listener, b"where are you").unwrap();
    let (listens_at, _) = bench.remote.message();

    // What has come before the close, and what comes after it: twice 4 MiB.
    let message = [7; 496];
    let flood = |count: u32| {
        let before = kernel_memory();
        for _ in 0..count {
            bench.remote.send(from, &message);
        }
        bench.remote.send(listens_at, b"that was all");
        assert_eq!(rustix::io::read(&listener, &mut [0; 64]), Ok(12));
        kernel_memory().saturating_sub(before)
    };
    let kept = flood(8192);
    assert!(kept >= 3 << 10, "{kept} KiB of messages that can be read");
    drop(endpoint);
    let kept = flood(8192);
    assert!(kept < 2 << 10, "{kept} KiB of messages that nobody can read");
    bench.remote.give_back(from, &part);
    wait_until("the part", || is_usable(&buffer));
}
