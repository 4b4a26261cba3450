//! Discovery on files and on labelled schemas: recall, precision, rules that a job takes, and no
//! sampled value anywhere.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;

use sealwire_data::mask_job::{
    DatabaseJob, FileFormat, Input, JobError, Limits, Progress, discover_database, discover_file,
    mask_database,
};
use sealwire_discover::{DiscoverOptions, Discovery, FieldVerdict};
use sealwire_mask::{Function, Mask, MaskSecret, Rules, Value};
use sealwire_testkit::{Database, Postgres};
use zeroize::Zeroizing;

use crate::common::{Local, shop};

const THIS_YEAR: i32 = 2025;
const DATA: &str = include_str!("discover/data.sql");

pub(crate) fn trial(function: &Function, value: Value<'_>, out: &mut Vec<u8>) -> bool {
    let mask = Mask::new(function, &MaskSecret::new(Zeroizing::new([7; 32])));
    mask.is_some_and(|mask| mask.apply(value, None, out).is_ok())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("runtime")
        .block_on(future)
}

fn filled(sql: &str) -> Database<'static> {
    let database = Postgres::shared().database().expect("database");
    let all = format!("SET ROLE sealwire; {DATA} {sql} DROP SCHEMA made CASCADE; ANALYZE;");
    database.sql(&all).expect("the schema");
    database
}

fn discover(database: &Database<'_>) -> Result<Discovery, JobError> {
    let source = shop::reached(Postgres::shared(), database);
    block_on(discover_database(
        source,
        DiscoverOptions::new(THIS_YEAR),
        &trial,
        &Progress::default(),
    ))
}

fn sensitive(discovery: &Discovery) -> BTreeSet<String> {
    let rules = discovery
        .fields
        .iter()
        .filter(|field| field.verdict == FieldVerdict::Sensitive);
    rules
        .map(|field| field.field.trim_start_matches("public.").to_owned())
        .collect()
}

/// Copies the database by the discovered rules, which proves that a job takes them.
fn mask_by(source: &Database<'_>, discovery: &Discovery) {
    let rules = Arc::new(Rules::from_toml(&discovery.to_toml()).expect("rules"));
    let server = Postgres::shared();
    let target = server.database().expect("database");
    let job = DatabaseJob {
        source: shop::reached(server, source),
        target: shop::reached(server, &target),
        replace: false,
        limits: Limits::default(),
    };
    let engine = Local::new(&rules);
    let report = block_on(mask_database(job, rules, engine, Arc::default(), pending()));
    report.unwrap_or_else(|error| panic!("{error}\n{}", discovery.to_toml()));
}

/// Compares discovery with labels: `table: column column`, one table a line.
#[track_caller]
fn evaluate(schema: &str, labels: &str, recall_min: f64, precision_min: f64) {
    let database = filled(schema);
    let discovery = discover(&database).expect("discovers");
    let labels: BTreeSet<String> = labels
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .flat_map(|(table, columns)| {
            columns
                .split(' ')
                .map(move |column| format!("{table}.{column}"))
        })
        .collect();
    let found = sensitive(&discovery);
    let known: BTreeSet<String> = discovery
        .fields
        .iter()
        .map(|field| field.field.trim_start_matches("public.").to_owned())
        .collect();
    assert!(
        labels.is_subset(&known),
        "labels name columns: {:?}",
        labels.difference(&known)
    );
    let right = labels.intersection(&found).count() as f64;
    let recall = right / labels.len() as f64;
    let precision = right / found.len() as f64;
    let figures = format!(
        "of {} labels, recall {recall:.3}, precision {precision:.3}; missed {:?}; wrong {:?}",
        labels.len(),
        labels.difference(&found).collect::<Vec<_>>(),
        found.difference(&labels).collect::<Vec<_>>()
    );
    assert!(
        recall >= recall_min && precision >= precision_min,
        "{figures}\n{}",
        discovery.to_toml()
    );
    mask_by(&database, &discovery);
    // Equal input and seed give equal rules.
    assert_eq!(
        discover(&database).expect("discovers").to_toml(),
        discovery.to_toml()
    );
}

#[test]
fn a_rental_schema_is_found_by_its_labels() {
    let labels = "
        actor: first_name last_name
        address: address address2 district postal_code phone
        staff: first_name last_name email username password picture
        customer: first_name last_name email";
    evaluate(include_str!("discover/sakila.sql"), labels, 0.95, 0.8);
}

#[test]
fn a_trader_schema_is_found_by_its_labels() {
    let labels = "
        customers: contact_name address city postal_code phone fax
        employees: last_name first_name birth_date address city postal_code home_phone extension photo notes photo_path
        suppliers: contact_name address city postal_code phone fax
        orders: ship_name ship_address ship_city ship_postal_code";
    evaluate(include_str!("discover/northwind.sql"), labels, 0.95, 0.8);
}

