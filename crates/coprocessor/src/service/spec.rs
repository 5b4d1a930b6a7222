//! Services by name, as the command line has them.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use busbar::{Error, Result};

use super::{
    Bulk, Control, Converter, Crash, Echo, Service, Services, Sink, Source, Stm32mp1, Treatment,
};

/// A kind of service: its name, its announced name by default, and what it does.
struct Kind {
    name: &'static str,
    announced: &'static str,
    does: &'static str,
    /// Its options.
    options: &'static [Switch],
    make: fn(String, &Options) -> Box<dyn Service + Send>,
}

/// An option: its name and what it does; each has a number.
struct Switch {
    name: &'static str,
    does: &'static str,
    allowed: RangeInclusive<u64>,
    set: fn(&mut Options, u64),
}

impl Switch {
    fn parse(&self, number: &str) -> Result<u64> {
        let parsed = number.parse().ok().filter(|number| self.allowed.contains(number));
        parsed.ok_or_else(|| {
            let (least, most) = (self.allowed.start(), self.allowed.end());
            let allowed = match most {
                &u64::MAX => format!("a number from {least} on"),
                most => format!("a number from {least} to {most}"),
            };
            Error::invalid(format!("option {}", self.name), number, allowed)
        })
    }
}

/// The values of a service's options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    corrupt: Option<NonZeroU64>,
    truncate: Option<NonZeroU64>,
    delay: Duration,
    gain: Option<u8>,
    rate: Option<u64>,
    trigger: Option<Duration>,
    overload: Option<Duration>,
}

impl Options {
    fn bulk(&self, name: String) -> Bulk {
        let bulk = Bulk::new(name).delay(self.delay);
        let bulk = self.corrupt.into_iter().fold(bulk, Bulk::corrupt);
        self.truncate.into_iter().fold(bulk, Bulk::truncate)
    }

    fn control(&self, name: String) -> Control {
        let control = self.gain.into_iter().fold(Control::new(name), Control::gain);
        let control = self.rate.into_iter().fold(control, Control::rate);
        let control = self.trigger.into_iter().fold(control, Control::trigger);
        self.overload.into_iter().fold(control, Control::overload)
    }
}

const CORRUPT: Switch = Switch {
    name: "corrupt",
    does: "flips a bit of every N-th block that it sends in messages",
    allowed: 1..=u64::MAX,
    set: |options, number| options.corrupt = NonZeroU64::new(number),
};
const TRUNCATE: Switch = Switch {
    name: "truncate",
    does: "omits the last byte of every N-th block that it sends in messages",
    allowed: 1..=u64::MAX,
    set: |options, number| options.truncate = NonZeroU64::new(number),
};
const DELAY: Switch = Switch {
    name: "delay",
    does: "answers blocks and gives buffers back N milliseconds late",
    allowed: 1..=u64::MAX,
    set: |options, number| options.delay = Duration::from_millis(number),
};
const GAIN: Switch = Switch {
    name: "gain",
    does: "sets the gain of four channels first, to N percent",
    allowed: 0..=100,
    set: |options, number| options.gain = u8::try_from(number).ok(),
};
const RATE: Switch = Switch {
    name: "rate",
    does: "sets the rate first, to N samples per second",
    allowed: 1..=u64::MAX,
    set: |options, number| options.rate = Some(number),
};
const TRIGGER: Switch = Switch {
    name: "trigger",
    does: "sends a trigger event every N milliseconds",
    allowed: 1..=DAY,
    set: |options, number| options.trigger = Some(Duration::from_millis(number)),
};
const OVERLOAD: Switch = Switch {
    name: "overload",
    does: "sends an overload event every N milliseconds",
    allowed: 1..=DAY,
    set: |options, number| options.overload = Some(Duration::from_millis(number)),
};

const SAMPLES: Switch = Switch {
    name: "rate",
    does: "sends N samples per second",
    allowed: 1..=100_000_000,
    set: |options, number| options.rate = Some(number),
};

/// Longest period, in milliseconds.
const DAY: u64 = 86_400_000;

/// Options of the services for blocks.
const BULK: &[Switch] = &[CORRUPT, TRUNCATE, DELAY];
/// Options of the service that controls a pipeline.
const CONTROL: &[Switch] = &[GAIN, RATE, TRIGGER, OVERLOAD];

