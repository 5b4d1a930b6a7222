//! The command `busbar report`, and its page in a browser.
//!
//! The browser is Debian's `chromium`, without a window.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const SPREAD: &str = r#"{"min":1,"median":2,"max":3}"#;

/// The output of a benchmark.
fn json(bench: &str, ratio: &str) -> String {
    format!(
        r#"{{"bench":"{bench}","kernel":"6.12","accelerator":"tcg","cores":2,"runs":3,"cases":[{{
        "name":"create","params":{{"loops":1000}},"unit":"us","against":"device node",
        "baseline":{SPREAD},"busbar":{SPREAD},"ratio":{ratio}}}]}}"#
    )
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command, in a folder.
fn report(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_busbar-dev"));
    command.current_dir(folder).arg("report").args(arguments);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    report(folder, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

/// Asserts that it has failed with all of these words.
fn assert_fails(output: &Output, code: i32, named: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for named in named {
        assert!(said.contains(named), "{named}: {said}");
    }
}

fn assert_succeeds(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

#[test]
fn files_and_folders_become_one_page() {
    let folder = TempDir::new().unwrap();
    let figures = folder.path().join("figures");
    fs::create_dir(&figures).unwrap();
    fs::write(figures.join("endpoint.json"), json("endpoint", SPREAD)).unwrap();
    fs::write(figures.join("notes.txt"), "not of it").unwrap();
    fs::write(folder.path().join("mine"), json("wait", SPREAD)).unwrap();
    assert_succeeds(&run(folder.path(), &["mine", "figures", "--output", "out.html"]));
    let page = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(page.contains("endpoint: Linux 6.12, tcg, 2 cores, 3 runs in turn"), "{page}");
    assert!(page.contains("wait: Linux 6.12, tcg, 2 cores, 3 runs in turn"));
}

#[test]
fn what_a_benchmark_prints_is_what_the_page_takes() {
    let folder = TempDir::new().unwrap();
    let bench = Command::new(env!("CARGO_BIN_EXE_busbar-dev"))
        .args(["bench", "wait", "--quick", "--json"])
        .output()
        .unwrap();
    assert_succeeds(&bench);
    fs::write(folder.path().join("wait.json"), &bench.stdout).unwrap();
    assert_succeeds(&run(folder.path(), &["wait.json"]));
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("busbar bench wait --quick --json</code>"), "{page}");
    assert!(page.contains("<strong>Latency of the loop</strong>"));
}

#[test]
fn without_arguments_it_is_the_figures_of_the_repository() {
    let folder = TempDir::new().unwrap();
    let output = run(folder.path(), &[]);
    assert_fails(&output, 1, &["docs/figures", "busbar bench NAME --json > DIR/NAME.json"]);
    let figures = folder.path().join("docs/figures");
    fs::create_dir_all(&figures).unwrap();
    assert_fails(&run(folder.path(), &[]), 1, &["docs/figures", "there is no *.json"]);
    fs::write(figures.join("wait.json"), json("wait", SPREAD)).unwrap();
    assert_succeeds(&run(folder.path(), &[]));
    assert!(folder.path().join("report.html").is_file());
}

#[test]
fn what_is_no_report_is_named_with_its_field_and_nothing_is_written() {
    let folder = TempDir::new().unwrap();
    for (json, named) in [
        (json("loop", SPREAD), "bad.json: bench"),
        (json("wait", r#"{"min":1,"median":2}"#), "bad.json: cases[0].ratio"),
        (json("wait", r#"{"min":4,"median":2,"max":3}"#), "bad.json: cases[0].ratio"),
        ("{".into(), "bad.json"),
    ] {
        fs::write(folder.path().join("bad.json"), json).unwrap();
        assert_fails(&run(folder.path(), &["bad.json"]), 1, &[named, "allowed"]);
    }
    assert_fails(&run(folder.path(), &["gone.json"]), 1, &["gone.json", "busbar bench"]);
    assert!(!folder.path().join("report.html").exists());
}

#[test]
fn bad_usage_ends_with_2() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        &["--check"][..],
        &["--update"],
        &["--check", "--update", "a.md"],
        &["--update", "a.md", "--open"],
    ] {
        assert_fails(&run(folder.path(), arguments), 2, &["Usage: busbar report"]);
    }
}

/// Has another process write the script: a file that this one writes cannot be executed (ETXTBSY) while a
/// process that another test has forked in the meantime still has it open.
fn write_script(path: &Path, text: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod 755 "$1""#;
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(text).status();
    assert!(status.unwrap().success());
}

#[test]
fn open_shows_the_page_or_says_where_it_is() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("wait.json"), json("wait", SPREAD)).unwrap();
    let open = |path: &Path| {
        report(folder.path(), &["wait.json", "--open"]).env("PATH", path).output().unwrap()
    };
    let output = open(Path::new("/nonexistent"));
    assert_succeeds(&output);
    let page = folder.path().canonicalize().unwrap().join("report.html");
    assert!(said(&output).contains(&page.display().to_string()), "{}", said(&output));

    let opener = folder.path().join("xdg-open");
    write_script(&opener, "echo \"shown: $1\"");
    assert!(said(&open(folder.path())).contains("shown: report.html"));
    write_script(&opener, "exit 3");
    assert_fails(&open(folder.path()), 1, &["xdg-open", "3"]);
}

#[test]
fn tables_are_checked_and_made_anew() {
    const TABLE: &str = "| create, 1 000 loops | device node | us | 1.00 / 2.00 / 3.00 |";
    let folder = TempDir::new().unwrap();
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("f.json"), json("endpoint", SPREAD)).unwrap();
    let marker = "<!-- figures: f.json create -->";
    let text = format!("before\n{marker}\n| old |\n<!-- end figures -->\nafter\n");
    fs::write(docs.join("a.md"), &text).unwrap();
    fs::write(docs.join("plain.md"), "no table").unwrap();
    let both = |flag| run(folder.path(), &[flag, "docs/a.md", "docs/plain.md"]);

    assert_fails(&both("--check"), 1, &["docs/a.md", marker, "is stale", "--update docs/a.md"]);
    assert_eq!(fs::read_to_string(docs.join("a.md")).unwrap(), text);
    assert_succeeds(&both("--update"));
    let updated = fs::read_to_string(docs.join("a.md")).unwrap();
    assert!(updated.starts_with("before\n") && updated.ends_with("-->\nafter\n"), "{updated}");
    assert!(updated.contains(TABLE) && !updated.contains("old"), "{updated}");
    assert_succeeds(&both("--check"));

    fs::write(docs.join("f.json"), json("endpoint", r#"{"min":1,"median":2.5,"max":3}"#)).unwrap();
    assert_fails(&both("--check"), 1, &["docs/a.md", "is stale"]);
    fs::remove_file(docs.join("f.json")).unwrap();
    assert_fails(&both("--check"), 1, &["docs/a.md", "docs/f.json"]);
    fs::write(docs.join("a.md"), format!("{marker}\n")).unwrap();
    assert_fails(&both("--update"), 1, &["docs/a.md", "line 1", "end figures"]);
}

#[test]
fn the_tables_of_the_documentation_are_as_the_figures_are() {
    let mut files = vec!["README.md".to_owned()];
    for entry in fs::read_dir(repository().join("docs")).unwrap() {
        let path = Path::new("docs").join(entry.unwrap().file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path.display().to_string());
        }
    }
    let mut arguments = vec!["--check"];
    arguments.extend(files.iter().map(String::as_str));
    assert_succeeds(&run(&repository(), &arguments));
}

// -- In the browser

/// A copy of the page writes measurements of its visible text into the title.
const PROBE: &str = "<script>addEventListener('load', () => {
    const texts = [...document.querySelectorAll('svg text')];
    const scale = text => text.ownerSVGElement.getBoundingClientRect().width
        / text.ownerSVGElement.viewBox.baseVal.width;
    const size = text => parseFloat(getComputedStyle(text).fontSize) * scale(text);
    const boxes = texts.map(text => [text.ownerSVGElement, text.getBBox()]);
    const cut = boxes.filter(([svg, box]) =>
        box.x < -1 || box.x + box.width > svg.viewBox.baseVal.width + 1);
    const apart = (a, b) => a.x + a.width <= b.x || b.x + b.width <= a.x
        || a.y + a.height * 0.8 <= b.y || b.y + b.height * 0.8 <= a.y;
    const over = boxes.filter(([svg, box], at) =>
        boxes.slice(at + 1).some(([other, next]) => other === svg && !apart(box, next)));
    parent.document.title = [innerWidth, document.documentElement.scrollWidth,
        performance.getEntriesByType('resource').length, texts.length,
        Math.min(...texts.map(size)), cut.length, over.length].join(' ');
})</script>";

