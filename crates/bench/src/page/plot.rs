//! Plots as SVG, as wide as a phone's screen: on a wider one, several are side by side.
//!
//! The colours are those of a light page; the style sheet replaces them for a dark one.

use std::cmp::Ordering;
use std::error::Error as StdError;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, EmptyElement, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, IntoFont, RGBColor, TextStyle};

use super::mark::{Mark, Whose};
use crate::{Spread, words};

/// Text and whiskers.
pub(super) const INK: RGBColor = RGBColor(0x22, 0x1f, 0x1c);
/// Axes and their labels.
pub(super) const DIM: RGBColor = RGBColor(0x6b, 0x64, 0x5c);
/// Lines of a grid.
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xd8, 0xd0);
/// Bars of ratios above 1, and below.
pub(super) const AHEAD: RGBColor = RGBColor(0xc4, 0x6d, 0x32);
pub(super) const BEHIND: RGBColor = RGBColor(0x8a, 0x94, 0xa3);
/// The published figure, and a target.
pub(super) const SEED: RGBColor = RGBColor(0x00, 0x7a, 0x73);
pub(super) const TARGET: RGBColor = RGBColor(0x7a, 0x3e, 0xb1);
/// Lines, one after another.
pub(super) const LINES: [RGBColor; 6] = [
    RGBColor(0x6e, 0x78, 0x87),
    RGBColor(0xc4, 0x6d, 0x33),
    RGBColor(0x2f, 0x6f, 0xb7),
    RGBColor(0x9a, 0x7b, 0x06),
    RGBColor(0x8e, 0x44, 0x9c),
    RGBColor(0x1d, 0x83, 0x48),
];

const WIDTH: u32 = 352;
/// Height of text, in pixels.
const SIZE: i32 = 12;
/// Height of a row of bars, and of its parts.
const ROW: u32 = 36;
const LABEL: f64 = 0.30;
const BAR: (f64, f64) = (0.52, 0.82);
/// Room for the labels of an axis.
const AXIS: u32 = 20;
/// Characters that fit above a bar.
const LETTERS: usize = 52;

pub(super) type Failure = Box<dyn StdError>;
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The content of an image, between `<svg>` and `</svg>`.
pub(super) struct Plot {
    pub size: (u32, u32),
    pub inner: String,
    /// A description of the image.
    pub says: String,
}

impl Plot {
    pub(super) fn draw(
        size: (u32, u32),
        says: String,
        draw: impl FnOnce(&Area<'_>) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            draw(&area)?;
            area.present()?;
        }
        let inner = svg.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</svg>"));
        let inner = inner.ok_or("no image was made")?.0.to_owned();
        Ok(Self { size, inner, says })
    }
}

/// A bar from 1 to the median, a whisker from lowest to highest.
pub(super) struct Bar {
    pub label: String,
    pub ratio: Spread,
    pub mark: Option<Mark>,
}

impl Bar {
    fn says(&self) -> String {
        let Spread { min, median, max } = self.ratio;
        let [min, median, max] = [min, median, max].map(words::number);
        let mark = self.mark.map_or(String::new(), |mark| {
            format!(", {} {}", mark.of.name(), words::number(mark.value))
        });
        format!("{}: {median}, {min} to {max}{mark}", self.label)
    }
}

/// Ratios.
pub(super) fn bars(bars: &[Bar]) -> Result<Plot, Failure> {
    let rows = f64::from(u32::try_from(bars.len())?);
    let height = u32::try_from(bars.len())? * ROW + AXIS;
    let says = bars.iter().map(Bar::says).collect::<Vec<_>>().join("; ");
    let marks = bars.iter().filter_map(|bar| bar.mark).map(|mark| mark.value);
    let ratios = bars.iter().flat_map(|bar| [bar.ratio.min, bar.ratio.max]);
    let scale = Scale::of(ratios.chain(marks).chain([0.8, 1.25]), WIDTH);
    Plot::draw((WIDTH, height), says, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_bottom(AXIS)
            .build_cartesian_2d((scale.low..scale.high).log_scale(), rows..0.0)?;
        let line = |x: f64, color: RGBColor| PathElement::new([(x, 0.0), (x, rows)], color);
        let ticks = scale.ticks(46, 16);
        chart.draw_series(ticks.iter().map(|&x| line(x, GRID)).chain([line(1.0, DIM)]))?;
        let ticks = ticks.iter().map(|&x| {
            EmptyElement::at((x, rows))
                + Text::new(tick(x), (0, 4), text(DIM, HPos::Center, VPos::Top))
        });
        chart.draw_series(ticks)?;
        for (row, bar) in (0..).map(f64::from).zip(bars) {
            draw_bar(&mut chart, row, bar, &scale)?;
        }
        Ok(())
    })
}

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>;

