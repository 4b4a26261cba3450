//! Tests of the comparison, with results made up here.

use std::ffi::OsString;

use super::*;
use crate::machine::MachineInfo;

/// One bench: its address, its size, and its time.
type Bench<'a> = (&'a str, Option<u64>, f64);

fn side(name: &str, benches: &[Bench<'_>]) -> ComparedSide {
    let result = |(address, bytes, median_ns): &Bench<'_>| {
        let [subject, operation, implementation] = address.split('/').collect::<Vec<_>>()[..]
        else {
            panic!()
        };
        TimedResult {
            subject: subject.into(),
            operation: operation.into(),
            implementation: implementation.into(),
            bytes: *bytes,
            median_ns: *median_ns,
            engine: implementation == "aws_lc_rs",
            earlier_run: false,
        }
    };
    let libraries = [
        ("ring".into(), "0.17.14".into()),
        (format!("only_{name}"), "1.0".into()),
    ]
    .into();
    let machine = MachineInfo {
        cpu: format!("CPU of {name}"),
        cores: 2,
        libraries,
    };
    ComparedSide {
        name: name.into(),
        file: ResultFile {
            machine,
            results: benches.iter().map(result).collect(),
        },
    }
}

fn compare(a: &[Bench<'_>], b: &[Bench<'_>]) -> MachineComparison {
    MachineComparison::new([side("a", a), side("b", b)]).unwrap()
}

#[test]
fn arguments_are_two_files_and_perhaps_json() {
    let request = |json| {
        Ok(Some(CompareRequest {
            files: ["a".into(), "b".into()],
            json,
        }))
    };
    let fails = |text: &str| Err(format!("{text}\n{USAGE}"));
    for (arguments, wanted) in [
        ("--bench", Ok(None)),
        ("p256 --json", Ok(None)),
        ("--compare a b --bench", request(false)),
        ("--compare a b --json --bench", request(true)),
        ("--json --compare a b", request(true)),
        ("--compare", fails("--compare needs two files")),
        ("--compare a --bench", fails("--compare needs two files")),
        ("--compare --json a b", fails("--compare needs two files")),
        ("--compare a --json b", fails("--compare needs two files")),
        ("--compare a b c", fails("--compare does not take `c`")),
        (
            "--compare a b --quick",
            fails("--compare does not take `--quick`"),
        ),
        (
            "p256 --compare a b",
            fails("--compare does not take `p256`"),
        ),
        (
            "--compare a b --compare c d",
            fails("--compare does not take `--compare`"),
        ),
    ] {
        assert_eq!(
            CompareRequest::parse(arguments.split(' ').map(OsString::from)),
            wanted,
            "{arguments}"
        );
    }
}

#[test]
fn a_relative_path_is_of_the_shell_if_it_exists_there() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, shell, wanted) in [
        ("lib.rs", Some(&*source), source.join("lib.rs")),
        ("missing.json", Some(&*source), "missing.json".into()),
        ("lib.rs", None, "lib.rs".into()),
        ("/missing.json", Some(&*source), "/missing.json".into()),
    ] {
        assert_eq!(resolve(Path::new(path), shell), wanted, "{path}");
    }
}

#[test]
fn an_unreadable_or_wrong_file_is_named_with_the_remedy() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, says, remedy) in [
        (
            "missing.json",
            "missing.json cannot be read (",
            "target/curves/curves.json",
        ),
        ("src", "src cannot be read (", "target/curves/curves.json"),
        ("Cargo.toml", "Cargo.toml is not JSON (", "run `cargo bench"),
    ] {
        let error = read(Path::new(file), Some(package)).unwrap_err();
        assert!(error.starts_with(says) && error.contains(remedy), "{error}");
    }
}

