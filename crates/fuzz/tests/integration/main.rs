//! All fuzz targets for some seconds, and their first inputs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod campaign;
mod corpus;
mod planted;