/// This schema was held out: no detector was tuned on it.
#[test]
fn a_held_out_schema_is_found_by_its_labels() {
    let labels = "
        Employee: LastName FirstName BirthDate Address City PostalCode Phone Fax Email
        Customer: FirstName LastName Address City PostalCode Phone Fax Email
        Invoice: BillingAddress BillingCity BillingPostalCode
        Track: Composer";
    evaluate(include_str!("discover/chinook.sql"), labels, 0.9, 0.8);
}

#[test]
fn german_spanish_and_french_columns_are_found() {
    let labels = "
        kunden: vorname nachname geburtsdatum straße plz ort e-mail telefonnummer kontonummer
        clientes: nombre apellidos fecha_de_nacimiento direccion ciudad codigo_postal correo_electronico telefono dni
        salaries: nom prenom date_naissance adresse ville code_postal courriel numero_securite_sociale salaire";
    evaluate(include_str!("discover/languages.sql"), labels, 0.95, 0.8);
}

#[test]
fn references_and_unique_columns_get_functions_that_a_job_takes() {
    let sql = "
        CREATE DOMAIN mail AS varchar(80) CHECK (VALUE LIKE '%@%');
        CREATE TABLE users (email mail PRIMARY KEY, phone text UNIQUE, city varchar(6) NOT NULL, born date CHECK (born < '2015-01-01'),
            password char(4) NOT NULL, address text CHECK (address ~ '^[0-9]+ '), gender text CHECK (gender IN ('f', 'm')),
            profile jsonb, tags text[] NOT NULL);
        CREATE TABLE logins (id int PRIMARY KEY, who mail NOT NULL REFERENCES users, ip inet NOT NULL, at timestamptz NOT NULL);
        INSERT INTO users SELECT 'u' || n || '@mail.test', '+49 30 ' || made.digits(n, 7), 'Aarhus', made.past(n, 1950, 40), 'abcd',
            made.street(n), 'f', jsonb_build_object('contact', jsonb_build_object('email', 'x' || n || '@mail.test')), '{}'
            FROM generate_series(1, 80) n;
        INSERT INTO logins SELECT n, 'u' || n || '@mail.test', ('192.0.2.' || n)::inet, '2024-01-01' FROM generate_series(1, 80) n;";
    let database = filled(sql);
    let discovery = discover(&database).expect("discovers");
    let text = discovery.to_toml();
    let mask = |name: &str| {
        let field = discovery
            .fields
            .iter()
            .find(|field| field.field == format!("public.{name}"))
            .expect(name);
        (field.verdict == FieldVerdict::Sensitive)
            .then(|| field.mask.clone())
            .flatten()
    };
    for (column, expected) in [
        ("users.email", Some("email")),
        ("logins.who", Some("email")),
        ("users.phone", Some("phone")),
        ("users.city", Some("fixed(\"x\")")),
        ("users.born", Some("date_shift(within=365)")),
        ("users.password", Some("fixed(\"x\")")),
        ("users.gender", Some("null")),
        ("users.profile", Some("redact")),
        ("logins.ip", Some("fixed(\"192.0.2.1\")")),
        ("logins.at", None),
        ("users.tags", None),
    ] {
        assert_eq!(mask(column).as_deref(), expected, "{column}\n{text}");
    }
    mask_by(&database, &discovery);
}

#[test]
fn tables_of_many_rows_are_sampled_by_blocks_and_odd_ones_are_taken() {
    let sql = "
        CREATE TABLE big (id int, email text);
        INSERT INTO big SELECT n, 'u' || n || '@mail.test' FROM generate_series(1, 120000) n;
        CREATE TABLE nothing (); CREATE TABLE empty (email text);
        CREATE TABLE parts (email text, day date) PARTITION BY RANGE (day);
        CREATE TABLE part PARTITION OF parts DEFAULT;
        INSERT INTO parts SELECT 'p' || n || '@mail.test', '2024-01-01' FROM generate_series(1, 50) n;
        CREATE TABLE \"odd \"\" name\" (\"e mail\" text, \"line\nbreak\" text);";
    let database = filled(sql);
    let discovery = discover(&database).expect("discovers");
    let values = |name: &str| {
        discovery
            .fields
            .iter()
            .find(|field| field.field == name)
            .expect(name)
            .values
    };
    assert!(
        (100..=1_000).contains(&values("public.big.email")),
        "{}",
        values("public.big.email")
    );
    assert_eq!(values("public.parts.email"), 50);
    let found = sensitive(&discovery);
    for name in [
        "big.email",
        "empty.email",
        "parts.email",
        "odd \" name.e mail",
    ] {
        assert!(found.contains(name), "{name}: {found:?}");
    }
    mask_by(&database, &discovery);
}

