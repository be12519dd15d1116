//! Draws marks into a picture: a frame around each box and its number beside it, with built-in
//! digits, so that every machine draws the same pixels.

use furrow_rollout::Mark;
use image::{Rgb, RgbImage};

/// Consecutive numbers have different colours. White digits are readable on each (contrast at least
/// 4.5).
const COLOURS: [Rgb<u8>; 8] = [
    Rgb([200, 30, 30]),
    Rgb([20, 90, 180]),
    Rgb([20, 115, 40]),
    Rgb([125, 50, 160]),
    Rgb([165, 80, 0]),
    Rgb([0, 105, 115]),
    Rgb([190, 20, 115]),
    Rgb([85, 70, 60]),
];

/// Smaller differences are gradients, shadows and the noise of a JPEG.
const INK_DIFFERENCE: u8 = 40;

const INK: Rgb<u8> = Rgb([255; 3]);

/// Five columns and seven rows per digit; the highest of five bits is the left column.
const DIGITS: [[u8; 7]; 10] = [
    [0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110],
    [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110],
    [0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111],
    [0b01110, 0b10001, 0b00001, 0b00110, 0b00001, 0b10001, 0b01110],
    [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
    [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
    [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000],
    [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110],
    [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
];

const DIGIT_WIDTH: i32 = 5;
const DIGIT_HEIGHT: i32 = 7;

/// If the shorter side is at least this long, everything is drawn twice as large: a model sees a
/// large picture scaled down.
const LARGE_SIDE: u32 = 400;

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PixelArea {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

/// Draws the marks: at 1280x720, on a busy machine, 0.3 ms for 50 of them and 70 ms for 1,000, most
/// of it to position the numbers.
pub(super) fn paint(picture: &mut RgbImage, marks: &[Mark]) {
    let scale = if picture.width().min(picture.height()) >= LARGE_SIDE { 2 } else { 1 };
    let boxes: Vec<PixelArea> = marks.iter().map(PixelArea::of).collect();
    let labels = label_areas(picture, marks, &boxes, scale);
    for (mark, area) in marks.iter().zip(&boxes) {
        frame(picture, *area, scale, colour(mark));
    }
    // Numbers are drawn last: a frame drawn over a number would change it.
    for (mark, label) in marks.iter().zip(labels) {
        fill(picture, label, colour(mark));
        write(picture, label, scale, mark.mark);
    }
}

fn colour(mark: &Mark) -> Rgb<u8> {
    COLOURS[mark.mark as usize % COLOURS.len()]
}

/// The position of each number: at its box, where it covers the least of the page.
fn label_areas(picture: &RgbImage, marks: &[Mark], boxes: &[PixelArea], scale: i32) -> Vec<PixelArea> {
    let whole = PixelArea { left: 0, top: 0, right: picture.width() as i32, bottom: picture.height() as i32 };
    let mut labels: Vec<PixelArea> = Vec::with_capacity(marks.len());
    for (mark, own) in marks.iter().zip(boxes) {
        let (width, height) = label_size(mark.mark, scale);
        let candidates = own.label_candidates(width, height);
        let cost = |label: &PixelArea| {
            // Two overlapping numbers are unreadable; covering another mark's box is better than
            // covering the page's text.
            let numbers: i32 = labels.iter().map(|other| label.overlap(*other)).sum();
            let others = boxes.iter().filter(|area| *area != own || own.is_small_for(*label));
            8 * numbers
                + others.map(|area| label.overlap(*area)).sum::<i32>()
                + 4 * ink_pixels(picture, *label)
        };
        let inside = candidates.into_iter().filter(|label| label.is_within(whole));
        labels.push(inside.min_by_key(cost).unwrap_or_else(|| candidates[0].moved_inside(whole)));
    }
    labels
}

/// Pixels of an area that differ from its corner: text, lines and pictures do, an empty background
/// does not.
fn ink_pixels(picture: &RgbImage, area: PixelArea) -> i32 {
    let Rgb(background) = *picture.get_pixel(area.left as u32, area.top as u32);
    let stands_out = |x: i32, y: i32| {
        let Rgb(pixel) = picture.get_pixel(x as u32, y as u32);
        pixel.iter().zip(background).any(|(part, background)| part.abs_diff(background) > INK_DIFFERENCE)
    };
    let row = |y| (area.left..area.right).filter(|x| stands_out(*x, y)).count() as i32;
    (area.top..area.bottom).map(row).sum()
}

/// One pixel around the digits and between them.
fn label_size(number: u32, scale: i32) -> (i32, i32) {
    let digits = number.checked_ilog10().unwrap_or(0) as i32 + 1;
    ((digits * (DIGIT_WIDTH + 1) + 1) * scale, (DIGIT_HEIGHT + 2) * scale)
}

fn frame(picture: &mut RgbImage, area: PixelArea, width: i32, colour: Rgb<u8>) {
    let PixelArea { left, top, right, bottom } = area;
    fill(picture, PixelArea { bottom: top + width, ..area }, colour);
    fill(picture, PixelArea { top: bottom - width, ..area }, colour);
    fill(picture, PixelArea { right: left + width, ..area }, colour);
    fill(picture, PixelArea { left: right - width, ..area }, colour);
}

fn write(picture: &mut RgbImage, label: PixelArea, scale: i32, number: u32) {
    for (index, digit) in number.to_string().bytes().enumerate() {
        let left = label.left + scale * (1 + index as i32 * (DIGIT_WIDTH + 1));
        let rows = DIGITS[usize::from(digit - b'0')];
        for (row, bits) in (0..).zip(rows) {
            for column in (0..DIGIT_WIDTH).filter(|column| bits >> (DIGIT_WIDTH - 1 - column) & 1 == 1) {
                let x = left + column * scale;
                let y = label.top + scale * (1 + row);
                fill(picture, PixelArea { left: x, top: y, right: x + scale, bottom: y + scale }, INK);
            }
        }
    }
}

fn fill(picture: &mut RgbImage, area: PixelArea, colour: Rgb<u8>) {
    let width = picture.width() as i32;
    let height = picture.height() as i32;
    for y in area.top.max(0)..area.bottom.min(height) {
        for x in area.left.max(0)..area.right.min(width) {
            picture.put_pixel(x as u32, y as u32, colour);
        }
    }
}

impl PixelArea {
    /// A mark's box; its numbers are checked to lie inside the picture.
    fn of(mark: &Mark) -> Self {
        Self {
            left: mark.x as i32,
            top: mark.y as i32,
            right: (mark.x + mark.width) as i32,
            bottom: (mark.y + mark.height) as i32,
        }
    }

    /// Candidate positions of a label of this size, the most familiar first: above, beside, below,
    /// and in the corners.
    fn label_candidates(self, width: i32, height: i32) -> [Self; 7] {
        [
            (self.left, self.top - height),
            (self.right, self.top),
            (self.left, self.bottom),
            (self.left - width, self.top),
            (self.right - width, self.top),
            (self.right - width, self.top - height),
            (self.left, self.top),
        ]
        .map(|(left, top)| Self { left, top, right: left + width, bottom: top + height })
    }

    /// Whether a label would hide much of this area.
    fn is_small_for(self, label: Self) -> bool {
        self.overlap(self) < 6 * label.overlap(label)
    }

    fn is_within(self, other: Self) -> bool {
        self.left >= other.left
            && self.top >= other.top
            && self.right <= other.right
            && self.bottom <= other.bottom
    }

    /// Number of pixels in both areas.
    fn overlap(self, other: Self) -> i32 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0) * height.max(0)
    }

    fn moved_inside(self, other: Self) -> Self {
        let dx = (other.right - self.right).min(0);
        let dy = (other.bottom - self.bottom).min(0);
        let Self { left, top, right, bottom } = self;
        Self { left: left + dx, top: top + dy, right: right + dx, bottom: bottom + dy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(mark: u32, [x, y, width, height]: [f32; 4]) -> Mark {
        Mark { mark, role: "button".into(), text: String::new(), x, y, width, height }
    }

    fn painted(side: u32, marks: &[Mark]) -> RgbImage {
        let mut picture = RgbImage::from_pixel(side, side, Rgb([255; 3]));
        paint(&mut picture, marks);
        picture
    }

    /// The content of a rectangle: `#` for ink, `.` for a label's colour.
    fn drawing(picture: &RgbImage, left: u32, top: u32, width: u32, height: u32) -> Vec<String> {
        let letter = |x, y| if *picture.get_pixel(x, y) == INK { '#' } else { '.' };
        (top..top + height).map(|y| (left..left + width).map(|x| letter(x, y)).collect()).collect()
    }

    #[test]
    fn a_number_stands_above_its_box() {
        let picture = painted(64, &[mark(14, [20.0, 30.0, 30.0, 12.0])]);
        let wanted = [
            ".............",
            "...#......#..",
            "..##.....##..",
            "...#....#.#..",
            "...#...#..#..",
            "...#...#####.",
            "...#......#..",
            "..###.....#..",
            ".............",
        ];
        assert_eq!(drawing(&picture, 20, 21, 13, 9), wanted);
        let colour = COLOURS[14 % 8];
        for (x, y) in [(20, 30), (49, 30), (20, 41), (49, 41), (35, 30), (20, 36)] {
            assert_eq!(*picture.get_pixel(x, y), colour, "frame at {x}, {y}");
        }
        for (x, y) in [(21, 31), (35, 36), (50, 36), (19, 36), (35, 42)] {
            assert_eq!(picture.get_pixel(x, y).0, [255; 3], "untouched at {x}, {y}");
        }
    }

    #[test]
    fn a_large_picture_gets_large_numbers() {
        let picture = painted(400, &[mark(1, [100.0, 100.0, 50.0, 20.0])]);
        let small = painted(399, &[mark(1, [100.0, 100.0, 50.0, 20.0])]);
        assert_eq!(*picture.get_pixel(100, 82), COLOURS[1], "two pixels for one: 18 high");
        assert_eq!(small.get_pixel(100, 82).0, [255; 3]);
    }

    #[test]
    fn numbers_keep_off_each_other_and_inside_the_picture() {
        // At the top there is no space above; between stacked boxes there is none either.
        let marks: Vec<_> = (1..=5).map(|n| mark(n, [0.0, 12.0 * (n - 1) as f32, 20.0, 12.0])).collect();
        let picture = RgbImage::new(64, 64);
        let boxes: Vec<_> = marks.iter().map(PixelArea::of).collect();
        let labels = label_areas(&picture, &marks, &boxes, 1);
        for (index, label) in labels.iter().enumerate() {
            assert!(label.is_within(PixelArea { left: 0, top: 0, right: 64, bottom: 64 }), "{label:?}");
            assert!(labels[..index].iter().all(|other| other.overlap(*label) == 0), "{labels:?}");
            assert!(boxes.iter().all(|area| area.overlap(*label) == 0), "{labels:?}");
        }
        // The page's text stays visible: the field's name is above it, and the field has space
        // inside.
        let mut named = RgbImage::from_pixel(120, 60, Rgb([255; 3]));
        (0..40).step_by(2).for_each(|x| {
            fill(&mut named, PixelArea { left: x, top: 8, right: x + 1, bottom: 18 }, Rgb([0; 3]));
        });
        let field = mark(7, [0.0, 20.0, 120.0, 40.0]);
        let label = label_areas(&named, std::slice::from_ref(&field), &[PixelArea::of(&field)], 1)[0];
        assert_eq!(label, PixelArea { left: 113, top: 20, right: 120, bottom: 29 });
        // A picture that is smaller than a number does not fail.
        painted(4, &[mark(1000, [0.0, 0.0, 4.0, 4.0])]);
    }

    #[test]
    fn every_digit_is_another() {
        let mut digits = DIGITS.to_vec();
        digits.sort_unstable();
        digits.dedup();
        assert_eq!(digits.len(), 10);
        assert!(DIGITS.iter().flatten().all(|row| *row < 32));
    }
}
