//! All benchmarks as one self-contained page of HTML: no script, no other file, no network.
//!
//! Reports come from files that anybody may have written: all their content is escaped as text.

pub mod demo;
mod mark;
mod plan;
mod plot;
mod seeds;

use mark::Whose;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plot::{Bar, Line, Plot};

use crate::{Case, Extent, Report, words};

const STYLE: &str = include_str!("page/style.css");
/// Most bars of one plot; more bars make more plots.
const MANY: usize = 24;

/// What the lab cannot show, in the words of `docs/measuring.md`.
const NOT_SHOWN: &str = "Under emulation a ratio of kernel work without copies is about that of a \
    board. A copy takes one instruction a byte here, and the time of memory and caches on a board. \
    Wake-ups from one core to another, DMA and caches are not shown; nor is the share of a \
    coprocessor's own time, which in the lab is a process on the same processors.";

/// The page. Reports of one path are shown in the given order.
#[must_use]
pub fn render(reports: &[Report]) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                meta name="color-scheme" content="light dark";
                title { "Busbar: the figures" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (top(reports)) }
                main {
                    @for path in &plan::PATHS { (section(path, reports)) }
                    (taken(reports))
                    section #lab aria-labelledby="lab-title" {
                        h2 #lab-title { "What the lab cannot show" }
                        p { (NOT_SHOWN) }
                    }
                }
            }
        }
    }
    .into_string()
}

fn top(reports: &[Report]) -> Markup {
    html! {
        h1 { "Busbar: the figures" }
        p {
            "Each figure is a ratio: what the usual way costs, divided by what Busbar’s costs, for the same \
             work, both taken in turn in one run and checked on both sides. Above 1, Busbar is ahead. Given \
             are the median and, in brackets, the lowest and the highest of all runs."
        }
        nav aria-label="Paths" {
            ul.tiles {
                @for path in &plan::PATHS {
                    li { a href={ "#" (path.name) } { (tile(path, reports)) } }
                }
            }
        }
    }
}

/// The headline figure of a path.
fn tile(path: &plan::Path, reports: &[Report]) -> Markup {
    let (pick, says) = path.headline;
    let found = of(path, reports).find_map(|report| {
        report.cases.iter().find(|case| pick.has(case)).map(|case| (report, case))
    });
    html! {
        span.name { (path.name) }
        @match found {
            Some((report, case)) => {
                span.figure { (words::number(case.ratio.median)) "×" }
                span.note { (says) ", " (report.accelerator) }
            }
            None => {
                span.figure { "–" }
                span.note { "no figure" }
            }
        }
    }
}

fn of<'a>(path: &plan::Path, reports: &'a [Report]) -> impl Iterator<Item = &'a Report> {
    let name = path.name;
    reports.iter().filter(move |report| report.bench == name)
}

fn section(path: &plan::Path, reports: &[Report]) -> Markup {
    let title = format!("{}-title", path.name);
    html! {
        section id=(path.name) aria-labelledby=(title) {
            h2 id=(title) { (path.name) }
            p { (path.says) }
            @if let Some(seed) = seeds::of(path.name) { (published(&seed)) }
            @if of(path, reports).next().is_none() {
                p.missing { "There are no figures of " (path.name) " here. They are taken by" }
                pre { code { (command(path.name, "icount", 1, Extent::Normal)) " > docs/figures/" (path.name) ".icount.json" } }
            }
            @if let Some(table) = side_by_side(path, reports) { (table) }
            @for report in of(path, reports) { (measured(path, report)) }
        }
    }
}

/// The published figures.
fn published(seed: &seeds::Seed) -> Markup {
    html! {
        div.seed {
            h3 { "The seed" }
            p { cite { (seed.source) } ". " (seed.says) }
            @for table in &seed.tables {
                // Long tables are folded.
                @if table.rows.len() > 10 {
                    details { summary { (table.caption) } (plain(table)) }
                } @else { (plain(table)) }
            }
        }
    }
}

