//! The pictures of a trajectory as an animated GIF: each step as the policy received it, with the
//! target of its action marked.
//!
//! GIF, because programs of all kinds show it and it needs no video encoder. It has 256 colours a
//! picture. A picture after the first covers only the rectangle that differs from the one before.

use std::io::Write;
use std::ops::Range;

use furrow_dashboard::targets;
use furrow_records::DecodedPicture;
use furrow_rollout::{PagePoint, Screenshot, Size, StepRecord, TrajectoryRecord};

use crate::CommandFailure;

/// Quality of the colours: 1 is the best and slowest of 30. At 10, text of a page is legible.
const SPEED: i32 = 10;
/// The colour of marks in the pages, and a halo that sets it off from any page.
const MARK: [u8; 3] = [0xe4, 0x57, 0x2e];
const HALO: [u8; 3] = [0xff, 0xff, 0xff];
/// Radius of a mark, as a part of the picture's longer side, and half the width of its line.
const RADII: f32 = 45.0;
const LINE: f32 = 1.6;
const HALO_LINE: f32 = 3.6;

/// Red, green and blue of each pixel, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// A trajectory as an animation. Its pictures are decoded while it is written, one after another.
#[derive(Debug)]
pub(crate) struct Animation {
    frames: Vec<Frame>,
    size: (u16, u16),
}

/// A picture as it was recorded, and what its action aims at.
#[derive(Debug)]
struct Frame {
    screenshot: Screenshot,
    aims: Vec<(Option<PagePoint>, PagePoint)>,
}

impl Animation {
    /// The picture of every step with its marks, and the last page.
    pub(crate) fn of(record: &TrajectoryRecord, steps: &[StepRecord]) -> Result<Self, CommandFailure> {
        let of_step = |step: &StepRecord| Frame {
            screenshot: step.observation.screenshot.clone(),
            aims: step.reply.action.as_ref().map(targets).unwrap_or_default(),
        };
        let mut frames: Vec<Frame> = steps.iter().map(of_step).collect();
        let evidence = record.ending.evidence.as_ref();
        if let Some(bytes) = evidence.and_then(|evidence| evidence.screenshot.clone()) {
            // The size in the picture counts; this one is not read.
            let size = Size::new(1, 1);
            let screenshot = Screenshot { bytes, format: record.task.observation.format, size };
            frames.push(Frame { screenshot, aims: Vec::new() });
        }
        if frames.is_empty() {
            let id = &record.ancestry.trajectory_id;
            let text = format!("{id}: has no picture, so there is nothing to show");
            return Err(CommandFailure::Input(vec![text]));
        }
        let mut size = (1, 1);
        for frame in &frames {
            let of = DecodedPicture::size(&frame.screenshot).map_err(anyhow::Error::from)?;
            size = (size.0.max(side(of.width as usize)?), size.1.max(side(of.height as usize)?));
        }
        Ok(Self { frames, size })
    }

    /// Writes the pictures one after another, again and again. The last one stays twice as long.
    pub(crate) fn write(&self, seconds: f64, to: impl Write) -> anyhow::Result<()> {
        write_gif(self.size, self.frames.iter().map(Frame::picture), seconds, to)
    }
}

impl Frame {
    fn picture(&self) -> anyhow::Result<Picture> {
        let mut picture = Picture::of(&self.screenshot)?;
        for (from, to) in &self.aims {
            picture.mark(*from, *to);
        }
        Ok(picture)
    }
}

/// Holds one picture and the one before it: a long trajectory takes no more memory than a short
/// one.
fn write_gif(
    (width, height): (u16, u16),
    pictures: impl ExactSizeIterator<Item = anyhow::Result<Picture>>,
    seconds: f64,
    to: impl Write,
) -> anyhow::Result<()> {
    let mut encoder = gif::Encoder::new(to, width, height, &[])?;
    encoder.set_repeat(gif::Repeat::Infinite)?;
    let hundredths = (seconds * 100.0).round() as u16;
    let last = pictures.len().saturating_sub(1);
    let mut before: Option<Picture> = None;
    for (at, picture) in pictures.enumerate() {
        let picture = picture?.on_canvas(width.into(), height.into());
        let (columns, rows) = match &before {
            Some(before) => picture.differing(before),
            None => (0..picture.width, 0..picture.height),
        };
        let part = picture.part(&columns, &rows);
        let mut frame = gif::Frame::from_rgb_speed(side(part.width)?, side(part.height)?, &part.rgb, SPEED);
        (frame.left, frame.top) = (side(columns.start)?, side(rows.start)?);
        frame.delay = if at == last { hundredths.saturating_mul(2) } else { hundredths };
        encoder.write_frame(&frame)?;
        before = Some(picture);
    }
    Ok(())
}

