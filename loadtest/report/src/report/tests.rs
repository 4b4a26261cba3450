use serde_json::{Value, json};

use super::*;
use crate::results::tests::run;

/// Hostile text: markup, quotes, the end of a script block, an entity, and a script link.
const HOSTILE: &str =
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\">&lt; javascript:alert(3)";

fn document(name: &str, value: &Value) -> ReportPage {
    let text = value.to_string();
    ReportPage {
        name: name.into(),
        link: encoded(name.as_bytes()),
        figures: Figures::parse(&text).unwrap(),
        text,
    }
}

fn sweep(runs: &[Value]) -> Value {
    json!({"schema": "sealwire.sweep/1", "runs": runs, "knee": {"offered_per_s": 1000, "ok_per_s": 999, "why": "late"}})
}

/// Returns the value with every string replaced, except those that tell kinds apart.
fn hostile(value: &Value) -> Value {
    match value {
        Value::String(text) if text.starts_with("sealwire.") || text == "open" => value.clone(),
        Value::String(_) => HOSTILE.into(),
        Value::Array(values) => values.iter().map(hostile).collect(),
        Value::Object(values) => values
            .iter()
            .map(|(key, value)| (key.clone(), hostile(value)))
            .collect(),
        other => other.clone(),
    }
}

fn is_drawn(page: &str, id: &str) -> bool {
    let Some((_, svg)) = page.split_once(&format!("id=\"{id}\"")) else {
        return false;
    };
    let (svg, _) = svg.split_once("</svg>").unwrap();
    let (_, series) = svg.split_once("<g class=\"series\">").unwrap();
    !series.starts_with("</g>")
}

