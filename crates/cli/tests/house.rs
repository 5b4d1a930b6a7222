//! Every crate, module and page of the tree is named in the tables where a reader looks for it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Names in a folder that `keep` keeps.
fn names(folder: &str, keep: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| keep(path));
    let names: Vec<_> =
        paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(!names.is_empty(), "{folder}");
    names
}

fn crates() -> Vec<String> {
    names("crates", |path| path.join("Cargo.toml").is_file())
}

fn modules() -> Vec<String> {
    names("kernel/modules", |path| path.join("Kbuild").is_file())
}

/// Files in a folder of this kind, without it.
fn stems(folder: &str, extension: &str) -> Vec<String> {
    let all = names(folder, |path| path.extension().is_some_and(|it| it == extension));
    all.iter().map(|name| name.strip_suffix(&format!(".{extension}")).unwrap().into()).collect()
}

/// Whether `text` has `word` as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

#[test]
fn every_crate_and_module_is_in_contributing_with_its_folder() {
    let guide = read("CONTRIBUTING.md");
    for name in crates() {
        assert!(has_word(&guide, &format!("crates/{name}")), "crates/{name}: not in CONTRIBUTING");
    }
    for name in modules() {
        let folder = format!("kernel/modules/{name}");
        assert!(guide.contains(&format!("{folder}/README.md")), "{folder}: not in CONTRIBUTING");
        assert!(root().join(&folder).join("README.md").is_file(), "{folder}: no README.md");
    }
}

/// Pages of the documentation, without `docs/` and `.md`.
fn pages() -> Vec<String> {
    let figures = stems("docs/figures", "md").into_iter().map(|page| format!("figures/{page}"));
    let pages = stems("docs", "md").into_iter().filter(|page| page != "SUMMARY");
    pages.chain(figures).collect()
}

#[test]
fn every_page_is_in_the_table_of_contents_and_short() {
    let contents = read("docs/SUMMARY.md");
    for page in pages() {
        assert!(contents.contains(&format!("({page}.md)")), "{page}: not in docs/SUMMARY.md");
        let text = read(&format!("docs/{page}.md"));
        let (lines, bytes) = (text.lines().count(), text.len());
        assert!(lines <= 250 && bytes <= 20_000, "docs/{page}.md: {lines} lines, {bytes} bytes");
    }
    assert!(read("README.md").lines().count() <= 120, "README.md");
}

#[test]
fn the_picture_has_every_crate_module_and_part_of_the_library() {
    let picture = read("docs/architecture.svg");
    let text: String = picture
        .split('<')
        .filter_map(|part| part.split_once('>'))
        .fold(String::new(), |text, (_, inside)| text + inside + "\n");
    for name in crates() {
        assert!(has_word(&text, &format!("crates/{name}")), "crates/{name}: not in the picture");
    }
    for name in modules() {
        assert!(has_word(&text, &name), "{name}: not in the picture");
    }
    let library = read("crates/busbar/src/lib.rs");
    let public =
        library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    for name in public {
        assert!(has_word(&text, name), "busbar::{name}: not in the picture");
    }
    let patches = stems("kernel/patches/6.12", "patch");
    let last = patches.iter().map(|name| &name[..4]).max().unwrap();
    assert!(has_word(&text, last), "patches go to {last}, the picture's do not");
}

#[test]
fn every_module_is_packaged_and_says_what_it_needs() {
    let makefile = read("kernel/Makefile");
    let value = |name: &str| {
        let line = makefile.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" := "));
        line.expect(name).split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let mut packaged = value("ALL");
    let mut all = modules();
    packaged.sort();
    all.sort();
    assert_eq!(packaged, all);
    let recipe = "packages/yocto/meta-busbar/recipes-busbar/busbar/busbar-modules_git.bb";
    let line = format!("\nBUSBAR_MODULES ?= \"{}\"\n", value("ALL").join(" "));
    assert!(read(recipe).contains(&line), "{recipe}: {line}");
    let board = read("docs/kernels.md");
    for name in all {
        let row =
            board.lines().find(|line| line.starts_with(&format!("| [`{name}`]"))).expect(&name);
        for option in value(&format!("needs-{name}")) {
            assert!(has_word(row, &option), "{name} needs {option}: not in docs/kernels.md");
        }
    }
}

#[test]
fn versions_agree() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(read("kernel/Makefile").contains(&format!("\nVERSION := {version}\n")));
    assert!(read("CHANGELOG.md").contains(&format!("\n## [{version}]")));
    let recipe = "packages/yocto/meta-busbar/recipes-busbar/busbar/busbar-source.inc";
    assert!(read(recipe).contains(&format!("\nPV = \"{version}+git\"\n")));
}

