//! Compiles the messages; no `protoc` needed.

#[path = "../engram-codec/build/decoded_size.rs"]
mod decoded_size;

use decoded_size::Generator;
use protox::prost_reflect::DescriptorPool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/reverb.proto"], ["proto"])?;
    let generator = Generator {
        modules: &[
            ("deepmind.reverb", "crate::pb"),
            ("tensorflow", "crate::pb::tensorflow"),
        ],
        limits: &[
            // dm-reverb's writers send up to 40 MiB of chunks in one request, however small each chunk is.
            ("deepmind.reverb.InsertStreamRequest", 512),
            ("deepmind.reverb.MutatePrioritiesRequest", 256),
            // Old checkpoints store a table's items in this message.
            ("deepmind.reverb.PriorityTableCheckpoint", 1024),
        ],
    };
    let mut without_comments = files.clone();
    for file in &mut without_comments.file {
        file.source_code_info = None;
    }
    let pool = DescriptorPool::from_file_descriptor_set(without_comments)?;
    generator.write(&pool)?;
    let directory = std::env::var("OUT_DIR")?;
    std::fs::write(format!("{directory}/descriptors.bin"), pool.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .codec_path("engram_codec::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}