fn draw_bar(
    chart: &mut Chart<'_, '_, RangedCoordf64>,
    row: f64,
    bar: &Bar,
    scale: &Scale,
) -> Result<(), Failure> {
    let Spread { min, median, max } = bar.ratio;
    let (top, bottom) = (row + BAR.0, row + BAR.1);
    let middle = f64::midpoint(top, bottom);
    let figure =
        format!("{} ({} – {})", words::number(median), words::number(min), words::number(max));
    let label = shorten(&bar.label, LETTERS.saturating_sub(figure.chars().count()).max(8));
    let at = row + LABEL;
    chart.draw_series([
        Text::new(label, (scale.low, at), text(INK, HPos::Left, VPos::Center)),
        Text::new(figure, (scale.high, at), text(INK, HPos::Right, VPos::Center)),
    ])?;
    let color = if median < 1.0 { BEHIND } else { AHEAD };
    let [from, median, to] = [min, median, max].map(|ratio| scale.clamp(ratio));
    chart.draw_series([Rectangle::new([(1.0, top), (median, bottom)], color.filled())])?;
    let end = |x: f64| PathElement::new([(x, top + 0.05), (x, bottom - 0.05)], INK);
    let whisker = PathElement::new([(from, middle), (to, middle)], INK);
    chart.draw_series([whisker, end(from), end(to)])?;
    if let Some(mark) = bar.mark {
        let x = scale.clamp(mark.value);
        let line = [(x, row + BAR.0 - 0.08), (x, row + BAR.1 + 0.08)];
        chart.draw_series([PathElement::new(line, color_of(mark.of).stroke_width(3))])?;
    }
    Ok(())
}

/// The cost of one way, by a parameter.
pub(super) struct Line {
    pub label: String,
    pub ours: bool,
    pub points: Vec<(f64, Spread)>,
}

impl Line {
    fn says(&self, key: &str) -> String {
        let points: Vec<_> = self
            .points
            .iter()
            .map(|(x, y)| format!("{} at {}", words::number(y.median), words::value(key, *x)))
            .collect();
        format!("{}: {}", self.label, points.join(", "))
    }
}

/// Costs in `unit`, by the parameter `key`; both axes are logarithmic.
pub(super) fn lines(lines: &[Line], key: &str, unit: &str) -> Result<Plot, Failure> {
    const SIZE: (u32, u32) = (WIDTH, 250);
    /// Margins: left for labels, right for half of a label below, and above.
    const AROUND: (u32, u32, u32) = (58, 18, 20);
    let across = WIDTH - AROUND.0 - AROUND.1;
    let down = SIZE.1 - AROUND.2 - 2 * AXIS;
    let points = || lines.iter().flat_map(|line| &line.points);
    let xs = Scale::of(points().map(|(x, _)| *x), across);
    let ys = Scale::of(points().flat_map(|(_, y)| [y.min, y.max]), down);
    let says = lines.iter().map(|line| line.says(key)).collect::<Vec<_>>().join("; ");
    Plot::draw(SIZE, format!("{unit} by {key}: {says}"), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_left(AROUND.0)
            .margin_right(AROUND.1)
            .margin_top(AROUND.2)
            .margin_bottom(2 * AXIS)
            .build_cartesian_2d((xs.low..xs.high).log_scale(), (ys.low..ys.high).log_scale())?;
        let grid = ys.ticks(24, 8);
        let across = |y: f64| PathElement::new([(xs.low, y), (xs.high, y)], GRID);
        chart.draw_series(grid.iter().map(|&y| across(y)))?;
        let ends = text(DIM, HPos::Right, VPos::Center);
        chart.draw_series(
            grid.iter().map(|&y| {
                EmptyElement::at((xs.low, y)) + Text::new(tick(y), (-5, 0), ends.clone())
            }),
        )?;
        let below = text(DIM, HPos::Center, VPos::Top);
        let at = xs.choose(ends_first(points().map(|(x, _)| *x)), 46, 0);
        chart.draw_series(at.iter().map(|&x| {
            EmptyElement::at((x, ys.low)) + Text::new(words::value(key, x), (0, 5), below.clone())
        }))?;
        let (ours, usual): (Vec<_>, Vec<_>) =
            lines.iter().zip(LINES.iter().cycle()).partition(|(line, _)| line.ours);
        for (line, color) in usual.into_iter().chain(ours) {
            draw_line(&mut chart, line, *color, &ys)?;
        }
        let (width, height) = (i32::try_from(SIZE.0)?, i32::try_from(SIZE.1)?);
        area.draw_text(unit, &text(DIM, HPos::Left, VPos::Top), (0, 2))?;
        area.draw_text(key, &text(DIM, HPos::Right, VPos::Bottom), (width, height - 2))?;
        Ok(())
    })
}

