//! Tests of `sealwire doctor` from a script's view: exit status and JSON. The findings are tested
//! in the program's sources.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sealwire");

fn doctor(folder: &Path, options: &[&str]) -> Output {
    let config = ["doctor", "--config", "sealwire-dev/sealwire.toml"];
    Command::new(PROGRAM)
        .current_dir(folder)
        .args(config)
        .args(options)
        .output()
        .unwrap()
}

fn found(folder: &Path) -> Value {
    serde_json::from_slice(&doctor(folder, &["--json"]).stdout).unwrap()
}

#[test]
fn the_exit_status_and_the_json_say_how_bad_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0";
    let made = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args([
            "dev",
            "--demo-only",
            "--listen",
            any,
            "--admin",
            any,
            "--control",
            any,
            "--http",
            "127.0.0.1:0",
        ])
        .output()
        .unwrap();
    assert!(made.status.success());
    let config = folder.path().join("sealwire-dev/sealwire.toml");
    let good = std::fs::read_to_string(&config).unwrap();
    for (more, status, worst) in [
        ("", 0, "good or warning"),
        (
            "[limits]\nconnections_max = 65536\n[schedule]\nmemory_mib = 700\n",
            0,
            "good or warning",
        ),
        ("[schedule]\nmemory_mib = 1_048_576\n", 1, "wrong"),
        ("[nothing]\n", 1, "wrong"),
    ] {
        std::fs::write(&config, format!("{good}{more}")).unwrap();
        let output = doctor(folder.path(), &[]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(status), "{more}: {said}");
        let found = found(folder.path());
        assert!(
            worst.contains(found["worst"].as_str().unwrap()),
            "{more}: {found}"
        );
        let all = found["findings"].as_array().unwrap();
        let of = |level: &str| all.iter().filter(|it| it["level"] == level).count();
        let counts = format!(
            "{} good, {} warnings, {} wrong\n",
            of("good"),
            of("warning"),
            of("wrong")
        );
        assert!(said.ends_with(&counts), "{said} is not {counts}");
        for finding in all.iter().filter(|finding| finding["level"] != "good") {
            for part in ["check", "what", "why", "remedy"] {
                let text = finding[part].as_str().unwrap();
                assert!(
                    !text.is_empty() && said.contains(text),
                    "{part} of {finding} is not in {said}"
                );
            }
        }
        assert_eq!(said.contains("wrong    "), status == 1, "{said}");
    }
}
