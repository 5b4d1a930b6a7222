//! Finds virtme-ng, or installs it into the cache.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use busbar::{Error, Result};

use crate::at;
use crate::cache::{Cache, remove};
use crate::progress::Progress;
use crate::tools;

/// Installed if `vng` is not in PATH.
const VERSION: &str = "1.42";

/// `virtme-run` of the virtme-ng that is in PATH, or of the one in the cache.
///
/// `vng` calls it, too; this way there is no user's configuration and no shell in between.
pub(crate) fn find(cache: &Cache) -> Result<PathBuf> {
    let beside = |vng: PathBuf| Some(vng.canonicalize().ok()?.with_file_name("virtme-run"));
    let in_path = tools::find("vng").and_then(beside).filter(|path| path.is_file());
    match in_path.or_else(|| tools::find("virtme-run")) {
        Some(path) => Ok(path),
        None => installed(cache),
    }
}

fn installed(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.path(format!("virtme-ng-{VERSION}"));
    let program = folder.join("bin/virtme-run");
    let _lock = cache.lock("virtme-ng")?;
    // Programs in a virtual environment contain its path: it cannot be renamed when it is complete.
    let complete = folder.join("complete");
    if complete.exists() {
        return Ok(program);
    }
    remove(&folder)?;
    let log = cache.path("virtme-ng.log");
    remove(&log)?;
    let mut progress = Progress::new("installing virtme-ng", None);
    let mut venv = tools::bound("python3", "TERM");
    venv.args(["-m", "venv"]).arg(&folder);
    let mut pip = tools::bound(folder.join("bin/pip"), "TERM");
    pip.args(["install", "--disable-pip-version-check", &format!("virtme-ng=={VERSION}")]);
    tools::step(&mut venv, "make a Python environment for", &log, &mut progress)
        .and_then(|()| tools::step(&mut pip, "install virtme-ng for", &log, &mut progress))
        .map_err(|error| advice(&error))?;
    fs::write(&complete, "").map_err(at("write", &complete))?;
    Ok(program)
}

fn advice(error: &Error) -> Error {
    let venv = Command::new("python3").args(["-c", "import ensurepip"]).output();
    let help = match venv {
        Ok(output) if output.status.success() => {
            "virtme-ng is needed and is not in PATH: pip install virtme-ng, or apt-get install \
             virtme-ng where Debian has it"
        }
        _ => "apt-get install python3 python3-venv",
    };
    Error::new("install", "virtme-ng", io::Error::other(error.to_string())).help(help)
}
