//! Tests of the program's output.

use std::process::{Command, Stdio};

#[test]
fn output_that_nobody_reads_ends_the_relay_quietly() {
    for (arguments, status) in [
        (&["config", "template"][..], 141),
        (&["config", "check", "absent.toml"], 64),
    ] {
        for all in [false, true] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let errors = if all {
                Stdio::from(writer.try_clone().unwrap())
            } else {
                Stdio::piped()
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire-relay"));
            let output = command
                .args(arguments)
                .stdout(writer)
                .stderr(errors)
                .spawn()
                .unwrap()
                .wait_with_output();
            let output = output.unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!said.contains("panicked"), "{arguments:?}: {said}");
            assert_eq!(
                output.status.code(),
                Some(status),
                "{arguments:?}, {all}: {said}"
            );
        }
    }
}
