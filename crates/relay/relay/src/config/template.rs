//! The template and `docs/relay-configuration.md`. Both are generated from the table of keys.

use sealwire_service::settings;

use super::keys::SECTIONS;

const HEAD: &str = "\
# Configuration of sealwire-relay. Lines that begin with \"#: \" show a key that is not set; remove \"#: \" to set it.
# Environment variables override keys of the tables engine, limits, admin and log: SEALWIRE_RELAY_LIMITS_BODY_BYTES=65536.
";

/// Examples of rules and of a CONNECT proxy, appended after the sections of the table.
const EXAMPLES: &str = include_str!("examples.toml");

/// Returns a commented configuration with every key. `sealwire-relay config template` prints it.
pub fn template() -> String {
    let mut text = settings::template(HEAD, SECTIONS, "#: ");
    text.push('\n');
    text.push_str(EXAMPLES);
    text
}

const MARKDOWN_HEAD: &str = "\
# Configuration of the relay

One TOML file, given by `--config`. It must have `[engine]`, at least one listener and one route; other keys are
needed only if they differ from their defaults. Relative paths are taken from the working folder. Secrets stand only in files that
the configuration names. `sealwire-relay config check` lists all errors of a file at once, by line and key, and
`sealwire-relay doctor` checks the files, certificates, addresses and the engine too. `sealwire-relay config template` prints a
commented file to start from.

The environment variable `SEALWIRE_RELAY_<SECTION>_<KEY>` overrides a key of `[engine]`, `[limits]`, `[admin]` or `[log]`, such as
`SEALWIRE_RELAY_LIMITS_BODY_BYTES`. A list is in TOML there, or separated by commas.

Written by `sealwire-relay config template --markdown`; a test compares it with the program.
";

/// Returns the keys as Markdown with a table per section, for `docs/relay-configuration.md`.
pub fn markdown() -> String {
    settings::markdown(MARKDOWN_HEAD, SECTIONS, "meaning")
}

#[cfg(test)]
mod tests {
    use super::super::{compile, parse};
    use super::*;
    use sealwire_service::settings::Literal;
    use std::fmt::Write as _;

    /// The smallest text without errors of the check.
    const SMALL: &str =
        "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n";

    #[test]
    fn the_template_can_be_used_as_it_is() {
        let config = parse(&template(), []).unwrap_or_else(|errors| panic!("{errors}"));
        let compiled = compile(&config).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(
            (compiled.listeners.len(), compiled.warnings),
            (2, Vec::<String>::new())
        );
    }

    #[test]
    fn template_values_are_accepted() {
        let set: String = template()
            .lines()
            .map(|line| format!("{}\n", line.trim_start_matches("#: ")))
            .collect();
        parse(&set, []).unwrap_or_else(|errors| panic!("{errors}"));
    }

    #[test]
    fn defaults_of_the_table_are_those_of_the_program() {
        // Everything but the defaults of the table, so that both texts mean the same if the
        // defaults do.
        let with = |defaults: bool| {
            let mut text = String::new();
            for section in SECTIONS {
                let _ = writeln!(text, "{}", section.header());
                for key in section.keys {
                    let value = match key.default {
                        Literal::Required(_) => Some(key.default.toml()),
                        Literal::Unset(_) | Literal::Rare(_) => None,
                        default => Some(default.toml()).filter(|_| defaults),
                    };
                    if let Some(value) = value {
                        let _ = writeln!(text, "{} = {value}", key.name);
                    }
                }
            }
            let config = parse(&text, []).unwrap_or_else(|errors| panic!("{errors}"));
            format!(
                "{:?}",
                super::super::Config {
                    lines: Default::default(),
                    ..config
                }
            )
        };
        assert_eq!(with(true), with(false));
    }

    #[test]
    fn the_table_has_every_key_of_the_program() {
        // serde names the keys that it knows in the error of a key that it does not.
        for section in SECTIONS {
            let header = section.header();
            let required: String = section
                .keys
                .iter()
                .filter_map(|key| match key.default {
                    Literal::Required(value) => Some(format!("{} = {value}\n", key.name)),
                    _ => None,
                })
                .collect();
            let engine = if section.name == "engine" { "" } else { SMALL };
            let text = format!("{engine}{header}\nno_such_key = 1\n{required}");
            let text = if section.name == "route.request" {
                format!(
                    "{SMALL}[[route]]\nname = 'r'\nlisten = 'l'\npath = '/'\nupstream = 'u'\n{header}\nno_such_key = 1\n{required}"
                )
            } else {
                text
            };
            let message = toml::from_str::<super::super::Config>(&text)
                .unwrap_err()
                .message()
                .to_owned();
            let known = message
                .split("expected ")
                .nth(1)
                .unwrap_or_else(|| panic!("{}: {message}", section.name));
            let mut known: Vec<&str> = known
                .trim_start_matches("one of ")
                .split(", ")
                .flat_map(|keys| keys.split(" or "))
                .map(|key| key.trim_matches('`'))
                .filter(|key| section.name != "route" || !matches!(*key, "request" | "response"))
                .collect();
            let mut table: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
            known.sort_unstable();
            table.sort_unstable();
            assert_eq!(table, known, "{}", section.name);
        }
    }

    #[test]
    fn the_configuration_document_is_the_table_of_keys() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/relay-configuration.md"
        );
        let is_current = std::fs::read_to_string(file).is_ok_and(|text| text == markdown());
        assert!(
            is_current,
            "write it with `cargo run -p sealwire-relay -- config template --markdown > docs/relay-configuration.md`"
        );
    }

    fn ops(file: &str) -> String {
        let path = format!("{}/../../../ops/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn the_example_can_be_used() {
        let config =
            parse(&ops("relay/relay.toml"), []).unwrap_or_else(|errors| panic!("{errors}"));
        let compiled = compile(&config).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(compiled.warnings, Vec::<String>::new());
    }

    #[test]
    fn the_unit_has_room_for_the_default_limits() {
        let limits = super::super::Limits::default();
        let unit = ops("systemd/sealwire-relay.service");
        let number = |key: &str| -> u64 {
            let line = unit
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap_or_else(|| panic!("{key}"));
            line.parse().unwrap()
        };
        assert!(number("LimitNOFILE=") > 2 * u64::from(limits.connections_max) + 128);
        assert!(number("TimeoutStopSec=") * 1_000 > limits.drain_ms);
        assert_eq!(number("LimitCORE="), 0);
        // The exit code of a configuration that is not accepted.
        assert_eq!(number("RestartPreventExitStatus="), 64);
    }
}
