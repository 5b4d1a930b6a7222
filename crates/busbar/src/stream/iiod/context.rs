//! The devices of a context and its XML, as libiio has it.

use std::fmt::Write;

use crate::stream::scan::Type;

/// What there is to serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Context {
    /// The system that it is on.
    pub description: String,
    /// Names and values.
    pub attributes: Vec<(String, String)>,
    pub devices: Vec<Device>,
}

/// A device, or a trigger.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Device {
    /// `iio:deviceN`, `triggerN`.
    pub id: String,
    pub name: Option<String>,
    pub label: Option<String>,
    /// Those of the scan first, in its order. The index of a channel is its bit in a mask.
    pub channels: Vec<Channel>,
    pub attributes: Vec<String>,
    pub buffer_attributes: Vec<String>,
    pub debug_attributes: Vec<String>,
    /// Those of its events that are no channel's.
    pub event_attributes: Vec<String>,
    /// It was there, and has its place, but is not any more.
    pub is_gone: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Channel {
    pub id: String,
    /// The name that its driver has given it.
    pub name: Option<String>,
    pub is_output: bool,
    /// Its place in the scan, if it can be in a buffer.
    pub scan: Option<Scan>,
    /// Names and files.
    pub attributes: Vec<(String, String)>,
    /// The same of its events.
    pub event_attributes: Vec<(String, String)>,
}

/// A channel's place in the scan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scan {
    pub index: u32,
    pub kind: Type,
    pub scale: Option<f32>,
    /// The channel as `StreamSetup` names it.
    pub name: String,
}

/// What the XML may consist of.
const SCHEMA: [(&str, &str, &str); 8] = [
    (
        "context",
        "(device | context-attribute)*",
        "name CDATA #REQUIRED version-major CDATA #REQUIRED version-minor CDATA #REQUIRED \
         version-git CDATA #REQUIRED description CDATA #IMPLIED",
    ),
    ("context-attribute", "EMPTY", "name CDATA #REQUIRED value CDATA #REQUIRED"),
    (
        "device",
        "(channel | attribute | debug-attribute | buffer-attribute)*",
        "id CDATA #REQUIRED name CDATA #IMPLIED label CDATA #IMPLIED",
    ),
    (
        "channel",
        "(scan-element?, attribute*)",
        "id CDATA #REQUIRED type (input|output) #REQUIRED name CDATA #IMPLIED",
    ),
    ("attribute", "EMPTY", "name CDATA #REQUIRED filename CDATA #IMPLIED"),
    ("scan-element", "EMPTY", "index CDATA #REQUIRED format CDATA #REQUIRED scale CDATA #IMPLIED"),
    ("debug-attribute", "EMPTY", "name CDATA #REQUIRED"),
    ("buffer-attribute", "EMPTY", "name CDATA #REQUIRED"),
];
/// The same for clients that know events.
const WITH_EVENTS: [(&str, &str, &str); 3] = [
    (
        "device",
        "(channel | attribute | debug-attribute | event-attribute | buffer-attribute)*",
        SCHEMA[2].2,
    ),
    ("channel", "(scan-element?, attribute*, event-attribute*)", SCHEMA[3].2),
    ("event-attribute", "EMPTY", "name CDATA #REQUIRED filename CDATA #IMPLIED"),
];

impl Context {
    /// The device of this id, label or name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let is_it = |text: &Option<String>| text.as_deref() == Some(name);
        self.devices.iter().position(|device| {
            !device.is_gone && (device.id == name || is_it(&device.label) || is_it(&device.name))
        })
    }

    /// The document that describes it, as clients of libiio 0.x know it; `version` is that of the server: major, minor,
    /// tag.
    pub(super) fn xml(&self, version: (u32, u32, &str)) -> String {
        self.document(version, false)
    }

    /// The same with the attributes of events, for clients of libiio 1.x.
    pub(super) fn xml_with_events(&self, version: (u32, u32, &str)) -> String {
        self.document(version, true)
    }

    fn document(&self, (major, minor, tag): (u32, u32, &str), with_events: bool) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><!DOCTYPE context [");
        let more = if with_events { &WITH_EVENTS[..] } else { &[] };
        let is_other = |(name, ..): &&(&str, _, _)| more.iter().all(|(other, ..)| other != name);
        let schema = || SCHEMA.iter().filter(is_other).chain(more);
        for (name, content, _) in schema() {
            // Writing to a string does not fail.
            let _ = write!(out, "<!ELEMENT {name} {content}>");
        }
        for (name, _, attributes) in schema() {
            let _ = write!(out, "<!ATTLIST {name} {attributes}>");
        }
        out += "]>";
        let (major, minor) = (major.to_string(), minor.to_string());
        let version = [
            ("name", "local"),
            ("version-major", &major),
            ("version-minor", &minor),
            ("version-git", tag),
            ("description", &self.description),
        ];
        element(&mut out, "context", &version, |out| {
            for (name, value) in &self.attributes {
                empty(out, "context-attribute", &[("name", name), ("value", value)]);
            }
            for device in self.devices.iter().filter(|device| !device.is_gone) {
                device.xml(out, with_events);
            }
        });
        out
    }
}

