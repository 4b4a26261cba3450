//! The table of configuration keys: name, kind, range, default and description.
//!
//! The check of a file, the environment overrides, the template and `docs/relay-configuration.md`
//! all use [`SECTIONS`].

use ipnet::IpNet;
use sealwire_client::ClientConfig;
use sealwire_service::keys;
use sealwire_service::settings::{Form, Kind, ListKind, Literal, Schema, Section, is_endpoint};

/// The configuration of a relay.
pub(super) static SCHEMA: Schema = Schema {
    prefix: "SEALWIRE_RELAY_",
    sections: SECTIONS,
    template_command: "sealwire-relay config template",
    secret_variable: None,
    variables_ignore_case: true,
};

/// A list of texts.
const TEXTS: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of texts in quotes",
    is_valid: |_| true,
});

/// A list of `host:port`.
const ENDPOINTS: Kind = Kind::List(&ListKind {
    takes: "a list of \"host:port\"",
    expected: "must be a list of 1 to 128 addresses with ports, such as [\"engine.internal:7443\"]",
    is_valid: |endpoints| {
        (1..=ClientConfig::ENDPOINTS_MAX).contains(&endpoints.len())
            && endpoints.iter().all(|endpoint| is_endpoint(endpoint))
    },
});

/// A list of networks.
const NETWORKS: Kind = Kind::List(&ListKind {
    takes: "a list of networks in CIDR notation",
    expected: "must be a list of networks, such as [\"10.2.0.0/16\"]",
    is_valid: |networks| {
        networks
            .iter()
            .all(|network| network.parse::<IpNet>().is_ok())
    },
});

/// The context of a rule.
const CONTEXT: Kind = Kind::TextOrTable(&["header", "segment"]);

const fn time(max: u64) -> Kind {
    Kind::Number {
        unit: "ms",
        min: 1,
        max,
    }
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Number {
        unit: "bytes",
        min,
        max,
    }
}

const fn count(unit: &'static str, max: u64) -> Kind {
    Kind::Number { unit, min: 1, max }
}

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const MIB: u64 = 1 << 20;

use Literal::{Flag, NoEntries, Number, Rare, Required, Text, Unset};

