//! Reads records for people and programs: those that a filter takes, from a folder that may be written meanwhile.

use std::fs::File;
use std::io::{self, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::files::{self, Segment};
use crate::segment::Lines;
use crate::timestamp::Moment;

/// Which records. Everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this principal.
    pub principal: Option<String>,
    /// Of this app.
    pub app: Option<String>,
    /// Of this collection.
    pub collection: Option<String>,
    /// Of this method.
    pub method: Option<String>,
    /// With this outcome; `failed` is every one but `ok`.
    pub outcome: Option<String>,
    /// Of this event: `call`, `start`, `stop`, `segment`, `gap`, `refused`, `sweep`, `reload`.
    pub event: Option<String>,
    /// Not before.
    pub since: Option<Moment>,
    /// Not after.
    pub until: Option<Moment>,
}

/// A record's content. Absent parts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Shown {
    /// Its number.
    pub seq: u64,
    /// When it was made.
    pub time: String,
    /// The event.
    pub event: String,
    /// By which run of an engine.
    pub instance: String,
    /// The principal.
    pub principal: Option<String>,
    /// Which field of the certificate that is.
    pub kind: Option<String>,
    /// The method.
    pub method: Option<String>,
    /// The app.
    pub app: Option<String>,
    /// The collection.
    pub collection: Option<String>,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// The function that its caller saw values through.
    pub mask: Option<String>,
    /// The requested change of a control request.
    pub change: Option<serde_json::Map<String, serde_json::Value>>,
    /// Fields.
    pub fields: u64,
    /// Of them, refused.
    pub errors: u64,
    /// Bytes of the message.
    pub bytes_in: u64,
    /// `ok` or a code.
    pub outcome: Option<String>,
    /// The generation of control state.
    pub generation: u64,
    /// Microseconds.
    pub took_us: u64,
    /// How a start found the trail.
    pub found: Option<String>,
    /// Records that a gap stands for.
    pub lost: Option<u64>,
    /// Refused requests that were counted.
    pub count: Option<u64>,
    /// When the first of them was.
    pub first: Option<String>,
    /// When the last of them was.
    pub last: Option<String>,
    /// The files that were reloaded.
    pub what: Option<String>,
    /// The system's error.
    pub error: Option<String>,
}

impl Filter {
    /// Returns the record of a line if it matches. A line that is no record never matches.
    #[must_use]
    pub fn take(&self, line: &[u8]) -> Option<Shown> {
        let shown: Shown = serde_json::from_slice(line).ok()?;
        let is = |wanted: &Option<String>, there: Option<&str>| wanted.is_none() || wanted.as_deref() == there;
        let outcome = match self.outcome.as_deref() {
            Some("failed") => shown.outcome.as_deref().is_some_and(|outcome| outcome != "ok"),
            _ => is(&self.outcome, shown.outcome.as_deref()),
        };
        let time = Moment::parse(shown.time.as_bytes());
        let timely = self.since.is_none_or(|since| time.is_some_and(|time| time >= since))
            && self.until.is_none_or(|until| time.is_some_and(|time| time <= until));
        let wanted = is(&self.principal, shown.principal.as_deref())
            && is(&self.app, shown.app.as_deref())
            && is(&self.collection, shown.collection.as_deref())
            && is(&self.method, shown.method.as_deref())
            && is(&self.event, Some(&shown.event))
            && outcome
            && timely;
        wanted.then_some(shown)
    }
}

/// Reads a folder from its first record on, and then what is added.
#[derive(Debug)]
pub struct Follow {
    folder: PathBuf,
    at: Option<(Segment, u64)>,
}

impl Follow {
    /// Follows a folder from the beginning.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, at: None }
    }

    /// Gives every line that has come since the last time, whole ones only, without their newline.
    ///
    /// # Errors
    ///
    /// The error of the system, or of `visit`.
    pub fn poll(&mut self, visit: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let segments = files::segments(&self.folder)?;
        let first = self.at.as_ref().map_or(0, |(segment, _)| segment.first);
        for segment in segments.into_iter().filter(|segment| segment.first >= first) {
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
