//! Parses configurations from TOML.

mod keys;

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::config::{
    Config, ControlConfig, Edge, Fault, Gate, REACTION, Reaction, SinkConfig, SinkKind,
    SourceConfig, SourceKind, StageConfig, WhenFull, Work,
};
use super::message::{Action, Report};
use crate::stream::silence::{self, TIMES, scaled};
use crate::{Error, Result};

/// Bytes of the longest file.
const MOST: usize = 1 << 20;
/// The values that are allowed for a size.
const SIZES: &str = "a number of bytes, or a text such as \"64K\" or \"1M\" (K is 1024)";

impl Config {
    /// Parses and checks the text of a file; `name` is its name in errors.
    ///
    /// # Errors
    ///
    /// Bad input, naming the line, the key, its value and the allowed values.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        if text.len() > MOST {
            let allowed = format!("up to {MOST} bytes");
            return Err(Error::invalid(format!("{name} as a pipeline"), text.len(), allowed));
        }
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Error::invalid(place(name, text, at), error.message(), "TOML, see https://toml.io")
        })?;
        let table = table.get_ref();
        let config = config(table).and_then(|config| config.verify().map(|()| config));
        config.map_err(|fault| {
            let at = position(table, &fault.path);
            let on = format!("{}, key `{}`", place(name, text, at), fault.path.join("."));
            Error::invalid(on, fault.value.escape_debug(), fault.allowed)
        })
    }
}

/// A place in the file, such as `FILE, line 7`.
fn place(name: &str, text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    format!("{name}, line {}", before.bytes().filter(|byte| *byte == b'\n').count() + 1)
}

/// The offset of a key, or of the last table on the way to it.
fn position(table: &DeTable<'_>, path: &[String]) -> usize {
    let Some((first, rest)) = path.split_first() else { return 0 };
    let Some((key, value)) = table.get_key_value(first.as_str()) else { return 0 };
    let inner = match value.get_ref() {
        DeValue::Table(table) => position(table, rest),
        _ => 0,
    };
    inner.max(key.span().start)
}

/// A table whose keys are taken one by one.
struct Keys<'a> {
    path: Vec<String>,
    table: &'a DeTable<'a>,
}

impl<'a> Keys<'a> {
    fn new(path: &[&str], value: &'a Spanned<DeValue<'a>>) -> Result<Self, Fault> {
        let path: Vec<_> = path.iter().map(ToString::to_string).collect();
        match value.get_ref() {
            DeValue::Table(table) => Ok(Self { path, table }),
            other => {
                let allowed = format!("a table: [{}]", path.join("."));
                Err(Fault { path, value: other.type_str().into(), allowed })
            }
        }
    }

    fn get(&self, key: &'static str) -> Option<&'a DeValue<'a>> {
        self.table.get(key).map(Spanned::get_ref)
    }

    fn fault(&self, key: &str, value: impl Display, allowed: impl Display) -> Fault {
        let mut path = self.path.clone();
        path.push(key.into());
        Fault { path, value: value.to_string(), allowed: allowed.to_string() }
    }

