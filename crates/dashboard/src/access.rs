//! Access control: every program on this machine, and from other machines only requests with the
//! token, as a header or as the cookie that `/?token=…` and the sign-in page set.

use std::net::SocketAddr;

use furrow_http::{AccessControl, AccessRules, OriginCheck, SignIn, TokenError};

/// Why a dashboard cannot control access.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token's file cannot be used.
    #[error("dashboard.token_file")]
    Token(#[from] TokenError),
    /// The address is reachable from other machines and there is no token.
    #[error(
        "dashboard.listen: {address} can be reached from other machines and needs a token; set dashboard.token_file"
    )]
    Open {
        /// The address to listen on.
        address: SocketAddr,
    },
}

/// Path of the form with the token.
pub(crate) const SIGN_IN_PATH: &str = "/token";

const SIGN_IN: SignIn = SignIn { cookie_prefix: "furrow_dashboard_", path: SIGN_IN_PATH };

/// Access to a dashboard that listens on this address. On loopback no token is needed, but one that
/// is given is required.
pub(crate) fn access_control(address: SocketAddr, token: Option<&str>) -> Result<AccessControl, AccessError> {
    if token.is_none() && !address.ip().is_loopback() {
        return Err(AccessError::Open { address });
    }
    let origin_check = OriginCheck::Changes;
    Ok(AccessControl::new(&AccessRules { token, origin_check, sign_in: Some(SIGN_IN) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_beyond_loopback_needs_a_token() {
        let error = access_control("0.0.0.0:80".parse().unwrap(), None).unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:80") && error.contains("token_file"), "{error}");
    }
}
