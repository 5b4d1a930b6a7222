//! The commands of clients: one line of text each.
//!
//! A line is split into words at spaces and tabs, without those at its end. Commands and keywords are all in
//! capitals or all in small letters.

/// The longest line, with its end. A mask needs a digit for four channels.
pub(super) const LONGEST_LINE: usize = 4096;

/// A command. The names in it are not checked against the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// An empty line, which has no answer.
    Nothing,
    Help,
    Exit,
    /// The binary protocol from now on.
    Binary,
    Version,
    Print,
    /// The context, compressed.
    PrintCompressed,
    /// Milliseconds; 0: no limit.
    Timeout(u32),
    Open {
        device: &'a str,
        /// Samples of a buffer.
        samples: i64,
        mask: &'a str,
        cyclic: bool,
    },
    Close(&'a str),
    Read(Attribute<'a>),
    /// The value of so many bytes follows the line.
    Write(Attribute<'a>, i64),
    ReadBuffer {
        device: &'a str,
        bytes: i64,
    },
    /// The samples follow after the answer.
    WriteBuffer {
        device: &'a str,
        bytes: i64,
    },
    GetTrigger(&'a str),
    SetTrigger(&'a str, Option<&'a str>),
    SetBuffersCount(&'a str, i64),
}

/// One attribute, or all of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attribute<'a> {
    pub device: &'a str,
    pub of: Of<'a>,
    /// `None`: all of them.
    pub name: Option<&'a str>,
}

/// What an attribute belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of<'a> {
    Device,
    Buffer,
    Debug,
    Channel {
        id: &'a str,
        is_output: bool,
    },
    /// The events of the device, or of the channel of this id, which transmits or not. Only by the binary protocol.
    Events(Option<(&'a str, bool)>),
}

impl<'a> Command<'a> {
    /// The command of a line, with or without its end. `None` if it is not one.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).ok()?.trim_end_matches(is_space);
        if line.is_empty() {
            return Some(Self::Nothing);
        }
        let mut words = line.split(is_space).filter(|word| !word.is_empty());
        let words = &mut words;
        let command = Self::of(keyword(words.next()?)?, words)?;
        // Spaces at the beginning are no command.
        (words.next().is_none() && !line.starts_with(is_space)).then_some(command)
    }

    fn of(name: &str, words: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(match name {
            "HELP" => Self::Help,
            "EXIT" | "QUIT" => Self::Exit,
            "BINARY" => Self::Binary,
            "VERSION" => Self::Version,
            "PRINT" => Self::Print,
            "ZPRINT" => Self::PrintCompressed,
            "TIMEOUT" => {
                let millis = integer(word(words.next()?)?);
                Self::Timeout(u32::try_from(millis).unwrap_or(u32::MAX))
            }
            "OPEN" => {
                let device = word(words.next()?)?;
                let samples = integer(plain(words.next()?)?);
                let mask = plain(words.next()?)?;
                let cyclic = match words.next() {
                    None => false,
                    Some("CYCLIC" | "cyclic") => true,
                    Some(_) => return None,
                };
                Self::Open { device, samples, mask, cyclic }
            }
            "CLOSE" => Self::Close(word(words.next()?)?),
            "READ" => {
                let device = word(words.next()?)?;
                let rest: Vec<_> = words.take(4).collect();
                Self::Read(Attribute::of(device, &rest)?)
            }
            "WRITE" => {
                let device = word(words.next()?)?;
                let rest: Vec<_> = words.take(5).collect();
                let (len, rest) = rest.split_last()?;
                Self::Write(Attribute::of(device, rest)?, integer(plain(len)?))
            }
            "READBUF" => {
                let device = word(words.next()?)?;
                Self::ReadBuffer { device, bytes: integer(plain(words.next()?)?) }
            }
            "WRITEBUF" => {
                let device = word(words.next()?)?;
                Self::WriteBuffer { device, bytes: integer(plain(words.next()?)?) }
            }
            "GETTRIG" => Self::GetTrigger(word(words.next()?)?),
            "SETTRIG" => {
                let device = word(words.next()?)?;
                let trigger = match words.next() {
                    Some(name) => Some(plain(name)?),
                    None => None,
                };
                Self::SetTrigger(device, trigger)
            }
            "SET" => {
                let device = word(words.next()?)?;
                if !matches!(words.next()?, "BUFFERS_COUNT" | "buffers_count") {
                    return None;
                }
                Self::SetBuffersCount(device, integer(word(words.next()?)?))
            }
            _ => return None,
        })
    }
}

impl<'a> Attribute<'a> {
    fn of(device: &'a str, words: &[&'a str]) -> Option<Self> {
        let (of, rest) = match words {
            ["DEBUG" | "debug", rest @ ..] => (Of::Debug, rest),
            ["BUFFER" | "buffer", rest @ ..] => (Of::Buffer, rest),
            [way @ ("INPUT" | "input" | "OUTPUT" | "output"), id, rest @ ..] => {
                let is_output = way.eq_ignore_ascii_case("output");
                (Of::Channel { id: word(id)?, is_output }, rest)
            }
            ["INPUT" | "input" | "OUTPUT" | "output"] => return None,
            rest => (Of::Device, rest),
        };
        let name = match rest {
            [] => None,
            [name] if of == Of::Device => Some(plain(name)?),
            [name] if !is_cyclic(name) => Some(word(name)?),
            _ => return None,
        };
        Some(Self { device, of, name })
    }
}

/// Whether this is the beginning of a line of HTTP: a request, such as `POST / HTTP/1.1`, or a header, such as `Host: a`.
/// What a web browser sends after these lines may look like commands.
pub(super) fn is_http(line: &[u8]) -> bool {
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
    let words = line[..end].split(|byte| matches!(byte, b' ' | b'\t'));
    let mut words = words.filter(|word| !word.is_empty());
    let has_colon = words.next().is_some_and(|first| first.contains(&b':'));
    // No name in a command has a slash or is an asterisk.
    let is_target =
        |word: &[u8]| word.starts_with(b"/") || word.starts_with(b"HTTP/") || word == b"*";
    let is_url = |word: &[u8]| word.windows(3).any(|part| part == b"://");
    has_colon || words.any(|word| is_target(word) || is_url(word))
}

/// Whether no client of libiio begins with these bytes: all of them begin with a word. A handshake of TLS does not.
pub(super) fn is_no_text(line: &[u8]) -> bool {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
    line.iter().any(|byte| !matches!(byte, b'\t' | b'\r' | b' '..=b'~'))
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t')
}

/// A command in capitals.
fn keyword(word: &str) -> Option<&'static str> {
    const ALL: [&str; 17] = [
        "HELP", "EXIT", "QUIT", "BINARY", "VERSION", "PRINT", "ZPRINT", "TIMEOUT", "OPEN", "CLOSE",
        "READ", "WRITE", "READBUF", "WRITEBUF", "GETTRIG", "SETTRIG", "SET",
    ];
    let is_one_case = !word.bytes().any(|byte| byte.is_ascii_lowercase())
        || !word.bytes().any(|byte| byte.is_ascii_uppercase());
    ALL.into_iter().find(|known| is_one_case && word.eq_ignore_ascii_case(known))
}

/// A name: letters, digits, `-`, `_` and `.`, and before them `iio:` or letters with a comma.
fn word(text: &str) -> Option<&str> {
    let rest = match (text.strip_prefix("iio:"), text.split_once(',')) {
        (Some(rest), _) => rest,
        (None, Some((before, rest))) => {
            let is_fine =
                !before.is_empty() && before.bytes().all(|byte| byte.is_ascii_alphabetic());
            is_fine.then_some(rest)?
        }
        (None, None) => text,
    };
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (!rest.is_empty() && rest.bytes().all(is_fine)).then_some(text)
}

/// A name in a place in which keywords are known.
fn plain(text: &str) -> Option<&str> {
    let known = ["BUFFERS_COUNT", "DEBUG", "BUFFER", "INPUT", "OUTPUT"];
    let is_keyword = known.iter().any(|known| text == *known || text == known.to_ascii_lowercase());
    if is_keyword || is_cyclic(text) { None } else { word(text) }
}

fn is_cyclic(text: &str) -> bool {
    matches!(text, "CYCLIC" | "cyclic")
}

/// The number at the beginning of a text, as `atol` finds it: 0 if there is none.
fn integer(text: &str) -> i64 {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let digits = digits.bytes().take_while(u8::is_ascii_digit);
    sign * digits.fold(0_i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Option<Command<'_>> {
        Command::parse(line.as_bytes())
    }

    #[test]
    fn commands_are_read_in_both_cases_with_either_end() {
        for line in ["VERSION\r\n", "version\n", "VERSION", "VERSION \t\r\n"] {
            assert_eq!(parse(line), Some(Command::Version), "{line:?}");
        }
        for (line, expected) in [
            ("", Command::Nothing),
            (" \t\r\n", Command::Nothing),
            ("HELP", Command::Help),
            ("quit", Command::Exit),
            ("BINARY", Command::Binary),
            ("EXIT", Command::Exit),
            ("PRINT", Command::Print),
            ("ZPRINT", Command::PrintCompressed),
            ("TIMEOUT 2500", Command::Timeout(2500)),
            ("CLOSE iio:device0", Command::Close("iio:device0")),
            ("GETTRIG adc", Command::GetTrigger("adc")),
            ("SETTRIG adc trigger0", Command::SetTrigger("adc", Some("trigger0"))),
            ("SETTRIG adc", Command::SetTrigger("adc", None)),
            ("SET adc BUFFERS_COUNT 7", Command::SetBuffersCount("adc", 7)),
            ("READBUF adc 4096", Command::ReadBuffer { device: "adc", bytes: 4096 }),
            ("writebuf adc 12x", Command::WriteBuffer { device: "adc", bytes: 12 }),
        ] {
            assert_eq!(parse(line), Some(expected), "{line:?}");
        }
        let open = |cyclic| Command::Open { device: "adc", samples: 256, mask: "0000000f", cyclic };
        assert_eq!(parse("OPEN adc 256 0000000f\r\n"), Some(open(false)));
        assert_eq!(parse("OPEN adc 256 0000000f CYCLIC\r\n"), Some(open(true)));
    }

    #[test]
    fn attributes_are_those_of_devices_buffers_debugging_and_channels() {
        let read = |of, name| Some(Command::Read(Attribute { device: "iio:device1", of, name }));
        let output = Of::Channel { id: "voltage0_i", is_output: true };
        let input = Of::Channel { id: "voltage0_i", is_output: false };
        for (line, of, name) in [
            ("READ iio:device1 \r\n", Of::Device, None),
            ("READ iio:device1 pattern\r\n", Of::Device, Some("pattern")),
            ("READ iio:device1 adi,gain\r\n", Of::Device, Some("adi,gain")),
            ("READ iio:device1 DEBUG\r\n", Of::Debug, None),
            ("READ iio:device1 DEBUG DEBUG\r\n", Of::Debug, Some("DEBUG")),
            ("READ iio:device1 BUFFER watermark\r\n", Of::Buffer, Some("watermark")),
            ("READ iio:device1 INPUT voltage0_i scale\r\n", input, Some("scale")),
            ("read iio:device1 output voltage0_i\r\n", output, None),
        ] {
            assert_eq!(parse(line), read(of, name), "{line:?}");
        }
        let write = |of, name, len| {
            Some(Command::Write(Attribute { device: "iio:device1", of, name }, len))
        };
        for (line, of, name, len) in [
            ("WRITE iio:device1 12", Of::Device, None, 12),
            ("WRITE iio:device1 pattern 8", Of::Device, Some("pattern"), 8),
            ("WRITE iio:device1 DEBUG 8", Of::Debug, None, 8),
            (
                "WRITE iio:device1 DEBUG direct_reg_access 8",
                Of::Debug,
                Some("direct_reg_access"),
                8,
            ),
            ("WRITE iio:device1 INPUT voltage0_i scale 4", input, Some("scale"), 4),
            ("WRITE iio:device1 INPUT voltage0_i 4", input, None, 4),
        ] {
            assert_eq!(parse(line), write(of, name, len), "{line:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_none() {
        for line in [
            " VERSION",
            "Version",
            "VERSIONS",
            "VERSION 1",
            "READ",
            "READ ",
            "READ a/b",
            "READ a b/c",
            "READ a INPUT",
            "READ a b c",
            "READ a INPUT b c d",
            "READ ../x",
            "OPEN a 1",
            "OPEN a 1 ff XX",
            "OPEN a DEBUG ff",
            "SET a b 1",
            "SET a BUFFERS_COUNT",
            "TIMEOUT",
            "WRITE a",
            "READ a cyclic",
            "READBUF a",
            "SETTRIG",
            "READ a x:y",
            "READ a ,b",
            "READ a é",
            "BINARY 1",
            "VER\rSION",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
        assert_eq!(Command::parse(b"READ a \xff\n"), None);
    }

    #[test]
    fn lines_of_a_web_browser_are_known_and_commands_are_none() {
        for line in [
            "POST / HTTP/1.1\r\n",
            "OPTIONS * HTTP/1.1\r\n",
            "CONNECT a.b:443 HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n",
            "GET http://a/ HTTP/1.0\r\n",
            "GET /x\r\n",
            "READ /adc HTTP/1.1\r\n",
            "EXIT  /\r\n",
            "PUT /half",
            "VERSION HTTP/1.1",
            "Host: a\r\n",
            "Origin:http://a",
            "content-type: text/plain",
        ] {
            assert!(is_http(line.as_bytes()), "{line:?}");
        }
        for line in [
            "",
            "\r\n",
            "VERSION\r\n",
            "PRINT",
            "NONSENSE",
            "READ iio:device0 INPUT voltage0 raw\r\n",
            "READ adc in_accel_x&y&z_raw\r\n",
            "WRITE iio:device0 5\r\n",
            "OPEN adc 4096 0000000f CYCLIC\r\nHost: x",
        ] {
            assert!(!is_http(line.as_bytes()) && !is_no_text(line.as_bytes()), "{line:?}");
        }
        for first in [&b"\x16"[..], b"\x16\x03\x01\x02\0", b"\0\x01", b"VER\x16\n", b"\xc3\xa9"] {
            assert!(is_no_text(first), "{first:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Command::parse(&line), is_http(&line), is_no_text(&line));
        }

        #[test]
        fn no_words_panic_and_names_stay_names(
            line in "(READ|WRITE|OPEN|READBUF|SET|SETTRIG|TIMEOUT)( (DEBUG|INPUT|CYCLIC|[a-z:,./0-9-]{0,8})){0,6}",
        ) {
            if let Some(Command::Read(found) | Command::Write(found, _)) = parse(&line) {
                for name in [Some(found.device), found.name].into_iter().flatten() {
                    prop_assert!(!name.is_empty() && !name.contains('/'));
                }
            }
        }
    }
}
