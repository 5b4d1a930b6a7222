//! Any resource table is parsed or refused, and a parsed one is consistent.

#![no_main]

use busbar_coprocessor::table::{self, Image, RECEIVE, TRANSMIT};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<(u8, u8)>, Vec<u8>)| {
    let (damage, changes, mut bytes) = input;
    // Arbitrary bytes rarely pass the first checks, a damaged image does.
    if damage {
        bytes = Image::default().build();
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
    }
    let Ok(device) = table::parse(&bytes) else { return };
    assert_eq!(bytes[device.status_at], device.status);
    assert_eq!(device.is_ready(), device.status & 4 != 0);
    for index in [RECEIVE, TRANSMIT] {
        if let Ok(vring) = device.vring(index) {
            assert!(vring.entries.is_power_of_two() && vring.align.is_power_of_two());
            assert!(vring.notify_id < 32);
        }
    }
});
