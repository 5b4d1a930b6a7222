use super::*;
use crate::{PATHS, Spread};

fn case(name: &str, params: &[(&str, u64)], against: &str, runs: &[(f64, f64)]) -> Case {
    Case::new(name, params, "us", against, runs)
}

fn report(bench: &str, cases: Vec<Case>) -> Report {
    let report = Report::new(bench, 2, cases);
    Report { kernel: "6.12".into(), accelerator: "icount".into(), cores: 1, ..report }
}

/// The text of the section of `path`.
fn section_of<'a>(page: &'a str, path: &str) -> &'a str {
    let begin = page.find(&format!("<section id=\"{path}\"")).expect(path);
    &page[begin..begin + page[begin..].find("</section>").unwrap()]
}

/// A page makes no request: it contains nothing that could.
fn assert_self_contained(page: &str) {
    for what in ["src=", "srcset=", "url(", "@import", "<script", "<link", "<iframe", "<object"] {
        assert!(!page.contains(what), "{what}");
    }
    let links = page.split("href=\"").skip(1);
    assert!(links.clone().count() >= PATHS.len());
    for link in links {
        assert!(link.starts_with('#'), "{}", &link[..40]);
    }
    for what in ["http:", "https:"] {
        assert!(!page.contains(what), "{what}");
    }
}

#[test]
fn a_path_without_figures_says_how_to_take_them() {
    let page = render(&[]);
    for path in PATHS {
        let section = section_of(&page, path);
        let command = format!(
            "busbar lab run --accel icount --cpus 1 -- busbar bench {path} --json &gt; \
             docs/figures/{path}.icount.json"
        );
        assert!(section.contains(&command), "{section}");
        assert!(!section.contains("<svg"), "{path}");
    }
    assert_self_contained(&page);
}

#[test]
fn both_reports_of_a_path_are_shown_with_what_they_were_taken_on() {
    let runs = [(44.0, 1.0), (42.0, 1.0), (49.0, 1.0)];
    let of = |accelerator: &str, cores| {
        let cases = vec![case("create", &[("loops", 1_000)], "device node", &runs)];
        Report { accelerator: accelerator.into(), cores, ..report("endpoint", cases) }
    };
    let quick = Report { extent: Extent::Quick, ..of("icount", 1) };
    let page = render(&[quick, of("tcg", 2), of("native", 8)]);
    let section = section_of(&page, "endpoint");
    for said in [
        "Linux 6.12, icount, 1 core, 2 runs in turn, quick",
        "Linux 6.12, tcg, 2 cores, 2 runs in turn",
        "Linux 6.12, native, 8 cores, 2 runs in turn",
    ] {
        assert!(section.contains(said), "{said}");
    }
    assert_eq!(section.matches("<svg").count(), 3);
    assert!(!section.contains("There are no figures"));
    for command in [
        "<code>busbar lab run --accel icount --cpus 1 -- busbar bench endpoint --quick --json</code>",
        "<code>busbar lab run -- busbar bench endpoint --json</code>",
        "<code>busbar bench endpoint --json</code>",
    ] {
        assert!(page.contains(command), "{command}");
    }
    let tile = page.split("href=\"#endpoint\"").nth(1).unwrap();
    assert!(tile[..200].contains("44.0×"), "{}", &tile[..200]);
}

#[test]
fn cases_of_several_machines_are_side_by_side() {
    let of = |accelerator: &str, names: &[&str], ratio: f64| {
        let cases = names.iter().map(|name| case(name, &[], "epoll_ctl", &[(ratio, 1.0)]));
        Report { accelerator: accelerator.into(), ..report("wait", cases.collect()) }
    };
    let reports = [of("icount", &["add", "mod"], 2.5), of("native", &["mod", "server"], 1.5)];
    let page = render(&reports);
    let section = section_of(&page, "wait");
    let table = section.split("side by side").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(table.contains("icount, 1 core</th>") && table.contains("native, 1 core</th>"));
    assert!(table.contains("2.50 (2.50 to 2.50)</td><td>1.50 (1.50 to 1.50)"), "{table}");
    assert!(!table.contains(">add<") && !table.contains(">server<"), "one machine alone");
    assert!(!section_of(&render(&reports[..1]), "wait").contains("side by side"));
}

