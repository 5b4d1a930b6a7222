//! What there is for blocks: the ways to a coprocessor, and memory to share with it.

use std::fs::File;

use busbar::Reason;
use busbar::bulk::Link;
use busbar::endpoint::{ADDR_ANY, Controller, ControllerInfo};
use busbar_uapi::dmabuf;
use rustix::io::Errno;

use super::machine::Machine;
use super::{Answer, Diagnosis};

const HEAP: &str = "/dev/dma_heap/system";
const UDMABUF: &str = "/dev/udmabuf";

/// What carries blocks on this machine.
#[derive(Default)]
struct Ways {
    /// Services that were announced.
    services: Vec<String>,
    controllers: usize,
    /// How many of the controllers have endpoints that share buffers.
    sharing: usize,
    netlink: bool,
    tty: bool,
    /// Where shared buffers would be allocated.
    memory: Option<&'static str>,
}

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("bulk", "large data to and from a coprocessor");
    let controllers = Controller::list().unwrap_or_default();
    let sharing = controllers.iter().filter(|one| note(&mut diagnosis, one)).count();
    let netlink = diagnosis.note("channels of rpmsg_netlink", netlink());
    diagnosis.note("module rpmsg_netlink", machine.module("rpmsg_netlink").answer());
    let tty = diagnosis.note("rpmsg terminals", machine.listed("sys/class/tty", "ttyRPMSG"));
    let memory = [HEAP, UDMABUF].into_iter().filter(|path| diagnosis.note(*path, openable(path)));
    let memory = memory.collect::<Vec<_>>().first().copied();
    let huge = machine.read("proc/sys/vm/nr_hugepages").filter(|count| count != "0");
    diagnosis.note("huge pages", huge.ok_or_else(|| "none reserved".to_string()));
    let services = controllers.iter().flat_map(|one| &one.channels).map(|it| it.name.clone());
    let ways = Ways {
        services: services.collect(),
        controllers: controllers.len(),
        sharing,
        netlink,
        tty,
        memory,
    };
    conclude(&mut diagnosis, &ways);
    advise(&mut diagnosis, machine, &ways);
    diagnosis
}

fn conclude(diagnosis: &mut Diagnosis, ways: &Ways) {
    if let (1.., Some(memory)) = (ways.sharing, ways.memory) {
        diagnosis.uses(format!("shared buffers of {memory} (--transport buffer)"));
    }
    if ways.controllers > 0 {
        diagnosis.uses("messages through endpoints (--transport fd, node)");
    }
    for (there, way) in [(ways.netlink, "netlink"), (ways.tty, "tty")] {
        if there {
            diagnosis.uses(format!("--transport {way}, where the coprocessor announces it"));
        }
    }
    if diagnosis.uses.is_empty() {
        diagnosis.uses("nothing: there is no way to a coprocessor (see endpoint)");
    }
}

fn advise(diagnosis: &mut Diagnosis, machine: &Machine, ways: &Ways) {
    if ways.controllers > 0 && ways.sharing == 0 {
        let load = machine.how_to_load("rpmsg_eptfd").map_or(String::new(), |how| how + "; ");
        diagnosis.advise(format!(
            "for shared buffers: {load}bind rpmsg_eptfd to the control device (docs/kernels.md)"
        ));
    }
    if ways.memory.is_none() {
        diagnosis.advise(format!(
            "for memory to share: access to {HEAP} or {UDMABUF}, by a kernel with \
             CONFIG_DMABUF_HEAPS_SYSTEM or CONFIG_UDMABUF"
        ));
    }
    let announced = |service| ways.services.iter().any(|name| name == service);
    if announced("rpmsg-netlink") && !ways.netlink {
        diagnosis.advise_all(machine.how_to_load("rpmsg_netlink"));
    }
    if announced("rpmsg-tty") && !ways.tty {
        diagnosis.advise_all(machine.how_to_load_in_tree("rpmsg_tty", "CONFIG_RPMSG_TTY"));
    }
}

fn netlink() -> Answer {
    match Link::netlink_channels() {
        Ok(devices) if devices.is_empty() => Err("none, but the module is loaded".into()),
        Ok(devices) => Ok(devices.join(", ")),
        Err(error) if error.reason() == Reason::NotFound => Err("the driver is not loaded".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn openable(path: &str) -> Answer {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => Ok("opens".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Notes whether the endpoints of a control device share buffers.
fn note(diagnosis: &mut Diagnosis, one: &ControllerInfo) -> bool {
    diagnosis.note(format!("{} shares buffers", one.path.display()), shares(one))
}

/// Makes the call with a wrong argument: the error tells whether the driver knows it.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn told(machine: &Machine, ways: &Ways) -> (String, String) {
        let mut diagnosis = Diagnosis::new("bulk", "");
        conclude(&mut diagnosis, ways);
        advise(&mut diagnosis, machine, ways);
        (diagnosis.uses.join("\n"), diagnosis.advice.join("\n"))
    }

    #[test]
    fn a_coprocessor_that_announces_a_driver_gets_its_module() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let services = vec!["rpmsg-netlink".to_string(), "rpmsg-tty".into()];
        let mut ways = Ways { services, controllers: 1, ..Ways::default() };
        let (uses, advice) = told(&machine, &ways);
        assert!(uses.contains("--transport fd"), "{uses}");
        for part in ["MODULES=rpmsg_eptfd", "MODULES=rpmsg_netlink", "CONFIG_RPMSG_TTY", UDMABUF] {
            assert!(advice.contains(part), "{part}: {advice}");
        }
        let modules = root.path().join("lib/modules/6.12.0");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "a/rpmsg_eptfd.ko:\na/rpmsg_netlink.ko:\n").unwrap();
        let (_, advice) = told(&machine, &ways);
        assert!(advice.contains("modprobe rpmsg_eptfd; bind"), "{advice}");
        assert!(advice.contains("\nmodprobe rpmsg_netlink"), "{advice}");

        (ways.sharing, ways.netlink, ways.tty, ways.memory) = (1, true, true, Some(HEAP));
        let (uses, advice) = told(&machine, &ways);
        assert_eq!(advice, "");
        assert!(uses.starts_with("shared buffers of /dev/dma_heap/system"), "{uses}");
    }

    #[test]
    fn without_a_coprocessor_there_is_no_way() {
        let root = tempfile::tempdir().unwrap();
        let (uses, advice) = told(&Machine::at(root.path()), &Ways::default());
        assert!(uses.contains("nothing"), "{uses}");
        assert!(!advice.contains("rpmsg"), "{advice}");
    }
}
