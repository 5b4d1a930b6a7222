//! `include/busbar.h` is the one that cbindgen makes of the sources, it compiles, and it does not change what
//! programs were built with.
//!
//! `BUSBAR_UPDATE=1 cargo test -p busbar-c --test header` writes the header and `abi/`.

mod tools;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cbindgen::{Builder, Config};
use tools::{SONAME, folder, library, text};

fn generated() -> String {
    let config = Config::from_file(folder().join("cbindgen.toml")).unwrap();
    // It finds the modules by itself.
    let builder = Builder::new().with_config(config).with_src(folder().join("src/lib.rs"));
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    text(&bytes)
}

fn is_update() -> bool {
    std::env::var_os("BUSBAR_UPDATE").is_some()
}

#[test]
fn the_header_is_the_generated_one() {
    let path = folder().join("include/busbar.h");
    let generated = generated();
    if is_update() {
        fs::write(&path, &generated).unwrap();
    }
    let help = "BUSBAR_UPDATE=1 cargo test -p busbar-c --test header";
    assert!(fs::read_to_string(path).unwrap() == generated, "busbar.h is stale: {help}");
    let long = generated.lines().find(|line| line.chars().count() > 130);
    assert_eq!(long, None);
}

#[test]
fn the_header_says_for_each_function_what_threads_may_do_and_which_errors_it_has() {
    let header = generated();
    for part in header.split("/**").skip(1) {
        let Some((comment, rest)) = part.split_once("*/") else { continue };
        let is_function = rest.split([';', '{']).next().is_some_and(|first| first.contains('('));
        for word in ["* Threads: ", "Errors: "] {
            assert!(!is_function || comment.contains(word), "{word}: {comment}{rest}");
        }
    }
}

/// How gcc is told the layout of a machine: x86-64 and arm64, i686, and armv7, where 8 bytes are aligned to 8.
const MACHINES: [&[&str]; 3] = [&["-m64"], &["-m32"], &["-m32", "-malign-double"]];

#[test]
fn compilers_of_c_and_cpp_accept_the_headers() {
    for (compiler, standard) in
        [("gcc", "-std=c99"), ("gcc", "-std=gnu17"), ("g++", "-std=c++11"), ("g++", "-std=c++17")]
    {
        for (header, machine) in ["busbar.h", "busbar/epoll_calls.h"]
            .into_iter()
            .flat_map(|header| MACHINES.map(|machine| (header, machine)))
        {
            let mut command = Command::new(compiler);
            // No structure has padding, so that fields are at the same place on all 32-bit machines, and a
            // program that sets each field has set each byte.
            command.args([
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Wpadded",
                "-Werror",
                "-fsyntax-only",
            ]);
            command.arg(standard).args(machine);
            command.args(["-x", if compiler == "gcc" { "c" } else { "c++" }]);
            let output = command.arg(folder().join("include").join(header)).output();
            let output = output.expect("gcc and g++: see tests/parts.toml");
            let said = text(&output.stderr);
            assert!(output.status.success(), "{compiler} {standard} {machine:?}: {said}");
        }
    }
}

/// The declarations of the header, without comments, one a line.
fn declarations(header: &str) -> Vec<String> {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").unwrap().1;
    }
    code += rest;
    let mut found = Vec::new();
    for line in code.lines().filter(|line| line.starts_with("#define BUSBAR_")) {
        if let Some((name, _)) = line["#define ".len()..].split_once(' ') {
            found.push(format!("constant {name}"));
        }
    }
    let code: Vec<_> = code.lines().filter(|line| !line.starts_with('#')).collect();
    let code = code.join(" ");
    let code =
        code.split_once("extern \"C\" {").map_or(code.as_str(), |(before, _)| before).to_owned()
            + code.split_once("extern \"C\" {").map_or("", |(_, after)| after);
    let mut rest = code.as_str();
    while let Some(end) = rest.find([';', '{']) {
        let begin = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        if rest[end..].starts_with('{') {
            let (body, after) = rest[end + 1..].split_once('}').unwrap();
            let body = body.split_whitespace().collect::<Vec<_>>().join(" ");
            found.push(format!("{begin} {{ {body} }}"));
            rest = after.trim_start().trim_start_matches(';');
        } else {
            if begin.contains('(') {
                found.push(format!("function {begin}"));
            }
            rest = &rest[end + 1..];
        }
    }
    found
}

