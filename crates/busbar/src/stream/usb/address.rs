//! Names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, Result};

const ALLOWED: &str = "usb:VID:PID[:SERIAL] for a host, each of four hexadecimal digits; for a device usb:, with \
     ?udc=NAME&vid=VID&pid=PID&serial=TEXT, or ?ffs=DIRECTORY for a function of another gadget; raw for no frames";

/// One end of a USB connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// This machine is the device.
    Gadget(Gadget),
    /// This machine is the host.
    Host(Device),
}

/// What this machine is for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gadget {
    /// The controller, a name in `/sys/class/udc`. `None`: the first one.
    pub udc: Option<String>,
    /// The vendor of the device. The default is for tests: use your own for a product.
    pub vendor: u16,
    /// The product.
    pub product: u16,
    /// The serial number. Empty: the machine's name.
    pub serial: String,
    /// A mounted `FunctionFS` of a gadget that another program makes, and binds after this has opened it. The fields
    /// above do not count then.
    pub functionfs: Option<PathBuf>,
    /// Samples alone, without frames.
    pub raw: bool,
}

impl Default for Gadget {
    fn default() -> Self {
        // pid.codes has reserved this one for tests.
        let (vendor, product) = (0x1209, 0x0001);
        Self { udc: None, vendor, product, serial: String::new(), functionfs: None, raw: false }
    }
}

/// A device, as a host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// The vendor.
    pub vendor: u16,
    /// The product.
    pub product: u16,
    /// The serial number. `None`: any.
    pub serial: Option<String>,
}

/// What follows `usb:`.
impl FromStr for Address {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let parsed = match name.strip_prefix('?') {
            Some(query) => gadget(query).map(Self::Gadget),
            None if name.is_empty() => Some(Self::Gadget(Gadget::default())),
            None => device(name).map(Self::Host),
        };
        let shown = format!("usb:{}", name.escape_debug());
        parsed.ok_or_else(|| Error::invalid("a USB connection", shown, ALLOWED))
    }
}

fn gadget(query: &str) -> Option<Gadget> {
    let mut gadget = Gadget::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("raw", "") => gadget.raw = true,
            ("udc", name) if is_name(name) => gadget.udc = Some(name.into()),
            ("vid", id) => gadget.vendor = number(id)?,
            ("pid", id) => gadget.product = number(id)?,
            ("serial", text) if is_text(text) => gadget.serial = text.into(),
            ("ffs", path) if path.starts_with('/') => gadget.functionfs = Some(path.into()),
            _ => return None,
        }
    }
    Some(gadget)
}

fn device(name: &str) -> Option<Device> {
    let mut parts = name.splitn(3, ':');
    let (vendor, product) = (number(parts.next()?)?, number(parts.next()?)?);
    let serial = parts.next().map(str::to_owned);
    let fits = serial.as_deref().is_none_or(is_text);
    fits.then_some(Device { vendor, product, serial })
}

fn number(text: &str) -> Option<u16> {
    let fits = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if fits { u16::from_str_radix(text, 16).ok() } else { None }
}

/// A string descriptor has at most 126 characters.
fn is_text(text: &str) -> bool {
    (1..=126).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn is_name(name: &str) -> bool {
    is_text(name) && !name.contains('/') && name != ".."
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(Device { vendor, product, serial }) => {
                write!(f, "usb:{vendor:04x}:{product:04x}")?;
                serial.as_ref().map_or(Ok(()), |serial| write!(f, ":{serial}"))
            }
            Self::Gadget(Gadget { functionfs: Some(path), .. }) => {
                write!(f, "usb:?ffs={}", path.display())
            }
            Self::Gadget(Gadget { vendor, product, .. }) => {
                write!(f, "usb:?vid={vendor:04x}&pid={product:04x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let parse = |name: &str| name.parse::<Address>().unwrap();
        assert_eq!(parse(""), Address::Gadget(Gadget::default()));
        let Address::Gadget(gadget) = parse("?udc=dummy_udc.0&vid=1d6b&pid=0105&serial=a b&raw")
        else {
            panic!()
        };
        assert_eq!((gadget.udc.as_deref(), gadget.serial.as_str()), (Some("dummy_udc.0"), "a b"));
        assert_eq!((gadget.vendor, gadget.product, gadget.raw), (0x1d6b, 0x0105, true));
        let Address::Gadget(gadget) = parse("?ffs=/dev/ffs") else { panic!() };
        assert_eq!(gadget.functionfs, Some("/dev/ffs".into()));
        let device = Device { vendor: 0x1209, product: 0xabcd, serial: Some("x:y".into()) };
        assert_eq!(parse("1209:ABCD:x:y"), Address::Host(device));
        assert_eq!(parse("1209:abcd").to_string(), "usb:1209:abcd");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "x",
            "1209",
            "1209:1",
            "12095:0001",
            "1209:000g",
            "1209:0001:",
            "?udc=",
            "?udc=a/b",
            "?udc=..",
            "?vid=1",
            "?raw=1",
            "?ffs=dev",
            "?speed=3",
            "?serial=",
            "?serial=\u{7f}",
        ] {
            let error = name.parse::<Address>().unwrap_err();
            assert!(error.to_string().contains("usb:VID:PID"), "{name}: {error}");
        }
    }
}