impl Device {
    /// Whether samples can be received from it, or sent to it.
    pub(super) fn has_buffer(&self) -> bool {
        self.channels.iter().any(|channel| channel.scan.is_some())
    }

    /// Its name, or its id.
    pub(super) fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Whether its driver tells of events.
    pub(super) fn has_events(&self) -> bool {
        !self.event_attributes.is_empty()
            || self.channels.iter().any(|channel| !channel.event_attributes.is_empty())
    }

    /// Whether it only causes others to take samples.
    pub(super) fn is_trigger(&self) -> bool {
        self.channels.is_empty() && self.id.starts_with("trigger")
    }

    pub(super) fn channel(&self, id: &str, is_output: bool) -> Option<&Channel> {
        let is_it = |channel: &&Channel| {
            channel.is_output == is_output
                && (channel.id == id || channel.name.as_deref() == Some(id))
        };
        self.channels.iter().find(is_it)
    }

    /// Where its sampling rate is, if it has one: in a command, and the file in Linux. That of the device comes
    /// before that of a channel.
    pub(super) fn rate_place(&self) -> Option<(String, String)> {
        const NAME: &str = "sampling_frequency";
        if self.attributes.iter().any(|name| name == NAME) {
            return Some((format!("{} {NAME}", self.id), NAME.into()));
        }
        let of = |channel: &Channel| {
            let (_, file) = channel.attributes.iter().find(|(name, _)| name == NAME)?;
            let way = if channel.is_output { "OUTPUT" } else { "INPUT" };
            Some((format!("{} {way} {} {NAME}", self.id, channel.id), file.clone()))
        };
        self.channels.iter().filter(|channel| channel.scan.is_some()).find_map(of)
    }

    fn xml(&self, out: &mut String, with_events: bool) {
        let mut of = vec![("id", self.id.as_str())];
        of.extend(self.name.as_deref().map(|name| ("name", name)));
        of.extend(self.label.as_deref().map(|label| ("label", label)));
        element(out, "device", &of, |out| {
            for channel in &self.channels {
                channel.xml(out, with_events);
            }
            let events = if with_events { &self.event_attributes[..] } else { &[] };
            for (tag, names) in [
                ("attribute", &self.attributes[..]),
                ("buffer-attribute", &self.buffer_attributes),
                ("debug-attribute", &self.debug_attributes),
                ("event-attribute", events),
            ] {
                for name in names {
                    empty(out, tag, &[("name", name)]);
                }
            }
        });
    }
}

impl Channel {
    fn xml(&self, out: &mut String, with_events: bool) {
        let mut of = vec![("id", self.id.as_str())];
        of.extend(self.name.as_deref().map(|name| ("name", name)));
        of.push(("type", if self.is_output { "output" } else { "input" }));
        element(out, "channel", &of, |out| {
            if let Some(scan) = &self.scan {
                scan.xml(out);
            }
            let events = if with_events { &self.event_attributes[..] } else { &[] };
            for (tag, attributes) in
                [("attribute", &self.attributes[..]), ("event-attribute", events)]
            {
                for (name, file) in attributes {
                    empty(out, tag, &[("name", name), ("filename", file)]);
                }
            }
        });
    }
}

impl Scan {
    fn xml(&self, out: &mut String) {
        let (index, format) = (self.index.to_string(), format(self.kind));
        let scale = self.scale.map(|scale| format!("{:.6}", f64::from(scale)));
        let mut of = vec![("index", index.as_str()), ("format", &format)];
        of.extend(scale.as_deref().map(|scale| ("scale", scale)));
        empty(out, "scan-element", &of);
    }
}

/// A type as in sysfs, with a capital letter if all bits are valid.
fn format(kind: Type) -> String {
    let sign = match (kind.signed, kind.bits == kind.storage_bits) {
        (true, true) => 'S',
        (true, false) => 's',
        (false, true) => 'U',
        (false, false) => 'u',
    };
    kind.text(sign)
}

