//! `languages`: the cost of consuming a stream from other languages than Rust.
//!
//! | case | baseline | measured |
//! |---|---|---|
//! | `c` | a program in Rust | the same program in C, with libbusbar |
//! | `python` | a program in Rust | the same program in Python |
//! | `pylibiio` | the same program in Python, with pylibiio, which has the samples as a copy | that in Python |
//!
//! Each program opens the same source, takes a block to warm up, and then so many others: it begins access to a
//! block, reads its first sample, and gives it back. It prints one JSON object ([`Outcome`]): how long that took, and
//! the sum of these samples, which tells whether it has seen all of them. Opening is not measured.
//!
//! A [`Consumer`] is one such program. It gets the name of the source, the length of a block, the number of blocks
//! that the source has, and how many to take. Those in Python get them by lines of their input, since Python takes
//! seconds to start in the lab.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use busbar::stream::{Source, StreamSetup};
use busbar::{Error, Result};
use rustix::io::Errno;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::clock::{Cost, cases, float, in_turn, now};
use crate::stream::{CHANNELS, CONVERTER, Converter, PATIENCE, SAMPLE, blocks};
use crate::{Case, Extent, Report};

/// Bytes of a block.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const C: &str = include_str!("languages/consume.c");
const PYTHON: &str = include_str!("languages/consume.py");
const PYLIBIIO: &str = include_str!("languages/consume_libiio.py");

/// What a consumer prints.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Time in microseconds.
    pub micros: f64,
    /// Processor time of the process, and of the kernel on its behalf, in microseconds.
    pub cpu_micros: f64,
    /// The wrapping sum of the first sample of each block, as 64 bits in the machine's order.
    pub sum: u64,
}

/// What is consumed.
#[derive(Clone, Debug)]
pub struct Work {
    /// The name of the source, whose samples count from 0.
    pub source: String,
    /// Bytes of a block.
    pub block_len: usize,
    /// Number of blocks that the source has.
    pub queue: usize,
    /// How many blocks are taken after the first one.
    pub blocks: usize,
}

impl Work {
    fn arguments(&self) -> [String; 4] {
        let Self { source, block_len, queue, blocks } = self;
        [source.clone(), block_len.to_string(), queue.to_string(), blocks.to_string()]
    }

    /// The sum of a consumer that has seen every block. Numbers begin at 0.
    fn sum(&self) -> u64 {
        let each = (self.block_len / SAMPLE) as u64;
        (1..=self.blocks as u64).fold(0, |sum, block| sum.wrapping_add(block * each))
    }
}

/// A program that consumes a stream.
pub struct Consumer {
    /// Its language, or what else it stands for.
    pub name: &'static str,
    /// The program and its first arguments.
    pub command: Vec<PathBuf>,
    /// The process, where one does all runs.
    process: Option<RefCell<Process>>,
}

impl Consumer {
    /// A program that is started for each run.
    #[must_use]
    pub fn new(name: &'static str, command: Vec<PathBuf>) -> Self {
        Self { name, command, process: None }
    }

    /// A program that is started now, and reads a line for each run.
    fn serving(name: &'static str, command: Vec<PathBuf>) -> Result<Self> {
        let process = Process::start(&command).map_err(|why| failed(name, why))?;
        Ok(Self { name, command, process: Some(RefCell::new(process)) })
    }

    /// Runs it, and checks that it has seen every block.
    ///
    /// # Errors
    ///
    /// If it fails, prints something else, or has missed a block.
    pub fn run(&self, work: &Work) -> Result<Outcome> {
        let failed = |why| failed(self.name, why);
        let output = match &self.process {
            Some(process) => process.borrow_mut().run(work),
            None => once(&self.command, work),
        };
        let outcome: Outcome = serde_json::from_slice(&output.map_err(failed)?)
            .map_err(|why| failed(io::Error::new(io::ErrorKind::InvalidData, why)))?;
        if outcome.sum != work.sum() {
            let text = format!("its sum is {}, not {}", outcome.sum, work.sum());
            return Err(failed(io::Error::other(text)));
        }
        Ok(outcome)
    }
}

fn failed(name: &str, why: io::Error) -> Error {
    Error::new("run", format!("the consumer in {name}"), why)
}

/// What a program prints.
fn once(command: &[PathBuf], work: &Work) -> io::Result<Vec<u8>> {
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]).args(work.arguments());
    let output = program.stderr(Stdio::inherit()).output()?;
    if output.status.success() { Ok(output.stdout) } else { Err(ended(output.status)) }
}

fn ended(status: std::process::ExitStatus) -> io::Error {
    io::Error::other(status.to_string())
}

