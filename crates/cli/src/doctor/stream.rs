//! What there is for streams: converters, what their drivers offer, and memory for blocks.

use busbar::block::{Block, Memory, Purpose};
use busbar::stream::Interface;
use busbar::stream::usb::takes_in_place;

use super::machine::Machine;
use super::{Answer, Diagnosis};

const DEVICES: &str = "sys/bus/iio/devices";

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("stream", "blocks of samples that are not copied");
    let devices: Vec<_> = machine
        .entries(DEVICES, "iio:device")
        .into_iter()
        .filter(|device| machine.has(&format!("{DEVICES}/{device}/buffer0")))
        .collect();
    if devices.is_empty() {
        diagnosis.note("converters", Err("no IIO device with a buffer".into()));
        diagnosis.uses("synth: streams that the library makes itself");
    }
    for device in &devices {
        note(&mut diagnosis, machine, device);
    }
    controllers(&mut diagnosis, machine);
    diagnosis.note("module vconv", machine.module("vconv").answer());
    let heaps = memory(&Memory::Heap("system".into()));
    let heap = diagnosis.note("DMA heap system", heaps);
    let pages = diagnosis.note("pages, by udmabuf", memory(&Memory::Pages));
    diagnosis.note("huge pages, by udmabuf", memory(&Memory::HugePages));
    for (purpose, what) in [
        (Purpose::Device, "blocks for converters"),
        (Purpose::Network, "blocks for converters that go out to the network"),
        (Purpose::Program, "blocks without a converter"),
    ] {
        diagnosis.uses(format!("{what}: {}", Memory::choose(purpose)));
    }
    advise(&mut diagnosis, machine, devices.is_empty());
    if !heap && !pages {
        diagnosis.advise(
            "for blocks that are filled in place: access to /dev/dma_heap/system or /dev/udmabuf, \
             by a kernel with CONFIG_DMABUF_HEAPS_SYSTEM or CONFIG_UDMABUF",
        );
    }
    diagnosis
}

fn advise(diagnosis: &mut Diagnosis, machine: &Machine, is_without: bool) {
    if is_without {
        let how = machine.how_to_load("vconv");
        diagnosis.advise(format!(
            "load the driver of your converter; or for a virtual one: {}; or in the lab: \
             busbar lab shell, modprobe vconv",
            how.as_deref().unwrap_or("mkdir /sys/kernel/config/iio/devices/vconv/NAME")
        ));
    }
}

/// Asks the driver, unless another process uses the device.
fn note(diagnosis: &mut Diagnosis, machine: &Machine, device: &str) {
    let read = |file: &str| machine.read(&format!("{DEVICES}/{device}/{file}"));
    let label = format!("{device} ({})", read("name").unwrap_or_default());
    let channels = machine.entries(&format!("{DEVICES}/{device}/scan_elements"), "out_");
    if !channels.is_empty() {
        diagnosis.note(label, Ok("transmits".into()));
        return;
    }
    let answer = match Interface::offered(device) {
        Ok(Interface::Dmabuf) => Ok("receives, in place (dmabuf)".to_string()),
        Ok(other) => Ok(format!("receives, by copying ({other})")),
        Err(error) => Err(error.to_string()),
    };
    if let Ok(answer) = &answer {
        diagnosis.uses(format!("{label}: {answer}"));
    }
    diagnosis.note(label, answer);
}

/// Controllers by which this machine can be a USB device. Each that is free is asked.
fn controllers(diagnosis: &mut Diagnosis, machine: &Machine) {
    let names = machine.entries("sys/class/udc", "");
    if names.is_empty() {
        diagnosis.note("USB device controllers", Err("none: usb: needs one on a device".into()));
    }
    for name in names {
        let read = |file: &str| machine.read(&format!("sys/class/udc/{name}/{file}"));
        let speed = read("maximum_speed").unwrap_or_default();
        let answer = match read("function").filter(|function| !function.is_empty()) {
            Some(function) => Ok(format!("{speed}; has the gadget {function}")),
            None => match takes_in_place(&name) {
                Ok(true) => Ok(format!("{speed}; sends blocks in place")),
                Ok(false) => Ok(format!("{speed}; copies blocks: it takes no scatterlists")),
                Err(error) => Err(error.to_string()),
            },
        };
        diagnosis.note(format!("USB controller {name}"), answer);
    }
}

/// Allocates a page.
fn memory(memory: &Memory) -> Answer {
    match Block::with(1, memory) {
        Ok(block) => Ok(format!("{} bytes at least", block.len())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_converter_is_told_how_to_get_one() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let advice = |is_without| {
            let mut diagnosis = Diagnosis::new("stream", "");
            advise(&mut diagnosis, &machine, is_without);
            diagnosis.advice.join("")
        };
        assert_eq!(advice(false), "");
        assert!(advice(true).contains("make install-modules MODULES=vconv"));
        std::fs::create_dir_all(root.path().join("sys/module/vconv")).unwrap();
        assert!(advice(true).contains("mkdir /sys/kernel/config"));
    }

    #[test]
    fn a_machine_without_converters_makes_streams_itself() {
        let root = tempfile::tempdir().unwrap();
        let diagnosis = diagnose(&Machine::at(root.path()));
        assert!(diagnosis.uses[0].starts_with("synth:"), "{diagnosis:?}");
    }
}
