//! The YAML specification: all files generated from it are up to date, and a client
//! that knows only the specification exchanges blocks with the driver.
//!
//! The tools are those of the lab kernel's sources. Also the codec, compiled as a program.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use busbar::bulk::packet::{combine, crc16};
use busbar_uapi::rpmsg_netlink as uapi;
use client::{coprocessor, noise};

/// The generated files are those of this series' generator; others write them in another way.
const OLDEST: &str = "6.12";

const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernel");

fn module() -> PathBuf {
    Path::new(KERNEL).join("modules/rpmsg_netlink")
}

fn uapi_header() -> PathBuf {
    Path::new(KERNEL).join("uapi/linux/rpmsg_netlink.h")
}

/// Sources of a series of Linux, in the lab's cache.
fn linux(series: &str) -> PathBuf {
    let from = |name, below: &str| std::env::var_os(name).map(|dir| Path::new(&dir).join(below));
    let cache = from("BUSBAR_CACHE", "source")
        .or_else(|| from("XDG_CACHE_HOME", "busbar/source"))
        .or_else(|| from("HOME", ".cache/busbar/source"));
    let sources = fs::read_dir(cache.unwrap()).expect("sources of the lab kernel").flatten();
    let (version, level) = series.split_once('.').expect("a series such as 7.3");
    let wanted = format!("VERSION = {version}\nPATCHLEVEL = {level}\n");
    let is_wanted = |source: &PathBuf| {
        fs::read_to_string(source.join("Makefile")).is_ok_and(|text| text.contains(&wanted))
    };
    let mut found = sources.map(|entry| entry.path()).filter(is_wanted);
    found.next().unwrap_or_else(|| panic!("no sources of Linux {series}"))
}

/// The lab kernel's sources, and the folder of its tools, which moved after Linux 6.12.
fn lab() -> (PathBuf, PathBuf) {
    let linux = linux(&std::env::var("BUSBAR_LINUX").unwrap_or(OLDEST.into()));
    let tools = linux.join("tools/net/ynl");
    let moved = tools.join("pyynl");
    let tools = if moved.exists() { moved } else { tools };
    (linux, tools)
}

/// Specification and schema at the paths of a kernel tree, which the tools require.
fn tree(linux: &Path) -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    let specs = tree.path().join("Documentation/netlink/specs");
    fs::create_dir_all(&specs).unwrap();
    fs::copy(module().join("rpmsg_netlink.yaml"), specs.join("rpmsg_netlink.yaml")).unwrap();
    let schema = "Documentation/netlink/genetlink.yaml";
    fs::copy(linux.join(schema), tree.path().join(schema)).unwrap();
    // The generator searches upwards for this file.
    fs::write(tree.path().join("MAINTAINERS"), "").unwrap();
    tree
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn python(script: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["100", "python3", "-B"]).arg(script);
    command
}

#[test]
#[ignore = "needs the lab"]
fn what_is_generated_is_up_to_date() {
    let linux = linux(OLDEST);
    let tree = tree(&linux);
    let generator = linux.join("tools/net/ynl/ynl-gen-c.py");
    for (file, arguments) in [
        (uapi_header(), &["--mode", "uapi", "--header"][..]),
        (module().join("rpmsg_netlink-gen.h"), &["--mode", "kernel", "--header"]),
        (module().join("rpmsg_netlink-gen.c"), &["--mode", "kernel", "--source"]),
    ] {
        // The code includes a header with the name of its output file.
        let made = tree.path().join(file.file_name().unwrap());
        let spec = tree.path().join("Documentation/netlink/specs/rpmsg_netlink.yaml");
        run(python(&generator).args(arguments).arg("--spec").arg(spec).arg("-o").arg(&made));
        let (made, there) = (fs::read_to_string(made), fs::read_to_string(&file));
        assert_eq!(made.unwrap(), there.unwrap(), "{}", file.display());
    }
}

/// Numbers of the header by their names.
fn numbers() -> HashMap<String, u32> {
    let mut numbers = HashMap::new();
    let mut next = 0;
    for line in fs::read_to_string(uapi_header()).unwrap().lines() {
        let words: Vec<_> = line.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            ["#define", name, value] => {
                numbers.extend(value.parse().map(|value| (name.to_owned(), value)));
            }
            [name, "=", value] if value.parse::<u32>().is_ok() => {
                next = value.parse().unwrap();
                numbers.insert(name.to_owned(), next);
            }
            [name] if name.starts_with("RPMSG_NETLINK_") => {
                next += 1;
                numbers.insert(name.to_owned(), next);
            }
            _ => {}
        }
    }
    numbers
}

