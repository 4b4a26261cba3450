//! Configuration: a file is either complete and within its limits, or rejected without repeating a
//! value.

use std::path::Path;

use sealwire_settings::{Config, Environment, keys};

use crate::input::text;
use crate::seed::words as list;
use crate::{Input, Seed};

/// A secret that was pasted under the wrong key.
const SECRET: &str = "hunter2-5f4dcc3b5aa765d61d8327deb882cf99";

/// Parses a file together with environment variables. Settings: key, quotes, variables up to a zero
/// byte.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let key = usize::from(input.byte());
    let quoted = input.byte() & 1 != 0;
    let variables: Vec<(&str, &str)> = input
        .text_until(0)
        .split('\n')
        .filter_map(|line| line.split_once('='))
        .take(8)
        .collect();
    let text = text(input.0);
    check_config(text, &variables);

    let keys: Vec<_> = keys::all().collect();
    let key = keys[key % keys.len()];
    let value = if quoted {
        format!("\"{text}{SECRET}\"")
    } else {
        format!("{text}{SECRET}")
    };
    check_config(
        &format!("[{}]\n{} = {value}\n", key.section, key.name),
        &variables,
    );
    check_config("", &[(keys::variable(key).as_str(), value.as_str())]);
}

fn check_config(text: &str, variables: &[(&str, &str)]) {
    let environment =
        Environment::from_pairs(variables.iter().map(|(name, value)| (*name, *value)));
    match Config::parse(text, &environment, Path::new("etc")) {
        Ok(config) => {
            assert!(config.limits.check().is_ok());
            assert_eq!(
                Config::parse(text, &environment, Path::new("etc")).as_ref(),
                Ok(&config)
            );
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty());
            assert!(
                message.chars().all(|c| c == '\n' || !c.is_control()),
                "{message:?}"
            );
            // Errors show names, cut to 64 characters, but no values.
            let is_name = variables.iter().any(|(name, _)| name.contains(SECRET));
            assert!(is_name || !message.contains(SECRET), "{message}");
        }
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut sections: Vec<&str> = keys::all().map(|key| key.section).collect();
    sections.dedup();
    let mut seeds = Vec::new();
    for (name, value) in [
        ("number", "1"),
        ("text", "\"x\""),
        ("list", "[\"a\"]"),
        ("flag", "true"),
    ] {
        for section in &sections {
            let lines = keys::all()
                .filter(|key| key.section == *section)
                .map(|key| format!("{} = {value}\n", key.name));
            let text = format!("[{section}]\n{}", lines.collect::<String>());
            seeds.push(Seed::new(format!("{section}-{name}"), &[0, 0, 0], text));
        }
    }
    let variables = keys::all()
        .step_by(9)
        .map(|key| format!("{}=1\n", keys::variable(key)))
        .collect::<String>();
    seeds.push(Seed::new(
        "variables",
        &[3, 1],
        [variables.as_bytes(), &[0]].concat(),
    ));
    seeds.push(Seed::new("broken", &[5, 0, 0], "[tls\nkey == 1"));
    seeds.push(Seed::new("empty", &[0, 0, 0], ""));
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let names = keys::all().flat_map(|key| {
        [
            format!("[{}]\n", key.section),
            format!("{} = ", key.name),
            format!("{}=", keys::variable(key)),
        ]
    });
    let mut words: Vec<Vec<u8>> = names.map(String::into_bytes).collect();
    words.sort_unstable();
    words.dedup();
    words.extend(list([
        "true",
        "false",
        "\"\"",
        "[]",
        "{}",
        "0.5",
        "1_000",
        "\"127.0.0.1:1\"",
        "\"info\"",
        "\"\"\"",
        "-1",
    ]));
    words
}
