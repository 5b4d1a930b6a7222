//! The kernel's own selftest of device-memory TCP, `ncdevmem`, of which the patches change an option
//! only: it tries bad bindings (in Linux 6.12), then receives into a `udmabuf` and validates what has
//! arrived.
//! `tests/ncdevmem.sh` builds it.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pair::{DEVICE, Pair, V4, V6, far};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// The flow that `ncdevmem` steers has this port at both ends.
const PORT: u16 = 5201;

/// Addresses of the two ends, IPv4 and IPv6.
const NEAR: [&str; 2] = [V4[0], V6[0]];
const FAR: [&str; 2] = [V4[1], V6[1]];

fn selftests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/selftests")
}

/// The pattern of `-v 7`, repeatedly: 1 to 6, and 0 in Linux 6.12, a line feed in later versions.
fn pattern(len: usize) -> Vec<u8> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let last = if release.starts_with("6.12.") { 0 } else { b'\n' };
    (1..=6).chain([last]).cycle().take(len).collect()
}

fn connect_from_port(from: &str, to: &str) -> TcpStream {
    let at = |address: &str| SocketAddr::new(address.parse::<IpAddr>().unwrap(), PORT);
    let family = if at(from).is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    bind(&socket, &at(from)).unwrap();
    connect(&socket, &at(to)).unwrap();
    socket.into()
}

fn receives(index: usize, len: usize) {
    let _pair = Pair::new();
    let programs = selftests();
    let program = programs.join("ncdevmem");
    assert!(program.exists(), "{} is missing: tests/ncdevmem.sh builds it", program.display());
    // It needs options that Debian's ethtool does not have, and sudo.
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", programs.join("ncdevmem-path").display());
    let mut child = Command::new(program)
        .args(["-l", "-v", "7", "-f", DEVICE, "-s", NEAR[index], "-c", FAR[index]])
        .args(["-p", &PORT.to_string()])
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    // From here on it is read to the end, so that the child does not block.
    let mut stdout = child.stdout.take().unwrap();
    let validated = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text.matches("Validated buffer").count()
    });
    let mut said = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("Waiting or connection") {
            std::thread::spawn(move || {
                let mut stream = far(|| connect_from_port(FAR[index], NEAR[index]));
                stream.write_all(&pattern(len)).unwrap();
            });
        }
        if !line.starts_with("received frag") {
            said.push(line);
        }
    }
    let status = child.wait().unwrap();
    let said = said.join("\n");
    assert!(status.success(), "{said}");
    assert!(validated.join().unwrap() >= len / 4096, "{said}");
    assert!(said.contains(&format!("total_received={len}")), "{said}");
    assert!(!said.contains("SCM_DEVMEM_LINEAR"), "{said}");
}

#[test]
#[ignore = "needs the lab"]
fn receives_over_ipv4() {
    receives(0, 300_001);
}

#[test]
#[ignore = "needs the lab"]
fn receives_over_ipv6() {
    receives(1, 100_000);
}
