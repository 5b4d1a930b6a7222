//! The in-tree control device of a coprocessor: removed while a program has it open, and asked to remove itself.

#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use busbar::endpoint::{Controller, Implementation, MAX_MESSAGE};
use busbar_uapi::rpmsg::{ADDR_ANY, EndpointInfo, create_dev, create_ept, release_dev};
use rustix::io::Errno;
use support::{in_tree, rounds};

/// Numbers of removed character devices that are not free.
fn left_behind() -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/dev/char").unwrap().flatten().map(|entry| entry.path());
    all.filter(|link| !link.exists() && link.is_symlink()).collect()
}

fn padded(name: &[u8]) -> [u8; 32] {
    let mut padded = [0; 32];
    padded[..name.len()].copy_from_slice(name);
    padded
}

/// A program that learns of the crash by its endpoint, and creates another one at once.
#[test]
#[ignore = "needs the lab"]
fn a_device_that_goes_makes_no_endpoint_that_stays() {
    let late = EndpointInfo { name: padded(b"late"), src: ADDR_ANY, dst: 0x400 };
    for _ in 0..rounds(40, 5) {
        let mut side = in_tree(&["echo"]);
        let controller = Controller::open(side.controller()).unwrap();
        let endpoint = controller.endpoint("echo").implementation(Implementation::Node);
        let endpoint = endpoint.create().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(endpoint.recv(&mut [0; MAX_MESSAGE]).is_err());
                for request in [create_ept, create_dev, release_dev] {
                    assert_eq!(request(&controller, late), Err(Errno::NODEV));
                }
            });
            side.kill().unwrap();
        });
        assert_eq!(left_behind(), <[PathBuf; 0]>::default());
    }
}

/// Without patch 0047 the call waits for a lock that it holds.
#[test]
#[ignore = "needs the lab"]
fn the_control_device_does_not_release_itself() {
    let name = padded(b"rpmsg_ctrl");
    let side = in_tree(&["echo"]);
    let controller = Controller::open(side.controller()).unwrap();
    let (send, results) = mpsc::channel();
    thread::spawn(move || {
        for (src, dst) in [(0, 0), (0, ADDR_ANY), (ADDR_ANY, 0), (ADDR_ANY, ADDR_ANY)] {
            send.send(release_dev(&controller, EndpointInfo { name, src, dst })).unwrap();
        }
        // A channel of this name is another device.
        let channel = EndpointInfo { name, src: 0x500, dst: 0x600 };
        assert_eq!(release_dev(&controller, channel), Err(Errno::INVAL));
        create_dev(&controller, channel).unwrap();
        send.send(release_dev(&controller, channel)).unwrap();
        let endpoint = controller.endpoint("echo").implementation(Implementation::Node);
        drop(endpoint.create().unwrap());
    });
    let next = || results.recv_timeout(Duration::from_secs(60)).expect("the call returns");
    for _ in 0..4 {
        assert_eq!(next(), Err(Errno::INVAL));
    }
    assert_eq!(next(), Ok(()));
    // Its end.
    assert!(results.recv_timeout(Duration::from_secs(60)).is_err());
    assert!(side.controller().exists());
}
