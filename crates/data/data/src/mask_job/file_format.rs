//! The format of a file and how it is cut into chunks.

use crate::mask_job::chunker::RecordBoundary;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Newline-delimited JSON: each line is a document.
    Ndjson,
    /// A single JSON document. Elements of an array are streamed; any other document is read whole.
    Json,
    /// Comma-separated values with a header.
    Csv {
        /// The delimiter, such as `b','`, `b';'` or a tab.
        delimiter: u8,
    },
    /// Apache Parquet.
    Parquet,
}

impl FileFormat {
    /// Selects the format by the file extension: `ndjson`, `jsonl`, `json`, `csv`, `tsv`,
    /// `parquet`. The extension `gz` of compressed files is skipped: the file's first bytes then
    /// show that the file must be decompressed first.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, extension) = name.strip_suffix(".gz").unwrap_or(name).rsplit_once('.')?;
        Some(match extension.to_ascii_lowercase().as_str() {
            "ndjson" | "jsonl" => Self::Ndjson,
            "json" => Self::Json,
            "csv" => Self::Csv { delimiter: b',' },
            "tsv" => Self::Csv { delimiter: b'\t' },
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }

    /// Returns the boundaries at which the text is cut. Not for Parquet, which is binary.
    pub(crate) fn record_boundary(self) -> RecordBoundary {
        match self {
            Self::Ndjson => RecordBoundary::Lines,
            Self::Json | Self::Parquet => RecordBoundary::Elements,
            Self::Csv { .. } => RecordBoundary::QuotedLines,
        }
    }
}
