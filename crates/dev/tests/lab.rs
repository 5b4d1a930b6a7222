//! The command `busbar lab`.
//!
//! Most of it needs the lab's kernels and boots them: `cargo test -p busbar-dev --test lab --
//! --ignored`. Build them first with `busbar lab build` and `busbar lab build --debug`.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

static RELEASE: Once = Once::new();
static DEBUG: Once = Once::new();
static STOCK: Once = Once::new();
static ARM64: Once = Once::new();
static DEBUG_ARM64: Once = Once::new();
static STOCK_ARM64: Once = Once::new();
static ARMV7: Once = Once::new();

/// Builds changes once, so that no run prints anything about it.
fn ready(once: &Once, arguments: &[&str]) {
    once.call_once(|| assert_code(&Lab::new(arguments).output(), 0));
}

/// A command line, with temporary files in a folder of its own.
struct Lab {
    temporary: TempDir,
    command: Command,
}

impl Lab {
    fn new(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_busbar-dev"));
        command.arg("lab").args(arguments);
        command.env("TMPDIR", temporary.path()).stdin(Stdio::null());
        // The tests may run below a cargo that shares its folder.
        command.env_remove("CARGO_TARGET_DIR").env_remove("BUSBAR_LINUX");
        Self { temporary, command }
    }

    fn run(command: &[&str]) -> Self {
        ready(&RELEASE, &["build"]);
        Self::new(&[&["run", "--"], command].concat())
    }

    fn debug(command: &[&str]) -> Self {
        ready(&DEBUG, &["build", "--debug"]);
        Self::new(&[&["run", "--debug", "--"], command].concat())
    }

    fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    fn output(mut self) -> Output {
        let output = self.command.output().unwrap();
        self.assert_nothing_left();
        output
    }

    /// Starts it and waits until it has written `ready`.
    fn start_until(&mut self, ready: &str) -> Child {
        let mut child =
            self.command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut seen = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        while !seen.contains(ready) {
            let mut byte = [0];
            std::io::Read::read_exact(stdout, &mut byte).unwrap();
            seen.push(char::from(byte[0]));
        }
        child
    }

