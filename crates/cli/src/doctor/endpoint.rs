//! What there is for endpoints: processors, control devices and what these can do.

use busbar::endpoint::{Controller, ControllerInfo};

use super::machine::Machine;
use super::{Answer, Diagnosis};

/// Modules in the order of their layers; those of Busbar last.
const MODULES: [&str; 5] =
    ["virtio_rpmsg_bus", "rpmsg_ctrl", "rpmsg_char", "rpmsg_eptfd", "vcoproc"];

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("endpoint", "messages to and from a coprocessor");
    diagnosis.note("remote processors", processors(machine));
    let bus = if machine.has("sys/bus/rpmsg") { Ok("there") } else { Err("not there") };
    diagnosis.note("rpmsg bus", bus.map(String::from).map_err(String::from));
    let controllers = Controller::list().unwrap_or_default();
    if controllers.is_empty() {
        diagnosis.note("control devices", Err("none".into()));
    }
    let kinds: Vec<_> = controllers.iter().map(|one| note(&mut diagnosis, one)).collect();
    for module in MODULES {
        diagnosis.note(format!("module {module}"), machine.module(module).answer());
    }
    if kinds.is_empty() {
        diagnosis.uses("nothing: there is no control device");
    }
    advise(&mut diagnosis, machine, &kinds);
    diagnosis
}

fn processors(machine: &Machine) -> Answer {
    if !machine.has("sys/class/remoteproc") {
        return Err("no remoteproc framework: not in this kernel, or not loaded".into());
    }
    let state = |device: &String| {
        let read = |file| machine.read(&format!("sys/class/remoteproc/{device}/{file}"));
        let (name, state) = (read("name"), read("state"));
        format!("{device} ({}) {}", name.unwrap_or_default(), state.unwrap_or_default())
    };
    let devices = machine.entries("sys/class/remoteproc", "remoteproc");
    let all: Vec<_> = devices.iter().map(state).collect();
    if all.is_empty() { Err("none".into()) } else { Ok(all.join(", ")) }
}

/// What a control device can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Descriptors,
    Nodes,
    Closed,
}

fn note(diagnosis: &mut Diagnosis, one: &ControllerInfo) -> Kind {
    let path = one.path.display();
    match Controller::open(&one.path).and_then(|controller| controller.supports_fd()) {
        Ok(true) => {
            diagnosis.note(path.to_string(), Ok(describe(one, "makes descriptors")));
            diagnosis.uses(format!("{path}: endpoints that are descriptors"));
            Kind::Descriptors
        }
        Ok(false) => {
            diagnosis.note(path.to_string(), Ok(describe(one, "makes device nodes only")));
            diagnosis.uses(format!("{path}: endpoints that are device nodes"));
            Kind::Nodes
        }
        Err(error) => {
            diagnosis.note(path.to_string(), Err(error.to_string()));
            diagnosis.uses(format!("{path}: nothing"));
            Kind::Closed
        }
    }
}

fn describe(one: &ControllerInfo, does: &str) -> String {
    let mut parts = vec![does.to_owned()];
    parts.extend(one.driver.as_ref().map(|driver| format!("driver {driver}")));
    parts.extend(one.remoteproc.as_ref().map(|it| format!("{} {}", it.device, it.state)));
    let services: Vec<_> = one.channels.iter().map(|channel| channel.name.as_str()).collect();
    parts.push(match services.as_slice() {
        [] => "no services".into(),
        names => format!("services {}", names.join(" ")),
    });
    parts.join(", ")
}

fn advise(diagnosis: &mut Diagnosis, machine: &Machine, kinds: &[Kind]) {
    if kinds.is_empty() {
        diagnosis.advise(lacking(machine));
    }
    if kinds.contains(&Kind::Closed) {
        diagnosis.advise(
            "give yourself access by a udev rule such as \
             SUBSYSTEM==\"rpmsg\", GROUP=\"dialout\", MODE=\"0660\"",
        );
    }
    if kinds.contains(&Kind::Nodes) {
        let load = machine.how_to_load("rpmsg_eptfd").map_or(String::new(), |how| how + "; ");
        diagnosis.advise(format!(
            "for endpoints without device nodes: {load}bind rpmsg_eptfd to the control device \
             (docs/kernels.md)"
        ));
    }
}

