//! The result file `curves.json`: the machine, its libraries and every time.
//!
//! Reads only the current schema version. An error says which field is wrong and how to write the
//! file again.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::machine::MachineInfo;

/// Version of the file's schema. Version 1 was a list of results without a version or a machine.
pub(crate) const SCHEMA_VERSION: u64 = 2;

/// The command that writes a result file of this schema.
const WRITE_AGAIN: &str = "run `cargo bench -p sealwire-curves --bench curves` with this version of the code on the \
                           machine that the file describes (`-- none` keeps its times and measures nothing)";

/// A whole result file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResultFile {
    /// The machine that wrote the file.
    pub(crate) machine: MachineInfo,
    /// One entry per bench.
    pub(crate) results: Vec<TimedResult>,
}

/// The time of one bench.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimedResult {
    /// The curve or the algorithm.
    pub(crate) subject: String,
    /// The operation.
    pub(crate) operation: String,
    /// The implementation.
    pub(crate) implementation: String,
    /// Bytes of the message, if the operation has one.
    pub(crate) bytes: Option<u64>,
    /// The median time in nanoseconds.
    pub(crate) median_ns: f64,
    /// True if the engine uses this implementation.
    pub(crate) engine: bool,
    /// True if the time was measured in an earlier run, perhaps with other versions of the
    /// libraries.
    pub(crate) earlier_run: bool,
}

impl TimedResult {
    fn address(&self) -> (&str, &str, &str, Option<u64>) {
        (
            &self.subject,
            &self.operation,
            &self.implementation,
            self.bytes,
        )
    }
}

impl ResultFile {
    /// Formats the file.
    pub(crate) fn to_json(&self) -> Value {
        let result = |result: &TimedResult| {
            json!({
                "subject": result.subject,
                "operation": result.operation,
                "implementation": result.implementation,
                "bytes": result.bytes,
                "median_ns": result.median_ns,
                "engine": result.engine,
                "earlier_run": result.earlier_run,
            })
        };
        json!({
            "schema_version": SCHEMA_VERSION,
            "machine": machine_json(&self.machine),
            "results": self.results.iter().map(result).collect::<Value>(),
        })
    }

    /// Parses a file.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the file and what to do.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: Value = serde_json::from_str(text)
            .map_err(|error| format!("is not JSON ({error}): {WRITE_AGAIN}"))?;
        let version = if file.is_array() {
            Some(1)
        } else {
            file["schema_version"].as_u64()
        };
        match version {
            Some(SCHEMA_VERSION) => {}
            None => {
                return Err(format!(
                    "is not a result file, because it has no `schema_version`: {WRITE_AGAIN}"
                ));
            }
            Some(newer) if newer > SCHEMA_VERSION => {
                return Err(format!(
                    "has schema version {newer}, and this program reads {SCHEMA_VERSION}: compare with the version of \
                     the code that wrote the file, or a later one"
                ));
            }
            Some(older) => {
                return Err(format!(
                    "has schema version {older}, and this program reads {SCHEMA_VERSION}: {WRITE_AGAIN}"
                ));
            }
        }
        parse_current(&file).map_err(|field| format!("{field}: {WRITE_AGAIN}"))
    }
}

/// Formats a machine, as in a result file.
pub(crate) fn machine_json(machine: &MachineInfo) -> Value {
    json!({ "cpu": machine.cpu, "cores": machine.cores, "libraries": machine.libraries })
}

