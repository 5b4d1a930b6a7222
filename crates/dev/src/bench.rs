//! `busbar bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busbar::Result;
use busbar_bench::{Controllers, Extent, Report, bulk, endpoint, receive, stream, usual, wait};
use busbar_cli::print::{json_line, print_line};
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
    /// The cost of creating an endpoint, and of using one
    #[command(after_help = "\
Example, in the lab, and on a board with a control device of each kind:
  busbar lab run -- busbar bench endpoint --quick
  busbar bench endpoint --baseline /dev/rpmsg_ctrl0 --busbar /dev/rpmsg_ctrl512 --json")]
    Endpoint(Sides),
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
    /// The cost of fetching samples from the virtual converter `vconv0`
    #[command(after_help = "\
Example, in the lab:
  busbar lab run -- busbar bench stream --quick")]
    Stream(Common),
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
}

#[derive(clap::Args)]
struct Sides {
    #[command(flatten)]
    common: Common,
    /// Control device with the in-tree driver [default: virtual coprocessors are set up]
    #[arg(long, value_name = "PATH", requires = "busbar")]
    baseline: Option<PathBuf>,
    /// Control device with `rpmsg_eptfd`. Both coprocessors need services of
    /// `busbar coprocessor run`: echo and sink, or bulk, bulk-tty, bulk-netlink, check and
    /// handover
    #[arg(long, value_name = "PATH", requires = "baseline")]
    busbar: Option<PathBuf>,
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

#[derive(clap::Args)]
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
    fn extent(&self) -> Extent {
        match (self.quick, self.full) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Full,
            _ => Extent::Normal,
        }
    }

    fn print(&self, report: Report) -> Result<()> {
        let report = Report { extent: self.extent(), ..report };
        if self.json { json_line(&report) } else { print_line(report.to_string().trim_end()) }
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.path {
        Path::Endpoint(args) => measure(args, &endpoint::SERVICES, endpoint::run)?,
        Path::Bulk(args) => measure(args, &bulk::SERVICES, bulk::run)?,
        Path::Wait(common) => {
            let report = with_progress(|bar| wait::run(common.extent(), bar))?;
            common.print(report)?;
        }
        Path::Stream(common) => {
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
    }
    Ok(ExitCode::SUCCESS)
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
