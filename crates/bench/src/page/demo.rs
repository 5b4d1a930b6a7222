//! The demonstration: the signal at the moment when the coprocessor was killed, and both ways side by side.

use std::io;
use std::time::UNIX_EPOCH;

use busbar::stream::Lost;
use busbar::stream::sigmf::Recording;
use busbar::{Error, Result};
use maud::{DOCTYPE, PreEscaped, html};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, WHITE};
use serde::Deserialize;

use super::STYLE;
use super::plot::{AHEAD, Area, BEHIND, DIM, Failure, GRID, INK, Plot, TARGET, sized};
use crate::words;

/// Milliseconds of the signal that are shown before and after the kill.
const AROUND: f64 = 10.0;
const SIZE: (u32, u32) = (1000, 440);
/// The signal: left, top, right, bottom.
const SIGNAL: (i32, i32, i32, i32) = (20, 56, 980, 250);
/// The first bar's top, the height of one, and the lines of a group.
const BARS: i32 = 300;
const BAR: i32 = 22;
/// Pixels from one group of bars to the next, and of the longest bar.
const GROUP: i32 = 242;
const LONGEST: f64 = 150.0;

/// What a run of the demonstration has measured, as `demo/pipeline.sh` writes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Demo {
    /// What ran, such as the version of Linux.
    pub machine: String,
    /// The result, in a sentence.
    pub says: String,
    /// When the coprocessor was killed while the signal was recorded: seconds since 1970.
    pub killed: f64,
    /// The table.
    pub rows: Vec<Row>,
}

impl Demo {
    /// Reads what was measured.
    ///
    /// # Errors
    ///
    /// JSON of another form.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|why| {
            Error::new("read", "what a demonstration has measured", io::Error::from(why))
        })
    }
}

/// A measure of both ways.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// What was measured, with its unit.
    pub name: String,
    /// In the usual way.
    pub usual: f64,
    /// With Busbar.
    pub busbar: f64,
    /// How many times better Busbar is, where one is better.
    pub ratio: Option<f64>,
    /// The name in the picture, if it is in there.
    pub short: Option<String>,
}

/// The picture as a file of SVG.
///
/// # Errors
///
/// As [`Recording::read`]; a recording that is not of `ci16_le`, tells no rate, or ends before the kill.
pub fn picture(demo: &Demo, recording: &Recording) -> Result<String> {
    let Plot { size: (width, height), inner, says } = plot(demo, recording)?;
    Ok(html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (height) } role="img"
            font-family="system-ui, 'DejaVu Sans', sans-serif" {
            title { (says) }
            (PreEscaped(inner))
        }
    }
    .into_string())
}

/// The picture and the table as one page, without any other file.
///
/// # Errors
///
/// As [`picture`].
pub fn page(demo: &Demo, recording: &Recording) -> Result<String> {
    let picture = picture(demo, recording)?;
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                meta name="color-scheme" content="light";
                title { "Busbar: the demonstration" }
                style { (PreEscaped(STYLE)) "svg { max-width: none } :root { color-scheme: light }" }
            }
            body {
                header {
                    h1 { "Busbar: the demonstration" }
                    p { (demo.says) }
                    p.where { (demo.machine) }
                }
                main {
                    (PreEscaped(picture))
                    div.wide { table {
                        caption { "Both ways, in turn. A ratio above 1: Busbar is ahead." }
                        thead { tr { th { "" } th { "usual" } th { "Busbar" } th { "ratio" } } }
                        tbody { @for row in &demo.rows { tr {
                            th scope="row" { (row.name) }
                            td { (words::number(row.usual)) }
                            td { (words::number(row.busbar)) }
                            td { (row.ratio.map(words::number).unwrap_or_default()) }
                        } } }
                    } }
                }
            }
        }
    }
    .into_string())
}

fn plot(demo: &Demo, recording: &Recording) -> Result<Plot> {
    let signal = Signal::around(demo.killed, recording)?;
    let says = format!("{} {}", signal.title(), demo.says);
    Plot::draw(SIZE, says, |area| {
        area.fill(&WHITE)?;
        signal.draw(area)?;
        let rows = demo.rows.iter().filter_map(|row| Some((row, row.short.as_deref()?)));
        for ((row, name), left) in rows.zip((SIGNAL.0..).step_by(GROUP.unsigned_abs() as usize)) {
            bars(area, row, name, left)?;
        }
        Ok(())
    })
    .map_err(|why| Error::new("draw", "the demonstration", io::Error::other(why.to_string())))
}

/// A part of a recording.
struct Signal {
    /// Milliseconds after the kill, and the value as a part of the full scale.
    points: Vec<(f64, f64)>,
    /// Samples that the whole recording lacks, if that is known.
    lost: Option<u64>,
}