/// The name of a field: `bits` of `uint8_t bits`, `reserved` of `uint8_t reserved[2]`.
fn field(declaration: &str) -> &str {
    let name = declaration.trim().rsplit([' ', '*']).next().unwrap();
    name.split('[').next().unwrap()
}

#[test]
fn every_handle_of_every_function_is_tried_with_wrong_ones() {
    let all = declarations(&generated());
    let has_fields = |kind: &str| all.iter().any(|it| it.starts_with(&format!("struct {kind} {{")));
    let mut wanted = Vec::new();
    for function in all.iter().filter_map(|it| it.strip_prefix("function ")) {
        let (before, arguments) = function.split_once('(').unwrap();
        for (place, argument) in arguments.split(',').enumerate() {
            let kind = argument.trim().strip_prefix("struct ").and_then(|it| it.split_once(" *"));
            let Some((kind, name)) = kind else { continue };
            if !name.starts_with('*') && !has_fields(kind) {
                wanted.push((field(before), place, kind));
            }
        }
    }
    let list = fs::read_to_string(folder().join("tests/c/handles.h")).unwrap();
    let mut tried = Vec::new();
    for entry in list.lines().filter_map(|line| line.trim().strip_prefix("H(")) {
        let (kind, call) = entry.split_once(", ").unwrap();
        let (function, arguments) = call.split_once('(').unwrap();
        let is_handle = |argument: &str| argument.trim().split(')').next() == Some("handle");
        let place = arguments.split(',').position(is_handle).unwrap();
        tried.push((format!("busbar_{function}"), place, kind));
    }
    let mut tried: Vec<_> =
        tried.iter().map(|(name, place, kind)| (&**name, *place, *kind)).collect();
    wanted.sort_unstable();
    tried.sort_unstable();
    assert!(wanted.len() > 60);
    assert_eq!(tried, wanted);
}

/// The structures with a size, each with the last field of its first version, as `sized!` declares them.
fn sized() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder().join("src")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in source.split("\nsized! {").skip(1) {
            let all = part.split('}').next().unwrap().split(';');
            found.extend(all.filter_map(|one| {
                let (name, last) = one.split_once(':')?;
                Some((name.trim().to_owned(), last.trim().to_owned()))
            }));
        }
    }
    found.sort();
    found
}

#[test]
fn structures_have_only_numbers_and_addresses() {
    for declaration in declarations(&generated()) {
        let Some((name, body)) = declaration.split_once(" { ") else { continue };
        for one in body.trim_end_matches(" }").split(';').filter(|_| name.starts_with("struct ")) {
            let of_numbers = ["size_t ", "uint", "int64_t ", "double ", "const char *"];
            let one = one.trim();
            assert!(
                one.is_empty() || of_numbers.iter().any(|it| one.starts_with(it)),
                "{name}: {one}"
            );
        }
    }
}

/// What programs are built with: the soname, functions, sizes, offsets and values, for one machine.
fn interface(machine: &[&str]) -> String {
    let header = generated();
    let (mut lines, mut asks) = (vec![format!("soname {SONAME}")], String::new());
    for (name, last) in sized() {
        let first =
            format!("offsetof(struct {name}, {last}) + sizeof(((struct {name} *)0)->{last})");
        writeln!(asks, "printf(\"struct {name}: first %zu bytes\\n\", {first});").unwrap();
    }
    for declaration in declarations(&header) {
        if let Some(function) = declaration.strip_prefix("function ") {
            lines.push(function.to_owned());
        } else if let Some(constant) = declaration.strip_prefix("constant ") {
            // It changes without harm.
            if constant.starts_with("BUSBAR_VERSION_") {
                continue;
            }
            writeln!(asks, "printf(\"{constant} = %lld\\n\", (long long)({constant}));").unwrap();
        } else if let Some((name, body)) = declaration.split_once(" { ") {
            let body = body.trim_end_matches(" }");
            if name.starts_with("enum ") {
                for value in body.split(',').filter(|value| !value.trim().is_empty()) {
                    let value = value.split('=').next().unwrap().trim();
                    writeln!(asks, "printf(\"{value} = %d\\n\", (int){value});").unwrap();
                }
            } else {
                writeln!(asks, "printf(\"{name}: %zu bytes\\n\", sizeof({name}));").unwrap();
                for one in body.split(';').filter(|one| !one.trim().is_empty()) {
                    let (one, field) = (one.trim(), field(one));
                    writeln!(
                        asks,
                        "printf(\"{name}: {one} at %zu\\n\", offsetof({name}, {field}));"
                    )
                    .unwrap();
                }
            }
        }
    }
    let program = format!(
        "#include <stdio.h>\n#include \"busbar.h\"\nint main(void)\n{{\n{asks}return 0;\n}}\n"
    );
    let scratch = tempfile::tempdir().unwrap();
    let [source, binary] = ["ask.c", "ask"].map(|name| scratch.path().join(name));
    fs::write(&source, program).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(machine).arg("-I").arg(folder().join("include")).arg("-o").args([&binary, &source]);
    let output = gcc.output().expect("gcc: see tests/parts.toml");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&Command::new(binary).output().unwrap().stdout);
    lines.extend(said.lines().map(String::from));
    lines.join("\n") + "\n"
}