const KINDS: [Kind; 15] = [
    Kind {
        name: "echo",
        announced: "echo",
        does: "answers each message with itself",
        options: &[],
        make: |name, _| Box::new(Echo::new(name)),
    },
    Kind {
        name: "sink",
        announced: "sink",
        does: "counts and checks numbered messages",
        options: &[],
        make: |name, _| Box::new(Sink::new(name)),
    },
    Kind {
        name: "source",
        announced: "source",
        does: "sends numbered messages on request",
        options: &[],
        make: |name, _| Box::new(Source::new(name)),
    },
    Kind {
        name: "control",
        announced: "control",
        does: "tunes, starts and stops the source of a pipeline, and sends it events",
        options: CONTROL,
        make: |name, options| Box::new(options.control(name)),
    },
    Kind {
        name: "converter",
        announced: "converter",
        does: "sends samples on request, 20000 per second or +rate=N",
        options: &[SAMPLES],
        make: |name, options| Box::new(Converter::new(name, options.rate)),
    },
    Kind {
        name: "sample",
        announced: "rpmsg-client-sample",
        does: "echo for Linux's module rpmsg_client_sample",
        options: &[],
        make: |name, _| Box::new(Echo::new(name)),
    },
    Kind {
        name: "tty",
        announced: "rpmsg-tty",
        does: "echo for Linux's module rpmsg_tty",
        options: &[],
        make: |name, _| Box::new(Echo::new(name)),
    },
    Kind {
        name: "raw",
        announced: "rpmsg-raw",
        does: "echo for the default endpoint of Linux's module rpmsg_char",
        options: &[],
        make: |name, _| Box::new(Echo::new(name)),
    },
    Kind {
        name: "crash",
        announced: "crash",
        does: "crashes on request",
        options: &[],
        make: |name, _| Box::new(Crash::new(name)),
    },
    Kind {
        name: "stm32mp1",
        announced: "rpmsg-netlink",
        does: "receives blocks like the firmware of the STM32MP1 example",
        options: &[],
        make: |name, _| Box::new(Stm32mp1::new(name)),
    },
    Kind {
        name: "bulk",
        announced: "bulk",
        does: "receives blocks and sends them back, in messages and in shared buffers",
        options: BULK,
        make: |name, options| Box::new(options.bulk(name)),
    },
    Kind {
        name: "bulk-netlink",
        announced: "rpmsg-netlink",
        does: "bulk for Busbar's module rpmsg_netlink",
        options: BULK,
        make: |name, options| Box::new(options.bulk(name)),
    },
    Kind {
        name: "bulk-tty",
        announced: "rpmsg-tty",
        does: "bulk for Linux's module rpmsg_tty",
        options: BULK,
        make: |name, options| Box::new(options.bulk(name)),
    },
    Kind {
        name: "handover",
        announced: "handover",
        does: "bulk that gives shared buffers back untouched",
        options: BULK,
        make: |name, options| Box::new(options.bulk(name).buffers(Treatment::Untouched)),
    },
    Kind {
        name: "check",
        announced: "check",
        does: "bulk that compares shared buffers with the pattern where they lie",
        options: BULK,
        make: |name, options| Box::new(options.bulk(name).buffers(Treatment::Checked)),
    },
];

/// A service by name: `KIND[=ANNOUNCED][@ADDRESS][+OPTION=N]…`.
///
/// | kind | announced as | does |
/// |---|---|---|
/// | `echo` | `echo` | answers each message with itself |
/// | `sink` | `sink` | counts and checks numbered messages |
/// | `source` | `source` | sends numbered messages on request |
/// | `control` | `control` | tunes, starts and stops the source of a pipeline, and sends it events |
/// | `sample` | `rpmsg-client-sample` | echo for Linux's module `rpmsg_client_sample` |
/// | `tty` | `rpmsg-tty` | echo for Linux's module `rpmsg_tty` |
/// | `raw` | `rpmsg-raw` | echo for the default endpoint of Linux's module `rpmsg_char` |
/// | `crash` | `crash` | crashes on request |
/// | `stm32mp1` | `rpmsg-netlink` | receives blocks like the firmware of the STM32MP1 example |
/// | `bulk` | `bulk` | receives blocks and sends them back, in messages and in shared buffers |
/// | `bulk-netlink` | `rpmsg-netlink` | bulk for Busbar's module `rpmsg_netlink` |
/// | `bulk-tty` | `rpmsg-tty` | bulk for Linux's module `rpmsg_tty` |
/// | `handover` | `handover` | bulk that gives shared buffers back untouched |
/// | `check` | `check` | bulk that compares shared buffers with the pattern where they lie |
///
/// The address is decimal or, with `0x` before it, hexadecimal. An announced name cannot have a `+`
/// in it.
///
/// The options of `control` say what it tells a pipeline: `gain=N` in percent and `rate=N` in samples
/// per second before the start, then `trigger=N` and `overload=N` each N milliseconds. Those of the last
/// five kinds are faults for tests: `corrupt=N` and `truncate=N` damage every N-th block that is sent,
/// `delay=N` holds answers back for N milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    kind: usize,
    announced: String,
    address: Option<u32>,
    options: Options,
}

