//! One picture of a page in the form that the task's suite asks for: the policy decodes the same
//! bytes that are recorded.
//!
//! Chromium always captures its whole viewport; a smaller or padded picture is cut from that here.
//! If Chromium captures a part (`clip`), it resizes the page for a moment, which closes every open
//! native list (measured on Chromium 156, with either clock): the picture would show an outdated
//! page.

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
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Takes a screenshot of the visible part of a page.
pub(super) async fn screenshot(
    tab: &BrowserTab,
    spec: &ObservationSpec,
    viewport: Size,
) -> Result<Screenshot, EnvironmentError> {
    let frame = PictureFrame::new(spec, viewport);
    if frame.is_whole() {
        let bytes = capture_bytes(tab, spec.format).await?;
        return Ok(Screenshot { bytes, format: spec.format, size: viewport });
    }
    RawScreenshot::capture(tab, spec, viewport).await?.finish(Vec::new()).await
}

/// A grey picture in place of one that is withheld.
pub(super) fn grey(spec: &ObservationSpec, viewport: Size) -> Result<Screenshot, EnvironmentError> {
    let PictureFrame { picture: size, .. } = PictureFrame::new(spec, viewport);
    let picture = RgbImage::from_pixel(size.width, size.height, Rgb([128; 3]));
    let bytes = encode(&picture, spec.format);
    let bytes = bytes.map_err(|why| EnvironmentError::Failed(format!("encoding a screenshot: {why}")))?;
    Ok(Screenshot { bytes, format: spec.format, size })
}

/// A complete picture that is still to be cut, drawn on and encoded.
#[derive(Debug)]
pub(super) struct RawScreenshot {
    png: Bytes,
    frame: PictureFrame,
    format: ImageFormat,
}

impl RawScreenshot {
    pub(super) async fn capture(
        tab: &BrowserTab,
        spec: &ObservationSpec,
        viewport: Size,
    ) -> Result<Self, EnvironmentError> {
        let png = capture_bytes(tab, ImageFormat::Png).await?;
        Ok(Self { png, frame: PictureFrame::new(spec, viewport), format: spec.format })
    }

    /// Produces the picture that the suite asks for, with marks drawn into it. A JPEG of 1280x720
    /// takes 6 ms to decode and 15 ms to encode, so that this runs on a blocking thread.
    pub(super) async fn finish(self, marks: Vec<Mark>) -> Result<Screenshot, EnvironmentError> {
        let failed =
            |why: &dyn std::fmt::Display| EnvironmentError::Failed(format!("encoding a screenshot: {why}"));
        let work = move || self.frame.cut(&self.png, self.format, &marks);
        tokio::task::spawn_blocking(work).await.map_err(|why| failed(&why))?.map_err(|why| failed(&why))
    }
}

async fn capture_bytes(tab: &BrowserTab, format: ImageFormat) -> Result<Bytes, EnvironmentError> {
    let answer = tab.call(capture(format), tab.deadlines.screenshot, "screenshot").await?;
    let encoded: &[u8] = answer.data.as_ref();
    let bytes = BASE64_STANDARD.decode(encoded);
    bytes.map(Bytes::from).map_err(|why| EnvironmentError::Failed(format!("screenshot: {why}")))
}

fn capture(format: ImageFormat) -> CaptureScreenshotParams {
    let mut capture =
        CaptureScreenshotParams { from_surface: Some(true), ..CaptureScreenshotParams::default() };
    match format {
        // Half the CPU time of the default compression for 1.1 times the bytes.
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
struct PictureFrame {
    viewport: Size,
    /// The visible part, at the top left.
    shown: Size,
    /// Size of the picture; outside the page it is white. Page and picture have the same origin.
    picture: Size,
}

impl PictureFrame {
    fn new(spec: &ObservationSpec, viewport: Size) -> Self {
        let shown = spec.clip.unwrap_or(viewport);
        let side = shown.width.max(shown.height);
        let picture = if spec.square { Size::new(side, side) } else { shown };
        Self { viewport, shown, picture }
    }

    fn is_whole(&self) -> bool {
        self.shown == self.viewport && self.picture == self.viewport
    }

    /// Takes 1 ms from 500x320 to 210x210.
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
        let bytes = encode(&picture, format)?;
        Ok(Screenshot { bytes, format, size: self.picture })
    }
}

fn encode(picture: &RgbImage, format: ImageFormat) -> Result<Bytes, ImageError> {
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

    /// A page that is dark in the visible part and red elsewhere.
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
            let frame = PictureFrame::new(&ObservationSpec { format, clip, square }, viewport);
            let shown = frame.shown;
            let cut = frame.cut(&page(viewport, shown), format, &[]).unwrap();
            let decoded = image::load_from_memory(&cut.bytes).unwrap().into_rgb8();
            assert_eq!((cut.size, decoded.dimensions()), (want, (want.width, want.height)), "{frame:?}");
            let near = |x, y, want: [u8; 3]| {
                let got: [u8; 3] = decoded.get_pixel(x, y).0;
                assert!(
                    got.iter().zip(want).all(|(got, want)| got.abs_diff(want) < 12),
                    "{got:?} at {x}, {y}"
                );
            };
            let right = shown.width.min(viewport.width);
            let bottom = shown.height.min(viewport.height);
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
        // The picture is white where it exceeds the page.
        check(Size::new(64, 64), Some(Size::new(64, 80)), true, Size::new(80, 80));
    }

    #[test]
    fn the_whole_page_is_taken_as_it_comes() {
        let spec = |clip, square| ObservationSpec { format: ImageFormat::Png, clip, square };
        let side = Size::new(512, 512);
        assert!(PictureFrame::new(&spec(None, true), side).is_whole());
        assert!(PictureFrame::new(&spec(Some(side), false), side).is_whole());
        assert!(!PictureFrame::new(&spec(Some(Size::new(511, 512)), false), side).is_whole());
        assert!(!PictureFrame::new(&spec(None, true), Size::new(512, 511)).is_whole());
        // As large as the viewport, but only a part of it is visible.
        assert!(!PictureFrame::new(&spec(Some(Size::new(160, 512)), true), side).is_whole());
    }

    #[test]
    fn a_picture_larger_than_the_viewport_is_refused() {
        let spec = ObservationSpec { format: ImageFormat::Png, clip: None, square: true };
        let png = page(Size::new(400, 10), Size::new(1, 1));
        assert!(PictureFrame::new(&spec, Size::new(160, 210)).cut(&png, ImageFormat::Png, &[]).is_err());
    }
}
