//! The messages between a pipeline and a coprocessor over an endpoint.
//!
//! A message is one line of UTF-8 without a line end, of at most [`MAX_LEN`] bytes. Words are separated
//! by one space, numbers are decimal without a sign or leading zeros.
//!
//! | from | message | meaning |
//! |---|---|---|
//! | pipeline | `start SOURCE` | the pipeline is ready for the stream of this source; the coprocessor controls it from now on |
//! | | `stop SOURCE` | the pipeline ends that stream |
//! | | `ok N` | command `N` was carried out |
//! | | `error N TEXT` | command `N` was not carried out; `TEXT` is the reason |
//! | coprocessor | `N start SOURCE` | command: start the source |
//! | | `N stop SOURCE` | command: stop it |
//! | | `N set SOURCE ATTRIBUTE VALUE` | command: write `VALUE` to an attribute of its IIO device |
//! | | `event NAME`, `event NAME VALUE` | something has happened; not answered |
//!
//! | field | allowed |
//! |---|---|
//! | `N` | 0 to 4294967295, chosen by the coprocessor; the answer repeats it |
//! | `SOURCE`, `NAME` | 1 to 31 of `A`–`Z`, `a`–`z`, `0`–`9`, `_`, `-`: the name of a source in the pipeline's file, or of an event |
//! | `ATTRIBUTE` | 1 to 63 of the same: the name of the attribute in sysfs |
//! | `VALUE` of `set`, `TEXT` | the rest of the line, 1 byte or more, no control characters |
//! | `VALUE` of `event` | 0 to 18446744073709551615, the number of a sample for example |
//!
//! ```
//! use busbar::pipeline::message::{Action, Report, Request};
//!
//! # fn main() -> busbar::Result<()> {
//! let Report::Command { number, action } = Report::decode(b"7 set adc sampling_frequency 48000")?
//! else { unreachable!() };
//! assert!(matches!(&action, Action::Set { value, .. } if value.as_str() == "48000"));
//! assert_eq!(Request::Ok { number }.encode()?, b"ok 7");
//! # Ok(())
//! # }
//! ```

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::{Error, Result};

/// Bytes of the longest message: what Linux's rpmsg bus carries.
pub const MAX_LEN: usize = 496;

/// Characters of the longest [`Name`].
const MAX_NAME: usize = 31;
/// Characters of the longest [`Attribute`].
const MAX_ATTRIBUTE: usize = 63;

/// From the pipeline to the coprocessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The pipeline is ready for the stream of this source. The coprocessor controls it from now on.
    Start(Name),
    /// The pipeline ends the stream of this source.
    Stop(Name),
    /// A command was carried out.
    Ok {
        /// The number of the command.
        number: u32,
    },
    /// A command was not carried out.
    Error {
        /// The number of the command.
        number: u32,
        /// The reason.
        text: Text,
    },
}

/// From the coprocessor to the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A command, to be carried out and answered.
    Command {
        /// The number of the command, which the answer repeats.
        number: u32,
        /// What to do.
        action: Action,
    },
    /// Something has happened. This is not answered.
    Event {
        /// The name of the event.
        name: Name,
        /// A value, such as the number of a sample.
        value: Option<u64>,
    },
}

/// The action of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a source.
    Start(Name),
    /// Stop a source.
    Stop(Name),
    /// Write to an attribute of the IIO device of a source, or of a sink.
    Set {
        /// The source or sink.
        source: Name,
        /// The name of the attribute in sysfs.
        attribute: Attribute,
        /// The value to write.
        value: Text,
    },
}

impl Request {
    /// The answer to a command that was not carried out. Control characters in `why` become spaces, and it is
    /// shortened if it does not fit.
    #[must_use]
    pub fn error(number: u32, why: impl Display) -> Self {
        /// The rest of a message after `error 4294967295 `.
        const MOST: usize = MAX_LEN - 17;
        let mut text = why.to_string().replace(char::is_control, " ");
        let end = (0..=MOST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        if text.is_empty() {
            "failed".clone_into(&mut text);
        }
        Self::Error { number, text: Text(text) }
    }

    /// Encodes the message.
    ///
    /// # Errors
    ///
    /// Bad input if it is longer than [`MAX_LEN`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        encode(self)
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Bad input, naming the first invalid field and what is allowed.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let mut words = Words::new(message)?;
        let request = match words.next() {
            "start" => Self::Start(words.name("the source to start")?),
            "stop" => Self::Stop(words.name("the source to stop")?),
            "ok" => Self::Ok { number: words.number("the number after `ok`")? },
            "error" => Self::Error {
                number: words.number("the number after `error`")?,
                text: words.text("the text of an error")?,
            },
            word => {
                let allowed = "start, stop, ok, error";
                return Err(Error::invalid("the first word", word.escape_debug(), allowed));
            }
        };
        words.end(request)
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(source) => write!(f, "start {source}"),
            Self::Stop(source) => write!(f, "stop {source}"),
            Self::Ok { number } => write!(f, "ok {number}"),
            Self::Error { number, text } => write!(f, "error {number} {text}"),
        }
    }
}