fn draw_line(
    chart: &mut Chart<'_, '_, LogCoord<f64>>,
    line: &Line,
    color: RGBColor,
    ys: &Scale,
) -> Result<(), Failure> {
    let at = |(x, y): &(f64, Spread)| (*x, ys.clamp(y.median));
    chart.draw_series([PathElement::new(
        line.points.iter().map(at).collect::<Vec<_>>(),
        color.stroke_width(2),
    )])?;
    let whisker = |(x, y): &(f64, Spread)| {
        PathElement::new([(*x, ys.clamp(y.min)), (*x, ys.clamp(y.max))], color)
    };
    chart.draw_series(line.points.iter().map(whisker))?;
    if line.ours {
        chart.draw_series(
            line.points.iter().map(|point| Circle::new(at(point), 4, color.filled())),
        )?;
    } else {
        chart.draw_series(line.points.iter().map(|point| {
            EmptyElement::at(at(point)) + Rectangle::new([(-3, -3), (4, 4)], color.filled())
        }))?;
    }
    Ok(())
}

/// A logarithmic axis that has room for all values.
struct Scale {
    low: f64,
    high: f64,
    pixels: u32,
}

impl Scale {
    /// Values that have no logarithm are left out.
    fn of(values: impl Iterator<Item = f64>, pixels: u32) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        // With one value, or none, the range is empty.
        let (low, high) = match low.total_cmp(&high) {
            Ordering::Less => (low, high),
            Ordering::Equal => (low / 2.0, high * 2.0),
            Ordering::Greater => (1.0, 10.0),
        };
        let room = (high / low).powf(0.04).min(1e3);
        Self { low: (low / room).max(f64::MIN_POSITIVE), high: (high * room).min(f64::MAX), pixels }
    }

    fn clamp(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
    }

    fn pixel(&self, value: f64) -> f64 {
        (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()) * f64::from(self.pixels)
    }

    /// Those of `values` that are `apart` pixels from all earlier ones, and `edge` from both ends.
    fn choose(&self, values: impl IntoIterator<Item = f64>, apart: u32, edge: u32) -> Vec<f64> {
        let inside = f64::from(edge)..=f64::from(self.pixels.saturating_sub(edge));
        let mut chosen = Vec::<f64>::new();
        for value in values.into_iter().filter(|value| inside.contains(&self.pixel(*value))) {
            let far =
                |other: &f64| (self.pixel(*other) - self.pixel(value)).abs() >= f64::from(apart);
            if chosen.iter().all(far) {
                chosen.push(value);
            }
        }
        chosen
    }

    /// Round numbers, the roundest first.
    fn ticks(&self, apart: u32, edge: u32) -> Vec<f64> {
        const ROUND: [&[f64]; 5] = [
            &[1.0],
            &[2.0, 5.0],
            &[3.0, 1.5, 4.0, 7.0],
            &[1.2, 1.7, 2.5, 6.0, 8.0, 9.0],
            &[1.1, 1.3, 1.4, 1.6, 1.8, 1.9],
        ];
        let of = |digits: &'static [f64]| {
            let power = |power| digits.iter().map(move |digit| digit * 10_f64.powi(power));
            (-308..=308).flat_map(power)
        };
        self.choose([1.0].into_iter().chain(ROUND.into_iter().flat_map(of)), apart, edge)
    }
}

/// Each value once; the lowest and the highest are always included.
fn ends_first(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let highest = values.pop();
    let at = values.len().min(1);
    values.splice(at..at, highest);
    values
}

/// A round number.
fn tick(value: f64) -> String {
    match value {
        1e6.. | ..1e-3 => format!("{value:.0e}"),
        99.5.. => words::number(value),
        // Without trailing zeros.
        _ => format!("{}", (value * 1e4).round() / 1e4),
    }
}

fn color_of(whose: Whose) -> RGBColor {
    match whose {
        Whose::Seed => SEED,
        Whose::Target => TARGET,
    }
}

fn text(color: RGBColor, across: HPos, down: VPos) -> TextStyle<'static> {
    sized(color, across, down, SIZE)
}

/// Text of this height.
pub(super) fn sized(color: RGBColor, across: HPos, down: VPos, size: i32) -> TextStyle<'static> {
    // The backend reduces the size by this factor.
    let font = (FontFamily::SansSerif, f64::from(size) * 1.24).into_font();
    TextStyle { font, color: color.to_backend_color(), pos: Pos::new(across, down) }
}

fn shorten(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.into();
    }
    text.chars().take(letters - 1).chain(['…']).collect()
}
