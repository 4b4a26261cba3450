//! Measures a job with the masking functions in this process, without the RPC:
//!
//! ```text
//! cargo run --release -p sealwire-data --example measure -- ndjson 1000 /tmp/measure   # megabytes, folder
//! cargo run --release -p sealwire-data --example measure -- shop 1000000               # rows in all
//! cargo run --release -p sealwire-data --example measure -- shop-sql 100000            # the shop as SQL
//! cargo run --release -p sealwire-data --example measure -- orders 1000                # megabytes of NDJSON
//! ```

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../tests/mask_job/common.rs"]
mod common;

use std::error::Error;
use std::fs::{self, File};
use std::future::pending;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sealwire_data::mask_job::{
    DatabaseJob, FileFormat, FileJob, Input, LeakLimits, LeakReport, Limits, Output, Progress,
    Report, mask_database, mask_file, verify_databases, verify_files,
};
use sealwire_mask_rules::Rules;
use sealwire_testkit::{Options, Postgres};

use common::{Local, shop};

const USAGE: &str = "measure ndjson MEGABYTES FOLDER | measure shop ROWS | measure shop-sql ROWS | measure orders MEGABYTES";

/// One edit of one field, comparable to one line of jq.
const TRIVIAL: &str =
    "unknown = \"keep\"\n[[rule]]\npath = \"$.customer.email\"\nmask = \"redact\"\n";

const FULL: &str = r#"
unknown = "keep"
[[rule]]
path = "$.customer.name"
mask = "pseudonym(list=full_names)"
[[rule]]
path = "$.customer.email"
mask = "email"
[[rule]]
path = "$.customer.phone"
mask = "phone(last=2)"
[[rule]]
path = "$.card.pan"
mask = "card"
[[rule]]
column = "note"
mask = "redact"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["ndjson", megabytes, folder] => ndjson(megabytes.parse()?, Path::new(folder)),
        ["shop", rows] => shop(rows.parse()?),
        ["orders", megabytes] => Ok(generate(
            std::io::stdout().lock(),
            megabytes.parse::<u64>()? * 1_000_000,
        )?),
        ["shop-sql", rows] => {
            let rows: u64 = rows.parse()?;
            let customers = (rows / shop::ROWS_PER_CUSTOMER).to_string();
            println!(
                "{}",
                include_str!("../tests/mask_job/common/shop.sql").replace(":customers", &customers)
            );
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

fn ndjson(megabytes: u64, folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let source = folder.join(format!("orders-{megabytes}.ndjson"));
    if !source.exists() {
        generate(File::create(&source)?, megabytes * 1_000_000)?;
    }
    for (name, text, workers) in [
        ("one redact", TRIVIAL, 1),
        ("one redact", TRIVIAL, 2),
        ("five functions", FULL, 1),
        ("five functions", FULL, 2),
    ] {
        let rules = Arc::new(Rules::from_toml(text)?);
        let target = folder.join("masked.ndjson");
        let job = FileJob {
            input: Input::File(source.clone()),
            output: Output::File {
                path: target.clone(),
                replace: true,
            },
            format: FileFormat::Ndjson,
            limits: Limits {
                workers,
                ..Limits::default()
            },
            allow_unmatched: true,
        };
        let started_at = Instant::now();
        let cpu = cpu_seconds();
        let progress = Arc::new(Progress::default());
        let report = runtime()?.block_on(mask_file(
            job,
            Arc::clone(&rules),
            Local::new(&rules),
            progress,
        ))?;
        told(
            &format!("{name}, {workers} workers"),
            &report,
            started_at,
            cpu,
        );
        if text == FULL && workers == 2 {
            let progress = Progress::default();
            let limits = Limits::default();
            let leak = LeakLimits::default();
            let started_at = Instant::now();
            let original = Input::File(source.clone());
            let masked = Input::File(target);
            leaks(
                &verify_files(
                    &original,
                    &masked,
                    FileFormat::Ndjson,
                    rules,
                    limits,
                    leak,
                    &progress,
                )?,
                started_at,
            );
        }
    }
    Ok(())
}

fn generate(out: impl Write, bytes: u64) -> std::io::Result<()> {
    const NAMES: [&str; 6] = [
        "Anna Müller",
        "Bob O'Neil",
        "Chloé Ångström",
        "Дмитрий Иванов",
        "美咲 田中",
        "Eve Smith",
    ];
    let mut out = BufWriter::new(out);
    let mut written = 0;
    let mut at = 0_u64;
    while written < bytes {
        at += 1;
        let hash = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = format!(
            "{{\"id\":{at},\"placed\":\"2024-{:02}-{:02}T10:{:02}:00Z\",\"customer\":{{\"id\":{},\"name\":\"{}\",\
             \"email\":\"user.{}@mail{}.test\",\"phone\":\"+49 30 {:08}\",\"vip\":{}}},\"card\":{{\"pan\":\"4{:015}\",\
             \"expires\":\"12/27\"}},\"items\":[{{\"sku\":\"A-{:06}\",\"quantity\":{},\"price\":{}.{:02}}},\
             {{\"sku\":\"B-{:06}\",\"quantity\":1,\"price\":9.90}}],\"note\":{},\"total\":{}.50}}\n",
            1 + at % 12,
            1 + at % 28,
            at % 60,
            hash % 1_000_000,
            NAMES[(hash % 6) as usize],
            hash % 1_000_000,
            hash % 9,
            hash % 100_000_000,
            hash.is_multiple_of(2),
            hash % 1_000_000_000_000_000,
            hash % 1_000_000,
            1 + hash % 5,
            hash % 200,
            hash % 100,
            at % 1_000_000,
            if hash.is_multiple_of(3) {
                "null".to_owned()
            } else {
                format!("\"call back about \\\"order {at}\\\"\"")
            },
            hash % 900,
        );
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    out.flush()
}

fn shop(rows: u64) -> Result<(), Box<dyn Error>> {
    let server = Postgres::start(Options {
        fsync: false,
        ..Options::default()
    })?;
    let source = server.database()?;
    let target = server.database()?;
    let started_at = Instant::now();
    shop::fill(&source, rows / shop::ROWS_PER_CUSTOMER)?;
    println!("generated in {:.1} s", started_at.elapsed().as_secs_f64());

    let rules = common::rules(shop::RULES);
    let job = |target: &sealwire_testkit::Database<'_>| DatabaseJob {
        source: shop::reached(&server, &source),
        target: shop::reached(&server, target),
        replace: false,
        limits: Limits::default(),
    };
    let started_at = Instant::now();
    let cpu = cpu_seconds();
    let progress = Arc::new(Progress::default());
    let run = mask_database(
        job(&target),
        Arc::clone(&rules),
        Local::new(&rules),
        progress,
        pending(),
    );
    let report = runtime()?.block_on(run)?;
    told("shop", &report, started_at, cpu);
    for field in &report.fields {
        if field.function.is_some() {
            println!("  {}", serde_json::to_string(field)?);
        }
    }
    for sql in [
        "SELECT count(*) FROM shop.cards JOIN shop.customers ON email = customer_email",
        "SELECT count(*), sum(total)::numeric(20, 2) FROM shop.orders JOIN shop.cards ON card = pan",
        "SELECT count(*) FROM pg_constraint WHERE convalidated AND connamespace = 'shop'::regnamespace",
    ] {
        println!(
            "{sql}\n  source {}\n  target {}",
            source.sql(sql)?,
            target.sql(sql)?
        );
    }
    let check = |target: &sealwire_testkit::Database<'_>| {
        let job = job(target);
        let started_at = Instant::now();
        let progress = Progress::default();
        let checked = verify_databases(
            job.source,
            job.target,
            Arc::clone(&rules),
            LeakLimits::default(),
            &progress,
        );
        leaks(&runtime()?.block_on(checked)?, started_at);
        Ok::<_, Box<dyn Error>>(())
    };
    check(&target)?;

    println!("without the rule for phone:");
    let less = shop::rules_without("phone");
    let again = server.database()?;
    let run = mask_database(
        job(&again),
        Arc::clone(&less),
        Local::new(&less),
        Arc::default(),
        pending(),
    );
    runtime()?.block_on(run)?;
    check(&again)
}

