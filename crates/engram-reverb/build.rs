//! Compiles the messages; no `protoc` needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/reverb.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .codec_path("engram_codec::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}
