//! The in-tree control device of a coprocessor that is removed while a program has it open.

#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::thread;

use busbar::endpoint::{Controller, Implementation, MAX_MESSAGE};
use busbar_uapi::rpmsg::{ADDR_ANY, EndpointInfo, create_dev, create_ept, release_dev};
use rustix::io::Errno;
use support::{in_tree, rounds};

/// Numbers of removed character devices that are not free.
fn left_behind() -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/dev/char").unwrap().flatten().map(|entry| entry.path());
    all.filter(|link| !link.exists() && link.is_symlink()).collect()
}

/// A program that learns of the crash by its endpoint, and creates another one at once.
#[test]
#[ignore = "needs the lab"]
fn a_device_that_goes_makes_no_endpoint_that_stays() {
    let mut name = [0; 32];
    name[..4].copy_from_slice(b"late");
    let late = EndpointInfo { name, src: ADDR_ANY, dst: 0x400 };
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
