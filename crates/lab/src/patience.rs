//! Detects a guest that hangs.
//!
//! A busy host can make a boot take ten times as long, so that the time alone says little.
//! Processor time says more: a guest that uses far more than it should spins, one that uses none waits
//! for something that never comes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// How often the work is measured.
const LOOK: Duration = Duration::from_secs(1);
/// A guest with less than `LEAST` work in this time hangs.
const IDLE: Duration = Duration::from_secs(90);
const LEAST: Duration = Duration::from_secs(1);

/// Limits of a guest.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Time until the first byte on the console.
    pub first: Duration,
    /// Total time.
    pub time: Duration,
    /// Processor time.
    pub work: Duration,
}

/// Watches the work of a process group.
pub(crate) struct Patience {
    limits: Limits,
    group: Pid,
    start: Instant,
    /// Processor time at the start.
    before: Duration,
    looked: Instant,
    /// When it was last seen to have worked, and its processor time then.
    busy: (Instant, Duration),
    heard: bool,
}

impl Patience {
    pub fn new(limits: Limits, group: Pid) -> Self {
        let now = Instant::now();
        let before = work(group);
        let busy = (now, before);
        Self { limits, group, start: now, before, looked: now, busy, heard: false }
    }

    /// A byte came on the console.
    pub fn heard(&mut self) {
        self.heard = true;
    }

    /// When to check again.
    pub fn next(&self) -> Instant {
        self.looked + LOOK
    }

    /// Why the limit is exceeded, if it is.
    pub fn end(&mut self) -> Option<String> {
        let now = Instant::now();
        if now < self.next() {
            return None;
        }
        self.looked = now;
        self.judge(now, work(self.group))
    }

    fn judge(&mut self, now: Instant, work: Duration) -> Option<String> {
        let Limits { first, time, work: most } = self.limits;
        if work.saturating_sub(self.busy.1) >= LEAST {
            self.busy = (now, work);
        }
        let (passed, idle) = (now - self.start, now - self.busy.0);
        if !self.heard && passed >= first {
            Some(format!("nothing on its console in {} s", first.as_secs()))
        } else if passed >= time {
            Some(format!("not done in {} s", time.as_secs()))
        } else if work.saturating_sub(self.before) >= most {
            Some(format!("not done in {} s of processor time", most.as_secs()))
        } else if idle >= IDLE {
            Some(format!("idle for {} s", idle.as_secs()))
        } else {
            None
        }
    }
}

/// The processor time that the processes of a group have taken.
pub(crate) fn work(group: Pid) -> Duration {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ticks: u64 = processes.filter_map(|entry| ticks(&entry.path(), group)).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// The same for one process, in ticks; `None` if it is not of the group.
fn ticks(process: &Path, group: Pid) -> Option<u64> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The second field is the name, in brackets, with any characters. The third is the state.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let is_member = number(5)? == u64::from(group.as_raw_nonzero().get().unsigned_abs());
    is_member.then(|| Some(number(14)? + number(15)?))?
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    const LIMITS: Limits = Limits {
        first: Duration::from_secs(10),
        time: Duration::from_secs(1000),
        work: Duration::from_secs(50),
    };

    /// Checks a guest that has done this much work at each of the times, in seconds.
    fn judged(heard: bool, course: &[(u64, u64)]) -> Option<String> {
        let mut patience = Patience::new(LIMITS, rustix::process::getpid());
        patience.before = Duration::ZERO;
        patience.busy.1 = Duration::ZERO;
        patience.heard = heard;
        course.iter().find_map(|&(time, work)| {
            patience.judge(patience.start + Duration::from_secs(time), Duration::from_secs(work))
        })
    }

    #[test]
    fn a_busy_host_is_given_time() {
        assert_eq!(judged(true, &[(60, 2), (120, 4), (180, 6), (900, 40)]), None);
    }

    #[test]
    fn who_spins_waits_or_says_nothing_hangs() {
        let why = |heard, course: &[(u64, u64)]| judged(heard, course).unwrap_or_default();
        assert!(why(true, &[(30, 25), (60, 50)]).contains("processor time"));
        assert!(why(true, &[(5, 10), (50, 10), (95, 10)]).contains("idle"));
        assert!(why(true, &[(50, 10), (100, 20), (1000, 30)]).contains("1000 s"));
        assert!(why(false, &[(5, 1), (10, 2)]).contains("nothing on its console"));
    }

    #[test]
    fn the_work_of_a_group_is_seen() {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_child(&child);
        let start = Instant::now();
        while work(group) < Duration::from_millis(50) {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(work(group), Duration::ZERO);
    }
}
