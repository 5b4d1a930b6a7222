//! Progress of long work: a bar on a terminal, otherwise a line from time to time.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two lines without a terminal.
const INTERVAL: Duration = Duration::from_secs(15);

/// Shown on stderr until it is dropped.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    count: u64,
    total: Option<u64>,
    start: Instant,
    said: Instant,
}

impl Progress {
    /// `total` is the expected number of steps, if it is known.
    pub fn new(what: &str, total: Option<u64>) -> Self {
        let now = Instant::now();
        let bar = io::stderr().is_terminal().then(|| draw(what, total));
        Self { bar, what: what.to_owned(), count: 0, total, start: now, said: now }
    }

    /// Counts `steps` more.
    pub fn tick(&mut self, steps: u64) {
        self.count += steps;
        // The estimate can be too low: 100 % is shown only at the end.
        let shown = self.total.map_or(self.count, |total| self.count.min(total.saturating_sub(1)));
        match &self.bar {
            Some(bar) => bar.set_position(shown),
            None if self.said.elapsed() >= INTERVAL => self.say(shown),
            None => {}
        }
    }

    fn say(&mut self, shown: u64) {
        self.said = Instant::now();
        eprintln!("busbar: {}: {}", self.what, state(shown, self.total, self.start.elapsed()));
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The percentage, the time so far and, from 5 % on, the time left at this rate.
fn state(done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let Some(total) = total else { return format!("{seconds} s") };
    let percent = done * 100 / total.max(1);
    let left = (percent >= 5).then(|| seconds * total.saturating_sub(done) / done.max(1));
    let left = left.map(|left| format!(", about {left} s left"));
    format!("{percent} %, {seconds} s{}", left.unwrap_or_default())
}

fn draw(what: &str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{msg} {wide_bar} {percent:>3} % {elapsed}, {eta} left",
        None => "{spinner} {msg} {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_there_is_a_rate() {
        let at = |done, total, seconds| state(done, total, Duration::from_secs(seconds));
        assert_eq!(at(7, None, 30), "30 s");
        assert_eq!(at(4, Some(100), 15), "4 %, 15 s");
        assert_eq!(at(25, Some(100), 60), "25 %, 60 s, about 180 s left");
        assert_eq!(at(0, Some(0), 15), "0 %, 15 s");
    }
}
