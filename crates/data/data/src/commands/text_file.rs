//! Text files that commands read whole: rules and lists.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use sealwire_command_line::Failure;

/// Reads a regular file of at most `bytes_max` bytes. Devices and pipes can be endless, so they are
/// rejected before they are opened.
pub(super) fn read_text_file(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    let name = path.display();
    let metadata = path
        .metadata()
        .map_err(|error| format!("{name}: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("{name} is not a regular file").into());
    }

    let text =
        read_at_most(path, bytes_max as u64 + 1).map_err(|error| format!("{name}: {error}"))?;
    if text.len() > bytes_max {
        return Err(format!("{name} has more than {bytes_max} bytes").into());
    }
    Ok(text)
}

fn read_at_most(path: &Path, bytes: u64) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(bytes).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn text_files_are_regular_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = |text: &[u8]| -> PathBuf {
            let path = folder.path().join("text");
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(read_text_file(&file(b"four"), 4).unwrap(), "four");
        for (path, expected) in [
            (file(b"four"), "text has more than 3 bytes"),
            (
                PathBuf::from("/dev/zero"),
                "/dev/zero is not a regular file",
            ),
            (folder.path().to_owned(), "is not a regular file"),
            (folder.path().join("none"), "No such file"),
        ] {
            let error = read_text_file(&path, 3).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = read_text_file(&file(b"\xff"), 3).unwrap_err().to_string();
        assert!(error.contains("UTF-8"), "{error}");
    }
}
