//! Formats values for reports and terminals as `pages/format.js` does in a browser; a test compares
//! both. An unknown value is a dash, never a 0.

use crate::answers::DeviceKind;

/// Placeholder of an unknown value.
pub(crate) const NONE: &str = "–";
/// Separator between groups of digits, and before a unit.
const GAP: char = '\u{202f}';

/// A whole number with thin spaces: 1 234 567.
pub(crate) fn count(value: Option<f64>) -> String {
    let Some(value) = known(value) else { return NONE.to_owned() };
    let digits = format!("{:.0}", (value + 0.5).floor().abs());
    let mut text = if value <= -0.5 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(GAP);
        }
        text.push(digit);
    }
    text
}

/// Three significant digits; 1000 and more stay whole.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(known) = known(value) else { return NONE.to_owned() };
    let size = known.abs();
    if size >= 1000.0 {
        return count(value);
    }
    if size >= 100.0 {
        return format!("{known:.0}");
    }
    if known == known.trunc() {
        return format!("{}", known as i64);
    }
    // 0.00123 has its first digit at decimal 3 and is written with two more.
    let decimals = (2.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{known:.decimals$}")
}

/// A share in percent.
pub(crate) fn percent(share: Option<f64>) -> String {
    let Some(share) = known(share) else { return NONE.to_owned() };
    let percents = share * 100.0;
    let decimals = usize::from((0.05..99.95).contains(&percents));
    format!("{percents:.decimals$}{GAP}%")
}

/// Microseconds in a readable unit.
pub(crate) fn duration(micros: Option<f64>) -> String {
    let Some(micros) = known(micros) else { return NONE.to_owned() };
    let seconds = micros / 1e6;
    if micros < 1e3 {
        format!("{micros:.0}{GAP}µs")
    } else if micros < 1e6 {
        format!("{}{GAP}ms", number(Some(micros / 1e3)))
    } else if seconds < 120.0 {
        format!("{}{GAP}s", number(Some(seconds)))
    } else if seconds < 7200.0 {
        format!("{}{GAP}min {}{GAP}s", (seconds / 60.0).floor(), (seconds % 60.0).floor())
    } else {
        format!("{}{GAP}h", number(Some(seconds / 3600.0)))
    }
}

/// Seconds in a readable unit.
pub(crate) fn seconds(value: Option<f64>) -> String {
    duration(value.map(|seconds| seconds * 1e6))
}

/// Bytes with a unit.
pub(crate) fn bytes(size: Option<f64>) -> String {
    let Some(size) = known(size) else { return NONE.to_owned() };
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.into_iter().find(|(_, factor)| size >= *factor) {
        Some((unit, factor)) => format!("{}{GAP}{unit}", number(Some(size / factor))),
        None => format!("{size}{GAP}B"),
    }
}

pub(crate) fn dollars(usd: Option<f64>) -> String {
    match known(usd) {
        None => NONE.to_owned(),
        Some(usd) if usd >= 100.0 => format!("${}", count(Some(usd))),
        Some(usd) => {
            let decimals = if usd > 0.0 { (2.0 - usd.log10().floor()).max(0.0) as usize } else { 2 };
            format!("${usd:.decimals$}")
        }
    }
}

/// Whether a character of untrusted text would act instead of being shown: control characters, and
/// marks that change the direction of writing, with which a name could rearrange the text beside
/// it.
pub(crate) fn is_control_character(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Untrusted text without characters that a terminal would act on.
pub fn clean(text: &str) -> String {
    text.chars().map(|letter| if is_control_character(letter) { '\u{fffd}' } else { letter }).collect()
}

/// A name from code for display: `max_steps` becomes `max steps`.
pub(crate) fn spaced_name(name: &str) -> String {
    name.replace('_', " ")
}

/// The name of a device-hour.
pub(crate) fn device_hour(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Gpu => "GPU-hour",
        DeviceKind::Cpu => "CPU-hour",
        DeviceKind::None => "device-hour",
    }
}

/// The name of the device.
pub(crate) fn device_name(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Gpu => "GPU",
        DeviceKind::Cpu => "CPU",
        DeviceKind::None => "device",
    }
}

fn known(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_matter_and_what_is_not_known_is_a_dash() {
        let check = |got: String, want: &str| assert_eq!(got.replace(GAP, " "), want);
        check(number(None), "–");
        check(number(Some(f64::INFINITY)), "–");
        check(number(Some(0.001_234)), "0.00123");
        check(number(Some(12.345)), "12.3");
        check(number(Some(7.0)), "7");
        check(count(Some(1_234_567.0)), "1 234 567");
        check(percent(Some(0.333)), "33.3 %");
        check(percent(Some(1.0)), "100 %");
        check(duration(Some(1234.0)), "1.23 ms");
        check(duration(Some(3_723e6)), "62 min 3 s");
        check(duration(Some(9_000e6)), "2.50 h");
        check(dollars(Some(0.0123)), "$0.0123");
        check(bytes(Some(1_500_000.0)), "1.50 MB");
    }
}
