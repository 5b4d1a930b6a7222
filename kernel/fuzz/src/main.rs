//! The fuzzer as a program for the lab's guest.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use clap::Parser;
use fuzz_kernel::calls;
use fuzz_kernel::fuzzer::{Fuzzer, Options};

/// Calls the kernel's parts of Busbar in every order, and keeps what ran through something new.
///
/// For the debug kernel of the lab: `make fuzz-kernel`.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// A report of the kernel that has this text in it does not count
    #[arg(long, value_name = "TEXT", global = true)]
    known: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Fuzz until the time is over or the kernel reports something
    Run {
        /// Where sequences are kept
        folder: PathBuf,
        /// How long
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Where chance begins; otherwise anywhere
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run the sequence of a file, and show what each call returned and what was run through
    Replay {
        /// Such as report-0/0.seq
        file: PathBuf,
        /// How often
        #[arg(long, default_value_t = 1)]
        times: u32,
    },
    /// Show the shortest sequence that still makes the kernel report something
    Minimise {
        /// Such as report-0/0.seq
        file: PathBuf,
    },
    /// List the calls that are described
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
