//! The servers of `demo/wait`: the one that was moved from `ppoll` to the new calls does the same.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use busbar::wait::{Backend, Poller};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(path: &Path) -> UnixStream {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(why) => assert!(begun.elapsed() < Duration::from_secs(60), "{why}"),
        }
        sleep(Duration::from_millis(10));
    }
}

fn serves(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (program, socket) = (folder.path().join(name), folder.path().join("socket"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../demo/wait/{name}.c"));
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"]);
    assert!(compiler.arg(&program).arg(source).status().unwrap().success());
    // Each client may be silent for two seconds.
    let server = Command::new(&program).arg(&socket).arg("2000000").spawn().unwrap();
    let mut server = Server(server);
    for _ in 0..2 {
        let mut clients: Vec<_> = (0..20).map(|_| connect(&socket)).collect();
        for (number, client) in (0..).zip(&mut clients) {
            client.write_all(&[number; 100]).unwrap();
        }
        for (number, client) in (0..).zip(&mut clients) {
            let mut said = [0xff; 100];
            client.read_exact(&mut said).unwrap();
            assert_eq!(said, [number; 100]);
        }
        // One leaves, the others are let go.
        clients.pop();
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
    assert!(server.0.try_wait().unwrap().is_none());
}

#[test]
fn by_ppoll() {
    serves("server_poll");
}

#[test]
fn by_epoll_whatever_the_kernel_has() {
    serves("server_epoll");
}

#[test]
#[ignore = "needs the lab"]
fn by_the_calls_of_the_lab() {
    Poller::with_backend(Backend::Batch).expect("a kernel that has them");
    serves("server_epoll");
}
