//! Tests the format by example: results of other writers are read, and written results are read
//! back unchanged.

use serde_json::{Value, json};

use super::*;

/// Returns an example of a run. `sealwire-load` tests with it, too.
pub(crate) fn run() -> Value {
    serde_json::from_str(include_str!("run.json")).unwrap()
}

/// Returns a run of a vault load with a kill and a lost row.
pub(crate) fn vault_run() -> Value {
    let mut run = run();
    let times = json!({"mean_us": 3, "p95_us": 3.5});
    run["classes"][0]["over_time"][0]
        .as_object_mut()
        .unwrap()
        .extend(times.as_object().unwrap().clone());
    let kinds = json!([{
        "name": "look-up", "ok": 9_000, "failed": 1, "mean_us": 500, "p95_us": 900, "p99_us": 1_500, "max_us": 9_000
    }]);
    let rows = |phase: &str, checked: u64, lost: u64| json!({"phase": phase, "checked": checked, "lost": lost, "wrong": 0});
    run["vault"] = json!({
        "engines": 3, "rows": 10_000, "rows_at_end": 10_900, "fill_s": 2.5,
        "kill": {"address": "127.0.0.1:7443", "at_s": 0.2, "recovered_s": 0.45, "in_flight": 12},
        "phases": [
            {"phase": "before", "from_s": 0, "to_s": 0.2, "kinds": kinds},
            {"phase": "during", "from_s": 0.2, "to_s": 0.45, "kinds": kinds},
            {"phase": "after", "from_s": 0.45, "to_s": 10, "kinds": kinds}
        ],
        "retried": {"connection_lost": 12}, "given_up": {}, "errors": {},
        "wrong_responses": 0, "first_wrong": null,
        "check": {
            "phases": [rows("fill", 10_000, 0), rows("before", 100, 0), rows("during", 50, 1), rows("after", 750, 0)],
            "examples": ["row 10100 is not there"], "seconds": 0.4
        }
    });
    run
}

pub(crate) fn backends() -> Value {
    let operations =
        json!({"ops": 10_000, "threads": 8, "per_s": 12_345.6, "p50_us": 500, "p99_us": 2_000});
    json!({
        "schema": "sealwire.backends/1",
        "rows": [{"store": "memory", "durability": "none", "write": operations, "read": operations}],
        "conditions": {"machine": {"cores": 2, "cpu": "a processor", "os": "Linux 6.1"}}
    })
}

pub(crate) fn scale() -> Value {
    let times = json!({"min": 1, "p50": 2_000, "p90": 3_000, "p99": 9_000, "p999": 9_500, "max": 9_900, "mean": 2_500});
    let point = |round: u32, load: &str, way: &str, engines: u32, us: f64| {
        let shares = if engines == 1 {
            vec![1.0]
        } else {
            vec![0.45, 0.55]
        };
        json!({
            "round": round, "load": load, "way": way, "engines": engines, "ok": 1_000, "ok_per_s": 500, "errors": 0,
            "latency_us": times, "shares": shares, "engine_cpu_us": us, "client_cpu_us": 12, "bytes": 170,
            "batch_items": if load == "tokenize" { json!(4) } else { Value::Null },
            "database": if load == "tokenize" { json!({"cpu_us": 30, "wal_bytes": 460, "full_pages": 0.01}) } else { Value::Null }
        })
    };
    json!({
        "schema": "sealwire.scale/1", "tool": "sealwire-load 0.1.0", "started": "2026-03-14T09:26:53Z", "version": "0.1.0",
        "machine": {"cores": 2, "cpu": "a processor", "os": "Linux 6.1"}, "same_machine": true,
        "clients": 8, "in_flight": 8, "connections": 2, "fields": 30, "field_bytes": 16, "duration_s": 5,
        "idle": {
            "engines": 2, "engine_cpu_us_per_s": 998, "engine_bytes": 34_000_000, "database_connections": 6,
            "database_cpu_us_per_s": 100
        },
        "table": {
            "rows": 1_000_000, "heap_bytes": 191_000_000, "random_index_bytes": [64_000_000, 65_000_000],
            "connections_max": 100
        },
        "checkpoint": {"tokens": 20_000, "wal_bytes": 1_850, "full_pages": 0.3, "rows": 1_000_000},
        "restarts": [{
            "way": "balancer", "engines": 2, "away_s": 0.5, "settle_s": 5, "share": 0.12, "ok": 10_000, "errors": 0
        }],
        "points": [
            point(1, "encrypt", "endpoints", 1, 40.0), point(2, "encrypt", "endpoints", 1, 60.0),
            point(3, "encrypt", "endpoints", 1, 44.0), point(1, "encrypt", "endpoints", 2, 42.0),
            point(1, "tokenize", "endpoints", 2, 57.0), point(1, "tokenize", "balancer", 2, 55.0)
        ]
    })
}

/// Parses a value, writes it, and checks that parsing the written text gives the same figures.
fn check(value: &Value) -> Figures {
    let read = Figures::parse(&value.to_string()).unwrap();
    let again = match &read {
        Figures::Run(run) => serde_json::to_string(run),
        Figures::Sweep(sweep) => serde_json::to_string(sweep),
        Figures::Backends(backends) => serde_json::to_string(backends),
        Figures::Scale(scale) => serde_json::to_string(scale),
    };
    assert_eq!(Figures::parse(&again.unwrap()).unwrap(), read);
    read
}

#[test]
fn each_schema_is_read_as_what_it_is() {
    let Figures::Run(vault) = check(&vault_run()) else {
        panic!("no run")
    };
    assert_eq!(
        vault
            .vault
            .map(|vault| (vault.check.checked(), vault.check.lost())),
        Some((10_900, 1))
    );
    let Figures::Run(one) = check(&run()) else {
        panic!("no run")
    };
    assert_eq!(one.vault, None);
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
    let Figures::Backends(backends) = check(&backends()) else {
        panic!("no backends")
    };
    assert_eq!(backends.rows[0].write.threads, 8);
    let Figures::Scale(scale) = check(&scale()) else {
        panic!("no engines")
    };
    assert_eq!(scale.kinds().len(), 4);
    let kind = (ScaleLoad::Encrypt, Routing::Endpoints, 1);
    assert_eq!(
        scale.median(kind, |point| Some(point.engine_cpu_us)),
        Some(44.0)
    );
    assert_eq!(scale.median(kind, |point| point.batch_items), None);
}

#[test]
fn what_is_no_figure_is_refused() {
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
