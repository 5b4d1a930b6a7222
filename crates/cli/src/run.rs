//! `busbar run`.

mod journal;
mod metrics;
mod view;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::pipeline::{Config, Counters, Event, Pipeline};
use busbar::{Error, Result, later};

use self::journal::Journal;
use self::metrics::Metrics;
use self::view::{Summary, View};
use crate::drive::{self, Audience};
use crate::print::print_line;
use crate::progress::interruption;
use crate::quantity::seconds;

#[derive(clap::Args)]
#[command(after_help = "\
Example: all samples of a counter are verified, and every tenth is recorded
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
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Offer metrics to Prometheus: http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Append events to a file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print one JSON object per line: events, progress each second, and a summary
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
    // Before anything is opened that has to be closed in order.
    let stop = interruption(args.json)?;
    let metrics = args.metrics.map(Metrics::serve).transpose()?;
    let journal = args.journal.as_deref().map(Journal::open).transpose()?;
    let mut pipeline = drive::open(config, &stop)?;
    let mut run = Run { view: View::new(args.json), metrics, journal };
    let until = args.seconds.map(|seconds| later(Instant::now(), seconds));
    let is_enough = |_: &Pipeline| until.is_some_and(|until| Instant::now() >= until);
    let result = drive::turns(&mut pipeline, &stop, &mut run, is_enough);
    let summed = run.sum_up(&pipeline);
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
    view: View,
    metrics: Option<Metrics>,
    journal: Option<Journal>,
}

impl Audience for Run {
    fn event(&mut self, event: &Event) -> Result<()> {
        // Whoever reads one of them does not depend on the other's reader.
        let shown = self.view.event(event);
        shown.and(self.journal.as_mut().map_or(Ok(()), |journal| journal.write(event)))
    }

    fn progress(&mut self, counters: Counters) -> Result<()> {
        let shown = self.view.progress(&counters);
        if let Some(metrics) = &self.metrics {
            metrics.set(counters);
        }
        shown
    }
}

impl Run {
    fn sum_up(&mut self, pipeline: &Pipeline) -> Result<()> {
        let counters = pipeline.counters();
        let shown = self.view.summary(&counters, &pipeline.remaining());
        let summary = Summary::new(counters);
        shown.and(self.journal.as_mut().map_or(Ok(()), |journal| journal.write(&summary)))
    }
}
