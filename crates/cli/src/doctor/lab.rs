//! What there is for the lab.

use std::error::Error as _;
use std::fs::File;

use super::machine::Machine;
use super::{Answer, Diagnosis};
use crate::developers;

pub fn diagnose(machine: &Machine) -> Diagnosis {
    examine(machine, busbar_dev())
}

fn examine(machine: &Machine, busbar_dev: Answer) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("lab", "a real kernel with virtual hardware, in QEMU");
    if !diagnosis.note(developers::PROGRAM, busbar_dev) {
        diagnosis.advise("busbar-dev has `busbar lab`; in Busbar's source: make build install-dev");
    }
    let (qemu, package) = qemu(machine.name());
    let has_qemu = diagnosis.note(&qemu, machine.program(&qemu));
    let has_kvm = diagnosis.note("/dev/kvm", kvm());
    match (has_qemu, has_kvm) {
        (true, true) => diagnosis.uses("KVM, if a trial boot works, otherwise emulation"),
        (true, false) => diagnosis.uses("emulation: slower, otherwise the same"),
        (false, _) => {
            diagnosis.uses("nothing: there is no QEMU");
            diagnosis.advise(format!("apt-get install {package}, then: busbar lab shell"));
        }
    }
    diagnosis
}

/// QEMU for this kind of processor, with its Debian package.
fn qemu(processor: &str) -> (String, &'static str) {
    match processor {
        "aarch64" => (format!("qemu-system-{processor}"), "qemu-system-arm"),
        // Such as armv7l.
        arm if arm.starts_with("arm") => ("qemu-system-arm".into(), "qemu-system-arm"),
        _ => (format!("qemu-system-{processor}"), "qemu-system-x86"),
    }
}

/// The command that has `busbar lab`.
fn busbar_dev() -> Answer {
    let found = developers::find(developers::PROGRAM).map(|file| file.display().to_string());
    found.map_err(|error| error.source().map(ToString::to_string).unwrap_or_default())
}

fn kvm() -> Answer {
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok("opens".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_qemu_it_says_what_to_install() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let diagnose = |machine| examine(machine, Ok("/bin/busbar-dev".into()));
        assert!(diagnose(&machine).advice.join("").contains("apt-get install qemu-system-x86"));
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/qemu-system-x86_64"), "").unwrap();
        assert!(diagnose(&machine).advice.is_empty());
    }

    #[test]
    fn qemu_has_the_name_of_the_processor() {
        let of = |processor| qemu(processor).0;
        assert_eq!(of("x86_64"), "qemu-system-x86_64");
        assert_eq!(of("aarch64"), "qemu-system-aarch64");
        assert_eq!(of("armv7l"), "qemu-system-arm");
    }

    #[test]
    fn without_the_developers_command_it_says_what_to_install() {
        let root = tempfile::tempdir().unwrap();
        let diagnosis = examine(&Machine::at(root.path()), Err("not in PATH".into()));
        assert!(diagnosis.advice.join("").contains("make build install-dev"), "{diagnosis:?}");
    }
}