/// The first thing that is missing for a control device.
fn lacking(machine: &Machine) -> String {
    let devices = machine.entries("sys/class/remoteproc", "remoteproc");
    let state = |device: &String| machine.read(&format!("sys/class/remoteproc/{device}/state"));
    if devices.is_empty() {
        let how = machine.how_to_load("vcoproc");
        return format!(
            "load the remoteproc driver of your SoC; or for a virtual coprocessor: {}; or in the \
             lab: busbar lab shell, modprobe vcoproc",
            how.as_deref().unwrap_or("busbar coprocessor run --service echo")
        );
    }
    match devices.iter().find(|device| state(device).as_deref() != Some("running")) {
        Some(device) => {
            format!("start the coprocessor: echo start > /sys/class/remoteproc/{device}/state")
        }
        None => drivers_lacking(machine),
    }
}

/// What is missing if a coprocessor runs but has no control device.
fn drivers_lacking(machine: &Machine) -> String {
    if !machine.has("sys/bus/rpmsg") {
        let how = machine.how_to_load_in_tree("virtio_rpmsg_bus", "CONFIG_RPMSG_VIRTIO");
        return format!(
            "load the bus: {}",
            how.as_deref().unwrap_or("its firmware has no rpmsg device")
        );
    }
    match (
        machine.how_to_load("rpmsg_eptfd"),
        machine.how_to_load_in_tree("rpmsg_ctrl", "CONFIG_RPMSG_CTRL"),
    ) {
        (None, _) | (_, None) => "bind a control driver to the coprocessor's rpmsg_ctrl device; \
             rpmsg_eptfd does so by itself with replace=1 (docs/kernels.md)"
            .into(),
        (Some(ours), Some(in_tree)) => format!("load a control driver: {ours}; or {in_tree}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use busbar::endpoint::{ChannelInfo, Remoteproc};

    use super::*;

    fn processor(root: &Path, state: &str) {
        let dir = root.join("sys/class/remoteproc/remoteproc0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("name"), "vcoproc\n").unwrap();
        fs::write(dir.join("state"), format!("{state}\n")).unwrap();
    }

    #[test]
    fn processors_come_with_name_and_state() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        assert!(processors(&machine).unwrap_err().contains("no remoteproc framework"));
        fs::create_dir_all(root.path().join("sys/class/remoteproc")).unwrap();
        assert_eq!(processors(&machine).unwrap_err(), "none");
        processor(root.path(), "offline");
        assert_eq!(processors(&machine).unwrap(), "remoteproc0 (vcoproc) offline");
    }

    #[test]
    fn the_advice_is_the_next_step() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        assert!(lacking(&machine).contains("busbar lab shell"));
        assert!(lacking(&machine).contains("MODULES=vcoproc"));
        fs::create_dir_all(root.path().join("sys/module/vcoproc")).unwrap();
        assert!(lacking(&machine).contains("busbar coprocessor run"));
        processor(root.path(), "offline");
        assert!(lacking(&machine).contains("echo start > /sys/class/remoteproc/remoteproc0/state"));
        processor(root.path(), "running");
        assert!(lacking(&machine).contains("CONFIG_RPMSG_VIRTIO"));
        fs::create_dir_all(root.path().join("sys/bus/rpmsg")).unwrap();
        let advice = lacking(&machine);
        for part in ["MODULES=rpmsg_eptfd", "modprobe rpmsg_eptfd", "CONFIG_RPMSG_CTRL"] {
            assert!(advice.contains(part), "{advice}");
        }
        fs::create_dir_all(root.path().join("sys/module/rpmsg_eptfd")).unwrap();
        assert!(lacking(&machine).contains("replace=1"));
    }

    #[test]
    fn each_kind_of_control_device_has_its_advice() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let advice = |kinds: &[Kind]| {
            let mut diagnosis = Diagnosis::new("endpoint", "");
            advise(&mut diagnosis, &machine, kinds);
            diagnosis.advice.join("\n")
        };
        assert_eq!(advice(&[Kind::Descriptors]), "");
        assert!(advice(&[Kind::Nodes]).contains("make install-modules MODULES=rpmsg_eptfd"));
        assert!(advice(&[Kind::Descriptors, Kind::Closed]).contains("udev rule"));
    }

    #[test]
    fn a_control_device_is_described_by_what_it_leads_to() {
        let channel =
            ChannelInfo { name: "echo".into(), source: 0, destination: 1024, driver: None };
        let one = ControllerInfo {
            path: "/dev/rpmsg_ctrl0".into(),
            driver: Some("rpmsg_ctrl".into()),
            remoteproc: Some(Remoteproc {
                device: "remoteproc0".into(),
                name: String::new(),
                state: "running".into(),
            }),
            channels: vec![channel],
        };
        let expected = "does, driver rpmsg_ctrl, remoteproc0 running, services echo";
        assert_eq!(describe(&one, "does"), expected);
    }
}
