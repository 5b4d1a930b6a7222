//! The clock, costs, and the order of the runs.

use std::time::{Duration, Instant};

use busbar::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::Case;

/// The cost of one run, for each unit of its work.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) micros: f64,
    pub(crate) cpu_micros: f64,
}

/// The time, and as `name` with `-cpu` the processor time.
pub(crate) fn cases(
    name: &str,
    params: &[(&str, u64)],
    unit: &str,
    against: &str,
    runs: &[(Cost, Cost)],
) -> [Case; 2] {
    let case = |name: &str, pick: fn(&Cost) -> f64| {
        let runs: Vec<_> = runs.iter().map(|(a, b)| (pick(a), pick(b))).collect();
        Case::new(name, params, unit, against, &runs)
    };
    [case(name, |cost| cost.micros), case(&format!("{name}-cpu"), |cost| cost.cpu_micros)]
}

/// Seconds of a clock that is never negative.
pub(crate) fn now(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A B A B …, after one round that is not counted.
pub(crate) fn in_turn<T>(
    rows: usize,
    mut a: impl FnMut() -> Result<T>,
    mut b: impl FnMut() -> Result<T>,
) -> Result<Vec<(T, T)>> {
    a()?;
    b()?;
    (0..rows).map(|_| Ok((a()?, b()?))).collect()
}

/// Microseconds for each of `count` calls of `once`.
pub(crate) fn clocked(count: u64, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..count {
        once()?;
    }
    Ok(micros_each(start, count))
}

/// Microseconds since `start` for each of `count`.
pub(crate) fn micros_each(start: Instant, count: u64) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / float(count)
}

/// The median, and the value that 1 in 100 exceeds, in microseconds, of nanoseconds.
pub(crate) fn percentiles(mut all: Vec<u64>) -> [f64; 2] {
    all.sort_unstable();
    let at = |part: usize| all.get(all.len() * part / 100).map_or(0.0, |nanos| float(*nanos) / 1e3);
    [at(50), at(99)]
}

// Exact, as counts and times are far below 2^52.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
