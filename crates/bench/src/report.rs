//! The report of a benchmark: one type for all of them.

use std::fmt;
use std::fs;
use std::io;

use busbar::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{Extent, PATHS};

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
    /// The spread of `values`, or `None` if there are none.
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

/// What executes the processor's instructions here, as in [`Report::accelerator`].
pub(crate) fn accelerator() -> String {
    std::env::var("BUSBAR_ACCELERATOR").unwrap_or_else(|_| "native".into())
}

/// One case of a benchmark: the same work in the usual way and in Busbar's, in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Name of the work.
    pub name: String,
    /// Sizes and counts.
    pub params: serde_json::Map<String, serde_json::Value>,
    /// Unit of `baseline` and `busbar`: less is better.
    pub unit: String,
    /// Name of the baseline.
    pub against: String,
    /// The usual way.
    pub baseline: Spread,
    /// Busbar's.
    pub busbar: Spread,
    /// Baseline / Busbar, run by run: above 1, Busbar is ahead.
    pub ratio: Spread,
}

impl Case {
    /// Makes a case of the figures of both sides, run by run.
    ///
    /// # Panics
    /// If there was no run, or one side ran more often: a bug of the benchmark.
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

/// All results of one benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The path that was measured.
    pub bench: String,
    /// Release of the kernel.
    pub kernel: String,
    /// `kvm`, `tcg`, `icount` (emulated, time counts instructions), or `native`.
    pub accelerator: String,
    /// The processor of the machine; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Processors.
    pub cores: usize,
    /// Runs of each side.
    pub runs: usize,
    /// Extent of the benchmark.
    #[serde(default)]
    pub extent: Extent,
    /// The cases.
    pub cases: Vec<Case>,
    /// A summary for people: Markdown, or empty.
    #[serde(skip)]
    pub summary: String,
}

impl Report {
    /// An empty report of `bench`, on this machine.
    #[must_use]
    pub fn new(bench: &str, runs: usize, cases: Vec<Case>) -> Self {
        Self {
            bench: bench.into(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            accelerator: accelerator(),
            machine: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            runs,
            extent: Extent::default(),
            cases,
            summary: String::new(),
        }
    }

    /// Parses the output of `busbar bench NAME --json` in `file`.
    ///
    /// # Errors
    /// If it is something else; the error names `file` and the field.
    pub fn parse(file: &str, json: &str) -> Result<Self> {
        let mut from = serde_json::Deserializer::from_str(json);
        let report: Self = serde_path_to_error::deserialize(&mut from).map_err(|why| {
            let path = why.path().to_string();
            // If the file is no object, there is no field to name.
            let field = if path == "." { file.into() } else { format!("{file}: {path}") };
            refused(field, why.into_inner())
        })?;
        from.end().map_err(|why| refused(file.into(), why))?;
        report.check(file)?;
        Ok(report)
    }

    fn check(&self, file: &str) -> Result<()> {
        if !PATHS.contains(&&*self.bench) {
            let allowed = PATHS.join(", ");
            return Err(Error::invalid(format!("{file}: bench"), &self.bench, allowed));
        }
        for (number, case) in self.cases.iter().enumerate() {
            let columns =
                [("baseline", case.baseline), ("busbar", case.busbar), ("ratio", case.ratio)];
            for (column, Spread { min, median, max }) in columns {
                if !(0.0 <= min && min <= median && median <= max) {
                    let field = format!("{file}: cases[{number}].{column}");
                    let value = format!("{min}, {median}, {max}");
                    return Err(Error::invalid(field, value, "0 <= min <= median <= max"));
                }
            }
        }
        Ok(())
    }
}

/// The name of the processor or of the board, as far as the kernel tells.
fn processor() -> String {
    let board = fs::read_to_string("/sys/firmware/devicetree/base/model").ok();
    let names = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = names.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let virt = names.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let name = board.map(|name| name.trim_matches(['\0', '\n']).to_owned()).or(model);
    let name = name.unwrap_or_default();
    if virt && !name.is_empty() { format!("{name}, virtual") } else { name }
}

fn refused(field: String, why: serde_json::Error) -> Error {
    Error::new("read", field, io::Error::new(io::ErrorKind::InvalidData, why))
        .help("allowed: the output of `busbar bench NAME --json`")
}

/// A table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, kernel, accelerator, machine, cores, runs, .. } = self;
        if !machine.is_empty() {
            writeln!(f, "{machine}")?;
        }
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

    #[test]
    fn bad_json_names_file_and_field() {
        let spread = r#"{"min":1,"median":2,"max":3}"#;
        let with = |bench: &str, ratio: &str, end: &str| {
            format!(
                r#"{{"bench":"{bench}","kernel":"k","accelerator":"tcg","cores":1,"runs":1,"cases":
                [{{"name":"n","params":{{}},"unit":"us","against":"a","baseline":{spread},
                "busbar":{spread},"ratio":{ratio}}}]}}{end}"#
            )
        };
        assert_eq!(Report::parse("f", &with("wait", spread, "\n")).unwrap().cases.len(), 1);
        for (json, named) in [
            (with("loop", spread, ""), "f: bench"),
            (with("wait", r#"{"min":1,"median":2}"#, ""), "f: cases[0].ratio"),
            (with("wait", r#"{"min":1,"median":"2","max":3}"#, ""), "f: cases[0].ratio.median"),
            (with("wait", r#"{"min":3,"median":2,"max":4}"#, ""), "f: cases[0].ratio"),
            (with("wait", r#"{"min":-1,"median":2,"max":4}"#, ""), "f: cases[0].ratio"),
            (with("wait", r#"{"min":1,"median":2,"max":1e999}"#, ""), "f: cases[0].ratio.max"),
            (with("wait", spread, "{}"), "trailing characters"),
            (r#"{"bench":"wait"}"#.into(), "kernel"),
            ("[1]".into(), "read f"),
            (String::new(), "read f"),
        ] {
            let said = Report::parse("f", &json).unwrap_err().to_string();
            assert!(said.contains(named), "{named}: {said}");
        }
    }
}