/// The recipe for Yocto fetches the crates of `Cargo.lock`. With `BUSBAR_UPDATE` in the environment, the list is made anew.
#[test]
fn the_recipe_for_yocto_has_every_crate() {
    let lock = read("Cargo.lock");
    let (mut crates, mut sums) = (String::new(), String::new());
    for package in lock.split("[[package]]\n").skip(1) {
        let value = |key| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"'))
        };
        // Those of the workspace have none.
        let Some(sum) = value("checksum") else { continue };
        let (name, version) = (value("name").unwrap(), value("version").unwrap());
        writeln!(crates, "    crate://crates.io/{name}/{version} \\").unwrap();
        writeln!(sums, "SRC_URI[{name}-{version}.sha256sum] = \"{sum}\"").unwrap();
    }
    let list = format!(
        "# From Cargo.lock, by: BUSBAR_UPDATE=1 cargo test -p busbar-cli --test house\n\
         SRC_URI += \" \\\n{crates}\"\n\n{sums}"
    );
    let path = "packages/yocto/meta-busbar/recipes-busbar/busbar/busbar-crates.inc";
    if std::env::var_os("BUSBAR_UPDATE").is_some() {
        fs::write(root().join(path), &list).unwrap();
    }
    assert!(read(path) == list, "{path} is stale: its first line says how to make it anew");
}

/// The notices and the bill of materials are of the crates that are linked, as `Cargo.lock` has them.
#[test]
fn what_is_linked_has_its_notice_and_is_in_the_bill_of_materials() {
    let (lock, notices) = (read("Cargo.lock"), read("packages/notices.txt"));
    let bill: serde_json::Value = serde_json::from_str(&read("packages/busbar.cdx.json")).unwrap();
    let named = |it: &serde_json::Value| {
        (it["name"].as_str().unwrap().to_owned(), it["version"].as_str().unwrap().to_owned())
    };
    let (mut all, how) = (Vec::new(), "stale: run tools/notices");
    for part in bill["components"].as_array().unwrap() {
        let (name, version) = named(part);
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        if let Some(sum) = part["hashes"][0]["content"].as_str() {
            let source = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
            assert!(
                lock.contains(&format!("{entry}{source}checksum = \"{sum}\"")),
                "{name}: {how}"
            );
            assert!(notices.contains(&format!("\n{name} {version} (")), "{name}: {how}");
        }
        assert!(lock.contains(&entry), "{name}: {how}");
        all.push(format!("{name} v{version}"));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--offline", "--locked", "--edges", "normal,no-proc-macro", "--no-dedupe"])
        .args(["-p", "busbar-cli", "-p", "busbar-c", "-p", "busbar-python", "--prefix", "none"])
        .args(["--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    for line in str::from_utf8(&tree.stdout).unwrap().lines().filter(|line| !line.is_empty()) {
        let name: Vec<_> = line.split(' ').take(2).collect();
        assert!(all.contains(&name.join(" ")), "{line}: {how}");
    }
}

/// The symbols file of the Debian package has the functions of the ABI, each with the version that brought it. With
/// `BUSBAR_UPDATE` in the environment, new ones are added.
#[test]
fn the_symbols_of_the_debian_package_are_those_of_the_abi() {
    let abi = read("crates/c/abi/64.txt");
    let soname = abi.lines().find_map(|line| line.strip_prefix("soname ")).unwrap();
    let (_, number) = soname.split_once(".so.").unwrap();
    let path = format!("packages/debian/libbusbar{number}.symbols");
    let before = fs::read_to_string(root().join(&path)).unwrap_or_default();
    let mut names: Vec<_> = abi
        .lines()
        .filter(|line| line.ends_with(')'))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("busbar_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 50, "{names:?}");
    let mut list = format!("{soname} libbusbar{number} #MINVER#\n");
    for name in names {
        let entry = format!(" {name}@Base ");
        let since = before.lines().find_map(|line| line.strip_prefix(&entry));
        writeln!(list, "{entry}{}", since.unwrap_or(env!("CARGO_PKG_VERSION"))).unwrap();
    }
    if std::env::var_os("BUSBAR_UPDATE").is_some() {
        fs::write(root().join(&path), &list).unwrap();
    }
    let how = "BUSBAR_UPDATE=1 cargo test -p busbar-cli --test house";
    assert!(read(&path) == list, "{path} is stale: {how}");
}

/// A file that a tool leaves in the tree is ignored, not committed.
#[test]
fn nothing_that_is_ignored_is_in_the_tree() {
    // A tarball has no history.
    if !root().join(".git").exists() {
        return;
    }
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--ignored", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git: see tests/parts.toml");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    // A link is its text.
    let text = heading.split("](").enumerate().fold(String::new(), |all, (index, part)| {
        all + if index == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) }
    });
    let letters = text.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    letters.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The anchors of a page: its headings, outside of examples.
fn anchors(text: &str) -> Vec<String> {
    let mut is_example = false;
    let heading = |line: &str| {
        is_example ^= line.starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ')?;
        (line.starts_with('#') && !is_example).then(|| anchor(heading))
    };
    text.lines().filter_map(heading).collect()
}

/// The commands by which a reader of README tries the command.
#[test]
fn the_first_commands_of_the_readme_work() {
    let (readme, folder) = (read("README.md"), tempfile::tempdir().unwrap());
    let lines = readme.split("\n```sh\n").nth(1).unwrap().split("\n```").next().unwrap();
    let mut count = 0;
    for arguments in lines.lines().filter_map(|line| line.strip_prefix("busbar ")) {
        let words = arguments.split(' ').map(|word| word.trim_matches('\''));
        let output = Command::new(env!("CARGO_BIN_EXE_busbar"))
            .args(words)
            .current_dir(&folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "busbar {arguments}: {said}");
        count += 1;
    }
    assert_eq!(count, 3);
    assert!(folder.path().join("tone.png").is_file());
}

/// The pipelines that the documentation shows can be copied.
#[test]
fn every_pipeline_in_the_documentation_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut count) = (folder.path().join("pipeline.toml"), 0);
    for page in pages() {
        for part in read(&format!("docs/{page}.md")).split("\n```toml\n").skip(1) {
            let pipeline = part.split("\n```").next().unwrap();
            // Some are a part of a file.
            if !pipeline.contains("[source") || !pipeline.contains("[sink") {
                continue;
            }
            fs::write(&file, pipeline).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_busbar"))
                .args(["run", "--check"])
                .arg(&file)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "docs/{page}.md: {said}\n{pipeline}");
            count += 1;
        }
    }
    assert!(count >= 8, "{count}");
}

