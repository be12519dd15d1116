//! The spaces that policies write coordinates in, and the way into the page's and back.

use furrow_rollout::{PagePoint, Size};

/// What a coordinate counts, from the picture's top left corner; both ends are inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// 0 to 1000, whatever the picture's size.
    Thousandths,
    /// Pixels of the picture as it was sent.
    Pixels,
    /// 0 to 1.
    Fractions,
}

impl Space {
    /// From the model's coordinates into CSS pixels. The error says which is outside.
    pub fn page(self, x: f64, y: f64, image: Size) -> Result<PagePoint, String> {
        let one = |value: f64, side: u32, name: &str| {
            let end = self.end(side);
            if !(0.0..=end).contains(&value) {
                return Err(format!("{name} is {value}; use 0 to {end}"));
            }
            Ok(match self {
                Space::Pixels => value as f32,
                // As `page_from_model` has it.
                Space::Thousandths => value as f32 / 1000.0 * side as f32,
                Space::Fractions => (value * f64::from(side)) as f32,
            })
        };
        Ok(PagePoint { x: one(x, image.width, "x")?, y: one(y, image.height, "y")? })
    }

    /// From CSS pixels into the model's: whole numbers, or four digits behind the point.
    pub fn model(self, at: PagePoint, image: Size) -> (f64, f64) {
        let one = |value: f32, side: u32| {
            let share = f64::from(value) / f64::from(side.max(1));
            let value = match self {
                Space::Pixels => f64::from(value).round(),
                Space::Thousandths => (share * 1000.0).round(),
                Space::Fractions => (share * 10_000.0).round() / 10_000.0,
            };
            value.clamp(0.0, self.end(side))
        };
        (one(at.x, image.width), one(at.y, image.height))
    }

    /// In words, for instructions.
    pub fn says(self) -> &'static str {
        match self {
            Space::Thousandths => {
                "Coordinates are whole numbers from 0 to 1000 of the screenshot, from its top left corner."
            }
            Space::Pixels => "Coordinates are pixels of the screenshot, from its top left corner.",
            Space::Fractions => {
                "Coordinates are numbers from 0 to 1 of the screenshot's width and height, from its top left corner."
            }
        }
    }

    fn end(self, side: u32) -> f64 {
        match self {
            Space::Thousandths => 1000.0,
            Space::Pixels => f64::from(side),
            Space::Fractions => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Size = Size::new(1280, 720);

    #[track_caller]
    fn check(space: Space, (x, y): (f64, f64), want: Option<(f32, f32)>) {
        let got = space.page(x, y, IMAGE);
        assert_eq!(got.clone().ok().map(|at| (at.x, at.y)), want, "{space:?} {got:?}");
        if let Ok(at) = got {
            assert_eq!(space.model(at, IMAGE), (x, y), "{space:?} and back");
        }
    }

    #[test]
    fn both_ends_are_inside_and_nothing_beyond_them() {
        for (space, right, bottom) in [
            (Space::Thousandths, 1000.0, 1000.0),
            (Space::Pixels, 1280.0, 720.0),
            (Space::Fractions, 1.0, 1.0),
        ] {
            check(space, (0.0, 0.0), Some((0.0, 0.0)));
            check(space, (right, bottom), Some((1280.0, 720.0)));
            check(space, (right * 1.01, 0.0), None);
            check(space, (0.0, bottom * 1.01), None);
            check(space, (-0.1, 0.0), None);
            check(space, (f64::NAN, 0.0), None);
        }
        check(Space::Thousandths, (500.0, 250.0), Some((640.0, 180.0)));
        check(Space::Pixels, (17.0, 719.0), Some((17.0, 719.0)));
        check(Space::Fractions, (0.42, 0.125), Some((537.6, 90.0)));
    }
}
