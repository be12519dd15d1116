//! The coordinate spaces of policies, and their conversion to and from the page's.

use furrow_rollout::{PagePoint, Size};

/// The unit of a coordinate, from the image's top left corner; both ends are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoordinateSpace {
    /// 0 to 1000, whatever the image's size.
    Thousandths,
    /// Pixels of the image as sent.
    Pixels,
    Fractions,
}

impl CoordinateSpace {
    /// Converts the model's coordinates to CSS pixels. The error names the one that is outside.
    pub(super) fn page(self, x: f64, y: f64, image: Size) -> Result<PagePoint, String> {
        let one = |value: f64, side: u32, name: &str| {
            let end = self.end(side);
            if !(0.0..=end).contains(&value) {
                return Err(format!("{name} is {value}; use 0 to {end}"));
            }
            Ok(match self {
                CoordinateSpace::Pixels => value as f32,
                // As in `page_from_model`.
                CoordinateSpace::Thousandths => value as f32 / 1000.0 * side as f32,
                CoordinateSpace::Fractions => (value * f64::from(side)) as f32,
            })
        };
        Ok(PagePoint { x: one(x, image.width, "x")?, y: one(y, image.height, "y")? })
    }

    /// Converts CSS pixels to the model's coordinates: whole numbers, or four decimal places.
    pub(super) fn model(self, at: PagePoint, image: Size) -> (f64, f64) {
        let one = |value: f32, side: u32| {
            let share = f64::from(value) / f64::from(side.max(1));
            let value = match self {
                CoordinateSpace::Pixels => f64::from(value).round(),
                CoordinateSpace::Thousandths => (share * 1000.0).round(),
                CoordinateSpace::Fractions => (share * 10_000.0).round() / 10_000.0,
            };
            value.clamp(0.0, self.end(side))
        };
        (one(at.x, image.width), one(at.y, image.height))
    }

    /// A description for instructions.
    pub(super) fn description(self) -> &'static str {
        match self {
            CoordinateSpace::Thousandths => {
                "Coordinates are whole numbers from 0 to 1000 of the screenshot, from its top left corner."
            }
            CoordinateSpace::Pixels => "Coordinates are pixels of the screenshot, from its top left corner.",
            CoordinateSpace::Fractions => {
                "Coordinates are numbers from 0 to 1 of the screenshot's width and height, from its top left corner."
            }
        }
    }

    fn end(self, side: u32) -> f64 {
        match self {
            CoordinateSpace::Thousandths => 1000.0,
            CoordinateSpace::Pixels => f64::from(side),
            CoordinateSpace::Fractions => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Size = Size::new(1280, 720);

    #[track_caller]
    fn check(space: CoordinateSpace, (x, y): (f64, f64), want: Option<(f32, f32)>) {
        let got = space.page(x, y, IMAGE);
        assert_eq!(got.clone().ok().map(|at| (at.x, at.y)), want, "{space:?} {got:?}");
        if let Ok(at) = got {
            assert_eq!(space.model(at, IMAGE), (x, y), "{space:?} and back");
        }
    }

    #[test]
    fn both_ends_are_inside_and_nothing_beyond_them() {
        for (space, right, bottom) in [
            (CoordinateSpace::Thousandths, 1000.0, 1000.0),
            (CoordinateSpace::Pixels, 1280.0, 720.0),
            (CoordinateSpace::Fractions, 1.0, 1.0),
        ] {
            check(space, (0.0, 0.0), Some((0.0, 0.0)));
            check(space, (right, bottom), Some((1280.0, 720.0)));
            check(space, (right * 1.01, 0.0), None);
            check(space, (0.0, bottom * 1.01), None);
            check(space, (-0.1, 0.0), None);
            check(space, (f64::NAN, 0.0), None);
        }
        check(CoordinateSpace::Thousandths, (500.0, 250.0), Some((640.0, 180.0)));
        check(CoordinateSpace::Pixels, (17.0, 719.0), Some((17.0, 719.0)));
        check(CoordinateSpace::Fractions, (0.42, 0.125), Some((537.6, 90.0)));
    }
}
