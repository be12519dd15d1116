//! Names of secrets. Their values never leave an environment worker: everything else knows a secret
//! by its placeholder.

/// Most secrets that a job may declare.
pub const SECRETS_MAX: usize = 128;

/// Longest name of a secret, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether a text can name a secret: a capital letter, then capital letters, digits and `_`.
pub fn is_secret_name(name: &str) -> bool {
    let right = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(right)
}

/// What stands for the value of a secret in goals, replies, observations and records.
pub fn secret_placeholder(name: &str) -> String {
    format!("{{{{{name}}}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_constant() {
        for (name, want) in [
            ("A", true),
            ("SHOP_PASSWORD", true),
            ("P2_", true),
            ("", false),
            ("_A", false),
            ("2A", false),
            ("Shop", false),
            ("A-B", false),
            ("A}}", false),
            ("\u{c4}", false),
        ] {
            assert_eq!(is_secret_name(name), want, "{name:?}");
        }
        assert!(is_secret_name(&"A".repeat(64)) && !is_secret_name(&"A".repeat(65)));
        assert_eq!(secret_placeholder("SHOP_PASSWORD"), "{{SHOP_PASSWORD}}");
    }
}