    fn text(&self, key: &'static str) -> Result<Option<&'a str>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.fault(key, other.type_str(), "a text, in quotes")),
        }
    }

    fn required(&self, key: &'static str, allowed: &str) -> Result<&'a str, Fault> {
        let text = self.text(key)?;
        text.ok_or_else(|| self.fault(key, "nothing", format!("{key} = {allowed}")))
    }

    /// A value that is parsed from text; the error tells what is allowed.
    fn parsed<T: FromStr<Err = Error>>(&self, key: &'static str) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let parsed = text.parse().map_err(|error: Error| self.fault(key, text, allowed(&error)));
        parsed.map(Some)
    }

    fn number(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = integer(value).filter(|number| range.contains(number));
        let allowed = || format!("a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.fault(key, shown(value), allowed()))
    }

    fn count(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<usize>, Fault> {
        let number = self.number(key, range)?;
        Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    fn size(&self, key: &'static str) -> Result<Option<usize>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = match value {
            DeValue::String(text) => {
                scaled(text, &[("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)])
            }
            other => integer(other),
        };
        let size = size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        size.map(Some).ok_or_else(|| self.fault(key, shown(value), SIZES))
    }

    fn time(&self, key: &'static str) -> Result<Option<Duration>, Fault> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        silence::time(text).map(Some).ok_or_else(|| self.fault(key, text, TIMES))
    }

    fn boolean(&self, key: &'static str, default: bool) -> Result<bool, Fault> {
        match self.get(key) {
            None => Ok(default),
            Some(DeValue::Boolean(value)) => Ok(*value),
            Some(other) => Err(self.fault(key, shown(other), "true, false")),
        }
    }

    fn texts(&self, key: &'static str) -> Result<Vec<String>, Fault> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        texts(value).ok_or_else(|| self.fault(key, shown(value), "texts: [\"one\", \"other\"]"))
    }
}

fn config(table: &DeTable<'_>) -> Result<Config, Fault> {
    keys::check(table)?;
    let mut config = Config::default();
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "pipeline" => {
                let keys = Keys::new(&["pipeline"], value)?;
                config.drain = keys.time("drain")?;
                config.fail_fast = keys.boolean("fail-fast", false)?;
            }
            "source" => config.sources = nodes("source", value, source)?,
            "stage" => config.stages = nodes("stage", value, stage)?,
            "sink" => config.sinks = nodes("sink", value, sink)?,
            "control" => config.controls = nodes("control", value, control)?,
            // There are no others.
            _ => {}
        }
    }
    Ok(config)
}

/// The nodes of one kind: `[KIND.NAME]`.
fn nodes<'a, T>(
    kind: &str,
    value: &'a Spanned<DeValue<'a>>,
    node: impl Fn(String, &Keys<'a>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let Keys { table, .. } = Keys::new(&[kind, "NAME"], value)?;
    let mut nodes: Vec<(Range<usize>, T)> = Vec::new();
    for (name, value) in table {
        let keys = Keys::new(&[kind, name.get_ref()], value)?;
        nodes.push((name.span(), node(name.get_ref().to_string(), &keys)?));
    }
    // In their order in the file.
    nodes.sort_by_key(|(span, _)| span.start);
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}

fn source(name: String, keys: &Keys<'_>) -> Result<SourceConfig, Fault> {
    keys.required("from", "a source such as \"iio:NAME\" or \"synth:counter\"")?;
    let Some(from) = keys.parsed::<SourceKind>("from")? else {
        return Err(keys.fault("from", "nothing", "a source"));
    };
    let default = SourceConfig::new(name, from);
    Ok(SourceConfig {
        blocks: keys.count("blocks", 1..=1024)?,
        block_len: keys.size("block-len")?.unwrap_or(default.block_len),
        memory: keys.parsed("memory")?,
        interface: keys.parsed("interface")?,
        channels: keys.texts("channels")?,
        count: keys.number("count", 1..=u64::MAX)?,
        patience: keys.time("patience")?,
        memory_limit: keys.size("memory-limit")?,
        ..default
    })
}

fn edge(keys: &Keys<'_>) -> Result<Edge, Fault> {
    let default = Edge::new(keys.required("input", "the name of a source or stage")?);
    Ok(Edge {
        queue: keys.count("queue", 1..=1024)?,
        when_full: keys.parsed::<WhenFull>("when-full")?.unwrap_or_default(),
        ..default
    })
}

fn stage(name: String, keys: &Keys<'_>) -> Result<StageConfig, Fault> {
    const WORKS: &str = "decimate, select, gate, checksum";
    let input = edge(keys)?;
    let work = match keys.required("do", WORKS)? {
        "decimate" => {
            let by = keys.number("by", 1..=u64::from(u32::MAX))?;
            let by = by.ok_or_else(|| keys.fault("by", "nothing", "by = 10, for every tenth"))?;
            Work::Decimate(u32::try_from(by).unwrap_or(u32::MAX))
        }
        "select" => {
            let channels = keys.texts("channels")?;
            if channels.is_empty() {
                return Err(keys.fault("channels", "nothing", "names of channels"));
            }
            Work::Select(channels)
        }
        "gate" => Work::Gate(Gate {
            control: keys.required("control", "the name of a control")?.into(),
            open_on: keys.required("open-on", "the name of an event")?.into(),
            close_on: keys.text("close-on")?.map(Into::into),
            samples: keys.number("samples", 1..=u64::MAX)?,
            is_open: keys.boolean("open", false)?,
        }),
        "checksum" => Work::Checksum,
        strange => return Err(keys.fault("do", strange, WORKS)),
    };
    Ok(StageConfig { name, input, work })
}

fn sink(name: String, keys: &Keys<'_>) -> Result<SinkConfig, Fault> {
    let input = edge(keys)?;
    keys.required("to", "a sink such as \"tcp:HOST:PORT\", \"file:NAME\" or \"null:\"")?;
    let Some(to) = keys.parsed::<SinkKind>("to")? else {
        return Err(keys.fault("to", "nothing", "a sink"));
    };
    let default = SinkConfig::new(name, input, to);
    Ok(SinkConfig {
        blocks: keys.count("blocks", 1..=1024)?,
        memory: keys.parsed("memory")?,
        interface: keys.parsed("interface")?,
        patience: keys.time("patience")?,
        announce: keys.boolean("announce", default.announce)?,
        ..default
    })
}

fn control(name: String, keys: &Keys<'_>) -> Result<ControlConfig, Fault> {
    let endpoint = keys.required("endpoint", "the name of a coprocessor's service")?.into();
    let [sources, sinks] = [keys.texts("sources")?, keys.texts("sinks")?];
    let deadline = keys.time("deadline")?.unwrap_or(REACTION);
    let mut on = Vec::new();
    if let Some(value) = keys.get("on") {
        let DeValue::Table(table) = value else {
            return Err(keys.fault("on", value.type_str(), "a table: on.EVENT = [\"…\"]"));
        };
        for (event, value) in table {
            on.push(reaction(keys, event.get_ref(), value.get_ref())?);
        }
    }
    Ok(ControlConfig { name, endpoint, sources, sinks, deadline, on })
}

fn reaction(keys: &Keys<'_>, event: &str, value: &DeValue<'_>) -> Result<Reaction, Fault> {
    const ALLOWED: &str =
        "actions: [\"start SOURCE\", \"stop SOURCE\", \"set SOURCE ATTRIBUTE VALUE\"]";
    let fault = |value: &str, allowed: &str| {
        let mut fault = keys.fault("on", value, allowed);
        fault.path.push(event.into());
        fault
    };
    let texts = texts(value).ok_or_else(|| fault(&shown(value), ALLOWED))?;
    let actions = texts.iter().map(|text| action(text).ok_or_else(|| fault(text, ALLOWED)));
    Ok(Reaction { event: event.into(), actions: actions.collect::<Result<_, _>>()? })
}

fn action(text: &str) -> Option<Action> {
    match Report::decode(format!("0 {text}").as_bytes()) {
        Ok(Report::Command { action, .. }) => Some(action),
        _ => None,
    }
}

fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    let DeValue::Array(array) = value else { return None };
    let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    };
    array.iter().map(text).collect()
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let DeValue::Integer(number) = value else { return None };
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A value, for an error.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().into(),
        DeValue::Float(number) => number.as_str().into(),
        DeValue::Boolean(value) => value.to_string(),
        other => other.type_str().into(),
    }
}