/// Parses a file of the current version. An error names the field.
fn parse_current(file: &Value) -> Result<ResultFile, String> {
    let root = Field {
        value: file,
        path: String::new(),
    };
    let machine = root.get("machine");
    let libraries = machine.get("libraries");
    let entries = libraries
        .value
        .as_object()
        .ok_or_else(|| libraries.wrong("an object"))?;
    let library = |name: &String| Ok((name.clone(), libraries.get(name).text()?));
    let machine = MachineInfo {
        cpu: machine.get("cpu").text()?,
        cores: machine.get("cores").number()?,
        libraries: entries.keys().map(library).collect::<Result<_, String>>()?,
    };
    let list = root.get("results");
    let count = list
        .value
        .as_array()
        .ok_or_else(|| list.wrong("a list"))?
        .len();
    let results = (0..count)
        .map(|at| parse_result(&list.item(at)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    for (at, result) in results.iter().enumerate() {
        if !seen.insert(result.address()) {
            return Err(format!(
                "has `results[{at}]` twice ({:?})",
                result.address()
            ));
        }
    }
    Ok(ResultFile { machine, results })
}

fn parse_result(result: &Field<'_>) -> Result<TimedResult, String> {
    let bytes = result.get("bytes");
    Ok(TimedResult {
        subject: result.get("subject").text()?,
        operation: result.get("operation").text()?,
        implementation: result.get("implementation").text()?,
        bytes: if bytes.value.is_null() {
            None
        } else {
            Some(bytes.number()?)
        },
        median_ns: result.get("median_ns").time()?,
        engine: result.get("engine").flag()?,
        earlier_run: result.get("earlier_run").flag()?,
    })
}

/// A value with its path in the file, which errors name. A missing value is null.
struct Field<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Field<'a> {
    fn get(&self, key: &str) -> Field<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Field {
            value: &self.value[key],
            path: format!("{}{dot}{key}", self.path),
        }
    }

    fn item(&self, at: usize) -> Field<'a> {
        Field {
            value: &self.value[at],
            path: format!("{}[{at}]", self.path),
        }
    }

    fn wrong(&self, wanted: &str) -> String {
        match self.value {
            Value::Null => format!("lacks `{}`", self.path),
            _ => format!("has a `{}` that is not {wanted}", self.path),
        }
    }

    fn text(&self) -> Result<String, String> {
        let text = self.value.as_str().filter(|text| !text.is_empty());
        text.map(String::from)
            .ok_or_else(|| self.wrong("a text with at least one character"))
    }

    fn number(&self) -> Result<u64, String> {
        self.value
            .as_u64()
            .ok_or_else(|| self.wrong("a whole number"))
    }

    fn time(&self) -> Result<f64, String> {
        self.value
            .as_f64()
            .filter(|ns| *ns > 0.0)
            .ok_or_else(|| self.wrong("a number above 0"))
    }

    fn flag(&self) -> Result<bool, String> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong("`true` or `false`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ResultFile {
        let result = |implementation: &str, bytes, median_ns| TimedResult {
            subject: "aes256gcm".into(),
            operation: "seal".into(),
            implementation: implementation.into(),
            bytes,
            median_ns,
            engine: implementation == "aws_lc_rs",
            earlier_run: false,
        };
        let libraries = [("ring".into(), "0.17.14".into())].into();
        ResultFile {
            machine: MachineInfo {
                cpu: "AMD EPYC".into(),
                cores: 2,
                libraries,
            },
            results: vec![
                result("aws_lc_rs", Some(16), 85.5),
                result("ring", None, 90.0),
            ],
        }
    }

    #[test]
    fn a_written_file_reads_as_it_was() {
        let text = file().to_json().to_string();
        assert_eq!(ResultFile::parse(&text), Ok(file()));
    }

    #[test]
    fn another_schema_version_is_rejected_with_the_remedy() {
        let with_version = |version: Value| {
            let mut file = file().to_json();
            file["schema_version"] = version;
            file.to_string()
        };
        for (text, says, remedy) in [
            (String::new(), "is not JSON (EOF", "run `cargo bench"),
            (
                "{\"schema_version\": 2".into(),
                "is not JSON (EOF",
                "run `cargo bench",
            ),
            (
                "[]".into(),
                "has schema version 1, and this program reads 2",
                "run `cargo bench",
            ),
            (
                with_version(json!(1)),
                "has schema version 1, and this program reads 2",
                "run `cargo bench",
            ),
            (
                with_version(json!(3)),
                "has schema version 3, and this program reads 2",
                "or a later one",
            ),
            (
                with_version(json!("2")),
                "has no `schema_version`",
                "run `cargo bench",
            ),
            ("{}".into(), "has no `schema_version`", "run `cargo bench"),
            ("7".into(), "has no `schema_version`", "run `cargo bench"),
        ] {
            let error = ResultFile::parse(&text).unwrap_err();
            assert!(
                error.contains(says) && error.contains(remedy),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_missing_or_wrong_field_is_named() {
        for (pointer, value, says) in [
            ("/machine", json!(null), "lacks `machine.libraries`"),
            ("/machine/cpu", json!(null), "lacks `machine.cpu`"),
            (
                "/machine/cpu",
                json!(""),
                "has a `machine.cpu` that is not a text with at least one character",
            ),
            (
                "/machine/cores",
                json!(2.5),
                "has a `machine.cores` that is not a whole number",
            ),
            (
                "/machine/libraries",
                json!([]),
                "has a `machine.libraries` that is not an object",
            ),
            (
                "/machine/libraries/ring",
                json!(17),
                "has a `machine.libraries.ring` that is not a text",
            ),
            ("/results", json!(null), "lacks `results`"),
            ("/results", json!({}), "has a `results` that is not a list"),
            ("/results/1", json!(null), "lacks `results[1].subject`"),
            (
                "/results/0/subject",
                json!(null),
                "lacks `results[0].subject`",
            ),
            (
                "/results/0/operation",
                json!(1),
                "has a `results[0].operation` that is not a text",
            ),
            (
                "/results/0/implementation",
                json!(null),
                "lacks `results[0].implementation`",
            ),
            (
                "/results/0/bytes",
                json!(-16),
                "has a `results[0].bytes` that is not a whole number",
            ),
            (
                "/results/1/median_ns",
                json!(null),
                "lacks `results[1].median_ns`",
            ),
            (
                "/results/1/median_ns",
                json!(0),
                "has a `results[1].median_ns` that is not a number above 0",
            ),
            (
                "/results/1/median_ns",
                json!("85"),
                "has a `results[1].median_ns` that is not a number above 0",
            ),
            (
                "/results/1/engine",
                json!(null),
                "lacks `results[1].engine`",
            ),
            (
                "/results/1/earlier_run",
                json!(0),
                "has a `results[1].earlier_run` that is not `true` or `false`",
            ),
            (
                "/results/1",
                file().to_json()["results"][0].clone(),
                "has `results[1]` twice",
            ),
        ] {
            let mut spoilt = file().to_json();
            *spoilt.pointer_mut(pointer).unwrap() = value;
            let error = ResultFile::parse(&spoilt.to_string()).unwrap_err();
            assert!(
                error.starts_with(says) && error.contains(": run `cargo bench"),
                "{pointer}: {error}"
            );
        }
    }
}