#[test]
fn the_order_changes_with_a_reversed_pair_that_is_no_tie() {
    let bench = |name: &'static str, ns: f64| (name, None, ns);
    let (x, y, z) = ("p256/ecdh/x", "p256/ecdh/y", "p256/ecdh/z");
    for (a, b, reversed) in [
        (
            vec![bench(x, 1.0), bench(y, 2.0)],
            vec![bench(x, 3.0), bench(y, 4.0)],
            vec![],
        ),
        (
            vec![bench(x, 1.0), bench(y, 2.0)],
            vec![bench(x, 4.0), bench(y, 3.0)],
            vec![["x", "y"]],
        ),
        // A tie on both sides.
        (
            vec![bench(x, 1.0), bench(y, 1.04)],
            vec![bench(x, 1.04), bench(y, 1.0)],
            vec![],
        ),
        // A tie on one side.
        (
            vec![bench(x, 1.0), bench(y, 1.04)],
            vec![bench(x, 2.0), bench(y, 1.0)],
            vec![["x", "y"]],
        ),
        // Equal times are no order.
        (
            vec![bench(x, 1.0), bench(y, 1.0)],
            vec![bench(x, 2.0), bench(y, 1.0)],
            vec![],
        ),
        // One side lacks an implementation.
        (
            vec![bench(x, 1.0), bench(y, 2.0)],
            vec![bench(x, 4.0), bench(z, 3.0)],
            vec![],
        ),
        (
            vec![bench(x, 1.0), bench(y, 2.0), bench(z, 3.0)],
            vec![bench(z, 1.0), bench(y, 2.0), bench(x, 3.0)],
            vec![["x", "y"], ["x", "z"], ["y", "z"]],
        ),
    ] {
        let comparison = compare(&a, &b);
        let [primitive] = &comparison.primitives[..] else {
            panic!("one primitive")
        };
        assert_eq!(primitive.reversed, reversed, "{a:?} {b:?}");
        let changed = |row: &ComparedRow| {
            reversed
                .iter()
                .flatten()
                .any(|name| *name == row.implementation)
        };
        assert!(
            primitive
                .rows
                .iter()
                .all(|row| row.order_changed == changed(row)),
            "{primitive:?}"
        );
    }
}

#[test]
fn a_table_has_times_ratios_places_and_the_engine() {
    let a = [
        ("p256/ecdh/ring", None, 44_000.0),
        ("p256/ecdh/aws_lc_rs", None, 40_000.0),
        ("p256/ecdh/x", None, 1e6),
    ];
    let b = [
        ("p256/ecdh/ring", None, 55_000.0),
        ("p256/ecdh/aws_lc_rs", None, 60_000.0),
        ("p256/ecdh/y", None, 1.0),
    ];
    let markdown = compare(&a, &b).markdown();
    let wanted = "### machines\n\n| | A: a | B: b | |\n| --- | --- | --- | --- |\n| CPU | CPU of a | CPU of b | differs |\n\
        | cores | 2 | 2 |  |\n| only_a | 1.0 |  | differs |\n| ring | 0.17.14 | 0.17.14 |  |\n\
        | only_b |  | 1.0 | differs |\n\n\
        ### p256 ecdh\n\n| implementation | A | B | B/A | place | order changed |\n\
        | --- | --- | --- | --- | --- | --- |\n\
        | aws_lc_rs | 40.0 us † | 60.0 us † | 1.50 | 1 → 2 | yes |\n\
        | ring | 44.0 us | 55.0 us | 1.25 | 2 → 1 | yes |\n\
        | x | 1.00 ms |  |  |  |  |\n| y |  | 1.00 ns |  |  |  |\n\n\
        Order changed: aws_lc_rs is faster than ring in A, and slower in B.\n\n\
        B takes 1.37 of the time of A (geometric mean of 2 ratios).\n\
        The order of the implementations changed in 1 of 1 primitives. ";
    assert!(markdown.starts_with(wanted), "{markdown}");
}

#[test]
fn primitives_are_in_the_order_of_the_report() {
    let benches = [
        ("p256/ecdh/ring", None, 1.0),
        ("p256/keygen/ring", None, 1.0),
        ("aes256gcm/seal/ring", Some(1 << 10), 1.0),
        ("aes256gcm/seal/ring", Some(16), 1.0),
        ("aes256gcm/open/ring", Some(16), 1.0),
        ("p256/other/ring", None, 1.0),
    ];
    let titles: Vec<_> = compare(&benches, &benches)
        .primitives
        .iter()
        .map(Primitive::title)
        .collect();
    let wanted = [
        "aes256gcm seal 16B",
        "aes256gcm seal 1KiB",
        "aes256gcm open 16B",
        "p256 keygen",
        "p256 ecdh",
        "p256 other",
    ];
    assert_eq!(titles, wanted);
}

#[test]
fn sizes_have_the_names_of_the_benches() {
    for (bytes, name) in [
        (16, "16B"),
        (1_000, "1000B"),
        (1 << 10, "1KiB"),
        (64 << 10, "64KiB"),
        (2 << 20, "2MiB"),
    ] {
        assert_eq!(size_name(bytes), name);
    }
}

