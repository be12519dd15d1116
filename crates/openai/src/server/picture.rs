//! Images in requests: a data URL becomes the encoded image, its size limited before it is decoded.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use super::ApiError;
use super::keys::{ApiResult, cut};

/// How many images a request may still have, and their size.
#[derive(Debug)]
pub(super) struct PictureBudget {
    left: usize,
    images_max: usize,
    bytes_max: usize,
}

impl PictureBudget {
    pub(super) fn new(images_max: usize, bytes_max: usize) -> Self {
        Self { left: images_max, images_max, bytes_max }
    }

    /// Decodes the image at a path of the request; `part` is the path of the part around it.
    pub(super) fn take(&mut self, url: &str, part: String, path: String) -> ApiResult<Bytes> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            let most = self.images_max;
            ApiError::invalid(part, format!("there are more than {most} images"))
        })?;
        picture(url, self.bytes_max).map_err(|why| ApiError::invalid(path, why))
    }
}

/// Decodes a data URL. Network addresses are never fetched, because clients could direct the
/// server's requests.
fn picture(url: &str, bytes_max: usize) -> Result<Bytes, String> {
    const RIGHT: &str = "send the image itself, as data:image/png;base64,…, image/jpeg or image/webp";
    let Some(data) = url.strip_prefix("data:") else {
        return Err(format!("images are not fetched from addresses; {RIGHT}"));
    };
    let (head, encoded) = data.split_once(',').ok_or_else(|| format!("this is not a data URL; {RIGHT}"))?;
    if !["image/png;base64", "image/jpeg;base64", "image/jpg;base64", "image/webp;base64"]
        .contains(&head.to_ascii_lowercase().as_str())
    {
        return Err(format!("this data URL has the type {:?}; {RIGHT}", cut(head)));
    }
    // Four base64 characters are three bytes.
    if encoded.len() / 4 * 3 > bytes_max.saturating_add(3) {
        return Err(format!("an image may have at most {bytes_max} bytes"));
    }
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes =
        GeneralPurpose::new(&STANDARD, config).decode(encoded).map_err(|why| format!("not base64: {why}"))?;
    match bytes.len() {
        0 => Err("the image is empty".to_owned()),
        length if length > bytes_max => Err(format!("an image may have at most {bytes_max} bytes")),
        _ => Ok(Bytes::from(bytes)),
    }
}
