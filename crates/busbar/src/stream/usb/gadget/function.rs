//! Makes a gadget by configfs, or takes part in one.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use busbar_uapi::functionfs::Endpoint;
use rustix::fs::{Mode, OFlags};
use usb_gadget::function::custom::{self, Custom, EndpointDirection};
use usb_gadget::{Class, Config, Id, RegGadget, Strings, Udc};

use super::super::CLASS;
use super::super::address::Gadget;
use super::Endpoints;
use crate::{Error, Result};

/// The names of our gadgets in configfs begin with this. The numbers of the PID namespace and of the process follow, and one
/// of the gadget.
const PREFIX: &str = "busbar";
/// Packets of a burst at super speed.
const BURST: u8 = 15;

/// What a function has.
#[derive(Clone, Copy, Debug)]
pub(in crate::stream) struct Shape {
    /// The class of its interface, with subclass and protocol.
    class: (u8, u8, u8),
    /// The name of its interface.
    name: &'static str,
    /// The product, of a gadget that has this function alone.
    product: &'static str,
    /// Pairs of endpoints: to the host, and from it.
    pairs: u8,
}

impl Shape {
    pub(in crate::stream::usb) const FRAMES: Self = Self::stream(1);
    pub(in crate::stream::usb) const SAMPLES: Self = Self::stream(0);

    const fn stream(protocol: u8) -> Self {
        let class = (CLASS.0, CLASS.1, protocol);
        Self { class, name: "Busbar stream", product: "Busbar stream", pairs: 1 }
    }

    /// One that libiio finds by the name of its interface.
    #[cfg(feature = "iiod")]
    pub(in crate::stream) const fn iio(pairs: u8) -> Self {
        Self { class: (0xff, 0, 0), name: "IIO", product: "Busbar IIO", pairs }
    }
}

/// The gadget that this process has made, if it has. Dropping it removes it.
#[derive(Debug)]
pub(in crate::stream) struct Function {
    /// Dropped only.
    _made: Option<RegGadget>,
    directory: PathBuf,
}

impl Function {
    /// Returns endpoint 0 as well.
    pub(in crate::stream) fn open(gadget: &Gadget, shape: Shape) -> Result<(Self, Endpoint)> {
        let builder = builder(shape);
        let written = builder.ffs_descriptors_and_strings();
        let (mut descriptors, strings) =
            written.map_err(|why| Error::new("describe", "a USB function", why))?;
        set_full_speed(&mut descriptors);
        let Some(directory) = &gadget.functionfs else {
            return make(gadget, shape, builder, &descriptors, &strings);
        };
        let control = describe(directory, &descriptors, &strings)?;
        Ok((Self { _made: None, directory: directory.clone() }, control))
    }

    /// Opens the endpoints of a function that has one pair.
    pub(in crate::stream::usb) fn endpoints(&self) -> Result<Endpoints> {
        self.pair(0)
    }

    /// Opens a pair of endpoints.
    pub(in crate::stream) fn pair(&self, number: u8) -> Result<Endpoints> {
        let first = 2 * u16::from(number) + 1;
        let open = |number: u16| file(&self.directory, &format!("ep{number}"));
        Ok(Endpoints { to: open(first)?, from: open(first + 1)? })
    }
}

fn builder(shape: Shape) -> custom::CustomBuilder {
    let endpoint = |direction| {
        let mut endpoint = custom::Endpoint::bulk(direction);
        endpoint.max_burst_ss = BURST;
        endpoint
    };
    let class = Class::new(shape.class.0, shape.class.1, shape.class.2);
    let mut interface = custom::Interface::new(class, shape.name);
    for _ in 0..shape.pairs {
        interface = interface
            .with_endpoint(endpoint(EndpointDirection::device_to_host().1))
            .with_endpoint(endpoint(EndpointDirection::host_to_device().1));
    }
    let mut builder = Custom::builder().with_interface(interface);
    builder.ffs_no_init = true;
    builder
}

