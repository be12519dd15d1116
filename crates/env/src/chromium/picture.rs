//! One picture of a page, as the task's suite wants it: the bytes that the policy decodes are the bytes that are recorded.
//!
//! Chromium always shows its whole viewport; a smaller or padded picture is cut from that here. Asking Chromium for the part (`clip`)
//! resizes the page behind its back for a moment, which closes every native list that is open in it (measured on Chromium 156, on either
//! clock): the picture would show a page as it no longer is.

use std::io::Cursor;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use chromiumoxide::cdp::browser_protocol::page::{CaptureScreenshotFormat, CaptureScreenshotParams};
use furrow_rollout::{ImageFormat, Mark, ObservationSpec, Screenshot, Size};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ImageError, ImageReader, Limits, Rgb, RgbImage, imageops};

use super::paint::paint;
use super::tab::Tab;
use crate::stage::StageError;

/// What is shown of a page now.
pub(super) async fn screenshot(
    tab: &Tab,
    spec: &ObservationSpec,
    viewport: Size,
) -> Result<Screenshot, StageError> {
    let frame = Frame::new(spec, viewport);
    if frame.is_whole() {
        let bytes = taken(tab, spec.format).await?;
        return Ok(Screenshot { bytes, format: spec.format, size: viewport });
    }
    Plain::take(tab, spec, viewport).await?.finished(Vec::new()).await
}

/// A picture that is still to be cut, drawn on and encoded; nothing of it is lost yet.
#[derive(Debug)]
pub(super) struct Plain {
    png: Bytes,
    frame: Frame,
    format: ImageFormat,
}

impl Plain {
    /// Takes it.
    pub async fn take(tab: &Tab, spec: &ObservationSpec, viewport: Size) -> Result<Self, StageError> {
        let png = taken(tab, ImageFormat::Png).await?;
        Ok(Self { png, frame: Frame::new(spec, viewport), format: spec.format })
    }

    /// The picture as the suite wants it, with marks drawn into it. For a JPEG of 1280x720 that is 6 ms to decode and 15 ms to encode, so
    /// it has a thread of its own.
    pub async fn finished(self, marks: Vec<Mark>) -> Result<Screenshot, StageError> {
        let failed =
            |why: &dyn std::fmt::Display| StageError::Failed(format!("encoding a screenshot: {why}"));
        let work = move || self.frame.cut(&self.png, self.format, &marks);
        tokio::task::spawn_blocking(work).await.map_err(|why| failed(&why))?.map_err(|why| failed(&why))
    }
}

async fn taken(tab: &Tab, format: ImageFormat) -> Result<Bytes, StageError> {
    let answer = tab.call(capture(format), tab.deadlines.screenshot, "screenshot").await?;
    let encoded: &[u8] = answer.data.as_ref();
    let bytes = BASE64_STANDARD.decode(encoded);
    bytes.map(Bytes::from).map_err(|why| StageError::Failed(format!("screenshot: {why}")))
}

fn capture(format: ImageFormat) -> CaptureScreenshotParams {
    let mut capture =
        CaptureScreenshotParams { from_surface: Some(true), ..CaptureScreenshotParams::default() };
    match format {
        // Half the CPU of the default compression for 1.1 times the bytes.
        ImageFormat::Png => {
            (capture.format, capture.optimize_for_speed) = (Some(CaptureScreenshotFormat::Png), Some(true));
        }
        ImageFormat::Jpeg { quality } => {
            (capture.format, capture.quality) =
                (Some(CaptureScreenshotFormat::Jpeg), Some(i64::from(quality)));
        }
    }
    capture
}

/// How a picture is cut from the viewport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    viewport: Size,
    /// Top left part that is shown.
    shown: Size,
    /// Size of the picture; beyond the page it is white. Page and picture keep one origin.
    picture: Size,
}

impl Frame {
    fn new(spec: &ObservationSpec, viewport: Size) -> Self {
        let shown = spec.clip.unwrap_or(viewport);
        let side = shown.width.max(shown.height);
        let picture = if spec.square { Size::new(side, side) } else { shown };
        Self { viewport, shown, picture }
    }

    fn is_whole(&self) -> bool {
        self.shown == self.viewport && self.picture == self.viewport
    }