#[test]
fn a_bar_says_median_lowest_highest_and_the_seed() {
    let runs = [(44.0, 1.0), (42.0, 1.0), (49.0, 1.0)];
    let cases = vec![case("create", &[("loops", 1_000)], "device node", &runs)];
    let page = render(&[report("endpoint", cases)]);
    assert!(page.contains("create: 44.0, 42.0 to 49.0, seed 129"), "{page}");
    assert!(page.contains("44.0 (42.0 – 49.0)"));
    let table = "<td>42.0 / 44.0 / 49.0</td><td>1.00 / 1.00 / 1.00</td><td>42.0 / 44.0 / 49.0</td>";
    assert!(page.contains(table), "{page}");
    assert!(page.contains("the published figure, on its hardware"));
}

/// The `x` of both ends of each line and of each rectangle of a plot, by colour.
fn extents(svg: &str, color: &str) -> Vec<(f64, f64)> {
    let value = |tag: &str, key: &str| -> Option<f64> {
        tag.split_once(&format!(" {key}=\""))?.1.split_once('"')?.0.parse().ok()
    };
    let ends = |tag: &str| -> Option<(f64, f64)> {
        if let Some(points) = tag.split_once("points=\"") {
            let xs: Vec<f64> = points
                .1
                .split('"')
                .next()?
                .split_whitespace()
                .filter_map(|it| it.split(',').next()?.parse().ok())
                .collect();
            return Some((*xs.first()?, *xs.last()?));
        }
        let x = value(tag, "x")?;
        Some((x, x + value(tag, "width")?))
    };
    svg.split('<').filter(|tag| tag.contains(color)).filter_map(ends).collect()
}

#[test]
fn bars_begin_at_one_and_whiskers_go_from_lowest_to_highest() {
    let bar = |min, median, max| Bar {
        label: "x".into(),
        ratio: Spread { min, median, max },
        mark: Some(mark::Mark { of: Whose::Seed, value: 3.0 }),
    };
    let plot = plot::bars(&[bar(1.5, 2.0, 4.0), bar(0.25, 0.5, 1.0)]).unwrap();
    let [ahead, behind] = ["#C46D32", "#8A94A3"].map(|color| extents(&plot.inner, color)[0]);
    assert!(ahead.0 < ahead.1 && (ahead.0 - behind.1).abs() <= 1.0, "{ahead:?} {behind:?}");
    let whiskers: Vec<_> = extents(&plot.inner, "stroke=\"#221F1C\"")
        .into_iter()
        .filter(|(from, to)| from < to)
        .collect();
    let [first, second] = whiskers[..] else { panic!("{whiskers:?}") };
    assert!(ahead.0 < first.0 && first.0 < ahead.1 && ahead.1 < first.1, "{first:?} {ahead:?}");
    assert!(second.0 < behind.0 && behind.0 < second.1, "{second:?} {behind:?}");
    // On a logarithmic axis, 2 is in the middle of 1 and 4, and the mark right of it.
    assert!((f64::midpoint(ahead.0, first.1) - ahead.1).abs() <= 1.0, "{ahead:?} {first:?}");
    let seed = extents(&plot.inner, "#007A73")[0].0;
    assert!(ahead.1 < seed && seed < first.1, "{seed} {first:?}");
}