/// Bytes of a packet at full speed.
const FULL_SPEED: u16 = 64;

/// Sets the length of packets at full speed, which comes first and is 0: Linux does not choose one, and enables no
/// endpoint.
fn set_full_speed(descriptors: &mut [u8]) {
    const ENDPOINT: u8 = 5;
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map_or(0, u32::from_le_bytes)
    };
    // After magic, length and flags, there is a count for each of up to four speeds and kinds.
    let (counts, count) =
        ((word(descriptors, 8) & 0xf).count_ones() as usize, word(descriptors, 12));
    let mut rest = descriptors.get_mut(12 + 4 * counts..).unwrap_or_default();
    for _ in 0..count {
        let len = rest.first().map_or(0, |len| usize::from(*len));
        let Some((descriptor, after)) = rest.split_at_mut_checked(len.max(1)) else { return };
        if let [_, ENDPOINT, _, _, low, high, ..] = descriptor {
            [*low, *high] = FULL_SPEED.to_le_bytes();
        }
        rest = after;
    }
}

/// Makes a gadget with this function alone.
fn make(
    gadget: &Gadget,
    shape: Shape,
    builder: custom::CustomBuilder,
    descriptors: &[u8],
    strings: &[u8],
) -> Result<(Function, Endpoint)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let udc = controller(gadget.udc.as_deref())?;
    remove_stale();
    let failed = |why: io::Error| {
        let help = match why.kind() {
            ErrorKind::NotFound => {
                "the kernel needs CONFIG_USB_CONFIGFS_F_FS, and configfs at /sys/kernel/config"
            }
            _ => "root can make a USB gadget",
        };
        Error::new("make", "a USB gadget", why).help(help)
    };
    let (mut custom, handle) = builder.build();
    let serial = match gadget.serial.as_str() {
        "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        serial => serial.to_owned(),
    };
    let mut made = usb_gadget::Gadget::new(
        Class::INTERFACE_SPECIFIC,
        Id::new(gadget.vendor, gadget.product),
        Strings::new("Busbar", shape.product, serial),
    )
    .with_config(Config::new("stream").with_function(handle));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    made.name = Some(format!("{PREFIX}-{}-{}-{count}", namespace(), std::process::id()));
    let registered = made.register().map_err(failed)?;
    let directory = custom.ffs_dir().map_err(failed)?;
    let control = describe(&directory, descriptors, strings)?;
    registered.bind(Some(&udc)).map_err(|why| {
        let error = Error::new("bind", udc.name().to_string_lossy(), why);
        if error.kind() == ErrorKind::ResourceBusy {
            error.help("another gadget has the controller: name another one by udc=")
        } else {
            error
        }
    })?;
    Ok((Function { _made: Some(registered), directory }, control))
}

fn controller(name: Option<&str>) -> Result<Udc> {
    let found = usb_gadget::udcs().map_err(|why| Error::new("find", "a USB controller", why))?;
    let names: Vec<_> = found.iter().map(|udc| udc.name().to_string_lossy().into_owned()).collect();
    let mut found: Vec<_> =
        found.into_iter().filter(|udc| name.is_none_or(|name| udc.name() == name)).collect();
    found.sort_by(|one, other| one.name().cmp(other.name()));
    found.into_iter().next().ok_or_else(|| {
        let on = name.unwrap_or("a USB device controller");
        let help = if names.is_empty() {
            "none is in /sys/class/udc: load its driver, or dummy_hcd for a virtual one".into()
        } else {
            format!("there are: {}", names.join(", "))
        };
        Error::new("find", on, io::Error::from(ErrorKind::NotFound)).help(help)
    })
}