/// The lines of `before` that are changed or missing in `now`, which breaks programs that are built already. Under another
/// soname nothing was promised.
fn broken<'a>(before: &'a str, now: &str) -> Vec<&'a str> {
    let has_soname = |line: &&str| line.starts_with("soname ");
    if before.lines().find(has_soname) != now.lines().find(has_soname) {
        return Vec::new();
    }
    // A structure may grow. Its first size stays.
    let has_grown = |line: &str| {
        let of = |line: &str| {
            let (name, size) = line.strip_suffix(" bytes")?.rsplit_once(": ")?;
            Some((name.to_owned(), size.parse::<usize>().ok()?))
        };
        let Some((name, size)) = of(line) else { return false };
        now.lines().filter_map(of).any(|(now, larger)| now == name && larger > size)
    };
    before.lines().filter(|line| !has(now, line) && !has_grown(line)).collect()
}

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|it| it == line)
}

#[test]
fn what_breaks_programs_needs_a_new_soname() {
    let before = "soname a.0.1\nint f(void)\nstruct s: 8 bytes\nstruct s: first 8 bytes\n";
    assert_eq!(broken(before, before), [""; 0]);
    assert_eq!(broken(before, &before.replace("s: 8", "s: 16")), [""; 0]);
    assert_eq!(broken(before, &format!("{before}int g(void)\n")), [""; 0]);
    assert_eq!(broken(before, &before.replace("void", "int")), ["int f(void)"]);
    assert_eq!(broken(before, &before.replace("s: 8", "s: 4")), ["struct s: 8 bytes"]);
    assert_eq!(broken(before, &before.replace("first 8", "first 9")), ["struct s: first 8 bytes"]);
    assert_eq!(broken(before, &before.replace("a.0.1", "a.0.2").replace("void", "int")), [""; 0]);
}

/// What was promised before stays. A new line is to be added to the file.
#[test]
fn programs_that_are_built_still_work() {
    for (machine, file) in MACHINES.into_iter().zip(["64.txt", "32.txt", "32.txt"]) {
        let path: PathBuf = Path::new(&folder()).join("abi").join(file);
        let now = interface(machine);
        let before = fs::read_to_string(&path).unwrap();
        let broken = broken(&before, &now);
        assert!(
            broken.is_empty(),
            "{file}: this breaks programs, and needs a new soname: {broken:#?}"
        );
        if is_update() {
            fs::write(&path, &now).unwrap();
            continue;
        }
        let new: Vec<_> = now.lines().filter(|line| !has(&before, line)).collect();
        let help = "BUSBAR_UPDATE=1 cargo test -p busbar-c --test header";
        assert!(new.is_empty(), "{file}: new, add it by {help}: {new:#?}");
    }
}

#[test]
fn the_library_stays_as_long_as_its_threads_may_run() {
    let output = Command::new("readelf").arg("-d").arg(library()).output().unwrap();
    assert!(text(&output.stdout).contains("NODELETE"), "{}", text(&output.stdout));
}

#[test]
fn the_library_has_the_functions_of_the_header_and_no_others() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let said = text(&output.stdout);
    let mut there: Vec<_> =
        said.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    there.sort_unstable();
    let all = declarations(&generated());
    let name = |line: &String| {
        let (before, _) = line.strip_prefix("function ")?.split_once('(')?;
        Some(field(before).to_owned())
    };
    let mut wanted: Vec<_> = all.iter().filter_map(name).collect();
    wanted.sort_unstable();
    assert!(wanted.len() > 60, "{wanted:?}");
    assert_eq!(there, wanted);
}
