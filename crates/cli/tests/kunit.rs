//! `KUnit` tests of functions without side effects in the modules and patches; their results are KTAP.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::modprobe;

/// Modules, their suites, and how many cases these have.
const SUITES: [(&str, &str, usize); 5] = [
    ("devmem_token_test", "net_devmem_token", 5),
    ("rpmsg_eptfd_kunit", "rpmsg_eptfd_queue", 8),
    ("rpmsg_netlink_kunit", "rpmsg_netlink_packet", 4),
    ("vcoproc_kunit", "vcoproc_ring", 4),
    ("vnic_kunit", "vnic_toeplitz", 3),
];

/// The cases of a suite's results, and whether they passed. A case is indented, its suite is not.
fn cases(results: &str) -> Vec<(&str, bool)> {
    let indented = results.lines().filter(|line| line.starts_with(' ')).map(str::trim);
    let passed = |line: &&str| line.starts_with("ok ");
    indented
        .filter(|line| passed(line) || line.starts_with("not ok "))
        .map(|line| (line, passed(&line)))
        .collect()
}

fn results(suite: &str) -> String {
    let folder = Path::new("/sys/kernel/debug");
    if !folder.join("kunit").exists() {
        Command::new("mount").args(["-t", "debugfs", "none"]).arg(folder).status().unwrap();
    }
    fs::read_to_string(folder.join("kunit").join(suite).join("results")).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn every_case_passes() {
    // clang computes every case of devmem_token_test when it compiles it, so that the module refers to nothing of KUnit's.
    modprobe(&["kunit"]).unwrap();
    for (module, suite, count) in SUITES {
        modprobe(&[module]).unwrap();
        let said = results(suite);
        let all = cases(&said);
        assert_eq!(all.len(), count, "{said}");
        assert!(all.iter().all(|(line, ok)| *ok && !line.contains("# SKIP")), "{said}");
        modprobe(&["-r", module]).unwrap();
    }
}

#[test]
fn results_are_read_as_ktap() {
    let said = "KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: a\n    1..2\n    ok 1 b\n    \
                # c: EXPECTATION FAILED at d\n    not ok 2 c\nnot ok 1 a\n";
    assert_eq!(cases(said), [("ok 1 b", true), ("not ok 2 c", false)]);
}