#[test]
fn a_swept_parameter_is_a_line_and_all_cases_are_bars() {
    let of = |bytes, cost| case("fetch-none", &[("bytes", bytes)], "read()", &[(cost, 10.0)]);
    let cases = vec![of(4_096, 5.0), of(1 << 20, 600.0), of(32_768, 30.0)];
    let page = render(&[report("stream", cases)]);
    let section = section_of(&page, "stream");
    assert!(section.contains("read(): 5.00 at 4 KiB, 30.0 at 32 KiB, 600 at 1 MiB"), "{section}");
    assert!(section.contains("blocks in place: 10.0 at 4 KiB, 10.0 at 32 KiB, 10.0 at 1 MiB"));
    assert!(section.contains("4 KiB: 0.50, 0.50 to 0.50; 1 MiB: 60.0, 60.0 to 60.0; 32 KiB: 3.00"));
    // One point is no line.
    let page = render(&[report("stream", vec![of(4_096, 5.0)])]);
    assert_eq!(section_of(&page, "stream").matches("<svg").count(), 1);
}

#[test]
fn cases_that_nobody_has_planned_for_are_shown_and_many_of_them_are_more_plots() {
    let cases = (1..=30).map(|it| case("new", &[("n", it)], "old", &[(2.0, 1.0)])).collect();
    let page = render(&[report("wait", cases)]);
    let section = section_of(&page, "wait");
    assert_eq!(section.matches("Other figures</strong>").count(), 2);
    assert_eq!(section.matches("<svg").count(), 2);
    assert!(section.contains("All 30 cases"));
}

#[test]
fn what_a_report_says_is_text() {
    let evil = "\"><script>alert('1')</script><img src=https://example.org/x.png>&<!--";
    let case = Case {
        name: evil.into(),
        params: [(evil.to_string(), evil.into())].into_iter().collect(),
        unit: evil.into(),
        ..case("x", &[], evil, &[(3.0, 1.0), (4.0, 1.0)])
    };
    let swept = |bytes| Case {
        unit: evil.into(),
        ..super::tests::case("sum-none", &[("bytes", bytes)], evil, &[(2.0, 1.0)])
    };
    let report = Report {
        kernel: evil.into(),
        accelerator: evil.into(),
        ..report("stream", vec![case, swept(512), swept(1_024)])
    };
    let page = render(&[report]);
    for tag in ["<script", "<img", "<!--"] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(page.contains("&lt;script&gt;"));
    // No text has ended an attribute: all attributes are the page's own.
    let plain = render(&[super::tests::report("stream", vec![])]);
    let names = |page: &str| -> std::collections::BTreeSet<String> {
        let tags = page.split('<').skip(1).filter_map(|rest| rest.split_once('>'));
        tags.map(|(tag, _)| tag.split_whitespace().next().unwrap_or_default().to_string()).collect()
    };
    let drawn =
        ["figure", "figcaption", "strong", "svg", "text", "rect", "polyline", "circle", "line"];
    for name in names(&page).difference(&names(&plain)) {
        assert!(drawn.contains(&name.trim_start_matches('/')), "{name}");
    }
}

#[test]
fn figures_beyond_all_measure_are_drawn_or_left_out() {
    let with = |min, median, max| Case {
        ratio: Spread { min, median, max },
        baseline: Spread { min, median, max },
        ..case("fetch-none", &[("bytes", 1)], "x", &[(1.0, 1.0)])
    };
    let cases = vec![
        with(0.0, 0.0, 0.0),
        with(0.0, 1.0, f64::MAX),
        with(f64::MIN_POSITIVE, 1e-300, 1e300),
        Case {
            params: [("bytes".into(), 1e300.into())].into_iter().collect(),
            ..with(5.0, 5.0, 5.0)
        },
        Case {
            params: [("bytes".into(), "two".into())].into_iter().collect(),
            ..with(5.0, 5.0, 5.0)
        },
    ];
    let page = render(&[report("stream", cases)]);
    assert!(
        !page.contains("cannot be drawn") && !page.contains("NaN") && !page.contains("inf"),
        "{page}"
    );
    assert!(section_of(&page, "stream").contains("<svg"));
}

