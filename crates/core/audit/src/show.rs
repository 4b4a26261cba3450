//! Reads records for display, selected by a filter. An engine can write to the folder at the same
//! time.

use std::fs::File;
use std::io::{self, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::files::{self, Segment};
use crate::segment::Lines;
use crate::timestamp::Timestamp;

/// Selects records. A record must match every condition that is set.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only records of this principal.
    pub principal: Option<String>,
    /// Only records of this app.
    pub app: Option<String>,
    /// Only records of this collection.
    pub collection: Option<String>,
    /// Only records of this method.
    pub method: Option<String>,
    /// Only records with this outcome. `failed` matches every outcome except `ok`.
    pub outcome: Option<String>,
    /// Only records that name this data subject, by its id.
    pub subject: Option<String>,
    /// Only this event, by its name in records: `call`, `start`, `stop`, `segment`, `gap`,
    /// `refused`, `sweep`, `provider` or `reload`.
    pub event: Option<String>,
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, inclusive.
    pub until: Option<Timestamp>,
}

/// The content of a record. Absent fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RecordView {
    /// The record number.
    pub seq: u64,
    /// Time when the record was made.
    pub time: String,
    /// The event.
    pub event: String,
    /// The run of the engine that wrote the record.
    pub instance: String,
    /// The principal.
    pub principal: Option<String>,
    /// The certificate field that holds the principal's name.
    pub kind: Option<String>,
    /// The method.
    pub method: Option<String>,
    /// The app.
    pub app: Option<String>,
    /// The collection.
    pub collection: Option<String>,
    /// The reason for the request, as stated by the client.
    pub reason: Option<String>,
    /// The masking function applied to values for the principal.
    pub mask: Option<String>,
    /// Ids of the data subjects whose objects the request read or wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// The requested change of a control request.
    pub change: Option<serde_json::Map<String, serde_json::Value>>,
    /// Number of fields.
    pub fields: u64,
    /// Number of fields that failed individually.
    pub errors: u64,
    /// Size of the message in bytes.
    pub bytes_in: u64,
    /// `ok` or an error code.
    pub outcome: Option<String>,
    /// The generation of control state.
    pub generation: u64,
    /// Processing time in microseconds.
    pub took_us: u64,
    /// The condition of the audit log at a start.
    pub found: Option<String>,
    /// Number of lost records of a gap.
    pub lost: Option<u64>,
    /// Number of rejected requests that were counted.
    pub count: Option<u64>,
    /// Time of the first counted request.
    pub first: Option<String>,
    /// Time of the last counted request.
    pub last: Option<String>,
    /// The use of a provider of the root key: `wrap`, `unwrap` or `probe`.
    pub operation: Option<String>,
    /// Name of the provider.
    pub provider: Option<String>,
    /// Kind of the provider.
    pub provider_kind: Option<String>,
    /// Number of the provider's slot.
    pub slot: Option<u64>,
    /// Id of the root key.
    pub root: Option<String>,
    /// Time of the use.
    pub used: Option<String>,
    /// The files that were reloaded.
    pub what: Option<String>,
    /// The system's error.
    pub error: Option<String>,
}

/// Returns true if a filter is absent or equals the value.
fn matches(wanted: Option<&str>, found: Option<&str>) -> bool {
    wanted.is_none() || wanted == found
}

impl Filter {
    /// Returns the record of a line if it matches. An invalid line never matches.
    #[must_use]
    pub fn take(&self, line: &[u8]) -> Option<RecordView> {
        let shown: RecordView = serde_json::from_slice(line).ok()?;
        let outcome = match self.outcome.as_deref() {
            Some("failed") => shown
                .outcome
                .as_deref()
                .is_some_and(|outcome| outcome != "ok"),
            _ => matches(self.outcome.as_deref(), shown.outcome.as_deref()),
        };

        let time = Timestamp::parse(shown.time.as_bytes());
        let timely = self
            .since
            .is_none_or(|since| time.is_some_and(|time| time >= since))
            && self
                .until
                .is_none_or(|until| time.is_some_and(|time| time <= until));
        let wanted = matches(self.principal.as_deref(), shown.principal.as_deref())
            && matches(self.app.as_deref(), shown.app.as_deref())
            && matches(self.collection.as_deref(), shown.collection.as_deref())
            && matches(self.method.as_deref(), shown.method.as_deref())
            && matches(self.event.as_deref(), Some(&shown.event))
            && self
                .subject
                .as_ref()
                .is_none_or(|subject| shown.subjects.contains(subject))
            && outcome
            && timely;
        wanted.then_some(shown)
    }
}

/// Reads the records of a folder from the first record on, then records that are added.
#[derive(Debug)]
pub struct Follow {
    folder: PathBuf,
    at: Option<(Segment, u64)>,
}

impl Follow {
    /// Follows a folder from its first record.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, at: None }
    }

    /// Calls `visit` for every complete line added since the last poll, without its newline.
    ///
    /// # Errors
    ///
    /// The error of the system, or of `visit`.
    pub fn poll(&mut self, visit: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let segments = files::segments(&self.folder)?;
        let first = self.at.as_ref().map_or(0, |(segment, _)| segment.first);
        for segment in segments
            .into_iter()
            .filter(|segment| segment.first >= first)
        {
            let from = match &self.at {
                Some((at, read)) if *at == segment => *read,
                _ => 0,
            };
            let mut file = File::open(self.folder.join(&segment.name))?;
            file.seek(SeekFrom::Start(from))?;
            let mut lines = Lines::new(BufReader::with_capacity(256 << 10, file));
            let mut read = from;
            while let Some(raw) = lines.next()?.filter(|raw| raw.is_whole) {
                visit(raw.bytes())?;
                read = from + raw.end;
            }
            self.at = Some((segment, read));
        }
        Ok(())
    }
}