fn element(
    out: &mut String,
    tag: &str,
    attributes: &[(&str, &str)],
    content: impl FnOnce(&mut String),
) {
    start(out, tag, attributes);
    *out += ">";
    content(out);
    // Writing to a string does not fail.
    let _ = write!(out, "</{tag}>");
}

fn empty(out: &mut String, tag: &str, attributes: &[(&str, &str)]) {
    start(out, tag, attributes);
    *out += "/>";
}

fn start(out: &mut String, tag: &str, attributes: &[(&str, &str)]) {
    let _ = write!(out, "<{tag} ");
    for (name, value) in attributes {
        let _ = write!(out, "{name}=\"");
        escape(out, value);
        *out += "\" ";
    }
}

/// XML has no way to write most control characters: they become spaces.
fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => *out += "&amp;",
            '<' => *out += "&lt;",
            '>' => *out += "&gt;",
            '\'' => *out += "&apos;",
            '"' => *out += "&quot;",
            letter if letter.is_control() => *out += " ",
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_written_as_libiio_reads_it() {
        let scan = Scan {
            index: 0,
            kind: Type::parse("le:s12/16>>4").unwrap(),
            scale: Some(0.5),
            name: "voltage0".into(),
        };
        let channel = Channel {
            id: "voltage0".into(),
            name: Some("a\"<b".into()),
            scan: Some(scan),
            attributes: vec![("raw".into(), "in_voltage0_raw".into())],
            event_attributes: vec![("change_en".into(), "in_voltage0_change_en".into())],
            ..Channel::default()
        };
        let device = Device {
            id: "iio:device0".into(),
            name: Some("adc".into()),
            channels: vec![channel],
            attributes: vec!["pattern".into()],
            buffer_attributes: vec!["data_available".into()],
            debug_attributes: vec!["direct_reg_access".into()],
            event_attributes: vec!["timeout".into()],
            ..Device::default()
        };
        let context = Context {
            description: "Linux".into(),
            attributes: vec![("uri".into(), "local:".into())],
            devices: vec![device],
        };
        let xml = context.xml((0, 24, "test"));
        let (_, body) = xml.split_once("]>").unwrap();
        let expected = "<context name=\"local\" version-major=\"0\" version-minor=\"24\" version-git=\"test\" \
            description=\"Linux\" ><context-attribute name=\"uri\" value=\"local:\" />\
            <device id=\"iio:device0\" name=\"adc\" >\
            <channel id=\"voltage0\" name=\"a&quot;&lt;b\" type=\"input\" >\
            <scan-element index=\"0\" format=\"le:s12/16&gt;&gt;4\" scale=\"0.500000\" />\
            <attribute name=\"raw\" filename=\"in_voltage0_raw\" /></channel>\
            <attribute name=\"pattern\" /><buffer-attribute name=\"data_available\" />\
            <debug-attribute name=\"direct_reg_access\" /></device></context>";
        assert_eq!(body, expected);
        let xml = context.xml_with_events((0, 24, "test"));
        let (schema, body) = xml.split_once("]>").unwrap();
        let expected = expected
            .replace(
                "</channel>",
                "<event-attribute name=\"change_en\" filename=\"in_voltage0_change_en\" /></channel>",
            )
            .replace("</device>", "<event-attribute name=\"timeout\" /></device>");
        assert_eq!(body, expected);
        assert_eq!(schema.matches("<!ELEMENT ").count(), 9);
        assert_eq!(schema.matches("event-attribute").count(), 4);
    }

    #[test]
    fn devices_are_found_by_id_label_and_name() {
        let device = |id: &str, name: &str, label: Option<&str>| Device {
            id: id.into(),
            name: Some(name.into()),
            label: label.map(Into::into),
            ..Device::default()
        };
        let devices =
            vec![device("iio:device0", "adc", None), device("iio:device1", "dac", Some("out"))];
        let context = Context { devices, ..Context::default() };
        for (name, index) in
            [("iio:device0", 0), ("adc", 0), ("dac", 1), ("out", 1), ("iio:device1", 1)]
        {
            assert_eq!(context.find(name), Some(index), "{name}");
        }
        assert_eq!(context.find("device0"), None);
    }

    #[test]
    fn types_are_written_as_libiio_writes_them() {
        for (sysfs, xml) in [
            ("le:s16/16>>0", "le:S16/16>>0"),
            ("be:u12/16>>4", "be:u12/16>>4"),
            ("le:s32/32X4>>0", "le:S32/32X4>>0"),
        ] {
            assert_eq!(format(Type::parse(sysfs).unwrap()), xml);
        }
    }
}
