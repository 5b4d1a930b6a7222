//! Allocations and copies that fail, one at a time.
//!
//! Uses `fail-nth` (Documentation/fault-injection/fault-injection.rst) of the debug kernel: the
//! Nth of a task's allocations or copies fails. N grows until a call gets through unharmed.

use std::fs::{self, File};
use std::path::Path;

use rustix::io::{pread, pwrite};

const DEBUGFS: &str = "/sys/kernel/debug";

/// Lets small allocations, those that may sleep, and copies fail, all without a trace on the console.
pub fn arm() {
    for fault in ["failslab", "fail_page_alloc"] {
        let fault = Path::new(DEBUGFS).join(fault);
        fs::write(fault.join("ignore-gfp-wait"), "N").expect("a debug kernel");
    }
    fs::write(Path::new(DEBUGFS).join("fail_page_alloc/min-order"), "0").unwrap();
    for fault in ["failslab", "fail_page_alloc", "fail_usercopy"] {
        // Resets `space`, which another test may have set.
        for setting in ["verbose", "space"] {
            fs::write(Path::new(DEBUGFS).join(fault).join(setting), "0").unwrap();
        }
    }
}

/// Lets no allocation of 9p fail, which the guest's files are read by. If there is no memory to release a file, 9p
/// forgets its number and gives it again, and the server refuses that: later programs cannot be started.
pub fn spare_the_guests_files() {
    let symbols = fs::read_to_string("/proc/kallsyms").expect("kallsyms");
    // In the order of their addresses, so the next one is the end.
    let mut lines = symbols.lines().skip_while(|line| !line.ends_with(" p9_client_rpc"));
    for setting in ["reject-start", "reject-end"] {
        let address = lines.next().and_then(|line| line.split(' ').next()).expect("9p");
        let path = Path::new(DEBUGFS).join("failslab").join(setting);
        fs::write(path, format!("0x{address}")).expect("a debug kernel");
    }
}

/// The Nth fault of this thread.
pub struct FailNth(File);

impl FailNth {
    pub fn open() -> Self {
        let path = "/proc/thread-self/fail-nth";
        Self(File::options().read(true).write(true).open(path).expect("a debug kernel"))
    }

    /// Runs `call` with the `n`th allocation or copy failing; also whether one did.
    ///
    /// Only the call is between arming and reading the result, and reading is a copy itself: if
    /// that copy fails, the call had no fault.
    pub fn run<T>(&self, n: u32, call: impl FnOnce() -> T) -> (T, bool) {
        let (mut left, n) = ([0; 16], n.to_string());
        pwrite(&self.0, n.as_bytes(), 0).expect("arm");
        let result = call();
        let looked = pread(&self.0, &mut left, 0);
        while pwrite(&self.0, b"0", 0).is_err() {}
        (result, looked.is_ok_and(|len| left[..len].trim_ascii() == b"0"))
    }
}
