//! What there is to receive with: the kernel, network devices, and memory for blocks.

use busbar::block::{Block, Memory};
use busbar::receive::{Offer, Receiver};

use super::machine::Machine;
use super::{Answer, Diagnosis};

const DEVICES: &str = "sys/class/net";
const UDMABUF: &str = "sys/module/udmabuf/parameters";

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("receive", "network data that lands in device memory");
    let offer = Offer::ask().map_err(|error| error.to_string());
    let binds = diagnosis.note("binding memory to a queue", binds(&offer));
    diagnosis.note("index tokens", index_tokens(&offer));
    let mut able = Vec::new();
    for device in machine.entries(DEVICES, "") {
        let answer = Receiver::offered(&device);
        if answer.is_ok() {
            able.push(device.clone());
        }
        let answer = answer.map(|queues| format!("up to {queues} of its queues"));
        diagnosis.note(device, answer.map_err(|error| error.to_string()));
    }
    diagnosis.note("module vnic", machine.module("vnic"));
    let pages = diagnosis.note("pages, by udmabuf", pages(machine));
    if binds && pages {
        for device in &able {
            diagnosis.uses(format!("device memory: busbar receive --device {device}"));
        }
    }
    diagnosis.uses("ordinary receive into a block: busbar receive, on every device");
    advise(&mut diagnosis, &offer, able.is_empty(), pages);
    diagnosis
}

fn advise(diagnosis: &mut Diagnosis, offer: &Result<Offer, String>, no_device: bool, pages: bool) {
    if !matches!(offer, Ok(Offer { binds: Some(true) | None, .. })) {
        diagnosis.advise("a kernel with CONFIG_NET_DEVMEM: busbar lab shell has it");
    } else if no_device {
        diagnosis
            .advise("the driver of a NIC that can do it, or: modprobe vnic, ip link add type vnic");
    }
    if !pages {
        diagnosis.advise("CONFIG_UDMABUF, and access to /dev/udmabuf, for memory to bind");
    }
}

fn binds(offer: &Result<Offer, String>) -> Answer {
    match offer {
        Ok(Offer { binds: Some(true), .. }) => Ok("offered".into()),
        Ok(Offer { binds: Some(false), .. }) => Err("not in this kernel".into()),
        Ok(Offer { binds: None, .. }) => Err("it takes CAP_NET_ADMIN to ask".into()),
        Err(why) => Err(why.clone()),
    }
}

fn index_tokens(offer: &Result<Offer, String>) -> Answer {
    match offer {
        Ok(Offer { has_index_tokens: true, .. }) => Ok("the kernel's patches are in".into()),
        Ok(_) => Err("the kernel is without Busbar's patches; sockets have tables".into()),
        Err(why) => Err(why.clone()),
    }
}

/// Takes a page of it, and tells how much a block may have.
fn pages(machine: &Machine) -> Answer {
    Block::with(1, &Memory::Pages).map_err(|error| error.to_string())?;
    let read = |limit: &str| machine.read(&format!("{UDMABUF}/{limit}"));
    Ok(match read("size_limit_mb") {
        Some(size) => format!("up to {size} MiB a block"),
        None => "opens".into(),
    })
}
