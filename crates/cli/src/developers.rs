//! The verbs of `busbar-dev`, the command of those who develop with Busbar or Busbar itself.
//!
//! A board needs no lab, benchmarks or report. `busbar` names these verbs in its
//! help, and is replaced by `busbar-dev` when one of them is called: the process stays the same, and
//! with it signals, streams and exit code.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use busbar::{Error, Result};

/// The developers' command.
pub const PROGRAM: &str = "busbar-dev";

/// Its verbs. `generate` makes manual pages and completions for installation; no help names it.
const VERBS: [&str; 4] = ["lab", "bench", "report", "generate"];

/// Whether a command line, without the program's name, is for `busbar-dev`.
#[must_use]
pub fn are_meant(arguments: &[OsString]) -> bool {
    let is_verb =
        |word: Option<&OsString>| VERBS.iter().any(|verb| word.is_some_and(|it| it == verb));
    match arguments.first() {
        Some(help) if help == "help" => is_verb(arguments.get(1)),
        first => is_verb(first),
    }
}

/// Replaces this process by `busbar-dev` with these arguments. It returns only when that fails.
#[must_use]
pub fn become_theirs(arguments: &[OsString]) -> Error {
    let program = match find(PROGRAM) {
        Ok(program) => program,
        Err(error) => return error.help(HOW),
    };
    let why = Command::new(&program).args(arguments).exec();
    Error::new("run", program.display().to_string(), why)
}

/// What to do if it is missing.
const HOW: &str =
    "it has the verbs lab, bench and report; in Busbar's source: make build install-dev";

/// The program `name` of Busbar: beside the running one, whatever links lead to that, or else in PATH.
///
/// # Errors
/// There is no such program.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let path = env::var_os("PATH");
    let path = path.iter().flat_map(env::split_paths);
    let places = beside.iter().cloned().chain(path);
    places.map(|folder| folder.join(name)).find(|file| is_program(file)).ok_or_else(|| {
        let place = beside.map(|folder| format!("in {} or ", folder.display()));
        let why = format!("not {}in PATH", place.unwrap_or_default());
        Error::new("find", name, io::Error::new(io::ErrorKind::NotFound, why))
    })
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(line: &str) -> bool {
        are_meant(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_developers_verb_is_the_first_word_or_what_help_is_asked_for() {
        for line in ["lab", "lab run -- uname", "bench wait", "report --open", "generate man x"] {
            assert!(meant(line), "{line}");
        }
        for line in ["help lab", "help bench wait", "help report"] {
            assert!(meant(line), "{line}");
        }
        for line in ["", "help", "doctor", "help doctor", "--help", "run lab", "stream lab bench"] {
            assert!(!meant(line), "{line}");
        }
    }

    #[test]
    fn a_program_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for() {
        let said = find("busbar-none").unwrap_err().to_string();
        let folder = env::current_exe().unwrap().parent().unwrap().display().to_string();
        assert!(said.contains(&folder) && said.contains("in PATH"), "{said}");
    }
}
