//! Runs every block of commands in the guides of objects and data subjects, in order, in one shell,
//! beside a `sealwire dev`.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::cli::Dev;
use crate::operations::guide::{Block, blocks, fits};
use crate::operations::read;

#[test]
fn commands_of_the_objects_guide_work() {
    run("docs/objects.md", 7);
}

#[test]
fn commands_of_the_data_subjects_guide_work() {
    run("docs/data-subjects.md", 6);
}

/// Runs the commands of a guide, which must have at least `blocks_min` blocks.
fn run(guide: &str, blocks_min: usize) {
    let dev = Dev::start_to_come_again();
    let folder = dev.path();
    fs::create_dir(folder.join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_sealwire"), folder.join("bin/sealwire")).unwrap();
    let blocks = blocks(guide, &read(guide));
    assert!(
        blocks.len() >= blocks_min,
        "{} blocks were found",
        blocks.len()
    );
    let mut script = String::from("set -euo pipefail\n");
    for (at, block) in blocks.iter().enumerate() {
        fs::write(folder.join(format!("{at}.sh")), &block.commands).unwrap();
        let _ = writeln!(script, "echo {at} > at; . ./{at}.sh > {at}.out 2> {at}.err");
    }
    fs::write(folder.join("all.sh"), script).unwrap();
    let path = format!(
        "{}:{}",
        folder.join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let outcome = Command::new("bash")
        .arg("all.sh")
        .current_dir(folder)
        .env("PATH", path)
        .status()
        .unwrap();
    let text = |name: String| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let last: usize = text("at".into()).trim().parse().unwrap();
    let Block { line, commands, .. } = &blocks[last];
    assert!(
        outcome.success(),
        "{guide}:{line}: failed: {commands}\n{}",
        text(format!("{last}.err"))
    );
    assert_eq!(last + 1, blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        let Some(shown) = &block.shown else { continue };
        let output = text(format!("{at}.out"));
        let same = fits(
            &shown.lines().collect::<Vec<_>>(),
            &output.lines().collect::<Vec<_>>(),
        );
        assert!(
            same,
            "{guide}:{}: prints\n{output}\nand not\n{shown}",
            block.line
        );
    }
    dev.stop();
}
