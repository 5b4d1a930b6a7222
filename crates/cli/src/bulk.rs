//! `busbar bulk`.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::bulk::packet::crc16;
use busbar::bulk::{Link, Transfer, Transport, Wanted};
use busbar::endpoint::{Controller, ControllerInfo};
use busbar::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::print::{complain, print_json, print_line, stdout_failed};
use crate::quantity::seconds;

#[derive(clap::Args)]
#[command(after_help = "\
Example, with `busbar coprocessor run --service bulk` on the other side:
  busbar bulk send photo.raw
  busbar bulk receive copy.raw")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Send a file as one block, and wait until the coprocessor has received and checked it
    Send(Send),
    /// Receive one block into a file
    Receive(Receive),
}

#[derive(clap::Args)]
#[command(after_help = "\
Example, cut into messages, and as a buffer that is not copied:
  busbar bulk send photo.raw
  busbar bulk send photo.raw --transport buffer")]
struct Send {
    /// The file, or `-` for standard input
    file: PathBuf,
    #[command(flatten)]
    route: Route,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example, the last block that was sent, and a megabyte of a known pattern:
  busbar bulk receive copy.raw
  busbar bulk receive - --length 1000000 | sha256sum")]
struct Receive {
    /// The file, or `-` for standard output
    file: PathBuf,
    /// Ask for this many bytes of a pattern (byte I is I mod 256), instead of the last block sent
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    length: Option<u32>,
    #[command(flatten)]
    route: Route,
}

/// The coprocessor, and what carries the blocks.
#[derive(clap::Args)]
struct Route {
    /// Control device [default: the only one of this machine]
    #[arg(long, value_name = "PATH")]
    controller: Option<PathBuf>,
    /// What carries the block: tty, netlink, node, fd or buffer
    #[arg(long, default_value_t = Transport::Fd)]
    transport: Transport,
    /// Time limit for the whole transfer, in seconds [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Refuse to receive a block of more bytes, unless more were sent or asked for
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is printed at the end.
#[derive(Serialize)]
struct Summary {
    bytes: usize,
    crc16: u16,
    transport: String,
    seconds: f64,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Send(args) => send(args)?,
        Verb::Receive(args) => receive(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn send(args: &Send) -> Result<()> {
    let block = read(&args.file)?;
    let mut link = args.route.open()?;
    let start = Instant::now();
    args.route.transfer(|transfer| link.send_with(&block, transfer))?;
    args.route.report("sent", &block, start, is_stdio(&args.file))
}

fn receive(args: &Receive) -> Result<()> {
    let wanted = args.length.map_or(Wanted::Last, Wanted::Pattern);
    let mut link = args.route.open()?;
    let start = Instant::now();
    let block = args.route.transfer(|transfer| link.recv_with(wanted, transfer))?;
    write(&args.file, &block)?;
    args.route.report("received", &block, start, is_stdio(&args.file))
}

impl Route {
    fn open(&self) -> Result<Link> {
        let path = match &self.controller {
            Some(path) => path.clone(),
            None => only(&Controller::list()?)?,
        };
        Link::open(&Controller::open(path)?, self.transport)
    }

    fn transfer<T>(&self, run: impl FnOnce(&mut Transfer<'_>) -> Result<T>) -> Result<T> {
        let bar = ProgressBar::new(0).with_style(
            ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let mut show = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let mut transfer = Transfer::new().limit(self.limit).progress(&mut show);
        if let Some(timeout) = self.timeout {
            transfer = transfer.timeout(timeout);
        }
        let done = run(&mut transfer);
        bar.finish_and_clear();
        done
    }

    /// `beside`: the block is written to standard output, so this goes to standard error.
    fn report(&self, what: &str, block: &[u8], start: Instant, beside: bool) -> Result<()> {
        let seconds = start.elapsed().as_secs_f64();
        let (bytes, crc16) = (block.len(), crc16(block));
        let transport = self.transport.to_string();
        if self.json && !beside {
            return print_json(&Summary { bytes, crc16, transport, seconds });
        }
        let line =
            format!("{what} {bytes} bytes, crc16 {crc16:#06x}, by {transport} in {seconds:.3} s");
        if beside {
            complain(&line);
            return Ok(());
        }
        print_line(&line)
    }
}

fn only(all: &[ControllerInfo]) -> Result<PathBuf> {
    match all {
        [one] => Ok(one.path.clone()),
        [] => {
            let why = io::Error::new(io::ErrorKind::NotFound, "there is none");
            Err(Error::new("find", "an rpmsg control device", why)
                .help("is a coprocessor running? see `busbar doctor`"))
        }
        several => {
            let paths: Vec<_> = several.iter().map(|one| one.path.display().to_string()).collect();
            let why = io::Error::new(io::ErrorKind::InvalidInput, "there are several");
            Err(Error::new("choose", "a control device", why)
                .help(format!("give --controller {}", paths.join(" or "))))
        }
    }
}

fn is_stdio(path: &Path) -> bool {
    path == Path::new("-")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let done = if is_stdio(path) {
        io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        fs::read(path).map(|read| bytes = read)
    };
    done.map_err(|why| Error::new("read", path.display().to_string(), why))?;
    if bytes.is_empty() {
        return Err(Error::invalid("a block to send", "0 bytes", "1 byte or more"));
    }
    Ok(bytes)
}

/// Writes a file completely or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |why| Error::new("write", path.display().to_string(), why);
    if is_stdio(path) {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            return Err(Error::invalid("the file", "-", "a file; standard output is a terminal"));
        }
        return out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_failed);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let done = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if done.is_err() {
        let _ = fs::remove_file(&partial);
    }
    done.map_err(failed)
}
