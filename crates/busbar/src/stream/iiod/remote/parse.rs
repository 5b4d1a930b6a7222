//! The XML of a context.

use roxmltree::{Document, Node, ParsingOptions};

use crate::stream::iiod::context::{Channel, Context, Device, Scan};
use crate::stream::scan::Type;

/// Most elements and attributes.
const MOST_NODES: u32 = 100_000;

impl Context {
    /// Reads what [`xml`](Self::xml) writes. Scan elements that are not understood are left out.
    ///
    /// # Errors
    ///
    /// What is wrong, as text.
    pub(in crate::stream::iiod) fn parse(xml: &str) -> Result<Self, String> {
        // A few bytes could stand for any number of them. The DTD of libiio declares elements and attributes alone.
        if xml.contains("<!ENTITY") {
            return Err("it declares entities, which no context does".into());
        }
        let options =
            ParsingOptions { allow_dtd: true, nodes_limit: MOST_NODES, ..Default::default() };
        let document = Document::parse_with_options(xml, options).map_err(|why| why.to_string())?;
        let root = document.root_element();
        if !root.has_tag_name("context") {
            return Err("it is no context".into());
        }
        let text = |node: Node<'_, '_>, name: &str| node.attribute(name).map(ToOwned::to_owned);
        let attributes = children(root, "context-attribute")
            .filter_map(|node| Some((text(node, "name")?, text(node, "value")?)));
        let devices = children(root, "device").filter_map(device);
        Ok(Self {
            description: text(root, "description").unwrap_or_default(),
            attributes: attributes.collect(),
            devices: devices.collect(),
        })
    }
}

fn children<'a, 'i>(node: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

/// A name as it may be part of a command: no spaces, no control characters.
fn name(node: Node<'_, '_>, attribute: &str) -> Option<String> {
    let name = node.attribute(attribute)?;
    let is_fine = !name.is_empty()
        && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    is_fine.then(|| name.to_owned())
}

fn names(node: Node<'_, '_>, tag: &'static str) -> Vec<String> {
    children(node, tag).filter_map(|child| name(child, "name")).collect()
}

fn device(node: Node<'_, '_>) -> Option<Device> {
    Some(Device {
        id: name(node, "id")?,
        name: node.attribute("name").map(ToOwned::to_owned),
        label: node.attribute("label").map(ToOwned::to_owned),
        channels: children(node, "channel").map(channel).collect::<Option<_>>()?,
        attributes: names(node, "attribute"),
        buffer_attributes: names(node, "buffer-attribute"),
        debug_attributes: names(node, "debug-attribute"),
        ..Device::default()
    })
}

/// A channel that is not understood makes its device useless: the bits of masks depend on their number.
fn channel(node: Node<'_, '_>) -> Option<Channel> {
    let id = name(node, "id")?;
    let named = name(node, "name");
    let attributes = children(node, "attribute").filter_map(|child| {
        let short = name(child, "name")?;
        Some((short.clone(), name(child, "filename").unwrap_or(short)))
    });
    let attributes = attributes.collect();
    let full = named.as_ref().map_or_else(|| id.clone(), |named| format!("{id}_{named}"));
    let scan = children(node, "scan-element").next().and_then(|node| {
        Some(Scan {
            index: node.attribute("index")?.parse().ok()?,
            kind: Type::parse(node.attribute("format")?)?,
            scale: node.attribute("scale").and_then(|scale| scale.parse().ok()),
            name: full,
        })
    });
    let is_output = node.attribute("type") == Some("output");
    Some(Channel { id, name: named, is_output, scan, attributes, ..Channel::default() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn context() -> Context {
        let scan = |index| Scan {
            index,
            kind: Type::parse("le:s12/16>>4").unwrap(),
            scale: Some(0.5),
            name: format!("voltage{index}"),
        };
        let channel = |index| Channel {
            id: format!("voltage{index}"),
            scan: Some(scan(index)),
            attributes: vec![("raw".into(), format!("in_voltage{index}_raw"))],
            ..Channel::default()
        };
        let device = Device {
            id: "iio:device0".into(),
            name: Some("adc <&\"> é".into()),
            channels: vec![channel(0), channel(1)],
            attributes: vec!["pattern".into()],
            buffer_attributes: vec!["data_available".into()],
            debug_attributes: vec!["direct_reg_access".into()],
            ..Device::default()
        };
        let attributes = vec![("uri".into(), "local:".into())];
        Context { description: "Linux".into(), attributes, devices: vec![device] }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Context::parse(&context().xml((0, 24, "x"))), Ok(context()));
    }

    #[test]
    fn what_is_no_context_is_refused() {
        for xml in [
            "",
            "<",
            "<x/>",
            "<context",
            "<!DOCTYPE context [<!ENTITY a \"&a;\">]><context x=\"&a;\"/>",
            "<!DOCTYPE context [<!ENTITY a \"x\">]><context name=\"&a;\"/>",
            "<!DOCTYPE context [<!ENTITY % a \"x\">]><context/>",
        ] {
            assert!(Context::parse(xml).is_err(), "{xml}");
        }
        let devices = |xml: &str| Context::parse(xml).unwrap().devices.len();
        assert_eq!(
            devices("<context><device/><device id=\"a b\"/><device id=\"a\nCLOSE\"/></context>"),
            0
        );
        assert_eq!(
            devices("<context><device id=\"a\"><channel/></device><device id=\"b\"/></context>"),
            1
        );
    }

    proptest! {
        #[test]
        fn no_damage_panics(at in 0_usize..2000, with in any::<u8>()) {
            let mut xml = context().xml((0, 24, "x")).into_bytes();
            let at = at % xml.len();
            xml[at] = with;
            let _ = Context::parse(&String::from_utf8_lossy(&xml));
        }
    }
}