/// The links in the documents are valid.
#[test]
fn links_lead_to_files_and_headings() {
    let rooms =
        ["kernel/fuzz", "kernel/lab", "kernel/patches", "fuzz", "packages/yocto/meta-busbar"]
            .map(|room| format!("{room}/README.md"));
    let mut pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(String::from).to_vec();
    pages.extend(rooms);
    pages.push("docs/SUMMARY.md".into());
    pages.extend(self::pages().iter().map(|page| format!("docs/{page}.md")));
    pages.extend(modules().iter().map(|name| format!("kernel/modules/{name}/README.md")));
    let (mut count, mut astray) = (0, Vec::new());
    for page in pages {
        let folder = root().join(&page).parent().unwrap().to_owned();
        let text = read(&page);
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap();
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            count += 1;
            let path = if file.is_empty() { root().join(&page) } else { folder.join(file) };
            let is_there = heading.is_empty()
                || fs::read_to_string(&path)
                    .is_ok_and(|it| anchors(&it).iter().any(|it| it == heading));
            if !path.exists() || !is_there {
                astray.push(format!("{page}: {target}"));
            }
        }
    }
    assert_eq!(astray, [""; 0]);
    assert!(count > 20, "{count}");
}

#[test]
fn every_path_of_the_library_is_a_feature_that_is_tried_alone() {
    let (library, manifest) = (read("crates/busbar/src/lib.rs"), read("crates/busbar/Cargo.toml"));
    let makefile = read("Makefile");
    let features = makefile.lines().find(|line| line.starts_with("FEATURES :=")).unwrap();
    let paths: Vec<_> = library
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    assert!(paths.len() >= 7, "{paths:?}");
    for path in paths {
        assert!(
            library.contains(&format!("#[cfg(feature = \"{path}\")]\npub mod {path};")),
            "{path}"
        );
        assert!(manifest.contains(&format!("\n{path} = [")), "{path}: not in Cargo.toml");
        assert!(has_word(features, path), "{path}: not in the Makefile's FEATURES");
    }
}

#[test]
fn who_only_waits_compiles_nothing_but_the_system_calls() {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let tree = std::process::Command::new(cargo)
        .args(["tree", "-p", "busbar", "--offline", "--locked", "--edges", "normal", "--no-dedupe"])
        .args(["--no-default-features", "--features", "wait,block,endpoint"])
        .args(["--prefix", "none", "--format", "{lib}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let mut crates: Vec<_> = std::str::from_utf8(&tree.stdout).unwrap().lines().collect();
    crates.sort_unstable();
    crates.dedup();
    let needed = ["bitflags", "busbar", "busbar_uapi", "libc", "linux_raw_sys", "rustix"];
    assert!(crates.iter().all(|name| needed.contains(name)), "{crates:?}");
}
