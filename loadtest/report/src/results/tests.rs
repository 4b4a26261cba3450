//! Tests the format by example: results of other writers are read, and written results are read
//! back unchanged.

use serde_json::{Value, json};

use super::*;

/// Returns an example of a run. `sealwire-load` tests with it, too.
pub(crate) fn run() -> Value {
    serde_json::from_str(include_str!("run.json")).unwrap()
}

/// Parses a value, writes it, and checks that parsing the written text gives the same figures.
fn check(value: &Value) -> Figures {
    let read = Figures::parse(&value.to_string()).unwrap();
    let again = match &read {
        Figures::Run(run) => serde_json::to_string(run),
        Figures::Sweep(sweep) => serde_json::to_string(sweep),
    };
    assert_eq!(Figures::parse(&again.unwrap()).unwrap(), read);
    read
}

#[test]
fn schemas_are_read_by_their_names() {
    let Figures::Run(one) = check(&run()) else {
        panic!("no run")
    };
    assert_eq!(
        (one.conditions.mode, one.classes[0].errors["overloaded"]),
        (Mode::Open, 3)
    );
    assert_eq!(
        (one.classes[0].histogram_us[1], one.conditions.callers),
        ((6.0, 997), None)
    );

    let knee = json!({"offered_per_s": 1000, "ok_per_s": 999, "why": "p99 beyond"});
    let Figures::Sweep(sweep) =
        check(&json!({"schema": SWEEP, "runs": [run(), run()], "knee": knee}))
    else {
        panic!("no sweep")
    };
    assert_eq!(sweep.runs.len(), 2);
}

#[test]
fn values_that_are_no_figures_are_rejected() {
    let without = |key: &str| {
        let mut run = run();
        run.as_object_mut().unwrap().remove(key);
        run.to_string()
    };
    for text in [
        String::new(),
        "[]".to_owned(),
        json!({"schema": "sealwire.load/2"}).to_string(),
        without("schema"),
        without("totals"),
        run().to_string().replace("\"open\"", "\"ajar\""),
    ] {
        assert!(Figures::parse(&text).is_err(), "{text}");
    }
    let missing = Figures::read(Path::new("no-such-file.json"))
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("no-such-file.json: "), "{missing}");
}