    /// Asserts that soon no process and no file of this run is left.
    fn assert_nothing_left(&self) {
        wait_until("its processes are gone", || processes(self.temporary.path()).is_empty());
        let files: Vec<_> = fs::read_dir(self.temporary.path()).unwrap().collect();
        assert!(files.is_empty(), "{files:?}");
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Processes that have `path` in their arguments.
fn processes(path: &Path) -> Vec<PathBuf> {
    let path = path.as_os_str().as_bytes();
    let is_one = |folder: &PathBuf| {
        let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
        arguments.windows(path.len()).any(|window| window == path)
    };
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    all.filter(is_one).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "stdout: {} stderr: {said}", text(&output.stdout));
}

/// Bytes of all values without any order that a terminal or a shell would keep.
fn noise(count: u32) -> Vec<u8> {
    (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

// What needs no kernel

#[test]
fn a_kernel_that_is_not_in_the_cache_is_not_built_by_asking() {
    let cache = tempfile::tempdir().unwrap();
    let source = cache.path().join("linux.tar.xz");
    fs::write(&source, "no archive").unwrap();
    for kernel in [&["build", "--check"][..], &["build", "--check", "--debug"]] {
        let output = Lab::new(kernel)
            .with(|command| {
                command.env("BUSBAR_CACHE", cache.path()).env("BUSBAR_LINUX_SOURCE", &source);
            })
            .output();
        assert_code(&output, 1);
        assert!(text(&output.stdout).contains("kernel is not in the cache"), "{output:?}");
        assert!(!cache.path().join("kernel").exists());
    }
}

#[test]
fn a_missing_source_is_named_with_its_package() {
    let cache = tempfile::tempdir().unwrap();
    let output = Lab::new(&["build"])
        .with(|command| {
            command.env("BUSBAR_CACHE", cache.path());
            command.env("BUSBAR_LINUX_SOURCE", "/no/such/linux-source-6.12.tar.xz");
        })
        .output();
    assert_code(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("/no/such/linux-source-6.12.tar.xz"), "{said}");
    assert!(said.contains("apt-get install linux-source-6.12"), "{said}");

    let newer = Lab::new(&["build", "--linux", "7.3"])
        .with(|command| _ = command.env("BUSBAR_CACHE", cache.path()))
        .output();
    assert_code(&newer, 1);
    let said = text(&newer.stderr);
    assert!(said.contains("tools/source 7.3"), "{said}");
}

#[test]
fn a_wrong_project_or_cache_is_named() {
    let wrong = |variable: &str, value: &str| {
        let output = Lab::new(&["build"]).with(|command| _ = command.env(variable, value)).output();
        assert_code(&output, 1);
        let said = text(&output.stderr);
        assert!(said.contains(variable) && said.contains(value), "{said}");
    };
    wrong("BUSBAR_KERNEL", "/etc");
    wrong("BUSBAR_CACHE", "/var/tmp");
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [&["run"][..], &["run", "--timeout", "0", "--", "true"], &["build", "x"]] {
        assert_code(&Lab::new(arguments).output(), 2);
    }
}

#[test]
fn debians_own_kernel_is_not_for_armv7() {
    let output = Lab::new(&["build", "--stock", "--arch", "armv7"]).output();
    assert_code(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("armv7") && said.contains("arm64"), "{said}");
}

// Building

/// A cache with links to these entries of the user's own cache.
fn cache_with(names: &[&str]) -> TempDir {
    let cache = tempfile::tempdir().unwrap();
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let own = variable("BUSBAR_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("busbar")))
        .or_else(|| Some(variable("HOME")?.join(".cache/busbar")))
        .unwrap();
    for name in names {
        symlink(own.join(name), cache.path().join(name)).unwrap();
    }
    cache
}

/// A copy of the project's `kernel/` folder.
fn kernel_copy() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/.");
    let status = Command::new("cp").arg("-r").arg(kernel).arg(copy.path()).status();
    assert!(status.unwrap().success());
    copy
}

#[test]
#[ignore = "needs the lab"]
fn a_changed_module_is_rebuilt_in_seconds() {
    let (cache, kernel) = (cache_with(&["source", "kernel", "tarball.json"]), kernel_copy());
    let build = || {
        let output = Lab::new(&["build", "--json"])
            .with(|command| {
                command.env("BUSBAR_CACHE", cache.path()).env("BUSBAR_KERNEL", kernel.path());
            })
            .output();
        assert_code(&output, 0);
        let built: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        PathBuf::from(built["modules"].as_str().unwrap())
    };
    let first = build();
    let module = |set: &Path| fs::read(set.join("updates/lab/selftest/lab_selftest.ko")).unwrap();
    assert_eq!(first, build());

    let source = kernel.path().join("lab/selftest/lab_selftest.c");
    let code = fs::read_to_string(&source).unwrap().replace("asked to", "and changed");
    fs::write(&source, code).unwrap();
    let start = Instant::now();
    let second = build();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_ne!(module(&first), module(&second));
    assert!(!kernel.path().join("lab/selftest/lab_selftest.o").exists(), "it litters");
}

/// The error of a failed build of this kernel folder.
fn refused(cache: &TempDir, kernel: &TempDir) -> String {
    let output = Lab::new(&["build"])
        .with(|command| {
            command.env("BUSBAR_CACHE", cache.path()).env("BUSBAR_KERNEL", kernel.path());
        })
        .output();
    assert_code(&output, 1);
    text(&output.stderr)
}

#[test]
#[ignore = "needs the lab"]
fn a_warning_of_the_compiler_fails_a_module() {
    let (cache, kernel) = (cache_with(&["source", "kernel", "tarball.json"]), kernel_copy());
    let source = kernel.path().join("lab/selftest/lab_selftest.c");
    let code = fs::read_to_string(&source).unwrap() + "\nstatic int nobody_uses_it;\n";
    fs::write(&source, code).unwrap();
    let said = refused(&cache, &kernel);
    assert!(said.contains("nobody_uses_it") && said.contains("make.log"), "{said}");
}

#[test]
#[ignore = "needs the lab"]
fn a_setting_that_kconfig_does_not_honour_is_named() {
    let (cache, kernel) = (cache_with(&["source", "tarball.json"]), kernel_copy());
    let fragment = kernel.path().join("lab/release.config");
    let settings = fs::read_to_string(&fragment).unwrap() + "CONFIG_NO_SUCH_THING=y\n";
    fs::write(&fragment, settings).unwrap();
    let said = refused(&cache, &kernel);
    assert!(said.contains("CONFIG_NO_SUCH_THING: wanted y, got n"), "{said}");
}

#[test]
#[ignore = "needs the lab"]
fn an_interrupted_build_is_not_taken_for_a_finished_one() {
    let cache = cache_with(&["source", "tarball.json"]);
    let mut lab =
        Lab::new(&["build"]).with(|command| _ = command.env("BUSBAR_CACHE", cache.path()));
    let mut child = lab.command.stderr(Stdio::null()).spawn().unwrap();
    let compiles = || {
        let log = fs::read_dir(cache.path().join("kernel")).ok()?.next()?.ok()?.path();
        fs::read_to_string(log.join("make.log")).ok()?.contains("init/main.o").then_some(())
    };
    let start = Instant::now();
    while compiles().is_none() {
        assert!(start.elapsed() < Duration::from_secs(300));
        sleep(Duration::from_millis(100));
    }
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    wait_until("make is gone", || processes(cache.path()).is_empty());
    let names: Vec<_> = fs::read_dir(cache.path().join("kernel"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() == 1 && names[0].ends_with(".partial"), "{names:?}");
}

// Streams and exit codes

#[test]
#[ignore = "needs the lab"]
fn output_is_exact_and_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (out, err) = (noise(10_000_000), noise(3_000_001));
    fs::write(folder.path().join("out"), &out).unwrap();
    fs::write(folder.path().join("err"), &err).unwrap();
    let output = Lab::run(&["sh", "-c", "cat out & cat err >&2; wait"])
        .with(|command| _ = command.current_dir(folder.path()))
        .output();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == out, "{} bytes of {}", output.stdout.len(), out.len());
    assert!(output.stderr == err, "{} bytes of {}", output.stderr.len(), err.len());
}

#[test]
#[ignore = "needs the lab"]
fn exit_codes_are_the_commands() {
    let cases: [(&[&str], i32); 6] = [
        (&["true"], 0),
        (&["false"], 1),
        (&["sh", "-c", "exit 3"], 3),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -SEGV $$"], 128 + 11),
    ];
    for (command, code) in cases {
        assert_code(&Lab::run(command).output(), code);
    }
}

#[test]
#[ignore = "needs the lab"]
fn arguments_are_exact() {
    let every_byte: Vec<u8> = (1..=255).collect();
    let arguments: [&[u8]; 6] =
        [b"two words", b"", b"'\"`$HOME\\", b"line\nline\n", b"*", &every_byte];
    let output = Lab::run(&["printf", "%s\\0"])
        .with(|command| _ = command.args(arguments.map(OsStr::from_bytes)))
        .output();
    assert_code(&output, 0);
    let expected: Vec<u8> =
        arguments.iter().flat_map(|argument| [argument, &b"\0"[..]].concat()).collect();
    assert_eq!(output.stdout, expected);
}

#[test]
#[ignore = "needs the lab"]
fn stdin_is_exact_and_ends() {
    let mut lab = Lab::run(&["sh", "-c", "cat; echo end >&2"]);
    let command = lab.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let bytes = noise(2_000_000);
    let mut stdin = child.stdin.take().unwrap();
    let copy = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_code(&output, 0);
    assert!(output.stdout == bytes, "{} bytes of {}", output.stdout.len(), bytes.len());
    assert_eq!(output.stderr, b"end\n");
    lab.assert_nothing_left();
}

#[test]
#[ignore = "needs the lab"]
fn a_stdin_that_nobody_reads_does_not_hold_it_up() {
    let output = Lab::run(&["true"])
        .with(|command| _ = command.stdin(fs::File::open("/dev/zero").unwrap()))
        .output();
    assert_code(&output, 0);
}

#[test]
#[ignore = "needs the lab"]
fn processes_left_behind_do_not_hold_it_up() {
    let script = "(trap '' TERM HUP; sleep 1000) & setsid sleep 1000 & echo done";
    let start = Instant::now();
    let output = Lab::run(&["sh", "-c", script]).output();
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "done\n");
    assert!(start.elapsed() < Duration::from_secs(200));
}

#[test]
#[ignore = "needs the lab"]
fn a_reader_that_goes_ends_it() {
    let mut lab = Lab::run(&["yes"]);
    let mut child = lab.start_until("y\ny\n");
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
    lab.assert_nothing_left();
}

#[test]
#[ignore = "needs the lab"]
fn a_shell_has_the_terminal() {
    // `script` is the terminal, and types what it reads.
    let busbar = format!("{} lab shell", env!("CARGO_BIN_EXE_busbar-dev"));
    let temporary = tempfile::tempdir().unwrap();
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &busbar, "/dev/null"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let script = "stty size; tty; test -t 2 && echo yes-$((6 * 7))\nexit 5\n";
    // A person waits for the prompt; `script` would end with its input.
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut typed = false;
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = std::io::Read::read(&mut stdout, &mut buffer) {
        seen.extend(&buffer[..count]);
        if !typed && text(&seen).contains('#') {
            stdin.write_all(script.as_bytes()).unwrap();
            typed = true;
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(5), "{}", text(&seen));
    let seen = text(&seen);
    assert!(seen.contains("/dev/hvc0") && seen.contains("yes-42"), "{seen}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

// The guest

#[test]
#[ignore = "needs the lab"]
fn the_guest_is_as_promised() {
    let checks = r#"
        set -e
        udevadm control --ping
        udevadm settle
        ls /run/udev/data/c* >/dev/null
        test "$(readlink /dev/virtio-ports/busbar.control)"
        test "$(nproc)" = 2
        case "$(uname -r)" in 6.12.*-busbar) ;; *) exit 1 ;; esac
        test -f "/lib/modules/$(uname -r)/modules.dep"
        modprobe rpmsg_ctrl
        modprobe lab_selftest
        grep -q '^lab_selftest ' /proc/modules
        modprobe -r lab_selftest
        test -s /lib/firmware/vcoproc.fw
        test -z "$(cat /sys/module/firmware_class/parameters/path)"
        case "$BUSBAR_ACCELERATOR" in kvm|tcg) ;; *) exit 1 ;; esac
        test "$RUST_TEST_VARIABLE" = 'a b'
        test -z "$NOT_PASSED"
        test "$(id -u)" = 0
        test "$(readlink /proc/self/fd/0)" = /dev/null
        echo x >/dev/stdout
        echo y >/dev/stderr
        # Nothing is ignored or blocked that was not before.
        grep -E '^Sig(Ign|Blk):.*[1-9a-f]' /proc/self/status && exit 1
        echo good
    "#;
    let output = Lab::run(&["sh", "-exc", checks])
        .with(|command| {
            command.env("RUST_TEST_VARIABLE", "a b").env("NOT_PASSED", "x");
        })
        .output();
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "x\ngood\n");
}