/// All sections, in the order of the template.
const SECTIONS: &[Section] = &[
    Section {
        name: "engine",
        form: Form::Table,
        doc: "The engine: addresses, and the certificate with which the relay is a client of it.",
        keys: keys!("engine":
            "endpoints", ENDPOINTS, Required("[\"engine.internal:7443\"]"),
                "Address of each engine. Each must be able to serve every request.";
            "server_name", Kind::Text, Text(""),
                "Name in the engines' certificates. Empty: the host of each endpoint.";
            "ca", Kind::Path, Required("\"/etc/sealwire-relay/engine-ca.pem\""),
                "PEM file of the authority of the engines' certificates.";
            "certificate", Kind::Path, Required("\"/etc/sealwire-relay/relay.pem\""),
                "PEM file of the relay's certificate chain.";
            "key", Kind::Path, Required("\"/etc/sealwire-relay/relay-key.pem\""),
                "PEM file of its private key. Must not be readable by other users.";
            "deadline_ms", time(HOUR), Number(2_000),
                "Longest time of one request to the engine.";
            "connections", count("connections", 1_024), Number(2),
                "Connections to each engine.";
            "connection_age_max_s", Kind::Number { unit: "s", min: 10, max: 86_400 }, Number(1_800),
                "Age at which a connection is replaced, up to a quarter earlier. Behind a TCP balancer an engine that was started again gets its share of the connections no later.";
            "in_flight_max", count("requests", 65_536), Number(256),
                "Concurrent requests on each of these connections. Further requests wait.";
        ),
    },
    Section {
        name: "limits",
        form: Form::Table,
        doc: "Limits of the process.",
        keys: keys!("limits":
            "connections_max", count("connections", MIB), Number(12_000),
                "Connections of clients. Further connections are closed.";
            "requests_max", count("exchanges", MIB), Number(4_096),
                "Concurrent exchanges. Further requests get 503.";
            "requests_per_client_max", count("exchanges", MIB), Rare("3_072"),
                "Concurrent exchanges of one client: of one certificate name or token, or of one address (`client_ipv6_bits`) where clients are not authenticated. Without it: three quarters of `requests_max`. A client gets at most three quarters of the free exchanges, unless this is more. Set it to `requests_max` behind a proxy that is the only client.";
            "client_ipv6_bits", Kind::Number { unit: "bits", min: 32, max: 128 }, Number(56),
                "First bits of an IPv6 address that are one client where it is known by its address: the network that a provider gives one customer. An IPv4 address that is written as IPv6 is the IPv4 address.";
            "memory_bytes", bytes(1, 1 << 40), Number(1_073_741_824),
                "Memory for bodies that are held or streamed, with decoders, over all exchanges. A body takes about twice its bytes, as they arrive. Further requests get 503, and a body that streams is broken off.";
            "client_memory_bytes", bytes(1, 1 << 40), Rare("536_870_912"),
                "Part of `memory_bytes` that one client can take on all its connections. Without it: half. A client gets at most three quarters of the free memory, unless this is more. Set it to `memory_bytes` behind a proxy that is the only client.";
            "connection_memory_bytes", bytes(1, 1 << 40), Rare("268_435_456"),
                "Part of `memory_bytes` that one connection can take. Without it: a quarter.";
            "body_bytes", bytes(1, 1 << 40), Number(1_048_576),
                "Longest body that is held before it is forwarded. At most half of `connection_memory_bytes`, or a third where a route has `request_unparsed` or `response_unparsed` \"pass\", and a fifth with `websocket_origins`.";
            "decoded_bytes", bytes(1, 1 << 40), Number(10_485_760),
                "Longest body that is held after it was decompressed. At most a quarter of `connection_memory_bytes`, which the decoder also needs.";
            "stream_window_bytes", bytes(64 << 10, 1 << 40), Number(2_097_152),
                "Most memory that is counted per direction of a body that streams, beside its decoder. At most `connection_memory_bytes`.";
            "http2_window_bytes", bytes(64 << 10, 16 * MIB), Number(131_072),
                "Bytes of one body that a stream of HTTP/2 holds while nobody reads them, towards clients and upstreams, in addition to `memory_bytes`. A connection has this window for each of its streams, so that a stream that is not read takes nothing from others. With `streams_per_connection` of them at most 2 GiB.";
            "value_bytes", bytes(1, 64 * MIB), Number(1_048_576),
                "Longest selected value.";
            "record_bytes", bytes(1, 64 * MIB), Number(1_048_576),
                "Longest line of JSON lines or event of an event stream that is held where malformed ones pass.";
            "header_bytes", bytes(1_024, MIB), Number(32_768),
                "Longest head of a request over HTTP/2.";
            "streams_per_connection", count("exchanges", 65_536), Number(100),
                "Concurrent exchanges on one connection over HTTP/2.";
            "header_timeout_ms", time(DAY), Number(10_000),
                "Time for the head of a request, and for a TLS handshake.";
            "body_idle_timeout_ms", time(DAY), Number(15_000),
                "Time without a byte of a client's body, or without progress of a write. Then a stream of HTTP/2 is reset, or a connection of HTTP/1.1 closed.";
            "idle_timeout_ms", time(DAY), Number(60_000),
                "Time without a request after which a connection is closed.";
            "websocket_idle_timeout_ms", time(DAY), Number(300_000),
                "Time without a message in either direction after which a WebSocket is closed. Pings and incomplete messages do not count.";
            "ext_proc_stream_ms", time(DAY), Number(3_600_000),
                "Longest external-processing stream. Envoy gets an error when it ends.";
            "drain_ms", time(DAY), Number(25_000),
                "Time for exchanges to end at a shutdown.";
        ),
    },
    Section {
        name: "admin",
        form: Form::Table,
        doc: "/live, /ready and /metrics on a thread of their own, in plain HTTP. Expose it to operators only.",
        keys: keys!("admin":
            "address", Kind::Address, Text("127.0.0.1:8444"),
                "Address.";
        ),
    },
    Section {
        name: "log",
        form: Form::Table,
        doc: "Log lines on standard error. No line holds a value, a header or a query.",
        keys: keys!("log":
            "format", Kind::Choice(&["text", "json"]), Text("text"),
                "\"text\" for people, \"json\" for one JSON object per line.";
            "level", Kind::Choice(&["error", "warn", "info", "debug"]), Text("info"),
                "Least important level that is written.";
            "access", Kind::Flag, Flag(true),
                "Write one line of level \"info\" per exchange.";
        ),
    },
    Section {
        name: "traces",
        form: Form::Table,
        doc: "Spans of exchanges for an OpenTelemetry collector (OTLP/HTTP in JSON): names, counts and times, never a value, header or\nquery. Traces of clients are continued towards engine and upstream in any case.",
        keys: keys!("traces":
            "endpoint", Kind::OptionalUrl, Text(""),
                "URL of a collector in plain HTTP, on this machine, such as http://127.0.0.1:4318/v1/traces. Empty: no spans.";
            "sample_ratio", Kind::Fraction, Number(0),
                "Fraction of requests without a trace context that are kept. The other requests follow the sampled flag of their `traceparent`.";
            "spans_per_s_max", count("spans", 10_000), Number(100),
                "Most spans per second. Further requests are counted and make none.";
            "queue_spans", count("spans", 1 << 16), Number(2_048),
                "Most spans that wait, about half a KiB each. Further ones are dropped and counted; requests never wait.";
            "batch_spans", count("spans", 4_096), Number(512),
                "Most spans per request to the collector, about 1 KiB each.";
            "batch_ms", time(60_000), Number(1_000),
                "Longest wait of a span for its batch.";
            "timeout_ms", time(30_000), Number(2_000),
                "Time for a batch and, at a shutdown, for all spans that are left.";
        ),
    },
    Section {
        name: "listen",
        form: Form::Named("public"),
        doc: "A listener.",
        keys: keys!("listen":
            "address", Kind::Address, Required("\"0.0.0.0:8443\""),
                "Address for clients.";
            "kind", Kind::Choice(&["reverse", "forward", "ext_proc"]), Text("reverse"),
                "\"reverse\": in front of upstreams. \"forward\": a CONNECT proxy, which intercepts the hosts of its routes.\n\"ext_proc\": the external-processing service of an Envoy proxy, over gRPC.";
            "certificate", Kind::Path, Unset("\"/etc/sealwire-relay/public.pem\""),
                "PEM file of the certificate chain towards clients. Without it the listener is plaintext.";
            "key", Kind::Path, Unset("\"/etc/sealwire-relay/public-key.pem\""),
                "PEM file of its private key. Must not be readable by other users.";
            "plaintext", Kind::Flag, Flag(false),
                "Permit plaintext on an address that is not loopback.";
            "clients", Kind::Choice(&["mtls", "bearer", "open"]), Text("mtls"),
                "Authentication of clients. \"mtls\": a certificate of `client_ca`. \"bearer\": a token of `tokens` in Authorization,\nor in Proxy-Authorization of a CONNECT proxy, where it can also be the password. \"open\": none.";
            "client_ca", Kind::Path, Unset("\"/etc/sealwire-relay/client-ca.pem\""),
                "PEM file of client authorities, for \"mtls\".";
            "principals", TEXTS, NoEntries,
                "Names of clients that are permitted, for \"mtls\": the first DNS name or URI of a certificate, or, without one, cn: and its\ncommon name. Empty: all clients of `client_ca`.";
            "tokens", Kind::Path, Rare("\"/etc/sealwire-relay/tokens\""),
                "File with one token per line, for \"bearer\": at least 20 characters. Lines that begin with # are comments.";
            "trust_forwarded", Kind::Flag, Flag(false),
                "For a listener whose clients are proxies, and nobody else: keep Forwarded and X-Forwarded-* of them, and count limits per client for the last address of X-Forwarded-For, unless a token names the client.";
            "authority_certificate", Kind::Path, Rare("\"/etc/sealwire-relay/egress-ca.pem\""),
                "PEM file of the interception authority, for \"forward\". `sealwire-relay authority` creates one.";
            "authority_key", Kind::Path, Rare("\"/etc/sealwire-relay/egress-ca-key.pem\""),
                "PEM file of its private key. Must not be readable by other users.";
            "tunnel", TEXTS, NoEntries,
                "`host:port` whose tunnels pass untouched, for \"forward\".";
            "tunnel_addresses", NETWORKS, NoEntries,
                "Networks that the addresses of such tunnels must be in. Empty: public addresses only.";
            "unlisted", Kind::Choice(&["deny", "tunnel"]), Text("deny"),
                "Handling of hosts that neither a route nor `tunnel` names. \"tunnel\": they pass untouched.";
            "tunnel_protocols", Kind::Choice(&["tls", "any"]), Text("tls"),
                "Protocols in tunnels that pass untouched. \"tls\": only TLS for the tunnel's host, by the name in its hello. \"any\": also\nother protocols, in which the relay cannot see for which host a request is.";
        ),
    },
    Section {
        name: "upstream",
        form: Form::Named("shop"),
        doc: "A server that requests are forwarded to.",
        keys: keys!("upstream":
            "url", Kind::Text, Required("\"https://shop.internal:8443\""),
                "https:// or http://, a host, and optionally a port and a path prefix.";
            "roots", Kind::Path, Unset("\"/etc/sealwire-relay/shop-ca.pem\""),
                "PEM file of the authorities that are trusted for it. Required with https.";
            "certificate", Kind::Path, Rare("\"/etc/sealwire-relay/relay.pem\""),
                "PEM file of the relay's certificate chain towards it.";
            "key", Kind::Path, Rare("\"/etc/sealwire-relay/relay-key.pem\""),
                "PEM file of its private key. Must not be readable by other users.";
            "addresses", NETWORKS, Unset("[\"10.2.0.0/16\"]"),
                "Networks that its addresses must be in. Empty: public addresses only, so that no name leads into a private network.";
            "protocol", Kind::Choice(&["auto", "http1", "http2"]), Text("auto"),
                "\"auto\": ALPN decides, and HTTP/1.1 without TLS. \"http2\": also without TLS.";
            "connections_max", count("connections", 65_536), Number(256),
                "Connections over HTTP/1.1, without those of WebSockets. Further requests wait for `deadline_ms` of their route.";
            "connections_per_client_max", count("connections", 65_536), Rare("192"),
                "Of them, those of one client. Further requests of the client wait. Without it: three quarters. Set it to `connections_max` behind a proxy that is the only client.";
            "websockets_max", count("WebSockets", MIB), Number(4_096),
                "Concurrent WebSockets of all routes. Further handshakes get 503.";
            "connect_timeout_ms", time(DAY), Number(5_000),
                "Time for DNS, TCP and TLS together.";
            "first_byte_timeout_ms", time(DAY), Number(30_000),
                "Time from the end of a request to the head of its response.";
            "body_idle_timeout_ms", time(DAY), Number(15_000),
                "Time without a byte of a body.";
            "idle_timeout_ms", time(DAY), Number(30_000),
                "Time after which an unused connection is closed.";
        ),
    },
    Section {
        name: "route",
        form: Form::List(&["request", "response"]),
        doc: "A route. The most specific host, then the most specific path, then the method decide. A request without a route gets 404.",
        keys: keys!("route":
            "name", Kind::Name, Required("\"orders\""),
                "Unique name, for logs and metrics.";
            "listen", Kind::Name, Required("\"public\""),
                "Name of its listener.";
            "host", Kind::Text, Text("*"),
                "A name, such as \"api.example.com\"; \"*.example.com\"; or \"*\" for any host.";
            "path", Kind::Text, Required("\"/orders/{id}\""),
                "Names in braces stand for one segment: \"/orders/{id}\". \"{*rest}\" stands for all further segments.";
            "methods", TEXTS, NoEntries,
                "Methods. Empty: all.";
            "upstream", Kind::Name, Unset("\"shop\""),
                "Name of its upstream. Required, but not permitted on \"ext_proc\" listeners, whose proxy has the destination.";
            "strip_prefix", Kind::Text, Rare("\"/orders\""),
                "Prefix of the path that the upstream does not have.";
            "pass", Kind::Flag, Flag(false),
                "Pass everything unchanged. A route without rules must say so.";
            "accepted_names", TEXTS, NoEntries,
                "Names of keys, fields, parts and query parameters that pass as they are, such as \"_id\" beside a rule for `id`: some readers\ntake them for the selected name. Only for names that the upstream keeps apart; spelled exactly as here.";
            "accepted_query", TEXTS, NoEntries,
                "Query parameters that pass although a rule selects their name in the body. Only for an upstream that does not join query\nand body.";
            "app", Kind::Text, Unset("\"shop\""),
                "App of its rules.";
            "fail", Kind::Choice(&["closed", "open"]), Text("closed"),
                "\"open\": values pass in the clear if the engine does not respond. Rejected with decrypt or detokenize.";
            "deadline_ms", time(DAY), Number(30_000),
                "Time for the exchange. A response that streams can take longer.";
            "body_bytes", bytes(1, 1 << 40), Rare("65_536"),
                "Longest body that is held. Without it: `limits.body_bytes`.";
            "request_stream", Kind::Flag, Flag(false),
                "Forward request bodies while they arrive. If false, the upstream sees a request only after every value was replaced.";
            "response_stream", Kind::Flag, Flag(true),
                "Forward response bodies while they arrive.";
            "request_unparsed", Kind::Choice(&["deny", "pass"]), Text("deny"),
                "Handling of request bodies that are malformed, or of a type or coding that the relay does not read.";
            "response_unparsed", Kind::Choice(&["deny", "pass"]), Text("deny"),
                "Handling of such response bodies.";
            "websocket_origins", TEXTS, Rare("[\"https://www.example.com\"]"),
                "Values of Origin whose WebSockets are permitted, \"*\" for all. Without it: no WebSockets.";
            "websockets_max", count("WebSockets", MIB), Number(1_024),
                "Concurrent WebSockets. Further handshakes get 503. Each also counts in `limits.connections_max`.";
            "websockets_per_client_max", count("WebSockets", MIB), Number(128),
                "Concurrent WebSockets of one client. Further handshakes get 503.";
        ),
    },
    Section {
        name: "route.request",
        form: Form::List(&[]),
        doc: "A rule for requests, beneath its route. The first rule that selects a value applies to it. `[[route.response]]` has the\nsame keys but `query` and `segments`.",
        keys: keys!("route.request":
            "action", Kind::Choice(&["encrypt", "decrypt", "tokenize", "detokenize", "mask"]), Required("\"encrypt\""),
                "Action on the selected values.";
            "types", TEXTS, NoEntries,
                "Media types of bodies, such as \"application/json\", which stands for all types of JSON. Empty: JSON in requests,\nwhose sender chooses the type, and every type that the relay reads in responses.";
            "select", TEXTS, Unset("[\"$.card.number\"]"),
                "Values in the body, as in the engine's `select`.";
            "headers", TEXTS, NoEntries,
                "Headers whose whole value is replaced.";
            "query", TEXTS, NoEntries,
                "Query parameters whose value is replaced.";
            "segments", TEXTS, NoEntries,
                "Path segments that are replaced: names in braces of the route's path.";
            "app", Kind::Text, Rare("\"shop\""),
                "App. Without it: that of the route.";
            "collection", Kind::Text, Rare("\"people\""),
                "Collection of tokens, for tokenize and detokenize.";
            "mask", Kind::Text, Rare("\"partial(last=4)\""),
                "Masking function, for mask.";
            "context", CONTEXT, Rare("{ header = \"x-tenant\" }"),
                "Bytes that each value is bound to.";
            "required", Kind::Flag, Flag(false),
                "Reject a message without the value, or with null there.";
            "containers", Kind::Choice(&["deny", "whole", "leaves"]), Text("deny"),
                "Handling of selected arrays and objects. \"whole\": one value. \"leaves\": each scalar beneath is a value.";
            "unneeded", Kind::Choice(&["pass", "deny", "apply"]), Unset("\"deny\""),
                "Handling of envelopes before encrypt, and of other values before decrypt. \"apply\": like any value.\nWithout it, encrypt passes native envelopes, and decrypt rejects a message with any other value. Required with\nencrypt where responses of the listener are decrypted without a separate context: clients could send envelopes\nof other places and read their values.";
        ),
    },
];
