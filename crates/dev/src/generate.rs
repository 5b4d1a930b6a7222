//! `busbar generate`: manual pages and completions, from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use busbar::{Error, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::whole;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Write a manual page for each command into a folder
    Man {
        /// The folder, created if it does not exist
        folder: PathBuf,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Man { folder } => write_pages(folder)?,
        What::Completions { shell } => {
            let text = completions(*shell);
            io::stdout()
                .write_all(&text)
                .map_err(|why| Error::new("write to", "standard output", why))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut whole(), "busbar", &mut text);
    text
}

fn write_pages(folder: &Path) -> Result<()> {
    let failed = |path: &Path, why| Error::new("write", path.display().to_string(), why);
    fs::create_dir_all(folder).map_err(|why| failed(folder, why))?;
    for (name, page) in pages() {
        let path = folder.join(name);
        fs::write(&path, page).map_err(|why| failed(&path, why))?;
    }
    Ok(())
}

/// File name and text of each page.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut all = whole().disable_help_subcommand(true);
    all.build();
    let mut pages = Vec::new();
    add(&all, &mut pages);
    pages
}

fn add(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) {
    let man = Man::new(command.clone());
    pages.push((man.get_filename(), page(&man, command).expect("memory takes every byte")));
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        add(below, pages);
    }
}

/// Like `Man::render`, except for the title, whose empty date it would omit, and the lines of
/// examples, which it would fill.
fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let title = command.get_display_name().unwrap_or("busbar").to_uppercase();
    writeln!(text, ".TH {title} 1 \"\" \"busbar {}\" Busbar", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|it| !it.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(more) = command.get_after_long_help().or(command.get_after_help()) {
        write_lines(&more.to_string(), &mut text)?;
    }
    Ok(text)
}

/// Writes each line unchanged.
fn write_lines(more: &str, page: &mut Vec<u8>) -> io::Result<()> {
    writeln!(page, ".SH NOTES\n.nf")?;
    for line in more.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with a dot or a quote would be a request.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(page, "{guard}{line}")?;
    }
    writeln!(page, ".fi")
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Program, Stdio};

    use super::*;

    #[test]
    fn every_verb_has_a_page_that_mandoc_understands() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(folder.path()).unwrap();
        let names: Vec<_> = pages().into_iter().map(|(name, _)| name).collect();
        for verb in ["busbar", "busbar-doctor", "busbar-endpoint-ping", "busbar-stream-picture"] {
            assert!(names.contains(&format!("{verb}.1")), "{verb}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("generate")), "{names:?}");
        for name in names {
            let linted = Program::new("mandoc")
                .args(["-T", "lint", "-W", "error,stop"])
                .arg(folder.path().join(&name))
                .output()
                .expect("mandoc: apt-get install mandoc");
            let said = String::from_utf8_lossy(&linted.stdout).into_owned();
            assert!(linted.status.success(), "{name}: {said}");
        }
    }

    #[test]
    fn examples_keep_their_lines() {
        let mut page = Vec::new();
        write_lines("Example:\n  a --b \\\n.c", &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert_eq!(page, ".SH NOTES\n.nf\nExample:\n  a \\-\\-b \\e\n\\&.c\n.fi\n");
    }

    #[test]
    fn completions_are_what_their_shells_understand() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completions(shell);
            let said = String::from_utf8_lossy(&text);
            assert!(said.contains("coprocessor") && !said.contains("generate"), "{shell}");
            let mut child = Program::new(shell.to_string())
                .arg("-n")
                .stdin(Stdio::piped())
                .spawn()
                .unwrap_or_else(|why| panic!("{shell}, of tests/parts.toml: {why}"));
            child.stdin.take().unwrap().write_all(&text).unwrap();
            assert!(child.wait().unwrap().success(), "{shell}");
        }
    }
}
