//! `busbar stream`.

mod list;
mod pass;
mod picture;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use busbar::block::Memory;
use busbar::pipeline::{SinkKind, SourceKind};
use busbar::stream::Interface;
use clap::value_parser;

use crate::quantity::{count, seconds, size};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Sources:
  iio:NAME                a converter, by the name of its IIO device
  iio:NAME@ip:HOST[:PORT] the same on another machine, where `iiod` or `busbar serve` runs
  synth:PATTERN?KEY=…     generated: counter, sine or noise; rate=1M, channels=1, frequency=1k
  tcp-listen:[HOST:]PORT  another `busbar stream … tcp:HOST:PORT`
  receive:DEVICE:ADDRESS:PORT  the same, into memory that the network device fills; or `host`
  usb:VID:PID[:SERIAL]    a USB device on which `busbar stream … usb:` runs
  usb:                    a USB host on which `busbar stream … usb:VID:PID` runs
  file:NAME               a SigMF recording
  endpoint:SERVICE?KEY=…  messages of a coprocessor; type=ci16_le, channels=1
  …?silence=10s           behind tcp-listen:…, tcp:… and …@ip:HOST: how long the peer may be silent

Destinations:
  iio:NAME                a converter that transmits
  iio:NAME@ip:HOST[:PORT] the same on another machine
  tcp:HOST:PORT           another `busbar stream tcp-listen:PORT …`
  iiod:[[ADDRESS:]PORT]   programs of libiio, such as iio_readdev
  usb:, usb:VID:PID       a USB host or device, on which `busbar stream usb:… …` runs;
                          usb:?raw sends samples alone, for any program with libusb
  file:NAME               a SigMF recording: NAME.sigmf-data and NAME.sigmf-meta
  endpoint:SERVICE, bulk:TRANSPORT  a coprocessor
  null:, verify:, verify:counter    nothing; with verify:, every sample has to be right

Several sources and destinations, stages, and restarts after a crash: busbar run

Example, a sine over the network into a file, and a picture of it:
  busbar stream tcp-listen:4950 file:sine &
  busbar stream 'synth:sine?rate=1M&frequency=5k' tcp:localhost:4950 --count 1M
  busbar stream picture sine.sigmf-meta sine.png"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Source of the samples
    #[arg(value_name = "SRC", required = true)]
    from: Option<SourceKind>,
    /// Destination of the samples
    #[arg(value_name = "DST", required = true)]
    to: Option<SinkKind>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Draw the waveform of a recording
    Picture(picture::Args),
    /// List the IIO devices of this machine, or of another one
    List(list::Args),
}

#[derive(clap::Args)]
struct Flags {
    /// Blocks of the stream [default: as many as have 1 MiB together, from 4 to 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    blocks: Option<u16>,
    /// Bytes of a block, such as 65536, 64K or 1M; over the network, the sender's setting counts
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64K")]
    block_len: usize,
    /// Memory of the blocks: heap:NAME, pages, huge or memfd [default: the best for SRC and DST]
    #[arg(long, value_name = "MEMORY")]
    memory: Option<Memory>,
    /// Bytes that a sender to tcp-listen: may use for its blocks; one that needs more is refused
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64M")]
    memory_limit: usize,
    /// Interface to the converter: dmabuf or fileio [default: the best that its driver supports]
    #[arg(long, value_name = "NAME")]
    interface: Option<Interface>,
    /// Channels to use [default: all voltages]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    channels: Vec<String>,
    /// End with the block that has the sample of this number, such as 1000 or 5M (of 1000)
    #[arg(long, value_name = "SAMPLES", value_parser = count)]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Send a checksum with each block
    #[arg(long)]
    checksum: bool,
    /// Verify every sample; a wrong one is a failure
    #[arg(long, value_name = "PATTERN")]
    expect: Option<Expected>,
    /// Seconds to wait for a lost connection to come back
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    patience: Duration,
    /// Announce iiod: on the local network
    #[arg(long)]
    announce: bool,
    /// Print one JSON object per line: progress each second, and a summary
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Expected {
    /// The number of the sample, 16 bits in each of `voltage0_i`, `voltage0_q`, `voltage1_i`, `voltage1_q`
    Counter,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match (args.verb, args.from, args.to) {
        (Some(Verb::Picture(args)), ..) => picture::run(&args)?,
        (Some(Verb::List(args)), ..) => list::run(&args)?,
        (None, Some(from), Some(to)) => pass::run(from, to, &args.flags)?,
        // The argument parser refuses this.
        (None, ..) => return Ok(ExitCode::from(2)),
    }
    Ok(ExitCode::SUCCESS)
}
