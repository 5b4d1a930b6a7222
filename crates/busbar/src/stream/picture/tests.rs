use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// A recording of 16-bit pairs, made of what its two files hold.
fn recording(folder: &TempDir, values: &[[i16; 2]], rest: &str) -> Recording {
    let base: PathBuf = folder.path().join("drawn");
    let bytes: Vec<u8> = values.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(base.with_extension("sigmf-data"), bytes).unwrap();
    let meta = format!(
        r#"{{"global": {{"core:datatype": "ci16_le", "core:version": "1.2.6", "core:sample_rate": 1e6}}, {rest}}}"#
    );
    fs::write(base.with_extension("sigmf-meta"), meta).unwrap();
    Recording::open(&base).unwrap()
}

struct Picture {
    width: usize,
    pixels: Vec<u8>,
}

impl Picture {
    fn of(bytes: &[u8]) -> Self {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        Self { width: info.width as usize, pixels }
    }

    fn count(&self, colour: Colour, x: i32) -> usize {
        self.rows(colour, x).len()
    }

    /// In which rows a column has a colour.
    fn rows(&self, colour: Colour, x: i32) -> Vec<usize> {
        use embedded_graphics::prelude::RgbColor;
        let wanted = [colour.r(), colour.g(), colour.b()];
        let rows = self.pixels.chunks_exact(3 * self.width).enumerate();
        let x = 3 * usize::try_from(x).unwrap();
        rows.filter(|(_, row)| row[x..x + 3] == wanted).map(|(y, _)| y).collect()
    }
}

const NOTHING: &str = r#""captures": [], "annotations": []"#;

#[test]
#[allow(clippy::cast_possible_truncation)]
fn a_sine_goes_up_and_down() {
    let folder = TempDir::new().unwrap();
    let sine =
        |index: i32| (10_000.0 * (f64::from(index) / 1000.0 * std::f64::consts::TAU).sin()) as i16;
    let values: Vec<_> = (0..1000).map(|index| [sine(index), 0]).collect();
    let plot = Plot::default();
    let picture = Picture::of(&draw(&recording(&folder, &values, NOTHING), &plot).unwrap());
    assert_eq!((picture.width, picture.pixels.len()), (1200, 1200 * 600 * 3));
    let row = |part: f64| {
        let x = LEFT + place(part, plot.width.cast_signed() - LEFT - RIGHT);
        let rows = picture.rows(TRACES[0], x);
        assert!(!rows.is_empty(), "{part}");
        rows[rows.len() / 2]
    };
    // Q stays where it is, in the middle.
    let x = LEFT + place(0.3, plot.width.cast_signed() - LEFT - RIGHT);
    let middle = picture.rows(TRACES[1], x)[0];
    let (up, down) = (middle - row(0.25), row(0.75) - middle);
    assert!(up.abs_diff(down) < 5 && up > 150, "{up} {down}");
}

#[test]
fn a_spike_among_many_samples_is_seen() {
    let folder = TempDir::new().unwrap();
    let mut values = vec![[0, 0]; 500_000];
    values[250_000] = [30_000, 0];
    let plot = Plot { samples: u64::MAX, ..Plot::default() };
    let picture = Picture::of(&draw(&recording(&folder, &values, NOTHING), &plot).unwrap());
    let x = LEFT + place(0.5, plot.width.cast_signed() - LEFT - RIGHT);
    let highest = (x - 2..=x + 2).map(|x| picture.count(TRACES[0], x)).max().unwrap();
    assert!(highest > 300, "{highest}");
}

#[test]
fn losses_are_lines_and_doubts_are_grey() {
    let folder = TempDir::new().unwrap();
    let rest = r#""captures": [{"core:sample_start": 0}, {"core:sample_start": 500, "core:global_index": 512}],
        "annotations": [{"core:sample_start": 100, "core:sample_count": 200, "busbar:lost": null}]"#;
    let recording = recording(&folder, &[[5, -5]; 1000], rest);
    let plot = Plot::default();
    let picture = Picture::of(&draw(&recording, &plot).unwrap());
    let x = |part: f64| LEFT + place(part, plot.width.cast_signed() - LEFT - RIGHT);
    assert!(picture.count(LOSS, x(0.5)) > 400);
    assert_eq!(picture.count(LOSS, x(0.4)), 0);
    assert!(picture.count(DOUBT, x(0.2)) > 400);
    assert_eq!(picture.count(DOUBT, x(0.7)), 0);
    let later = Plot { from: 600, ..plot };
    let picture = Picture::of(&draw(&recording, &later).unwrap());
    assert!((LEFT..1180).all(|x| picture.count(LOSS, x) == 0));
}

#[test]
fn few_samples_fill_the_width() {
    let folder = TempDir::new().unwrap();
    let recording = recording(&folder, &[[1, 2], [3, 4], [5, 6]], NOTHING);
    let picture = Picture::of(&draw(&recording, &Plot::default()).unwrap());
    for x in [LEFT + 100, LEFT + 600, 1200 - RIGHT - 5] {
        assert!(picture.count(TRACES[0], x) > 0, "{x}");
    }
    draw(&recording, &Plot { samples: 1, from: 2, ..Plot::default() }).unwrap();
}

#[test]
fn parts_and_sizes_that_cannot_be_are_refused() {
    let folder = TempDir::new().unwrap();
    let recording = recording(&folder, &[[1, 2]; 10], NOTHING);
    let good = Plot::default();
    for bad in [
        Plot { from: 10, ..good.clone() },
        Plot { from: u64::MAX, ..good.clone() },
        Plot { samples: 0, ..good.clone() },
        Plot { width: 199, ..good.clone() },
        Plot { height: 10_001, ..good.clone() },
    ] {
        assert_eq!(draw(&recording, &bad).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    draw(&recording, &Plot { width: 200, height: 100, ..good }).unwrap();
}

#[test]
fn numbers_are_written_as_engineers_do() {
    let cases = [
        (0.0, "0"),
        (1.0, "1"),
        (-1500.0, "-1.5k"),
        (2e6, "2M"),
        (0.000_02, "20u"),
        (999.9, "999.9"),
        (0.25, "250m"),
    ];
    for (value, text) in cases {
        assert_eq!(si(value), text);
    }
    assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.600_000_000_000_000_1, 0.8, 1.0]);
    assert!(ticks(-0.5, 0.5, 1).len() <= 3);
}
