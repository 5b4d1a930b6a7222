//! Progress of work that takes its time: a bar on a terminal, now and then a line elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two lines when there is no terminal.
const INTERVAL: Duration = Duration::from_secs(15);

/// Shown on stderr, gone when dropped.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    count: u64,
    total: Option<u64>,
    start: Instant,
    said: Instant,
}

impl Progress {
    /// `total` is how many steps there will be, as far as one can know.
    pub fn new(what: &str, total: Option<u64>) -> Self {
        let now = Instant::now();
        let bar = io::stderr().is_terminal().then(|| draw(what, total));
        Self { bar, what: what.to_owned(), count: 0, total, start: now, said: now }
    }

    /// That many steps more are done.
    pub fn tick(&mut self, steps: u64) {
        self.count += steps;
        // An estimate can be too low. The end is when the work says so.
        let shown = self.total.map_or(self.count, |total| self.count.min(total.saturating_sub(1)));
        match &self.bar {
            Some(bar) => bar.set_position(shown),
            None if self.said.elapsed() >= INTERVAL => self.say(shown),
            None => {}
        }
    }

    fn say(&mut self, shown: u64) {
        self.said = Instant::now();
        let percent = self.total.map(|total| format!("{} %, ", shown * 100 / total.max(1)));
        let seconds = self.start.elapsed().as_secs();
        eprintln!("busbar: {}: {}{seconds} s", self.what, percent.unwrap_or_default());
    }

    /// How long it has taken.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
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
