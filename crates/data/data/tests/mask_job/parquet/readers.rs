//! Outputs are read by pyarrow and DuckDB, which share no code with the jobs.

use std::path::Path;
use std::process::Command;

use parquet::arrow::arrow_reader::{ArrowReaderOptions, RowSelection, RowSelector};

use super::*;

/// Runs `readers.py`, and returns what it prints.
fn python(arguments: &[&str]) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = here.join("../../../target/interop-venv/bin/python");
    assert!(
        program.exists(),
        "{} is missing: run .ci/setup",
        program.display()
    );
    let script = here.join("tests/mask_job/parquet/readers.py");
    let output = Command::new(program)
        .arg(script)
        .args(arguments)
        .output()
        .expect("starts");
    assert!(
        output.status.success(),
        "{}: {}",
        arguments[0],
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the files that pyarrow makes, with their names.
fn made() -> Vec<(String, Bytes)> {
    let folder = tempfile::tempdir().expect("folder");
    python(&["make", &folder.path().display().to_string()]);
    let mut names: Vec<_> = fs::read_dir(&folder)
        .expect("reads")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    let name = |path: &Path| {
        path.file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    names
        .into_iter()
        .map(|path| (name(&path), fs::read(path).expect("reads").into()))
        .collect()
}

const MAIL: &str = "unknown = \"keep\"\n[[rule]]\ncolumn = \"mail\"\nmask = \"redact\"\n";

/// Checks that the locations of pages lead to the last row of each row group.
fn check_locations(name: &str, file: &Bytes) {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    for group in 0..metadata(file).num_row_groups() {
        let reader = || {
            let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(
                file.clone(),
                options.clone(),
            );
            reader.expect("a reader").with_row_groups(vec![group])
        };
        let all: Vec<_> = reader()
            .build()
            .expect(name)
            .collect::<Result<_, _>>()
            .expect(name);
        let Some(batch) = all.last() else { continue };
        let rows: usize = all.iter().map(RecordBatch::num_rows).sum();
        let last = RowSelection::from(vec![RowSelector::skip(rows - 1), RowSelector::select(1)]);
        let found: Vec<_> = reader()
            .with_row_selection(last)
            .build()
            .expect(name)
            .collect::<Result<_, _>>()
            .expect(name);
        assert_eq!(
            found,
            [batch.slice(batch.num_rows() - 1, 1)],
            "{name}, row group {group}"
        );
    }
}

/// Outputs that a second reader compares with their inputs.
struct Outputs {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Outputs {
    fn add(&mut self, name: &str, before: &Bytes, after: &Bytes, changed: &str) {
        check_locations(name, after);
        for file in [before, after] {
            let path = self
                .folder
                .path()
                .join(format!("{}_{name}.parquet", self.arguments.len()));
            fs::write(&path, file).expect("writes");
            self.arguments.push(path.display().to_string());
        }
        self.arguments.push(changed.to_owned());
    }

    fn check(&self) {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        python(&[&["check"], &arguments[..]].concat());
    }
}

#[test]
fn row_groups_without_rows_come_back_in_every_reader() {
    let mut outputs = Outputs {
        folder: tempfile::tempdir().expect("folder"),
        arguments: Vec::new(),
    };
    for (name, source) in made() {
        let (masked, report) = Run::new().mask(&source, &rules(MAIL)).expect(&name);
        assert_eq!(
            report.records as i64,
            metadata(&source).file_metadata().num_rows(),
            "{name}"
        );
        outputs.add(&name, &source, &masked, "mail");
        for (select, changed) in [(&["$.mail"][..], "mail"), (&[], "*")] {
            let sealed = Run::new()
                .change(&source, select, Direction::Seal)
                .expect(&name);
            outputs.add(&name, &source, &sealed, changed);
            let opened = Run::new()
                .change(&sealed, select, Direction::Open)
                .expect(&name);
            outputs.add(&name, &source, &opened, "");
        }
        // Masks an output of this program again: chunks without pages are copied.
        let kept = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"mail\"\nmask = \"keep\"\n");
        let (copy, _) = Run::new().mask(&masked, &kept).expect(&name);
        outputs.add(&name, &masked, &copy, "");
    }
    outputs.check();
}

#[test]
fn row_groups_are_pruned_by_untouched_columns_as_before() {
    let (_, source) = made()
        .into_iter()
        .find(|(name, _)| name == "groups")
        .expect("a file");
    let (masked, _) = Run::new().mask(&source, &rules(MAIL)).expect("masks");
    let sealed = Run::new()
        .change(&source, &["$.mail"], Direction::Seal)
        .expect("encrypts");
    let opened = Run::new()
        .change(&sealed, &["$.mail"], Direction::Open)
        .expect("decrypts");
    let folder = tempfile::tempdir().expect("folder");
    let pruned = |file: &Bytes| {
        let path = folder.path().join("file.parquet");
        fs::write(&path, file).expect("writes");
        python(&[
            "pruning",
            &path.display().to_string(),
            "number",
            "single",
            "double",
            "text",
            "time",
        ])
    };
    let before = pruned(&source);
    assert!(before.contains("\"double\": [1, 1]"), "{before}");
    for (name, output) in [
        ("masked", &masked),
        ("encrypted", &sealed),
        ("decrypted", &opened),
    ] {
        assert_eq!(pruned(output), before, "{name}");
        let orders = |file: &Bytes| metadata(file).file_metadata().column_orders().cloned();
        assert_eq!(orders(output), orders(&source), "{name}");
    }
}
