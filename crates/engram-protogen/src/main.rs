//! Generates the Rust code of the protocols' messages into the crates that use them, where it is checked in: building
//! Engram needs neither this crate nor `protoc`. Run it after a change of a `.proto` file: `make generate`.

mod decoded_size;

use std::error::Error;
use std::fs;
use std::path::Path;

use decoded_size::Generator;
use protox::prost_reflect::DescriptorPool;

fn main() -> Result<(), Box<dyn Error>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    engram(&crates, &crates.join(ENGRAM))?;
    reverb(&crates, &crates.join(REVERB))
}

/// Folders of the generated files, relative to `crates/`.
const ENGRAM: &str = "engram-rpc/src/generated";
const REVERB: &str = "engram-reverb/src/generated";

/// Engram's own protocol.
fn engram(crates: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let proto = crates.join("engram-rpc/proto");
    let files = protox::compile([proto.join("engram.proto")], [&proto])?;
    let generator = Generator {
        modules: &[("engram.v1", "crate::pb")],
        limits: &[],
    };
    let pool = DescriptorPool::from_file_descriptor_set(files.clone())?;
    fs::write(out.join("decoded_size.rs"), generator.code(&pool))?;
    tonic_prost_build::configure()
        .out_dir(out)
        .bytes(".")
        .codec_path("crate::wire::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}

/// The protocol of dm-reverb, and its messages as a `FileDescriptorSet`.
fn reverb(crates: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let proto = crates.join("engram-reverb/proto");
    let files = protox::compile([proto.join("reverb.proto")], [&proto])?;
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
    fs::write(out.join("decoded_size.rs"), generator.code(&pool))?;
    fs::write(out.join("descriptors.bin"), pool.encode_to_vec())?;
    tonic_prost_build::configure()
        .out_dir(out)
        .bytes(".")
        .btree_map(".")
        .codec_path("engram_codec::SizeCheckedCodec")
        .compile_fds(files)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Generate = fn(&Path, &Path) -> Result<(), Box<dyn Error>>;

    #[test]
    fn the_generated_files_are_up_to_date() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (generate, folder) in [(engram as Generate, ENGRAM), (reverb, REVERB)] {
            let out = tempfile::tempdir().unwrap();
            generate(&crates, out.path()).unwrap();
            let names = |folder: &Path| {
                let entries = fs::read_dir(folder).unwrap();
                let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                names
            };
            let checked_in = crates.join(folder);
            assert_eq!(names(out.path()), names(&checked_in));
            for name in names(out.path()) {
                let equal = fs::read(out.path().join(&name)).unwrap()
                    == fs::read(checked_in.join(&name)).unwrap();
                assert!(
                    equal,
                    "crates/{folder}/{} is not up to date: run `make generate`",
                    name.display()
                );
            }
        }
    }
}
