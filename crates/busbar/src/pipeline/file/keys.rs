//! The tables of a file, and the keys that each may have.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Fault;

const TABLES: &[&str] = &["pipeline", "source", "stage", "sink", "control"];
const PIPELINE: &[&str] = &["drain", "fail-fast"];
const SOURCE: &[&str] = &[
    "from",
    "blocks",
    "block-len",
    "memory",
    "interface",
    "channels",
    "count",
    "patience",
    "memory-limit",
];
const STAGE: &[&str] = &["input", "queue", "when-full", "do"];
/// What a stage has besides, by what it does.
const WORKS: &[(&str, &[&str])] = &[
    ("decimate", &["by"]),
    ("select", &["channels"]),
    ("gate", &["control", "open-on", "close-on", "samples", "open"]),
    ("checksum", &[]),
];
const SINK: &[&str] =
    &["input", "queue", "when-full", "to", "blocks", "memory", "interface", "patience", "announce"];
const CONTROL: &[&str] = &["endpoint", "sources", "sinks", "deadline", "on"];

/// Fails with the first key of the file that its table does not have. It is told before a key that is missing, as that
/// may be the same one, mistyped.
pub(super) fn check(file: &DeTable<'_>) -> Result<(), Fault> {
    let mut strange = Vec::new();
    unknown(&[], "the tables", file, TABLES, &mut strange);
    for (kind, value) in file {
        let Some(table) = value.get_ref().as_table() else { continue };
        let kind = kind.get_ref().as_ref();
        if kind == "pipeline" {
            unknown(&[kind], "the keys", table, PIPELINE, &mut strange);
            continue;
        }
        for (name, value) in table {
            let Some(node) = value.get_ref().as_table() else { continue };
            let path = [kind, name.get_ref().as_ref()];
            unknown(&path, "the keys", node, &known(kind, node), &mut strange);
        }
    }
    strange.into_iter().min_by_key(|(at, _)| *at).map_or(Ok(()), |(_, fault)| Err(fault))
}

/// The keys of a node.
fn known(kind: &str, node: &DeTable<'_>) -> Vec<&'static str> {
    match kind {
        "source" => SOURCE.to_vec(),
        "stage" => {
            let does = node.get("do").map(Spanned::get_ref).and_then(DeValue::as_str);
            let one = WORKS.iter().find(|(work, _)| Some(*work) == does);
            // Without a work that is known, those of all.
            let works = one.map_or(WORKS, std::slice::from_ref);
            STAGE.iter().chain(works.iter().flat_map(|(_, keys)| *keys)).copied().collect()
        }
        "sink" => SINK.to_vec(),
        "control" => CONTROL.to_vec(),
        // The table itself is told, as it comes first.
        _ => Vec::new(),
    }
}

/// The keys of `table` that are not in `known`, with their places.
fn unknown(
    path: &[&str],
    what: &str,
    table: &DeTable<'_>,
    known: &[&str],
    strange: &mut Vec<(usize, Fault)>,
) {
    for key in table.keys() {
        let (at, key) = (key.span().start, key.get_ref().as_ref());
        if known.contains(&key) {
            continue;
        }
        let meant = meant(key, known).map(|it| format!("; did you mean `{it}`?"));
        let allowed = format!("{what} {}{}", known.join(", "), meant.unwrap_or_default());
        strange.push((at, Fault::new(&[path, &[key]].concat(), key, allowed)));
    }
}

/// The one of `known` that a mistyped key is most like, if it is like one: a third of the letters may be wrong.
fn meant<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = |it: &&str| {
        let most = (it.len() / 3).max(1);
        // What is much longer is not compared letter by letter.
        key.len().abs_diff(it.len()) <= most && distance(key, it) <= most
    };
    known.iter().copied().filter(near).min_by_key(|it| distance(key, it))
}

/// How many letters have to be added, left out, replaced or exchanged with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let differs = usize::from(one[i - 1] != other[j - 1]);
            let mut least =
                (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + differs);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Config;

    #[test]
    fn the_nearest_key_is_meant_if_it_is_near() {
        for (key, known, expected) in [
            ("form", SOURCE, Some("from")),
            ("block_len", SOURCE, Some("block-len")),
            ("block-lenght", SOURCE, Some("block-len")),
            ("inptu", SINK, Some("input")),
            ("tto", SINK, Some("to")),
            ("when-ful", SINK, Some("when-full")),
            ("suorce", TABLES, Some("source")),
            ("colour", SINK, None),
            ("", SINK, None),
            ("ü", SINK, None),
        ] {
            assert_eq!(meant(key, known), expected, "{key}");
        }
    }

    #[test]
    fn letters_that_are_wrong_are_counted() {
        for (one, other, count) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "ba", 1),
            ("abc", "abd", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(
                (distance(one, other), distance(other, one)),
                (count, count),
                "{one} {other}"
            );
        }
    }

    /// A key that is listed here and read nowhere would be ignored in silence.
    #[test]
    fn each_key_is_read() {
        let stages = WORKS.iter().map(|(work, keys)| {
            let with = format!(
                "do = \"{work}\"\nby = 2\nchannels = [\"x\"]\ncontrol = \"d\"\nopen-on = \"y\""
            );
            ("stage.b", format!("input = \"a\"\n{with}"), [STAGE, keys].concat())
        });
        let others = [
            ("source.a", "from = \"synth:counter\"", SOURCE),
            ("sink.c", "input = \"a\"\nto = \"null:\"", SINK),
            ("control.d", "endpoint = \"e\"\nsources = [\"a\"]", CONTROL),
            ("pipeline", "", PIPELINE),
        ];
        let others = others.map(|(table, with, keys)| (table, with.to_owned(), keys.to_vec()));
        for (table, with, keys) in others.into_iter().chain(stages) {
            for key in &keys {
                let is_other = |line: &&str| {
                    let other = line.split(' ').next().unwrap_or_default();
                    other != *key && keys.contains(&other)
                };
                let with: Vec<_> = with.lines().filter(is_other).collect();
                let text = format!("[{table}]\n{key} = 1979-05-27\n{}\n", with.join("\n"));
                let error = Config::parse("a", &text).unwrap_err().to_string();
                assert!(error.contains(&format!("line 2, key `{table}.{key}`")), "{text}{error}");
            }
        }
    }

    #[test]
    fn a_key_that_is_long_is_compared_with_none() {
        assert_eq!(meant(&"from".repeat(1 << 18), SOURCE), None);
    }
}