/// A program that reads lines of its input, and prints a line for each.
struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(command: &[PathBuf]) -> io::Result<Self> {
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    fn run(&mut self, work: &Work) -> io::Result<Vec<u8>> {
        let input = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // If it has ended, it prints nothing, and its exit status tells more.
        let written = writeln!(input, "{}", work.arguments().join(" "));
        let mut line = Vec::new();
        self.output.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(ended(self.child.wait()?));
        }
        written.map(|()| line)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The consumer in Rust, which `busbar bench languages-consume` runs.
///
/// # Errors
///
/// Those of the source.
pub fn consume(work: &Work) -> Result<Outcome> {
    let setup = StreamSetup::new().blocks(work.queue).block_len(work.block_len).channels(CHANNELS);
    let source = Source::open(&work.source, &setup)?;
    let first = |source: &Source| {
        let late = || Error::new("receive from", work.source.clone(), Errno::TIMEDOUT);
        let samples = source.next_timeout(PATIENCE)?.ok_or_else(late)?;
        let (mut sample, read) = ([0; SAMPLE], samples.read()?);
        read.bytes().slice(..SAMPLE).copy_to(&mut sample);
        Ok::<_, Error>(u64::from_ne_bytes(sample))
    };
    first(&source)?;
    let times = || (now(ClockId::Monotonic), now(ClockId::ProcessCPUTime));
    let (start, mut sum) = (times(), 0_u64);
    for _ in 0..work.blocks {
        sum = sum.wrapping_add(first(&source)?);
    }
    let end = times();
    let micros = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e6;
    Ok(Outcome { micros: micros(start.0, end.0), cpu_micros: micros(start.1, end.1), sum })
}

/// Where the samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The library makes them, on any host.
    Synth,
    /// The virtual converter.
    Converter,
}

struct Plan {
    rows: usize,
    /// Bytes of one run, at least 16 blocks.
    bytes: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        match extent {
            Extent::Quick => Self { rows: 2, bytes: 1 << 20 },
            Extent::Normal => Self { rows: 5, bytes: 16 << 20 },
            Extent::Full => Self { rows: 11, bytes: 1 << 30 },
        }
    }
}

/// Runs the benchmark. `rust` is the command that calls [`consume`]; `progress` is called with the name of each step.
///
/// # Errors
///
/// A consumer's, or that of the compiler.
pub fn run(
    from: From,
    rust: &[PathBuf],
    extent: Extent,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let plan = Plan::of(extent);
    let source = match from {
        From::Synth => "synth:counter?channels=2".to_owned(),
        From::Converter => {
            let converter = Converter::find(CONVERTER)?;
            converter.set("sampling_frequency", "0")?;
            converter.set("pattern", "counter")?;
            format!("iio:{CONVERTER}")
        }
    };
    // Of the programs.
    let folder = tempfile::tempdir().map_err(|why| Error::new("make", "a folder", why))?;
    let rust = Consumer::new("Rust", rust.to_vec());
    let c = c(folder.path())?;
    let python = python(folder.path(), "Python", "busbar", PYTHON)?;
    let pylibiio = match from {
        From::Converter if python.is_some() => {
            self::python(folder.path(), "pylibiio", "iio", PYLIBIIO)?
        }
        _ => None,
    };
    let mut cases = Vec::new();
    for block_len in SIZES {
        let taken = (plan.bytes / block_len).max(16);
        let source = source.clone();
        let work = Work { source, block_len, queue: blocks(block_len), blocks: taken };
        let mut compare = |name, usual: &Consumer, other: &Consumer| {
            progress(&format!("{name}, blocks of {block_len} bytes"));
            cases.extend(compare(&plan, name, usual, other, &work)?);
            Ok::<_, Error>(())
        };
        compare("c", &rust, &c)?;
        if let Some(python) = &python {
            compare("python", &rust, python)?;
        }
        if let (Some(python), Some(pylibiio)) = (&python, &pylibiio) {
            compare("pylibiio", pylibiio, python)?;
        }
    }
    Ok(Report::new("languages", plan.rows, cases))
}

/// The cost of a block with both consumers, in turn: time and processor time.
fn compare(
    plan: &Plan,
    name: &str,
    usual: &Consumer,
    other: &Consumer,
    work: &Work,
) -> Result<[Case; 2]> {
    let cost = |consumer: &Consumer| {
        let Outcome { micros, cpu_micros, .. } = consumer.run(work)?;
        let each = 1.0 / float(work.blocks as u64);
        Ok(Cost { micros: micros * each, cpu_micros: cpu_micros * each })
    };
    let runs = in_turn(plan.rows, || cost(usual), || cost(other))?;
    let params = [("bytes", work.block_len as u64), ("blocks", work.blocks as u64)];
    Ok(cases(name, &params, "us/block", usual.name, &runs))
}