impl Signal {
    fn around(killed: f64, recording: &Recording) -> Result<Self> {
        let wrong = |what: &str, is: String, allowed: &str| Error::invalid(what, is, allowed);
        let kind = recording.datatype().to_string();
        if kind != "ci16_le" {
            return Err(wrong("the recording's type", kind, "ci16_le"));
        }
        let begin = recording.begin().and_then(|begin| begin.duration_since(UNIX_EPOCH).ok());
        let (Some(rate), Some(begin)) = (recording.format().rate, begin) else {
            return Err(wrong(
                "the recording",
                "one without a rate or a time".into(),
                "one with both",
            ));
        };
        let at = (killed - begin.as_secs_f64()) * rate;
        let half = AROUND / 1e3 * rate;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let (from, count, length) =
            ((at - half).max(0.0) as u64, (2.0 * half) as usize, recording.samples() as f64);
        if !(half..=length).contains(&at) {
            let allowed = format!("a time within its {length} samples");
            return Err(wrong("the time of the kill", format!("sample {at:.0}"), &allowed));
        }
        let each = recording.format().sample_len;
        let mut bytes = vec![0; count * each];
        let read = recording.read(from, &mut bytes)?;
        #[allow(clippy::cast_precision_loss)]
        let time = |index: usize| (from as f64 + index as f64 - at) / rate * 1e3;
        let value = |sample: &[u8]| f64::from(i16::from_le_bytes([sample[0], sample[1]])) / 32768.0;
        let samples = bytes[..read].chunks_exact(each).enumerate();
        let points = samples.map(|(index, sample)| (time(index), value(sample))).collect();
        let lost = recording.gaps().iter().try_fold(0_u64, |sum, gap| match gap.lost {
            Lost::Samples(lost) => Some(sum.saturating_add(lost)),
            Lost::Unknown => None,
        });
        Ok(Self { points, lost })
    }

    fn title(&self) -> String {
        let lost = match self.lost {
            None => "nobody knows what is lost".to_owned(),
            Some(0) => "no sample is lost".to_owned(),
            Some(lost) => format!("{lost} samples are lost"),
        };
        format!("The signal at the receiver while the coprocessor is killed: {lost}.")
    }

    fn draw(&self, area: &Area<'_>) -> std::result::Result<(), Failure> {
        let (left, top, right, bottom) = SIGNAL;
        let most = self.points.iter().map(|(_, value)| value.abs()).fold(0.001, f64::max);
        #[allow(clippy::cast_possible_truncation)]
        let x =
            |time: f64| left + (f64::midpoint(time / AROUND, 1.0) * f64::from(right - left)) as i32;
        #[allow(clippy::cast_possible_truncation)]
        let y = |value: f64| {
            let middle = f64::midpoint(f64::from(top), f64::from(bottom));
            (middle - value / most * f64::from(bottom - top) * 0.46) as i32
        };
        area.draw_text(&self.title(), &sized(INK, HPos::Left, VPos::Top, 20), (left, 14))?;
        area.draw(&Rectangle::new([(left, top), (right, bottom)], GRID))?;
        let line: Vec<_> = self.points.iter().map(|(time, value)| (x(*time), y(*value))).collect();
        area.draw(&PathElement::new(line, AHEAD.stroke_width(2)))?;
        let kill = [(x(0.0), top - 6), (x(0.0), bottom + 6)];
        area.draw(&PathElement::new(kill, TARGET.stroke_width(2)))?;
        let below = sized(DIM, HPos::Center, VPos::Top, 14);
        let label =
            |text: &'static str, time: f64| Text::new(text, (x(time), bottom + 9), below.clone());
        for (text, time) in [("−10 ms", -9.5), ("the coprocessor is killed", 0.0), ("10 ms", 9.5)]
        {
            area.draw(&label(text, time))?;
        }
        Ok(())
    }
}

/// A measure of both ways: one bar below the other.
fn bars(area: &Area<'_>, row: &Row, name: &str, left: i32) -> std::result::Result<(), Failure> {
    area.draw_text(name, &sized(INK, HPos::Left, VPos::Top, 15), (left, BARS))?;
    let most = row.usual.max(row.busbar).max(f64::MIN_POSITIVE);
    for (index, (who, value, color)) in
        (0..).zip([("usual", row.usual, BEHIND), ("Busbar", row.busbar, AHEAD)])
    {
        let top = BARS + 28 + index * (BAR + 24);
        #[allow(clippy::cast_possible_truncation)]
        let width = ((value / most * LONGEST) as i32).max(2);
        area.draw_text(who, &sized(DIM, HPos::Left, VPos::Top, 13), (left, top))?;
        let bar = [(left, top + 17), (left + width, top + 17 + BAR)];
        area.draw(&Rectangle::new(bar, color.filled()))?;
        let (x, y) = (left + width + 6, top + 17 + BAR / 2);
        area.draw_text(&words::number(value), &sized(INK, HPos::Left, VPos::Center, 15), (x, y))?;
    }
    Ok(())
}
