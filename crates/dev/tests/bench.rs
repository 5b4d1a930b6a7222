//! The command `busbar bench`.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn without_a_coprocessor_it_leads_to_the_lab_and_to_the_modules() {
    // With a control device, it would not fail.
    if fs::exists("/sys/bus/rpmsg").unwrap() {
        return;
    }
    // It first searches for the command `busbar`, which this test does not need to be built.
    let folder = tempfile::tempdir().unwrap();
    let busbar = folder.path().join("busbar");
    fs::write(&busbar, "").unwrap();
    fs::set_permissions(&busbar, fs::Permissions::from_mode(0o755)).unwrap();
    let path = env::var("PATH").unwrap_or_default();
    let output = Command::new(env!("CARGO_BIN_EXE_busbar-dev"))
        .args(["bench", "endpoint", "--quick"])
        .env("PATH", format!("{path}:{}", folder.path().display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("busbar: ") && said.lines().count() == 1, "{said}");
    assert!(said.contains("busbar lab run -- ") && said.contains("make install-modules"), "{said}");
}
