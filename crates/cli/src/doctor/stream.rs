//! What there is for streams: converters, what their drivers offer, and memory for blocks.

use busbar::block::{Block, Memory, Purpose};
use busbar::stream::Interface;

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
    diagnosis.note("module vconv", machine.module("vconv"));
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
    if devices.is_empty() {
        diagnosis.advise(
            "load the driver of your converter, or take the lab's: busbar lab shell, modprobe vconv",
        );
    }
    if !heap && !pages {
        diagnosis.advise("CONFIG_DMABUF_HEAPS_SYSTEM or CONFIG_UDMABUF for blocks in place");
    }
    diagnosis
}

/// Asks the driver, unless somebody else has the device.
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

/// Takes a page of it.
fn memory(memory: &Memory) -> Answer {
    match Block::with(1, memory) {
        Ok(block) => Ok(format!("{} bytes at least", block.len())),
        Err(error) => Err(error.to_string()),
    }
}
