//! Authenticates requests. Without a token file, programs on this machine may send requests; with
//! one, any client with the token may.

use std::path::Path;

use furrow_http::{AccessControl, AccessRefusal, AccessRules, OriginCheck, TokenError, read_token};
use furrow_openai::server::ApiError;

/// Requires the token in this file; without a file, none.
pub(super) fn access_control(token_file: Option<&Path>) -> Result<AccessControl, TokenError> {
    let token = token_file.map(read_token).transpose()?;
    let origin_check = OriginCheck::WithoutToken;
    Ok(AccessControl::new(&AccessRules { token: token.as_deref(), origin_check, sign_in: None }))
}

/// The error of a refused request.
pub(super) fn access_error(why: AccessRefusal) -> ApiError {
    match why {
        AccessRefusal::Foreign => {
            let why = "call this endpoint as 127.0.0.1 or localhost, not from a web page; for other names set policy.serve.token_file";
            ApiError::of(403, "invalid_request_error", "foreign_origin", why)
        }
        AccessRefusal::Unknown => {
            let why = "this endpoint needs a token: send it as `Authorization: Bearer TOKEN`; clients of OpenAI call it api_key";
            ApiError::of(401, "authentication_error", "invalid_api_key", why)
        }
    }
}
