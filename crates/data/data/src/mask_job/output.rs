//! Atomic output: the output appears only when it is complete.
//!
//! On Linux the unfinished output is a file without a name, so a killed job leaves no file. If the
//! file system does not support such files, the output is a temporary file in its directory, which
//! is removed if the job fails.

use sealwire_service::output_file;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::mask_job::error::JobError;
use crate::mask_job::s3::{S3Object, S3Upload};
use crate::mask_job::stop::JobStop;

/// The destination of a job's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A file.
    File {
        /// The file's path.
        path: PathBuf,
        /// True if a complete output replaces an existing file.
        replace: bool,
    },
    /// An object. Only for Parquet.
    Object {
        /// The object.
        object: S3Object,
        /// True if a complete output replaces an existing object.
        replace: bool,
    },
    /// Standard output. Bytes written before a failure remain written.
    Stdout,
    /// Discards the output. For callers that need only the report.
    Nowhere,
}

/// The source of a job's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// An object. Only for Parquet.
    Object(S3Object),
    /// Standard input.
    Stdin,
}

impl Input {
    /// Returns the input's name for error messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Object(object) => object.to_string(),
            Self::Stdin => "standard input".to_owned(),
        }
    }

    /// Returns the path of a file that is read twice.
    pub(crate) fn text_file(&self) -> Result<&Path, JobError> {
        match self {
            Self::File(path) => Ok(path),
            Self::Object(object) => Err(only_parquet(object)),
            Self::Stdin => Err(JobError::Plan(
                "standard input cannot be read twice: name a file".to_owned(),
            )),
        }
    }
}

/// Returns the error for an object in a format other than Parquet.
pub(crate) fn only_parquet(object: &S3Object) -> JobError {
    JobError::Plan(format!(
        "{object}: only Parquet is read from and written to object stores; copy other files"
    ))
}

/// An unfinished output.
pub(crate) enum UnfinishedOutput {
    Stdout(io::Stdout),
    Nowhere,
    Object(Box<S3Upload>),
    /// A file without a name.
    #[cfg(target_os = "linux")]
    Unnamed {
        file: BufWriter<File>,
        path: PathBuf,
        replace: bool,
    },
    Named {
        file: BufWriter<NamedTempFile>,
        path: PathBuf,
        replace: bool,
    },
}

impl UnfinishedOutput {
    /// Creates the output of a job. `input` is the input file, if any; the output must be a
    /// different file.
    pub(crate) fn create(
        output: &Output,
        input: Option<Metadata>,
        stop: &JobStop,
    ) -> Result<Self, JobError> {
        let (path, replace) = match output {
            Output::File { path, replace } => (path.clone(), *replace),
            Output::Object { object, replace } => {
                return Ok(Self::Object(Box::new(S3Upload::start(
                    object, *replace, stop,
                )?)));
            }
            Output::Stdout => return Ok(Self::Stdout(io::stdout())),
            Output::Nowhere => return Ok(Self::Nowhere),
        };
        output_file::check_against(&path, replace, input.as_slice())?;

        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed_file(parent_folder(&path)) {
            return Ok(Self::Unnamed {
                file: BufWriter::new(file),
                path,
                replace,
            });
        }
        let file = named_file(&path).map_err(JobError::io(&path))?;
        Ok(Self::Named {
            file: BufWriter::new(file),
            path,
            replace,
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        let written = match self {
            Self::Stdout(out) => out.write_all(bytes),
            Self::Nowhere => Ok(()),
            Self::Object(upload) => return upload.write(bytes),
            #[cfg(target_os = "linux")]
            Self::Unnamed { file, .. } => file.write_all(bytes),
            Self::Named { file, .. } => file.write_all(bytes),
        };
        written.map_err(JobError::io(self.path()))
    }

    /// Atomically makes the output durable and visible.
    pub(crate) fn finish(self) -> Result<(), JobError> {
        if let Self::Object(upload) = self {
            return upload.finish();
        }
        let path = self.path().to_owned();
        self.make_visible().map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => JobError::Exists { path: path.clone() },
            _ => JobError::Io {
                path: path.clone(),
                source,
            },
        })
    }

