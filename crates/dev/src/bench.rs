//! `busbar bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use busbar_bench::languages::{self, From, Work};
use busbar_bench::{
    Controllers, Extent, Report, bulk, endpoint, iiod, receive, stream, usual, wait,
};
use busbar_cli::print::{complain, json_line, print_line};
use busbar_cli::quantity::{seconds, size};
use busbar_lab::stage::{self, Stage};
use indicatif::ProgressBar;

#[derive(clap::Args)]
#[command(after_help = "\
Example, in the lab:
  busbar lab run -- busbar bench endpoint --quick")]
pub struct Args {
    #[command(subcommand)]
    path: Path,
}

#[derive(clap::Subcommand)]
enum Path {
    /// Each benchmark that this machine can run, one JSON object a line with --json
    #[command(after_help = "\
Example, on this host, and in the lab:
  busbar bench all --quick --json
  busbar lab run -- busbar bench all --quick")]
    All(Common),
    /// The cost of creating an endpoint, and of using one
    #[command(after_help = "\
Example, in the lab, and on a board with a control device of each kind:
  busbar lab run -- busbar bench endpoint --quick
  busbar bench endpoint --baseline /dev/rpmsg_ctrl0 --busbar /dev/rpmsg_ctrl512 --json")]
    Endpoint(EndpointArgs),
    /// The cost of bringing a block to a coprocessor, by every transport
    #[command(after_help = "\
Example, in the lab:
  busbar lab run -- busbar bench bulk --quick")]
    Bulk(Sides),
    /// The cost of changing an epoll set, and of waiting; runs on any host
    #[command(after_help = "\
Example, on this host, and in the kernel with Busbar's patches:
  busbar bench wait --quick
  busbar lab run -- busbar bench wait --json")]
    Wait(Common),
    /// The cost of fetching samples from the virtual converter `vconv0`, or of streams over this host's network
    #[command(after_help = "\
Example, in the lab, and on any host:
  busbar lab run -- busbar bench stream --quick
  busbar bench stream --native")]
    Stream(StreamArgs),
    /// The demonstration's sender in the usual way
    #[command(hide = true)]
    UsualSend(UsualSend),
    /// The demonstration's receiver in the usual way
    #[command(hide = true)]
    UsualReceive(UsualReceive),
    /// The cost of the tokens of device memory, over a pair of virtual NICs
    #[command(after_help = "\
Example, in the lab, where time counts instructions:
  busbar lab run --accel icount --cpus 1 -- busbar bench receive --quick")]
    Receive(Common),
    /// The cost of consuming a stream in Rust and in other languages
    #[command(after_help = "\
Example, on this host, and with the virtual converter in the lab:
  busbar bench languages --synth
  busbar lab run -- busbar bench languages --json")]
    Languages(Languages),
    /// The cost of samples for clients of libiio, from its own server and from `busbar serve`
    #[command(after_help = "\
Example, in the lab, where time counts instructions:
  busbar lab run --accel icount --cpus 1 -- busbar bench iiod --quick")]
    Iiod(Iiod),
    /// The consumer in Rust
    #[command(hide = true)]
    LanguagesConsume(Consume),
    /// A server in Rust
    #[command(hide = true)]
    WaitServer(Server),
}

#[derive(clap::Args)]
struct Languages {
    #[command(flatten)]
    common: Common,
    /// Samples that the library makes, on any host, in place of those of `vconv0`
    #[arg(long)]
    synth: bool,
}

#[derive(clap::Args)]
struct Iiod {
    #[command(flatten)]
    common: Common,
    /// Relays of samples that the library makes, on any host, in place of servers of `vconv0`
    #[arg(long)]
    native: bool,
}

#[derive(clap::Args)]
struct Consume {
    source: String,
    block_len: usize,
    queue: usize,
    blocks: usize,
}

#[derive(clap::Args)]
struct Server {
    library: String,
    #[arg(value_parser = ["stay", "rearm"])]
    mode: String,
    path: PathBuf,
    warm: u64,
    requests: u64,
}

#[derive(clap::Args)]
struct Sides {
    #[command(flatten)]
    common: Common,
    /// Control device with the in-tree driver [default: virtual coprocessors are set up]
    #[arg(long, value_name = "PATH", requires = "busbar")]
    baseline: Option<PathBuf>,
    /// Control device with `rpmsg_eptfd`. Both coprocessors need services of
    /// `busbar coprocessor run`: echo, sink and source, or bulk, bulk-tty, bulk-netlink, check and
    /// handover
    #[arg(long, value_name = "PATH", requires = "baseline")]
    busbar: Option<PathBuf>,
}

#[derive(clap::Args)]
struct EndpointArgs {
    #[command(flatten)]
    sides: Sides,
    /// Measure only this part
    #[arg(long, value_name = "PART", value_parser = endpoint::GROUPS)]
    only: Option<String>,
}

#[derive(clap::Args)]
struct StreamArgs {
    #[command(flatten)]
    common: Common,
    /// Measure streams over the network of this host, beside what others would use
    #[arg(long)]
    native: bool,
}

#[derive(clap::Args)]
struct UsualSend {
    #[arg(long, default_value = stream::CONVERTER)]
    converter: String,
    #[arg(long, default_value = "control")]
    service: String,
    #[arg(long, value_parser = size, default_value = "256K")]
    block_len: usize,
    #[arg(long, value_parser = seconds)]
    seconds: Duration,
    target: SocketAddr,
}

