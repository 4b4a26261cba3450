use super::*;
use crate::results::{
    CheckpointUse, DatabaseUse, IdleUse, Machine, Routing, SCALE, ScaleFigures, ScalePoint, Times,
    TokenTable,
};

/// Engine CPU time of a request and of a batch, in microseconds.
const ENGINE_US: (f64, f64) = (20.0, 100.0);
const DATABASE_US: (f64, f64) = (10.0, 50.0);
/// Items per batch, over requests per second and engine.
const BATCH_S: f64 = 0.001;
const INDEX_BYTES: f64 = 64.0;
const IMAGE_BYTES: f64 = 6_000.0;
const LOG_BYTES: f64 = 450.0;
const IDLE_ENGINE_US_PER_S: f64 = 1_000.0;
/// Per engine.
const IDLE_DATABASE_US_PER_S: f64 = 500.0;

/// Results of engines that cost exactly what the model says.
pub(super) fn scale() -> ScaleFigures {
    let point = |load: ScaleLoad, engines: u32| {
        let ok_per_s = 10_000.0;
        let items = BATCH_S * ok_per_s / f64::from(engines);
        let cost = |(request, batch): (f64, f64)| {
            if load.uses_database() {
                request + batch / items
            } else {
                request
            }
        };
        ScalePoint {
            round: 1,
            load,
            way: Routing::Endpoints,
            engines,
            ok: 10_000,
            ok_per_s,
            errors: 0,
            latency_us: Times::default(),
            shares: vec![1.0 / f64::from(engines); engines as usize],
            engine_cpu_us: cost(ENGINE_US) + IDLE_ENGINE_US_PER_S * f64::from(engines) / ok_per_s,
            client_cpu_us: 10.0,
            bytes: 1_000.0,
            batch_items: load.uses_database().then_some(items),
            database: load.uses_database().then(|| DatabaseUse {
                cpu_us: Some(cost(DATABASE_US) + IDLE_DATABASE_US_PER_S * 4.0 / ok_per_s),
                wal_bytes: if load == ScaleLoad::Tokenize {
                    LOG_BYTES + 0.1 * IMAGE_BYTES
                } else {
                    0.0
                },
                full_pages: if load == ScaleLoad::Tokenize {
                    0.1
                } else {
                    0.0
                },
            }),
        }
    };
    let (rows, made) = (1_000_000, 5_000.0);
    let images = 2.0 * touched(1e6 * INDEX_BYTES, made);
    ScaleFigures {
        schema: SCALE.into(),
        tool: String::new(),
        started: String::new(),
        version: String::new(),
        machine: Machine {
            cores: 2,
            cpu: String::new(),
            os: String::new(),
        },
        same_machine: true,
        clients: 8,
        in_flight: 8,
        connections: 2,
        fields: 30,
        field_bytes: 16,
        duration_s: 5.0,
        idle: IdleUse {
            engines: 4,
            engine_cpu_us_per_s: IDLE_ENGINE_US_PER_S,
            engine_bytes: 4e7,
            database_connections: 6.0,
            database_cpu_us_per_s: Some(IDLE_DATABASE_US_PER_S),
        },
        table: Some(TokenTable {
            rows,
            heap_bytes: 200 * rows,
            random_index_bytes: vec![INDEX_BYTES as u64 * rows; 2],
            connections_max: 100,
        }),
        checkpoint: Some(CheckpointUse {
            tokens: made as u64,
            wal_bytes: LOG_BYTES + images * IMAGE_BYTES / made,
            full_pages: images / made,
            rows,
        }),
        restarts: Vec::new(),
        points: ScaleLoad::ALL
            .into_iter()
            .flat_map(|load| [1, 2, 4].map(|engines| point(load, engines)))
            .collect(),
    }
}

fn deployment(change: impl FnOnce(&mut DeploymentSpec)) -> DeploymentSpec {
    let mut deployment = DeploymentSpec {
        engines: vec![1, 100],
        tokens: 1e9,
        engine_cores: 4.0,
        engine_network_bits_per_s: 1e10,
        engine_connections_max: 1_024.0,
        principal_connections_max: 256.0,
        database_cores: 32.0,
        database_cache_bytes: 1e12,
        database_reads_per_s: 1e5,
        database_writes_per_s: 1e9,
        database_log_bytes_per_s: 1e9,
        database_connections_max: 1_000.0,
        checkpoint_s: 300.0,
        wal_bytes_max: 1e15,
        batch_items_max: 1_000.0,
        clients: 100.0,
        principals: 100.0,
        connections: 2.0,
        busy_max: 0.5,
    };
    change(&mut deployment);
    deployment
}