impl Report {
    /// Encodes the message.
    ///
    /// # Errors
    ///
    /// Bad input if it is longer than [`MAX_LEN`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        encode(self)
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Bad input, naming the first invalid field and what is allowed.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let mut words = Words::new(message)?;
        let report = match words.next() {
            "event" => Self::Event {
                name: words.name("the name of an event")?,
                value: words
                    .has_more()
                    .then(|| words.number("the value of an event"))
                    .transpose()?,
            },
            word => Self::Command {
                number: number(word).ok_or_else(|| {
                    let allowed = "event, or the number of a command, 0 to 4294967295";
                    Error::invalid("the first word", word.escape_debug(), allowed)
                })?,
                action: Action::take(&mut words)?,
            },
        };
        words.end(report)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { number, action } => write!(f, "{number} {action}"),
            Self::Event { name, value: None } => write!(f, "event {name}"),
            Self::Event { name, value: Some(value) } => write!(f, "event {name} {value}"),
        }
    }
}

impl Action {
    fn take(words: &mut Words<'_>) -> Result<Self> {
        Ok(match words.next() {
            "start" => Self::Start(words.name("the source to start")?),
            "stop" => Self::Stop(words.name("the source to stop")?),
            "set" => Self::Set {
                source: words.name("the source to set")?,
                attribute: words.next().parse()?,
                value: words.text("the value to set")?,
            },
            word => {
                let allowed = "start, stop, set";
                return Err(Error::invalid("the command", word.escape_debug(), allowed));
            }
        })
    }

    /// The source that it is for; also a sink, if it is [`Set`](Self::Set).
    #[must_use]
    pub fn source(&self) -> &Name {
        match self {
            Self::Start(source) | Self::Stop(source) | Self::Set { source, .. } => source,
        }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(source) => write!(f, "start {source}"),
            Self::Stop(source) => write!(f, "stop {source}"),
            Self::Set { source, attribute, value } => write!(f, "set {source} {attribute} {value}"),
        }
    }
}

/// The name of a source or an event: 1 to 31 of `A`–`Z`, `a`–`z`, `0`–`9`, `_`, `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    fn new(field: &str, name: &str) -> Result<Self> {
        word(field, name, MAX_NAME).map(Self)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new("the name", name)
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an attribute of an IIO device in sysfs: 1 to 63 of `A`–`Z`, `a`–`z`, `0`–`9`, `_`, `-`.
///
/// So it is never a path to another directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(String);

impl Attribute {
    /// The attribute's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Attribute {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        word("the attribute", name, MAX_ATTRIBUTE).map(Self)
    }
}

impl Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text up to the end of a line: 1 byte or more, no control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(String);