#[test]
#[ignore = "needs the lab"]
fn more_options_reach_the_kernel() {
    ready(&RELEASE, &["build"]);
    let arguments =
        ["run", "--kernel-option", "idle=poll", "--kernel-option", "a.b=c", "--", "cat"];
    let output = Lab::new(&[arguments.as_slice(), &["/proc/cmdline"]].concat()).output();
    assert_code(&output, 0);
    assert!(text(&output.stdout).contains(" idle=poll a.b=c"), "{}", text(&output.stdout));
}

#[test]
#[ignore = "needs the lab"]
fn files_are_the_hosts() {
    let here = tempfile::tempdir().unwrap();
    let more = tempfile::tempdir().unwrap();
    fs::write(here.path().join("from-host"), "host").unwrap();
    let script = r#"
        set -e
        test "$(cat from-host)" = host
        echo guest >from-guest
        echo more >"$1/from-guest"
        # A mapping that is shared and written, as linkers and databases have it.
        python3 -c 'import mmap
f = open("mapped", "w+b"); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); m[:5] = b"guest"; m.close()'
        for folder in /etc /usr/lib /tmp "$HOME"; do echo x >"$folder/busbar-lab-test"; done
    "#;
    let output = Lab::new(&["run", "--writable", more.path().to_str().unwrap(), "--"])
        .with(|command| {
            command.args(["sh", "-exc", script, "sh"]).arg(more.path());
            command.current_dir(here.path());
        })
        .output();
    assert_code(&output, 0);
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(here.path().join("from-guest")), "guest\n");
    assert_eq!(read(more.path().join("from-guest")), "more\n");
    assert!(read(here.path().join("mapped")).starts_with("guest\0"));
    let home = std::env::var("HOME").unwrap();
    for folder in ["/etc", "/usr/lib", "/tmp", &home] {
        assert!(!Path::new(folder).join("busbar-lab-test").exists(), "{folder}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn two_guests_at_a_time() {
    let run = |word: &'static str| {
        std::thread::spawn(move || text(&Lab::run(&["echo", word]).output().stdout))
    };
    let (one, two) = (run("one"), run("two"));
    assert_eq!(one.join().unwrap(), "one\n");
    assert_eq!(two.join().unwrap(), "two\n");
}