fn mix(weights: &[(ScaleLoad, f64)]) -> Mix {
    Mix::new(weights).unwrap()
}

fn near(is: f64, expected: f64) {
    assert!(
        (is / expected - 1.0).abs() < 1e-3,
        "{is} where {expected} was expected"
    );
}

#[test]
fn costs_are_those_that_were_measured() {
    let costs = MeasuredCosts::of(&scale()).unwrap();
    for load in [ScaleLoad::Tokenize, ScaleLoad::Detokenize] {
        let cost = costs.load(load).unwrap();
        for (is, expected) in [(cost.engine_us, ENGINE_US), (cost.database_us, DATABASE_US)] {
            near(is.0, expected.0);
            near(is.1, expected.1);
        }
        near(cost.batch_s, BATCH_S);
    }
    assert_eq!(
        costs.load(ScaleLoad::Encrypt).unwrap().engine_us,
        (ENGINE_US.0, 0.0)
    );
    near(costs.page_image_bytes, IMAGE_BYTES);
    near(costs.log_bytes, LOG_BYTES);
    // The measurement with four engines follows from those with fewer.
    let checks = costs::checks(&scale());
    assert_eq!(checks.len(), 4);
    for check in checks {
        near(check.engine_us.0, check.engine_us.1);
        if let Some((predicted, measured)) = check.database_us {
            near(predicted, measured);
        }
    }
}

#[test]
fn the_resource_that_is_at_its_limit_first_is_named() {
    let documents = [(ScaleLoad::Encrypt, 1.0)];
    let tokens = [(ScaleLoad::Tokenize, 1.0)];
    let look_ups = [(ScaleLoad::Detokenize, 3.0)];
    let first = |weights: &[(ScaleLoad, f64)], engines: u32, change: fn(&mut DeploymentSpec)| {
        let deployment = deployment(|deployment| {
            deployment.engines = vec![engines];
            change(deployment);
        });
        let calculation = calculate(&scale(), &deployment, &[mix(weights)]).unwrap();
        let row = calculation.mixes[0].rows[0].clone();
        // At that rate the resource is at its limit and no other is above its own.
        assert!(
            row.use_of_limit.iter().all(|(_, part)| *part <= 1.0 + 1e-9),
            "{row:?}"
        );
        near(
            row.use_of_limit
                .iter()
                .find(|(of, _)| *of == row.limit)
                .unwrap()
                .1,
            1.0,
        );
        (row.limit, row.requests_per_s)
    };
    // 4 cores, half of them for work, less a millisecond a second.
    let (limit, rate) = first(&documents, 1, |_| ());
    assert_eq!(limit, Resource::EngineCpu);
    near(rate, (2.0 - 0.001) * 1e6 / 20.0);
    let (limit, rate) = first(&documents, 100, |_| ());
    assert_eq!(limit, Resource::EngineCpu);
    near(rate, 100.0 * (2.0 - 0.001) * 1e6 / 20.0);
    let (limit, rate) = first(&documents, 100, |to| to.engine_network_bits_per_s = 1e6);
    assert_eq!(limit, Resource::EngineNetwork);
    near(rate, 100.0 * 0.5e6 / 8_000.0);
    // With many engines each batch has one item, until the rate per engine is above a thousand.
    let (limit, rate) = first(&tokens, 100, |to| {
        (to.database_cores, to.database_log_bytes_per_s) = (2.1, 1e12)
    });
    assert_eq!(limit, Resource::DatabaseCpu);
    near(rate, 1e6 / 60.0);
    let (limit, rate) = first(&tokens, 100, |to| to.database_log_bytes_per_s = 1e6);
    assert_eq!(limit, Resource::DatabaseLog);
    // The indexes have far more pages than a checkpoint's new tokens: each token costs two whole
    // pages.
    near(rate, 0.5e6 / (LOG_BYTES + 2.0 * IMAGE_BYTES));
    // Longer between checkpoints, fewer whole pages.
    let longer = first(&tokens, 100, |to| {
        (to.database_log_bytes_per_s, to.checkpoint_s) = (1e8, 36_000.0)
    });
    assert!(
        longer.1 > 2.0 * first(&tokens, 100, |to| to.database_log_bytes_per_s = 1e8).1,
        "{longer:?}"
    );
    // The memory holds half of 328 bytes for each token.
    let (limit, rate) = first(&look_ups, 100, |to| to.database_cache_bytes = 0.5 * 328e9);
    assert_eq!(limit, Resource::DatabaseReads);
    near(rate, 0.5e5);
    // Each page that a token changes is written before the next checkpoint, and rows fill pages.
    let (limit, rate) = first(&tokens, 100, |to| {
        (to.database_writes_per_s, to.tokens, to.database_cache_bytes) = (2e3, 1e12, 1e15);
    });
    assert_eq!(limit, Resource::DatabaseWrites);
    near(rate, 1e3 / (2.0 + 200.0 / 8_192.0));
    // A log that may not grow makes checkpoints more frequent, and pages are logged and written
    // more often.
    let large = |to: &mut DeploymentSpec| {
        (
            to.checkpoint_s,
            to.database_writes_per_s,
            to.database_log_bytes_per_s,
        ) = (36_000.0, 2e5, 1e15);
    };
    let seldom = first(&tokens, 100, large).1;
    let often = first(&tokens, 100, |to| {
        (
            to.checkpoint_s,
            to.database_writes_per_s,
            to.database_log_bytes_per_s,
        ) = (36_000.0, 2e5, 1e15);
        to.wal_bytes_max = 1e9;
    });
    assert_eq!(often.0, Resource::DatabaseWrites);
    assert!(often.1 < 0.8 * seldom, "{often:?} {seldom}");
}

