//! A stolen dump, the database's log and the engine's log: no value in any of them, and nothing
//! that says which are equal.

use std::collections::HashMap;

use sealwire_client::control::{Kind, TokenFormat};
use sealwire_client::{Detokenize, Encrypt, Error, Tokenize, to_payload};
use sealwire_testkit::{Options, Postgres};

use crate::cluster::engines::{APP, Cluster, DETERMINISTIC, RANDOM, run};

const NAME: &str = "Canary-Wilhelmina-Featherstonehaugh";
const CARD: &str = "4929104735512188";
const CONTEXT: &str = "canary-context-row-8841";

/// Returns the encodings in which a value can appear in a text file.
fn forms(value: &str) -> Vec<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    // Base64 at each of three alignments, without the characters that depend on neighbouring bytes.
    let base64 = (0..3).map(|shift| {
        let text = STANDARD_NO_PAD.encode([&vec![0; shift], value.as_bytes()].concat());
        text[4..text.len() - 4].to_owned()
    });
    base64.chain([value.to_owned(), hex]).collect()
}

#[test]
fn a_dump_and_the_logs_hold_no_value_and_do_not_tell_which_are_equal() {
    let options = Options::default()
        .set("log_statement", "all")
        .set("log_min_duration_statement", "0");
    let postgres = Postgres::start(options.set("log_parameter_max_length", "-1")).unwrap();
    run(async {
        let cluster = Cluster::new(&postgres).log_filter("trace");
        let engine = cluster.engine("one");
        cluster.furnish(&engine).await;
        cluster
            .collection(&engine, "hashes", Kind::OneWay, TokenFormat::Uuid)
            .await;
        cluster
            .collection(&engine, "pans", Kind::Random, TokenFormat::Card)
            .await;
        let client = cluster.client(&[&engine]);
        let tokenize = async |collection, values: &[&str]| -> Result<Vec<String>, Error> {
            let payload = to_payload(values)?;
            let tags = if [RANDOM, "pans"].contains(&collection) {
                vec!["random"]
            } else {
                Vec::new()
            };
            let context = if collection == RANDOM {
                CONTEXT.as_bytes()
            } else {
                b""
            };
            client
                .tokenize(
                    Tokenize::new(APP, collection, &payload)
                        .context(context)
                        .tags(tags),
                )
                .await?
                .to_value()
        };
        for collection in [RANDOM, DETERMINISTIC, "hashes"] {
            for _ in 0..50 {
                tokenize(collection, &[NAME, CARD]).await.unwrap();
            }
        }
        let pans = tokenize("pans", &[CARD; 20]).await.unwrap();
        let payload = to_payload(&pans).unwrap();
        let call = Detokenize::new(APP, "pans", &payload);
        let back: Vec<String> = client.detokenize(call).await.unwrap().to_value().unwrap();
        assert_eq!(back, [CARD; 20]);
        // Failures are logged too.
        assert!(tokenize("no-such-collection", &[NAME]).await.is_err());
        assert!(tokenize("pans", &[NAME]).await.is_err());
        let payload = to_payload(&[NAME, CARD]).unwrap();
        client
            .encrypt(Encrypt::new(APP, &payload).context(CONTEXT.as_bytes()))
            .await
            .unwrap();

        let dump = postgres
            .command("pg_dump")
            .args(["--dbname", cluster.database.name()])
            .output()
            .unwrap();
        let dump = String::from_utf8(dump.stdout).unwrap();
        assert!(
            dump.contains("sealwire.tokens") && dump.len() > 10_000,
            "the dump has the rows"
        );
        let log = postgres.log();
        assert!(
            log.contains("INSERT INTO sealwire.tokens") || log.contains("sealwire.tokens"),
            "the log has statements"
        );
        assert!(engine.log().contains("ready"));
        let lower = |text: &str| text.to_ascii_lowercase();
        for (place, text) in [
            ("dump", lower(&dump)),
            ("database log", lower(&log)),
            ("engine log", lower(&engine.log())),
        ] {
            for canary in [NAME, CARD, CONTEXT]
                .into_iter()
                .chain(pans.iter().map(String::as_str))
            {
                for form in forms(canary) {
                    assert!(
                        !text.contains(&lower(&form)),
                        "{place} has {canary} as {form}"
                    );
                }
            }
        }

        // With 100 equal values under random tokens, no two rows share eight consecutive bytes that
        // could reveal the equality.
        let sql = "SELECT encode(id, 'hex') || coalesce(encode(fingerprint, 'hex'), '') || ' ' || encode(sealed, 'hex') \
                   FROM sealwire.tokens WHERE tags IS NOT NULL";
        let rows = cluster.database.sql(sql).unwrap();
        let mut seen: HashMap<&str, usize> = HashMap::new();
        let mut count = 0;
        for (row, line) in rows.lines().enumerate() {
            let (hashes, sealed) = line.split_once(' ').unwrap();
            // The first 5 bytes are equal for all: version and key number.
            for text in [hashes, &sealed[10..]] {
                for start in (0..text.len() - 16).step_by(2) {
                    let other = seen.insert(&text[start..start + 16], row);
                    assert!(
                        other.is_none_or(|other| other == row),
                        "rows {row} and {other:?} are linked"
                    );
                }
            }
            count += 1;
        }
        println!(
            "{} bytes of dump, {} of logs; {count} random rows",
            dump.len(),
            log.len() + engine.log().len()
        );
        assert_eq!(count, 120, "all random rows were looked at");
    });
}