fn plain(table: &seeds::Table) -> Markup {
    html! {
        div.wide role="region" tabindex="0" aria-label=(table.caption) {
            table {
                caption { (table.caption) }
                thead { tr { @for head in table.head { th scope="col" { (head) } } } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (column, cell) in row.iter().enumerate() {
                                @if column == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The ratios of the cases that several reports of a path have, such as one of the lab and one of a machine itself.
fn side_by_side(path: &plan::Path, reports: &[Report]) -> Option<Markup> {
    let all: Vec<&Report> = of(path, reports).collect();
    let mut rows: Vec<(&Case, Vec<Option<&Case>>)> = Vec::new();
    for case in all.iter().flat_map(|report| &report.cases) {
        if rows.iter().any(|(known, _)| is_same(known, case)) {
            continue;
        }
        let found = all.iter().map(|report| report.cases.iter().find(|it| is_same(case, it)));
        rows.push((case, found.collect()));
    }
    rows.retain(|(_, found)| found.iter().flatten().count() > 1);
    if rows.is_empty() {
        return None;
    }
    let caption = format!("{}: median (lowest to highest) of the ratios", path.name);
    Some(html! {
        details {
            summary { (rows.len()) " cases that were measured on several machines, side by side" }
            div.wide role="region" tabindex="0" aria-label=(caption) {
                table {
                    caption { (caption) }
                    thead {
                        tr {
                            @for head in ["case", "usual way"] { th.words scope="col" { (head) } }
                            @for report in &all { th scope="col" { (report.accelerator) ", " (words::cores(report.cores)) } }
                        }
                    }
                    tbody { @for (case, found) in &rows { (row(case, found)) } }
                }
            }
        }
    })
}

fn row(case: &Case, found: &[Option<&Case>]) -> Markup {
    html! {
        tr {
            th scope="row" { (words::case(case)) }
            td.words { (case.against) }
            @for found in found {
                td { (found.map_or_else(|| "–".into(), |found| words::around(found.ratio))) }
            }
        }
    }
}

/// Whether two cases do the same work.
fn is_same(a: &Case, b: &Case) -> bool {
    (&a.name, &a.against, &a.params) == (&b.name, &b.against, &b.params)
}

/// Plots and table of a report.
fn measured(path: &plan::Path, report: &Report) -> Markup {
    let mut rest: Vec<&Case> = report.cases.iter().collect();
    let mut figures = Vec::new();
    for plan in path.plots {
        match plan.kind {
            plan::Kind::Lines(key, ways) => {
                figures.extend(draw_lines(report, plan.title, key, ways));
            }
            plan::Kind::Bars(picks) => {
                let picked = |case: &&Case| picks.iter().any(|pick| pick.has(case));
                rest.retain(|case| !picked(case));
                let cases: Vec<_> = report.cases.iter().filter(picked).collect();
                figures.extend(draw_bars(path, plan.title, &cases));
            }
        }
    }
    figures.extend(draw_bars(path, "Other figures", &rest));
    html! {
        h3 { (where_it_ran(&report.accelerator)) }
        p.where { (words::machine(report)) }
        div.figures { @for figure in &figures { (figure) } }
        details {
            summary { "All " (report.cases.len()) " cases as a table" }
            (cases(report))
        }
    }
}

fn where_it_ran(accelerator: &str) -> String {
    match accelerator {
        "icount" => "Busbar, emulated: time counts instructions".into(),
        "tcg" => "Busbar, emulated, in time".into(),
        "kvm" => "Busbar, in a virtual machine".into(),
        "native" => "Busbar, on the machine itself".into(),
        other => format!("Busbar, by {other}"),
    }
}

/// The command that produces such a report.
fn command(bench: &str, accelerator: &str, cores: usize, extent: Extent) -> String {
    let extent = match extent {
        Extent::Quick => " --quick",
        Extent::Normal => "",
        Extent::Full => " --full",
    };
    let native = if bench == "stream" && accelerator == "native" { " --native" } else { "" };
    let bench = format!("busbar bench {bench}{native}{extent} --json");
    let accelerator = match accelerator {
        "native" => return bench,
        "tcg" => String::new(),
        other => format!(" --accel {other}"),
    };
    // The lab has two by default.
    let cores = if cores == 2 { String::new() } else { format!(" --cpus {cores}") };
    format!("busbar lab run{accelerator}{cores} -- {bench}")
}

fn of_report(report: &Report) -> String {
    command(&report.bench, &report.accelerator, report.cores, report.extent)
}

fn draw_bars(path: &plan::Path, title: &str, cases: &[&Case]) -> Vec<Markup> {
    let drawn: Vec<_> = cases.iter().filter(|case| case.ratio.median > 0.0).collect();
    let bar = |case: &&&Case| Bar {
        label: words::difference(case, cases),
        ratio: case.ratio,
        mark: seeds::mark(path.name, case),
    };
    let plots = drawn.chunks(MANY).map(|some| {
        let bars: Vec<_> = some.iter().map(bar).collect();
        let marks = [Whose::Seed, Whose::Target]
            .into_iter()
            .filter(|whose| bars.iter().any(|bar| bar.mark.is_some_and(|mark| mark.of == *whose)));
        let keys: Vec<_> = marks.map(|whose| (whose.name(), key_of(whose))).collect();
        figure(title, "Usual / Busbar: longer is better", &keys, plot::bars(&bars))
    });
    plots.collect()
}

fn key_of(whose: Whose) -> &'static str {
    match whose {
        Whose::Seed => "the published figure, on its hardware",
        Whose::Target => "our target",
    }
}

fn draw_lines(report: &Report, title: &str, key: &str, ways: &[plan::Way]) -> Option<Markup> {
    let point = |way: &plan::Way, case: &Case| {
        let (x, cost) = (case.params.get(key)?.as_f64()?, way.cost(case));
        (x > 0.0 && cost.median > 0.0).then_some((x, cost))
    };
    let of = |way: &plan::Way| {
        let cases = report.cases.iter().filter(|case| way.pick.has(case));
        let mut points: Vec<_> = cases.filter_map(|case| point(way, case)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { label: way.label.into(), ours: way.ours, points }
    };
    let lines: Vec<_> = ways.iter().map(of).filter(|line| line.points.len() > 1).collect();
    let unit = report.cases.iter().find(|case| ways.iter().any(|way| way.pick.has(case)))?;
    if lines.is_empty() {
        return None;
    }
    let classes: Vec<_> =
        (0..lines.len()).map(|at| format!("line{}", at % plot::LINES.len())).collect();
    let shape = |line: &Line| if line.ours { "ours" } else { "usual" };
    let keys: Vec<_> = lines
        .iter()
        .zip(&classes)
        .map(|(line, class)| (format!("{class} {}", shape(line)), line.label.as_str()))
        .collect();
    let keys: Vec<_> = keys.iter().map(|(class, label)| (class.as_str(), *label)).collect();
    Some(figure(title, "Lower is better", &keys, plot::lines(&lines, key, &unit.unit)))
}

/// A plot with its title and its key: class and words.
fn figure<E: std::fmt::Display>(
    title: &str,
    note: &str,
    keys: &[(&str, &str)],
    plot: Result<Plot, E>,
) -> Markup {
    html! {
        figure {
            figcaption { strong { (title) } " " span.note { (note) } }
            @if !keys.is_empty() {
                ul.key { @for (class, label) in keys { li class=(class) { (label) } } }
            }
            @match plot {
                Ok(Plot { size: (width, height), inner, says }) => {
                    svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label={ (title) ". " (says) } {
                        (PreEscaped(inner))
                    }
                }
                Err(why) => p { "The plot failed: " (why) }
            }
        }
    }
}

fn cases(report: &Report) -> Markup {
    let caption =
        format!("{}: {}; minimum / median / maximum", report.bench, words::machine(report));
    html! {
        div.wide role="region" tabindex="0" aria-label=(caption) {
            table {
                caption { (caption) }
                thead {
                    tr {
                        @for head in ["case", "usual way", "unit"] { th.words scope="col" { (head) } }
                        @for head in ["usual", "Busbar", "ratio"] { th scope="col" { (head) } }
                    }
                }
                tbody {
                    @for case in &report.cases {
                        tr {
                            th scope="row" { (words::case(case)) }
                            td.words { (case.against) }
                            td.words { (case.unit) }
                            td { (words::spread(case.baseline)) }
                            td { (words::spread(case.busbar)) }
                            td { (words::spread(case.ratio)) }
                        }
                    }
                }
            }
        }
    }
}

/// The machine and the command.
fn taken(reports: &[Report]) -> Markup {
    html! {
        section #taken aria-labelledby="taken-title" {
            h2 #taken-title { "How they were taken" }
            @if reports.is_empty() { p { "There are no reports." } }
            dl {
                @for report in reports {
                    dt { (report.bench) ": " (words::machine(report)) }
                    dd { code { (of_report(report)) } }
                }
            }
            p {
                "The usual way is that of the unmodified kernel. A run is the usual way and then Busbar’s, and \
                 so on in turn, so that other load slows both. Where time counts instructions, a \
                 thousand of them are a microsecond, and other load does not matter."
            }
        }
    }
}

#[cfg(test)]
mod tests;
