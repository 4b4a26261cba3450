//! `report`: turns results files into a single self-contained page for people, without network,
//! script or font.
//!
//! Every string of a file is escaped, and the page's content policy forbids scripts and requests
//! (`html`, `page`).

mod chart;
mod compare;
mod html;
mod page;
mod plots;
mod scale;
mod spread;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use crate::results::Figures;

/// Maximum size of a file in bytes. The longest file that the generator writes (an hour in ten
/// classes) has about 10 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Results files of runs or sweeps, in the order of the page
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The output file; an existing file is replaced
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Title of the report
    #[arg(long, default_value = "Sealwire load report")]
    title: String,
}

/// A results file.
struct ReportPage {
    /// File name as given on the command line.
    name: String,
    /// Relative link from the page to the file.
    link: String,
    text: String,
    figures: Figures,
}

/// Writes the page and returns its path.
///
/// # Errors
///
/// Fails if a file cannot be read or is not a results file; the error names the file. Also fails if
/// the page is one of the input files or cannot be written.
pub fn run(args: &Args) -> io::Result<&Path> {
    let folder = folder(&args.output)?;
    let documents = args
        .files
        .iter()
        .map(|file| read(file, &folder))
        .collect::<io::Result<Vec<_>>>()?;
    if let Ok(output) = args.output.canonicalize()
        && args
            .files
            .iter()
            .any(|file| file.canonicalize().is_ok_and(|file| file == output))
    {
        let said = format!(
            "{}: is a file of figures, and would be replaced by the page",
            args.output.display()
        );
        return Err(io::Error::other(said));
    }
    let written = fs::write(&args.output, page::page(&args.title, &documents));
    written
        .map(|()| args.output.as_path())
        .map_err(|error| named(&args.output, error))
}

/// Returns the folder of the page.
fn folder(output: &Path) -> io::Result<PathBuf> {
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    folder.canonicalize().map_err(|error| named(folder, error))
}

fn read(file: &Path, folder: &Path) -> io::Result<ReportPage> {
    read_unnamed(file, folder).map_err(|error| named(file, error))
}

/// Reads a results file. Errors do not name the file.
fn read_unnamed(file: &Path, folder: &Path) -> io::Result<ReportPage> {
    let mut text = String::new();
    File::open(file)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "has more than {FILE_BYTES_MAX} bytes"
        )));
    }

    let figures = Figures::parse(&text)?;
    Ok(ReportPage {
        name: file.display().to_string(),
        link: link(&file.canonicalize()?, folder),
        text,
        figures,
    })
}

fn named(file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Returns the relative URL from a folder to a file, both given as absolute paths.
fn link(file: &Path, folder: &Path) -> String {
    let common = file
        .components()
        .zip(folder.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = folder.components().skip(common).map(|_| "..".to_owned());
    let down = file
        .components()
        .skip(common)
        .filter_map(|part| match part {
            Component::Normal(name) => Some(encoded(name.as_encoded_bytes())),
            _ => None,
        });
    up.chain(down).collect::<Vec<_>>().join("/")
}

fn encoded(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte))
            }
            // Writing to a string does not fail.
            other => drop(write!(out, "%{other:02X}")),
        }
    }
    out
}
