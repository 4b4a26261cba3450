//! Checks that the container file names only existing packages, programs, keys and ports. The
//! container is not built here.

use std::collections::BTreeSet;
use std::path::Path;

use sealwire_settings::{Config, Environment, keys};

use crate::operations::read;
use crate::operations::unit::takes;

const FILE: &str = "ops/container/Containerfile";

/// Returns the instructions, each on one line, without comments.
fn instructions() -> Vec<String> {
    let text = read(FILE).replace("\\\n", " ");
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(str::to_owned)
        .collect()
}

fn arguments(instruction: &str) -> Vec<String> {
    let mut found = instructions().into_iter().filter_map(|line| {
        line.strip_prefix(instruction)
            .map(str::trim)
            .map(str::to_owned)
    });
    let (Some(one), None) = (found.next(), found.next()) else {
        panic!("{instruction} is not there once")
    };
    one.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_container_file_names_what_there_is() {
    let all = instructions();
    let build = all
        .iter()
        .find(|line| line.starts_with("RUN cargo build"))
        .unwrap();
    for (option, value) in [("--package", "sealwire-cli"), ("--bin", "sealwire")] {
        assert!(
            build.contains(&format!("{option} {value} ")) && build.contains("--locked"),
            "{build}"
        );
    }
    assert!(read("crates/cli/Cargo.toml").contains("[[bin]]\nname = \"sealwire\""));
    let rust = read("Cargo.toml");
    let rust = rust
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .unwrap();
    assert!(
        all[0].contains(&format!("rust:{rust}-")),
        "the compiler is not the one of Cargo.toml: {}",
        all[0]
    );
    assert!(!all.iter().any(|line| line.contains(":latest")));
    let user = arguments("USER ");
    assert!(
        !user[0].starts_with("root") && !user[0].starts_with('0'),
        "{user:?}"
    );

    let entry: Vec<String> = serde_json::from_str(&arguments("ENTRYPOINT ").concat()).unwrap();
    assert!(
        all.iter()
            .any(|line| line.starts_with("COPY") && line.ends_with(&entry[0])),
        "{entry:?} is not copied"
    );
    let command: Vec<String> = serde_json::from_str(&arguments("CMD ").join(" ")).unwrap();
    takes(&command.iter().map(String::as_str).collect::<Vec<_>>());

    let variables: Vec<(String, String)> = arguments("ENV ")
        .iter()
        .map(|pair| {
            pair.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .unwrap()
        })
        .collect();
    for (name, _) in &variables {
        assert!(
            keys::all().any(|key| keys::variable(key) == *name),
            "{name} overrides no key"
        );
    }
    let config = Config::parse(
        "",
        &Environment::from_pairs(variables),
        Path::new("/etc/sealwire"),
    )
    .unwrap();
    let ports: BTreeSet<u16> = arguments("EXPOSE ")
        .iter()
        .map(|port| port.parse().unwrap())
        .collect();
    assert_eq!(
        ports,
        BTreeSet::from([config.listen.address.unwrap().port()])
    );
    assert!(
        config.listen.address.unwrap().ip().is_unspecified(),
        "nobody would reach it"
    );
    // Metrics and health have no authentication.
    assert!(config.admin.address.ip().is_loopback());
    let owned = all
        .iter()
        .find(|line| line.starts_with("COPY") && line.contains("--chown=nonroot"))
        .unwrap();
    assert!(
        config
            .state
            .folder
            .starts_with(owned.rsplit(' ').next().unwrap()),
        "the state is kept where nobody may write"
    );
}
