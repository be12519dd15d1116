//! Arithmetic that a goal writes out, such as `74 × (448 + 40) − 21²`, evaluated.

use std::iter::Peekable;
use std::str::Chars;

/// Nested brackets beyond this are no arithmetic of a goal.
const DEPTH_MAX: usize = 8;

/// The value of the longest expression in a text; `None` if it has none with an operation.
pub(super) fn written_value(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || " .+-−–*×·/÷:^²³√()".contains(c);
    let mut parts: Vec<&str> =
        text.split(|c| !is_part(c)).map(|part| part.trim_matches([' ', '.', ':'])).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    parts.into_iter().filter(|part| part.chars().any(|c| !c.is_ascii_digit())).find_map(evaluate)
}

fn evaluate(text: &str) -> Option<f64> {
    let mut reader = Reader { left: text.chars().peekable(), depth: 0 };
    let value = reader.sum()?;
    reader.skip_spaces();
    (reader.left.peek().is_none() && value.is_finite()).then_some(value)
}

/// Reads an expression by recursive descent.
struct Reader<'a> {
    left: Peekable<Chars<'a>>,
    depth: usize,
}

impl Reader<'_> {
    fn skip_spaces(&mut self) {
        while self.left.next_if_eq(&' ').is_some() {}
    }

    /// Consumes the next character if it is one of these.
    fn next_of(&mut self, signs: &str) -> Option<char> {
        self.skip_spaces();
        self.left.next_if(|c| signs.contains(*c))
    }

    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        while let Some(sign) = self.next_of("+-−–") {
            let other = self.product()?;
            value += if sign == '+' { other } else { -other };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.power()?;
        while let Some(sign) = self.next_of("*×·/÷:") {
            let other = self.power()?;
            value = if "*×·".contains(sign) { value * other } else { value / other };
        }
        Some(value)
    }

    fn power(&mut self) -> Option<f64> {
        let value = self.atom()?;
        match self.next_of("²³^") {
            Some('²') => Some(value * value),
            Some('³') => Some(value.powi(3)),
            Some(_) => Some(value.powf(self.power()?)),
            None => Some(value),
        }
    }

    fn atom(&mut self) -> Option<f64> {
        match self.next_of("-−√(") {
            Some('(') if self.depth < DEPTH_MAX => {
                self.depth += 1;
                let value = self.sum()?;
                self.depth -= 1;
                self.next_of(")").map(|_| value)
            }
            Some('√') => self.atom().map(f64::sqrt),
            Some('-' | '−') => self.atom().map(|value| -value),
            Some(_) => None,
            None => {
                let mut digits = String::new();
                while let Some(c) = self.left.next_if(|c| c.is_ascii_digit() || *c == '.') {
                    digits.push(c);
                }
                digits.parse().ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_arithmetic_is_evaluated() {
        for (text, want) in [
            ("Work out 74 × (448 + 40) − 21². Answer with the number.", Some(35_671.0)),
            ("What is 12 + 3 * 4?", Some(24.0)),
            ("What is √16 ÷ 2^3?", Some(0.5)),
            ("How many pages has book 7?", None),
            ("Divide (1 + 2", None),
            ("1/0", None),
        ] {
            assert_eq!(written_value(text), want, "{text}");
        }
        assert_eq!(written_value(&"(".repeat(100_000)), None);
    }
}
