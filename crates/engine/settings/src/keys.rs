//! The table of all configuration keys: name, kind, range, default and description.
//!
//! Parsing, checks, the reference text and the tests all use [`all`]. A key that is not in this
//! table is unknown.

use sealwire_service::keys;
use sealwire_service::settings::{Form, Key, Kind, Literal, Schema, Section};

use crate::issuer::{ALGORITHMS, AUDIENCES};
use crate::key::{IDENTITY, PRINCIPALS, ROLES, WEIGHTS};
use crate::limits;

/// Returns every key that an environment variable can override, in the order of the reference. These
/// are all keys but those of sections that a file can contain several times.
pub fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS
        .iter()
        .filter(|section| section.form == Form::Table)
        .flat_map(|section| section.keys)
}

/// Returns the environment variable that overrides a key.
pub fn variable(key: &Key) -> String {
    SCHEMA.variable(key)
}

/// The configuration of an engine.
pub(crate) static SCHEMA: Schema = Schema {
    prefix: "SEALWIRE_",
    sections: SECTIONS,
    template_command: "sealwire config template",
    secret_variable: Some(("kek", "env_var")),
    variables_ignore_case: false,
};

const SECTIONS: &[Section] = &[
    Section {
        name: "listen",
        form: Form::Table,
        doc: "Data listener for clients.",
        keys: keys!("listen":
            "address", Kind::OptionalAddress, Literal::Text("127.0.0.1:7443"),
                "Address for MessagePack-RPC over mutual TLS; loopback by default. Empty: not served; requests come over `[http]` or `[control]`.";
        ),
    },
    Section {
        name: "http",
        form: Form::Table,
        doc: "HTTP and JSON for the requests of the data listener: the same principals, roles, limits and audit records.",
        keys: keys!("http":
            "address", Kind::OptionalAddress, Literal::Text(""),
                "Address for HTTPS under the files of `tls`. Clients have a certificate of `tls.client_ca`, or a token of an\n`issuer`. Empty: not served.";
        ),
    },
    Section {
        name: "issuer",
        form: Form::Named("k8s"),
        doc: "Issuer of bearer tokens (JWT) for requests over `[http]` without a client certificate. A client is the principal jwt:NAME:CLAIM.",
        keys: keys!("issuer":
            "issuer", Kind::Text, Literal::Required("\"https://kubernetes.default.svc.cluster.local\""),
                "Exact value of the claim `iss`.";
            "audiences", AUDIENCES, Literal::Required("[\"sealwire\"]"),
                "Accepted values of the claim `aud`, of which a token must contain one.";
            "algorithms", ALGORITHMS, Literal::NoEntries,
                "Accepted algorithms: ES256, ES384, EdDSA, RS256, RS384, RS512, PS256, PS384, PS512. Empty: [\"ES256\", \"RS256\"].";
            "jwks_file", Kind::OptionalPath, Literal::Text(""),
                "File with the issuer's public keys (JSON Web Key Set), which others must not be able to change. Read again as the\nfiles of `tls` are. Set this key or `jwks_url`.";
            "jwks_url", Kind::Text, Literal::Text(""),
                "https:// URL of the issuer's public keys, instead of `jwks_file`.\nUntil the first fetch succeeds, tokens of this issuer get 503.";
            "jwks_ca", Kind::OptionalPath, Literal::Text(""),
                "PEM file of the authorities of that server. Required for `jwks_url`, since no authority is trusted otherwise.";
            "jwks_refresh_s", Kind::Number { unit: "s", min: 30, max: 86_400 }, Literal::Number(300),
                "Time between two fetches of `jwks_url`. A token with an unknown key causes one too, at most each 30 s.";
            "jwks_stale_s", Kind::Number { unit: "s", min: 60, max: 604_800 }, Literal::Number(86_400),
                "Maximum age of fetched keys while fetches fail. Older keys are not used, and tokens get 503.";
            "principal_claim", Kind::Text, Literal::Text("sub"),
                "Claim that names the client, a text.";
            "skew_s", Kind::Number { unit: "s", min: 0, max: 300 }, Literal::Number(60),
                "Tolerance for the clocks of issuer and engine, for the claims `exp` and `nbf`.";
        ),
    },
    Section {
        name: "admin",
        form: Form::Table,
        doc: "Health and metrics over plain HTTP. Expose it to operators only.",
        keys: keys!("admin":
            "address", Kind::Address, Literal::Text("127.0.0.1:7444"),
                "Address of /live, /ready and /metrics.";
        ),
    },
    Section {
        name: "control",
        form: Form::Table,
        doc: "Control listener for changes of apps, keys and collections. Expose it to operators only.",
        keys: keys!("control":
            "address", Kind::OptionalAddress, Literal::Text(""),
                "Address for control methods over mutual TLS, with the certificate of `tls`. Empty: not served.";
            "client_ca", Kind::OptionalPath, Literal::Text(""),
                "PEM file of operator authorities. Empty: `tls.client_ca`; `principals` must then name the operators.";
            "client_crl", Kind::OptionalPath, Literal::Text(""),
                "PEM file of their revocation lists. Empty: `tls.client_crl` if `client_ca` is empty, else none.";
            "principals", PRINCIPALS, Literal::NoEntries,
                "Principals that may connect, by certificate name: a DNS name, a spiffe:// URI, or cn: and a common name.\nEmpty: all with a `client_ca` certificate.";
        ),
    },
    Section {
        name: "access",
        form: Form::Table,
        doc: "Authorization by roles, stored with the apps (`sealwire roles`, `sealwire principals`).",
        keys: keys!("access":
            "mode", Kind::Choice(&["enforce", "observe", "off"]), Literal::Text("enforce"),
                "\"enforce\" denies requests that no role of the principal grants. \"observe\" permits, counts and logs them,\nexcept where the response could show a value that a mask of the principal hides, or the request changes who can read it.\n\"off\" checks nothing: any certificate of `tls.client_ca` may use every app.";
            "administrators", PRINCIPALS, Literal::NoEntries,
                "Principals that get the role `administrator` once, at a start at which nobody has a role. Later, only they can unseal\na sealed store over the control listener: keep the list current. Names as in `control.principals`.";
            "name_order", IDENTITY, Literal::NoEntries,
                "Kinds of certificate names that identify a principal, in order of preference. A certificate without any of\nthem, or with an invalid name of one of them, is rejected. Empty: [\"spiffe\", \"dns\", \"cn\"].";
            "cache_entries", Kind::Number { unit: "principals", min: 1, max: 1 << 20 }, Literal::Number(10_000),
                "Principals in the permission cache. A principal outside the cache costs a store lookup per request.";
            "cache_s", Kind::Number { unit: "s", min: 1, max: 86_400 }, Literal::Number(300),
                "Cache time-to-live, jittered between 25 % and 100 %. A role change clears the cache.";
            "cache_negative_s", Kind::Number { unit: "s", min: 1, max: 86_400 }, Literal::Number(30),
                "Cache time-to-live for principals without a role.";
            "stale_s", Kind::Number { unit: "s", min: 0, max: 86_400 }, Literal::Number(3_600),
                "Additional time to use cached permissions while the store does not respond. Meanwhile, roles revoked on other\nengines stay in effect here. When the time has passed, `/ready` is 503.\n0: such requests are `unavailable`, and `/ready` is 503 at once.";
        ),
    },
    Section {
        name: "tls",
        form: Form::Table,
        doc: "Server certificate and client authorities.",
        keys: keys!("tls":
            "certificate", Kind::Path, Literal::Text("tls/server.pem"),
                "PEM file of the server certificate, then intermediates.";
            "key", Kind::Path, Literal::Text("tls/server-key.pem"),
                "PEM file of its private key. Must not be readable by other users.";
            "client_ca", Kind::Path, Literal::Text("tls/client-ca.pem"),
                "PEM file of client authorities. Every client needs a certificate, except for tokens of an `issuer` over `[http]`.";
            "client_crl", Kind::OptionalPath, Literal::Text(""),
                "PEM file of their revocation lists. Empty: none.";
            "tls12", Kind::Flag, Literal::Flag(false),
                "Accept TLS 1.2, too.";
            "watch_s", Kind::Number { unit: "s", min: 0, max: 3_600 }, Literal::Number(5),
                "Interval to check these files, those of `control` and each `jwks_file`. Changes apply if the files load and have\nbeen stable for half a second. Only connections whose certificate is no longer accepted are closed. 0: check only at SIGHUP.";
        ),
    },
    Section {
        name: "state",
        form: Form::Table,
        doc: "Storage of apps, keys and tokens.",
        keys: keys!("state":
            "mode", Kind::Choice(&["stateless", "embedded", "postgres"]), Literal::Text("embedded"),
                "\"postgres\": a database for several engines. \"embedded\": a folder for this engine alone. \"stateless\": no tokens;\napps and sealed keys are in a file that others write, checked each second.";
            "file", Kind::Path, Literal::Text("apps.json"),
                "File for mode \"stateless\".";
            "folder", Kind::Path, Literal::Text("state"),
                "Folder for mode \"embedded\".";
            "poll_s", Kind::Number { unit: "s", min: 1, max: 30 }, Literal::Number(30),
                "Polling interval for changes, if the store sends no notifications. A deleted name can be reused three intervals\nafter the last report of an engine that can serve it.";
            "anchor_file", Kind::OptionalPath, Literal::Text(""),
                "File outside the store with its highest generation, for a store with a root key: an older state that was put back\nis noticed. Empty: `anchor.json` in audit.folder, if the audit log is on.";
            "on_rollback", Kind::Choice(&["refuse", "read_only"]), Literal::Text("refuse"),
                "Reaction to an older state. \"refuse\": stop. \"read_only\": serve it without changes, and raise an alert.";
        ),
    },
    Section {
        name: "postgres",
        form: Form::Table,
        doc: "Database for state.mode \"postgres\". The password is in a file or in SEALWIRE_POSTGRES_PASSWORD.",
        keys: keys!("postgres":
            "url", Kind::Text, Literal::Text(""),
                "postgres://user@host:5432/database, without password. Of several hosts, separated by commas, the first that\naccepts writes is used. Socket: postgres:///database?user=user&host=/var/run/postgresql.";
            "password_file", Kind::OptionalPath, Literal::Text(""),
                "Password file, read for each connection. A secret file: mode 600, or 640 if root owns it. Empty: none.";
            "ca", Kind::OptionalPath, Literal::Text(""),
                "PEM file of the server certificate's authority. Required for TCP with TLS.";
            "client_certificate", Kind::OptionalPath, Literal::Text(""),
                "PEM file of the client certificate. Empty: none.";
            "client_key", Kind::OptionalPath, Literal::Text(""),
                "PEM file of its private key.";
            "tls", Kind::Choice(&["require", "off"]), Literal::Text("require"),
                "Encryption of TCP connections. \"off\" is accepted on loopback only. Unix sockets need none.";
            "writers", Kind::Number { unit: "connections", min: 1, max: 32 }, Literal::Number(2),
                "Connections that write tokens. With two, one works while the other waits for the disk.";
            "readers", Kind::Number { unit: "connections", min: 1, max: 32 }, Literal::Number(2),
                "Connections that read tokens.";
            "timeout_ms", Kind::Number { unit: "ms", min: 100, max: 60_000 }, Literal::Number(5_000),
                "Timeout of a database operation with its wait for a connection.";
        ),
    },
    Section {
        name: "kek",
        form: Form::Table,
        doc: "Key-encryption key, which seals every app key at rest, or the store's root key.",
        keys: keys!("kek":
            "provider", Kind::Choice(&["file", "environment"]), Literal::Text("file"),
                "Source of the key-encryption key.";
            "file", Kind::Path, Literal::Text("kek.key"),
                "Key file for provider \"file\".";
            "env_var", Kind::Variable, Literal::Text("SEALWIRE_KEK"),
                "Variable with the key for provider \"environment\".";
            "providers", Kind::OptionalPath, Literal::Text(""),
                "TOML file of more providers, one table each. Each can unwrap the store's root key, as can the key above, whose\nname is `local`. Empty: none.";
            "root_key", Kind::Choice(&["optional", "required"]), Literal::Text("optional"),
                "\"required\": the engine does not start with a store that lacks a root key. Set it after `kek init`: who writes the store could else remove\nthe root key and add keys under an earlier key-encryption key.";
            "probe_interval_s", Kind::Number { unit: "s", min: 0, max: 604_800 }, Literal::Number(86_400),
                "Time between two checks of a slot, randomly shortened by up to a quarter: its provider unwraps the root key. A slot\nthat fails is checked each hour and changes nothing else. 0: no checks.";
        ),
    },
    Section {
        name: "crypto",
        form: Form::Table,
        doc: "Threads for cryptography only.",
        keys: keys!("crypto":
            "threads", Kind::Number { unit: "threads", min: 0, max: 1_024 }, Literal::Number(0),
                "0: one per core. More are useless, because these threads never wait.";
            "precomputed_tables", Kind::Number { unit: "key versions", min: 0, max: 65_536 }, Literal::Number(64),
                "Number of busiest P-256 key versions with a precomputed table. A table makes Diffie-Hellman five times faster,\nand takes 150 KB and 20 ms to compute. 0: none.";
            "ready_keys", Kind::Number { unit: "keys", min: 0, max: 1_024 }, Literal::Number(16),
                "Single-use ephemeral keys made ahead per such key version by idle crypto threads. If `precomputed_tables` is 0,\nonly for the busiest version. 0: none; required if a machine snapshot can be resumed twice.";
            "open_key_cache_entries", Kind::Number { unit: "keys", min: 0, max: 1 << 20 }, Literal::Number(4_096),
                "Cached key schedules of opened envelopes, about 1 KiB each. Each saves a Diffie-Hellman per further field with\nthe same ephemeral key. 0: none outlives its request.";
            "open_key_cache_s", Kind::Number { unit: "s", min: 1, max: 3_600 }, Literal::Number(60),
                "Cache time-to-live from the first use. Entries of disabled keys are removed at once.";
        ),
    },
    Section {
        name: "evervault",
        form: Form::Table,
        doc: "Compatibility with Evervault (proto/evervault.md).",
        keys: keys!("evervault":
            "legacy", Kind::Flag, Literal::Flag(false),
                "Read tags and file versions that the vendor abandoned. Enable only while moving old data: the role of such\nvalues can be stripped.";
            "open_roles", ROLES, Literal::NoEntries,
                "Data roles whose values are opened for every client of the app. Fields of all other data roles are `forbidden`.\n\"*\": every role.";
        ),
    },
    Section {
        name: "network",
        form: Form::Table,
        doc: "Threads for I/O and TLS.",
        keys: keys!("network":
            "threads", Kind::Number { unit: "threads", min: 0, max: 1_024 }, Literal::Number(0),
                "0: one per eight cores, from one to four. Small requests do their cryptography on these threads; see `schedule.inline_us`.";
        ),
    },
    Section {
        name: "schedule",
        form: Form::Table,
        doc: "Admission and scheduling. crates/core/schedule/README.md shows the effect of each setting.",
        keys: keys!("schedule":
            "wait_max_ms", Kind::Number { unit: "ms", min: 1, max: 3_600_000 }, Literal::Number(250),
                "Predicted wait at which requests of ordinary size are rejected as `overloaded`. Delays grow from a quarter of\nit. Requests that wait for twice this time are rejected, too; larger ones after twice their predicted wait.\nRecommended: a quarter of the time that clients wait.";
            "slice_us", Kind::Number { unit: "us", min: 10, max: 100_000 }, Literal::Number(100),
                "Length of a slice. Shorter: small requests wait less. Longer: fewer scheduling decisions. 50 to 250 is similar.";
            "inline_us", Kind::Number { unit: "us", min: 0, max: 1_000 }, Literal::Number(30),
                "Predicted work on small requests that a network thread may do itself each time it wakes up, if nothing is queued\nand no Diffie-Hellman is needed. 0: all work on crypto threads.";
            "memory_mib", Kind::Number { unit: "MiB", min: 1, max: 1 << 20 }, Literal::Number(1_024),
                "Memory for all requests and responses. A principal may hold as much as it leaves free: half if alone,\n1/(n + 1) each for n principals. Further requests are rejected as `overloaded`.\nWith `http.address`, bodies and results of HTTP take at most as much again.";
            "weights", WEIGHTS, Literal::NoEntries,
                "Principals with a larger share of a busy engine, named as `sealwire principals list` does. \"relay.internal=3\" gets three\ntimes the share of an unlisted one.";
            "order", Kind::Choice(&["fair", "arrival"]), Literal::Text("fair"),
                "\"arrival\": first come, first served, whole requests, no delays. For comparison only: large requests delay all.";
        ),
    },
    Section {
        name: "limits",
        form: Form::Table,
        doc: "A request beyond a limit gets a typed error.",
        keys: limits::KEYS,
    },
    Section {
        name: "audit",
        form: Form::Table,
        doc: "Audit log: one chained, authenticated record per request (proto/audit.md), without values or keys.",
        keys: keys!("audit":
            "folder", Kind::OptionalPath, Literal::Text(""),
                "Folder for this engine alone. Empty: no records.";
            "on_failure", Kind::Choice(&["reject", "continue"]), Literal::Text("reject"),
                "If records cannot be written: \"reject\" makes requests without a record `unavailable`; \"continue\" processes them,\nand counts and records the loss.";
            "sync", Kind::Flag, Literal::Flag(false),
                "Sync each write to disk. A machine crash then loses no written record. With \"reject\", requests wait for it.";
            "segment_mib", Kind::Number { unit: "MiB", min: 1, max: 4_096 }, Literal::Number(64),
                "Size at which the next file begins; 64 MiB hold about 180,000 requests.";
            "segment_hours", Kind::Number { unit: "h", min: 1, max: 8_784 }, Literal::Number(24),
                "Age at which the next file begins.";
            "folder_mib_max", Kind::Number { unit: "MiB", min: 0, max: 1 << 24 }, Literal::Number(0),
                "Maximum folder size. Beyond it, writes fail until `sealwire audit archive` has moved old segments.\n0: the disk size.";
            "reserve_mib", Kind::Number { unit: "MiB", min: 0, max: 1 << 20 }, Literal::Number(64),
                "Free space reserved for permitted requests, at most a tenth of folder_mib_max. With less, rejected requests are\nonly counted.";
            "queue_records", Kind::Number { unit: "records", min: 64, max: 1 << 20 }, Literal::Number(16_384),
                "Maximum queued records.";
            "queue_mib", Kind::Number { unit: "MiB", min: 1, max: 1_024 }, Literal::Number(16),
                "Maximum size of queued records. Memory use is at most five times as much.";
        ),
    },
    Section {
        name: "sweep",
        form: Form::Table,
        doc: "Background sweeps: expired token rows are archived, then removed after their collection's retention time. Rows of deleted collections and apps are erased.",
        keys: keys!("sweep":
            "interval_s", Kind::Number { unit: "s", min: 0, max: 86_400 }, Literal::Number(60),
                "Time between sweeps, randomly shortened by up to a quarter. 0: this engine never sweeps.";
            "rows_per_s", Kind::Number { unit: "rows", min: 1, max: 1_000_000 }, Literal::Number(2_000),
                "Maximum rows read per second. After each batch, a sweep pauses nine times as long as the store took.";
        ),
    },
    Section {
        name: "traces",
        form: Form::Table,
        doc: "Spans of requests for an OpenTelemetry collector (OTLP/HTTP in JSON): names, counts and times, no values or keys.",
        keys: keys!("traces":
            "endpoint", Kind::OptionalUrl, Literal::Text(""),
                "Collector URL in plain HTTP, on this machine, such as http://127.0.0.1:4318/v1/traces. Empty: no spans.";
            "sample_ratio", Kind::Fraction, Literal::Number(0),
                "Fraction of requests without a trace context that are traced. The other requests follow the sampled flag of their\n`traceparent`.";
            "spans_per_s_max", Kind::Number { unit: "spans", min: 1, max: 10_000 }, Literal::Number(100),
                "Maximum spans per second. Further requests are counted, not traced.";
            "queue_spans", Kind::Number { unit: "spans", min: 1, max: 1 << 16 }, Literal::Number(2_048),
                "Maximum queued spans, about half a KiB each. Further ones are dropped and counted; requests never wait.";
            "batch_spans", Kind::Number { unit: "spans", min: 1, max: 4_096 }, Literal::Number(512),
                "Maximum spans per request to the collector, about 1 KiB each.";
            "batch_ms", Kind::Number { unit: "ms", min: 1, max: 60_000 }, Literal::Number(1_000),
                "Maximum wait of a span for its batch.";
            "timeout_ms", Kind::Number { unit: "ms", min: 10, max: 30_000 }, Literal::Number(2_000),
                "Timeout of a batch or, at shutdown, of all remaining spans.";
        ),
    },
    Section {
        name: "log",
        form: Form::Table,
        doc: "Log on standard error, without values, keys or payloads.",
        keys: keys!("log":
            "format", Kind::Choice(&["human", "json"]), Literal::Text("human"),
                "\"human\" for a terminal; \"json\" for a collector, one object per line.";
            "filter", Kind::Text, Literal::Text("info"),
                "Level, or level per module: \"info,sealwire_server::connection=debug\".";
        ),
    },
];
