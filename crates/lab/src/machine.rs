//! A kernel and what boots it: virtme-ng's command line.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use busbar::{Error, Result};
use tempfile::TempDir;

use crate::accelerator::{Accelerator, Choice, Trials, VARIABLE};
use crate::architecture::{Architecture, Iommu};
use crate::guest::{self, Script};
use crate::job::{End, Job, Outcome, Stdio};
use crate::patience::Limits;
use crate::process::Process;
use crate::progress::Progress;
use crate::transport::{Streams, option};
use crate::{Built, Flavour, Lab, at, root, tools, tsc, virtme};

/// Limit of a boot: three times the work that the emulated debug kernel needs.
const BOOT: Limits = Limits { first: MINUTES, time: MINUTES, work: Duration::from_secs(300) };
/// Limit of a boot, on a busy host too.
const MINUTES: Duration = Duration::from_secs(1800);
/// How often a guest is booted at most if QEMU's fault ends its boot ([`Process::may_boot_again`]).
const BOOTS: u32 = 3;
/// Seconds that the trial of KVM may take, if not [`TRIAL`]: in a guest, KVM works and is slow.
const TRIAL_VARIABLE: &str = "BUSBAR_KVM_TRIAL";
const TRIAL: Duration = Duration::from_secs(30);
const MOST_TRIAL: u64 = 86_400;

/// A PCI device that no driver of Linux takes, behind the IOMMU.
const BEHIND: [&str; 2] = ["-device", "pci-testdev"];

/// The kernel for armv7 has 32-bit physical addresses, and QEMU's default is a PCI bus above them.
const LOW: [&str; 2] = ["-machine", "highmem=off"];

/// Directories of the root that the guest does not need, or has of its own.
const OWN: [&str; 7] = ["boot", "dev", "lost+found", "media", "proc", "run", "sys"];
/// More overlays would not fit into the kernel's command line.
const OVERLAYS: usize = 16;
/// The folder of the modules in a guest that does not have the host's files.
const MODULES: &str = "/run/busbar.modules";

impl Lab {
    /// Boots `built`, runs a command and ends the guest.
    ///
    /// All processes that it starts have ended when it returns. It must be called from a thread that lives as
    /// long, as QEMU is killed when the thread ends.
    ///
    /// # Errors
    /// The job is not valid, a tool is missing (it names the package), or the guest does not come
    /// up; the error has the end of its console.
    pub fn run(&self, built: &Built, job: &Job) -> Result<Outcome> {
        job.check()?;
        check(built, job)?;
        tools::require(&[&[built.architecture.qemu()], tools::RUN].concat())?;
        let machine = Machine { lab: self, built, virtme: virtme::find(&self.cache)? };
        let trials = Trials::new(&self.cache, built);
        let accelerator = trials.choose(job.accelerator, || machine.trial(job))?;
        machine.run(job, accelerator)
    }
}

/// Fails if a guest of this architecture cannot have the job's settings.
fn check(built: &Built, job: &Job) -> Result<()> {
    let architecture = built.architecture;
    if architecture.is_foreign() && job.accelerator == Choice::Use(Accelerator::Kvm) {
        let wanted = format!("emulation: KVM cannot run {}", architecture.name());
        return Err(Error::invalid("accelerator", "kvm", wanted));
    }
    if job.iommu && architecture.iommu().is_none() {
        return Err(Error::invalid("iommu", architecture.name(), "a guest for x86-64 or arm64"));
    }
    Ok(())
}

struct Machine<'a> {
    lab: &'a Lab,
    built: &'a Built,
    virtme: PathBuf,
}

