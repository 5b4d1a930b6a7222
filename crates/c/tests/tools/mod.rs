//! Builds C programs with the library.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use busbar::stream::iiod::{Server, ServerSetup};

/// The folder of the crate.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

/// The shared library, as Cargo has built it for this test; `BUSBAR_C_LIBRARY` names another one.
pub fn library() -> PathBuf {
    if let Some(library) = std::env::var_os("BUSBAR_C_LIBRARY") {
        return library.into();
    }
    // The lab runs a copy of this program; OUT_DIR is target/debug/build/PACKAGE/out.
    let target = Path::new(env!("OUT_DIR")).ancestors().nth(3).unwrap();
    let library = target.join("deps/libbusbar_c.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// The name under which programs load the library.
pub const SONAME: &str = env!("BUSBAR_SONAME");

/// The library under that name, in `folder`.
fn beside(folder: &Path) -> PathBuf {
    let name = folder.join(SONAME);
    if !name.exists() {
        std::os::unix::fs::symlink(library(), &name).unwrap();
    }
    name
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a C program with all warnings, and `flags`, into `to`. It finds the library where that is now.
pub fn compile(source: &Path, flags: &[&str], to: &Path) {
    let folder = to.parent().unwrap();
    let library = beside(folder);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    // For another width: -m32.
    gcc.args(std::env::var("BUSBAR_C_FLAGS").iter().flat_map(|flags| flags.split_whitespace()));
    gcc.arg("-I").arg(self::folder().join("include")).arg("-I").arg(self::folder().join("tests/c"));
    gcc.arg("-o").arg(to).arg(source).arg(&library).arg("-lm");
    gcc.arg(format!("-Wl,-rpath,{}", folder.display()));
    let output = gcc.output().expect("gcc: see tests/parts.toml");
    assert!(output.status.success(), "{}: {}", source.display(), text(&output.stderr));
}

/// How a program is built and run.
#[derive(Clone, Copy)]
pub enum Way {
    Plain,
    Sanitizer,
    Valgrind,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Sanitizer, Self::Valgrind];

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Sanitizer => &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
            Self::Plain | Self::Valgrind => &[],
        }
    }

    /// Ways with the same flags have the same programs.
    fn kind(self) -> &'static str {
        if self.flags().is_empty() { "plain" } else { "sanitizer" }
    }

    pub fn command(self, program: &Path) -> Command {
        match self {
            Self::Plain | Self::Sanitizer => Command::new(program),
            Self::Valgrind => {
                let mut valgrind = Command::new("valgrind");
                valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
                valgrind.args(["--errors-for-leak-kinds=definite,indirect,possible"]);
                let known = folder().join("tests/valgrind.supp");
                valgrind.arg(format!("--suppressions={}", known.display()));
                valgrind.arg("--fair-sched=yes").arg(program);
                valgrind
            }
        }
    }
}

/// A program of `tests/c`, compiled into `scratch`.
pub fn build(name: &str, way: Way, scratch: &Path) -> PathBuf {
    let program = scratch.join(name);
    compile(&folder().join(format!("tests/c/{name}.c")), way.flags(), &program);
    program
}

/// A program of `tests/c`, compiled once for all ways with the same flags, and again after a change. The lab finds it where
/// the host has compiled it.
pub fn built(name: &str, way: Way) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(way.kind());
    let program = place.join(name);
    let changed = newest(&folder().join("tests")).max(newest(&folder().join("include")));
    if fs::metadata(&program).is_ok_and(|it| it.modified().unwrap() > changed) {
        return program;
    }
    fs::create_dir_all(&place).unwrap();
    build(name, way, &place)
}

/// The module for `SoapySDR`, built for a way, and its test programs: the folder in which they are.
pub fn built_soapy(way: Way) -> PathBuf {
    // Tests run at the same time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (place, from) = (soapy(way), folder().join("../../soapy"));
    fs::create_dir_all(&place).unwrap();
    let flags = ["-O2", "-g"].into_iter().chain(way.flags().iter().copied());
    let flags = flags.collect::<Vec<_>>().join(" ");
    let mut make = Command::new("make");
    make.arg("-C").arg(from).arg("all").arg("tests").arg(format!("BUILD={}", place.display()));
    // Sanitizers resolve their functions in the program.
    make.arg(format!("CXXFLAGS={flags}")).arg(format!("LDFLAGS={flags} -Wl,-z,undefs"));
    make.arg(format!("BUSBAR_CFLAGS=-I{}", folder().join("include").display()));
    let library = beside(&place);
    make.arg(format!("BUSBAR_LIBS={} -Wl,-rpath,{}", library.display(), place.display()));
    let output = make.output().expect("make: see tests/parts.toml");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    place
}

/// Where that is.
pub fn soapy(way: Way) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("soapy").join(way.kind())
}

/// When the last file in a folder was changed.
fn newest(folder: &Path) -> SystemTime {
    let time = |path: &Path| {
        if path.is_dir() { newest(path) } else { fs::metadata(path).unwrap().modified().unwrap() }
    };
    fs::read_dir(folder).unwrap().map(|entry| time(&entry.unwrap().path())).max().unwrap()
}

/// A server with one device, `adc`, as long as `run` takes.
pub fn served(run: impl FnOnce(&str)) {
    let setup = ServerSetup::new().listen("127.0.0.1:0").devices(["adc=synth:counter?rate=1M"]);
    let mut server = Server::open(&setup).unwrap();
    let address = server.address().to_string();
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let serving = thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            server.turn_timeout(Duration::from_millis(10)).unwrap();
        }
    });
    run(&address);
    is_over.store(true, Ordering::Relaxed);
    serving.join().unwrap();
}

/// Runs a program, which has to succeed, and returns what it has printed.
pub fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout
}
