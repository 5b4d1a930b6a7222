//! The load of the host, for a guest that measures: an emulated guest cannot see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Serialize;

use crate::patience::work;

/// The file's name in the folder that the guest reads.
const FILE: &str = "host";
/// Time between two readings.
const EACH: Duration = Duration::from_millis(500);

/// Keeps a file with the last [`Reading`].
pub(crate) struct Host {
    file: PathBuf,
    group: Pid,
    start: Instant,
    told: Option<Instant>,
}

/// Clocks of the host, in seconds. The difference of two readings is what was used
/// in between.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Reading {
    /// Time.
    time: f64,
    /// The host's processors.
    processors: u64,
    /// Processor time that was used by anything.
    busy: f64,
    /// The guest's part of it, with virtme-ng and QEMU.
    guest: f64,
    /// Processor time that other machines had, if the host is a virtual one.
    stolen: f64,
    /// Time in which some task waited for a processor (`/proc/pressure/cpu`), if the kernel has it.
    waited: Option<f64>,
}

impl Host {
    /// For the guest of the process group `group`, which reads `folder`.
    pub fn new(folder: &Path, group: Pid) -> Self {
        Self { file: folder.join(FILE), group, start: Instant::now(), told: None }
    }

    /// Writes the file again, if that is due. An error is ignored: the guest then does without it.
    pub fn tell(&mut self) {
        let now = Instant::now();
        if self.told.is_none_or(|told| now - told >= EACH) {
            self.told = Some(now);
            let _ = crate::write_json(&self.file, &self.read());
        }
    }

    fn read(&self) -> Reading {
        let file = |name: &str| fs::read_to_string(name).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second();
        Reading {
            time: self.start.elapsed().as_secs_f64(),
            guest: work(self.group).as_secs_f64(),
            waited: waited(&file("/proc/pressure/cpu")),
            ..processors(&file("/proc/stat"), ticks)
        }
    }
}

/// The line of `/proc/stat` for all processors.
fn processors(stat: &str, ticks: u64) -> Reading {
    let is_one = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let all: Vec<u64> = all.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let sum = |fields: &[usize]| fields.iter().filter_map(|&at| all.get(at)).sum::<u64>();
    let seconds = |count: u64| Duration::from_millis(count * 1000 / ticks.max(1)).as_secs_f64();
    Reading {
        processors: stat.lines().filter(is_one).count() as u64,
        busy: seconds(sum(&[0, 1, 2, 5, 6])),
        stolen: seconds(sum(&[7])),
        ..Reading::default()
    }
}

/// The total of the line `some`, which is in microseconds.
fn waited(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    const STAT: &str =
        "cpu  1000 200 300 9000 50 10 20 70 5 0\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nctxt 5\n";

    #[test]
    fn processors_are_counted_and_what_they_did() {
        let reading = processors(STAT, 100);
        let expected = Reading { processors: 2, busy: 15.3, stolen: 0.7, ..Reading::default() };
        assert_eq!(reading, expected);
        assert_eq!(processors("", 100), Reading::default());
    }

    #[test]
    fn what_waited_is_told_where_the_kernel_knows() {
        let text = "some avg10=9.48 avg60=50.30 avg300=50.27 total=1500000\nfull avg10=0 total=0\n";
        assert_eq!(waited(text), Some(1.5));
        assert_eq!(waited(""), None);
    }

    #[test]
    fn the_file_is_written_again_and_again_and_clocks_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .process_group(0)
            .spawn()
            .unwrap();
        let mut host = Host::new(folder.path(), Pid::from_child(&child));
        let mut read = || {
            host.told = None;
            host.tell();
            let text = fs::read(folder.path().join(FILE)).unwrap();
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let seconds = |reading: &Value, name: &str| reading[name].as_f64().unwrap();
        let (first, start) = (read(), Instant::now());
        let mut last = read();
        while seconds(&last, "guest") < seconds(&first, "guest") + 0.1 {
            assert!(start.elapsed() < Duration::from_secs(60), "{first} {last}");
            last = read();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seconds(&last, "time") > seconds(&first, "time"), "{first} {last}");
        assert!(seconds(&last, "busy") > seconds(&first, "busy"), "{first} {last}");
        assert!(seconds(&last, "processors") >= 1.0, "{last}");
    }
}