fn file(name: &str, text: &str) -> Result<Discovery, JobError> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("writes");
    let format = FileFormat::from_name(name).expect("a format");
    let found = discover_file(
        &Input::File(path),
        format,
        DiscoverOptions::new(THIS_YEAR),
        &trial,
        &Progress::default(),
    );
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").collect();
    assert_eq!(left.len(), 1, "nothing is kept beside the file");
    found
}

/// Returns everything that discovery says about a file.
fn said(name: &str, text: &str) -> String {
    match file(name, text) {
        Ok(found) => {
            let json = serde_json::to_string(&found).expect("JSON");
            format!("{}\n{json}\n{found:?}", found.to_toml())
        }
        Err(error) => format!("{error}\n{error:?}"),
    }
}

#[test]
fn discovery_shows_no_sampled_value() {
    let canary = "cAnArY7";
    let mail = format!("{canary}@mail.test");
    let many: String = (0..200)
        .map(|n| format!("{{\"by\":{{\"{canary}x{n}\":{{\"n\":{n}}}}}}}\n"))
        .collect();
    for (name, text) in [
        (
            "a.ndjson",
            format!(
                "{{\"email\":\"{mail}\",\"note\":\"write to {mail} now\",\"x\":\"{canary}\"}}\n"
            ),
        ),
        (
            "keys.ndjson",
            format!("{{\"people\":{{\"{mail}\":{{\"{canary} Smith\":1}}}}}}\n"),
        ),
        ("many.ndjson", many),
        (
            "names.json",
            "{\"by\":{\"Anna\":{\"Emma\":1},\"Bob\":1,\"Emma\":2}}".replace("Emma", "Anna"),
        ),
        ("root.json", format!("\"{mail}\"")),
        (
            "broken.json",
            format!("{{\"email\":\"{mail}\" \"{canary}\"}}"),
        ),
        (
            "broken.ndjson",
            format!("{{\"email\":\"{mail}\"}}\n{{\"{canary}\":{canary}}}\n"),
        ),
        ("open.json", format!("[\"{mail}")),
        (
            "a.csv",
            format!("email,x\n{mail},{canary}\n\"{canary}\",\n"),
        ),
        ("fields.csv", format!("email,x\n{mail},{canary},{canary}\n")),
        ("quote.csv", format!("email,x\n{canary}\"{mail},\"\n")),
        ("headless.csv", format!("{mail},12 {canary} Road\n")),
        ("long.csv", format!("email\n{}\n", canary.repeat(5_000))),
        (
            "escaped.ndjson",
            format!("{{\"\\u0063AnArY7@mail.test\":\"{canary}\"}}\n"),
        ),
    ] {
        let said = said(name, &text);
        assert!(
            !said.contains(canary) && !said.contains("mail.test"),
            "{name}: {said}"
        );
    }
    assert!(!said("names.json", "{\"by\":{\"Anna\":1,\"Bob\":1,\"Emma\":2}}").contains("Emma"));
    // Numbers as keys make a map, and columns of years are columns.
    assert!(
        said(
            "years.json",
            "{\"by\":{\"2023\":{\"email\":\"a@mail.test\"}}}"
        )
        .contains("$.by[*].email")
    );
    assert!(said("years.csv", "email,2023\na@mail.test,1\n").contains("2023"));
    // In a database: values, JSON keys, arrays, and values that a statement rejects.
    let sql = format!(
        "CREATE TABLE people (email text, doc jsonb, tags text[], raw json, age int CHECK (age > 0), kind text CHECK (kind <> 'x'));
         INSERT INTO people SELECT '{mail}', jsonb_build_object('{mail}', '{canary}'), ARRAY['{canary}'], '{{\"{mail}\": {{}}}}', 1, '{canary}'
         FROM generate_series(1, 30);"
    );
    let found = discover(&filled(&sql)).expect("discovers");
    let all = format!(
        "{}{}{found:?}",
        found.to_toml(),
        serde_json::to_string(&found).expect("JSON")
    );
    assert!(
        all.contains("keys of the JSON map $ have the form of personal data"),
        "{all}"
    );
    assert!(!all.contains(canary) && !all.contains("mail.test"), "{all}");
    let broken = error_of_hidden_rows(&mail);
    assert!(!broken.contains(canary), "{broken}");
}

/// Returns the error of a discovery whose tables cannot be read.
fn error_of_hidden_rows(mail: &str) -> String {
    let database = filled(&format!(
        "CREATE TABLE secret (email text); INSERT INTO secret VALUES ('{mail}');
         ALTER TABLE secret ENABLE ROW LEVEL SECURITY; ALTER TABLE secret FORCE ROW LEVEL SECURITY;"
    ));
    discover(&database).map_or_else(|error| error.to_string(), |found| found.to_toml())
}
