//! The library's examples do what they say.

mod support;

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;

use busbar::block::{Block, Memory};
use busbar::receive::Receiver;
use support::{eptfd, in_tree, text};

#[allow(dead_code)] // the program around it
#[path = "../../busbar/examples/endpoint.rs"]
mod endpoint;
#[allow(dead_code)] // the program around it
#[path = "../../busbar/examples/receive.rs"]
mod receive;
#[allow(dead_code)] // the program around it
#[path = "../../busbar/examples/stream.rs"]
mod stream;

#[test]
fn a_signal_has_the_level_that_it_was_given() {
    let mut out = Vec::new();
    let name = "synth:sine?amplitude=0.5&frequency=0.01";
    stream::watch(name, "voltage0_i", "voltage0_q", 3, &mut out).unwrap();
    let out = text(&out);
    let lines: Vec<_> = out.lines().collect();
    // Half of 32767, less what rounding takes.
    let is_right =
        |line: &&str| line.contains(" 16384 samples, rms 1638") && line.ends_with("lost: 0");
    assert!(lines.len() == 3 && lines.iter().all(is_right), "{out}");
    let none = stream::watch(name, "voltage0_i", "voltage7_q", 1, &mut Vec::new()).unwrap_err();
    assert!(none.to_string().contains("voltage7_q"), "{none}");
}

#[test]
fn connections_are_counted_to_their_last_byte() {
    let receiver = Receiver::host(Block::with(1 << 20, &Memory::Memfd).unwrap()).unwrap();
    let listener = receiver.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let lengths = [0, 1, 100_000, 3_000_000];
    let mut out = Vec::new();
    std::thread::scope(|scope| {
        for len in lengths {
            scope.spawn(move || {
                let mut sender = TcpStream::connect(address).unwrap();
                sender.write_all(&vec![7; len]).unwrap();
                sender.shutdown(Shutdown::Write).unwrap();
                // Until the other end has had all of it.
                let _ = std::io::copy(&mut sender, &mut std::io::sink());
            });
        }
        receive::count(&listener, lengths.len(), &mut out).unwrap();
    });
    let out = text(&out);
    for len in lengths {
        assert!(out.contains(&format!(": {len} bytes\n")), "{out}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn each_line_is_answered_through_both_drivers() {
    for side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let (controller, mut out) = (side.controller().to_str().unwrap().to_owned(), Vec::new());
        endpoint::talk(&controller, "echo", &b"hello\n\nworld\n"[..], &mut out).unwrap();
        assert_eq!(text(&out), "hello\n\nworld\n");
        let none = endpoint::talk(&controller, "nobody", &b""[..], &mut Vec::new()).unwrap_err();
        assert_eq!(none.kind(), std::io::ErrorKind::NotFound, "{none}");
    }
}

#[test]
fn examples_are_short() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../busbar/examples");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 60, "{}: {lines} lines", path.display());
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(
            include_str!("examples.rs").contains(&format!("{stem}::")),
            "{stem} is run by none"
        );
    }
}
