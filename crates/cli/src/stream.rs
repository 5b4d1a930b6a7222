//! `busbar stream`.

mod ends;
mod input;
mod output;
mod pass;
mod picture;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use busbar::block::Memory;
use busbar::stream::Interface;
use busbar::stream::net::Options;

use self::ends::{From, To};
use crate::endpoint::seconds;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Sources:
  iio:NAME                a converter, by the name of its IIO device
  synth:PATTERN?KEY=…     made here: counter, sine or noise; rate=1M, channels=1, frequency=1k
  tcp-listen:[HOST:]PORT  another `busbar stream … tcp:HOST:PORT`
  file:NAME               a SigMF recording

Destinations:
  iio:NAME                a converter that transmits
  tcp:HOST:PORT           another `busbar stream tcp-listen:PORT …`
  file:NAME               a SigMF recording: NAME.sigmf-data and NAME.sigmf-meta
  null:                   nothing

Example, a sine over the network into a file, and a picture of it:
  busbar stream tcp-listen:4950 file:sine &
  busbar stream 'synth:sine?rate=1M&frequency=5k' tcp:localhost:4950 --count 1M
  busbar stream picture sine.sigmf-meta sine.png"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Where samples come from
    #[arg(value_name = "SRC", required = true)]
    from: Option<From>,
    /// Where they go to
    #[arg(value_name = "DST", required = true)]
    to: Option<To>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Draw the waveform of a recording
    Picture(picture::Args),
}

#[derive(clap::Args)]
struct Flags {
    /// Blocks of the stream
    #[arg(long, value_name = "N", default_value_t = 4)]
    blocks: usize,
    /// Bytes of a block, such as 65536, 64K or 1M; over the network, the sender says
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64K")]
    block_len: usize,
    /// Memory of the blocks: heap:NAME, pages, huge or memfd; by default the best for SRC and DST
    #[arg(long, value_name = "MEMORY")]
    memory: Option<Memory>,
    /// How to talk to the converter: dmabuf or fileio; by default the best that it offers
    #[arg(long, value_name = "NAME")]
    interface: Option<Interface>,
    /// Channels to take; by default all voltages
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    channels: Vec<String>,
    /// End with the block that has the sample of this number, such as 1000 or 5M (of 1000)
    #[arg(long, value_name = "SAMPLES", value_parser = count)]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Send a check sum with each block
    #[arg(long)]
    checksum: bool,
    /// Verify every sample; what does not fit is a failure
    #[arg(long, value_name = "PATTERN")]
    expect: Option<Expected>,
    /// Seconds to go on without a connection
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    patience: Duration,
    /// Print one JSON object a line: progress each second, and a summary
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
        (None, Some(from), Some(to)) => pass::run(&from, &to, &args.flags)?,
        // The command line does not let this through.
        (None, ..) => return Ok(ExitCode::from(2)),
    }
    Ok(ExitCode::SUCCESS)
}

impl Flags {
    fn net(&self) -> Options {
        let (checksum, patience) = (self.checksum, self.patience);
        Options { checksum, patience, ..Options::default() }
    }
}

/// A number of bytes such as 65536, 64K, 1M, 2G.
pub fn size(text: &str) -> Result<usize, String> {
    scaled(text, 1024)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| "allowed: bytes from 1 on, such as 4096, 64K, 1M or 1G (of 1024)".to_owned())
}

/// A number of samples such as 1000, 5k, 2M.
fn count(text: &str) -> Result<u64, String> {
    scaled(text, 1000)
        .ok_or_else(|| "allowed: samples from 1 on, such as 500, 10k, 1M (of 1000)".to_owned())
}

fn scaled(text: &str, kilo: u64) -> Option<u64> {
    let (number, power) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1),
        b'M' => (&text[..text.len() - 1], 2),
        b'G' => (&text[..text.len() - 1], 3),
        _ => (text, 0),
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|number| digits && *number > 0)?;
    number.checked_mul(kilo.pow(power))
}

/// Where a path of the command line leads to.
fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("4096"), size("64K"), size("64k")), (Ok(4096), Ok(65_536), Ok(65_536)));
        assert_eq!((size("1M"), size("2G")), (Ok(1 << 20), Ok(2 << 30)));
        assert_eq!((count("5k"), count("1M")), (Ok(5000), Ok(1_000_000)));
        for bad in ["", "0", "-1", "+1", "K", "1.5M", "1T", "64KB", "18446744073709551615K", "1é"]
        {
            assert!(size(bad).unwrap_err().contains("64K"), "{bad}");
            assert!(count(bad).unwrap_err().contains("10k"), "{bad}");
        }
    }
}
