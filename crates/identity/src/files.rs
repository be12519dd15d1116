//! Files of an identity folder.

use std::io;
use std::path::Path;

use crate::IdentityError;

/// The authority's certificate, in the folder of the authority and in those that it issued.
pub(crate) const AUTHORITY_CERTIFICATE: &str = "authority.pem";

/// Whom the run takes certificates from, if not from an authority of its own.
pub(crate) const TRUST_DOMAIN: &str = "trust-domain";

/// A certificate in PEM has less than 1 KiB.
pub(crate) const CERTIFICATES_BYTES_MAX: u64 = 64 << 10;

/// Reads a file of an identity as text.
pub(crate) fn read_text(path: &Path) -> Result<String, IdentityError> {
    let read = furrow_storage::read_private(path, CERTIFICATES_BYTES_MAX);
    let text = read.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    });
    text.map_err(IdentityError::file("read", path))
}
