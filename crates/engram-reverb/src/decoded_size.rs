//! Which fields of dm-reverb's messages take memory once decoded. `make generate` generates these tables.

use engram_codec::{DecodedSize, Field, message, repeated, repeated_number, string};

include!("generated/decoded_size.rs");