// Ends

#[test]
#[ignore = "needs the lab"]
fn a_signal_ends_all_of_it() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut lab = Lab::run(&["sh", "-c", "echo ready; sleep 1000"]);
        let mut child = lab.start_until("ready");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        lab.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_signal_ends_a_guest_that_boots() {
    let mut lab = Lab::run(&["true"]);
    let mut child = lab.command.spawn().unwrap();
    wait_until("QEMU runs", || processes(lab.temporary.path()).len() >= 2);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    lab.assert_nothing_left();
}

#[test]
#[ignore = "needs the lab"]
fn a_kill_takes_qemu_with_it() {
    let mut lab = Lab::run(&["sh", "-c", "echo ready; sleep 1000"]);
    let mut child = lab.start_until("ready");
    assert!(!processes(lab.temporary.path()).is_empty());
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    wait_until("QEMU is gone", || processes(lab.temporary.path()).is_empty());
}

#[test]
#[ignore = "needs the lab"]
fn a_timeout_is_124() {
    let output =
        Lab::new(&["run", "--timeout", "2", "--", "sh", "-c", "echo x; sleep 1000"]).output();
    assert_code(&output, 124);
    assert_eq!(text(&output.stdout), "x\n");
    assert!(text(&output.stderr).contains("not done in 2 s"), "{}", text(&output.stderr));
}