/// Removes gadgets of processes that were killed.
fn remove_stale() {
    let Ok(gadgets) = usb_gadget::registered() else { return };
    for gadget in gadgets {
        let Some((space, process)) = maker(&gadget.name().to_string_lossy()) else { continue };
        // What processes of another container are alive is not known here.
        let is_gone = !Path::new("/proc").join(process.to_string()).exists();
        if is_gone && space == namespace() && space != 0 {
            // Another process may do the same.
            let _ = gadget.remove();
        }
    }
}

/// The PID namespace of this process; 0 if it is not known.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino())
}

/// The namespace and the number of the process that has made a gadget of this name, if it is one of ours.
fn maker(name: &str) -> Option<(u64, u32)> {
    let mut numbers = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
    let space = numbers.next()?.parse().ok()?;
    let process = numbers.next()?.parse().ok()?;
    numbers.next()?.parse::<u32>().ok()?;
    numbers.next().is_none().then_some((space, process))
}

fn file(directory: &Path, name: &str) -> Result<Endpoint> {
    let path = directory.join(name);
    let failed = |tried, errno| Error::new(tried, path.display().to_string(), errno);
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty());
    let file = file.map_err(|errno| failed("open", errno))?;
    Endpoint::new(file).map_err(|errno| failed("use", errno).help("it is no file of FunctionFS"))
}

/// Describes the function; returns endpoint 0.
fn describe(directory: &Path, descriptors: &[u8], strings: &[u8]) -> Result<Endpoint> {
    let control = file(directory, "ep0")?;
    for (what, bytes) in [("descriptors", descriptors), ("strings", strings)] {
        let written = rustix::io::write(&control, bytes);
        let whole = written.map_err(io::Error::from).and_then(|count| {
            if count == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
        });
        whole.map_err(|why| Error::new(format!("write {what} of"), "a USB function", why))?;
    }
    Ok(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors of endpoints at each speed: address, and bytes of a packet.
    fn endpoints(shape: Shape) -> Vec<(u8, u16)> {
        let (mut bytes, _) = builder(shape).ffs_descriptors_and_strings().unwrap();
        set_full_speed(&mut bytes);
        assert_eq!(bytes[8] & 7, 7, "three speeds");
        let start = 12 + 4 * (bytes[8] & 0xf).count_ones() as usize;
        let count: u8 = (0..3).map(|speed| bytes[12 + 4 * speed]).sum();
        let (mut found, mut rest) = (Vec::new(), &bytes[start..]);
        for _ in 0..count {
            let [len, kind, address, _, low, high, ..] = rest else { panic!("{rest:?}") };
            if *kind == 5 {
                found.push((*address, u16::from_le_bytes([*low, *high])));
            }
            rest = &rest[usize::from(*len)..];
        }
        found
    }

    #[test]
    fn pairs_of_endpoints_are_described_at_each_speed() {
        assert_eq!(
            endpoints(Shape::FRAMES),
            [(0x81, 64), (0x02, 64), (0x81, 512), (0x02, 512), (0x81, 1024), (0x02, 1024)]
        );
        #[cfg(feature = "iiod")]
        {
            let found = endpoints(Shape::iio(7));
            let pairs: Vec<_> = found.chunks_exact(2).collect();
            assert_eq!(pairs.len(), 21);
            // libiio wants that to the host first.
            assert!(pairs.iter().all(|pair| pair[0].0 & 0x80 != 0 && pair[1].0 & 0x80 == 0));
            assert_eq!(found[14], (0x81, 512));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_descriptors_are_too_wrong(mut bytes: Vec<u8>) {
            set_full_speed(&mut bytes);
        }
    }

    #[test]
    fn gadgets_that_others_have_made_are_theirs() {
        assert_eq!(maker("busbar-4026531836-12-0"), Some((4_026_531_836, 12)));
        for name in [
            "busbar",
            "busbar-12",
            "busbar-board",
            "busbar-my-board",
            "busbar-1-2",
            "busbar-1-2-3-4",
            "busbar-1-2-x",
            "busbar12-0",
        ] {
            assert_eq!(maker(name), None, "{name}");
        }
    }
}
