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
    diagnosis.note("module vnic", machine.module("vnic").answer());
    let pages = diagnosis.note("pages, by udmabuf", pages(machine));
    if binds && pages {
        for device in &able {
            diagnosis.uses(format!("device memory: busbar receive --device {device}"));
        }
    }
    diagnosis.uses("ordinary receive into a block: busbar receive, on every device");
    advise(&mut diagnosis, machine, &offer, able.is_empty());
    if !pages {
        diagnosis
            .advise("for memory to bind: a kernel with CONFIG_UDMABUF, and access to /dev/udmabuf");
    }
    diagnosis
}

fn advise(
    diagnosis: &mut Diagnosis,
    machine: &Machine,
    offer: &Result<Offer, String>,
    is_without: bool,
) {
    let Ok(Offer { binds: Some(true) | None, has_index_tokens }) = offer else {
        diagnosis.advise(
            "for device memory: a kernel with CONFIG_NET_DEVMEM, such as the lab's: busbar lab shell",
        );
        return;
    };
    if is_without {
        let how = machine.how_to_load("vnic").map_or(String::new(), |how| how + "; ");
        diagnosis.advise(format!(
            "the driver of a NIC that supports it; or for a virtual pair: {how}ip link add nic0 type vnic"
        ));
    }
    if !has_index_tokens {
        diagnosis.advise(
            "for tokens that cost less: a kernel with Busbar's patches for receive \
             (docs/kernels.md), or the lab's",
        );
    }
}

fn binds(offer: &Result<Offer, String>) -> Answer {
    match offer {
        Ok(Offer { binds: Some(true), .. }) => Ok("offered".into()),
        Ok(Offer { binds: Some(false), .. }) => Err("not in this kernel".into()),
        Ok(Offer { binds: None, .. }) => {
            Err("asking needs CAP_NET_ADMIN, on newer kernels also a device that can be bound"
                .into())
        }
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

/// Allocates a page, and tells how large a block may be.
fn pages(machine: &Machine) -> Answer {
    Block::with(1, &Memory::Pages).map_err(|error| error.to_string())?;
    let read = |limit: &str| machine.read(&format!("{UDMABUF}/{limit}"));
    Ok(match read("size_limit_mb") {
        Some(size) => format!("up to {size} MiB a block"),
        None => "opens".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_is_told_what_it_lacks() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let advice = |binds, has_index_tokens, is_without| {
            let mut diagnosis = Diagnosis::new("receive", "");
            let offer = Ok(Offer { binds, has_index_tokens });
            advise(&mut diagnosis, &machine, &offer, is_without);
            diagnosis.advice.join("\n")
        };
        assert_eq!(advice(Some(true), true, false), "");
        assert!(advice(Some(false), false, true).contains("CONFIG_NET_DEVMEM"));
        assert!(advice(None, true, true).contains("make install-modules MODULES=vnic"));
        assert!(advice(Some(true), false, false).contains("Busbar's patches for receive"));
        std::fs::create_dir_all(root.path().join("sys/module/vnic")).unwrap();
        assert!(advice(None, true, true).contains("virtual pair: ip link add"));
    }
}