/// The measurements of the probe.
#[derive(Debug)]
struct Seen {
    width: f64,
    scroll_width: f64,
    requests: f64,
    texts: f64,
    smallest_text: f64,
    cut: f64,
    over: f64,
}

/// The document of a file in the browser, in a window of this many pixels.
fn dom(file: &Path, width: u32, height: u32) -> String {
    let profile = TempDir::new().unwrap();
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"])
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("apt-get install chromium");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Shows a page in a frame, since a window of the browser is no narrower than 500 pixels.
fn look(page: &str, width: u32, height: u32) -> Seen {
    let folder = TempDir::new().unwrap();
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
    assert!(page.contains(policy), "the page allows more than it needs");
    // Here requests have to be visible, not only forbidden.
    let copy = page
        .replace(policy, "default-src * 'unsafe-inline'")
        .replace("</body>", &format!("{PROBE}</body>"))
        .replace('&', "&amp;")
        .replace('"', "&quot;");
    let frame = folder.path().join("frame.html");
    let style = format!("border:0;width:{width}px;height:{height}px");
    fs::write(
        &frame,
        format!("<!doctype html><title></title><iframe style=\"{style}\" srcdoc=\"{copy}\">"),
    )
    .unwrap();
    let dom = dom(&frame, width.max(500), height);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    let seen: Vec<f64> =
        title.unwrap_or_default().split(' ').filter_map(|it| it.parse().ok()).collect();
    let [width, scroll_width, requests, texts, smallest_text, cut, over] = seen[..] else {
        panic!("the probe has said {title:?}")
    };
    Seen { width, scroll_width, requests, texts, smallest_text, cut, over }
}

/// The page of the figures that are in the repository.
fn page(folder: &Path) -> PathBuf {
    let figures = repository().join("docs/figures");
    let figures = figures.to_str().unwrap();
    assert_succeeds(&run(folder, &[figures, "--output", "page.html"]));
    folder.join("page.html")
}

#[test]
fn the_page_is_whole_in_a_browser() {
    let folder = TempDir::new().unwrap();
    let page = page(folder.path());
    for (width, height) in [(390, 844), (1280, 900)] {
        let dom = dom(&page, width, height);
        for path in ["endpoint", "bulk", "wait", "stream", "receive", "taken", "lab"] {
            let section = format!("<section id=\"{path}\"");
            let section = dom.split(&section).nth(1).unwrap_or_else(|| panic!("no {path}: {dom}"));
            let section = section.split("</section>").next().unwrap();
            let plots = section.matches("<svg").count();
            assert_eq!(plots > 0, !["taken", "lab"].contains(&path), "{path}: {plots} plots");
        }
    }
}

#[test]
fn the_page_fits_a_phone_and_a_screen_and_asks_for_nothing() {
    let folder = TempDir::new().unwrap();
    let page = fs::read_to_string(page(folder.path())).unwrap();
    for (width, height) in [(390, 844), (1280, 900)] {
        // Once, on a busy machine, the browser told that two texts overlap; the same page had none before and after. Why is
        // not known. What is wrong with the page stays so.
        let mut seen = look(&page, width, height);
        for _ in 0..2 {
            if seen.cut > 0.5 || seen.over > 0.5 {
                seen = look(&page, width, height);
            }
        }
        assert!((seen.width - f64::from(width)).abs() < 0.5, "{seen:?}");
        assert!(seen.scroll_width <= seen.width, "{seen:?}");
        assert!(seen.requests < 0.5, "{seen:?}");
        assert!(seen.texts > 100.0 && seen.smallest_text >= 11.0, "{seen:?}");
        assert!(seen.cut < 0.5 && seen.over < 0.5, "{seen:?}");
    }
}

#[test]
fn the_probe_sees_what_must_not_be() {
    let folder = TempDir::new().unwrap();
    let page = fs::read_to_string(page(folder.path())).unwrap();
    let spoilt = page.replace(
        "<main>",
        "<main><div style=\"width:2000px\">wide<img src=\"http://busbar.invalid/x.png\"></div>
        <svg viewBox=\"0 0 100 10\"><text x=\"60\" font-size=\"12\">so long that it is cut</text>
        <text x=\"70\" font-size=\"2\">in its place</text></svg>",
    );
    let seen = look(&spoilt, 390, 844);
    assert!(seen.scroll_width > 1_999.0, "{seen:?}");
    assert!(seen.requests > 0.5 && seen.cut > 0.5 && seen.over > 0.5, "{seen:?}");
    assert!(seen.smallest_text < 11.0, "{seen:?}");
}
