//! Sequences agree with the descriptions of calls after any mutation; and in the lab the fuzzer sees the
//! coverage of its calls.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use fuzz_kernel::calls;
use fuzz_kernel::describe::{Kind, Place};
use fuzz_kernel::minimise::minimise;
use fuzz_kernel::mutate::Mutator;
use fuzz_kernel::sequence::Sequence;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

proptest! {
    #[test]
    fn mutation_keeps_sequences_valid(seed in any::<u64>()) {
        let mut random = Mutator::new(seed);
        let mut sequence = random.create();
        prop_assert!(sequence.is_valid(), "{sequence}");
        for _ in 0..30 {
            let other = random.create();
            let changed = random.change(&sequence, &other);
            prop_assert!(changed.is_valid(), "from\n{sequence}and\n{other}came\n{changed}");
            sequence = changed;
        }
    }

    #[test]
    fn the_text_of_a_sequence_is_that_sequence(seed in any::<u64>()) {
        let mut random = Mutator::new(seed);
        let (one, other) = (random.create(), random.create());
        let sequence = random.change(&one, &other);
        prop_assert_eq!(Sequence::parse(&sequence.to_string()), Ok(sequence));
    }

    #[test]
    fn a_call_can_go(seed in any::<u64>(), index in any::<prop::sample::Index>()) {
        let sequence = Mutator::new(seed).create();
        let rest = sequence.without(index.index(sequence.steps.len()));
        prop_assert!(rest.is_valid(), "from\n{sequence}came\n{rest}");
        prop_assert_eq!(rest.steps.len() + 1, sequence.steps.len());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(rounds [0-9]\n)?([0-9r_x:() 'a-f]|close|eventfd|\n){0,80}") {
        if let Ok(sequence) = Sequence::parse(&text) {
            prop_assert!(sequence.is_valid());
        }
    }
}

#[test]
fn a_seed_says_what_comes() {
    let made = |seed| {
        let mut random = Mutator::new(seed);
        let (one, other) = (random.create(), random.create());
        random.change(&one, &other).to_string()
    };
    assert_eq!(made(7), made(7));
    assert_ne!(made(7), made(8));
}

#[test]
fn chance_comes_to_every_call() {
    let mut random = Mutator::new(1);
    let mut seen = HashSet::new();
    for _ in 0..20_000 {
        seen.extend(random.create().steps.iter().map(|step| step.call));
    }
    let missing = (0..calls::all().len()).filter(|call| !seen.contains(call));
    let missing: Vec<_> = missing.map(|call| calls::all()[call].name).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn descriptions_can_be_told_apart_and_made() {
    let names: HashSet<_> = calls::all().iter().map(|call| call.name).collect();
    assert_eq!(names.len(), calls::all().len());
    for call in calls::all() {
        assert!(call.arguments.len() <= 6, "{}", call.name);
        if let Some((kind, Place::Memory(argument, _))) = call.gives {
            assert!(argument < call.arguments.len() && kind != Kind::File, "{}", call.name);
        }
    }
}

#[test]
fn the_shortest_sequence_that_does_it_is_found() {
    let text = "rounds 4\n0 0 epoll_create 0x0\n0 7 eventfd 0x1 0x0\n1 0 epoll_create 0x0\n2 3 eventfd 0x2 0x0\n\
                1 0 epoll_ctl r2 0x1 r3 ( ( 0x1 0x0 ) )\n0 0 close r0\n0 0 close r3\n";
    let sequence = Sequence::parse(text).unwrap();
    // A file that is added to an epoll set.
    let mut runs = 0;
    let mut does_it = |sequence: &Sequence| {
        runs += 1;
        let has_files = |step: &fuzz_kernel::sequence::Step| {
            let named = step.to_string().matches(" r").count();
            step.description().name == "epoll_ctl" && named == 2
        };
        sequence.is_valid() && sequence.steps.iter().any(has_files)
    };
    let short = minimise(&sequence, &mut does_it);
    let wanted = "rounds 1\n0 0 epoll_create 0x0\n0 0 eventfd 0x2 0x0\n\
                  0 0 epoll_ctl r0 0x1 r1 ( ( 0x1 0x0 ) )\n";
    assert_eq!(short.to_string(), wanted);
    assert!(runs < 60, "{runs}");
}

#[test]
fn what_needs_everything_stays_as_it_is() {
    let sequence = Mutator::new(3).create();
    assert_eq!(minimise(&sequence, &mut |other| *other == sequence), sequence);
}

fn fuzz(folder: &Path, seconds: u32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuzz-kernel"));
    command.arg("run").arg(folder).args(["--seed", "7", "--seconds", &seconds.to_string()]);
    let known = include_str!("../../../tests/known-reports").lines();
    let known = known.filter(|line| !line.is_empty() && !line.starts_with('#'));
    for known in known.chain(["rpmsg_chrdev_eptdev_add+"]) {
        command.args(["--known", known]);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{complained}");
    said
}

/// Functions of the kernel that the last run should have reached and has not.
fn unreached(folder: &Path) -> Vec<&'static str> {
    let reached = fs::read_to_string(folder.join("coverage.txt")).unwrap();
    // clang, which compiles the lab's kernel for arm64, puts this one into its caller.
    let received = cfg!(target_arch = "x86_64").then_some("tcp_recvmsg_dmabuf");
    ["epoll_ctl_batch", "epoll_pwait1", "net_devmem_bind_dmabuf"]
        .into_iter()
        .chain(received)
        .filter(|name| !reached.contains(name))
        .collect()
}

/// Parses the number of places in a module from the last progress line.
fn places(said: &str, module: &str) -> u32 {
    let last = said.lines().last().unwrap_or_default();
    let (_, rest) = last.split_once(&format!(" {module} ")).unwrap_or_else(|| panic!("{said}"));
    rest.split([',', '\n']).next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn calls_run_through_every_part_and_what_is_new_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    // A busy machine may run a few sequences in a minute.
    let mut said = String::new();
    for _ in 0..5 {
        said += &fuzz(folder.path(), 60);
        if unreached(folder.path()).is_empty() {
            break;
        }
    }
    assert_eq!(unreached(folder.path()), [""; 0], "{said}");
    for module in
        ["rpmsg_eptfd", "rpmsg_netlink", "rpmsg_ctrl", "vcoproc", "vconv", "vnic", "vmlinux"]
    {
        assert!(places(&said, module) > 0, "{module}: {said}");
    }
    let kept = || fs::read_dir(folder.path().join("kept")).unwrap().count();
    let before = kept();
    assert!(before > 0, "{said}");
    // The next run starts from the corpus, and first reaches the places of those sequences.
    let again = fuzz(folder.path(), 10);
    assert!(kept() >= before, "{again}");
    assert!(places(&again, "vmlinux") > 0, "{again}");
}