fn side(side: usize) -> anyhow::Result<u16> {
    u16::try_from(side).map_err(|_| anyhow::anyhow!("a GIF has at most 65535 pixels a side, not {side}"))
}

impl Picture {
    fn of(screenshot: &Screenshot) -> anyhow::Result<Self> {
        let decoded = DecodedPicture::decode(screenshot)?;
        let width = decoded.width as usize;
        let height = decoded.height as usize;
        Ok(Self { width, height, rgb: decoded.into_rgb() })
    }

    /// A ring with a dot at the target; for a drag, a line that leads there.
    fn mark(&mut self, from: Option<PagePoint>, to: PagePoint) {
        let radius = self.width.max(self.height) as f32 / RADII;
        for (colour, line) in [(HALO, HALO_LINE), (MARK, LINE)] {
            let is_on = |x: f32, y: f32| {
                let away = (x - to.x).hypot(y - to.y);
                (away - radius).abs() <= line
                    || away <= radius / 6.0 + line - LINE
                    || from.is_some_and(|from| distance_to_line(x, y, from, to) <= line)
            };
            let reach = radius + HALO_LINE + 1.0;
            let ends = [Some(to), from];
            let ends = ends.iter().flatten();
            let columns = span(ends.clone().map(|end| end.x), reach, self.width);
            let rows = span(ends.map(|end| end.y), reach, self.height);
            for y in rows {
                for x in columns.clone() {
                    if is_on(x as f32 + 0.5, y as f32 + 0.5) {
                        self.set(x, y, colour);
                    }
                }
            }
        }
    }

    fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        let at = 3 * (y * self.width + x);
        self.rgb[at..at + 3].copy_from_slice(&colour);
    }

    /// The picture at the top left of a white one.
    fn on_canvas(self, width: usize, height: usize) -> Self {
        if (self.width, self.height) == (width, height) {
            return self;
        }
        let mut rgb = vec![0xff; 3 * width * height];
        for (row, to) in self.rgb.chunks_exact(3 * self.width).zip(rgb.chunks_exact_mut(3 * width)) {
            to[..row.len()].copy_from_slice(row);
        }
        Self { width, height, rgb }
    }

    /// The smallest rectangle that holds every pixel that differs; one pixel where none does, since
    /// a frame cannot be empty.
    fn differing(&self, before: &Self) -> (Range<usize>, Range<usize>) {
        let mut columns = self.width..0;
        let mut rows = self.height..0;
        let pixels = self.rgb.chunks_exact(3).zip(before.rgb.chunks_exact(3));
        for (at, _) in pixels.enumerate().filter(|(_, (now, then))| now != then) {
            let x = at % self.width;
            let y = at / self.width;
            columns = columns.start.min(x)..columns.end.max(x + 1);
            rows = rows.start.min(y)..rows.end.max(y + 1);
        }
        if columns.is_empty() { (0..1, 0..1) } else { (columns, rows) }
    }

    fn part(&self, columns: &Range<usize>, rows: &Range<usize>) -> Self {
        let row =
            |y: usize| &self.rgb[3 * (y * self.width + columns.start)..3 * (y * self.width + columns.end)];
        let rgb = rows.clone().flat_map(|y| row(y).iter().copied()).collect();
        Self { width: columns.len(), height: rows.len(), rgb }
    }
}

/// Pixels within reach of these coordinates and inside the picture.
fn span(ends: impl Iterator<Item = f32>, reach: f32, side: usize) -> Range<usize> {
    let (least, most) = ends.fold((f32::MAX, f32::MIN), |(least, most), end| (least.min(end), most.max(end)));
    // A cast of what lies outside, or of no number, saturates.
    let first = ((least - reach).max(0.0) as usize).min(side);
    let last = ((most + reach).max(0.0).ceil() as usize).min(side);
    first..last.max(first)
}

