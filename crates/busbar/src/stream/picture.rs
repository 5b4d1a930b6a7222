//! Pictures of recordings.
//!
//! [`draw`] makes a PNG of the waveform: one panel for each pair of I and Q, or for each channel that
//! is not in a pair. If there are more samples than columns, a column shows the lowest and the
//! highest sample. A red line shows missing samples and how many they are; the ground is grey where samples may be
//! missing.

mod canvas;
mod values;

use self::canvas::{Canvas, Colour, Place};
use self::values::{Column, columns};
use super::format::Lost;
use super::sigmf::Recording;
use crate::{Error, Result};

/// The part of a recording to draw, and the size of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// Width in pixels, 200 to 10 000.
    pub width: u32,
    /// Height in pixels, 100 to 10 000.
    pub height: u32,
    /// The first sample.
    pub from: u64,
    /// Number of samples, limited to those that exist.
    pub samples: u64,
}

impl Default for Plot {
    fn default() -> Self {
        Self { width: 1200, height: 600, from: 0, samples: 1000 }
    }
}

/// Pixels around the panels.
const LEFT: i32 = 70;
const RIGHT: i32 = 20;
const TOP: i32 = 30;
const BOTTOM: i32 = 40;
/// Pixels between two panels.
const GAP: i32 = 24;
/// Most panels: more would be too low to see anything.
const MAX_PANELS: usize = 8;

const GROUND: Colour = Colour::new(255, 255, 255);
const GRID: Colour = Colour::new(225, 225, 225);
const DOUBT: Colour = Colour::new(238, 238, 238);
const TEXT: Colour = Colour::new(40, 40, 40);
const LOSS: Colour = Colour::new(200, 30, 30);
const TRACES: [Colour; 2] = [Colour::new(20, 80, 180), Colour::new(220, 120, 0)];

/// One panel: its channels, its place and its range of values.
struct Panel {
    channels: Vec<usize>,
    place: Place,
    low: f64,
    high: f64,
}

/// A picture of a part of `recording`, as the bytes of a PNG file.
///
/// # Errors
///
/// Bad input for an invalid size, or a part without samples; as [`Recording::read`].
pub fn draw(recording: &Recording, plot: &Plot) -> Result<Vec<u8>> {
    let sizes = (200..=10_000).contains(&plot.width) && (100..=10_000).contains(&plot.height);
    if !sizes {
        let size = format!("{}x{}", plot.width, plot.height);
        return Err(Error::invalid("the size of a picture", size, "200x100 to 10000x10000"));
    }
    let samples = plot.samples.min(recording.samples().saturating_sub(plot.from));
    if samples == 0 {
        let asked = format!("{} samples from {} on", plot.samples, plot.from);
        let allowed = format!("a part of its {} samples", recording.samples());
        return Err(Error::invalid("the part of the recording", asked, allowed));
    }
    let mut canvas = Canvas::new(plot.width, plot.height, GROUND);
    let width = plot.width.cast_signed() - LEFT - RIGHT;
    let columns = columns(recording, plot.from, samples, width.unsigned_abs() as usize)?;
    canvas.text(LEFT, 8, &title(recording, plot.from, samples), TEXT);
    for panel in panels(recording, plot, &columns) {
        panel.draw(&mut canvas, recording, plot.from, samples, &columns);
    }
    axis(&mut canvas, recording, plot, samples);
    canvas.png()
}

fn title(recording: &Recording, from: u64, samples: u64) -> String {
    let hw = recording.hw().map(|hw| format!("{}   ", printable(hw))).unwrap_or_default();
    let rate = recording.format().rate;
    let rate = rate.map(|rate| format!("   {} samples/s", si(rate))).unwrap_or_default();
    let last = from + samples - 1;
    format!("{hw}{}{rate}   samples {from} to {last}", recording.datatype())
}

/// The fonts have ASCII only.
fn printable(text: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(80).map(printable).collect()
}

fn panels(recording: &Recording, plot: &Plot, columns: &[Vec<Column>]) -> Vec<Panel> {
    let each = if recording.datatype().complex { 2 } else { 1 };
    let channels: Vec<usize> = (0..recording.format().channels.len()).collect();
    let groups: Vec<_> = channels.chunks(each).take(MAX_PANELS).collect();
    let count = i32::try_from(groups.len()).unwrap_or(1).max(1);
    let height = (plot.height.cast_signed() - TOP - BOTTOM - GAP * (count - 1)) / count;
    let panel = |(index, channels): (i32, &[usize])| {
        let (low, high) = range(channels.iter().flat_map(|channel| &columns[*channel]));
        let place = Place {
            x: LEFT,
            y: TOP + index * (height + GAP),
            width: plot.width.cast_signed() - LEFT - RIGHT,
            height: height.max(1),
        };
        Panel { channels: channels.to_vec(), place, low, high }
    };
    (0..).zip(groups).map(panel).collect()
}

/// The range from the lowest to the highest value, with a margin.
fn range<'a>(columns: impl Iterator<Item = &'a Column>) -> (f64, f64) {
    let join =
        |(low, high): (f64, f64), column: &Column| (low.min(column.low), high.max(column.high));
    let (low, high) = columns.fold((f64::INFINITY, f64::NEG_INFINITY), join);
    let margin = ((high - low) * 0.08).max(0.5);
    (low - margin, high + margin)
}