impl Text {
    fn new(field: &str, text: &str) -> Result<Self> {
        if text.is_empty() || text.contains(char::is_control) {
            let allowed = "1 byte or more, no control characters";
            return Err(Error::invalid(field, text.escape_debug(), allowed));
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Text {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new("the text", text)
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The remaining words of a message. A missing word is empty, which no field accepts.
struct Words<'a>(Option<&'a str>);

impl<'a> Words<'a> {
    fn new(message: &'a [u8]) -> Result<Self> {
        let len = message.len();
        if len > MAX_LEN {
            return Err(too_long(len));
        }
        let text = std::str::from_utf8(message)
            .map_err(|_| Error::invalid("a message", message.escape_ascii(), "UTF-8"))?;
        Ok(Self(Some(text)))
    }

    fn next(&mut self) -> &'a str {
        let (word, rest) = match self.0.unwrap_or_default().split_once(' ') {
            Some((word, rest)) => (word, Some(rest)),
            None => (self.0.unwrap_or_default(), None),
        };
        self.0 = rest;
        word
    }

    fn has_more(&self) -> bool {
        self.0.is_some()
    }

    fn name(&mut self, field: &str) -> Result<Name> {
        Name::new(field, self.next())
    }

    fn number<N: FromStr + Bounded>(&mut self, field: &str) -> Result<N> {
        let word = self.next();
        number(word).ok_or_else(|| {
            let allowed = format!("0 to {}, decimal, no leading zeros", N::MOST);
            Error::invalid(field, word.escape_debug(), allowed)
        })
    }

    fn text(&mut self, field: &str) -> Result<Text> {
        Text::new(field, self.0.take().unwrap_or_default())
    }

    /// `message` if nothing is left.
    fn end<T>(self, message: T) -> Result<T> {
        match self.0 {
            None => Ok(message),
            Some(rest) => {
                let allowed = "nothing after the last word";
                Err(Error::invalid("the end of a message", rest.escape_debug(), allowed))
            }
        }
    }
}

/// A number type with a largest value.
trait Bounded {
    const MOST: u64;
}

impl Bounded for u32 {
    const MOST: u64 = Self::MAX as u64;
}

impl Bounded for u64 {
    const MOST: u64 = Self::MAX;
}

/// Parses a number without a sign or leading zeros.
fn number<N: FromStr>(word: &str) -> Option<N> {
    let is_plain = word == "0" || word.starts_with(|first: char| matches!(first, '1'..='9'));
    is_plain.then(|| word.parse().ok()).flatten()
}

fn word(field: &str, word: &str, most: usize) -> Result<String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    if (1..=most).contains(&word.len()) && word.bytes().all(fits) {
        return Ok(word.to_owned());
    }
    Err(Error::invalid(field, word.escape_debug(), format!("1 to {most} of A-Z, a-z, 0-9, _, -")))
}

fn encode(message: &impl Display) -> Result<Vec<u8>> {
    let bytes = message.to_string().into_bytes();
    if bytes.len() > MAX_LEN { Err(too_long(bytes.len())) } else { Ok(bytes) }
}

fn too_long(len: usize) -> Error {
    Error::invalid("the length of a message", len, format!("at most {MAX_LEN} bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_message_is_what_the_table_says() {
        for line in ["start adc", "stop A_0-z", "ok 0", "ok 4294967295", "error 7 no such thing"] {
            let request = Request::decode(line.as_bytes()).unwrap();
            assert_eq!(request.encode().unwrap(), line.as_bytes());
        }
        let name = |name: &str| name.parse::<Name>().unwrap();
        let command = |number, action| Report::Command { number, action };
        let set = Action::Set {
            source: name("adc"),
            attribute: "in_voltage0_i_hardwaregain".parse().unwrap(),
            value: "0.70 \u{b5}V  ".parse().unwrap(),
        };
        for (line, report) in [
            ("3 start adc", command(3, Action::Start(name("adc")))),
            ("4 stop adc", command(4, Action::Stop(name("adc")))),
            ("5 set adc in_voltage0_i_hardwaregain 0.70 \u{b5}V  ", command(5, set)),
            ("event trigger", Report::Event { name: name("trigger"), value: None }),
            (
                "event overload 18446744073709551615",
                Report::Event { name: name("overload"), value: Some(u64::MAX) },
            ),
        ] {
            assert_eq!(Report::decode(line.as_bytes()).unwrap(), report);
            assert_eq!(report.to_string(), line);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_field_and_what_is_allowed() {
        let long = format!("start {}", "a".repeat(32));
        for (line, says) in [
            ("", "the first word: `` is not allowed (allowed: start, stop, ok, error"),
            ("Start adc", "the first word"),
            (" start adc", "the first word"),
            ("start", "the source to start: `` is not allowed (allowed: 1 to 31"),
            ("start  adc", "the source to start: ``"),
            (&long, "the source to start: `aaa"),
            ("stop a/b", "the source to stop: `a/b`"),
            ("start adc ", "the end of a message: ``"),
            ("start adc now", "the end of a message: `now`"),
            ("start adc\n", "the source to start: `adc\\n`"),
            ("ok", "the number after `ok`: ``"),
            ("ok +1", "allowed: 0 to 4294967295"),
            ("ok 01", "no leading zeros"),
            ("ok 4294967296", "`4294967296` is not allowed"),
            ("error 1", "the text of an error: ``"),
            ("error 1 a\tb", "the text of an error: `a\\tb` is not allowed (allowed: 1 byte"),
        ] {
            let error = Request::decode(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
        for (line, says) in [
            ("", "event, or the number of a command"),
            ("-1 start adc", "the first word: `-1`"),
            ("1", "the command: `` is not allowed (allowed: start, stop, set)"),
            ("1 run adc", "the command: `run`"),
            ("1 set adc", "the attribute: ``"),
            ("1 set adc ../x 1", "the attribute: `../x` is not allowed (allowed: 1 to 63"),
            ("1 set adc x", "the value to set: ``"),
            ("1 set adc x \u{7f}", "the value to set: `\\u{7f}`"),
            ("event", "the name of an event: ``"),
            ("event a ", "the value of an event: ``"),
            ("event a 18446744073709551616", "allowed: 0 to 18446744073709551615"),
            ("event a 1 2", "the end of a message: `2`"),
        ] {
            let error = Report::decode(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
        assert!(Report::decode(b"event \xff").unwrap_err().to_string().contains("UTF-8"));
        let error = Request::decode(&[b'a'; MAX_LEN + 1]).unwrap_err().to_string();
        assert!(error.contains("`497` is not allowed (allowed: at most 496"), "{error}");
    }

    #[test]
    fn the_text_of_an_error_is_made_to_fit() {
        let text = |why: &str| match Request::error(u32::MAX, why) {
            Request::Error { text, .. } => text.to_string(),
            other => panic!("{other}"),
        };
        assert_eq!(text("two\nlines\0"), "two lines ");
        assert_eq!(text(""), "failed");
        let long = Request::error(u32::MAX, "\u{e4}".repeat(300));
        let bytes = long.encode().unwrap();
        assert_eq!((bytes.len(), Request::decode(&bytes).unwrap()), (495, long));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_encoded() {
        let set = |len| Report::Command {
            number: 0,
            action: Action::Set {
                source: "a".parse().unwrap(),
                attribute: "b".parse().unwrap(),
                value: "v".repeat(len).parse().unwrap(),
            },
        };
        assert_eq!(set(MAX_LEN - 10).encode().unwrap().len(), MAX_LEN);
        assert!(set(MAX_LEN - 9).encode().unwrap_err().to_string().contains("at most 496"));
    }

    fn name() -> impl Strategy<Value = Name> {
        "[A-Za-z0-9_-]{1,31}".prop_map(Name)
    }

    fn text() -> impl Strategy<Value = Text> {
        "\\PC{1,90}".prop_filter_map("control", |text| text.parse().ok())
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            name().prop_map(Request::Start),
            name().prop_map(Request::Stop),
            any::<u32>().prop_map(|number| Request::Ok { number }),
            (any::<u32>(), text()).prop_map(|(number, text)| Request::Error { number, text }),
        ]
    }

    fn action() -> impl Strategy<Value = Action> {
        let set = (name(), "[A-Za-z0-9_-]{1,63}".prop_map(Attribute), text());
        prop_oneof![
            name().prop_map(Action::Start),
            name().prop_map(Action::Stop),
            set.prop_map(|(source, attribute, value)| Action::Set { source, attribute, value }),
        ]
    }

    fn report() -> impl Strategy<Value = Report> {
        let event = (name(), any::<Option<u64>>());
        prop_oneof![
            (any::<u32>(), action())
                .prop_map(|(number, action)| Report::Command { number, action }),
            event.prop_map(|(name, value)| Report::Event { name, value }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(request in request(), report in report()) {
            prop_assert_eq!(Request::decode(&request.encode().unwrap()).unwrap(), request);
            prop_assert_eq!(Report::decode(&report.encode().unwrap()).unwrap(), report);
        }

        #[test]
        fn what_decodes_has_only_one_spelling(line in "(ok|error|event|[0-9]{1,3})( [a-z0-9]{1,3}| ){0,4}") {
            if let Ok(request) = Request::decode(line.as_bytes()) {
                prop_assert_eq!(request.to_string(), line.clone());
            }
            if let Ok(report) = Report::decode(line.as_bytes()) {
                prop_assert_eq!(report.to_string(), line);
            }
        }

        #[test]
        fn any_reason_becomes_an_answer(number: u32, why: String) {
            let answer = Request::error(number, why);
            prop_assert_eq!(Request::decode(&answer.encode().unwrap()).unwrap(), answer);
        }
    }
}