fn distance_to_line(x: f32, y: f32, from: PagePoint, to: PagePoint) -> f32 {
    let along_x = to.x - from.x;
    let along_y = to.y - from.y;
    let length = along_x * along_x + along_y * along_y;
    let share = if length > 0.0 { ((x - from.x) * along_x + (y - from.y) * along_y) / length } else { 0.0 };
    let share = share.clamp(0.0, 1.0);
    (x - from.x - share * along_x).hypot(y - from.y - share * along_y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(width: usize, height: usize, colour: u8) -> Picture {
        Picture { width, height, rgb: vec![colour; 3 * width * height] }
    }

    fn pixel(picture: &Picture, x: usize, y: usize) -> &[u8] {
        &picture.rgb[3 * (y * picture.width + x)..][..3]
    }

    #[test]
    fn a_mark_is_where_the_action_aims_and_never_outside_the_picture() {
        let mut picture = plain(90, 45, 9);
        picture.mark(None, PagePoint { x: 40.5, y: 20.5 });
        assert_eq!(pixel(&picture, 40, 20), MARK);
        assert_eq!(pixel(&picture, 42, 20), MARK, "the ring has a radius of two pixels here");
        assert_eq!(pixel(&picture, 60, 20), [9; 3]);
        for aim in [(0.0, 0.0), (-50.0, 900.0), (1e30, -1e30), (f32::NAN, f32::INFINITY)] {
            picture.mark(Some(PagePoint { x: 3.0, y: 3.0 }), PagePoint { x: aim.0, y: aim.1 });
        }
    }

    #[test]
    fn a_drag_has_a_line() {
        let mut picture = plain(90, 45, 9);
        picture.mark(Some(PagePoint { x: 10.5, y: 10.5 }), PagePoint { x: 80.5, y: 10.5 });
        assert_eq!(pixel(&picture, 40, 10), MARK);
        assert_eq!(pixel(&picture, 40, 30), [9; 3]);
    }

    #[test]
    fn a_picture_is_encoded_where_it_differs_and_read_back_as_it_was() {
        let first = plain(40, 30, 200);
        let mut second = first.clone();
        second.set(7, 5, [0, 0, 0]);
        second.set(9, 20, [0, 0, 0]);
        assert_eq!(second.differing(&first), (7..10, 5..21));
        assert_eq!(first.differing(&first), (0..1, 0..1));
        let small = plain(20, 10, 200);
        let mut bytes = Vec::new();
        let pictures = [first, second.clone(), second, small].map(Ok);
        write_gif((40, 30), pictures.into_iter(), 0.5, &mut bytes).unwrap();
        let mut options = gif::DecodeOptions::new();
        options.set_color_output(gif::ColorOutput::RGBA);
        let mut decoder = options.read_info(&bytes[..]).unwrap();
        assert_eq!((decoder.width(), decoder.height()), (40, 30));
        let mut frames = Vec::new();
        while let Some(frame) = decoder.read_next_frame().unwrap() {
            frames.push((
                frame.left,
                frame.top,
                frame.width,
                frame.height,
                frame.delay,
                frame.buffer.to_vec(),
            ));
        }
        let shapes: Vec<_> =
            frames.iter().map(|frame| (frame.0, frame.1, frame.2, frame.3, frame.4)).collect();
        assert_eq!(
            shapes,
            [(0, 0, 40, 30, 50), (7, 5, 3, 16, 50), (0, 0, 1, 1, 50), (0, 0, 40, 30, 100)],
            "a smaller picture is on white, which differs to the right and below"
        );
        assert_eq!(frames[1].5[..4], [0, 0, 0, 255]);
        assert!(frames[0].5.chunks(4).all(|pixel| pixel[0].abs_diff(200) < 3 && pixel[3] == 255));
    }

    /// Counts what it was given.
    #[derive(Clone, Default)]
    struct Sink(std::rc::Rc<std::cell::Cell<usize>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.set(self.0.get() + bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_picture_is_written_before_the_next_one_is_decoded() {
        let sink = Sink::default();
        let written = sink.0.clone();
        let mut before = 0;
        let pictures = (0..8).map(|at| {
            assert!(at == 0 || written.get() > before, "picture {at} is asked for too early");
            before = written.get();
            Ok(plain(40, 30, at * 30))
        });
        write_gif((40, 30), pictures, 1.0, sink).unwrap();
        let broken = [Ok(plain(4, 3, 0)), Err(anyhow::anyhow!("no picture"))];
        let error = write_gif((4, 3), broken.into_iter(), 1.0, Sink::default()).unwrap_err();
        assert_eq!(error.to_string(), "no picture");
    }
}