fn told(name: &str, report: &Report, started_at: Instant, cpu: f64) {
    let seconds = started_at.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;
    let megabytes = report.bytes_in as f64 / 1e6;
    println!(
        "{name}: {} rows, {megabytes:.0} MB in {seconds:.1} s: {:.0} rows/s, {:.0} MB/s; CPU {cpu:.1} s: {:.0} MB/s and \
         {:.0} rows/s of one core; VmHWM {:.0} MiB",
        report.records,
        report.records as f64 / seconds,
        megabytes / seconds,
        megabytes / cpu,
        report.records as f64 / cpu,
        report.peak_memory_bytes.unwrap_or_default() as f64 / f64::from(1 << 20),
    );
}

fn leaks(report: &LeakReport, started_at: Instant) {
    let outcome = if report.passed { "passes" } else { "FAILS" };
    let seconds = started_at.elapsed().as_secs_f64();
    println!(
        "leak check {outcome} in {seconds:.1} s, {} passes",
        report.passes
    );
    for field in &report.fields {
        println!(
            "  {}: {:?}, {} originals, {} in the field, {} of {} rows unmoved, {} of {} elsewhere {:?}",
            field.field,
            field.verdict,
            field.originals,
            field.found_in_field,
            field.unmoved,
            field.values,
            field.found_elsewhere,
            field.looked_for_elsewhere,
            field.elsewhere
        );
    }
}

/// Returns the CPU time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
