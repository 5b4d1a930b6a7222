//! What there is for blocks: the ways to a coprocessor, and memory to share with it.

use std::fs::File;

use busbar::endpoint::{ADDR_ANY, Controller, ControllerInfo};
use busbar_uapi::dmabuf;
use rustix::io::Errno;

use super::genetlink;
use super::machine::Machine;
use super::others::{no, openable};
use super::{Answer, Diagnosis};

const FAMILY: &str = "rpmsg-netlink";
const HEAP: &str = "/dev/dma_heap/system";
const UDMABUF: &str = "/dev/udmabuf";

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("bulk", "large data to and from a coprocessor");
    let controllers = Controller::list().unwrap_or_default();
    let sharing: Vec<_> = controllers.iter().filter(|one| note(&mut diagnosis, one)).collect();
    let family = genetlink::operations(FAMILY).map(|all| format!("{} operations", all.len()));
    let netlink = diagnosis.note(format!("netlink family {FAMILY}"), family.map_err(no));
    diagnosis.note("module rpmsg_netlink", machine.module("rpmsg_netlink"));
    let tty = diagnosis.note("rpmsg terminals", machine.listed("sys/class/tty", "ttyRPMSG"));
    let heap = diagnosis.note(HEAP, openable(HEAP));
    let udmabuf = diagnosis.note(UDMABUF, openable(UDMABUF));
    let huge = machine.read("proc/sys/vm/nr_hugepages").filter(|count| count != "0");
    diagnosis.note("huge pages", huge.ok_or_else(|| "none reserved".to_string()));

    if !sharing.is_empty() && (heap || udmabuf) {
        let memory = if heap { HEAP } else { UDMABUF };
        diagnosis.uses(format!("shared buffers of {memory} (--transport buffer)"));
    }
    if !controllers.is_empty() {
        diagnosis.uses("messages through endpoints (--transport fd, node)");
    }
    for (there, way) in [(netlink, "netlink"), (tty, "tty")] {
        if there {
            diagnosis.uses(format!("--transport {way}, where the coprocessor announces it"));
        }
    }
    if controllers.is_empty() && !netlink && !tty {
        diagnosis.uses("nothing: there is no way to a coprocessor");
    }
    if !controllers.is_empty() && sharing.is_empty() {
        diagnosis.advise("bind rpmsg_eptfd to a control device to share buffers");
    }
    if !heap && !udmabuf {
        diagnosis.advise("CONFIG_DMABUF_HEAPS_SYSTEM or CONFIG_UDMABUF for memory to share");
    }
    diagnosis
}

/// Notes whether the endpoints of a control device share buffers.
fn note(diagnosis: &mut Diagnosis, one: &ControllerInfo) -> bool {
    diagnosis.note(format!("{} shares buffers", one.path.display()), shares(one))
}

/// Asks for something impossible, and hears whether the call is known.
fn shares(one: &ControllerInfo) -> Answer {
    let endpoint = Controller::open(&one.path)
        .and_then(|it| it.endpoint("busbar-probe").destination(ADDR_ANY).create());
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let null = File::open("/dev/null").map_err(|error| error.to_string())?;
    match dmabuf::attach(&endpoint, &null) {
        Err(Errno::NOTTY) => Err("its driver does not know the call".into()),
        _ => Ok("its driver knows the call".into()),
    }
}
