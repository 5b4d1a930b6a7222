//! Closed endpoints that the remote still uses, and user memory, must not delay the end of endpoints.

// The coprocessor is this process, which a 32-bit program cannot be.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod remote;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, spawn};

use busbar_uapi::dmabuf::{self, TO_REMOTE};
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use remote::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{Uid, set_thread_res_uid};
use support::wait_until;

/// Endpoints of a user of which the remote can have parts: the limit.
const BUSY_MAX: usize = 512;

fn create(bench: &Bench) -> Result<OwnedFd, Errno> {
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let name = [b'l'; NAME_SIZE];
    rpmsg::create_ept_fd(
        &bench.control,
        EndpointFdInfo { name, src: ADDR_ANY, dst: SERVICE, flags, fd: -1 },
    )
}

/// Creates an endpoint that gives a part to the remote.
fn busy_one(bench: &Bench, buffer: &OwnedFd) -> Result<(OwnedFd, u32, Message), Errno> {
    let endpoint = create(bench)?;
    dmabuf::attach(&endpoint, buffer)?;
    dmabuf::send(&endpoint, buffer, TO_REMOTE, 0, PAGE)?;
    let (from, part) = bench.remote.given();
    Ok((endpoint, from, part))
}

/// Runs `body` as a user without privileges.
fn run_as<T: Send + 'static>(uid: u32, body: impl FnOnce() -> T + Send + 'static) -> T {
    let as_user = move || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root");
        body()
    };
    spawn(as_user).join().unwrap()
}

/// Stops the coprocessor, in a thread, so that the test can check that this ends.
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

/// Stops the coprocessor, which takes back the buffer and all endpoints, and starts it again.
fn assert_stop_ends_all(bench: &Bench, buffer: &OwnedFd, before: u32) {
    let stopping = stop(bench);
    wait_until("the stop", || stopping.is_finished());
    stopping.join().unwrap();
    assert!(is_usable(buffer));
    wait_until("the end of all endpoints", || references() == before);
    start(bench);
}

#[test]
#[ignore = "needs the lab"]
fn a_user_can_have_so_many_endpoints_with_the_remote_and_stops_nobody_else() {
    let bench = Bench::new();
    let before = references();
    let (buffer, more) = (heap(PAGE), heap(PAGE));
    let (bench, buffer) = run_as(65533, move || {
        let mut left = Vec::new();
        let refused = loop {
            // Half of them stay open, which makes no difference.
            match busy_one(&bench, &buffer) {
                Ok((endpoint, from, part)) if left.len() % 2 == 0 => {
                    left.push((Some(endpoint), from, part));
                }
                Ok((_, from, part)) => left.push((None, from, part)),
                Err(why) => break why,
            }
            assert!(left.len() <= BUSY_MAX);
        };
        assert_eq!((left.len(), refused), (BUSY_MAX, Errno::DQUOT));
        // An endpoint that is counted can send more, and every returned part makes room.
        let (first, _, _) = &left[0];
        dmabuf::attach(first.as_ref().unwrap(), &more).unwrap();
        dmabuf::send(first.as_ref().unwrap(), &more, TO_REMOTE, 0, PAGE).unwrap();
        bench.remote.given();
        let (_, from, part) = left.swap_remove(1);
        bench.remote.give_back(from, &part);
        wait_until("room for another one", || match busy_one(&bench, &buffer) {
            Ok(_) => true,
            Err(Errno::DQUOT) => false,
            Err(why) => panic!("{why}"),
        });
        assert_eq!(busy_one(&bench, &buffer).err(), Some(Errno::DQUOT));
        (bench, buffer)
    });
    let (bench, buffer) = run_as(65532, move || {
        busy_one(&bench, &buffer).expect("another user");
        (bench, buffer)
    });
    busy_one(&bench, &buffer).expect("root");

    assert_stop_ends_all(&bench, &buffer, before);
}

/// Raises the limit of descriptors of this process to its maximum.
fn raise_descriptors() {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    setrlimit(Resource::Nofile, raised).expect("more descriptors");
}

#[test]
#[ignore = "needs the lab"]
fn endpoints_that_linger_do_not_hold_up_the_stop() {
    raise_descriptors();
    let bench = Bench::new();
    let before = references();
    let buffer = heap(PAGE);
    // More than a workqueue has workers: 512.
    let endpoints: Vec<_> = (0..600).map(|_| busy_one(&bench, &buffer).unwrap().0).collect();
    drop(endpoints);
    assert!(!is_usable(&buffer));

    assert_stop_ends_all(&bench, &buffer, before);
}

/// Memory of the kernel that cannot be reclaimed.
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

    // Messages before the close, and after it: 4 MiB each.
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
    let readable = flood(8192);
    assert!(readable >= 2 << 10, "{readable} KiB of messages that can be read");
    drop(endpoint);
    let kept = flood(8192);
    assert!(kept < readable / 2, "{kept} KiB of messages that nobody can read, {readable} before");
    bench.remote.give_back(from, &part);
    wait_until("the part", || is_usable(&buffer));
}

/// Compiles and starts `withheld.c`.
fn send_from_withheld(folder: &Path, endpoint: &OwnedFd, buffer: &OwnedFd) -> Child {
    let (program, file) = (folder.join("withheld"), folder.join("file"));
    let kernel = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernel");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(format!("{kernel}/uapi"))
        .arg(format!("{kernel}/modules/rpmsg_eptfd/tests/withheld.c"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("a compiler").success());
    fs::write(&file, "").unwrap();
    let mut command = Command::new(&program);
    command.arg(&file);
    for fd in [endpoint, buffer] {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
        command.arg(fd.as_raw_fd().to_string());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn user_memory_that_cannot_be_written_holds_up_no_end() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = heap(PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut sender = send_from_withheld(folder.path(), &endpoint, &buffer);
    let mut said = BufReader::new(sender.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "held");
    let waits = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", sender.id())).unwrap();
        stat.contains(") D ")
    };
    wait_until("the sender to write the cookie", waits);

    let stopping = stop(&bench);
    wait_until("the stop", || stopping.is_finished());
    stopping.join().unwrap();
    assert!(waits(), "it has written the cookie");
    // The server ends, and with it the wait.
    drop(sender.stdin.take());
    assert_eq!(said.next().unwrap().unwrap(), Errno::PIPE.raw_os_error().to_string());
    sender.wait().unwrap();
    assert!(is_usable(&buffer));
    start(&bench);
}