impl Machine<'_> {
    /// Whether the kernel boots with KVM, in time.
    fn trial(&self, job: &Job) -> Result<bool> {
        let time = trial_time(env::var_os(TRIAL_VARIABLE).as_deref())?;
        let _progress = Progress::new("trying KVM", None);
        let trial = Job {
            stdio: Stdio::Capture,
            timeout: Some(time),
            interrupt: Arc::clone(&job.interrupt),
            ..Job::new(vec!["true".into()])
        };
        let mut guest = self.boot(&trial, Accelerator::Kvm)?;
        let end = guest.up(trial_limits(time)).and_then(|()| guest.end(trial.timeout));
        match guest.interrupted() {
            Some(_) => {
                let error = io::Error::from(io::ErrorKind::Interrupted);
                Err(Error::new("try", "KVM", error))
            }
            None => Ok(matches!(end, Ok(End::Exited(0)))),
        }
    }

    fn run(&self, job: &Job, accelerator: Accelerator) -> Result<Outcome> {
        let mut boots = 1;
        let (mut guest, up, boot) = loop {
            let progress = Progress::new("booting", None);
            let mut guest = self.boot(job, accelerator)?;
            let up = guest.up(BOOT);
            let boot = progress.elapsed();
            drop(progress);
            let is_emulated = accelerator != Accelerator::Kvm;
            let may = up.is_err() && boots < BOOTS && is_emulated;
            let Some(fault) = may.then(|| guest.may_boot_again()).flatten() else {
                break (guest, up, boot);
            };
            eprintln!("busbar: QEMU {fault}: booting again");
            boots += 1;
        };
        let end = match (up, guest.interrupted()) {
            (_, Some(signal)) => End::Interrupted(signal),
            (Err(error), None) => return Err(error),
            (Ok(()), None) => guest.end(job.timeout)?,
        };
        let last = guest.finish()?;
        let [stdout, stderr] = last.captured;
        let (mut reports, console) = (last.reports, last.console);
        reports.retain(|report| !job.known.iter().any(|text| report.contains(text)));
        Ok(Outcome { end, reports, console, stdout, stderr, accelerator, boot })
    }

    /// Starts virtme-ng.
    fn boot(&self, job: &Job, accelerator: Accelerator) -> Result<Process> {
        let folder = tempfile::Builder::new()
            .prefix("busbar-lab-")
            .tempdir()
            .map_err(|error| Error::new("create", "a temporary folder", error))?;
        let here =
            env::current_dir().map_err(|error| Error::new("find", "the current folder", error))?;
        let shares = self.shares(job, &here);
        if self.is_foreign() {
            root::prepare(&self.built.root, shares.iter().map(|(_, path)| path.as_path()))?;
        }
        let streams = Streams::new(job.stdio, folder.path())?;
        let script = Script {
            command: &job.command,
            variables: variables(accelerator),
            folder: &here,
            shares: &shares,
            stdin: streams.stdin,
            terminal: streams.terminal,
            // Each line takes milliseconds on an emulated serial port, which would affect a benchmark.
            loglevel: if self.for_use() { 5 } else { 7 },
        };
        script.write(folder.path(), &job.firmware)?;
        let console = job.console.clone().map_or_else(|| self.lab.cache.console(), Ok)?;
        let log = File::create(&console).map_err(at("create", &console))?;
        let command = self.command(job, accelerator, &folder, &streams, &shares)?;
        let interrupt = Arc::clone(&job.interrupt);
        Process::start(command, folder, streams, (console, log), interrupt)
    }

    fn command(
        &self,
        job: &Job,
        accelerator: Accelerator,
        folder: &TempDir,
        streams: &Streams,
        shares: &[(String, PathBuf)],
    ) -> Result<Command> {
        let mut command = tools::bound(&self.virtme, "KILL");
        // Files that virtme-ng leaves behind when it is killed are removed with the folder.
        command.env("TMPDIR", folder.path());
        command.arg("--kimg").arg(&self.built.image).arg("--qemu-bin").arg(self.qemu()?);
        // Files by 9p: virtiofsd would be one more process, and QEMU's own one does not fit.
        command.args(["--name", "busbar-lab", "--mods", "none", "--force-9p"]);
        command.args(["--memory", &job.memory, "--cpus", &job.cpus.to_string()]);
        command.arg(match accelerator {
            Accelerator::Kvm => "--disable-microvm",
            Accelerator::Tcg | Accelerator::Icount => "--disable-kvm",
        });
        command.args(self.root());
        command.args(
            overlays(&self.built.root).iter().map(|folder| format!("--overlay-rwdir=/{folder}")),
        );
        command.args(self.kernel_options(job, accelerator));
        command.arg("--show-boot-console").arg("--script-sh").arg(start());
        command
            .arg("--qemu-opts")
            .args(streams.devices())
            .args(shared("busbar.run", folder.path()));
        command.args(shares.iter().flat_map(|(tag, path)| shared(tag, path)));
        if let Some(initrd) = &self.built.initrd {
            command.arg("-initrd").arg(initrd);
        }
        if let Some(iommu) = self.iommu(job) {
            command.args(iommu.machine).args(BEHIND);
        }
        if self.built.architecture == Architecture::Armv7 {
            command.args(LOW);
        }
        match accelerator {
            // Otherwise QEMU falls back to emulation, and the trial would prove nothing.
            Accelerator::Kvm => command.args(["-machine", "accel=kvm"]),
            Accelerator::Icount => command.args(["-icount", "shift=0,sleep=off"]),
            Accelerator::Tcg => &mut command,
        };
        Ok(command)
    }

    fn iommu(&self, job: &Job) -> Option<Iommu> {
        self.built.architecture.iommu().filter(|_| job.iommu)
    }

    fn is_foreign(&self) -> bool {
        self.built.architecture.is_foreign()
    }

    /// virtme-ng's arguments for a root file system that is not the host's.
    fn root(&self) -> Vec<OsString> {
        if !self.is_foreign() {
            return Vec::new();
        }
        let mut modules = OsString::from(format!("--rodir={MODULES}="));
        modules.push(&self.built.modules);
        let machine = self.built.architecture.machine();
        let root = self.built.root.clone().into_os_string();
        vec!["--arch".into(), machine.into(), "--root".into(), root, modules]
    }

    /// Whether the kernel is built for ordinary use, so that figures are taken with it.
    fn for_use(&self) -> bool {
        matches!(self.built.flavour, Flavour::Release | Flavour::Stock)
    }

    fn kernel_options(&self, job: &Job, accelerator: Accelerator) -> Vec<String> {
        let modules = if self.is_foreign() { Path::new(MODULES) } else { &self.built.modules };
        let mut options = vec![
            // The host's own files hardly change while the guest runs: cached, it boots in half
            // the time. The folders that are shared to write are not cached.
            "rootflags=version=9p2000.L,trans=virtio,access=any,msize=512000,cache=loose"
                .to_owned(),
            format!("virtme_link_mods={}", modules.display()),
            "loglevel=5".to_owned(),
            // A busy host makes the guest's processors wait, and the kernel's checks of timers, clocks
            // and read-side sections then fail without an error of the kernel.
            "rcupdate.rcu_cpu_stall_timeout=100".to_owned(),
        ];
        if self.built.architecture == Architecture::X86_64 {
            options.extend(x86_options(accelerator));
        }
        if self.built.flavour == Flavour::Stock {
            // The lab's own kernel is built without these.
            options.extend(["mitigations=off", "audit=0", "apparmor=0"].map(str::to_owned));
        }
        options.extend(self.iommu(job).and_then(|iommu| iommu.option).map(str::to_owned));
        let all = options.iter().chain(&job.kernel_options);
        all.map(|option| format!("--kopt={option}")).collect()
    }

    /// A script that executes QEMU, and makes it end with virtme-ng.
    fn qemu(&self) -> Result<PathBuf> {
        let (qemu, _) = self.built.architecture.qemu();
        let path = self.lab.cache.path(qemu);
        let text = format!("#!/bin/sh\nexec setpriv --pdeathsig KILL -- {qemu} \"$@\"\n");
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            return Ok(path);
        }
        let write = || -> io::Result<()> {
            let file = tempfile::Builder::new()
                .permissions(PermissionsExt::from_mode(0o755))
                .tempfile_in(self.lab.cache.path(""))?;
            fs::write(&file, &text)?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(at("write", &path))?;
        Ok(path)
    }

    /// Directories of the host that the guest may write to, each with a tag.
    fn shares(&self, job: &Job, here: &Path) -> Vec<(String, PathBuf)> {
        let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let own = [Some(here.to_path_buf()), self.lab.project.clone(), target];
        let wanted = own.into_iter().flatten().chain(job.writable.iter().cloned());
        let folders = outermost(wanted.filter_map(|path| path.canonicalize().ok()).collect());
        let tag = |(number, path)| (format!("busbar.{number}"), path);
        folders.into_iter().enumerate().map(tag).collect()
    }
}

