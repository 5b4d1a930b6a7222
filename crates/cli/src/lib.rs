//! `busbar`: one command for every path.
//!
//! Exit codes: 0, 1 for a failure, 2 for usage, 141 once the reader of standard output has left.
//!
//! What only developers need is in a command of its own, `busbar-dev`: [`developers`].

// Sums of times that panic; see clippy.toml.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod bulk;
mod coprocessor;
pub mod developers;
mod doctor;
mod drive;
mod endpoint;
pub mod print;
mod progress;
pub mod quantity;
mod receive;
mod run;
mod serve;
mod stream;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use busbar::Result;
use clap::{CommandFactory, Parser, Subcommand};

/// Busbar moves data between a coprocessor, an ADC or DAC and TCP on Linux with few or no copies.
#[derive(Parser)]
#[command(
    name = "busbar",
    version,
    after_help = "\
Example, from nothing to a coprocessor that answers:
  busbar doctor
  busbar lab shell
  modprobe vcoproc; modprobe rpmsg_eptfd replace=1
  busbar coprocessor run --service echo &
  busbar endpoint ping echo -c 3"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What this kernel and machine offer for each path, and what Busbar will use
    Doctor(doctor::Args),
    /// Build the lab kernel and run programs in it
    Lab,
    /// Run the firmware of a virtual coprocessor as a process
    Coprocessor(coprocessor::Args),
    /// Talk to a coprocessor through an endpoint
    Endpoint(endpoint::Args),
    /// Send blocks of any length to a coprocessor, and receive them
    Bulk(bulk::Args),
    /// Pass samples from a converter, the network or a recording to another
    Stream(Box<stream::Args>),
    /// Receive data from the network, into device memory where that is possible
    Receive(receive::Args),
    /// Run a pipeline: sources, stages and sinks that a TOML file describes
    Run(run::Args),
    /// Serve IIO devices, or other sources, to programs that use libiio
    Serve(serve::Args),
    /// Measure a path: the usual way and Busbar's, in turn
    Bench,
    /// Show what was measured as one page, and update the tables of the documentation
    Report,
}

/// Runs the command that this process was started as.
#[must_use]
pub fn main() -> ExitCode {
    exit_code(execute(&env::args_os().skip(1).collect::<Vec<_>>()))
}

/// The exit code of a program that `SIGPIPE` has ended, as a shell tells it.
const PIPE: u8 = 128 + 13;

/// The exit code of a command: its own, or 1 after its error was printed on standard error. Nothing is printed if the
/// reader of standard output has left.
#[must_use]
pub fn exit_code(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if print::has_reader_left(&error) {
            return ExitCode::from(PIPE);
        }
        print::complain(&format!("busbar: {error}"));
        ExitCode::FAILURE
    })
}

/// The command line. The developers' verbs are named in it, without their arguments.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

fn execute(arguments: &[OsString]) -> Result<ExitCode> {
    if developers::are_meant(arguments) {
        return Err(developers::become_theirs(arguments));
    }
    match Cli::parse().verb {
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Coprocessor(args) => coprocessor::run(args),
        Verb::Endpoint(args) => endpoint::run(args),
        Verb::Bulk(args) => bulk::run(&args),
        Verb::Stream(args) => stream::run(*args),
        Verb::Receive(args) => receive::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Lab | Verb::Bench | Verb::Report => Err(developers::become_theirs(arguments)),
    }
}