    /// Discards the output after an error. Returns the error, and adds the name of an output that
    /// could not be removed.
    pub(crate) fn discard(self, error: JobError) -> JobError {
        match self {
            Self::Object(upload) => upload.discard(error),
            _ => error,
        }
    }

    fn make_visible(self) -> io::Result<()> {
        match self {
            Self::Stdout(mut out) => out.flush(),
            Self::Nowhere | Self::Object(_) => Ok(()),
            #[cfg(target_os = "linux")]
            Self::Unnamed {
                file,
                path,
                replace,
            } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.sync_all()?;
                link_file(&file, &path, replace)?;
                File::open(parent_folder(&path))?.sync_all()
            }
            Self::Named {
                file,
                path,
                replace,
            } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                let kept = if replace {
                    file.persist(&path)
                } else {
                    file.persist_noclobber(&path)
                };
                kept.map_err(|error| error.error)?;
                File::open(parent_folder(&path))?.sync_all()
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Stdout(_) => Path::new("standard output"),
            Self::Nowhere => Path::new("nowhere"),
            // An upload creates its own errors.
            Self::Object(_) => Path::new("object"),
            #[cfg(target_os = "linux")]
            Self::Unnamed { path, .. } => path,
            Self::Named { path, .. } => path,
        }
    }
}

fn parent_folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Creates a temporary file in the directory of `path`, with a name that shows its purpose.
fn named_file(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(".partial")
        .tempfile_in(parent_folder(path))
}

#[cfg(target_os = "linux")]
fn unnamed_file(folder: &Path) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR).ok()?);
    // Linking the file to its name requires /proc.
    proc_path(&file).exists().then_some(file)
}

#[cfg(target_os = "linux")]
fn proc_path(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(target_os = "linux")]
fn link_file(file: &File, path: &Path, replace: bool) -> io::Result<()> {
    if !replace {
        return create_link(file, path);
    }
    // A link cannot replace a file, but a rename can. The output briefly has both names.
    let temporary = named_file(path)?.into_temp_path();
    fs::remove_file(&temporary)?;
    create_link(file, &temporary)?;
    temporary.persist(path).map_err(|error| error.error)
}

#[cfg(target_os = "linux")]
fn create_link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    Ok(linkat(
        CWD,
        proc_path(file),
        CWD,
        path,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an output in each way that files are written, independent of the file system.
    fn unfinished_outputs(path: &Path, replace: bool) -> Vec<UnfinishedOutput> {
        let file = BufWriter::new(named_file(path).expect("a file beside it"));
        let mut outputs = vec![UnfinishedOutput::Named {
            file,
            path: path.to_owned(),
            replace,
        }];
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed_file(parent_folder(path)) {
            outputs.push(UnfinishedOutput::Unnamed {
                file: BufWriter::new(file),
                path: path.to_owned(),
                replace,
            });
        }
        outputs
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("folder");
        entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect()
    }

    #[test]
    fn unfinished_outputs_are_invisible() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("out");
        let count = unfinished_outputs(&path, false).len();
        for at in 0..count {
            let mut output = unfinished_outputs(&path, false).swap_remove(at);
            output.write(b"whole").expect("writes");
            assert!(!path.exists());
            drop(output);
            assert_eq!(names(folder.path()), [""; 0]);

            let mut output = unfinished_outputs(&path, false).swap_remove(at);
            output.write(b"whole").expect("writes");
            output.finish().expect("finishes");
            assert_eq!(fs::read(&path).expect("reads"), b"whole");

            // Another writer has created the file first.
            let error = unfinished_outputs(&path, false)
                .swap_remove(at)
                .finish()
                .expect_err("is there");
            assert!(matches!(error, JobError::Exists { .. }), "{error}");
            assert_eq!(fs::read(&path).expect("reads"), b"whole");
            let mut output = unfinished_outputs(&path, true).swap_remove(at);
            output.write(b"new").expect("writes");
            output.finish().expect("replaces");
            assert_eq!(fs::read(&path).expect("reads"), b"new");
            assert_eq!(names(folder.path()), ["out"]);
            fs::remove_file(&path).expect("removes");
        }
    }
}