    /// 1 ms from 500x320 to 210x210.
    fn cut(&self, bytes: &[u8], format: ImageFormat, marks: &[Mark]) -> Result<Screenshot, ImageError> {
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
        let mut limits = Limits::default();
        (limits.max_image_width, limits.max_image_height) =
            (Some(self.viewport.width), Some(self.viewport.height));
        reader.limits(limits);
        let page = reader.decode()?.into_rgb8();
        let shown = imageops::crop_imm(&page, 0, 0, self.shown.width, self.shown.height).to_image();
        let mut picture = RgbImage::from_pixel(self.picture.width, self.picture.height, Rgb([255; 3]));
        imageops::replace(&mut picture, &shown, 0, 0);
        paint(&mut picture, marks);
        let bytes = encoded(&picture, format)?;
        Ok(Screenshot { bytes, format, size: self.picture })
    }
}

fn encoded(picture: &RgbImage, format: ImageFormat) -> Result<Bytes, ImageError> {
    let mut bytes = Vec::new();
    match format {
        ImageFormat::Png => picture.write_with_encoder(PngEncoder::new_with_quality(
            &mut bytes,
            CompressionType::Fast,
            FilterType::Adaptive,
        ))?,
        ImageFormat::Jpeg { quality } => {
            picture.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, quality))?;
        }
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that is dark where it is shown and red elsewhere.
    fn page(viewport: Size, shown: Size) -> Vec<u8> {
        let colour =
            |x, y| if x < shown.width && y < shown.height { Rgb([9, 8, 7]) } else { Rgb([255, 0, 0]) };
        let mut png = Vec::new();
        let page = RgbImage::from_fn(viewport.width, viewport.height, colour);
        page.write_with_encoder(PngEncoder::new(&mut png)).unwrap();
        png
    }

    #[track_caller]
    fn check(viewport: Size, clip: Option<Size>, square: bool, want: Size) {
        for format in [ImageFormat::Png, ImageFormat::Jpeg { quality: 95 }] {
            let frame = Frame::new(&ObservationSpec { format, clip, square }, viewport);
            let shown = frame.shown;
            let cut = frame.cut(&page(viewport, shown), format, &[]).unwrap();
            let seen = image::load_from_memory(&cut.bytes).unwrap().into_rgb8();
            assert_eq!((cut.size, seen.dimensions()), (want, (want.width, want.height)), "{frame:?}");
            let near = |x, y, want: [u8; 3]| {
                let got: [u8; 3] = seen.get_pixel(x, y).0;
                assert!(
                    got.iter().zip(want).all(|(got, want)| got.abs_diff(want) < 12),
                    "{got:?} at {x}, {y}"
                );
            };
            let (right, bottom) = (shown.width.min(viewport.width), shown.height.min(viewport.height));
            near(right - 1, bottom - 1, [9, 8, 7]);
            // A JPEG's blocks of 8 pixels blur the edge.
            if want.width > right + 8 {
                near(right + 8, 0, [255; 3]);
            }
            if want.height > bottom + 8 {
                near(0, bottom + 8, [255; 3]);
            }
        }
    }

    #[test]
    fn a_part_of_the_page_is_cut_out_and_padded_with_white() {
        let window = Size::new(500, 320);
        check(window, Some(Size::new(160, 210)), true, Size::new(210, 210));
        check(window, Some(Size::new(160, 210)), false, Size::new(160, 210));
        check(window, None, true, Size::new(500, 500));
        check(Size::new(160, 210), None, true, Size::new(210, 210));
        // More than there is of the page is white.
        check(Size::new(64, 64), Some(Size::new(64, 80)), true, Size::new(80, 80));
    }

    #[test]
    fn the_whole_page_is_taken_as_it_comes() {
        let spec = |clip, square| ObservationSpec { format: ImageFormat::Png, clip, square };
        let side = Size::new(512, 512);
        assert!(Frame::new(&spec(None, true), side).is_whole());
        assert!(Frame::new(&spec(Some(side), false), side).is_whole());
        assert!(!Frame::new(&spec(Some(Size::new(511, 512)), false), side).is_whole());
        assert!(!Frame::new(&spec(None, true), Size::new(512, 511)).is_whole());
        // As large as the viewport, but only part of it.
        assert!(!Frame::new(&spec(Some(Size::new(160, 512)), true), side).is_whole());
    }

    #[test]
    fn a_picture_larger_than_the_viewport_is_refused() {
        let spec = ObservationSpec { format: ImageFormat::Png, clip: None, square: true };
        let png = page(Size::new(400, 10), Size::new(1, 1));
        assert!(Frame::new(&spec, Size::new(160, 210)).cut(&png, ImageFormat::Png, &[]).is_err());
    }
}
