//! What a benchmark says: one object, the same for all.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Smallest, middle and largest of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The middle one; of an even number, the mean of the middle two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`, or nothing where there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[half - 1], sorted[half])
        } else {
            sorted[half]
        };
        Some(Self { min, median, max })
    }
}

/// One line of a benchmark: the same work done in the usual way and in Busbar's, in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// What was done.
    pub name: String,
    /// With which sizes and counts.
    pub params: serde_json::Map<String, serde_json::Value>,
    /// Unit of `baseline` and `busbar`: less is better.
    pub unit: String,
    /// What the baseline is.
    pub against: String,
    /// The usual way.
    pub baseline: Spread,
    /// Busbar's.
    pub busbar: Spread,
    /// Baseline / Busbar, run by run: above 1, Busbar is ahead.
    pub ratio: Spread,
}

impl Case {
    /// From the figures of both sides, run by run.
    ///
    /// # Panics
    /// Where there was no run, or one side ran more often: a mistake of the benchmark.
    #[must_use]
    pub fn new(
        name: &str,
        params: &[(&str, u64)],
        unit: &str,
        against: &str,
        runs: &[(f64, f64)],
    ) -> Self {
        let column = |pick: fn(&(f64, f64)) -> f64| {
            Spread::of(&runs.iter().map(pick).collect::<Vec<_>>()).expect("a case has runs")
        };
        Self {
            name: name.into(),
            params: params.iter().map(|&(key, value)| (key.into(), value.into())).collect(),
            unit: unit.into(),
            against: against.into(),
            baseline: column(|run| run.0),
            busbar: column(|run| run.1),
            ratio: column(|run| run.0 / run.1),
        }
    }
}

/// All that one benchmark has measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The path that was measured.
    pub bench: String,
    /// Release of the kernel.
    pub kernel: String,
    /// `kvm`, `tcg`, `icount` (emulated, time counts instructions), or `native`.
    pub accelerator: String,
    /// Processors.
    pub cores: usize,
    /// Runs of each side.
    pub runs: usize,
    /// The lines.
    pub cases: Vec<Case>,
    /// The same in other words, for people: Markdown, or nothing.
    #[serde(skip)]
    pub summary: String,
}

impl Report {
    /// Of `bench`, on this machine.
    #[must_use]
    pub fn new(bench: &str, runs: usize, cases: Vec<Case>) -> Self {
        Self {
            bench: bench.into(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            accelerator: std::env::var("BUSBAR_ACCELERATOR").unwrap_or_else(|_| "native".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            runs,
            cases,
            summary: String::new(),
        }
    }
}

/// A table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, kernel, accelerator, cores, runs, .. } = self;
        writeln!(f, "{bench}: Linux {kernel}, {accelerator}, {cores} cores, {runs} runs in turn")?;
        writeln!(f, "{:<44} {:>4} {:>26} {:>26} {:>22}", "", "", "usual", "busbar", "ratio")?;
        writeln!(
            f,
            "{:<44} {:>4} {:>26} {:>26} {:>22}",
            "case, usual way", "unit", "min/median/max", "min/median/max", "min/median/max"
        )?;
        for case in &self.cases {
            let params: Vec<_> = case.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let spread = |s: Spread| format!("{:.1}/{:.1}/{:.1}", s.min, s.median, s.max);
            let ratio =
                format!("{:.2}/{:.2}/{:.2}", case.ratio.min, case.ratio.median, case.ratio.max);
            writeln!(
                f,
                "{:<44} {:>4} {:>26} {:>26} {:>22}",
                format!("{} {}, {}", case.name, params.join(" "), case.against),
                case.unit,
                spread(case.baseline),
                spread(case.busbar),
                ratio
            )?;
        }
        if self.summary.is_empty() { Ok(()) } else { write!(f, "\n{}", self.summary) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_takes_the_middle_whatever_the_order() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Spread { min: 1.0, median: 2.0, max: 3.0 });
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even, Spread { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratio_is_taken_run_by_run() {
        let case = Case::new("c", &[("size", 16)], "us", "usual", &[(10.0, 1.0), (10.0, 10.0)]);
        assert_eq!(case.ratio, Spread { min: 1.0, median: 5.5, max: 10.0 });
        assert_eq!(case.params["size"], 16);
    }

    #[test]
    fn report_survives_json() {
        let case = Case::new("c", &[], "us", "usual", &[(2.0, 1.0)]);
        let report = Report::new("endpoint", 1, vec![case]);
        let json = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(back.cases[0].ratio, report.cases[0].ratio);
        assert!(report.to_string().contains("2.0/2.0/2.0"), "{report}");
    }
}
