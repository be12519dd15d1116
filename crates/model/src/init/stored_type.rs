//! The number types of stored weights.

/// Number type of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredType {
    Float32,
    Bfloat16,
}

impl StoredType {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 => 2,
        }
    }

    /// Its name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        }
    }

    /// Its name in a weight file.
    pub(super) fn safetensors_name(self) -> &'static str {
        match self {
            Self::Float32 => "F32",
            Self::Bfloat16 => "BF16",
        }
    }
}
