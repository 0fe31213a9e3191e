//! Which fields of dm-reverb's messages take memory once decoded. `build.rs` generates these tables.

use engram_codec::{DecodedSize, Field, message, repeated, repeated_number, string};

include!(concat!(env!("OUT_DIR"), "/decoded_size.rs"));
