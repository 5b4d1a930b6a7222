//! `busbar report`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use busbar::stream::sigmf::Recording;
use busbar::{Error, Result};
use busbar_bench::{Report, figures, page};
use busbar_cli::print::{complain, print_line};

/// The directory of the figures that come with Busbar.
const FIGURES: &str = "docs/figures";
const HOW: &str =
    "make them: busbar lab run --accel icount --cpus 1 -- busbar bench NAME --json > DIR/NAME.json";

#[derive(clap::Args)]
#[command(after_help = "Example: busbar report --open\n\
    \x20        busbar report mine.json docs/figures/wait.icount.json --output wait.html\n\
    \x20        busbar report --check docs/*.md README.md")]
pub struct Args {
    /// Files with the output of `busbar bench NAME --json`, or folders of them; by default
    /// docs/figures. With --update and --check: Markdown files
    #[arg(value_name = "FILE|DIR")]
    inputs: Vec<PathBuf>,
    /// File for the page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Show the page with xdg-open
    #[arg(long)]
    open: bool,
    /// Instead of a page: update the tables of these Markdown files
    ///
    /// A table stands between the lines `<!-- figures: FILE.json [NAME…] [PARAMETER=VALUE…] -->` and
    /// `<!-- end figures -->`. FILE.json is relative to the folder of the Markdown file.
    #[arg(long, requires = "inputs", conflicts_with_all = ["open", "output", "check"])]
    update: bool,
    /// Instead of a page: fail if a table of these Markdown files does not agree with its figures
    #[arg(long, requires = "inputs", conflicts_with_all = ["open", "output"])]
    check: bool,
    /// Instead of the figures: the page of a demonstration, from this file of JSON. With an --output that ends
    /// in .svg: its picture alone
    #[arg(long, value_name = "FILE", requires = "recording", conflicts_with_all = ["inputs", "update", "check"])]
    demo: Option<PathBuf>,
    /// The recording of the demonstration's signal
    #[arg(long, value_name = "NAME", requires = "demo")]
    recording: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if args.update || args.check {
        return tables(&args.inputs, args.check);
    }
    if let (Some(demo), Some(recording)) = (&args.demo, &args.recording) {
        return demonstration(demo, recording, args);
    }
    let reports = files(&args.inputs)?.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
    fs::write(&args.output, page::render(&reports))
        .map_err(|why| failed("write", &args.output, why))?;
    let (output, count) = (args.output.display(), reports.len());
    print_line(&format!(
        "{output}: the page of {count} report{}",
        if count == 1 { "" } else { "s" }
    ))?;
    if args.open {
        open(&args.output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The page, or the picture, of a demonstration.
fn demonstration(demo: &Path, recording: &Path, args: &Args) -> Result<ExitCode> {
    let text = fs::read_to_string(demo).map_err(|why| failed("read", demo, why))?;
    let measured = page::demo::Demo::parse(&text)?;
    let recording = Recording::open(recording)?;
    let is_picture = args.output.extension().is_some_and(|it| it == "svg");
    let render = if is_picture { page::demo::picture } else { page::demo::page };
    fs::write(&args.output, render(&measured, &recording)?)
        .map_err(|why| failed("write", &args.output, why))?;
    if args.open {
        open(&args.output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(tried: &str, on: &Path, why: impl Into<io::Error>) -> Error {
    Error::new(tried, on.display().to_string(), why)
}

/// The named files, and those of folders, sorted by name.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let default = [PathBuf::from(FIGURES)];
    let inputs = if inputs.is_empty() { &default } else { inputs };
    let mut files = Vec::new();
    for input in inputs {
        if input.is_dir() {
            files.extend(folder(input)?);
        } else {
            files.push(input.clone());
        }
    }
    Ok(files)
}

fn folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |why| failed("list", folder, why).help(HOW);
    let entries = fs::read_dir(folder).map_err(failed)?.collect::<io::Result<Vec<_>>>();
    let mut files: Vec<_> = entries.map_err(failed)?.into_iter().map(|it| it.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    if files.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "there is no *.json")));
    }
    Ok(files)
}

fn read(file: &Path) -> Result<Report> {
    let json = fs::read_to_string(file).map_err(|why| failed("read", file, why).help(HOW))?;
    Report::parse(&file.display().to_string(), &json)
}

/// Generates the tables of `files` again, or prints which are stale.
fn tables(files: &[PathBuf], check: bool) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let text = fs::read_to_string(file).map_err(|why| failed("read", file, why))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let updated = figures::update(&text, |json| read(&folder.join(json)))
            .map_err(|why| failed("make the tables of", file, io::Error::other(why)))?;
        let name = file.display();
        if check {
            for marker in &updated.stale {
                let how = format!("busbar report --update {name}");
                complain(&format!("busbar: {name}: `{marker}` is stale ({how})"));
                code = ExitCode::FAILURE;
            }
        } else if !updated.stale.is_empty() {
            fs::write(file, &updated.text).map_err(|why| failed("write", file, why))?;
            print_line(&format!("{name}: {} updated", updated.stale.len()))?;
        }
    }
    Ok(code)
}

fn open(page: &Path) -> Result<()> {
    match Command::new("xdg-open").arg(page).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed("show", page, io::Error::other(format!("xdg-open: {status}")))),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            let page = fs::canonicalize(page).unwrap_or_else(|_| page.into());
            print_line(&format!("There is no xdg-open: open {} with a browser.", page.display()))
        }
        Err(why) => Err(failed("show", page, why)),
    }
}
