//! Formats figures for people, on the page and in the tables of the documentation.

use serde_json::{Map, Value};

use crate::{Case, Extent, Report, Spread};

/// Counts of repetitions: they do not distinguish cases.
const REPEATS: [&str; 4] = ["blocks", "calls", "messages", "ticks"];

/// Three significant digits or a few more, with spaces between thousands.
pub(crate) fn number(value: f64) -> String {
    match value {
        1e15.. => format!("{value:.2e}"),
        // Above this, a decimal digit is not significant.
        99.95.. => grouped(&format!("{value:.0}")),
        9.995.. => format!("{value:.1}"),
        0.0995.. => format!("{value:.2}"),
        0.000_95.. => format!("{value:.3}"),
        0.0 => "0".into(),
        _ => format!("{value:.1e}"),
    }
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Minimum, median and maximum.
pub(crate) fn spread(Spread { min, median, max }: Spread) -> String {
    [min, median, max].map(number).join(" / ")
}

/// The median, and what lies around it.
pub(crate) fn around(spread: Spread) -> String {
    let Spread { min, median, max } = spread;
    format!("{} ({} to {})", number(median), number(min), number(max))
}

/// A number of processors.
pub(crate) fn cores(cores: usize) -> String {
    if cores == 1 { "1 core".into() } else { format!("{cores} cores") }
}

/// A number of bytes.
pub(crate) fn size(bytes: f64) -> String {
    match bytes {
        1_048_576.0.. => format!("{} MiB", short(bytes / 1_048_576.0)),
        1_024.0.. => format!("{} KiB", short(bytes / 1_024.0)),
        _ => format!("{} B", short(bytes)),
    }
}

/// Without decimal digits for an integer.
fn short(value: f64) -> String {
    if value.fract() == 0.0 { grouped(&format!("{value:.0}")) } else { number(value) }
}

/// A value of a parameter.
pub(crate) fn value(key: &str, value: f64) -> String {
    match (key, key.strip_suffix("-us")) {
        ("bytes", _) => size(value),
        (_, Some(_)) => format!("{} us", short(value)),
        _ => short(value),
    }
}

/// A parameter and its value.
fn param(key: &str, of: &Value) -> String {
    match (of.as_f64(), key.strip_suffix("-us")) {
        (Some(number), _) if key == "bytes" => size(number),
        (Some(number), Some(what)) => format!("{what} {} us", short(number)),
        (Some(1.0), None) => format!("1 {}", key.strip_suffix('s').unwrap_or(key)),
        (Some(number), None) => format!("{} {key}", short(number)),
        (None, _) => format!("{key} {of}"),
    }
}

/// The parameters that `wanted` selects, the length first.
fn params(of: &Map<String, Value>, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut params: Vec<_> = of.iter().filter(|(key, _)| wanted(key)).collect();
    params.sort_by_key(|(key, _)| key.as_str() != "bytes");
    params.into_iter().map(|(key, value)| param(key, value)).collect()
}

/// The machine that a report was taken on.
pub(crate) fn machine(report: &Report) -> String {
    let Report { kernel, accelerator, machine, cores, runs, .. } = report;
    // Under emulation, instructions do not depend on it.
    let machine = if machine.is_empty() || accelerator != "native" {
        String::new()
    } else {
        format!("{machine}, ")
    };
    let cores = self::cores(*cores);
    let extent = match report.extent {
        Extent::Quick => ", quick",
        Extent::Normal => "",
        Extent::Full => ", full",
    };
    format!("{machine}Linux {kernel}, {accelerator}, {cores}, {runs} runs in turn{extent}")
}

/// Name and parameters of a case.
pub(crate) fn case(case: &Case) -> String {
    let mut words = vec![case.name.clone()];
    words.extend(params(&case.params, |_| true));
    words.join(", ")
}

/// The words that distinguish `case` from the others of `among`.
pub(crate) fn difference(case: &Case, among: &[&Case]) -> String {
    let differs = |same: fn(&Case, &Case) -> bool| among.iter().any(|other| !same(case, other));
    let mut words = Vec::new();
    if differs(|a, b| a.name == b.name) {
        words.push(case.name.clone());
    }
    words.extend(params(&case.params, |key| {
        !REPEATS.contains(&key)
            && among.iter().any(|other| other.params.get(key) != case.params.get(key))
    }));
    if differs(|a, b| a.against == b.against) {
        words.push(case.against.clone());
    }
    if words.is_empty() { case.name.clone() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_a_few_more() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_042, "4.2e-5"),
            (0.001_23, "0.001"),
            (0.075, "0.075"),
            (0.999, "1.00"),
            (1.274, "1.27"),
            (9.996, "10.0"),
            (42.26, "42.3"),
            (99.96, "100"),
            (1_113.4, "1 113"),
            (1_048_576.0, "1 048 576"),
            (1e18, "1.00e18"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(spread(Spread { min: 1.0, median: 2.0, max: 30.0 }), "1.00 / 2.00 / 30.0");
    }

    #[test]
    fn sizes_and_parameters_are_words() {
        assert_eq!([512.0, 32_768.0, 16_777_216.0].map(size), ["512 B", "32 KiB", "16 MiB"]);
        let of = |params| Case::new("c", params, "us", "a", &[(1.0, 1.0)]);
        assert_eq!(case(&of(&[("blocks", 50), ("bytes", 1_024)])), "c, 1 KiB, 50 blocks");
        assert_eq!(case(&of(&[("wait-us", 10)])), "c, wait 10 us");
        assert_eq!(case(&of(&[("flows", 1), ("held", 1)])), "c, 1 flow, 1 held");
    }

    #[test]
    fn a_case_is_told_by_what_differs() {
        let of = |name, bytes, against| {
            let params = [("bytes", bytes), ("blocks", bytes / 2), ("sockets", 4)];
            Case::new(name, &params, "us", against, &[(1.0, 1.0)])
        };
        let (a, b, c) = (of("x", 512, "tty"), of("x", 1_024, "tty"), of("y", 512, "node"));
        assert_eq!(difference(&a, &[&a, &b]), "512 B");
        assert_eq!(difference(&c, &[&a, &c]), "y, node");
        assert_eq!(difference(&a, &[&a]), "x");
    }
}
