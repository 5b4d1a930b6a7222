//! Tables in Markdown, made from the output of benchmarks.
//!
//! A table stands between two lines, and is not edited by hand:
//!
//! ```text
//! <!-- figures: FILE.json [NAME…] [PARAMETER=VALUE…] -->
//! <!-- end figures -->
//! ```
//!
//! It has the cases whose name begins with one of the names (all cases without a name), and whose
//! parameters have those values. With the name `summary` it is the table at the end of the output of
//! `busbar bench bulk`.

use std::fmt::Write as _;

use busbar::{Error, Result};
use serde_json::Value;

use crate::{Case, Report, bulk, words};

const BEGIN: &str = "<!-- figures:";
const END: &str = "<!-- end figures -->";

/// A text whose tables agree with the reports.
#[derive(Debug)]
pub struct Updated {
    /// The whole text.
    pub text: String,
    /// The first lines of the tables that were changed.
    pub stale: Vec<String>,
}

/// Generates the tables of `markdown` again. `read` is called with the file that a table names.
///
/// # Errors
/// If `read` fails, a table does not end, or no case matches; the error names the
/// line.
pub fn update(markdown: &str, mut read: impl FnMut(&str) -> Result<Report>) -> Result<Updated> {
    let mut lines = (1..).zip(markdown.split_inclusive('\n'));
    let mut updated = Updated { text: String::new(), stale: Vec::new() };
    while let Some((number, line)) = lines.next() {
        updated.text += line;
        let marker = line.trim_end();
        if marker == END {
            return Err(misplaced(number, END, &format!("after a line `{BEGIN} …`")));
        }
        let Some(wanted) = marker.strip_prefix(BEGIN) else { continue };
        let mut before = String::new();
        let end = loop {
            match lines.next() {
                Some((_, line)) if line.trim_end() == END => break line,
                Some((_, line)) if !line.starts_with(BEGIN) => before += line,
                _ => return Err(misplaced(number, marker, &format!("before a line `{END}`"))),
            }
        };
        let table = Wanted::parse(wanted).ok_or_else(|| {
            misplaced(number, marker, &format!("{BEGIN} FILE.json [NAME…] [PARAMETER=VALUE…] -->"))
        })?;
        let after = table.of(&read(table.file)?).ok_or_else(|| {
            misplaced(number, marker, "names and parameters of cases that are in the file")
        })?;
        if before != after {
            updated.stale.push(marker.into());
        }
        updated.text += &after;
        updated.text += end;
    }
    Ok(updated)
}

fn misplaced(number: usize, line: &str, allowed: &str) -> Error {
    Error::invalid(format!("line {number}"), line, allowed)
}

/// The content of a marker.
struct Wanted<'a> {
    file: &'a str,
    names: Vec<&'a str>,
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Wanted<'a> {
    fn parse(marker: &'a str) -> Option<Self> {
        let mut words = marker.strip_suffix("-->")?.split_whitespace();
        let file = words.next()?;
        let (params, names): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
        let params = params.into_iter().filter_map(|word| word.split_once('=')).collect();
        Some(Self { file, names, params })
    }

    fn has(&self, case: &Case) -> bool {
        let is = |(key, value): &(&str, &str)| {
            value.parse::<Value>().is_ok_and(|value| case.params.get(*key) == Some(&value))
        };
        (self.names.is_empty() || self.names.iter().any(|name| case.name.starts_with(name)))
            && self.params.iter().all(is)
    }

    /// The table, if there are cases for it.
    fn of(&self, report: &Report) -> Option<String> {
        if self.names == ["summary"] && report.bench == "bulk" {
            return Some(format!("{}:\n\n{}", machine(report), bulk::summary(&report.cases)));
        }
        let cases: Vec<_> = report.cases.iter().filter(|case| self.has(case)).collect();
        (!cases.is_empty()).then(|| table(report, &cases))
    }
}

fn machine(report: &Report) -> String {
    cell(&words::machine(report))
}

fn table(report: &Report, cases: &[&Case]) -> String {
    let mut text = format!(
        "{}; minimum / median / maximum:\n\n\
         | case | usual way | unit | usual | Busbar | ratio |\n|---|---|---|---|---|---|\n",
        machine(report)
    );
    for case in cases {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            cell(&words::case(case)),
            cell(&case.against),
            cell(&case.unit),
            words::spread(case.baseline),
            words::spread(case.busbar),
            words::spread(case.ratio)
        );
    }
    text
}