/// How long the trial of KVM may take, as the environment says.
fn trial_time(wanted: Option<&OsStr>) -> Result<Duration> {
    let Some(wanted) = wanted else { return Ok(TRIAL) };
    let seconds = wanted
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|it| (1..=MOST_TRIAL).contains(it));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        Error::invalid(
            TRIAL_VARIABLE,
            wanted.to_string_lossy(),
            format!("1 to {MOST_TRIAL} seconds"),
        )
    })
}

/// A guest that prints nothing at first will print nothing later.
fn trial_limits(time: Duration) -> Limits {
    Limits { first: time / 3, time, work: 2 * time }
}

/// Options on the command line of an x86-64 kernel.
fn x86_options(accelerator: Accelerator) -> Vec<String> {
    let mut options = vec![
        // See above.
        "no_timer_check".to_owned(),
        "tsc=reliable".to_owned(),
        // Linux forgets that it has five levels of page tables while it identifies its processor;
        // KASAN then takes an interrupt for an access to nowhere.
        "no5lvl".to_owned(),
    ];
    if accelerator == Accelerator::Tcg {
        options.extend(tsc::khz().map(|khz| format!("tsc_early_khz={khz}")));
    }
    options
}

/// The command line for virtme-ng's init.
fn start() -> String {
    let here = guest::FOLDER;
    let options = "trans=virtio,version=9p2000.L,msize=512000";
    format!(
        "mkdir {here} && mount -t 9p -o {options} busbar.run {here} && exec /bin/sh {here}/guest.sh"
    )
}