impl Panel {
    fn draw(
        &self,
        canvas: &mut Canvas,
        recording: &Recording,
        from: u64,
        samples: u64,
        columns: &[Vec<Column>],
    ) {
        self.doubts(canvas, recording, from, samples);
        for value in ticks(self.low, self.high, (self.place.height / 40).clamp(1, 8)) {
            let y = self.y(value);
            canvas.line((self.place.x, y), (self.place.right(), y), GRID);
            let label = format!("{:>10}", si(value));
            canvas.text(self.place.x - 64, y - 5, &label, TEXT);
        }
        canvas.frame(self.place, TEXT);
        for (channel, colour) in self.channels.iter().zip(TRACES) {
            self.trace(canvas, &columns[*channel], colour);
        }
        self.losses(canvas, recording, from, samples);
        let names = self.channels.iter().zip(TRACES);
        let mut x = self.place.x + 6;
        for (channel, colour) in names {
            let name = printable(&recording.format().channels[*channel].name);
            canvas.text(x, self.place.y + 4, &name, colour);
            x += 6 * i32::try_from(name.len() + 2).unwrap_or(0);
        }
    }

    /// The row of a value.
    #[allow(clippy::cast_possible_truncation)] // within the panel, and saturating
    fn y(&self, value: f64) -> i32 {
        let part = (value - self.low) / (self.high - self.low);
        self.place.bottom() - (part * f64::from(self.place.height)).round() as i32
    }

    fn trace(&self, canvas: &mut Canvas, columns: &[Column], colour: Colour) {
        let mut last: Option<(i32, i32)> = None;
        for column in columns {
            let x = self.place.x + place(column.at, self.place.width);
            if let Some(last) = last {
                canvas.line(last, (x, self.y(column.first)), colour);
            }
            canvas.line((x, self.y(column.low)), (x, self.y(column.high)), colour);
            last = Some((x, self.y(column.last)));
        }
    }

    fn losses(&self, canvas: &mut Canvas, recording: &Recording, from: u64, samples: u64) {
        for gap in recording.gaps() {
            let Lost::Samples(lost) = gap.lost else { continue };
            let Some(at) = gap.at.checked_sub(from).filter(|at| *at <= samples) else { continue };
            let x = self.place.x + place(part(at, samples), self.place.width);
            canvas.line((x, self.place.y), (x, self.place.bottom()), LOSS);
            canvas.text(x + 3, self.place.bottom() - 12, &format!("{lost} lost"), LOSS);
        }
    }

    fn doubts(&self, canvas: &mut Canvas, recording: &Recording, from: u64, samples: u64) {
        let doubts = recording.gaps().iter().filter(|gap| gap.lost == Lost::Unknown);
        for gap in doubts.filter(|gap| gap.at < from + samples && gap.end > from) {
            let x = |at: u64| {
                place(part(at.saturating_sub(from).min(samples), samples), self.place.width)
            };
            let (begin, end) = (x(gap.at), x(gap.end));
            let place = Place { x: self.place.x + begin, width: end - begin, ..self.place };
            canvas.fill(place, DOUBT);
        }
    }
}

/// Labels under the panels: seconds if the rate is known, otherwise samples.
fn axis(canvas: &mut Canvas, recording: &Recording, plot: &Plot, samples: u64) {
    let (width, height) = (plot.width.cast_signed(), plot.height.cast_signed());
    let rate = recording.format().rate;
    #[allow(clippy::cast_precision_loss)] // for a label
    let (first, count) = (plot.from as f64, samples as f64);
    let scale = rate.unwrap_or(1.0);
    let (begin, end) = (first / scale, (first + count) / scale);
    for value in ticks(begin, end, (width / 120).clamp(1, 20)) {
        let x = LEFT + place((value - begin) / (end - begin), width - LEFT - RIGHT);
        canvas.line((x, height - BOTTOM), (x, height - BOTTOM + 4), TEXT);
        let label = si(value);
        let half = 3 * i32::try_from(label.len()).unwrap_or(0);
        canvas.text(x - half, height - BOTTOM + 7, &label, TEXT);
    }
    let unit = if rate.is_some() { "seconds" } else { "samples" };
    canvas.text(width / 2 - 20, height - 16, unit, TEXT);
}

#[allow(clippy::cast_precision_loss)] // only a place on the picture
fn part(at: u64, samples: u64) -> f64 {
    at as f64 / samples as f64
}

#[allow(clippy::cast_possible_truncation)] // a part of the width, and saturating
fn place(part: f64, width: i32) -> i32 {
    (part * f64::from(width - 1)).round() as i32
}

/// About `count` round numbers from `low` to `high`.
fn ticks(low: f64, high: f64, count: i32) -> Vec<f64> {
    let rough = (high - low) / f64::from(count.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|one| one * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power * 10.0);
    let first = (low / step).ceil();
    // Rounding may give a few more than `count`.
    let values = (0..=2 * count.max(1)).map(|index| (first + f64::from(index)) * step);
    values.take_while(|value| *value <= high + step * 1e-9).collect()
}

/// A number with an SI prefix: 1.5M, 20u.
fn si(value: f64) -> String {
    const UNITS: [(f64, &str); 8] = [
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "u"),
        (1e-9, "n"),
        (1e-12, "p"),
    ];
    let found = UNITS.iter().find(|(unit, _)| value.abs() >= *unit * 0.999_999_9);
    let Some((unit, name)) = found else { return "0".into() };
    let digits = format!("{:.4}", value / unit);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{name}")
}

#[cfg(test)]
mod tests;
