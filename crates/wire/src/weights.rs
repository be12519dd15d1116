//! Conversions of orders to run published weights.

use furrow_rollout::{PolicyVersion, WEIGHTS_LINKS_MAX, WeightsForm, WeightsLink, WeightsOrder};

use crate::error::{WireError, cap, unknown};
use crate::limits::PATH_BYTES_MAX;
use crate::v1;

/// Validates an order to run weights.
pub fn weights_order_from(message: v1::WeightsOrder) -> Result<WeightsOrder, WireError> {
    cap(message.links.len(), WEIGHTS_LINKS_MAX, "weights.links")?;
    if message.version < 1 {
        return Err(unknown("weights.version", &message.version.to_string(), "1 or more"));
    }
    Ok(WeightsOrder {
        version: PolicyVersion(message.version),
        links: message.links.into_iter().map(weights_link_from).collect::<Result<_, _>>()?,
        weights_sha256: message.weights_sha256.map(sha256_from).transpose()?,
        taken: message.taken,
    })
}

/// Converts an order to run weights to its message.
pub fn weights_order_into(value: &WeightsOrder) -> v1::WeightsOrder {
    v1::WeightsOrder {
        version: value.version.0,
        links: value.links.iter().map(weights_link_into).collect(),
        weights_sha256: value.weights_sha256.clone(),
        taken: value.taken,
    }
}

/// Validates one directory of weights.
pub fn weights_link_from(message: v1::WeightsLink) -> Result<WeightsLink, WireError> {
    let v1::WeightsLink { form, directory } = message;
    let found = WeightsForm::parse(&form);
    let form = found.ok_or_else(|| unknown("weights.form", &form, "full, delta or adapter"))?;
    cap(directory.len(), PATH_BYTES_MAX, "weights.directory")?;
    if !directory.starts_with('/') || directory.contains('\0') {
        return Err(unknown("weights.directory", &directory, "an absolute path"));
    }
    Ok(WeightsLink { form, directory })
}

/// Converts one directory of weights to its message.
pub fn weights_link_into(value: &WeightsLink) -> v1::WeightsLink {
    v1::WeightsLink { form: value.form.as_str().to_owned(), directory: value.directory.clone() }
}

/// Validates a SHA-256 in hexadecimal.
pub fn sha256_from(text: String) -> Result<String, WireError> {
    let is_hash = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hash { Ok(text) } else { Err(unknown("weights_sha256", &text, "64 hexadecimal digits")) }
}