/// Without directories inside others, without files, and without those that the guest has of its own.
fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let own = |path: &Path| ["/dev", "/proc", "/sys"].iter().any(|own| path.starts_with(own));
    paths.retain(|path| path.parent().is_some() && path.is_dir() && !own(path));
    paths.sort();
    paths.dedup_by(|inner, outer| inner.starts_with(outer));
    paths
}

/// Directories of `root` that the guest can write to; the writes are lost when it ends.
fn overlays(root: &Path) -> Vec<String> {
    let Ok(root) = fs::read_dir(root) else { return Vec::new() };
    let folder = |entry: fs::DirEntry| {
        entry.file_type().ok()?.is_dir().then(|| entry.file_name().into_string().ok())?
    };
    let mut names: Vec<String> = root
        .filter_map(|entry| folder(entry.ok()?))
        .filter(|name| !OWN.contains(&name.as_str()) && !name.contains([' ', '"', ',', ':']))
        .collect();
    names.sort();
    names.truncate(OVERLAYS);
    names
}

fn variables(accelerator: Accelerator) -> Vec<(OsString, OsString)> {
    let mut variables = guest::environment(env::vars_os());
    variables.retain(|(name, _)| name != VARIABLE);
    variables.push((VARIABLE.into(), accelerator.name().into()));
    variables
}

/// QEMU's arguments that share a folder as `tag`.
fn shared(tag: &str, path: &Path) -> [OsString; 4] {
    let mut local = OsString::from(format!("local,id={tag},security_model=none,multidevs=remap"));
    local.push(",path=");
    local.push(option(path));
    let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
    ["-fsdev".into(), local, "-device".into(), device.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_a_trial_is_a_number_of_seconds() {
        assert_eq!(trial_time(None).unwrap(), TRIAL);
        assert_eq!(trial_time(Some("90".as_ref())).unwrap(), Duration::from_secs(90));
        for wrong in ["", "0", "-1", "86401", "18446744073709551615", "long"] {
            let why = trial_time(Some(wrong.as_ref())).unwrap_err().to_string();
            assert!(why.contains(TRIAL_VARIABLE), "{why}");
        }
    }

    #[test]
    fn folders_inside_others_are_shared_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["a/b/c", "ab"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("file"), "").unwrap();
        let paths = ["a/b/c", "ab", "a", "a/b", "a", "file", "missing"].map(at);
        assert_eq!(outermost(paths.to_vec()), [at("a"), at("ab")]);
    }

    #[test]
    fn the_root_and_the_kernels_folders_are_not_shared() {
        let paths = ["/", "/dev/shm", "/proc/self", "/sys/kernel"].map(PathBuf::from);
        assert!(outermost(paths.to_vec()).is_empty());
    }

    #[test]
    fn overlays_leave_out_what_the_guest_has_itself() {
        let names = overlays(Path::new("/"));
        assert!(names.iter().any(|name| name == "etc"));
        assert!(OWN.iter().all(|own| !names.iter().any(|name| name == own)));
    }
}
