//! `busbar-dev`: the verbs of `busbar` for those who develop with Busbar or Busbar itself.
//!
//! `busbar` executes this program when one of these verbs is called ([`busbar_cli::developers`]).

mod bench;
mod generate;
mod lab;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use busbar::Result;
use busbar_cli::developers;
use clap::{Command, CommandFactory, Parser, Subcommand};

/// The verbs of busbar for developers; call them as verbs of busbar.
#[derive(Parser)]
#[command(name = "busbar-dev", bin_name = "busbar", display_name = "busbar", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the lab kernel and run programs in it
    Lab(lab::Args),
    /// Measure a path: the usual way and Busbar's, in turn
    Bench(bench::Args),
    /// Show what was measured as one page, and update the tables of the documentation
    Report(report::Args),
    /// Generate manual pages and completions
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    busbar_cli::exit_code(match Cli::parse().verb {
        Verb::Lab(args) => lab::run(args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Generate(args) => generate::run(&args),
    })
}

/// The command line of `busbar` with everything below each verb, including these.
fn whole() -> Command {
    let own = Cli::command();
    busbar_cli::command().mut_subcommands(|verb| match own.find_subcommand(verb.get_name()) {
        Some(own) => own.clone().display_order(verb.get_display_order()),
        None => verb,
    })
}

/// The command `busbar`, which runs coprocessors.
fn busbar() -> Result<PathBuf> {
    developers::find("busbar")
        .map_err(|error| error.help("busbar-dev is installed beside it: make install"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_board_says_of_these_verbs_what_they_do() {
        let (board, own) = (busbar_cli::command(), Cli::command());
        let about = |command: &Command| command.get_about().map(ToString::to_string);
        for verb in own.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let named = board.find_subcommand(verb.get_name()).expect("the same verbs");
            assert_eq!(about(named), about(verb));
        }
    }

    /// `command` and all visible commands below it.
    fn visible(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().filter(|it| !it.is_hide_set());
        let below = below.filter(|it| it.get_name() != "help");
        [command].into_iter().chain(below.flat_map(visible)).collect()
    }

    fn all() -> Command {
        let mut command = whole();
        command.build();
        command
    }

    /// The words of `busbar` commands in `text`, up to a shell operator.
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
                let parsed = whole().try_get_matches_from(&words);
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