/// Escapes characters that would end a cell or begin markup.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    for letter in text.chars() {
        match letter {
            '<' => cell += "&lt;",
            '&' => cell += "&amp;",
            '|' | '\\' | '`' | '[' | ']' | '*' | '_' => cell.extend(['\\', letter]),
            letter if letter.is_control() => cell.push(' '),
            letter => cell.push(letter),
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let case = |name, sockets| {
            Case::new(name, &[("sockets", sockets)], "us", "x|y", &[(2.0, 1.0), (9.0, 3.0)])
        };
        let cases = vec![case("give", 1), case("give-back", 4), case("turn", 4)];
        let report = Report::new("receive", 2, cases);
        Report { kernel: "6.12".into(), accelerator: "tcg".into(), cores: 1, ..report }
    }

    const HEAD: &str = "Linux 6.12, tcg, 1 core, 2 runs in turn; minimum / median / maximum:\n\n\
                        | case | usual way | unit | usual | Busbar | ratio |\n|---|---|---|---|---|---|\n";

    fn row(name: &str) -> String {
        format!(
            "| {name} | x\\|y | us | 2.00 / 5.50 / 9.00 | 1.00 / 2.00 / 3.00 \
             | 2.00 / 2.50 / 3.00 |\n"
        )
    }

    #[test]
    fn a_table_has_the_cases_that_are_wanted_and_the_rest_stays() {
        for (wanted, rows) in [
            ("f.json", &["give, 1 socket", "give-back, 4 sockets", "turn, 4 sockets"][..]),
            ("f.json give", &["give, 1 socket", "give-back, 4 sockets"]),
            ("f.json give turn sockets=4", &["give-back, 4 sockets", "turn, 4 sockets"]),
        ] {
            let begin = format!("# x\r\n{BEGIN} {wanted} -->\n");
            let rows: String = rows.iter().map(|name| row(name)).collect();
            let expected = format!("{begin}{HEAD}{rows}{END}\nrest");
            let stale = update(&format!("{begin}old\n{END}\nrest"), |_| Ok(report())).unwrap();
            assert_eq!(stale.text, expected);
            assert_eq!(stale.stale, [format!("{BEGIN} {wanted} -->")]);
            let fresh = update(&expected, |_| Ok(report())).unwrap();
            assert_eq!((fresh.text, fresh.stale), (expected, vec![]));
        }
    }

    #[test]
    fn of_bulk_there_is_a_summary() {
        let case = |name| Case::new(name, &[("bytes", 512)], "us", "", &[(64.0, 32.0)]);
        let cases = ["netlink", "fd", "buffer", "hand-over"].map(case).to_vec();
        let bulk = |_: &str| Ok(Report::new("bulk", 1, cases.clone()));
        let begin = format!("{BEGIN} f.json summary -->\n");
        let text = update(&format!("{begin}{END}\n"), bulk).unwrap().text;
        assert!(text.contains("1 runs in turn:\n\n| block | TTY |"), "{text}");
        assert!(text.contains("\n| 512 B | 0.064 ms, 8.0 MB/s | 0.032 ms, 16.0 MB/s |"), "{text}");
        // Cases of other benchmarks are ignored.
        let odd = |_: &str| {
            Ok(Report::new("bulk", 1, vec![Case::new("x", &[], "", "", &[(1.0, 1.0)]); 5]))
        };
        assert!(update(&format!("{begin}{END}\n"), odd).is_ok());
    }

    #[test]
    fn a_marker_that_cannot_be_is_named_with_its_line() {
        for (markdown, named) in [
            (format!("a\n{BEGIN} f.json -->\nb\n"), "line 2"),
            (format!("{BEGIN} f.json -->\n{BEGIN} f.json -->\n{END}\n"), "line 1"),
            (format!("a\n\n{END}\n"), "line 3"),
            (format!("{BEGIN} f.json nothing -->\n{END}\n"), "line 1"),
            (format!("{BEGIN} f.json sockets=2 -->\n{END}\n"), "line 1"),
            (format!("{BEGIN} -->\n{END}\n"), "FILE.json"),
            (format!("{BEGIN} f.json\n{END}\n"), "FILE.json"),
        ] {
            let said = update(&markdown, |_| Ok(report())).unwrap_err().to_string();
            assert!(said.contains(named), "{named}: {said}");
        }
        let gone = |file: &str| Err(Error::invalid(file, "x", "y"));
        let said = update(&format!("{BEGIN} f.json -->\n{END}\n"), gone).unwrap_err().to_string();
        assert!(said.contains("f.json"), "{said}");
    }

    #[test]
    fn a_cell_stays_a_cell() {
        assert_eq!(cell("a|b\n<!-- end [x](y) `c`"), "a\\|b &lt;!-- end \\[x\\](y) \\`c\\`");
    }
}