#[test]
fn batches_are_as_large_as_is_permitted() {
    let costs = MeasuredCosts::of(&scale()).unwrap();
    for (load, per_s, engines, expected) in [
        (ScaleLoad::Tokenize, 1.0, 1, 1.0),
        (ScaleLoad::Tokenize, 10_000.0, 2, 5.0),
        (ScaleLoad::Tokenize, 1e9, 1, 512.0),
        (ScaleLoad::Detokenize, 1e9, 1, 1_000.0),
        (ScaleLoad::Encrypt, 1e9, 1, 1.0),
    ] {
        near(costs.batch_items(load, per_s, engines), expected);
    }
    let rate = |batch_items_max: f64| {
        let deployment =
            deployment(|to| (to.engines, to.batch_items_max) = (vec![1], batch_items_max));
        let mix = mix(&[(ScaleLoad::Tokenize, 1.0)]);
        calculate(&scale(), &deployment, &[mix]).unwrap().mixes[0].rows[0].requests_per_s
    };
    near(rate(1.0), (2.0 - 0.001) * 1e6 / 120.0);
    assert!(rate(1_000.0) > 4.0 * rate(1.0));
}

#[test]
fn use_without_requests_is_no_cost_of_a_request() {
    let mut busy = scale();
    let idle = &mut busy.idle;
    (idle.engine_cpu_us_per_s, idle.database_cpu_us_per_s) = (20_000.0, Some(10_000.0));
    for point in &mut busy.points {
        let add = |us_per_s: f64, engines: u32| us_per_s * f64::from(engines) / point.ok_per_s;
        point.engine_cpu_us += add(19_000.0, point.engines);
        if let Some(used) = &mut point.database {
            used.cpu_us = used.cpu_us.map(|us| us + add(9_500.0, 4));
        }
    }
    let (busy, usual) = (
        MeasuredCosts::of(&busy).unwrap(),
        MeasuredCosts::of(&scale()).unwrap(),
    );
    for (busy, usual) in busy.loads.iter().zip(&usual.loads) {
        near(busy.engine_us.0, usual.engine_us.0);
        near(busy.database_us.0 + 1.0, usual.database_us.0 + 1.0);
    }
}

