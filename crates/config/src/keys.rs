//! The one table of configuration keys: name, kind, range, default and description.
//!
//! Parsing, checking, the reference text and the tests all read [`all`]; a key that is not in the table does not exist.

use crate::key::{Key, Literal, ValueKind};
use crate::limits;

/// Returns every key, in the order of the reference.
pub fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// Returns the key of that name, if there is one.
pub(crate) fn find(section: &str, name: &str) -> Option<&'static Key> {
    SECTIONS.iter().find(|known| known.name == section)?.keys.iter().find(|key| key.name == name)
}

/// A section of the file.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [Key],
}

macro_rules! keys {
    ($section:literal: $( $name:literal, $kind:expr, $default:expr, $doc:expr; )+) => {
        &[$( Key { section: $section, name: $name, kind: $kind, default: $default, doc: $doc }, )+]
    };
}

/// Every section, in the order of the reference.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "listen",
        doc: "The data listener, for clients.",
        keys: keys!("listen":
            "address", ValueKind::OptionalAddress, Literal::Text("127.0.0.1:7443"),
                "Address and port for MessagePack-RPC over mutual TLS. Loopback until you say otherwise. \"\": this engine has no data\nlistener and serves `[control]` alone.";
        ),
    },
    Section {
        name: "admin",
        doc: "Health and metrics, in plain HTTP. Keep it on a network that only operators reach.",
        keys: keys!("admin":
            "address", ValueKind::Address, Literal::Text("127.0.0.1:7444"),
                "Address and port for /live, /ready and /metrics.";
        ),
    },
    Section {
        name: "control",
        doc: "The control listener, for operators who change apps, keys and collections. Keep it on a network that only they reach.",
        keys: keys!("control":
            "address", ValueKind::OptionalAddress, Literal::Text(""),
                "Address and port for the control methods over mutual TLS, with the certificate of `tls`. Empty: not served.";
            "client_ca", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with the authorities of operators. Empty: those of `tls.client_ca`; then `principals` must name the\noperators.";
            "client_crl", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with revocation lists of those authorities. Empty: those of `tls.client_crl`, without a `client_ca`\nof its own, else none.";
            "principals", ValueKind::Principals, Literal::NoEntries,
                "Principals that may connect, by the name in their certificate: a DNS name, a spiffe:// URI, or cn: and a common\nname. Empty: every holder of a certificate of `client_ca`.";
        ),
    },
    Section {
        name: "access",
        doc: "Authorization by roles, which are kept with the apps (`sealwire roles`, `sealwire principals`).",
        keys: keys!("access":
            "mode", ValueKind::Choice(&["enforce", "observe", "off"]), Literal::Text("enforce"),
                "\"enforce\" denies requests that no role of the principal grants. \"observe\" permits, counts and logs them. \"off\"\nchecks nothing: any certificate of `tls.client_ca` may use every app.";
            "administrators", ValueKind::Principals, Literal::NoEntries,
                "Principals that get the role `administrator` at the first start, when nobody has a role, by the name in their\ncertificate: a DNS name, a spiffe:// URI, or cn: and a common name. Without effect afterwards.";
            "name_order", ValueKind::Identity, Literal::NoEntries,
                "Kinds of names that identify a principal, in order of preference: [\"spiffe\", \"dns\", \"cn\"]. A certificate without\nany of the listed kinds is rejected. Empty: all three in that order.";
            "cache_entries", ValueKind::Number { unit: "principals", min: 1, max: 1 << 20 }, Literal::Number(10_000),
                "Principals in the permission cache. A request of any other principal costs a lookup in the store.";
            "cache_s", ValueKind::Number { unit: "s", min: 1, max: 86_400 }, Literal::Number(300),
                "Cache time-to-live; the effective value is jittered between 25 % and 100 %. A change of roles ends it at once.";
            "cache_negative_s", ValueKind::Number { unit: "s", min: 1, max: 86_400 }, Literal::Number(30),
                "Cache time-to-live of principals without a role.";
            "stale_s", ValueKind::Number { unit: "s", min: 0, max: 86_400 }, Literal::Number(0),
                "Additional time for which cached permissions are used while the store does not answer. 0: such requests are\n`unavailable`. A role that was revoked on another engine stays in effect here for as long.";
        ),
    },
    Section {
        name: "tls",
        doc: "The server certificate, and the authorities of clients.",
        keys: keys!("tls":
            "certificate", ValueKind::Path, Literal::Text("tls/server.pem"),
                "PEM file with the server's certificate, then any intermediates.";
            "key", ValueKind::Path, Literal::Text("tls/server-key.pem"),
                "PEM file with the private key of that certificate. Other users must not be able to read it.";
            "client_ca", ValueKind::Path, Literal::Text("tls/client-ca.pem"),
                "PEM file with the authorities of client certificates. Every client needs a certificate.";
            "client_crl", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with revocation lists of those authorities. Empty: none.";
            "tls12", ValueKind::Flag, Literal::Flag(false),
                "Accept TLS 1.2 as well as 1.3, for clients without 1.3.";
            "watch_s", ValueKind::Number { unit: "s", min: 0, max: 3_600 }, Literal::Number(5),
                "Interval at which the files above, and those of `control`, are checked. Changed files are used when they load and\nhave been stable for half a second. Only connections whose certificate is no longer accepted are closed. 0: check\nonly at SIGHUP.";
        ),
    },
    Section {
        name: "state",
        doc: "Storage of apps, keys and tokens.",
        keys: keys!("state":
            "mode", ValueKind::Choice(&["stateless", "embedded", "postgres"]), Literal::Text("embedded"),
                "\"postgres\" keeps everything in a database that several engines share. \"embedded\" keeps apps, sealed keys and tokens in a folder that this engine alone uses. \"stateless\" keeps\nno tokens and only reads the apps and their sealed keys from a file, which others write; looked at each second.";
            "file", ValueKind::Path, Literal::Text("apps.json"),
                "That file, when mode is \"stateless\".";
            "folder", ValueKind::Path, Literal::Text("state"),
                "That folder, when mode is \"embedded\".";
            "poll_s", ValueKind::Number { unit: "s", min: 1, max: 30 }, Literal::Number(30),
                "Interval at which the store is polled for changes, if it sends no notifications. A deleted name can be used again\nthree intervals after the last sign of life of an engine that may serve it.";
        ),
    },
    Section {
        name: "postgres",
        doc: "The database, when state.mode is \"postgres\". The password is in a file or in SEALWIRE_POSTGRES_PASSWORD.",
        keys: keys!("postgres":
            "url", ValueKind::Text, Literal::Text(""),
                "postgres://user@host:5432/database, without the password. Several hosts apart by commas: the first that\ntakes writes is used. A socket: postgres:///database?user=user&host=/var/run/postgresql.";
            "password_file", ValueKind::OptionalPath, Literal::Text(""),
                "The file that holds the password; read again for each connection. Empty: none.";
            "ca", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with the authority of the server's certificate. TCP with TLS needs it.";
            "client_certificate", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with the certificate to show to the server. Empty: none.";
            "client_key", ValueKind::OptionalPath, Literal::Text(""),
                "PEM file with its private key.";
            "tls", ValueKind::Choice(&["require", "off"]), Literal::Text("require"),
                "Encryption of TCP connections. \"off\" is accepted on loopback only; Unix sockets need none.";
            "writers", ValueKind::Number { unit: "connections", min: 1, max: 32 }, Literal::Number(2),
                "Connections that write tokens. Two keep one at work while the other waits for the disk.";
            "readers", ValueKind::Number { unit: "connections", min: 1, max: 32 }, Literal::Number(2),
                "Connections that read tokens.";
            "timeout_ms", ValueKind::Number { unit: "ms", min: 100, max: 60_000 }, Literal::Number(5_000),
                "Timeout of a database operation, including the wait for a connection.";
        ),
    },
    Section {
        name: "kek",
        doc: "The key-encryption key: it seals every app key at rest.",
        keys: keys!("kek":
            "provider", ValueKind::Choice(&["file", "environment"]), Literal::Text("file"),
                "Where the key-encryption key comes from.";
            "file", ValueKind::Path, Literal::Text("kek.key"),
                "The file that holds it, when provider is \"file\".";
            "env_var", ValueKind::Variable, Literal::Text("SEALWIRE_KEK"),
                "The environment variable that holds it, when provider is \"environment\".";
        ),
    },
    Section {
        name: "crypto",
        doc: "Threads that do cryptography, and nothing else.",
        keys: keys!("crypto":
            "threads", ValueKind::Number { unit: "threads", min: 0, max: 1_024 }, Literal::Number(0),
                "0: one per core. These threads never wait, so more than cores buys nothing.";
            "precomputed_tables", ValueKind::Number { unit: "key versions", min: 0, max: 65_536 }, Literal::Number(64),
                "Number of the busiest key versions with a precomputed table, on P-256. A table makes Diffie-Hellman five times\ncheaper, and takes 150 KB and 20 ms to make. 0: no tables.";
            "ready_keys", ValueKind::Number { unit: "keys", min: 0, max: 1_024 }, Literal::Number(16),
                "Ephemeral keys made ahead for each of those versions (the busiest one if `precomputed_tables` is 0) while crypto\nthreads are idle, each used once. 0: none; needed where a snapshot of the machine may be resumed twice.";
            "open_key_cache_entries", ValueKind::Number { unit: "keys", min: 0, max: 1 << 20 }, Literal::Number(4_096),
                "Key schedules of opened envelopes kept in memory, so that decrypting more fields of one request needs no\nDiffie-Hellman. About 1 KiB each. 0: none outlives its call.";
            "open_key_cache_s", ValueKind::Number { unit: "s", min: 1, max: 3_600 }, Literal::Number(60),
                "Cache time-to-live, counted from the first use. Entries of a disabled key are removed at once.";
        ),
    },
    Section {
        name: "evervault",
        doc: "Compatibility with the Evervault format (proto/evervault.md).",
        keys: keys!("evervault":
            "legacy", ValueKind::Flag, Literal::Flag(false),
                "Read the tags and file versions that the vendor has given up. Turn it on to move old data, then off\nagain: the role of such a value can be stripped.";
            "open_roles", ValueKind::Roles, Literal::NoEntries,
                "Values with one of these data roles are opened for every caller of the app; others are `forbidden`.\n\"*\" is every role.";
        ),
    },
    Section {
        name: "network",
        doc: "Threads that read, write and do TLS.",
        keys: keys!("network":
            "threads", ValueKind::Number { unit: "threads", min: 0, max: 1_024 }, Literal::Number(0),
                "0: one per eight cores, at least one and at most four.\nNetwork threads do TLS and never payload cryptography.";
        ),
    },
    Section {
        name: "schedule",
        doc: "Admission and fair order of requests. crates/schedule/README.md shows the effect of each setting by experiment.",
        keys: keys!("schedule":
            "wait_max_ms", ValueKind::Number { unit: "ms", min: 1, max: 3_600_000 }, Literal::Number(250),
                "Wait, as predicted, at which a call of ordinary size is refused as `overloaded`. Calls are delayed, more and\nmore, from a quarter of it on. A call that has not begun after twice this time is refused, too; a larger one\nafter twice the wait that was predicted for it. A quarter of what callers wait is a good choice.";
            "slice_us", ValueKind::Number { unit: "us", min: 10, max: 100_000 }, Literal::Number(100),
                "Length of a slice of work. Shorter: small requests wait less; longer: fewer scheduling decisions. Between 50 and 250\nlittle changes.";
            "memory_mib", ValueKind::Number { unit: "MiB", min: 1, max: 1 << 20 }, Literal::Number(1_024),
                "Memory for requests and replies, over all connections. A caller may hold as much as it leaves free: one\nalone a half, n of them one part of n + 1 each. Beyond its share a call is refused as `overloaded`.";
            "weights", ValueKind::Weights, Literal::NoEntries,
                "Callers that get more than an equal part of a busy engine, by the name in their certificate: a DNS name, a\nspiffe:// URI, or cn: and a common name. \"relay.internal=3\" gets three times the part of one that is not listed.";
            "order", ValueKind::Choice(&["fair", "arrival"]), Literal::Text("fair"),
                "\"arrival\" is first come, first served, one whole call after the other, nobody held back. To compare with:\none large call makes everybody late.";
        ),
    },
    Section { name: "limits", doc: "Limits. A request beyond a limit gets a typed error.", keys: limits::KEYS },
    Section {
        name: "audit",
        doc: "The audit trail: one chained, authenticated record per request (proto/audit.md). Never a value or a key.",
        keys: keys!("audit":
            "folder", ValueKind::OptionalPath, Literal::Text(""),
                "Folder of the records, for this engine alone. Empty: none are kept.";
            "on_failure", ValueKind::Choice(&["reject", "continue"]), Literal::Text("reject"),
                "When records cannot be written: \"reject\" answers no call without its record, and every other `unavailable`;\n\"continue\" lets calls go on, and counts and records what was lost.";
            "sync", ValueKind::Flag, Literal::Flag(false),
                "Put each write on disk before it counts as written: a crash of the machine then loses none of them, and\nwith \"reject\" calls wait for the disk.";
            "segment_mib", ValueKind::Number { unit: "MiB", min: 1, max: 4_096 }, Literal::Number(64),
                "Size at which a file ends and the next begins; 64 MiB hold about 180,000 calls.";
            "segment_hours", ValueKind::Number { unit: "h", min: 1, max: 8_784 }, Literal::Number(24),
                "Age at which a file ends and the next begins.";
            "folder_mib_max", ValueKind::Number { unit: "MiB", min: 0, max: 1 << 24 }, Literal::Number(0),
                "Largest total size of the folder. Beyond it records cannot be written until `sealwire audit archive` has moved old\nsegments away. 0: the size of the disk.";
            "reserve_mib", ValueKind::Number { unit: "MiB", min: 0, max: 1 << 20 }, Literal::Number(64),
                "Free space reserved for permitted requests, at most a tenth of folder_mib_max. With less, rejected requests are\ncounted and not recorded one by one.";
            "queue_records", ValueKind::Number { unit: "records", min: 64, max: 1 << 20 }, Literal::Number(16_384),
                "Largest number of records that wait to be written.";
            "queue_mib", ValueKind::Number { unit: "MiB", min: 1, max: 1_024 }, Literal::Number(16),
                "Memory limit of those records. The trail takes at most five times as much.";
        ),
    },
    Section {
        name: "sweep",
        doc: "Removal of token rows in the background: expired ones are archived, archived ones are removed after their collection's retention time, and rows of deleted collections and apps are erased.",
        keys: keys!("sweep":
            "interval_s", ValueKind::Number { unit: "s", min: 0, max: 86_400 }, Literal::Number(60),
                "Time between two sweeps, shortened at random by up to a quarter. 0: this engine never sweeps.";
            "rows_per_s", ValueKind::Number { unit: "rows", min: 1, max: 1_000_000 }, Literal::Number(2_000),
                "Largest number of rows that a sweep reads per second. After each batch it rests nine times as long as the store took.";
        ),
    },
    Section {
        name: "traces",
        doc: "Spans of calls for an OpenTelemetry collector (OTLP/HTTP in JSON). Names, counts and times, never a value or a key.",
        keys: keys!("traces":
            "endpoint", ValueKind::OptionalUrl, Literal::Text(""),
                "URL of the collector in plain HTTP, on the same machine, such as http://127.0.0.1:4318/v1/traces. Empty: no spans.";
            "sample_ratio", ValueKind::Fraction, Literal::Number(0),
                "Fraction of the requests without a trace context that are traced. A request with a trace context is traced if its\n`traceparent` says sampled.";
            "spans_per_s_max", ValueKind::Number { unit: "spans", min: 1, max: 10_000 }, Literal::Number(100),
                "Largest number of spans per second. Requests beyond it are not traced, and counted.";
            "queue_spans", ValueKind::Number { unit: "spans", min: 1, max: 1 << 16 }, Literal::Number(2_048),
                "Largest number of queued spans, about half a KiB each. Further spans are dropped and counted; requests never wait.";
            "batch_spans", ValueKind::Number { unit: "spans", min: 1, max: 4_096 }, Literal::Number(512),
                "Largest number of spans per request to the collector, about 1 KiB each.";
            "batch_ms", ValueKind::Number { unit: "ms", min: 1, max: 60_000 }, Literal::Number(1_000),
                "Longest time that a span waits for its batch.";
            "timeout_ms", ValueKind::Number { unit: "ms", min: 10, max: 30_000 }, Literal::Number(2_000),
                "Timeout of one batch. At shutdown, timeout of all remaining spans.";
        ),
    },
    Section {
        name: "log",
        doc: "The log on standard error. Never a value, a key or a payload.",
        keys: keys!("log":
            "format", ValueKind::Choice(&["human", "json"]), Literal::Text("human"),
                "\"human\" for a terminal, \"json\" for a collector: one object per line.";
            "filter", ValueKind::Text, Literal::Text("info"),
                "Level, or level per module: \"info,sealwire_server::connection=debug\".";
        ),
    },
];
