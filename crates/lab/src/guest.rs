//! Input of the guest: its command, environment and folders, as shell scripts.
//!
//! Any argument arrives unchanged in a file of single-quoted words.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};

use crate::at;

/// The guest's side, beside the lab's configuration.
const SCRIPT: &str = include_str!("../../../kernel/lab/guest.sh");

/// Where the guest finds the folder that [`write`] fills.
pub(crate) const FOLDER: &str = "/run/busbar";

/// Variables that are passed to the guest; a name that ends in `*` stands for all with this prefix.
const PASSED: [&str; 10] =
    ["PATH", "HOME", "USER", "TERM", "LANG", "LC_*", "CARGO*", "RUST*", "BUSBAR*", "NO_COLOR"];

/// Input of the guest's script.
pub(crate) struct Script<'a> {
    pub command: &'a [OsString],
    pub variables: Vec<(OsString, OsString)>,
    pub folder: &'a Path,
    /// Tag of the share and where it is mounted.
    pub shares: &'a [(String, PathBuf)],
    /// The guest has the host's stdin, instead of an empty one.
    pub stdin: bool,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    pub loglevel: u8,
}

impl Script<'_> {
    /// Fills `folder` with all files that the guest reads.
    pub fn write(&self, folder: &Path, firmware: &[(String, Vec<u8>)]) -> Result<()> {
        let write = |name: &Path, content: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, content).map_err(at("write", &path))
        };
        write(Path::new("guest.sh"), SCRIPT.as_bytes())?;
        write(Path::new("setup.sh"), &self.setup())?;
        write(Path::new("command.sh"), &self.command())?;
        let files = folder.join("firmware");
        fs::create_dir_all(&files).map_err(at("create", &files))?;
        firmware.iter().try_for_each(|(name, bytes)| {
            if name.is_empty() || name.starts_with('.') || name.contains('/') {
                return Err(Error::invalid("firmware", name, "a plain file name"));
            }
            write(&Path::new("firmware").join(name), bytes)
        })
    }

    fn setup(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (tag, path) in self.shares {
            line(&mut text, &[b"share ", &quote(tag), b" ", &quote(path)]);
        }
        let stdin = if self.stdin { "in" } else { "/dev/null" };
        let terminal = self.terminal.map(|(rows, columns)| format!("rows {rows} cols {columns}"));
        line(&mut text, &[b"stdin=", stdin.as_bytes()]);
        line(&mut text, &[b"terminal=", &quote(terminal.unwrap_or_default())]);
        line(&mut text, &[b"loglevel=", self.loglevel.to_string().as_bytes()]);
        text
    }

    fn command(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (name, value) in &self.variables {
            line(&mut text, &[b"export ", name.as_bytes(), b"=", &quote(value)]);
        }
        line(&mut text, &[b"cd ", &quote(self.folder), b" || exit 126"]);
        let words: Vec<_> = self.command.iter().map(quote).collect();
        line(&mut text, &[b"exec ", &words.join(&b' ')]);
        text
    }
}

fn line(text: &mut Vec<u8>, parts: &[&[u8]]) {
    text.extend(parts.concat());
    text.push(b'\n');
}

/// Quotes any bytes as one word for a POSIX shell.
fn quote(word: impl AsRef<OsStr>) -> Vec<u8> {
    let word = word.as_ref().as_bytes();
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Those of `variables` that the guest gets, with `/usr/sbin` and `/sbin` in PATH.
pub(crate) fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    variables.filter(|(name, _)| is_passed(name)).map(with_sbin).collect()
}

fn is_passed(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    is_name && PASSED.iter().any(matches)
}

