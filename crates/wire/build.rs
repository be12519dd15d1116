//! Compiles proto/ to Rust without a protoc binary and keeps the descriptor set for the reflection
//! service.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let files = ["types", "trace", "policy", "coordinator", "registration", "enrolment"]
        .map(|name| root.join(format!("furrow/v1/{name}.proto")));
    let descriptors = protox::compile(&files, [&root])?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("furrow.bin"), descriptors.encode_to_vec())?;
    // Screenshots and records are shared, not copied: every `bytes` field is a `bytes::Bytes`.
    let configured = tonic_prost_build::configure().bytes(".");
    // `lease.rs` prints it without its bytes.
    configured.skip_debug([".furrow.v1.LeaseSecret"]).compile_fds(descriptors)?;
    Ok(())
}