// What the kernel reports

/// Triggers a fault and expects `words` in the output.
#[track_caller]
fn assert_reported(lab: impl Fn(&[&str]) -> Lab, fault: &str, words: &[&str]) {
    // The command succeeds even if `modprobe` is killed, which is not tested.
    let script = format!("modprobe lab_selftest fault={fault} || true");
    let output = lab(&["sh", "-c", &script]).output();
    assert_code(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("the kernel reports"), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word} in {said}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn the_release_kernel_reports_warnings_and_bugs() {
    assert_reported(Lab::run, "warn", &["WARNING: ", "fault_warn"]);
    assert_reported(Lab::run, "bug", &["kernel BUG at ", "fault_bug"]);
}

/// The drivers that Debian leaves out are there, the rest is Debian's, and reports fail a run there, too.
#[test]
#[ignore = "needs the lab"]
fn debians_own_kernel_has_the_modules() {
    ready(&STOCK, &["build", "--stock"]);
    let stock = |command: &[&str]| Lab::new(&[&["run", "--stock", "--"], command].concat());
    let modules = "vcoproc vconv vnic rpmsg_netlink virtio_rpmsg_bus rpmsg_char rpmsg_ctrl rpmsg_ns rpmsg_tty";
    let script = format!("uname -r && modprobe -a {modules} && ls /sys/bus/iio/devices && exit 7");
    let output = stock(&["sh", "-c", &script]).output();
    assert_code(&output, 7);
    let said = text(&output.stdout);
    assert!(said.starts_with("6.12.") && said.contains("-amd64\n"), "{said}");
    assert!(said.contains("iio:device0"), "{said}");
    assert_reported(stock, "warn", &["WARNING: ", "fault_warn"]);
}

/// Another processor: its programs are Debian's, the current folder and the modules are there.
fn a_guest_runs_programs_of(which: &[&str], machine: &str) {
    let run = |command: &[&str]| Lab::new(&[&["run"], which, &["--"], command].concat());
    let folder = tempfile::tempdir().unwrap();
    let modules = "vcoproc vconv vnic rpmsg_eptfd rpmsg_netlink";
    let script =
        format!("uname -m && modprobe -a {modules} && echo from the guest >file && exit 7");
    let output =
        run(&["sh", "-c", &script]).with(|command| _ = command.current_dir(folder.path())).output();
    assert_code(&output, 7);
    assert_eq!(text(&output.stdout), format!("{machine}\n"));
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "from the guest\n");
    // A compiler may put the function into another one.
    assert_reported(run, "warn", &["WARNING: ", "lab_selftest"]);
}

