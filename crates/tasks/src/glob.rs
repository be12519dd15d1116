//! Selects task ids by patterns with `*` (any run of characters) and `?` (any single character).

/// Whether the whole text matches the pattern. Linear in text × stars: a failed star takes one more
/// character and continues.
pub fn fits(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let mut p = 0;
    let mut t = 0;
    let mut retry = None; // after the last star: where the pattern continues, and at which character
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                retry = Some((p, t));
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after_star, from)) = retry else { return false };
                (p, t) = (after_star, from + 1);
                retry = Some((after_star, from + 1));
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Whether any pattern matches.
pub(crate) fn any_fits(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_whole_and_greedy_stars_go_back() {
        let table = [
            ("click-test", "click-test", true),
            ("click-test", "click-test-2", false),
            ("click-*", "click-test-2", true),
            ("*-2", "click-test-2", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            ("c?oose", "choose", true),
            ("c?oose", "coose", false),
            ("*", "", true),
            ("?", "", false),
            ("", "", true),
            ("", "x", false),
            ("é*", "été", true),
            ("Cambridge Dictionary--*", "Cambridge Dictionary--12", true),
        ];
        for (pattern, text, want) in table {
            assert_eq!(fits(pattern, text), want, "{pattern:?} {text:?}");
        }
    }
}