#[derive(clap::Args)]
struct UsualReceive {
    #[arg(long, value_parser = size, default_value = "256K")]
    block_len: usize,
    /// Record every N-th sample.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    each: u16,
    address: SocketAddr,
    recording: PathBuf,
}

#[derive(Clone, Copy, clap::Args)]
struct Common {
    /// A run of less than a minute, to show that the benchmark works
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All sizes and counts of the published figures: takes hours under emulation
    #[arg(long)]
    full: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Common {
    fn extent(self) -> Extent {
        match (self.quick, self.full) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Full,
            _ => Extent::Normal,
        }
    }

    fn print(self, report: Report) -> Result<()> {
        let report = Report { extent: self.extent(), ..report };
        if self.json { json_line(&report) } else { print_line(report.to_string().trim_end()) }
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    one(&args.path)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs all benchmarks. On a host, those that lack a module are left out; in the lab none may.
fn all(common: Common) -> Result<()> {
    let sides = || Sides { common, baseline: None, busbar: None };
    let stream = |native| Path::Stream(StreamArgs { common, native });
    let paths = [
        ("endpoint", Path::Endpoint(EndpointArgs { sides: sides(), only: None })),
        ("bulk", Path::Bulk(sides())),
        ("wait", Path::Wait(common)),
        ("stream", stream(false)),
        ("stream --native", stream(true)),
        ("receive", Path::Receive(common)),
        ("languages", Path::Languages(Languages { common, synth: true })),
        ("iiod", Path::Iiod(Iiod { common, native: false })),
    ];
    let is_lab = std::env::var_os("BUSBAR_ACCELERATOR").is_some();
    for (name, path) in paths {
        let runs_anywhere =
            matches!(&path, Path::Wait(_) | Path::Stream(StreamArgs { native: true, .. }));
        match one(&path) {
            Err(error) if !runs_anywhere && !is_lab => {
                complain(&format!("left out: {name}: {error}"));
            }
            done => done?,
        }
    }
    Ok(())
}

fn one(path: &Path) -> Result<()> {
    match path {
        Path::All(common) => all(*common)?,
        Path::Endpoint(EndpointArgs { sides, only }) => {
            measure(sides, &endpoint::SERVICES, |controllers, extent, bar| {
                endpoint::run(controllers, only.as_deref(), extent, bar)
            })?;
        }
        Path::Bulk(args) => measure(args, &bulk::SERVICES, bulk::run)?,
        Path::Wait(common) => {
            let server = [this_program()?, "bench".into(), "wait-server".into()];
            let report = with_progress(|bar| wait::run(&server, common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Stream(StreamArgs { common, native: true }) => {
            let report = with_progress(|bar| stream::native::run(common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Stream(StreamArgs { common, native: false }) => {
            stage::load_converter()?;
            let report = with_progress(|bar| stream::run(common.extent(), bar))?;
            common.print(report)?;
        }
        Path::UsualSend(args) => {
            let UsualSend { converter, service, block_len, seconds, target } = args;
            json_line(&usual::send(converter, service, *block_len, *target, *seconds)?)?;
        }
        Path::UsualReceive(UsualReceive { block_len, each, address, recording }) => {
            json_line(&usual::receive(*address, *block_len, usize::from(*each), recording)?)?;
        }
        Path::Receive(common) => {
            stage::load_nic()?;
            let report = with_progress(|bar| receive::run(common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Languages(Languages { common, synth }) => {
            let from = if *synth { From::Synth } else { From::Converter };
            if from == From::Converter {
                stage::load_converter()?;
            }
            let rust = [this_program()?, "bench".into(), "languages-consume".into()];
            let report = with_progress(|bar| languages::run(from, &rust, common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Iiod(Iiod { common, native: true }) => {
            let program = crate::busbar()?;
            let report = with_progress(|bar| iiod::run_native(&program, common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Iiod(Iiod { common, native: false }) => {
            stage::load_converter()?;
            let program = crate::busbar()?;
            let report = with_progress(|bar| iiod::run(&program, common.extent(), bar))?;
            common.print(report)?;
        }
        Path::LanguagesConsume(args) => {
            let Consume { block_len, queue, blocks, .. } = *args;
            let source = args.source.clone();
            json_line(&languages::consume(&Work { source, block_len, queue, blocks })?)?;
        }
        Path::WaitServer(Server { library, mode, path, warm, requests }) => {
            let rearms = mode == "rearm";
            json_line(&wait::server::serve(library, rearms, path, *warm, *requests)?)?;
        }
    }
    Ok(())
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|why| busbar::Error::new("find", "this program", why))
}

fn with_progress(bench: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Report>) -> Result<Report> {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = bench(&mut |what| bar.set_message(what.to_string()));
    bar.finish_and_clear();
    report
}

/// Runs `bench` on the given control devices, or on two coprocessors with `services`.
fn measure(
    args: &Sides,
    services: &[&str],
    bench: impl Fn(Controllers<'_>, Extent, &mut dyn FnMut(&str)) -> Result<Report>,
) -> Result<()> {
    let run = |in_tree: &std::path::Path, eptfd: &std::path::Path| {
        let controllers = Controllers { in_tree, eptfd };
        with_progress(|bar| bench(controllers, args.common.extent(), bar))
    };
    let report = if let (Some(in_tree), Some(eptfd)) = (&args.baseline, &args.busbar) {
        run(in_tree, eptfd)?
    } else {
        let stage = Stage::up(&crate::busbar()?, services)?;
        run(stage.in_tree.controller(), stage.eptfd.controller())?
    };
    args.common.print(report)
}
