//! The fuzzer's program for the lab's guest.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use clap::Parser;
use fuzz_kernel::calls;
use fuzz_kernel::fuzzer::{Fuzzer, Options};

/// Fuzzes the system calls of Busbar's kernel parts, guided by coverage.
///
/// For the debug kernel of the lab: `make fuzz-kernel`.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// Ignore kernel reports that contain this text
    #[arg(long, value_name = "TEXT", global = true)]
    known: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Fuzz until the time is over or the kernel reports a fault
    Run {
        /// Folder of the corpus
        folder: PathBuf,
        /// Duration in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of the random numbers; chosen at random by default
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run the sequence of a file and print the results and the coverage of its calls
    Replay {
        /// File of a sequence, such as report-0/0.seq
        file: PathBuf,
        /// Number of runs
        #[arg(long, default_value_t = 1)]
        times: u32,
    },
    /// Print the shortest sequence that still makes the kernel report a fault
    Minimise {
        /// File of a sequence, such as report-0/0.seq
        file: PathBuf,
    },
    /// List the calls that have descriptions
    Calls,
}

#[allow(clippy::print_stdout)]
fn perform(arguments: Arguments) -> Result<()> {
    let known = arguments.known;
    match arguments.verb {
        Verb::Run { folder, seconds, seed } => {
            let seed = seed.unwrap_or_else(|| fastrand::u64(..));
            println!("seed {seed}");
            let time = Duration::from_secs(seconds);
            Fuzzer::new(known.clone())?.run(&Options { folder, time, seed, known })
        }
        Verb::Replay { file, times } => {
            print!("{}", Fuzzer::new(known)?.replay(&file, times)?);
            Ok(())
        }
        Verb::Minimise { file } => {
            print!("{}", Fuzzer::new(known)?.minimise(&file)?);
            Ok(())
        }
        Verb::Calls => {
            for call in calls::all() {
                println!("{}", call.name);
            }
            Ok(())
        }
    }
}

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    match perform(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
