//! How much one walk may take in all, and how much in one slice.

/// Bounds of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkLimits {
    /// Most containers around a value. Default 128: deeper than hand-made documents, shallow enough for the recursive
    /// parsers behind us.
    pub depth_max: usize,
    /// Most bytes appended over all calls of [`Walk::advance`](crate::Walk::advance). Default 64 MiB. One field may overshoot it before the
    /// walk stops.
    pub out_bytes_max: usize,
}

impl Default for WalkLimits {
    fn default() -> Self {
        Self { depth_max: 128, out_bytes_max: 64 << 20 }
    }
}

/// How far one call of [`Walk::advance`](crate::Walk::advance) goes: until either bound is reached, and always one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Fields handed to the transform.
    pub fields_max: usize,
    /// Input bytes passed. Each token counts as at least 16, so that a run of one-byte values takes no longer than
    /// text of the same budget. The last token, or container selected whole, may overshoot it.
    pub bytes_max: usize,
}

impl Budget {
    /// Runs to the end of the document.
    pub const UNLIMITED: Self = Self { fields_max: usize::MAX, bytes_max: usize::MAX };

    /// `fields_max` fields, or as many input bytes as take about as long: 512 for each field, since sealing a field
    /// takes about as long as walking over 32 small tokens.
    pub const fn fields(fields_max: usize) -> Self {
        Self { fields_max, bytes_max: fields_max.saturating_mul(512) }
    }
}

/// The least a token counts against [`Budget::bytes_max`].
pub(crate) const TOKEN_BYTES_MIN: usize = 16;
