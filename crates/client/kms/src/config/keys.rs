//! The table of configuration keys: name, kind, range, default and description.
//!
//! The check of a file, the environment overrides, the template and
//! `docs/kubernetes-configuration.md` all use [`SECTIONS`].

use sealwire_service::keys;
use sealwire_service::settings::{Form, Kind, ListKind, Literal, Schema, Section, is_endpoint};

use Literal::{Number, Required, Text};

/// The configuration of a plugin.
pub(super) static SCHEMA: Schema = Schema {
    prefix: "SEALWIRE_KMS_",
    sections: SECTIONS,
    template_command: "sealwire-kms config template",
    secret_variable: None,
    variables_ignore_case: true,
};

/// Most engines, which share the time of one request.
const ENDPOINTS_MAX: usize = 16;

/// A list of `host:port`.
const ENDPOINTS: Kind = Kind::List(&ListKind {
    takes: "a list of \"host:port\"",
    expected: "must be a list of 1 to 16 addresses with ports, such as [\"engine.internal:7443\"]",
    is_valid: |endpoints| {
        (1..=ENDPOINTS_MAX).contains(&endpoints.len())
            && endpoints.iter().all(|endpoint| is_endpoint(endpoint))
    },
});

const fn number(unit: &'static str, min: u64, max: u64) -> Kind {
    Kind::Number { unit, min, max }
}

/// All sections, in the order of the template.
const SECTIONS: &[Section] = &[
    Section {
        name: "plugin",
        form: Form::Table,
        doc: "The socket for the API server, and the names under which the engine seals.",
        keys: keys!("plugin":
            "socket", Kind::Path, Required("\"/run/sealwire-kms/kms.sock\""),
                "Socket for the API server, which its EncryptionConfiguration names. Gets mode 0600, so plugin and API server must run as one user, or the API server as root. Only its owner may be able to write its folder.";
            "app", Kind::Name, Required("\"kubernetes\""),
                "App of the engine whose keys encrypt. Use one that nothing else uses.";
            "cluster", Kind::Name, Required("\"production\""),
                "Name of the cluster. Ciphertexts are bound to it, so that those of other clusters do not decrypt. Never change it: the API server could then read nothing that it has stored.";
            "suite", Kind::Choice(&["app", "xaes"]), Text("app"),
                "Cipher suite of new ciphertexts: \"app\" for that of the app, or \"xaes\". The API server accepts ciphertexts of at most 1,024 bytes, so that p256-mlkem768 cannot be used.";
        ),
    },
    Section {
        name: "engine",
        form: Form::Table,
        doc: "The engines: addresses, and the certificate with which the plugin is a client of them.",
        keys: keys!("engine":
            "endpoints", ENDPOINTS, Required("[\"engine.internal:7443\"]"),
                "Address of each engine. Each must serve the app. A request goes to the engine that worked last, and on to the next ones if it fails.";
            "server_name", Kind::Text, Text(""),
                "Name in the engines' certificates. Empty: the host of each endpoint.";
            "ca", Kind::Path, Required("\"/etc/sealwire-kms/engine-ca.pem\""),
                "PEM file of the authority of the engines' certificates.";
            "certificate", Kind::Path, Required("\"/etc/sealwire-kms/kms.pem\""),
                "PEM file of the plugin's certificate chain. Changed files are used without a restart.";
            "key", Kind::Path, Required("\"/etc/sealwire-kms/kms-key.pem\""),
                "PEM file of its private key. Must not be readable by other users.";
            "deadline_ms", number("ms", 10, 60_000), Number(2_500),
                "Longest time of a request, over all engines. Keep it below `timeout` of the EncryptionConfiguration, which is 3 s by default.";
        ),
    },
    Section {
        name: "limits",
        form: Form::Table,
        doc: "Limits of the process.",
        keys: keys!("limits":
            "connections_max", number("connections", 1, 1_024), Number(16),
                "Connections of API servers, which use one each. Further connections are closed.";
            "requests_per_connection_max", number("requests", 1, 1_024), Number(128),
                "Concurrent requests on one connection. Further requests wait.";
            "drain_ms", number("ms", 1, 600_000), Number(10_000),
                "Time for requests to end at a shutdown.";
        ),
    },
    Section {
        name: "admin",
        form: Form::Table,
        doc: "/live, /ready and /metrics on a thread of their own, in plain HTTP. Expose it to operators only.",
        keys: keys!("admin":
            "address", Kind::OptionalAddress, Text(""),
                "Address, such as 127.0.0.1:8446. Empty: none.";
        ),
    },
    Section {
        name: "log",
        form: Form::Table,
        doc: "Log lines on standard error. No line holds a plaintext or a ciphertext.",
        keys: keys!("log":
            "format", Kind::Choice(&["text", "json"]), Text("text"),
                "\"text\" for people, \"json\" for one JSON object per line.";
            "level", Kind::Choice(&["error", "warn", "info", "debug"]), Text("info"),
                "Least important level that is written.";
        ),
    },
];