impl Spec {
    /// The kinds of services and what they do, one per line.
    #[must_use]
    pub fn kinds() -> String {
        let mut lines = String::new();
        for kind in KINDS {
            let (name, announced, does) = (kind.name, kind.announced, kind.does);
            let _ = writeln!(lines, "  {name:<14}{announced:<21}{does}");
        }
        lines
    }

    /// The options of the services for blocks and what they do, one per line.
    #[must_use]
    pub fn options() -> String {
        Self::switches(BULK)
    }

    /// The options of the service that controls a pipeline and what they do, one per line.
    #[must_use]
    pub fn control_options() -> String {
        Self::switches(CONTROL)
    }

    fn switches(switches: &[Switch]) -> String {
        let mut lines = String::new();
        for Switch { name, does, .. } in switches {
            let name = format!("+{name}=N");
            let _ = writeln!(lines, "  {name:<14}{does}");
        }
        lines
    }

    /// Makes the service and adds it.
    pub fn add_to(&self, services: &mut Services) -> Result<u32> {
        let service = (KINDS[self.kind].make)(self.announced.clone(), &self.options);
        services.add_boxed(service, self.address)
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(spec: &str) -> Result<Self> {
        let mut parts = spec.split('+');
        let spec = parts.next().unwrap_or_default();
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
        let options = parse_options(&KINDS[kind], parts)?;
        Ok(Self { kind, announced, address, options })
    }
}

fn parse_options<'a>(kind: &Kind, parts: impl Iterator<Item = &'a str>) -> Result<Options> {
    let mut options = Options::default();
    for part in parts {
        let (name, number) = part.split_once('=').unwrap_or((part, ""));
        let Some(option) = kind.options.iter().find(|option| option.name == name) else {
            let names: Vec<_> = kind.options.iter().map(|option| option.name).collect();
            let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::invalid(format!("option of {}", kind.name), name, allowed));
        };
        (option.set)(&mut options, option.parse(number)?);
    }
    Ok(options)
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
    fn options_come_last() {
        let spec: Spec = "bulk=b@0x500+corrupt=3+delay=20".parse().unwrap();
        let corrupt = NonZeroU64::new(3);
        let delay = Duration::from_millis(20);
        assert_eq!(spec.options, Options { corrupt, delay, ..Options::default() });
        assert_eq!((spec.announced.as_str(), spec.address), ("b", Some(0x500)));
        assert!(BULK.iter().all(|option| Spec::options().contains(option.name)));
        let spec: Spec = "control+gain=0+rate=48000+trigger=20+overload=86400000".parse().unwrap();
        let (trigger, overload) = (Some(delay), Some(Duration::from_secs(24 * 3600)));
        let (gain, rate) = (Some(0), Some(48_000));
        assert_eq!(spec.options, Options { gain, rate, trigger, overload, ..Options::default() });
        assert!(CONTROL.iter().all(|option| Spec::control_options().contains(option.name)));
    }

    #[test]
    fn errors_say_what_is_allowed() {
        for (spec, allowed) in [
            ("ehco", "echo, sink, source, control, converter"),
            ("", "echo, sink, source"),
            ("echo=", "printable"),
            ("echo=a b", "printable"),
            ("echo@", "0x406"),
            ("echo@0xfffffffff", "0x406"),
            ("echo@53", "name service"),
            ("echo+delay=5", "allowed: none"),
            ("bulk+corupt=5", "corrupt, truncate, delay"),
            ("bulk+", "corrupt, truncate, delay"),
            ("bulk+corrupt", "number from 1"),
            ("bulk+corrupt=0", "number from 1"),
            ("bulk+delay=-1", "number from 1 on"),
            ("control+gain=101", "number from 0 to 100"),
            ("control+gain=0.7", "number from 0 to 100"),
            ("control+trigger=0", "number from 1 to 86400000"),
            ("control+delay=1", "gain, rate, trigger, overload"),
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
