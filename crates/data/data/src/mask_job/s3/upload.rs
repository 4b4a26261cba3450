//! Writes an object in parts. The object appears under its name only when the upload is completed.
//!
//! A failed or stopped job aborts the upload. A killed job leaves its parts, which are not visible
//! as an object but take space until the bucket's rules remove them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use object_store::aws::AmazonS3;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{GetOptions, ObjectStore, PutMultipartOptions, PutPayload};
use tokio::task::JoinHandle;

use super::S3Object;
use super::completion::{Completion, Found, Marker, needs_check, outcome};
use super::failure::{NOT_KNOWN, Purpose, job_error, status_of};
use crate::mask_job::error::JobError;
use crate::mask_job::stop::JobStop;

/// Number of bytes of each part except the last. Some stores require equal parts.
pub(super) const PART_BYTES: usize = 16 << 20;
/// Maximum length of the id of an upload. The store chooses this text, and errors quote it, so its
/// characters are limited, too.
const ID_BYTES_MAX: usize = 1_024;
/// Maximum number of parts of an object.
const PARTS_MAX: usize = 10_000;

/// An unfinished upload. Memory holds a part that is being filled and a part that is being sent.
pub(crate) struct S3Upload {
    object: S3Object,
    client: AmazonS3,
    stop: JobStop,
    id: String,
    marker: Marker,
    /// Number of bytes of the object.
    length: u64,
    parts: Vec<PartId>,
    filling: Vec<u8>,
    sending: Option<JoinHandle<object_store::Result<PartId>>>,
    completion: Arc<Completion>,
    replace: bool,
    is_over: bool,
}

impl S3Upload {
    /// Starts an upload for a job that `stop` stops. This also checks the credentials. An existing
    /// object is an error unless `replace` is true.
    pub(crate) fn start(
        object: &S3Object,
        replace: bool,
        stop: &JobStop,
    ) -> Result<Self, JobError> {
        stop.check()?;
        let completion = Arc::new(Completion::default());
        completion.create_only.store(!replace, Ordering::Relaxed);
        let client = object.client(Some(Arc::clone(&completion)))?;
        if !replace {
            reject_existing(object, &client, stop)?;
        }
        let marker = Marker::new()?;
        let options = PutMultipartOptions {
            attributes: marker.attributes(),
            ..PutMultipartOptions::default()
        };
        // A stopped job waits for the response, since an upload without an id could not be aborted.
        let created = object.store.run(
            stop.overdue(),
            client.create_multipart_opts(&object.key, options),
        );
        let created = created.map_err(|error| {
            let left =
                format!("an upload of {object} without parts, if the object store started one");
            JobError::Left {
                error: Box::new(error),
                left,
            }
        })?;
        let id = created.map_err(|error| job_error(object, Purpose::Write, &error))?;
        if !is_upload_id(&id) {
            let what = "the object store returned an invalid id for the upload".to_owned();
            return Err(JobError::Store {
                name: object.to_string(),
                what,
            });
        }

        Ok(Self {
            object: object.clone(),
            client,
            stop: stop.clone(),
            id,
            marker,
            length: 0,
            parts: Vec::new(),
            filling: Vec::new(),
            sending: None,
            completion,
            replace,
            is_over: false,
        })
    }

