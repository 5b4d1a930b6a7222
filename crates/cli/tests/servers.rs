//! The servers of `demo/wait`: the one converted from `ppoll` to the new calls behaves the same.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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

fn compile(program: &Path, source: &Path) {
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-I"]);
    compiler.arg(demo().join("../../crates/c/include")).arg("-o").arg(program).arg(source);
    assert!(compiler.status().unwrap().success());
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/wait")
}

fn serves(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (program, socket) = (folder.path().join(name), folder.path().join("socket"));
    compile(&program, &demo().join(format!("{name}.c")));
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
        // One leaves, the others are disconnected.
        clients.pop();
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
    assert!(server.0.try_wait().unwrap().is_none());
}

/// What docs/wait.md concludes about `io_uring`.
#[test]
fn a_multishot_poll_keeps_a_closed_connection_open_and_epoll_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("io_uring");
    compile(&program, &demo().join("io_uring.c"));
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    if said.starts_with("no io_uring here") {
        return;
    }
    let line = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("epoll: ").ends_with("reads its end"), "{said}");
    assert!(line("multishot poll: ").ends_with("it is still open"), "{said}");
}

/// Makes both calls, alone and then in many threads, and prints how often the program asked whether the
/// kernel has them: before the threads start, and at the end.
const ASKING: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
static int asked;
#define ioctl(...) (__atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED), ioctl(__VA_ARGS__))
#include <busbar/epoll_calls.h>

static void *both_calls(void *unused)
{
	struct timespec zero[2] = { 0 };
	struct epoll_wait_params params = { .clockid = CLOCK_MONOTONIC, .timeout = (uintptr_t)zero };
	int epfd = epoll_create1(0), other = epoll_create1(0);
	struct epoll_event event;

	for (int i = 0; i < 100; i++) {
		struct epoll_ctl_cmd cmds[] = {
			{ .op = EPOLL_CTL_ADD, .fd = other, .events = EPOLLIN },
			{ .op = EPOLL_CTL_ADD, .fd = other, .events = EPOLLIN },
			{ .op = EPOLL_CTL_DEL, .fd = other },
		};
		struct epoll_ctl_cmd wrong[] = { { .op = EPOLL_CTL_ADD, .fd = other, .reserved = 1 } };

		if (epoll_ctl_batch(epfd, 0, 3, cmds) != 1 || cmds[1].result != -EEXIST ||
		    epoll_ctl_batch(epfd, EPOLL_CTL_BATCH_CONTINUE, 3, cmds) != 3 ||
		    cmds[0].result != -EEXIST || cmds[2].result || epoll_ctl_batch(epfd, 2, 3, cmds) != -1 ||
		    epoll_ctl_batch(epfd, 0, 1, wrong) || wrong[0].result != -EINVAL ||
		    epoll_ctl_batch(-1, 0, 3, cmds) != -1 || errno != EBADF ||
		    epoll_pwait1(epfd, 0, &event, 1, &params, sizeof(params)))
			puts("wrong");
	}
	close(epfd);
	close(other);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t threads[8];

	(void)argv;
	if (argc == 1)
		both_calls(NULL);
	printf("%d ", asked);
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, both_calls, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	printf("%d\n", asked);
}
"#;

fn asking(folder: &Path, text: &str) -> PathBuf {
    let (program, source) = (folder.join("asking"), folder.join("asking.c"));
    std::fs::write(&source, text).unwrap();
    compile(&program, &source);
    program
}

fn asks_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = asking(folder.path(), ASKING);
    let run = |program: &mut Command| String::from_utf8(program.output().unwrap().stdout).unwrap();
    assert_eq!(run(&mut Command::new(&program)), "1 1\n");
    // Threads that make the first call at the same time each ask once.
    let counts = run(Command::new(&program).arg("threads"));
    let asked: u32 = counts.strip_prefix("0 ").unwrap_or(&counts).trim().parse().unwrap();
    assert!((1..=8).contains(&asked), "{counts}");
}

#[test]
fn the_header_asks_the_kernel_once() {
    asks_once();
}

/// `epoll_pwait2` is missing, as before Linux 5.11.
#[test]
fn the_header_waits_on_an_older_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let missing =
        "#include <sys/syscall.h>\n#undef __NR_epoll_pwait2\n#define __NR_epoll_pwait2 0xffff\n";
    let program = asking(
        folder.path(),
        &ASKING.replace("static int asked;", &format!("{missing}static int asked;")),
    );
    let output = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1 1\n");
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
    asks_once();
    serves("server_epoll");
}
