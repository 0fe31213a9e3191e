//! Generates the implementations of `DecodedSize` for the messages of a protocol.

use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

/// What the generated code needs besides the protocol.
pub(crate) struct Generator {
    /// The Protobuf packages, each with the Rust module of its messages.
    pub(crate) modules: &'static [(&'static str, &'static str)],
    /// Messages whose decoded size has a limit of its own, with this limit in MiB.
    pub(crate) limits: &'static [(&'static str, usize)],
}

impl Generator {
    /// The content of `decoded_size.rs`.
    pub(crate) fn code(&self, protocol: &DescriptorPool) -> String {
        let messages = protocol.all_messages().filter(|m| !is_recursive(m));
        messages.map(|m| self.implementation(&m)).collect()
    }

    fn implementation(&self, message: &MessageDescriptor) -> String {
        let (path, fields) = (self.path(message), self.fields(message).join(", "));
        let mut limits = self.limits.iter();
        let limit = limits.find(|(name, _)| *name == message.full_name());
        let limit = limit.map_or_else(String::new, |(_, limit)| {
            format!("const MAX_DECODED_BYTES: usize = {limit} << 20;\n")
        });
        format!(
            "impl DecodedSize for {path} {{\nconst FIELDS: &'static [Field] = &[{fields}];\n{limit}}}\n"
        )
    }

    /// The fields of a message that take memory outside its struct.
    fn fields(&self, message: &MessageDescriptor) -> Vec<String> {
        let fields = message.fields();
        fields.filter_map(|field| self.field(&field)).collect()
    }

    fn field(&self, field: &FieldDescriptor) -> Option<String> {
        let (number, is_list) = (field.number(), field.is_list());
        let number_type = match field.kind() {
            Kind::Message(nested) => {
                let path = self.path(&nested);
                return if is_recursive(&nested) {
                    // Counted as one message per encoded byte, which is an upper bound.
                    Some(format!("repeated_number::<{path}>({number})"))
                } else if is_list {
                    Some(format!("repeated::<{path}>({number}, {path}::FIELDS)"))
                } else if self.fields(&nested).is_empty() {
                    None
                } else {
                    Some(format!("message({number}, {path}::FIELDS)"))
                };
            }
            Kind::String if is_list => return Some(format!("repeated_string({number})")),
            Kind::String => return Some(format!("string({number})")),
            Kind::Bytes => {
                assert!(!is_list, "`{}` is not counted", field.full_name());
                // Shares the memory of the encoded message.
                return None;
            }
            Kind::Bool => "bool",
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum(_) => "i32",
            Kind::Uint32 | Kind::Fixed32 => "u32",
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "i64",
            Kind::Uint64 | Kind::Fixed64 => "u64",
            Kind::Float => "f32",
            Kind::Double => "f64",
        };
        is_list.then(|| format!("repeated_number::<{number_type}>({number})"))
    }

    /// The Rust type of a message. Nested messages are in a module with the name of the outer message.
    fn path(&self, message: &MessageDescriptor) -> String {
        let package = message.package_name();
        let mut modules = self.modules.iter();
        let module = modules.find(|(name, _)| *name == package);
        let (_, module) = module.unwrap_or_else(|| panic!("package `{package}` has no module"));
        let (mut path, mut inner) = (message.name().to_owned(), message.clone());
        while let Some(outer) = inner.parent_message() {
            path = format!("{}::{path}", snake_case(outer.name()));
            inner = outer;
        }
        format!("{module}::{path}")
    }
}

/// True if a message can contain another one of its type.
fn is_recursive(message: &MessageDescriptor) -> bool {
    let mut contained = vec![message.clone()];
    let mut next = 0;
    while let Some(outer) = contained.get(next).cloned() {
        for kind in outer.fields().map(|field| field.kind()) {
            match kind {
                Kind::Message(nested) if nested == *message => return true,
                Kind::Message(nested) if !contained.contains(&nested) => contained.push(nested),
                _ => {}
            }
        }
        next += 1;
    }
    false
}

fn snake_case(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}
