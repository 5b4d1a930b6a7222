//! `busbar`: one command for every path.
//!
//! Exit codes: 0, 1 for a failure, 2 for usage.

mod bench;
mod bulk;
mod coprocessor;
mod doctor;
mod endpoint;
mod lab;
mod progress;
mod receive;
mod run;
mod stream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The short, low-resistance path for data on Linux.
#[derive(Parser)]
#[command(name = "busbar", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What this kernel and machine offer for each path, and what Busbar will use
    Doctor(doctor::Args),
    /// Build the lab kernel and run programs in it
    Lab(lab::Args),
    /// Be the core of a virtual coprocessor
    Coprocessor(coprocessor::Args),
    /// Talk to a coprocessor through an endpoint
    Endpoint(endpoint::Args),
    /// Send blocks of any length to a coprocessor, and receive them
    Bulk(bulk::Args),
    /// Pass samples on: from a converter, the network or a recording to another
    Stream(stream::Args),
    /// Take data from the network, into device memory where that is to be had
    Receive(receive::Args),
    /// Run a pipeline: sources, stages and sinks that a file joins
    Run(run::Args),
    /// Measure a path: the usual way and Busbar's, in turn
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Lab(args) => lab::run(args),
        Verb::Coprocessor(args) => coprocessor::run(args),
        Verb::Endpoint(args) => endpoint::run(args),
        Verb::Bulk(args) => bulk::run(&args),
        Verb::Stream(args) => stream::run(args),
        Verb::Receive(args) => receive::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Bench(args) => bench::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("busbar: {error}");
        ExitCode::FAILURE
    })
}