#[test]
fn a_page_with_figures_is_self_contained() {
    let of = |name: &str| {
        let sweep = [16, 85, 200];
        sweep.map(|n| case(name, &[("descriptors", n)], "ppoll", &[(9.0, 3.0)])).to_vec()
    };
    let page = render(&[report("wait", [of("turn-p50"), of("add"), of("mod")].concat())]);
    assert!(page.matches("<svg").count() >= 4);
    assert!(!page.contains("xmlns"));
    assert_self_contained(&page);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
    assert!(page.contains(policy), "{page}");
}

#[test]
fn plots_and_tables_say_what_they_are() {
    let cases = vec![case("turn-p50", &[("descriptors", 16)], "ppoll", &[(9.0, 3.0)])];
    let page = render(&[report("wait", cases)]);
    let svgs = page.matches("<svg").count();
    assert_eq!(page.matches("role=\"img\" aria-label=\"Latency of the loop. ").count(), svgs);
    assert_eq!(page.matches("<table>").count(), page.matches("<caption>").count());
    assert!(page.contains("<html lang=\"en\">"));
    assert!(page.contains("content=\"width=device-width, initial-scale=1\""));
}

#[test]
fn the_style_sheet_has_every_colour_of_the_plots() {
    let colors =
        [plot::INK, plot::DIM, plot::GRID, plot::AHEAD, plot::BEHIND, plot::SEED, plot::TARGET];
    for plotters::style::RGBColor(red, green, blue) in colors.into_iter().chain(plot::LINES) {
        for key in ["fill", "stroke"] {
            let rule = format!("[{key}=\"#{red:02X}{green:02X}{blue:02X}\"]");
            assert!(STYLE.contains(&rule), "{rule}");
        }
    }
    assert!(STYLE.contains("prefers-color-scheme: dark"));
}

#[test]
fn what_the_lab_cannot_show_is_what_the_documentation_says() {
    let measuring = include_str!("../../../../docs/measuring.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(measuring).contains(&words(NOT_SHOWN)));
}

/// A recording of a sine, and when it began.
fn recorded(folder: &std::path::Path) -> (busbar::stream::sigmf::Recording, f64) {
    use busbar::stream::sigmf::{Recorder, Recording};
    use busbar::stream::{Source, StreamSetup};

    let setup = StreamSetup::new().block_len(4096);
    let source = Source::open("synth:sine?rate=100k&frequency=1k", &setup).unwrap();
    let path = folder.join("sine");
    let mut recorder = Recorder::create(&path, source.format(), None).unwrap();
    for _ in 0..20 {
        recorder.write(&source.next().unwrap()).unwrap();
    }
    recorder.finish(busbar::stream::Lost::Samples(0)).unwrap();
    let recording = Recording::open(&path).unwrap();
    let begin = recording.begin().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    (recording, begin.as_secs_f64())
}

#[test]
fn a_demonstration_is_one_page_with_its_picture_and_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, begin) = recorded(folder.path());
    let text = format!(
        r#"{{"machine": "Linux <6>", "says": "less & less", "killed": {}, "rows": [
            {{"name": "time, s", "short": "time", "usual": 9, "busbar": 4.5, "ratio": 2, "turns": [2, 2]}},
            {{"name": "lost", "short": null, "usual": 0, "busbar": 0}}]}}"#,
        begin + 0.05
    );
    let demo = demo::Demo::parse(&text).unwrap();
    let page = demo::page(&demo, &recording).unwrap();
    for part in [
        "no sample is lost",
        "Linux &lt;6&gt;",
        "less &amp; less",
        "<polyline",
        ">time, s<",
        ">2.00<",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("://"));
    let picture = demo::picture(&demo, &recording).unwrap();
    assert!(picture.starts_with("<svg") && page.contains(&picture));

    for killed in [begin - 1.0, begin + 1e6] {
        let late = demo::Demo { killed, ..demo.clone() };
        let error = demo::page(&late, &recording).unwrap_err().to_string();
        assert!(error.contains("the time of the kill"), "{error}");
    }
    assert!(demo::Demo::parse("{}").is_err());
}