#[test]
fn files_of_all_kinds_have_their_plots() {
    let documents = [
        document("run.json", &run()),
        document("s.json", &sweep(&[run()])),
    ];
    let page = page::page("Title", &documents);
    for id in [
        "speed-1",
        "percentiles-1",
        "latency-over-time-1",
        "histogram-1",
    ] {
        assert!(is_drawn(&page, id), "{id}");
    }
    for id in ["sweep-1", "sweep-latency-1", "sweep-cpu-1"] {
        assert!(is_drawn(&page, id), "{id}");
    }
    let figures = [
        "encrypt 30 fields",
        "TLS_AES_256_GCM_SHA384 X25519MLKEM768",
        "3 overloaded",
        "knee: 999 of 1 k/s",
    ];
    for said in figures
        .into_iter()
        .chain(["href=\"s.json\"", "shared a machine"])
    {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn strings_of_a_file_never_become_markup() {
    let mut one = hostile(&run());
    one["classes"][0]["errors"] = json!({ (HOSTILE): 3 });
    one["generator"]["was_bottleneck"] = true.into();
    let values = [one.clone(), sweep(&[one])];
    let documents: Vec<_> = values
        .iter()
        .map(|value| document(HOSTILE, value))
        .collect();
    let page = page::page(HOSTILE, &documents);
    for part in ["<script>", "<img", "onerror=\"", "</script><"] {
        assert!(!page.contains(part), "{part}");
    }
    let (markup, _) = page.split_once("<script ").unwrap();
    assert!(markup.contains("alert(&#39;2&#39;)") && !markup.contains("alert('2')"));
    assert_eq!(page.matches("<script ").count(), 2);
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("href=\"javascript"));
    // The embedded data still equal the files' data.
    for (number, value) in values.iter().enumerate() {
        let (_, block) = page
            .split_once(&format!("id=\"data-{}\"", number + 1))
            .unwrap();
        let (block, _) = block
            .split_once('>')
            .unwrap()
            .1
            .split_once("</script>")
            .unwrap();
        assert_eq!(&serde_json::from_str::<Value>(block).unwrap(), value);
    }
}

#[test]
fn a_sweep_has_one_name_and_one_warning() {
    let at = |rate: &str, was_bottleneck: bool| {
        let mut run = run();
        run["name"] = format!("encrypt 1 fields, p256, {rate} calls/s").into();
        run["generator"]["was_bottleneck"] = was_bottleneck.into();
        run
    };
    let runs = [at("10", true), at("15", false), at("20", true)];
    let page = page::page("Title", &[document("s.json", &sweep(&runs))]);
    assert!(page.contains("<h3>encrypt 1 fields, p256</h3>"), "{page}");
    assert_eq!(page.matches("The generator was the bottleneck").count(), 1);
    assert!(page.contains("at 2 of 3 rates of “encrypt 1 fields, p256”"));
}

#[test]
fn loads_of_other_speeds_have_axes_of_their_own() {
    let of = |fields_per_s: f64| {
        let mut run = run();
        run["classes"][0]["over_time"][0]["fields_per_s"] = fields_per_s.into();
        run
    };
    for (speeds, shared) in [([30_000.0, 60_000.0], true), ([30_000.0, 3e6], false)] {
        let page = page::page(
            "Title",
            &speeds.map(|speed| document("run.json", &of(speed))),
        );
        assert_eq!(
            page.contains("are the same for all loads.</p>"),
            shared,
            "{speeds:?}"
        );
        assert!(is_drawn(&page, "speed-1") && is_drawn(&page, "speed-2"));
    }
}

#[test]
fn a_page_fetches_and_runs_nothing() {
    let page = page::page("Title", &[document("run.json", &run())]);
    assert!(
        page.contains("content=\"default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;")
    );
    for part in [
        "http://", "https://", "@import", "url(", "src=", "<link", "onclick",
    ] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn a_load_without_an_answer_has_no_plots_and_says_so() {
    let mut failed = run();
    let class = &mut failed["classes"][0];
    class["ok"] = 0.into();
    class["histogram_us"] = json!([]);
    class["over_time"][0]["ok"] = 0.into();
    failed["classes"][0]["errors"] = json!({"unavailable": 10_000});
    let page = page::page("Title", &[document("failed.json", &failed)]);
    assert!(page.contains("No call was answered") && page.contains("10,000 unavailable"));
    assert!(!page.contains("id=\"speed-1\""));
    let empty = page::page("Title", &[document("empty.json", &sweep(&[]))]);
    assert!(!empty.contains("<svg"));
}

#[test]
fn absurd_numbers_draw_a_page_all_the_same() {
    for number in [
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(0),
        json!(-1),
    ] {
        let mut absurd = run();
        let class = &mut absurd["classes"][0];
        class["histogram_us"] = json!([[number, u64::MAX], [number, u64::MAX]]);
        class["errors"] = json!({"a": u64::MAX, "b": u64::MAX});
        class["ok"] = u64::MAX.into();
        class["latency_us"]["max"] = number.clone();
        for key in ["t_s", "p99_us", "fields_per_s"] {
            class["over_time"][0][key] = number.clone();
        }
        absurd["server_cpu"]["us_per_field"] = number.clone();
        absurd["totals"]["offered_per_s"] = number.clone();
        absurd["totals"]["ok_per_s"] = number.clone();
        let page = page::page(
            "Title",
            &[
                document("a.json", &absurd),
                document("b.json", &sweep(&[absurd.clone()])),
            ],
        );
        for part in ["NaN\"", "inf\"", "=\"inf", "=\"-inf", "MNaN", " NaN"] {
            assert!(!page.contains(part), "{number}: {part}");
        }
    }
}

#[test]
fn unreadable_files_are_named() {
    let folder = std::env::temp_dir().join(format!("sealwire-report-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let good = file("good #1.json", run().to_string().as_bytes());
    let report = |files: &[&PathBuf], output: &str| {
        let args = Args {
            files: files.iter().map(|&file| file.clone()).collect(),
            output: folder.join(output),
            title: "t".into(),
        };
        super::run(&args)
            .map(Path::to_owned)
            .map_err(|error| error.to_string())
    };
    for (name, bytes, said) in [
        ("empty.json", &b""[..], "EOF"),
        ("page.html", b"<!doctype html>", "expected value"),
        (
            "foreign.json",
            br#"{"schema": "artillery/2"}"#,
            "unknown schema",
        ),
        (
            "nothing.json",
            br#"{"aggregate": {}}"#,
            "missing field `schema`",
        ),
        ("binary.json", b"\xff\xfe\x00", "UTF-8"),
        (
            "half.json",
            br#"{"schema": "sealwire.load/1", "tool": "x"}"#,
            "missing field",
        ),
    ] {
        let bad = file(name, bytes);
        let error = report(&[&good, &bad], "report.html").unwrap_err();
        assert!(error.contains(name) && error.contains(said), "{error}");
        assert!(!folder.join("report.html").exists(), "{name}");
    }
    let missing = folder.join("missing.json");
    assert!(
        report(&[&missing], "report.html")
            .unwrap_err()
            .contains("missing.json")
    );
    let replaced = report(&[&good], "good #1.json").unwrap_err();
    assert!(
        replaced.contains("would be replaced")
            && fs::read_to_string(&good).unwrap().contains("sealwire.load")
    );
    let page = fs::read_to_string(report(&[&good], "report.html").unwrap()).unwrap();
    assert!(page.contains("href=\"good%20%231.json\""));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn links_lead_from_the_page_to_the_file() {
    for (file, folder, way) in [
        ("/a/b/run.json", "/a/b", "run.json"),
        ("/a/b/run.json", "/a/c", "../b/run.json"),
        ("/a/run.json", "/", "a/run.json"),
        ("/a/é \"<.json", "/a", "%C3%A9%20%22%3C.json"),
    ] {
        assert_eq!(link(Path::new(file), Path::new(folder)), way);
    }
}
