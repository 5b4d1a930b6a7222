//! Runs the pipeline of a command from its start to its end.

use std::io;
use std::time::Instant;

use busbar::pipeline::{Config, Counters, Event, Pipeline, State};
use busbar::{Error, Result, later};
use busbar_coprocessor::Stop;

use crate::progress::{EACH, TICK, explain_listen};

/// Who is told about events and progress.
pub trait Audience {
    /// Something has happened.
    fn event(&mut self, event: &Event) -> Result<()>;

    /// The counters, once a second.
    fn progress(&mut self, counters: Counters) -> Result<()>;
}

/// Opens a pipeline that wakes up for signals.
pub fn open(config: Config, stop: &Stop) -> Result<Pipeline> {
    let pipeline = Pipeline::open(config).map_err(explain_listen)?;
    pipeline.wake_for(stop)?;
    Ok(pipeline)
}

/// Turns it until it has finished. A signal, `is_enough` or an error of the audience stops it in order; a second signal at
/// once.
pub fn turns(
    pipeline: &mut Pipeline,
    stop: &Stop,
    audience: &mut impl Audience,
    mut is_enough: impl FnMut(&Pipeline) -> bool,
) -> Result<()> {
    let (mut next, mut count) = (later(Instant::now(), EACH), 0);
    // Its first error.
    let mut told = Ok(());
    loop {
        let state = pipeline.turn_timeout(TICK);
        for event in pipeline.take_events() {
            told = told.and(audience.event(&event));
        }
        if state? == State::Finished {
            return told;
        }
        count += stop.requests();
        if count > 1 {
            let why = io::Error::from(io::ErrorKind::Interrupted);
            return Err(Error::new("deliver", "the blocks in flight", why));
        }
        if count == 1 || told.is_err() || is_enough(pipeline) {
            pipeline.stop();
        }
        if Instant::now() >= next {
            next = later(Instant::now(), EACH);
            told = told.and(audience.progress(pipeline.counters()));
        }
    }
}
