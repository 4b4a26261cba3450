//! A configuration is complete and within its limits, or refused without repeating what it said.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sealwire_server::config::{Config, Environment, keys};

/// Stands for a secret pasted into the wrong key.
const SECRET: &str = "hunter2-5f4dcc3b5aa765d61d8327deb882cf99";

fuzz_target!(|input: (&str, u8, bool, Vec<(&str, &str)>)| {
    let (text, key, quoted, variables) = input;
    check(text, &variables);

    let keys: Vec<_> = keys::all().collect();
    let key = keys[usize::from(key) % keys.len()];
    let value = if quoted { format!("\"{text}{SECRET}\"") } else { format!("{text}{SECRET}") };
    check(&format!("[{}]\n{} = {value}\n", key.section, key.name), &variables);
    check("", &[(key.variable().as_str(), value.as_str())]);
});

fn check(text: &str, variables: &[(&str, &str)]) {
    let environment = || Environment::from_pairs(variables.iter().map(|(name, value)| (*name, *value)));
    match Config::parse(text, &environment(), Path::new("etc")) {
        Ok(config) => {
            assert!(config.limits.check().is_ok());
            assert_eq!(Config::parse(text, &environment(), Path::new("etc")).as_ref(), Ok(&config));
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.is_empty());
            assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
            // Names are shown, cut to 64 characters; values are not.
            let is_name = variables.iter().any(|(name, _)| name.contains(SECRET));
            assert!(is_name || !shown.contains(SECRET), "{shown}");
        }
    }
}