#[test]
#[ignore = "needs the lab"]
fn a_guest_for_arm64_runs_programs_for_arm64() {
    ready(&ARM64, &["build", "--arch", "arm64"]);
    a_guest_runs_programs_of(&["--arch", "arm64"], "aarch64");
}

#[test]
#[ignore = "needs the lab"]
fn a_guest_for_arm64_runs_debians_kernel_too() {
    ready(&STOCK_ARM64, &["build", "--stock", "--arch", "arm64"]);
    a_guest_runs_programs_of(&["--stock", "--arch", "arm64"], "aarch64");
}

#[test]
#[ignore = "needs the lab"]
fn a_guest_for_armv7_runs_programs_for_armv7() {
    ready(&ARMV7, &["build", "--arch", "armv7"]);
    a_guest_runs_programs_of(&["--arch", "armv7"], "armv7l");
}

#[test]
#[ignore = "needs the lab"]
fn a_known_report_does_not_count() {
    ready(&RELEASE, &["build"]);
    let script = "modprobe lab_selftest fault=warn || true";
    let knowing = |text| Lab::new(&["run", "--known", text, "--", "sh", "-c", script]).output();
    assert_code(&knowing("fault_warn"), 0);
    assert_code(&knowing("fault_bug"), 1);
}

#[test]
#[ignore = "needs the lab"]
fn a_panic_is_the_end() {
    assert_reported(Lab::run, "panic", &["Kernel panic", "the guest went down"]);
}

#[test]
#[ignore = "needs the lab"]
fn a_report_that_is_kept_off_the_console_is_found() {
    let script = "echo 1 >/proc/sys/kernel/printk; modprobe lab_selftest fault=warn";
    let output = Lab::run(&["sh", "-c", script]).output();
    assert_code(&output, 1);
    assert!(text(&output.stderr).contains("by a warning"), "{}", text(&output.stderr));
}

fn reports_every_fault(run: impl Fn(&[&str]) -> Lab) {
    // In one boot: each of these leaves a kernel that goes on. A report of KASAN ends lockdep. The
    // module stays for the names in kmemleak's report.
    let script = "for fault in lockdep sleep warn ubsan dma kasan; do
        modprobe lab_selftest fault=$fault && modprobe -r lab_selftest || exit 3
    done
    modprobe lab_selftest fault=kmemleak";
    let output = run(&["sh", "-c", script]).output();
    assert_code(&output, 1);
    let said = text(&output.stderr);
    for words in [
        ["WARNING: ", "fault_warn"],
        ["UBSAN: shift-out-of-bounds", "fault_ubsan"],
        ["check_unmap+", "fault_dma"],
        ["KASAN: slab-out-of-bounds", "fault_kasan"],
        ["sleeping function called from invalid context", "fault_sleep"],
        ["unreferenced object", "fault_kmemleak"],
        ["possible circular locking dependency", "fault_lockdep"],
    ] {
        for word in words {
            assert!(said.contains(word), "no {word} in {said}");
        }
    }
    assert_reported(run, "bug", &["kernel BUG at ", "fault_bug"]);
}

#[test]
#[ignore = "needs the lab"]
fn the_debug_kernel_reports_every_fault() {
    reports_every_fault(Lab::debug);
}

#[test]
#[ignore = "needs the lab"]
fn a_guest_for_arm64_reports_every_fault() {
    ready(&DEBUG_ARM64, &["build", "--arch", "arm64", "--debug"]);
    reports_every_fault(|command| {
        Lab::new(&[&["run", "--arch", "arm64", "--debug", "--"], command].concat())
    });
}

