//! A pair behind a PCI device and its IOMMU: data is received into memory through its translation, and
//! the memory is unmapped when the device is removed, even if something still holds a part of it.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use busbar::receive::{Piece, ReceiveSetup, Receiver, Tokens};
use pair::{Check, DEVICE, Pair, Place, pattern, run, send, take_all, wait_until};

const LEN: usize = 4 << 20;
const BUS: &str = "/sys/bus/pci";
const DRIVER: &str = "/sys/bus/pci/drivers/vnic";

/// A PCI device that new pairs belong to, until this is dropped.
struct Slot(PathBuf);

impl Slot {
    fn new() -> Self {
        if !Path::new(DRIVER).exists() {
            run("modprobe vnic");
        }
        let slot = Self(Self::find().expect("pci-testdev: busbar lab run --iommu"));
        fs::write(slot.0.join("driver_override"), "vnic").unwrap();
        fs::write(format!("{BUS}/drivers_probe"), slot.name()).unwrap();
        assert!(slot.0.join("driver").exists(), "vnic did not take it");
        // With a device tree, the device gets it together with the driver.
        assert!(slot.0.join("iommu_group").exists(), "no IOMMU translates");
        slot
    }

    fn find() -> Option<PathBuf> {
        let devices = fs::read_dir(format!("{BUS}/devices")).unwrap();
        let id = |path: &Path, what| fs::read_to_string(path.join(what)).unwrap_or_default();
        devices.map(|entry| entry.unwrap().path()).find(|path| {
            id(path, "vendor").trim() == "0x1b36" && id(path, "device").trim() == "0x0005"
        })
    }

    fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    /// Unbinds the driver.
    fn unbind(&self) {
        fs::write(format!("{DRIVER}/unbind"), self.name()).unwrap();
    }

    /// Removes the device.
    fn remove(&self) {
        fs::write(self.0.join("remove"), "1").unwrap();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.0.join("driver").exists() {
            self.unbind();
        }
        if self.0.exists() {
            self.remove();
        }
        fs::write(format!("{BUS}/rescan"), "1").unwrap();
    }
}

/// A receiver, a connection to it, and received data that is held.
fn hold(pair: &Pair) -> (Receiver, Vec<Piece>, impl Sized) {
    let receiver = pair.receiver(LEN);
    let (mut connection, mut sender) = pair.connect(&receiver);
    let sent = pattern(1, 0, 100_000);
    sender.write_all(&sent).unwrap();
    let held = pair::hold(&mut connection, sent.len());
    assert_eq!(receiver.statistics().unwrap().copied, 0);
    (receiver, held, (connection, sender))
}

fn verify(held: &[Piece]) {
    let mut check = Check::new(1);
    for piece in held {
        check.piece(piece);
    }
    assert_eq!(check.at, 100_000);
}

fn each_kind(test: impl Fn(&Slot, &Pair)) {
    for tokens in [Tokens::Index, Tokens::Autorelease] {
        let slot = Slot::new();
        let pair = Pair::with(ReceiveSetup::new().tokens(tokens));
        test(&slot, &pair);
    }
}

#[test]
#[ignore = "needs the lab"]
fn data_arrives_by_translated_addresses() {
    let slot = Slot::new();
    let pair = Pair::new();
    let parent = fs::canonicalize(format!("/sys/class/net/{DEVICE}/device")).unwrap();
    assert_eq!(parent, slot.0.canonicalize().unwrap());
    let receiver = pair.receiver(LEN);
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, 2 * LEN as u64);
    take_all(&mut connection, &mut Check::new(1));
    sending.join().unwrap();
    assert_eq!(receiver.statistics().unwrap().copied, 0);
}

#[test]
#[ignore = "needs the lab"]
fn what_is_held_outlives_the_device() {
    each_kind(|slot, pair| {
        let (receiver, held, sockets) = hold(pair);
        slot.remove();
        verify(&held);
        drop((held, sockets));
        assert!(receiver.close().is_err(), "its device is gone");
    });
}

#[test]
#[ignore = "needs the lab"]
fn what_is_held_of_a_binding_that_is_gone_outlives_the_device() {
    each_kind(|slot, pair| {
        let (receiver, held, sockets) = hold(pair);
        receiver.close().unwrap();
        slot.remove();
        verify(&held);
        drop((held, sockets));
    });
}

#[test]
#[ignore = "needs the lab"]
fn nothing_is_mapped_when_the_driver_goes() {
    each_kind(|slot, pair| {
        let (receiver, held, sockets) = hold(pair);
        // The checks of DMA mappings report what is still mapped.
        slot.unbind();
        verify(&held);
        drop((held, sockets, receiver));
    });
}

#[test]
#[ignore = "needs the lab"]
fn it_can_be_put_in_again() {
    for _ in 0..2 {
        let _slot = Slot::new();
        let pair = Pair::new();
        wait_until("a queue", || Receiver::offered(DEVICE).is_ok());
        let (receiver, held, sockets) = hold(&pair);
        verify(&held);
        drop((held, sockets));
        receiver.close().unwrap();
    }
}