fn with_sbin((name, mut value): (OsString, OsString)) -> (OsString, OsString) {
    if name == "PATH" && !std::env::split_paths(&value).any(|path| path.ends_with("sbin")) {
        value.push(":/usr/sbin:/sbin");
    }
    (name, value)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    /// The output of the command script, run by `sh`.
    fn executed(script: &Script) -> std::process::Output {
        let dir = tempfile::tempdir().unwrap();
        script.write(dir.path(), &[]).unwrap();
        Command::new("sh")
            .arg(dir.path().join("command.sh"))
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn script<'a>(command: &'a [OsString], folder: &'a Path) -> Script<'a> {
        Script {
            command,
            variables: vec![("PATH".into(), "/usr/bin:/bin".into())],
            folder,
            shares: &[],
            stdin: false,
            terminal: None,
            loglevel: 5,
        }
    }

    fn arguments(words: &[Vec<u8>]) -> Vec<OsString> {
        let start = ["printf", "%s\\0", "first"].map(OsString::from);
        let words = words.iter().map(|word| OsStr::from_bytes(word).to_os_string());
        start.into_iter().chain(words).collect()
    }

    fn assert_exact(words: &[Vec<u8>]) {
        let command = arguments(words);
        let output = executed(&script(&command, Path::new("/")));
        let expected: Vec<u8> = [b"first\0".to_vec()]
            .into_iter()
            .chain(words.iter().map(|word| [word.as_slice(), b"\0"].concat()))
            .flatten()
            .collect();
        assert_eq!(output.stdout, expected, "{:?}", output.stderr);
    }

    #[test]
    fn every_byte_arrives() {
        assert_exact(&[(1..=255).collect(), Vec::new(), b"$HOME `id` \"'\\ \n *".to_vec()]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arguments_arrive_as_they_are(
            words in prop::collection::vec(prop::collection::vec(1..=255u8, 0..20), 0..5)
        ) {
            assert_exact(&words);
        }
    }

    #[test]
    fn folder_and_variables_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a b'c");
        fs::create_dir(&folder).unwrap();
        let command = ["sh", "-c", "pwd; printf %s \"$RUST_LOG\""].map(OsString::from);
        let mut script = script(&command, &folder);
        script.variables.push(("RUST_LOG".into(), "a='b'\nc".into()));
        let output = executed(&script);
        let expected = format!("{}\na='b'\nc", folder.display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn a_command_that_cannot_be_run_is_126_or_127() {
        let code = |command: &str| {
            let command = [OsString::from(command)];
            executed(&script(&command, Path::new("/"))).status.code()
        };
        assert_eq!(code("no-such-command"), Some(127));
        assert_eq!(code("/etc/passwd"), Some(126));
        assert_eq!(code("a=b"), Some(127));
        let missing = script(&[], Path::new("/no-such-folder"));
        assert_eq!(executed(&missing).status.code(), Some(126));
    }

    #[test]
    fn chosen_variables_go_to_the_guest() {
        let names = ["HOME", "RUST_LOG", "CARGO_TERM_COLOR", "SECRET", "RUST-X", "HOMEWORK"];
        let passed = environment(names.iter().map(|name| (name.into(), "x".into())));
        let passed: Vec<_> = passed.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(passed, ["HOME", "RUST_LOG", "CARGO_TERM_COLOR"]);
    }

    #[test]
    fn modprobe_is_in_the_path() {
        let path = |value: &str| {
            let variables = environment([("PATH".into(), value.into())].into_iter());
            variables[0].1.clone().into_string().unwrap()
        };
        assert_eq!(path("/bin"), "/bin:/usr/sbin:/sbin");
        assert_eq!(path("/usr/sbin:/bin"), "/usr/sbin:/bin");
    }

    #[test]
    fn firmware_cannot_leave_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let script = script(&[], Path::new("/"));
        script.write(dir.path(), &[("a.fw".into(), vec![1, 2])]).unwrap();
        assert_eq!(fs::read(dir.path().join("firmware/a.fw")).unwrap(), [1, 2]);
        for name in ["", ".", "../x", "/etc/x", "a/b"] {
            let error = script.write(dir.path(), &[(name.into(), vec![])]).unwrap_err();
            assert!(error.to_string().contains("firmware"), "{error}");
        }
    }
}
