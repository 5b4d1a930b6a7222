//! `busbar run`.

mod journal;
mod metrics;
mod view;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::pipeline::{Config, Pipeline, State};
use busbar::{Error, Result};
use busbar_coprocessor::Stop;
use rustix::process::Signal;

use self::journal::Journal;
use self::metrics::Metrics;
use self::view::View;
use crate::endpoint::{print_line, seconds};
use crate::progress::EACH;

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = "\
Example: every tenth sample of a counter over the network into a recording, and all of them verified
  cat > counter.toml <<END
  [source.adc]
  from = \"synth:counter?rate=1M\"

  [stage.tenth]
  input = \"adc\"
  do = \"decimate\"
  by = 10

  [sink.all]
  input = \"adc\"
  to = \"verify:counter\"

  [sink.some]
  input = \"tenth\"
  to = \"file:tenth\"
  when-full = \"drop-oldest\"
  END
  busbar run --check counter.toml
  busbar run counter.toml --seconds 5

All keys: docs/pipeline.md")]
pub struct Args {
    /// The pipeline, as TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only say whether the file is right
    #[arg(long)]
    check: bool,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Offer metrics to Prometheus: http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Append what happens to a file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print one JSON object a line: what happens, progress each second, and a summary
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let text =
        fs::read_to_string(&args.file).map_err(|why| Error::new("read", name.clone(), why))?;
    let config = Config::parse(&name, &text)?;
    if args.check {
        print_line(&format!("{name}: {}", described(&config)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything is opened that has to be undone.
    let stop = Stop::new()?.on_signal(Signal::INT.as_raw())?.on_signal(Signal::TERM.as_raw())?;
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    let journal = args.journal.as_deref().map(Journal::open).transpose()?;
    let pipeline = Pipeline::open(config)?;
    pipeline.wake_for(&stop)?;
    let view = View::new(args.json);
    let mut run = Run { pipeline, view, metrics, journal };
    let result = run.turns(&stop, args.seconds);
    let summed = run.sum_up();
    result.and(summed).map(|()| ExitCode::SUCCESS)
}

fn described(config: &Config) -> String {
    let Config { sources, stages, sinks, controls, .. } = config;
    let counted = [
        (sources.len(), "source"),
        (stages.len(), "stage"),
        (sinks.len(), "sink"),
        (controls.len(), "control"),
    ];
    let one = |(count, what): &(usize, &str)| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let counted: Vec<_> = counted.iter().filter(|(count, _)| *count > 0).map(one).collect();
    format!("right: {}", counted.join(", "))
}

struct Run {
    pipeline: Pipeline,
    view: View,
    metrics: Option<Metrics>,
    journal: Option<Journal>,
}

impl Run {
    fn turns(&mut self, stop: &Stop, seconds: Option<Duration>) -> Result<()> {
        let (mut next, mut signals) = (Instant::now() + EACH, 0);
        let mut until = seconds.map(|seconds| Instant::now() + seconds);
        loop {
            let state = self.pipeline.turn(TICK);
            self.tell()?;
            if state? == State::Finished {
                return Ok(());
            }
            signals += signal(stop);
            if signals > 1 {
                let why = std::io::Error::from(std::io::ErrorKind::Interrupted);
                return Err(Error::new("deliver", "what was under way", why));
            }
            let now = Instant::now();
            if signals == 1 || until.is_some_and(|until| now >= until) {
                until = None;
                self.pipeline.stop();
            }
            if now >= next {
                next = now + EACH;
                self.progress()?;
            }
        }
    }

    fn tell(&mut self) -> Result<()> {
        for event in self.pipeline.take_events() {
            self.view.event(&event)?;
            if let Some(journal) = &mut self.journal {
                journal.write(&event)?;
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        let counters = self.pipeline.counters();
        self.view.progress(&counters)?;
        if let Some(metrics) = &self.metrics {
            metrics.set(counters);
        }
        Ok(())
    }

    fn sum_up(&mut self) -> Result<()> {
        let remaining = self.pipeline.remaining();
        let counters = self.pipeline.counters();
        let summary = self.view.summary(&counters, &remaining)?;
        match &mut self.journal {
            Some(journal) => journal.write(&summary),
            None => Ok(()),
        }
    }
}

/// How many signals have come since.
fn signal(stop: &Stop) -> usize {
    let mut bytes = [0; 8];
    // None, or nothing there: both are no signal.
    rustix::io::read(stop, &mut bytes).unwrap_or(0)
}
