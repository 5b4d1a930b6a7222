//! The library's examples work.

mod support;

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

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
    // Half of 32767, less a rounding error.
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
                // Until the other end has received everything.
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

/// The C program of docs/endpoint.md, compiled into `folder`.
fn talk(folder: &Path) -> PathBuf {
    let page = include_str!("../../../docs/endpoint.md");
    let (_, program) = page.split_once("```c\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    let [source, talk] = ["talk.c", "talk"].map(|name| folder.join(name));
    fs::write(&source, program).unwrap();
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/uapi");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(headers);
    let output = gcc.arg("-o").args([&talk, &source]).output().expect("gcc: see tests/parts.toml");
    assert!(output.status.success(), "{}", text(&output.stderr));
    talk
}

#[test]
fn the_c_program_of_the_page_compiles_and_names_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(talk(folder.path())).args(["none", "echo", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "/dev/none: No such file or directory\n");
}

#[test]
#[ignore = "needs the lab"]
fn the_c_program_of_the_page_is_answered_through_both_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let talk = talk(folder.path());
    for side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let controller = side.controller().file_name().unwrap();
        let output = Command::new(&talk).arg(controller).args(["echo", "hello"]).output().unwrap();
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("hello\n".into(), String::new()));
        let output = Command::new(&talk).arg(controller).args(["nobody", "x"]).output().unwrap();
        assert_eq!(text(&output.stderr), "nobody: no such service\n");
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