#[test]
fn files_without_a_common_bench_are_rejected() {
    let x = [("p256/ecdh/x", None, 1.0)];
    for other in [
        &[][..],
        &[("p256/ecdh/y", None, 1.0)],
        &[("p256/keygen/x", None, 1.0)],
        &[("p256/ecdh/x", Some(1), 1.0)],
    ] {
        let error = MachineComparison::new([side("a", &x), side("b", other)]).unwrap_err();
        assert!(
            error.contains("have no bench in common: run the same benches on both machines"),
            "{error}"
        );
    }
}

#[test]
fn results_of_an_earlier_run_are_counted() {
    let benches = [("p256/ecdh/x", None, 1.0), ("p256/ecdh/y", None, 1.0)];
    let mut comparison = compare(&benches, &benches);
    assert!(!comparison.markdown().contains("earlier run"));
    comparison.sides[1].file.results[0].earlier_run = true;
    assert!(
        comparison
            .markdown()
            .contains("1 of 2 results of B are of an earlier run")
    );
}

#[test]
fn json_has_both_sides_and_every_row() {
    let a = [("p256/ecdh/x", None, 1.0), ("p256/ecdh/y", None, 2.0)];
    let b = [("p256/ecdh/x", None, 4.0)];
    let json = compare(&a, &b).json(Path::new("page.html"));
    for (pointer, wanted) in [
        ("/a/file", json!("a")),
        ("/b/machine/cpu", json!("CPU of b")),
        ("/b/machine/libraries/ring", json!("0.17.14")),
        ("/mean_ratio", json!(4.0)),
        ("/page", json!("page.html")),
        ("/primitives/0/order_changed", json!(false)),
        ("/primitives/0/rows/0/implementation", json!("x")),
        ("/primitives/0/rows/0/ratio", json!(4.0)),
        ("/primitives/0/rows/0/a_place", json!(1)),
        ("/primitives/0/rows/1/a_ns", json!(2.0)),
        ("/primitives/0/rows/1/b_ns", json!(null)),
        ("/primitives/0/rows/1/ratio", json!(null)),
        ("/primitives/1", json!(null)),
    ] {
        assert_eq!(
            *json.pointer(pointer).unwrap_or(&Value::Null),
            wanted,
            "{pointer}"
        );
    }
}

#[test]
fn a_plot_has_a_bar_for_every_time_and_its_text() {
    let a = [
        ("p256/ecdh/x", None, 1_000.0),
        ("p256/ecdh/y", None, 2_500.0),
    ];
    let b = [("p256/ecdh/x", None, 4_000.0)];
    let svg = plot::svg(&compare(&a, &b).primitives[0]).unwrap();
    for (text, count) in [
        ("#0B6BB8", 2),
        ("#CC4B00", 1),
        ("<rect", 3),
        ("\nx\n", 1),
        ("\ny\n", 1),
        ("2.50 us", 1),
    ] {
        assert_eq!(svg.matches(text).count(), count, "{text}: {svg}");
    }
}

#[test]
fn an_axis_has_a_line_for_every_round_value() {
    for (least, most, wanted) in [
        (50.0, 400.0, vec![50.0, 100.0, 200.0]),
        (4.9, 21.0, vec![5.0, 10.0, 20.0]),
        (1.1, 4.9, vec![2.0]),
        (0.9, 3.6, vec![1.0, 2.0]),
        (1.5, 20_000.0, vec![10.0, 100.0, 1_000.0, 10_000.0]),
    ] {
        assert_eq!(plot::ticks(least, most), wanted, "{least} {most}");
    }
}

#[test]
fn the_page_is_self_contained_dark_too_and_escaped() {
    let benches = [("p256/<script>/<b>x&", None, 1.0)];
    let page = page::html(&compare(&benches, &benches)).unwrap();
    for (text, count) in [
        ("prefers-color-scheme: dark", 1),
        ("svg rect[fill=\"#0B6BB8\"]", 1),
        ("svg rect[fill=\"#CC4B00\"]", 1),
        ("<svg", 1),
        ("<script", 0),
        ("<b>", 0),
        ("&lt;b&gt;x&amp;", 2),
        ("src=", 0),
        ("href=", 0),
        ("url(", 0),
        ("@import", 0),
    ] {
        assert_eq!(page.matches(text).count(), count, "{text}: {page}");
    }
}
