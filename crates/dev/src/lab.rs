//! `busbar lab`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use busbar::{Error, Result};
use busbar_cli::print::{complain, print_json, print_line};
use busbar_coprocessor::table::Image;
use busbar_lab::stage::Stage;
use busbar_lab::{
    Accelerator, Architecture, Built, Choice, End, Flavour, Job, Lab, Outcome, Series, Stdio,
    Variant,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The lab: a real kernel with Busbar's modules, under QEMU, with this machine's files.
#[derive(clap::Args)]
#[command(after_help = "\
Example, a command and then a shell in the kernel with Busbar's parts:
  busbar lab run -- uname -r
  busbar lab shell")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Build kernel and modules, unless they are in the cache
    Build(Build),
    /// Run a command in a guest that boots the kernel
    ///
    /// Its stdout, stderr and exit code are those of this command. A warning, oops, lockdep, KASAN
    /// or kmemleak report of the kernel makes the run fail and is printed. The command may write to
    /// the current folder, Busbar's and `$CARGO_TARGET_DIR`; what it writes elsewhere is lost when
    /// the guest ends.
    ///
    /// Exit codes: the command's own (128 + N when signal N killed it), 1 when the kernel reported
    /// something or the guest cannot be booted, 124 after the time limit, 130 after Ctrl-C.
    Run(Run),
    /// A shell in the guest, on this terminal; Ctrl-] ends the guest at once
    #[command(after_help = "\
Example:
  busbar lab shell
  busbar lab shell --debug --cpus 4")]
    Shell(Shell),
    /// Set up two coprocessors in the guest and run a command with them
    ///
    /// Both offer the same services; one control device has `rpmsg_eptfd`, the other the in-tree
    /// driver. The command finds them in `BUSBAR_TEST_CTRL_FD` and `BUSBAR_TEST_CTRL_NODE`.
    #[command(after_help = "\
Example:
  busbar lab run -- busbar lab stage -- env")]
    Stage(Setting),
    /// Remove from the cache what the current sources do not need
    #[command(after_help = "\
Example:
  busbar lab clean")]
    Clean,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example, and where the debug kernel's build directory is:
  busbar lab build
  busbar lab build --debug --json | jq -r .build")]
struct Build {
    #[command(flatten)]
    flavour: Which,
    /// Print the paths of kernel and modules as one JSON object
    #[arg(long)]
    json: bool,
    /// Build nothing, and fail if the kernel is not in the cache
    #[arg(long, conflicts_with = "json")]
    check: bool,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example, two modules and a test in the debug kernel:
  busbar lab run -- sh -c 'modprobe vconv && cat /sys/bus/iio/devices/*/name'
  busbar lab run --debug --timeout 600 -- ./test")]
struct Run {
    #[command(flatten)]
    guest: Guest,
    /// End the command after so many seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Write the kernel's console to this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// One more folder that the command may write to
    #[arg(long, value_name = "FOLDER")]
    writable: Vec<PathBuf>,
    /// A report of the kernel that contains this text does not make the run fail
    #[arg(long, value_name = "TEXT")]
    known: Vec<String>,
    /// Program and arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
struct Shell {
    #[command(flatten)]
    guest: Guest,
}

#[derive(clap::Args)]
struct Setting {
    /// Firmware services of both coprocessors
    #[arg(long, value_delimiter = ',', default_value = "echo,sink,source")]
    service: Vec<String>,
    /// Program and arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
struct Which {
    /// The guest's processor, if not this machine's: in a guest with Debian's programs for it
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// The series of Linux
    #[arg(long, value_enum, value_name = "SERIES", env = "BUSBAR_LINUX", default_value_t)]
    linux: Linux,
    /// The debug kernel: KASAN, lockdep, kmemleak and more
    #[arg(long)]
    debug: bool,
    /// The kernel that finds data races in modules: KCSAN
    #[arg(long, conflicts_with = "debug")]
    race: bool,
    /// Debian's own kernel 6.12, downloaded instead of built: no patches, ready within a minute; also for arm64
    #[arg(long, conflicts_with_all = ["debug", "race"])]
    stock: bool,
}

#[derive(clap::Args)]
struct Guest {
    #[command(flatten)]
    flavour: Which,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of the guest
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: String,
    /// What executes the guest's instructions; auto: KVM if a trial boot has succeeded
    #[arg(long, value_enum, default_value_t)]
    accel: Accel,
    /// One more option on the kernel's command line, such as idle=poll
    #[arg(long = "kernel-option", value_name = "OPTION")]
    kernel_options: Vec<String>,
    /// Add an IOMMU, and a PCI device behind it that has no driver (1b36:0005)
    #[arg(long)]
    iommu: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Arch {
    #[value(name = "x86-64")]
    X86_64,
    Arm64,
    Armv7,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Linux {
    #[default]
    #[value(name = "6.12")]
    V6_12,
    #[value(name = "7.3")]
    V7_3,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Accel {
    #[default]
    Auto,
    Kvm,
    Tcg,
    /// Emulation where time counts instructions: repeatable figures
    Icount,
}

impl Which {
    fn variant(&self) -> Variant {
        let series = match self.linux {
            Linux::V6_12 => Series::V6_12,
            Linux::V7_3 => Series::V7_3,
        };
        let architecture = match self.arch {
            Some(Arch::X86_64) => Architecture::X86_64,
            Some(Arch::Arm64) => Architecture::Arm64,
            Some(Arch::Armv7) => Architecture::Armv7,
            None => Architecture::default(),
        };
        let flavour = match self {
            Self { debug: true, .. } => Flavour::Debug,
            Self { race: true, .. } => Flavour::Race,
            Self { stock: true, .. } => Flavour::Stock,
            _ => Flavour::Release,
        };
        Variant { series, architecture, flavour }
    }
}

impl Guest {
    fn job(&self, command: Vec<OsString>) -> Job {
        Job {
            cpus: self.cpus,
            memory: self.memory.clone(),
            accelerator: match self.accel {
                Accel::Auto => Choice::Auto,
                Accel::Kvm => Choice::Use(Accelerator::Kvm),
                Accel::Tcg => Choice::Use(Accelerator::Tcg),
                Accel::Icount => Choice::Use(Accelerator::Icount),
            },
            kernel_options: self.kernel_options.clone(),
            iommu: self.iommu,
            // `modprobe vcoproc` needs them, too.
            firmware: vec![("vcoproc.fw".into(), Image::default().build())],
            ..Job::new(command)
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::Build(args) => build(&args),
        Verb::Run(run) => {
            let job = Job {
                timeout: run.timeout.map(Duration::from_secs),
                console: run.console,
                writable: run.writable,
                known: run.known,
                ..run.guest.job(run.command)
            };
            boot(&run.guest.flavour, &job)
        }
        Verb::Shell(shell) => {
            let job = Job { stdio: Stdio::Terminal, ..shell.guest.job(vec!["bash".into()]) };
            boot(&shell.guest.flavour, &job)
        }
        Verb::Stage(setting) => stage(&setting),
        Verb::Clean => clean(),
    }
}

fn build(args: &Build) -> Result<ExitCode> {
    let (start, which) = (Instant::now(), &args.flavour);
    if args.check {
        return check(which);
    }
    let kernel = Lab::open()?.build(which.variant())?;
    if args.json {
        print_json(&kernel)?;
    } else {
        let seconds = start.elapsed().as_secs_f64();
        let image = kernel.image.display();
        print_line(&format!("{} is ready ({seconds:.1} s): {image}", kernel.release))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(which: &Which) -> Result<ExitCode> {
    let variant = which.variant();
    let is_there = Lab::open()?.has(variant)?;
    let (state, code) =
        if is_there { ("in", ExitCode::SUCCESS) } else { ("not in", ExitCode::FAILURE) };
    print_line(&format!("the {variant} kernel is {state} the cache"))?;
    Ok(code)
}

fn stage(setting: &Setting) -> Result<ExitCode> {
    let services: Vec<_> = setting.service.iter().map(String::as_str).collect();
    let stage = Stage::up(&crate::busbar()?, &services)?;
    let (program, arguments) = setting.command.split_first().expect("clap wants a command");
    let status = Command::new(program)
        .args(arguments)
        .env("BUSBAR_TEST_CTRL_FD", stage.eptfd.controller())
        .env("BUSBAR_TEST_CTRL_NODE", stage.in_tree.controller())
        .status()
        .map_err(|why| Error::new("run", program.display().to_string(), why))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn clean() -> Result<ExitCode> {
    let bytes = Lab::open()?.clean()?;
    print_line(&format!("{} MB freed", bytes / 1_000_000))?;
    Ok(ExitCode::SUCCESS)
}

fn boot(which: &Which, job: &Job) -> Result<ExitCode> {
    let lab = Lab::open()?;
    let built: Built = lab.build(which.variant())?;
    // Not earlier: during the build, a signal ends this process and its children.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&job.interrupt), number)
            .map_err(|error| Error::new("handle", format!("signal {signal}"), error))?;
    }
    let outcome = lab.run(&built, job)?;
    explain(&outcome, job);
    Ok(ExitCode::from(outcome.code()))
}

/// Prints on stderr what the exit code alone does not tell.
fn explain(outcome: &Outcome, job: &Job) {
    for report in &outcome.reports {
        complain(&format!("busbar: the kernel reports\n{}", report.trim_end()));
    }
    let console = outcome.console.display();
    match outcome.end {
        End::TimedOut => {
            let seconds = job.timeout.unwrap_or_default().as_secs();
            complain(&format!("busbar: not done in {seconds} s (console: {console})"));
        }
        End::Died => complain(&format!("busbar: the guest went down (console: {console})")),
        End::Stalled => complain(&format!(
            "busbar: QEMU has lost the timer of a processor, which another run helps (console: {console})"
        )),
        _ if !outcome.reports.is_empty() => complain(&format!("busbar: console: {console}")),
        End::Exited(_) | End::Interrupted(_) | End::OutputClosed | End::Escaped => {}
    }
}