/// The allowed values that an error names.
fn allowed(error: &Error) -> String {
    let help = error.advice().unwrap_or_default();
    help.strip_prefix("allowed: ").unwrap_or(help).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::Memory;
    use crate::stream::Interface;

    const GOOD: &str = r#"
[pipeline]
drain = "2s"
fail-fast = true

[source.adc]
from = "iio:vconv0"
block-len = "256K"
channels = ["voltage0_i", "voltage0_q"]
count = 1_000

[stage.gate]
input = "adc"
do = "gate"
control = "core"
open-on = "trigger"
samples = 100_000

[sink.net]
input = "gate"
to = "tcp:10.0.0.2:4950"
announce = true
queue = 16
when-full = "drop-oldest"

[sink.copy]
input = "adc"
to = "null:"
blocks = 8
memory = "huge"
interface = "fileio"

[control.core]
endpoint = "control"
sources = ["adc"]
deadline = "5ms"
on.overload = ["set adc in_voltage0_i_hardwaregain 0.5"]
"#;

    #[test]
    fn a_file_is_a_pipeline() {
        let config = Config::parse("good.toml", GOOD).unwrap();
        assert_eq!(config.drain, Some(Duration::from_secs(2)));
        assert!(config.fail_fast);
        assert_eq!((config.sources[0].block_len, config.sources[0].count), (256 << 10, Some(1000)));
        let SinkConfig { blocks, memory, interface, .. } = &config.sinks[1];
        let expected = (Some(8), Some(Memory::HugePages), Some(Interface::Fileio));
        assert_eq!((*blocks, memory.clone(), *interface), expected);
        let edge = &config.sinks[0].input;
        assert_eq!((edge.queue, edge.when_full), (Some(16), WhenFull::DropOldest));
        let announced = config.sinks.iter().map(|it| it.announce).collect::<Vec<_>>();
        assert_eq!(announced, [true, false]);
        assert!(
            matches!(&config.stages[0].work, Work::Gate(gate) if gate.samples == Some(100_000))
        );
        assert_eq!(config.controls[0].deadline, Duration::from_millis(5));
        let action = &config.controls[0].on[0].actions[0];
        assert_eq!(action.to_string(), "set adc in_voltage0_i_hardwaregain 0.5");
        assert_eq!(
            config.sinks.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            ["net", "copy"]
        );
    }

    /// What is said of the good file after `from` was replaced by `to`.
    fn said(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Config::parse("bad.toml", &GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn an_error_has_the_line_the_key_and_what_is_allowed() {
        let line = |text: &str| GOOD.lines().position(|line| line.contains(text)).unwrap() + 1;
        for (from, to, key, says) in [
            ("\"iio:vconv0\"", "\"ubs:1\"", "source.adc.from", "tcp-listen:"),
            ("\"256K\"", "\"256X\"", "source.adc.block-len", "64K"),
            ("\"256K\"", "0", "source.adc.block-len", "64K"),
            ("\"256K\"", "-1", "source.adc.block-len", "`-1`"),
            ("block-len", "blok-len", "source.adc.blok-len", "block-len"),
            ("1_000", "0", "source.adc.count", "from 1"),
            ("= true", "= 1", "pipeline.fail-fast", "false"),
            ("blocks = 8", "blocks = 0", "sink.copy.blocks", "1 to 1024"),
            ("\"huge\"", "\"hug\"", "sink.copy.memory", "huge"),
            ("\"fileio\"", "\"file\"", "sink.copy.interface", "dmabuf"),
            ("channels = [\"", "channels = [1, \"", "source.adc.channels", "texts"),
            ("\"2s\"", "\"2\"", "pipeline.drain", "20ms"),
            ("\"2s\"", "\"0s\"", "pipeline.drain", "20ms"),
            ("input = \"gate\"", "input = \"gat\"", "sink.net.input", "adc, gate"),
            ("queue = 16", "queue = 0", "sink.net.queue", "1 to 1024"),
            ("queue = 16", "queue = 0x4000", "sink.net.queue", "1 to 1024"),
            ("drop-oldest", "drop", "sink.net.when-full", "drop-newest"),
            ("do = \"gate\"", "do = \"gait\"", "stage.gate.do", "decimate, select"),
            ("open-on", "opens-on", "stage.gate.opens-on", "did you mean `open-on`?"),
            ("input = \"gate\"", "inptu = \"gate\"", "sink.net.inptu", "did you mean `input`?"),
            ("from =", "form =", "source.adc.form", "did you mean `from`?"),
            ("to = \"null:\"", "tto = \"null:\"", "sink.copy.tto", "did you mean `to`?"),
            ("endpoint =", "endpiont =", "control.core.endpiont", "did you mean `endpoint`?"),
            ("on.overload", "no.overload", "control.core.no", "did you mean `on`?"),
            ("drain =", "drian =", "pipeline.drian", "did you mean `drain`?"),
            ("samples = 100_000", "by = 10", "stage.gate.by", "control, open-on"),
            ("[control.core]", "[contrl.core]", "contrl", "did you mean `control`?"),
            ("announce = true", "announce.to = true", "sink.net.announce", "true, false"),
            ("control = \"core\"", "control = \"c\"", "stage.gate.control", "core"),
            ("100_000", "1.5", "stage.gate.samples", "1.5"),
            ("\"tcp:10.0.0.2:4950\"", "\"tcp:4950\"", "sink.net.to", "tcp:HOST:PORT"),
            ("set adc", "set dac", "control.core.on.overload", "sources of the pipeline"),
            ("set adc", "set net", "control.core.on.overload", "sinks that are converters"),
            (
                "sources = [\"adc\"]",
                "sinks = [\"net\"]",
                "control.core.sinks",
                "names of sinks that are converters",
            ),
            ("set adc", "sett adc", "control.core.on.overload", "start SOURCE"),
            (
                "sources = [\"adc\"]",
                "sources = [\"gate\"]",
                "control.core.sources",
                "names of sources",
            ),
        ] {
            let error = said(from, to);
            assert!(error.contains(&format!("key `{key}`")), "{key}: {error}");
            assert!(error.contains(says), "{says}: {error}");
            assert!(error.contains(&format!("line {},", line(from))), "{from}: {error}");
        }
    }

    #[test]
    fn what_is_no_such_file_is_an_error_too() {
        assert!(said("[pipeline]", "[pipeline").contains("line 2"));
        assert!(said("[pipeline]", "[piepline]").contains("pipeline, source"));
        assert!(said("[source.adc]", "[[source]]").contains("[source.NAME]"));
        assert!(said("[sink.copy]", "[sink.net]").contains("line"));
        // Each key once, however often it was looked for.
        let strange = said("block-len = ", "block_len = ");
        assert!(strange.contains("the keys from, blocks, block-len,"), "{strange}");
        assert!(Config::parse("a", "").unwrap_err().to_string().contains("one source or more"));
        assert!(Config::parse("a", &" ".repeat(MOST + 1)).is_err());
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_right_or_an_error_that_says_where(
            changes in prop::collection::vec((0..GOOD.len(), 0..40_usize, ".{0,6}"), 1..4),
        ) {
            let mut bytes = GOOD.as_bytes().to_vec();
            for (at, gone, new) in changes {
                let at = at.min(bytes.len());
                let end = bytes.len().min(at + gone);
                bytes.splice(at..end, new.bytes());
            }
            match Config::parse("bad.toml", &String::from_utf8_lossy(&bytes)) {
                Ok(config) => config.check().unwrap(),
                Err(error) => prop_assert!(error.to_string().contains("bad.toml, line "), "{}", error),
            }
        }
    }
}
