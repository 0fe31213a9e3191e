//! Compiles the protocol; no `protoc` needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/engram.proto");
    let files = protox::compile(["proto/engram.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::wire::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}