#[test]
fn more_of_a_resource_never_serves_less() {
    let all: Vec<(ScaleLoad, f64)> = ScaleLoad::ALL.map(|load| (load, 1.0)).into();
    let rate = |change: fn(&mut DeploymentSpec)| {
        let deployment = deployment(change);
        calculate(&scale(), &deployment, &[mix(&all)])
            .unwrap()
            .mixes[0]
            .rows
            .iter()
            .map(|row| row.requests_per_s)
            .collect::<Vec<_>>()
    };
    let base = rate(|_| ());
    assert!(base[0] <= base[1], "{base:?}");
    let more: [fn(&mut DeploymentSpec); 6] = [
        |to| to.engine_cores *= 2.0,
        |to| to.engine_network_bits_per_s *= 2.0,
        |to| to.database_cores *= 2.0,
        |to| to.database_cache_bytes *= 2.0,
        |to| to.database_log_bytes_per_s *= 2.0,
        |to| to.tokens /= 2.0,
    ];
    for change in more {
        let rates = rate(change);
        assert!(
            rates
                .iter()
                .zip(&base)
                .all(|(more, base)| *more >= base * 0.999),
            "{rates:?} {base:?}"
        );
    }
}

#[test]
fn bounds_on_connections_are_named_with_both_numbers() {
    let deployment = deployment(|to| (to.database_connections_max, to.clients) = (602.0, 600.0));
    let tokens = mix(&[(ScaleLoad::Tokenize, 1.0)]);
    let documents = mix(&[(ScaleLoad::Encrypt, 1.0)]);
    let calculation = calculate(&scale(), &deployment, &[tokens, documents]).unwrap();
    let clients = (ConnectionBound::EngineConnections, 1_200.0, 1_024.0);
    let exceeded = |of: usize, row: usize| calculation.mixes[of].rows[row].exceeded.clone();
    assert_eq!(exceeded(0, 0), [clients]);
    assert_eq!(
        exceeded(0, 1),
        [
            (ConnectionBound::DatabaseConnections, 600.0, 599.0),
            clients
        ]
    );
    assert_eq!(exceeded(1, 1), [clients], "documents need no database");
    let said = text(&calculation);
    for part in [
        "database connections: 600 of 599",
        "raise limits.connections_max",
        "100 % tokenize",
        "100 % encrypt",
    ] {
        assert!(said.contains(part), "{part}:\n{said}");
    }
}

#[test]
fn clients_with_one_name_share_the_bound_of_a_principal() {
    let exceeded = |clients: f64, principals: f64| {
        let deployment = deployment(|to| (to.clients, to.principals) = (clients, principals));
        let calculation =
            calculate(&scale(), &deployment, &[mix(&[(ScaleLoad::Encrypt, 1.0)])]).unwrap();
        calculation.mixes[0].rows[0].exceeded.clone()
    };
    let named = |needed| [(ConnectionBound::PrincipalConnections, needed, 256.0)];
    assert_eq!(exceeded(128.0, 1.0), []);
    assert_eq!(exceeded(129.0, 1.0), named(258.0));
    assert_eq!(
        exceeded(257.0, 2.0),
        named(258.0),
        "names do not share clients evenly"
    );
    assert_eq!(exceeded(512.0, 512.0), []);
}

#[test]
fn a_mix_without_a_measurement_is_no_calculation() {
    let mut scale = scale();
    scale
        .points
        .retain(|point| point.load != ScaleLoad::Encrypt);
    scale
        .points
        .iter_mut()
        .for_each(|point| point.database = None);
    let error = |load: ScaleLoad| {
        calculate(&scale, &deployment(|_| ()), &[mix(&[(load, 1.0)])])
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(error(ScaleLoad::Decrypt), Ok(()));
    assert_eq!(
        error(ScaleLoad::Encrypt),
        Err("the results have no `encrypt`: measure it".into())
    );
    let said = "the results have no `tokenize`: measure it with --database";
    assert_eq!(
        error(ScaleLoad::Tokenize),
        Err(said.into()),
        "its database time is not known"
    );
    scale.points.clear();
    assert!(calculate(&scale, &deployment(|_| ()), &[]).is_err());
    let mut failed = self::scale();
    failed.points[0].errors = 7;
    let error = calculate(&failed, &deployment(|_| ()), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("7 requests of `encrypt` failed"), "{error}");
    let mut short = self::scale();
    short.checkpoint.as_mut().unwrap().full_pages = 0.0;
    let error = calculate(&short, &deployment(|_| ()), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("has no more whole pages"), "{error}");
    for weights in [
        &[][..],
        &[(ScaleLoad::Encrypt, 0.0)],
        &[(ScaleLoad::Encrypt, -1.0), (ScaleLoad::Decrypt, 2.0)],
    ] {
        assert!(Mix::new(weights).is_err(), "{weights:?}");
    }
}
