//! Compiles the protocol files under `proto/` with protox, so that the build needs no protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["mvccpb/kv.proto", "etcdserverpb/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::proto::wire::Wire")
        .compile_fds(files)?;
    Ok(())
}
