//! Functions that the conformance tests share.
//!
//! They need two coprocessors that announce `echo`, `sink` and `source`, with the control devices
//!
//! - `BUSBAR_TEST_CTRL_FD`: whose driver makes descriptors,
//! - `BUSBAR_TEST_CTRL_NODE`: whose driver, the in-tree one, makes device nodes only,
//!
//! and root, as in the lab.

#![allow(dead_code)]

use std::env;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use busbar::endpoint::{Builder, Controller, Endpoint, Implementation, MAX_MESSAGE};

/// Long enough for anything that has to happen, even in emulation with a debug kernel.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long to watch that nothing happens.
pub const MOMENT: Duration = Duration::from_millis(50);

/// Held for reading by most tests, for writing by those that exclude all others.
static COPROCESSORS: RwLock<()> = RwLock::new(());

/// One implementation, and its coprocessor.
pub struct Bench {
    pub implementation: Implementation,
    pub controller: Controller,
    pub path: String,
    _guard: Option<RwLockReadGuard<'static, ()>>,
}

impl Bench {
    pub fn new(implementation: Implementation) -> Self {
        // A test that failed while it held the lock must not make the others fail.
        let guard = COPROCESSORS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        Self::with(implementation, Some(guard))
    }

    /// Excludes all other tests, for a test that disturbs them or would be disturbed.
    pub fn exclusive(implementation: Implementation) -> (RwLockWriteGuard<'static, ()>, Self) {
        let guard = COPROCESSORS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        (guard, Self::with(implementation, None))
    }

    fn with(implementation: Implementation, guard: Option<RwLockReadGuard<'static, ()>>) -> Self {
        let variable = match implementation {
            Implementation::Node => "BUSBAR_TEST_CTRL_NODE",
            _ => "BUSBAR_TEST_CTRL_FD",
        };
        let path = env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
        let controller = Controller::open(&path).unwrap();
        Self { implementation, controller, path, _guard: guard }
    }

    pub fn address(&self, service: &str) -> u32 {
        self.controller.find(service).unwrap().destination
    }

    /// An endpoint called `name` that sends to `service`.
    pub fn builder<'a>(&'a self, name: &'a str, service: &str) -> Builder<'a> {
        self.controller
            .endpoint(name)
            .destination(self.address(service))
            .implementation(self.implementation)
            .timeout(PATIENCE)
    }

    pub fn endpoint(&self, service: &str) -> Endpoint {
        self.builder(service, service).create().unwrap()
    }

    pub fn echo(&self) -> Endpoint {
        self.endpoint("echo")
    }

    /// Device nodes of this controller that are called `name`.
    pub fn nodes(&self, name: &str) -> Vec<String> {
        let control = self.path.trim_start_matches("/dev/");
        fs::read_dir(format!("/sys/class/rpmsg/{control}"))
            .unwrap()
            .flatten()
            .filter(|entry| {
                let found = fs::read_to_string(entry.path().join("name"));
                found.is_ok_and(|found| found.trim_end_matches('\n') == name)
            })
            .map(|entry| format!("/dev/{}", entry.file_name().display()))
            .collect()
    }
}

/// Waits for a message and takes it.
pub fn take(endpoint: &Endpoint) -> Vec<u8> {
    let mut buffer = [0; MAX_MESSAGE];
    let length = endpoint.recv_timeout(&mut buffer, PATIENCE).unwrap();
    buffer[..length.expect("a message in time")].to_vec()
}

/// A message of `length` bytes that differs from those with another `seed`.
pub fn message(length: usize, seed: u8) -> Vec<u8> {
    (0..=u8::MAX)
        .cycle()
        .map(|byte| byte.wrapping_mul(31).wrapping_add(seed))
        .take(length)
        .collect()
}

/// Sends a message and receives it back.
pub fn exchange(endpoint: &Endpoint, seed: u8) {
    let sent = message(64, seed);
    endpoint.send(&sent).unwrap();
    assert_eq!(take(endpoint), sent);
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Set in a process that runs the body of one test.
const ROLE: &str = "BUSBAR_TEST_ROLE";

/// Whether this process was started by [`child`] to play `role`.
pub fn plays(role: &str) -> bool {
    env::var(ROLE).is_ok_and(|playing| playing == role)
}

/// A process of this program that runs the test `name` in the part `role`.
pub fn child(name: &str, role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::null());
    command
}

/// Runs `body` in a process of its own, where no other test opens and closes descriptors.
pub fn alone(name: &str, body: impl FnOnce()) {
    if plays("alone") {
        body();
    } else {
        succeed(child(name, "alone").spawn().unwrap());
    }
}

pub fn succeed(mut child: Child) {
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// The standard input of a process started by [`child`], converted to what was passed to it.
pub fn inherited() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