#[test]
#[ignore = "needs the lab"]
fn the_race_kernel_reports_a_data_race() {
    let race = |arguments: &[&str]| Lab::new(&[&["run", "--race", "--"], arguments].concat());
    assert_reported(race, "race", &["KCSAN: data-race", "fault_race", "race_count"]);
}

#[test]
#[ignore = "needs the lab"]
fn a_good_run_of_the_debug_kernel_is_good() {
    let output = Lab::debug(&["sh", "-c", "modprobe lab_selftest && modprobe -r lab_selftest"]);
    let output = output.output();
    assert_code(&output, 0);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

// Hosts where it does not work

/// A PATH with a QEMU of our own in front.
fn with_qemu(folder: &Path, script: &str) -> String {
    let qemu = folder.join("qemu-system-x86_64");
    fs::write(&qemu, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
#[ignore = "needs the lab"]
fn a_guest_that_does_not_boot_is_an_error_with_its_console() {
    let folder = tempfile::tempdir().unwrap();
    // virtme-ng asks it for its version and devices first.
    let path = with_qemu(
        folder.path(),
        "case \"$*\" in *-kernel*) echo no way today >&2; exit 1 ;; esac\n\
         exec /usr/bin/qemu-system-x86_64 \"$@\"",
    );
    let start = Instant::now();
    let output = Lab::new(&["run", "--accel", "tcg", "--", "true"])
        .with(|command| _ = command.env("PATH", path))
        .output();
    assert_code(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("no way today") && said.contains("it went down"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
#[ignore = "needs the lab"]
fn a_kvm_that_hangs_is_tried_once() {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        eprintln!("no /dev/kvm that can be opened: there is nothing to try");
        return;
    }
    let cache = cache_with(&["source", "kernel", "modules", "tarball.json"]);
    let folder = tempfile::tempdir().unwrap();
    let tried = folder.path().join("tried");
    let path = with_qemu(
        folder.path(),
        &format!(
            "case \"$*\" in *accel=kvm*) echo once >>{}; exec sleep 1000 ;; esac\n\
             exec /usr/bin/qemu-system-x86_64 \"$@\"",
            tried.display()
        ),
    );
    for _ in 0..2 {
        let output = Lab::run(&["sh", "-c", "echo $BUSBAR_ACCELERATOR"])
            .with(|command| _ = command.env("PATH", &path).env("BUSBAR_CACHE", cache.path()))
            .output();
        assert_code(&output, 0);
        assert_eq!(text(&output.stdout), "tcg\n");
    }
    assert_eq!(fs::read_to_string(&tried).unwrap(), "once\n");
}

/// QEMU emulates AMD's virtualisation, so the guest has a KVM that works, by which the lab boots a guest in the guest.
#[test]
#[ignore = "needs the lab"]
fn a_kvm_that_works_is_tried_once_and_used() {
    ready(&RELEASE, &["build"]);
    ready(&STOCK, &["build", "--stock"]);
    // Emulated twice, it is slow. The processor that KVM offers here has an XSAVE area of another size than Linux expects.
    // With a guest of its own, Linux changes its code as it runs, and QEMU 7.2 may then execute a breakpoint that is
    // gone ("Oops: int3"), if it emulates several processors.
    let outer =
        "run --stock --accel tcg --cpus 1 --memory 3G --timeout 3000 --kernel-option noxsave --";
    let inner = "lab run --memory 1G --cpus 1 -- sh -c \
                 'echo $BUSBAR_ACCELERATOR; dmesg | grep -o \"Hypervisor detected: KVM\"'";
    let busbar = env!("CARGO_BIN_EXE_busbar-dev");
    // A second trial would fail.
    let [first, second] =
        ["1500", "1"].map(|time| format!("BUSBAR_KVM_TRIAL={time} {busbar} {inner}"));
    let script = format!("set -e; modprobe kvm_amd; {first}; {second}");
    let arguments: Vec<_> = outer.split(' ').chain(["sh", "-c", &script]).collect();
    let output = Lab::new(&arguments).output();
    assert_code(&output, 0);
    assert_eq!(text(&output.stdout), "kvm\nHypervisor detected: KVM\n".repeat(2));
}
