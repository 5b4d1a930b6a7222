//! `busbar doctor`: asks this kernel and machine what they offer for each path.
//!
//! Every answer comes from a test: a call that is made, a device that is opened, a file
//! that is there. Nothing is concluded from a version number.

mod bulk;
mod endpoint;
mod lab;
mod machine;
mod receive;
mod stream;
mod wait;

use std::fmt::Write as _;
use std::process::ExitCode;

use busbar::Result;
use rustix::io::Errno;
use serde::Serialize;

use self::machine::Machine;
use crate::print::{print_json, print_line};

#[derive(clap::Args)]
#[command(after_help = "\
Example, what would improve the path of large data here:
  busbar doctor
  busbar doctor --json | jq -r '.paths[] | select(.path == \"bulk\") | .advice[]'

Each answer is yes or no, and comes from a call, a device or a file. `uses` is what the library chooses,
`to do` is what would improve it. Nothing is changed.")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answers for one path, what Busbar uses and what could be improved.
#[derive(Debug, Serialize)]
struct Diagnosis {
    path: &'static str,
    about: &'static str,
    findings: Vec<Finding>,
    uses: Vec<String>,
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Finding {
    asked: String,
    available: bool,
    answer: String,
}

#[derive(Serialize)]
struct Report<'a> {
    kernel: &'a str,
    machine: &'a str,
    paths: &'a [Diagnosis],
    lab: &'a Diagnosis,
}

impl Diagnosis {
    fn new(path: &'static str, about: &'static str) -> Self {
        Self { path, about, findings: Vec::new(), uses: Vec::new(), advice: Vec::new() }
    }

    /// Notes an answer and returns whether it was yes.
    fn note(&mut self, asked: impl Into<String>, answer: Answer) -> bool {
        let (available, answer) = match answer {
            Ok(yes) => (true, yes),
            Err(no) => (false, no),
        };
        self.findings.push(Finding { asked: asked.into(), available, answer });
        available
    }

    fn uses(&mut self, what: impl Into<String>) {
        self.uses.push(what.into());
    }

    fn advise(&mut self, what: impl Into<String>) {
        self.advice.push(what.into());
    }

    fn advise_all(&mut self, what: impl IntoIterator<Item = String>) {
        self.advice.extend(what);
    }
}

/// Yes or no, and the details.
type Answer = Result<String, String>;

/// Always succeeds, unless it cannot print.
pub fn run(args: &Args) -> Result<ExitCode> {
    let machine = Machine::this();
    let (paths, lab) = (paths(&machine), lab::diagnose(&machine));
    if args.json {
        let (kernel, name) = (machine.kernel(), machine.name());
        print_json(&Report { kernel, machine: name, paths: &paths, lab: &lab })?;
    } else {
        print_line(&format!("kernel {} on {}\n", machine.kernel(), machine.name()))?;
        print_line(paths.iter().chain([&lab]).map(text).collect::<String>().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn paths(machine: &Machine) -> [Diagnosis; 5] {
    [
        endpoint::diagnose(machine),
        bulk::diagnose(machine),
        wait::diagnose(),
        stream::diagnose(machine),
        receive::diagnose(machine),
    ]
}

fn no(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}: {}\n", diagnosis.path, diagnosis.about);
    let width = diagnosis.findings.iter().map(|it| it.asked.chars().count()).max().unwrap_or(0);
    for Finding { asked, available, answer } in &diagnosis.findings {
        let mark = if *available { "yes" } else { "no " };
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {mark}  {asked:width$}  {answer}");
    }
    for (label, lines) in [("uses", &diagnosis.uses), ("to do", &diagnosis.advice)] {
        for line in lines {
            let _ = writeln!(text, "  {label}: {line}");
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shows_questions_answers_and_what_follows() {
        let mut diagnosis = Diagnosis::new("endpoint", "messages");
        assert!(diagnosis.note("control devices", Ok("/dev/rpmsg_ctrl0".into())));
        assert!(!diagnosis.note("kvm", Err("none".into())));
        diagnosis.uses("descriptors");
        diagnosis.advise("nothing");
        let expected = "\
endpoint: messages
  yes  control devices  /dev/rpmsg_ctrl0
  no   kvm              none
  uses: descriptors
  to do: nothing

";
        assert_eq!(text(&diagnosis), expected);
    }

    #[test]
    fn every_path_says_what_it_uses() {
        let machine = Machine::this();
        for diagnosis in paths(&machine) {
            assert!(!diagnosis.findings.is_empty() && !diagnosis.uses.is_empty(), "{diagnosis:?}");
        }
    }
}
