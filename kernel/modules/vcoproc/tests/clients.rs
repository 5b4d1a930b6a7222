//! The in-tree clients of rpmsg, unmodified, on a virtual coprocessor.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use support::{in_tree, modprobe, wait_until};

fn kernel_log() -> String {
    let output = Command::new("dmesg").output().expect("dmesg");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs the lab"]
fn rpmsg_client_sample_gets_its_hundred_answers() {
    let side = in_tree(&["sample"]);
    modprobe(&["rpmsg_client_sample"]).unwrap();
    wait_until("the sample's goodbye", || kernel_log().contains("goodbye!"));
    modprobe(&["-r", "rpmsg_client_sample"]).unwrap();
    drop(side);
}

fn tty() -> Option<PathBuf> {
    let found = fs::read_dir("/dev").unwrap().flatten().map(|entry| entry.path());
    found.into_iter().find(|path| path.to_string_lossy().starts_with("/dev/ttyRPMSG"))
}

#[test]
#[ignore = "needs the lab"]
fn rpmsg_tty_carries_bytes_both_ways() {
    modprobe(&["rpmsg_tty"]).unwrap();
    let side = in_tree(&["tty"]);
    wait_until("the TTY", || tty().is_some());
    let path = tty().unwrap();
    let mut tty = File::options().read(true).write(true).open(&path).unwrap();
    let mut settings = tcgetattr(&tty).unwrap();
    settings.make_raw();
    tcsetattr(&tty, OptionalActions::Now, &settings).unwrap();

    let sent: Vec<u8> = (0..=255).cycle().take(400).collect();
    tty.write_all(&sent).unwrap();
    let mut received = vec![0; sent.len()];
    tty.read_exact(&mut received).unwrap();
    assert_eq!(received, sent);
    drop(tty);
    drop(side);
    wait_until("the TTY to go", || !path.exists());
}

#[test]
#[ignore = "needs the lab"]
fn rpmsg_char_opens_a_default_endpoint() {
    let side = in_tree(&["raw"]);
    let is_raw = |folder: &Path| {
        let name = fs::read_to_string(folder.join("name"));
        name.is_ok_and(|service| service.trim() == "rpmsg-raw")
    };
    let found = || {
        let all = fs::read_dir("/sys/class/rpmsg").unwrap().flatten();
        let node = all.map(|entry| entry.path()).find(|folder| is_raw(folder));
        node.and_then(|folder| Some(Path::new("/dev").join(folder.file_name()?)))
            .filter(|path| path.exists())
    };
    wait_until("a node for the channel", || found().is_some());
    let node = found().unwrap();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(&node, flags, rustix::fs::Mode::empty()).unwrap();
    rustix::io::write(&file, b"to the default endpoint").unwrap();
    let mut answer = [0; 64];
    let len = rustix::io::read(&file, &mut answer).unwrap();
    assert_eq!(&answer[..len], b"to the default endpoint");
    drop(file);
    drop(side);
}
