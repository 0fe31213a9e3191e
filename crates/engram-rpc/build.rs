//! Compiles the protocol; no `protoc` needed.

#[path = "../engram-codec/build/decoded_size.rs"]
mod decoded_size;

use decoded_size::Generator;
use protox::prost_reflect::DescriptorPool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/engram.proto");
    let files = protox::compile(["proto/engram.proto"], ["proto"])?;
    let generator = Generator {
        modules: &[("engram.v1", "crate::pb")],
        limits: &[],
    };
    generator.write(&DescriptorPool::from_file_descriptor_set(files.clone())?)?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::wire::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}
