//! Limits of a whole walk and of one slice.

/// Limits of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkLimits {
    /// Maximum number of containers around a value. The default 128 is deeper than hand-written
    /// documents, and shallow enough for recursive parsers downstream.
    pub depth_max: usize,
    /// Maximum number of bytes appended over all calls of [`Walk::advance`](crate::Walk::advance).
    /// Default 64 MiB. The output does not grow beyond the limit.
    pub out_bytes_max: usize,
}

impl Default for WalkLimits {
    fn default() -> Self {
        Self {
            depth_max: 128,
            out_bytes_max: 64 << 20,
        }
    }
}

/// Budget of one call of [`Walk::advance`](crate::Walk::advance). The call ends when either limit
/// is reached, after at least one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of fields passed to the transform.
    pub fields_max: usize,
    /// Maximum number of input bytes processed. Each token counts as at least 16 bytes, so that
    /// many one-byte values take no longer than text of the same budget. The last token can exceed
    /// the limit, and so can a container that is selected as a whole.
    pub bytes_max: usize,
}

impl Budget {
    /// No limit: runs to the end of the document.
    pub const UNLIMITED: Self = Self {
        fields_max: usize::MAX,
        bytes_max: usize::MAX,
    };

    /// Allows `fields_max` fields, or the number of input bytes that takes a similar time: 512 per
    /// field. Sealing a field takes about as long as walking over 32 small tokens.
    pub const fn fields(fields_max: usize) -> Self {
        Self {
            fields_max,
            bytes_max: fields_max.saturating_mul(512),
        }
    }
}

/// Minimum cost of a token in [`Budget::bytes_max`].
pub(crate) const TOKEN_BYTES_MIN: usize = 16;