#[test]
fn rust_has_the_numbers_of_the_header() {
    let mut numbers = numbers();
    let mut same = |name: &str, value: u32| {
        assert_eq!(numbers.remove(&format!("RPMSG_NETLINK_{name}")), Some(value), "{name}");
    };
    same("FAMILY_VERSION", uapi::VERSION.into());
    same("PART_MAX", u32::try_from(uapi::PART_MAX).unwrap());
    same("WINDOW", uapi::WINDOW);
    same("TIMEOUT", uapi::TIMEOUT);
    same("PLAIN_MAX", uapi::PLAIN_MAX);
    for (name, value) in [
        ("A_CHAN_ID", uapi::channel::ID),
        ("A_CHAN_NAME", uapi::channel::NAME),
        ("A_CHAN_DEVICE", uapi::channel::DEVICE),
        ("A_CHAN_ADDRESS", uapi::channel::ADDRESS),
        ("A_CHAN_MTU", uapi::channel::MTU),
        ("A_BLOCK_CHANNEL", uapi::block::CHANNEL),
        ("A_BLOCK_LENGTH", uapi::block::LENGTH),
        ("A_BLOCK_OFFSET", uapi::block::OFFSET),
        ("A_BLOCK_CRC", uapi::block::CRC),
        ("A_BLOCK_NOWAIT", uapi::block::NOWAIT),
        ("A_BLOCK_STATUS", uapi::block::STATUS),
        ("A_BLOCK_DATA", uapi::block::DATA),
        ("A_BLOCK_TIMEOUT", uapi::block::TIMEOUT),
    ] {
        same(name, value.into());
    }
    for (name, value) in [
        ("CMD_CHANNEL_GET", uapi::command::CHANNEL_GET),
        ("CMD_CHANNEL_ADD_NTF", uapi::command::CHANNEL_ADD_NTF),
        ("CMD_CHANNEL_DEL_NTF", uapi::command::CHANNEL_DEL_NTF),
        ("CMD_SEND", uapi::command::SEND),
        ("CMD_SEND_NEXT_NTF", uapi::command::SEND_NEXT_NTF),
        ("CMD_SEND_DONE_NTF", uapi::command::SEND_DONE_NTF),
        ("CMD_RECEIVE", uapi::command::RECEIVE),
        ("CMD_FETCH", uapi::command::FETCH),
        ("CMD_DATA_NTF", uapi::command::DATA_NTF),
        ("CMD_RESET", uapi::command::RESET),
        ("CMD_MESSAGE_NTF", uapi::command::MESSAGE_NTF),
    ] {
        same(name, value.into());
    }
    assert!(numbers.is_empty(), "not in Rust: {numbers:?}");
    let text = fs::read_to_string(uapi_header()).unwrap();
    for name in [uapi::FAMILY, uapi::group::CHANNELS, uapi::group::MESSAGES] {
        assert!(text.contains(&format!("\t\"{name}\"\n")), "{name}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_client_made_of_the_specification_exchanges_blocks() {
    let _side = coprocessor(&["bulk-netlink"]);
    let (linux, tools) = lab();
    let tree = tree(&linux);
    let tests = module().join("tests");
    let said = run(python(tests.join("ynl_client.py")).arg(tools).arg(tree.path()));
    assert_eq!(said.lines().last(), Some("all is well"), "{said}");
    println!("{said}");
}

/// Makes one request with the command line tool of the kernel.
#[test]
#[ignore = "needs the lab"]
fn the_kernels_own_tool_lists_the_channels() {
    let _side = coprocessor(&["bulk-netlink"]);
    let (linux, tools) = lab();
    let tree = tree(&linux);
    let spec = tree.path().join("Documentation/netlink/specs/rpmsg_netlink.yaml");
    let mut tool = python(tools.join("cli.py"));
    let said = run(tool.arg("--spec").arg(spec).args(["--dump", "channel-get", "--output-json"]));
    assert!(
        said.contains("\"name\": \"rpmsg-netlink\"") && said.contains("\"mtu\": 496"),
        "{said}"
    );
}

/// `packet.c`, compiled here as a program that answers line by line.
#[test]
fn the_codec_agrees_with_the_librarys() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("packet");
    let tests = module().join("tests");
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address", "-I"])
        .arg(tests.join("packet"))
        .arg("-I")
        .arg(module())
        .args(["-idirafter", &format!("{KERNEL}/uapi")])
        .arg(tests.join("packet/main.c"))
        .arg(module().join("packet.c"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("a compiler").success());

    let sum = |bytes: &[u8]| {
        let file = folder.path().join("bytes");
        fs::write(&file, bytes).unwrap();
        let said = run(Command::new(&program).arg("sum").arg(&file));
        said.trim().parse::<u16>().unwrap()
    };
    assert_eq!(sum(b"123456789"), 0x3d56);
    for length in (0..40).chain([495, 496, 497, 65_536]) {
        let bytes = noise(length, length as u64);
        assert_eq!(sum(&bytes), crc16(&bytes), "{length} bytes");
    }
    for (first, second, length) in
        [(0, 0, 0), (0x3d56, 0, 1), (0xffff, 0x1234, 496), (1, 2, u32::MAX)]
    {
        let numbers = [first, second, length].map(|number: u32| number.to_string());
        let said = run(Command::new(&program).arg("join").args(numbers));
        let (first, second) = (u16::try_from(first).unwrap(), u16::try_from(second).unwrap());
        assert_eq!(said.trim().parse(), Ok(combine(first, second, length.into())));
    }
    // The program encodes and decodes headers, and decodes a million random bytes.
    run(Command::new(&program).arg("headers"));
}
