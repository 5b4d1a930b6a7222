//! Any control data of a receive call is parsed or refused, and nothing is read beyond it.

#![no_main]

use busbar_uapi::devmem::{CONTROL_SPACE, Control, controls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let all: Vec<_> = controls(bytes).collect();
    // Each message takes some bytes, and only the last one can be invalid.
    assert!(all.len() <= bytes.len() / 8 + 1);
    let good = all.iter().filter(|control| control.is_ok()).count();
    assert!(good + 1 >= all.len() && all[..good].iter().all(Result::is_ok));
    let named = all.iter().flatten().filter(|control| **control != Control::Other).count();
    assert!(named * CONTROL_SPACE <= bytes.len());
    // Parsing twice gives the same result.
    assert_eq!(controls(&bytes.to_vec()).collect::<Vec<_>>(), all);
});
