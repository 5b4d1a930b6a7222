//! Services by name, as the command line has them.

use std::fmt::Write as _;
use std::str::FromStr;

use busbar::{Error, Result};

use super::{Crash, Echo, Service, Services, Sink, Source};

/// What a kind of service is called, announced as by default, and does.
struct Kind {
    name: &'static str,
    announced: &'static str,
    does: &'static str,
    make: fn(String) -> Box<dyn Service + Send>,
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "echo",
        announced: "echo",
        does: "answers each message with itself",
        make: |name| Box::new(Echo::new(name)),
    },
    Kind {
        name: "sink",
        announced: "sink",
        does: "counts and checks numbered messages",
        make: |name| Box::new(Sink::new(name)),
    },
    Kind {
        name: "source",
        announced: "source",
        does: "sends numbered messages on request",
        make: |name| Box::new(Source::new(name)),
    },
    Kind {
        name: "sample",
        announced: "rpmsg-client-sample",
        does: "echo for Linux's module rpmsg_client_sample",
        make: |name| Box::new(Echo::new(name)),
    },
    Kind {
        name: "tty",
        announced: "rpmsg-tty",
        does: "echo for Linux's module rpmsg_tty",
        make: |name| Box::new(Echo::new(name)),
    },
    Kind {
        name: "raw",
        announced: "rpmsg-raw",
        does: "echo for the default endpoint of Linux's module rpmsg_char",
        make: |name| Box::new(Echo::new(name)),
    },
    Kind {
        name: "crash",
        announced: "crash",
        does: "crashes on request",
        make: |name| Box::new(Crash::new(name)),
    },
];

/// A service by name: `KIND[=ANNOUNCED][@ADDRESS]`.
///
/// | kind | announced as | does |
/// |---|---|---|
/// | `echo` | `echo` | answers each message with itself |
/// | `sink` | `sink` | counts and checks numbered messages |
/// | `source` | `source` | sends numbered messages on request |
/// | `sample` | `rpmsg-client-sample` | echo for Linux's module `rpmsg_client_sample` |
/// | `tty` | `rpmsg-tty` | echo for Linux's module `rpmsg_tty` |
/// | `raw` | `rpmsg-raw` | echo for the default endpoint of Linux's module `rpmsg_char` |
/// | `crash` | `crash` | crashes on request |
///
/// The address is decimal or, with `0x` before it, hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    kind: usize,
    announced: String,
    address: Option<u32>,
}

impl Spec {
    /// The kinds of services and what they do, one a line.
    #[must_use]
    pub fn kinds() -> String {
        let mut lines = String::new();
        for kind in KINDS {
            let (name, announced, does) = (kind.name, kind.announced, kind.does);
            let _ = writeln!(lines, "  {name:<8}{announced:<21}{does}");
        }
        lines
    }

    /// Makes the service and adds it.
    pub fn add_to(&self, services: &mut Services) -> Result<u32> {
        let service = (KINDS[self.kind].make)(self.announced.clone());
        services.add_boxed(service, self.address)
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(spec: &str) -> Result<Self> {
        let (rest, address) = match spec.rsplit_once('@') {
            Some((rest, address)) => (rest, Some(parse_address(address)?)),
            None => (spec, None),
        };
        let (name, announced) = match rest.split_once('=') {
            Some((name, announced)) => (name, Some(announced)),
            None => (rest, None),
        };
        let Some(kind) = KINDS.iter().position(|kind| kind.name == name) else {
            let names = KINDS.map(|kind| kind.name).join(", ");
            return Err(Error::invalid("service", name, names));
        };
        let announced = announced.unwrap_or(KINDS[kind].announced).to_owned();
        super::Name::new(&announced)?;
        Ok(Self { kind, announced, address })
    }
}

fn parse_address(text: &str) -> Result<u32> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| Error::invalid("service address", text, "a number such as 1030 or 0x406"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels(specs: &[&str]) -> Result<Vec<(String, u32)>> {
        let mut services = Services::default();
        for spec in specs {
            spec.parse::<Spec>()?.add_to(&mut services)?;
        }
        Ok(services.channels().map(|c| (c.name.to_string(), c.address)).collect())
    }

    #[test]
    fn names_and_addresses_have_defaults() {
        let given = channels(&["echo", "sink=my-sink", "echo=e2@0x500", "raw@1030"]).unwrap();
        let expected = [("echo", 0x400), ("my-sink", 0x401), ("e2", 0x500), ("rpmsg-raw", 1030)];
        assert_eq!(given, expected.map(|(name, address)| (name.to_owned(), address)));
    }

    #[test]
    fn errors_say_what_is_allowed() {
        for (spec, allowed) in [
            ("ehco", "echo, sink, source"),
            ("", "echo, sink, source"),
            ("echo=", "printable"),
            ("echo=a b", "printable"),
            ("echo@", "0x406"),
            ("echo@0xfffffffff", "0x406"),
            ("echo@53", "name service"),
        ] {
            let error = channels(&[spec]).unwrap_err().to_string();
            assert!(error.contains(allowed), "{spec}: {error}");
        }
    }

    #[test]
    fn every_kind_is_documented_and_can_be_made() {
        let specs = KINDS.map(|kind| kind.name);
        assert_eq!(channels(&specs).unwrap().len(), KINDS.len());
        assert!(specs.iter().all(|name| Spec::kinds().contains(name)));
    }
}