    /// Adds bytes. Sends a part when it is full.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), JobError> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            // Reserves the whole part at once: growing the buffer would hold the part twice.
            self.filling.reserve_exact(PART_BYTES - self.filling.len());
            let (now, later) = bytes.split_at(bytes.len().min(PART_BYTES - self.filling.len()));
            self.filling.extend_from_slice(now);
            bytes = later;
            if self.filling.len() == PART_BYTES {
                self.send_part()?;
            }
        }
        Ok(())
    }

    /// Waits for the previous part, and sends the filled part.
    fn send_part(&mut self) -> Result<(), JobError> {
        self.await_part()?;
        let number = self.parts.len();
        if number == PARTS_MAX {
            let gib = (PART_BYTES as u64 * PARTS_MAX as u64) >> 30;
            let what = format!(
                "an object has at most {PARTS_MAX} parts, which hold {gib} GiB: write a file, and copy it"
            );
            return Err(JobError::Store {
                name: self.object.to_string(),
                what,
            });
        }
        let payload = PutPayload::from(std::mem::take(&mut self.filling));
        let client = self.client.clone();
        let key = self.object.key.clone();
        let id = self.id.clone();
        let sending = async move { client.put_part(&key, &id, number, payload).await };
        self.sending = Some(self.object.store.runtime().spawn(sending));
        Ok(())
    }

    /// Waits until the part that is being sent arrives.
    fn await_part(&mut self) -> Result<(), JobError> {
        let Some(sending) = &mut self.sending else {
            return Ok(());
        };
        // The part stays in `sending` if the job is stopped, since the abort must wait for its end.
        let sent = self.object.store.run(self.stop.requested(), sending)?;
        self.sending = None;
        self.parts
            .push(sent?.map_err(|error| job_error(&self.object, Purpose::Write, &error))?);
        Ok(())
    }

    /// Completes the upload, so that the object appears.
    pub(crate) fn finish(mut self) -> Result<(), JobError> {
        match self.complete() {
            Ok(()) => {
                self.is_over = true;
                Ok(())
            }
            Err(error) => Err(self.discard(error)),
        }
    }

    fn complete(&mut self) -> Result<(), JobError> {
        if !self.filling.is_empty() {
            self.send_part()?;
        }
        self.await_part()?;

        let is_absent = !self.replace && reject_existing(&self.object, &self.client, &self.stop)?;
        self.stop.check()?;
        let completed = match self.try_complete()? {
            // The store does not support conditions. The check above is then the only check, so its
            // result must be known.
            Err(error)
                if status_of(&error) == Some(501)
                    && !self.replace
                    && !self.completion.is_unsure() =>
            {
                if !is_absent {
                    let what = "the object store does not tell whether the object exists: permit s3:GetObject and \
                        s3:ListBucket, or use --replace";
                    return Err(JobError::Store {
                        name: self.object.to_string(),
                        what: what.to_owned(),
                    });
                }
                self.completion.create_only.store(false, Ordering::Relaxed);
                self.try_complete()?
            }
            completed => completed,
        };

        let Err(error) = completed else { return Ok(()) };
        let is_unsure = self.completion.is_unsure();
        let found = if needs_check(status_of(&error), is_unsure) {
            self.find_object()
        } else {
            Found::Unknown
        };
        outcome(&self.object, &error, found, is_unsure, !self.replace)
    }

    /// Checks for the object after a failed completion.
    fn find_object(&self) -> Found {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        match self.object.store.run(
            self.stop.overdue(),
            self.client.get_opts(&self.object.key, options),
        ) {
            Ok(Ok(found)) => self.marker.owner_of(&found, self.length),
            Ok(Err(error)) if status_of(&error) == Some(404) => Found::Nothing,
            _ => Found::Unknown,
        }
    }

    /// Completes the upload. Once the request is sent, a stopped job waits for the response, since
    /// only the response shows the outcome.
    fn try_complete(&self) -> Result<object_store::Result<()>, JobError> {
        let completing =
            self.client
                .complete_multipart(&self.object.key, &self.id, self.parts.clone());
        let completed = self.object.store.run(self.stop.overdue(), completing);
        completed.map(|completed| completed.map(drop)).map_err(|_| {
            let what = format!(
                "the job was stopped while the object store completed the upload{NOT_KNOWN}"
            );
            JobError::Store {
                name: self.object.to_string(),
                what,
            }
        })
    }

    /// Aborts the upload after an error. Returns the error, and describes the remaining parts if
    /// the abort failed.
    pub(crate) fn discard(mut self, error: JobError) -> JobError {
        match self.abort() {
            Ok(()) => error,
            Err(left) => {
                let left = format!(
                    "the parts of the upload {} ({left}); abort it, or let a rule of the bucket do so",
                    self.id
                );
                JobError::Left {
                    error: Box::new(error),
                    left,
                }
            }
        }
    }

    fn abort(&mut self) -> Result<(), JobError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let sending = self.sending.take();
        let aborted = self.object.store.run(self.stop.discard_overdue(), async {
            // A part that arrives after the abort would remain.
            if let Some(sending) = sending {
                sending.abort();
                let _ = sending.await;
            }
            self.client
                .abort_multipart(&self.object.key, &self.id)
                .await
        });
        match aborted {
            Err(_) => {
                let what = "the object store did not respond after the job was stopped".to_owned();
                Err(JobError::Store {
                    name: self.object.to_string(),
                    what,
                })
            }
            Ok(Err(error)) if status_of(&error) != Some(404) => {
                Err(job_error(&self.object, Purpose::Write, &error))
            }
            // If the upload does not exist, nothing remains.
            _ => Ok(()),
        }
    }
}

impl Drop for S3Upload {
    fn drop(&mut self) {
        if !self.is_over {
            // The job panicked, or its future was dropped. Nothing waits for the error, so the
            // deadline begins now.
            self.stop.request();
            // If an asynchronous task drops the upload, its thread must not wait for another task.
            // A separate thread waits instead.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = self.abort();
                });
            });
        }
    }
}

/// Returns true if errors can show the store's id of an upload.
fn is_upload_id(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns an error if the object exists. Returns true if the object is known to be absent. A
/// client without the right to list gets 403 for a missing object. In this case, only the
/// completion shows whether the object exists.
fn reject_existing(object: &S3Object, client: &AmazonS3, stop: &JobStop) -> Result<bool, JobError> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    match object
        .store
        .run(stop.requested(), client.get_opts(&object.key, options))?
    {
        Ok(_) => Err(JobError::Exists {
            path: object.to_string().into(),
        }),
        Err(error) => match status_of(&error) {
            Some(404) => Ok(true),
            Some(403) => Ok(false),
            _ => Err(job_error(object, Purpose::Write, &error)),
        },
    }
}
