//! What there is for the lab.

use std::fs::File;

use super::machine::Machine;
use super::{Answer, Diagnosis};

pub fn diagnose(machine: &Machine) -> Diagnosis {
    let mut diagnosis = Diagnosis::new("lab", "a real kernel with virtual hardware, in QEMU");
    let qemu = format!("qemu-system-{}", machine.name());
    let has_qemu = diagnosis.note(&qemu, machine.program(&qemu));
    let has_kvm = diagnosis.note("/dev/kvm", kvm());
    match (has_qemu, has_kvm) {
        (true, true) => diagnosis.uses("KVM, if a trial boot works, otherwise emulation"),
        (true, false) => diagnosis.uses("emulation: slower, and the same otherwise"),
        (false, _) => {
            diagnosis.uses("nothing: there is no QEMU");
            diagnosis.advise("apt-get install qemu-system-x86, then: busbar lab shell");
        }
    }
    diagnosis
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
        assert!(diagnose(&machine).advice.join("").contains("apt-get install qemu-system-x86"));
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/qemu-system-x86_64"), "").unwrap();
        assert!(diagnose(&machine).advice.is_empty());
    }
}
