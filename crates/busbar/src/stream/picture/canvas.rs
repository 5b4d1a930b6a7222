//! Draws lines and text.

use std::convert::Infallible;

use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_6X10;
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Line, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Baseline, Text};

use crate::{Error, Result};

/// A colour.
pub(super) type Colour = Rgb888;

/// A rectangle of the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) width: i32,
    pub(super) height: i32,
}

impl Place {
    pub(super) fn right(self) -> i32 {
        self.x + self.width - 1
    }

    pub(super) fn bottom(self) -> i32 {
        self.y + self.height - 1
    }

    fn rectangle(self) -> Rectangle {
        let size = Size::new(self.width.max(0).unsigned_abs(), self.height.max(0).unsigned_abs());
        Rectangle::new(Point::new(self.x, self.y), size)
    }
}

/// The pixels of a picture. Drawing outside of it has no effect.
pub(super) struct Canvas {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Canvas {
    pub(super) fn new(width: u32, height: u32, ground: Colour) -> Self {
        let count = width as usize * height as usize;
        let pixels = [ground.r(), ground.g(), ground.b()].repeat(count);
        Self { width, height, pixels }
    }

    pub(super) fn line(&mut self, from: (i32, i32), to: (i32, i32), colour: Colour) {
        let line = Line::new(Point::from(from), Point::from(to));
        let Ok(()) = line.into_styled(PrimitiveStyle::with_stroke(colour, 1)).draw(self);
    }

    pub(super) fn frame(&mut self, place: Place, colour: Colour) {
        let style = PrimitiveStyle::with_stroke(colour, 1);
        let Ok(()) = place.rectangle().into_styled(style).draw(self);
    }

    pub(super) fn fill(&mut self, place: Place, colour: Colour) {
        let Ok(()) = place.rectangle().into_styled(PrimitiveStyle::with_fill(colour)).draw(self);
    }

    /// Draws text; `x`, `y` is its upper left corner.
    pub(super) fn text(&mut self, x: i32, y: i32, text: &str, colour: Colour) {
        let style = MonoTextStyle::new(&FONT_6X10, colour);
        let text = Text::with_baseline(text, Point::new(x, y), style, Baseline::Top);
        let Ok(_) = text.draw(self);
    }

    /// The bytes of a PNG file.
    pub(super) fn png(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&self.pixels))
            .map_err(|why| Error::new("make", "a picture", std::io::Error::other(why)))?;
        Ok(bytes)
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Canvas {
    type Color = Colour;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Colour>>,
    {
        for Pixel(Point { x, y }, colour) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { continue };
            if x < self.width && y < self.height {
                let at = 3 * (y as usize * self.width as usize + x as usize);
                self.pixels[at..at + 3].copy_from_slice(&[colour.r(), colour.g(), colour.b()]);
            }
        }
        Ok(())
    }
}
