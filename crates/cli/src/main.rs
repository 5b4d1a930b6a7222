//! `busbar`: one command for every path.
//!
//! Exit codes: 0, 1 for a failure, 2 for usage.

mod bench;
mod bulk;
mod coprocessor;
mod doctor;
mod drive;
mod endpoint;
mod generate;
mod lab;
mod print;
mod progress;
mod quantity;
mod receive;
mod report;
mod run;
mod stream;

use std::process::ExitCode;

use busbar::Result;
use clap::{Parser, Subcommand};

/// The short, low-resistance path for data on Linux.
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
    /// Show what was measured as one page, and keep the tables of the documentation true
    Report(report::Args),
}

fn main() -> ExitCode {
    execute().unwrap_or_else(|error| {
        print::complain(&format!("busbar: {error}"));
        ExitCode::FAILURE
    })
}

fn execute() -> Result<ExitCode> {
    let Cli { verb } = match generate::or_cli() {
        Ok(cli) => cli,
        Err(generate) => return generate::run(&generate),
    };
    match verb {
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Lab(args) => lab::run(args),
        Verb::Coprocessor(args) => coprocessor::run(args),
        Verb::Endpoint(args) => endpoint::run(args),
        Verb::Bulk(args) => bulk::run(&args),
        Verb::Stream(args) => stream::run(args),
        Verb::Receive(args) => receive::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Report(args) => report::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    /// `command` and all below it that a user is shown.
    fn visible(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().filter(|it| !it.is_hide_set());
        let below = below.filter(|it| it.get_name() != "help");
        [command].into_iter().chain(below.flat_map(visible)).collect()
    }

    fn all() -> Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    /// The words of `busbar` commands in `text`, up to what is the shell's.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let examples = text.lines().filter(|line| line.starts_with("  "));
        examples.filter_map(|line| Some(words(&line[line.find("busbar ")?..]))).collect()
    }

    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for letter in line.chars() {
            match (quote, letter) {
                (Some(open), _) if open == letter => quote = None,
                (None, '\'' | '"') => quote = Some(letter),
                (None, ' ') => words.push(String::new()),
                (None, '|' | '&' | '>' | '<' | ';') => break,
                _ => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_command_has_an_example_of_itself() {
        for command in visible(&all()) {
            let name = command.get_bin_name().unwrap_or("busbar").to_owned();
            let help = command.clone().render_long_help().to_string();
            let Some((_, example)) = help.split_once("\nExample") else {
                panic!("{name}: no example in its help\n{help}")
            };
            assert!(example.contains(&name), "{name}: not in its example\n{help}");
        }
    }

    #[test]
    fn every_example_is_a_command_that_is_understood() {
        let mut count = 0;
        for command in visible(&all()) {
            let help = command.clone().render_long_help().to_string();
            let (_, example) = help.split_once("\nExample").unwrap_or_default();
            for words in commands(example) {
                let parsed = Cli::try_parse_from(&words);
                assert!(parsed.is_ok(), "{words:?}: {}", parsed.err().unwrap());
                count += 1;
            }
        }
        assert!(count >= visible(&all()).len(), "{count}");
    }

    #[test]
    fn every_command_says_what_it_does_in_a_line_without_a_full_stop() {
        for command in visible(&all()).into_iter().skip(1) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && !about.contains('\n') && !about.ends_with('.'), "{about}");
        }
    }
}
