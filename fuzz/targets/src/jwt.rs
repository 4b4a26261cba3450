//! Bearer tokens and key sets: only what the issuer signed is accepted.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire_dev_ca::TokenIssuer;
use sealwire_service::bearer::{
    Algorithm, IssuerOptions, KeySet, KeySource, TokenError, TokenVerifier, UnixClock,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::input::text;
use crate::seed::words as list;
use crate::{Input, Seed};

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://issuer.example";

struct World {
    issuer: TokenIssuer,
    verifier: Arc<TokenVerifier>,
    valid: String,
    runtime: Runtime,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let issuer = TokenIssuer::create().expect("a key");
    let file = folder.join("jwks.json");
    std::fs::write(&file, issuer.jwks()).expect("a file");
    let options = IssuerOptions {
        name: "fuzz".into(),
        issuer: ISSUER.into(),
        audiences: vec!["sealwire".into()],
        algorithms: Algorithm::ALL.to_vec(),
        principal_claim: "sub".into(),
        skew_s: 0,
        keys: KeySource::File(file),
    };
    let verifier = TokenVerifier::open(&[options], UnixClock::new(|| NOW)).expect("keys");
    let claims = json!({"iss": ISSUER, "aud": "sealwire", "exp": NOW + 600, "sub": "relay"});
    World {
        valid: issuer.sign(&claims).expect("a token"),
        issuer,
        verifier,
        runtime: tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime"),
    }
});

fn verify(token: &str) -> Result<String, TokenError> {
    let World {
        verifier, runtime, ..
    } = &*WORLD;
    let verified = runtime.block_on(verifier.verify(token));
    let principal = verified.map(|principal| principal.to_text());
    if let Err(error) = &principal {
        let shown = error.to_string();
        assert!(
            shown.bytes().all(|byte| matches!(byte, b' '..=b'~')),
            "{shown:?}"
        );
        assert_eq!(verifier.cached(token), None);
    }
    principal
}

/// Settings: form; then a key set, a token, a valid token with changes, or the texts of a header and
/// of claims, which are signed.
pub(crate) fn check_input(input: &[u8]) {
    let World { issuer, valid, .. } = &*WORLD;
    let mut input = Input(input);
    match input.byte() % 4 {
        0 => {
            let set = KeySet::parse(input.0);
            assert!(set.is_err() || serde_json::from_slice::<Value>(input.0).is_ok());
        }
        1 => {
            let token = text(input.0);
            assert!(token == valid || verify(token).is_err());
        }
        2 => {
            let mut token = valid.clone().into_bytes();
            for (at, mask) in input.edits() {
                let at = usize::from(at) % token.len();
                token[at] ^= mask;
            }
            let token = String::from_utf8_lossy(&token);
            // A signature of ECDSA has one form per nonce and sign, and chance finds no other.
            assert_eq!(verify(&token).is_ok(), token == *valid);
        }
        _ => {
            let header = input.until(b'\n');
            let token = issuer.sign_texts(header, input.0).expect("a token");
            if let Ok(principal) = verify(&token) {
                check_accepted(header, input.0, &principal);
            }
        }
    }
}

/// Checks an accepted token with another reader.
fn check_accepted(header: &[u8], claims: &[u8], principal: &str) {
    let header: Value = serde_json::from_slice(header).expect("a JSON header");
    let claims: Value = serde_json::from_slice(claims).expect("JSON claims");
    assert_eq!(header["alg"], "ES256");
    assert!(header["crit"].is_null() && header["jwk"].is_null());
    assert_eq!(claims["iss"], ISSUER);
    assert!(claims["exp"].as_u64().is_some_and(|exp| exp > NOW));
    assert!(claims["nbf"].is_null() || claims["nbf"].as_u64().is_some_and(|nbf| nbf <= NOW));
    let audience = &claims["aud"];
    let is_listed = |list: &Vec<Value>| list.iter().any(|name| name == "sealwire");
    assert!(audience == "sealwire" || audience.as_array().is_some_and(is_listed));
    let subject = claims["sub"].as_str().expect("a subject");
    assert_eq!(principal, format!("jwt:fuzz:{subject}"));
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let claims = format!(
        r#"{{"iss":"{ISSUER}","aud":["x","sealwire"],"exp":{},"sub":"a b"}}"#,
        NOW + 1
    );
    let key = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"a","use":"sig","alg":"ES256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let unsigned = format!(
        "{}.{}.AAAA",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#),
        URL_SAFE_NO_PAD.encode(&claims)
    );
    vec![
        Seed::new("keys", &[0], key),
        Seed::new("token", &[1], unsigned),
        Seed::new("unchanged", &[2, 0], []),
        Seed::new("changed", &[2, 1, 0, 40, 1], []),
        Seed::new(
            "signed",
            &[3],
            format!("{{\"alg\":\"ES256\",\"typ\":\"JWT\"}}\n{claims}"),
        ),
        Seed::new("none", &[3], format!("{{\"alg\":\"none\"}}\n{claims}")),
    ]
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "\"alg\":",
        "\"ES256\"",
        "\"none\"",
        "\"HS256\"",
        "\"kid\":",
        "\"crit\":",
        "\"jwk\":",
        "\"typ\":",
        "\"iss\":",
        "\"aud\":",
        "\"exp\":",
        "\"nbf\":",
        "\"sub\":",
        "\"kty\":",
        "\"crv\":",
        "\"use\":",
        "\"key_ops\":",
        "\"keys\":",
        "\"RSA\"",
        "\"oct\"",
        "1800000001",
    ])
}