/// The consumer in C, compiled with the library beside this program, or else with the installed one.
fn c(folder: &Path) -> Result<Consumer> {
    let failed = |why| Error::new("compile", "the consumer in C", why);
    let mut arguments: Vec<OsString> = Vec::new();
    let built =
        std::env::current_exe().ok().and_then(|it| Some(it.parent()?.join("libbusbar_c.so")));
    if let Some(library) = built.filter(|library| library.exists()) {
        // The names by which programs load it: which one it is, depends on whether the first number is 0.
        let major = concat!("libbusbar.so.", env!("CARGO_PKG_VERSION_MAJOR"));
        let minor = format!("{major}.{}", env!("CARGO_PKG_VERSION_MINOR"));
        let name = folder.join(minor);
        for name in [&name, &folder.join(major)] {
            std::os::unix::fs::symlink(&library, name).map_err(failed)?;
        }
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c/include");
        let path = format!("-Wl,-rpath,{}", folder.display());
        arguments.extend(["-I".into(), headers.into(), name.into(), path.into()]);
    } else {
        let mut flags = Command::new("pkg-config");
        let flags = flags.args(["--cflags", "--libs", "busbar"]).output().map_err(failed)?;
        let flags = String::from_utf8_lossy(&flags.stdout);
        arguments.extend(flags.split_whitespace().map(OsString::from));
    }
    let help = "it needs cc, and libbusbar: make build install-c";
    let program =
        compile(folder, "consume", C, &arguments).map_err(|why| failed(why).help(help))?;
    Ok(Consumer::new("C", vec![program]))
}

/// Compiles a program. The error is what the compiler prints.
pub(crate) fn compile(
    folder: &Path,
    name: &str,
    text: &str,
    arguments: &[OsString],
) -> io::Result<PathBuf> {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
    let output = compiler.args(arguments).output()?;
    if output.status.success() {
        return Ok(program);
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// A consumer in Python that needs a package: in the interpreter that `BUSBAR_PYTHON` names, or in that of the package's
/// tests beside this program. `None` if neither is there.
fn python(
    folder: &Path,
    name: &'static str,
    package: &str,
    text: &str,
) -> Result<Option<Consumer>> {
    let tests = || {
        let built = std::env::current_exe().ok()?.parent()?.join("../python/bin/python");
        built.exists().then_some(built)
    };
    let Some(python) = std::env::var_os("BUSBAR_PYTHON").map(PathBuf::from).or_else(tests) else {
        eprintln!("left out: {name}: no Python with the package {package}: tests/python.sh build");
        return Ok(None);
    };
    let file = folder.join(format!("consume_{package}.py"));
    std::fs::write(&file, text).map_err(|why| failed(name, why))?;
    // `-u`: it answers at once.
    Consumer::serving(name, vec![python, "-u".into(), file]).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_all_blocks_but_the_first() {
        let source = "synth:counter?channels=2".to_owned();
        let work = Work { source, block_len: 4096, queue: 4, blocks: 10 };
        assert_eq!(consume(&work).unwrap().sum, work.sum());
        assert_eq!(work.sum(), 512 * 55);
    }

    #[test]
    fn a_consumer_that_misses_a_block_is_refused() {
        let source = "synth:counter?channels=2".to_owned();
        let work = Work { source, block_len: 4096, queue: 4, blocks: 10 };
        let says = |text: &str| {
            let command = ["echo", text].map(PathBuf::from).to_vec();
            // The arguments follow in the same line.
            Consumer::new("a shell", command).run(&work).unwrap_err().to_string()
        };
        assert!(says("no object").contains("the consumer in a shell"));
        let line = |sum: u64| {
            let text = format!("echo '{{\"micros\":1,\"cpu_micros\":1,\"sum\":{sum}}}'");
            let command = ["sh".into(), "-c".into(), text.into()].to_vec();
            Consumer::new("a shell", command).run(&work)
        };
        assert!(
            line(512 * 55 - 1).unwrap_err().to_string().contains("its sum is 28159, not 28160")
        );
        assert!(line(512 * 55).is_ok());
    }

    #[test]
    fn one_process_does_all_runs_and_its_end_is_an_error() {
        let source = "synth:counter?channels=2".to_owned();
        let work = Work { source, block_len: 4096, queue: 4, blocks: 10 };
        let script = r#"count=0
            while [ $count -lt 2 ] && read -r source len queue blocks; do
                count=$((count + 1))
                [ "$source $len $queue $blocks" = "synth:counter?channels=2 4096 4 10" ] || exit 4
                echo "{\"micros\":$count,\"cpu_micros\":1,\"sum\":28160}"
            done
            exit 3"#;
        let command = ["sh", "-c", script].map(PathBuf::from).to_vec();
        let consumer = Consumer::serving("a shell", command).unwrap();
        for count in [1.0, 2.0] {
            assert_eq!(consumer.run(&work).unwrap().micros.to_bits(), f64::to_bits(count));
        }
        assert!(consumer.run(&work).unwrap_err().to_string().contains("exit status: 3"));
    }
}
