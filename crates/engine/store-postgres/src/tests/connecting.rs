//! Tests of connecting to a server, and of the error messages.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealwire_testkit::{Certificates, Postgres};

use super::{LONG, options, shared, unsynced};
use crate::{PostgresOptions, PostgresStore, PostgresTls};
use sealwire_store::{ControlStore, StoreError};

/// Returns the error message of connecting; empty on success.
async fn refusal(options: PostgresOptions) -> String {
    match PostgresStore::connect(options).await {
        Ok(store) => store.generation().await.map(|_| String::new()).unwrap(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_schema_precedes_other_schemas() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    store.instances(Duration::from_secs(60)).await.unwrap();
    let sql = format!(
        "CREATE SCHEMA shadow; CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql \
         AS $$BEGIN RAISE 'shadowed'; END$$; GRANT USAGE ON SCHEMA shadow TO PUBLIC; \
         ALTER DATABASE {} SET search_path = shadow, pg_catalog",
        database.name()
    );
    database.sql(&sql).unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    store.instances(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_errors_contain_advice() {
    let server = shared();
    let database = server.database().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let others = Certificates::make(folder.path(), "certified").unwrap();
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, format!("{}\r\n", server.password())).unwrap();
    std::fs::set_permissions(&password_file, Permissions::from_mode(0o600)).unwrap();
    let exposed_file = folder.path().join("exposed");
    std::fs::copy(&password_file, &exposed_file).unwrap();
    std::fs::set_permissions(&exposed_file, Permissions::from_mode(0o644)).unwrap();
    let base = options(server, database.tls_url());
    let (port, name) = (server.port(), database.name());
    let certified = PostgresOptions {
        url: format!("postgres://certified@localhost:{port}/{name}"),
        password: None,
        ..base.clone()
    };
    // A key is rejected in a folder of another user, such as the server's.
    let mut own = server.certificates().clone();
    own.client_key = folder.path().join("own-key.pem");
    std::fs::copy(&server.certificates().client_key, &own.client_key).unwrap();
    let gone = || Some(PathBuf::from("/nowhere/file.pem"));
    let cases = [
        ("by password", base.clone(), ""),
        (
            "by a file",
            PostgresOptions {
                password: None,
                password_file: Some(password_file),
                ..base.clone()
            },
            "",
        ),
        (
            "by certificate",
            PostgresOptions {
                client_certificate: Some(own.client.clone()),
                client_key: Some(own.client_key.clone()),
                ..certified.clone()
            },
            "",
        ),
        (
            "on this machine",
            PostgresOptions {
                tls: PostgresTls::Off,
                ca: None,
                ..base.clone()
            },
            "",
        ),
        (
            "wrong password",
            PostgresOptions {
                password: Some("wrong".into()),
                ..base.clone()
            },
            "postgres.password_file",
        ),
        (
            "no password",
            PostgresOptions {
                password: None,
                ..base.clone()
            },
            "set postgres.password_file",
        ),
        (
            "no file",
            PostgresOptions {
                password_file: gone(),
                ..base.clone()
            },
            "postgres.password_file: /nowhere",
        ),
        (
            "a file that others can read",
            PostgresOptions {
                password: None,
                password_file: Some(exposed_file),
                ..base.clone()
            },
            "other users can read",
        ),
        (
            "no certificate",
            certified.clone(),
            "postgres.client_certificate",
        ),
        (
            "another's certificate",
            PostgresOptions {
                client_certificate: Some(others.client.clone()),
                client_key: Some(others.client_key.clone()),
                // The store retries until the timeout.
                timeout: Duration::from_secs(1),
                ..certified.clone()
            },
            "",
        ),
        (
            "a certificate with another's key",
            PostgresOptions {
                client_certificate: Some(own.client),
                client_key: Some(others.client_key),
                ..certified
            },
            "postgres.client_key",
        ),
        (
            "no authority",
            PostgresOptions {
                ca: gone(),
                ..base.clone()
            },
            "postgres.ca: /nowhere",
        ),
        (
            "an authority that is none",
            PostgresOptions {
                ca: Some(own.server_key),
                ..base.clone()
            },
            "postgres.ca",
        ),
        (
            "another authority",
            PostgresOptions {
                ca: Some(others.ca),
                ..base.clone()
            },
            "postgres.ca is not the authority that issued",
        ),
        (
            "another name",
            PostgresOptions {
                url: database.tls_url().replace("localhost", "0.0.0.0"),
                ..base.clone()
            },
            "use a host name of the server's certificate in postgres.url",
        ),
        (
            "no such user",
            PostgresOptions {
                url: database.tls_url().replace("sealwire@", "nobody@"),
                ..base.clone()
            },
            "check user nobody",
        ),
        (
            "no such database",
            PostgresOptions {
                url: database.tls_url().replace(name, "nothing"),
                ..base.clone()
            },
            "create the database",
        ),
    ];
    for (case, options, expected) in cases {
        let found = refusal(options).await;
        // A certificate of another authority is rejected. The server ends the handshake with its
        // own message.
        if case == "another's certificate" {
            assert!(!found.is_empty(), "{case}");
            continue;
        }
        assert!(
            found.contains(expected) && expected.is_empty() == found.is_empty(),
            "{case}: {found}"
        );
        assert!(!found.contains(server.password()), "{case}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_never_falls_back_to_plain_text() {
    let server = Postgres::start(unsynced().set("ssl", "off")).unwrap();
    let database = server.database().unwrap();
    let found = refusal(options(&server, database.tls_url())).await;
    assert!(found.contains("set ssl = on"), "{found}");
    assert_eq!(refusal(options(&server, database.socket_url())).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_errors_name_unreachable_addresses() {
    let server = shared();
    let proxy = sealwire_testkit::Proxy::start(server.port()).unwrap();
    proxy.black_hole(true);
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for (url, expected) in [
        (
            format!("postgres://sealwire@localhost:{free}/db"),
            "refused",
        ),
        (
            "postgres:///db?user=sealwire&host=/nowhere".to_owned(),
            "No such file",
        ),
        (
            format!("postgres://sealwire@localhost:{}/db", proxy.port()),
            "no response within 100 ms",
        ),
        (
            "postgres://sealwire@name.invalid/db".to_owned(),
            "name.invalid:5432",
        ),
    ] {
        // A slow machine can need more than the shortest timeout to find the cause.
        for ms in [100, 1_000, 10_000, 60_000] {
            let options = PostgresOptions {
                timeout: Duration::from_millis(ms),
                ..options(server, url.clone())
            };
            let error = PostgresStore::connect(options).await.err().unwrap();
            let StoreError::Unavailable(what) = error else {
                panic!("{url}: {error}")
            };
            if what.contains(expected) {
                break;
            }
            assert!(
                ms < 60_000 && what.contains("no response within"),
                "{url}: {what}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_durable_for_every_default_of_the_server() {
    let server = shared();
    let database = server.database().unwrap();
    for (default, expected) in [("off", "on"), ("local", "local"), ("on", "on")] {
        database
            .sql(&format!(
                "ALTER DATABASE {} SET synchronous_commit = {default}",
                database.name()
            ))
            .unwrap();
        let store = PostgresStore::connect(options(server, database.socket_url()))
            .await
            .unwrap();
        assert_eq!(synchronous_commit(&store).await, expected, "{default}");
    }
}

async fn synchronous_commit(store: &PostgresStore) -> String {
    static SHOW: &str = "SHOW synchronous_commit";
    let connection = store
        .shared
        .writers
        .lease(tokio::time::Instant::now() + LONG)
        .await
        .unwrap();
    store.query(&connection, true, SHOW, &[]).await.unwrap()[0].get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_stay_durable_when_the_server_changes_its_default() {
    let server = Postgres::start(unsynced()).unwrap();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(&server, database.socket_url()))
        .await
        .unwrap();
    database
        .sql("ALTER SYSTEM SET synchronous_commit = off")
        .unwrap();
    database.sql("SELECT pg_reload_conf()").unwrap();
    let (psql, started) = ("SHOW synchronous_commit", Instant::now());
    while database.sql(psql).unwrap() != "off" {
        assert!(
            started.elapsed() < LONG,
            "it does not read its settings again"
        );
    }
    assert_eq!(synchronous_commit(&store).await, "on");
}
