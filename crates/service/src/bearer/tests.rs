//! Tokens that must be accepted, and many more that must not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PSS_SHA256, RsaKeyPair,
};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::*;

mod fetched;

/// The time of the tests, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const MAIN: &str = "https://issuer.example";
const SECOND: &str = "https://second.example";
/// An issuer whose only key has no id.
const SINGLE: &str = "https://single.example";

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64URL_NOPAD.encode(bytes.as_ref())
}

/// A clock that tests set.
#[derive(Clone)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NOW)))
    }

    fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    fn clock(&self) -> UnixClock {
        let now = Arc::clone(&self.0);
        UnixClock::new(move || now.load(Ordering::Relaxed))
    }
}

fn p256() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()
}

/// The keys of all issuers.
struct Keys {
    es256: EcdsaKeyPair,
    es384: EcdsaKeyPair,
    ed: Ed25519KeyPair,
    rsa: RsaKeyPair,
    second: EcdsaKeyPair,
    single: EcdsaKeyPair,
}

impl Keys {
    fn new() -> Self {
        Self {
            es256: p256(),
            es384: EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap(),
            ed: Ed25519KeyPair::generate().unwrap(),
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
            second: p256(),
            single: p256(),
        }
    }

    fn main_jwks(&self) -> Value {
        let mut encryption = ec_jwk(&self.es256, "P-256", Some("enc"));
        encryption["use"] = json!("enc");
        let mut agreement = ec_jwk(&self.es256, "P-256", Some("ecdh"));
        agreement["key_ops"] = json!(["deriveKey"]);
        let mut other_algorithm = ec_jwk(&self.es256, "P-256", Some("alg"));
        other_algorithm["alg"] = json!("ES384");
        let mut only_pss = rsa_jwk(&self.rsa, "pss");
        only_pss["alg"] = json!("PS256");
        json!({"keys": [
            ec_jwk(&self.es256, "P-256", Some("es")),
            ec_jwk(&self.es384, "P-384", Some("es384")),
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encode(self.ed.public_key())},
            rsa_jwk(&self.rsa, "rsa"),
            rsa_jwk(&self.rsa, "rsa-again"),
            only_pss,
            encryption,
            agreement,
            other_algorithm,
            {"kty": "RSA", "kid": "weak", "n": encode([0xff; 128]), "e": "AQAB"},
            {"kty": "oct", "kid": "oct", "k": encode("a shared secret of 32 characters")},
            {"kty": "EC", "crv": "P-256", "kid": "no-point", "x": encode([1; 32]), "y": encode([1; 32])},
            {"kty": "new", "kid": "new"},
        ]})
    }
}

fn ec_jwk(key: &EcdsaKeyPair, curve: &str, kid: Option<&str>) -> Value {
    let point = &key.public_key().as_ref()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    let mut jwk = json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)});
    if let Some(kid) = kid {
        jwk["kid"] = json!(kid);
    }
    jwk
}

fn rsa_jwk(key: &RsaKeyPair, kid: &str) -> Value {
    // RSAPublicKey in DER: a header of 9 bytes, the modulus, and the exponent 65,537.
    let n = &key.public_key().as_ref()[9..][..256];
    json!({"kty": "RSA", "kid": kid, "n": encode(n), "e": "AQAB"})
}

/// A way to sign.
#[derive(Clone, Copy)]
enum Signer<'a> {
    Ecdsa(&'a EcdsaKeyPair),
    Ed(&'a Ed25519KeyPair),
    Pkcs1(&'a RsaKeyPair),
    Pss(&'a RsaKeyPair),
    Hmac(&'a [u8]),
    /// These bytes.
    Fixed(&'a [u8]),
}

impl Signer<'_> {
    fn sign(self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ecdsa(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed(key) => key.sign(message).as_ref().to_vec(),
            Self::Pkcs1(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .unwrap();
                signature
            }
            Self::Pss(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PSS_SHA256, &random, message, &mut signature)
                    .unwrap();
                signature
            }
            Self::Hmac(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::sign(&key, message).as_ref().to_vec()
            }
            Self::Fixed(bytes) => bytes.to_vec(),
        }
    }
}

/// A token of these texts.
fn token(header: &str, claims: &str, signer: Signer<'_>) -> String {
    token_of_bytes(header.as_bytes(), claims.as_bytes(), signer)
}

fn token_of_bytes(header: &[u8], claims: &[u8], signer: Signer<'_>) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    format!("{signed}.{}", encode(signer.sign(signed.as_bytes())))
}

const HEADER: &str = r#"{"alg":"ES256","typ":"JWT","kid":"es"}"#;

/// Claims of the main issuer, with these members instead of the usual ones. A member without a value
/// is left out.
fn claims(members: &[(&str, &str)]) -> String {
    let exp = (NOW + 600).to_string();
    let usual = [
        ("iss", "\"https://issuer.example\""),
        ("sub", "\"canary-subject\""),
        ("aud", "\"sealwire\""),
        ("exp", &exp),
    ];
    let kept = usual
        .iter()
        .filter(|(name, _)| members.iter().all(|(other, _)| other != name));
    let texts: Vec<String> = kept
        .chain(members.iter().filter(|(_, value)| !value.is_empty()))
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}", texts.join(","))
}

/// Verifiers with the keys of a test.
struct Setup {
    folder: tempfile::TempDir,
    keys: Keys,
    clock: TestClock,
    verifier: Arc<TokenVerifier>,
}

fn write(folder: &Path, name: &str, jwks: &Value) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, jwks.to_string()).unwrap();
    file
}

fn options(name: &str, issuer: &str, keys: KeySource) -> IssuerOptions {
    IssuerOptions {
        name: name.to_owned(),
        issuer: issuer.to_owned(),
        audiences: vec!["sealwire".to_owned(), "sealwire.example".to_owned()],
        algorithms: vec![
            Algorithm::Es256,
            Algorithm::EdDsa,
            Algorithm::Rs256,
            Algorithm::Ps256,
        ],
        principal_claim: "sub".to_owned(),
        skew_s: 60,
        keys,
    }
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::new();
        let clock = TestClock::new();
        let issuers = [
            ("main", MAIN, keys.main_jwks()),
            (
                "second",
                SECOND,
                json!({"keys": [ec_jwk(&keys.second, "P-256", Some("es"))]}),
            ),
            (
                "single",
                SINGLE,
                json!({"keys": [ec_jwk(&keys.single, "P-256", None)]}),
            ),
        ]
        .map(|(name, issuer, jwks)| {
            let file = write(folder.path(), &format!("{name}.json"), &jwks);
            options(name, issuer, KeySource::File(file))
        });
        let verifier = TokenVerifier::open(&issuers, clock.clock()).unwrap();
        Self {
            folder,
            keys,
            clock,
            verifier,
        }
    }

    /// A token of the main issuer with these claims.
    fn usual(&self, members: &[(&str, &str)]) -> String {
        token(HEADER, &claims(members), Signer::Ecdsa(&self.keys.es256))
    }

    /// A token with the usual claims and this header.
    fn headed(&self, header: &str) -> String {
        token(header, &claims(&[]), Signer::Ecdsa(&self.keys.es256))
    }

    async fn principal(&self, token: &str) -> Result<String, TokenError> {
        let principal = self.verifier.verify(token).await?;
        Ok(principal.to_text())
    }

    async fn assert_rejected(&self, case: &str, token: &str, kind: &str) {
        let error = match self.principal(token).await {
            Ok(principal) => panic!("{case} is accepted as {principal}: {token}"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), kind, "{case}: {error}");
        assert_eq!(self.verifier.cached(token), None, "{case}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("canary"), "{case}: {text}");
        for part in token.split('.').filter(|part| part.len() >= 8) {
            assert!(!text.contains(part), "{case}: {text}");
        }
        let quotable = error.to_string();
        assert!(
            quotable
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')),
            "{case}: {quotable}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn valid_tokens_name_their_principal() {
    let setup = Setup::new();
    let keys = &setup.keys;
    let es = Signer::Ecdsa(&keys.es256);
    let second = format!("\"{SECOND}\"");
    let single = format!("\"{SINGLE}\"");
    let sub = "jwt:main:canary-subject";
    for (case, token, principal) in [
        ("usual", setup.usual(&[]), sub),
        (
            "no type",
            setup.headed(r#"{"alg":"ES256","kid":"es"}"#),
            sub,
        ),
        (
            "access token",
            setup.headed(r#"{"alg":"ES256","kid":"es","typ":"at+jwt"}"#),
            sub,
        ),
        (
            "type in full",
            setup.headed(r#"{"alg":"ES256","kid":"es","typ":"application/AT+JWT"}"#),
            sub,
        ),
        (
            "thumbprint and unknown member",
            setup.headed(r#"{"alg":"ES256","kid":"es","x5t":"AAAA","x":1}"#),
            sub,
        ),
        (
            "no kid, and one key fits",
            setup.headed(r#"{"alg":"ES256"}"#),
            sub,
        ),
        (
            "one of several audiences",
            setup.usual(&[("aud", r#"["other","sealwire.example"]"#)]),
            sub,
        ),
        (
            "expired within the tolerance",
            setup.usual(&[("exp", "1799999941")]),
            sub,
        ),
        (
            "not before, within the tolerance",
            setup.usual(&[("nbf", "1800000060")]),
            sub,
        ),
        (
            "never expires",
            setup.usual(&[("exp", "18446744073709551615")]),
            sub,
        ),
        (
            "claims with spaces",
            token(HEADER, &format!(" {} \n", claims(&[])), es),
            sub,
        ),
        (
            "service account",
            setup.usual(&[("sub", "\"system:serviceaccount:shop:web\"")]),
            "jwt:main:system:serviceaccount:shop:web",
        ),
        (
            "SPIFFE ID",
            setup.usual(&[("sub", "\"spiffe://org/relay\"")]),
            "jwt:main:spiffe://org/relay",
        ),
        (
            "name of a certificate",
            setup.usual(&[("sub", "\"cn:relay\"")]),
            "jwt:main:cn:relay",
        ),
        (
            "Ed25519",
            token(
                r#"{"alg":"EdDSA","kid":"ed"}"#,
                &claims(&[]),
                Signer::Ed(&keys.ed),
            ),
            sub,
        ),
        (
            "RSA",
            token(
                r#"{"alg":"RS256","kid":"rsa"}"#,
                &claims(&[]),
                Signer::Pkcs1(&keys.rsa),
            ),
            sub,
        ),
        (
            "RSA-PSS",
            token(
                r#"{"alg":"PS256","kid":"pss"}"#,
                &claims(&[]),
                Signer::Pss(&keys.rsa),
            ),
            sub,
        ),
        (
            "second issuer with the same kid",
            token(
                HEADER,
                &claims(&[("iss", &second)]),
                Signer::Ecdsa(&keys.second),
            ),
            "jwt:second:canary-subject",
        ),
        (
            "key without kid",
            token(
                r#"{"alg":"ES256"}"#,
                &claims(&[("iss", &single)]),
                Signer::Ecdsa(&keys.single),
            ),
            "jwt:single:canary-subject",
        ),
    ] {
        assert_eq!(
            setup.principal(&token).await.as_deref(),
            Ok(principal),
            "{case}"
        );
        let cached = setup.verifier.cached(&token);
        assert_eq!(cached.unwrap().to_text(), principal, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn headers_of_forged_tokens_are_rejected() {
    let setup = Setup::new();
    let keys = &setup.keys;
    let es = Signer::Ecdsa(&keys.es256);
    let public = keys.es256.public_key().as_ref();
    let jwk = ec_jwk(&keys.es256, "P-256", Some("es")).to_string();
    let own_key = p256();
    let own_jwk = ec_jwk(&own_key, "P-256", Some("es"));
    let own = Signer::Ecdsa(&own_key);
    let usual = claims(&[]);

    for algorithm in [
        "none",
        "None",
        "NONE",
        "nOnE",
        "",
        "es256",
        "ES256 ",
        "ES256\\u0000",
    ] {
        let header = format!(r#"{{"alg":"{algorithm}","kid":"es"}}"#);
        for signer in [Signer::Fixed(b""), es, Signer::Fixed(&[0; 64])] {
            let token = token(&header, &usual, signer);
            setup.assert_rejected(algorithm, &token, "algorithm").await;
        }
    }
    for secret in [
        public,
        jwk.as_bytes(),
        encode(public).as_bytes(),
        b"a shared secret of 32 characters",
        b"",
    ] {
        for kid in ["es", "oct", "rsa"] {
            let header = format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#);
            let token = token(&header, &usual, Signer::Hmac(secret));
            setup.assert_rejected("HS256", &token, "algorithm").await;
        }
    }

    for (header, kind) in [
        (r#"{"kid":"es"}"#, "header_type"),
        (r#"{"alg":null,"kid":"es"}"#, "header_type"),
        (r#"{"alg":256,"kid":"es"}"#, "header_type"),
        (r#"{"alg":["ES256"],"kid":"es"}"#, "header_type"),
        // An algorithm that exists, but is not permitted, or not that of the key.
        (r#"{"alg":"ES384","kid":"es384"}"#, "algorithm"),
        (r#"{"alg":"RS512","kid":"rsa"}"#, "algorithm"),
        (r#"{"alg":"ES512","kid":"es"}"#, "algorithm"),
        (r#"{"alg":"ES256K","kid":"es"}"#, "algorithm"),
        (r#"{"alg":"RS256","kid":"es"}"#, "key_algorithm"),
        (r#"{"alg":"EdDSA","kid":"es"}"#, "key_algorithm"),
        (r#"{"alg":"ES256","kid":"rsa"}"#, "key_algorithm"),
        (r#"{"alg":"RS256","kid":"pss"}"#, "key_algorithm"),
        // Ids of keys.
        (r#"{"alg":"ES256","kid":"gone"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":""}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"ES"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"es "}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"es\u0000"}"#, "unknown_key"),
        (
            r#"{"alg":"ES256","kid":"../../../../dev/null"}"#,
            "unknown_key",
        ),
        (r#"{"alg":"ES256","kid":"' or 1=1 --"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"enc"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"ecdh"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"alg"}"#, "unknown_key"),
        (r#"{"alg":"RS256","kid":"weak"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"no-point"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":"new"}"#, "unknown_key"),
        (r#"{"alg":"ES256","kid":1}"#, "header_type"),
        (r#"{"alg":"ES256","kid":null}"#, "header_type"),
        (r#"{"alg":"ES256","kid":["es"]}"#, "header_type"),
        (r#"{"alg":"RS256"}"#, "no_kid"),
        // Members that change how a token is read, or bring a key.
        (
            r#"{"alg":"ES256","kid":"es","crit":["exp"]}"#,
            "header_member",
        ),
        (r#"{"alg":"ES256","kid":"es","crit":[]}"#, "header_member"),
        (r#"{"alg":"ES256","kid":"es","b64":false}"#, "header_member"),
        (r#"{"alg":"ES256","kid":"es","zip":"DEF"}"#, "header_member"),
        (r#"{"alg":"ES256","kid":"es","cty":"JWT"}"#, "header_member"),
        (
            r#"{"alg":"ES256","kid":"es","jku":"https://evil.example"}"#,
            "header_member",
        ),
        (
            r#"{"alg":"ES256","kid":"es","x5u":"https://evil.example"}"#,
            "header_member",
        ),
        (
            r#"{"alg":"ES256","kid":"es","x5c":["AAAA"]}"#,
            "header_member",
        ),
        // Tokens for other purposes.
        (
            r#"{"alg":"ES256","kid":"es","typ":"logout+jwt"}"#,
            "header_type",
        ),
        (
            r#"{"alg":"ES256","kid":"es","typ":"dpop+jwt"}"#,
            "header_type",
        ),
        (r#"{"alg":"ES256","kid":"es","typ":""}"#, "header_type"),
        (r#"{"alg":"ES256","kid":"es","typ":1}"#, "header_type"),
        // Two members of one name.
        (r#"{"alg":"ES256","kid":"es","alg":"none"}"#, "json"),
        (r#"{"alg":"none","kid":"es","alg":"ES256"}"#, "json"),
        (r#"{"alg":"ES256","kid":"gone","kid":"es"}"#, "json"),
        (r#"{"alg":"ES256","kid":"es","\u0061lg":"none"}"#, "json"),
        // Not an object.
        ("", "json"),
        ("[]", "json"),
        ("null", "json"),
        (r#"{"alg":"ES256","kid":"es"}{}"#, "json"),
        (r#"{"alg":"ES256","kid":"es",}"#, "json"),
        ("\u{feff}{\"alg\":\"ES256\",\"kid\":\"es\"}", "json"),
    ] {
        setup
            .assert_rejected(header, &setup.headed(header), kind)
            .await;
    }

    let embedded = format!(r#"{{"alg":"ES256","kid":"es","jwk":{own_jwk}}}"#);
    let forged = token(&embedded, &usual, own);
    setup
        .assert_rejected("embedded key", &forged, "header_member")
        .await;
    let invalid = token_of_bytes(
        b"{\"alg\":\"ES256\",\"kid\":\"\xff\"}",
        usual.as_bytes(),
        es,
    );
    setup.assert_rejected("not UTF-8", &invalid, "json").await;
}

#[tokio::test(start_paused = true)]
async fn signatures_of_forged_tokens_are_rejected() {
    let setup = Setup::new();
    let keys = &setup.keys;
    let usual = claims(&[]);
    let valid = setup.usual(&[]);
    let (signed, signature) = valid.rsplit_once('.').unwrap();
    let raw = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
    let with = |bytes: &[u8]| format!("{signed}.{}", encode(bytes));

    // The same key signs in DER, which JWTs do not use.
    let der_key = {
        let pkcs8 = keys.es256.to_pkcs8v1().unwrap();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref()).unwrap()
    };
    let in_der = der_key
        .sign(&SystemRandom::new(), signed.as_bytes())
        .unwrap();

    let mut flipped = raw.clone();
    flipped[40] ^= 1;
    let halves = |r: &[u8], s: &[u8]| [r, s].concat();
    let order = data_encoding::HEXLOWER
        .decode(b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551")
        .unwrap();
    for (case, token) in [
        ("no signature", format!("{signed}.")),
        ("cut", with(&raw[..63])),
        ("half", with(&raw[..32])),
        ("longer", with(&[&raw[..], &[0]].concat())),
        ("longer in front", with(&[&[0], &raw[..]].concat())),
        ("twice", with(&[&raw[..], &raw[..]].concat())),
        ("DER", with(in_der.as_ref())),
        ("a changed bit", with(&flipped)),
        ("zeros", with(&[0; 64])),
        ("ones", with(&[0xff; 64])),
        ("r is zero", with(&halves(&[0; 32], &raw[32..]))),
        ("s is zero", with(&halves(&raw[..32], &[0; 32]))),
        ("r is the order", with(&halves(&order, &raw[32..]))),
        ("s is the order", with(&halves(&raw[..32], &order))),
        (
            "halves changed places",
            with(&halves(&raw[32..], &raw[..32])),
        ),
        (
            "key of nobody",
            token(HEADER, &usual, Signer::Ecdsa(&p256())),
        ),
        (
            "key of another issuer",
            token(HEADER, &usual, Signer::Ecdsa(&keys.second)),
        ),
        (
            "right key, name of another issuer",
            token(
                HEADER,
                &claims(&[("iss", "\"https://second.example\"")]),
                Signer::Ecdsa(&keys.es256),
            ),
        ),
        (
            "PKCS #1 instead of PSS",
            token(
                r#"{"alg":"PS256","kid":"rsa"}"#,
                &usual,
                Signer::Pkcs1(&keys.rsa),
            ),
        ),
        (
            "PSS instead of PKCS #1",
            token(
                r#"{"alg":"RS256","kid":"rsa"}"#,
                &usual,
                Signer::Pss(&keys.rsa),
            ),
        ),
        (
            "other header",
            format!(
                "{}.{}.{signature}",
                encode(r#"{"alg":"ES256","kid":"es"}"#),
                encode(&usual)
            ),
        ),
        (
            "other claims",
            format!(
                "{}.{}.{signature}",
                encode(HEADER),
                encode(claims(&[("sub", "\"canary-admin\"")]))
            ),
        ),
    ] {
        setup.assert_rejected(case, &token, "signature").await;
    }
    // The unchanged token is valid.
    setup.principal(&valid).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn malformed_tokens_are_rejected() {
    let setup = Setup::new();
    let valid = setup.usual(&[]);
    let parts: Vec<&str> = valid.split('.').collect();
    let [header, body, signature] = parts[..] else {
        panic!("three parts")
    };
    let long = setup.usual(&[("x", &format!("\"{}\"", "x".repeat(TOKEN_BYTES_MAX)))]);
    // The last digit of the signature has four bits that must be zero.
    let last = signature.chars().last().unwrap();
    let spare = match last {
        'A' => 'B',
        'Q' => 'R',
        'g' => 'h',
        _ => 'x',
    };
    let other_spelling = format!("{}{spare}", &valid[..valid.len() - 1]);
    for (case, token, kind) in [
        ("nothing", String::new(), "parts"),
        ("a dot", ".".to_owned(), "parts"),
        ("two dots", "..".to_owned(), "json"),
        ("one part", header.to_owned(), "parts"),
        ("two parts", format!("{header}.{body}"), "parts"),
        ("four parts", format!("{valid}.{signature}"), "parts"),
        (
            "five parts",
            format!("{valid}.{signature}.AAAA"),
            "encrypted",
        ),
        ("six parts", format!("{valid}.a.b.c"), "parts"),
        ("too long", long, "too_long"),
        ("space in front", format!(" {valid}"), "encoding"),
        ("space behind", format!("{valid} "), "encoding"),
        ("line end", format!("{valid}\n"), "encoding"),
        (
            "space within",
            format!("{header}. {body}.{signature}"),
            "encoding",
        ),
        ("padding", format!("{valid}=="), "encoding"),
        (
            "padded header",
            format!("{header}=.{body}.{signature}"),
            "encoding",
        ),
        (
            "other alphabet",
            format!("{header}.{body}.+/{}", &signature[2..]),
            "encoding",
        ),
        (
            "other spelling of the signature",
            other_spelling,
            "encoding",
        ),
        ("an impossible length", format!("{valid}AAA"), "encoding"),
        ("not ASCII", format!("{valid}\u{e9}"), "encoding"),
        ("NUL", format!("{valid}\0"), "encoding"),
        ("JSON", claims(&[]), "parts"),
    ] {
        setup.assert_rejected(case, &token, kind).await;
    }
}

#[tokio::test(start_paused = true)]
async fn claims_of_forged_tokens_are_rejected() {
    let setup = Setup::new();
    let es = Signer::Ecdsa(&setup.keys.es256);
    let long = format!("\"{}\"", "x".repeat(3_000));
    for (claim, value, kind) in [
        // Issuers.
        ("iss", "", "missing_claim"),
        ("iss", "null", "claim_type"),
        ("iss", "1", "claim_type"),
        ("iss", r#"["https://issuer.example"]"#, "claim_type"),
        ("iss", r#""""#, "unknown_issuer"),
        ("iss", r#""https://issuer.example/""#, "unknown_issuer"),
        ("iss", r#""HTTPS://issuer.example""#, "unknown_issuer"),
        ("iss", r#""https://issuer.example\u0000""#, "unknown_issuer"),
        ("iss", r#""https://evil.example""#, "unknown_issuer"),
        ("iss", r#""main""#, "unknown_issuer"),
        // Audiences.
        ("aud", "", "missing_claim"),
        ("aud", "null", "claim_type"),
        ("aud", "1", "claim_type"),
        ("aud", "{}", "claim_type"),
        ("aud", r#"["sealwire",1]"#, "claim_type"),
        ("aud", r#"[["sealwire"]]"#, "claim_type"),
        ("aud", "[]", "audience"),
        ("aud", r#""""#, "audience"),
        ("aud", r#""other""#, "audience"),
        ("aud", r#"["other","another"]"#, "audience"),
        ("aud", r#""SEALWIRE""#, "audience"),
        ("aud", r#""sealwire ""#, "audience"),
        ("aud", r#""sealwire,other""#, "audience"),
        ("aud", r#""sealwire.example.org""#, "audience"),
        // Expiry. The time is 1,800,000,000, and the tolerance 60 s.
        ("exp", "", "missing_claim"),
        ("exp", "null", "claim_type"),
        ("exp", r#""1800000600""#, "claim_type"),
        ("exp", "1800000600.0", "claim_type"),
        ("exp", "1800000600.5", "claim_type"),
        ("exp", "1.8000006e9", "claim_type"),
        ("exp", "-1", "claim_type"),
        ("exp", "-1800000600", "claim_type"),
        ("exp", "18446744073709551616", "claim_type"),
        ("exp", "1e999", "json"),
        ("exp", "true", "claim_type"),
        ("exp", "[1800000600]", "claim_type"),
        ("exp", "0", "expired"),
        ("exp", "1799999940", "expired"),
        ("exp", "1799990000", "expired"),
        // Start.
        ("nbf", "1800000061", "not_yet_valid"),
        ("nbf", "18446744073709551615", "not_yet_valid"),
        ("nbf", "null", "claim_type"),
        ("nbf", r#""0""#, "claim_type"),
        ("nbf", "0.5", "claim_type"),
        ("nbf", "-1", "claim_type"),
        // Subjects.
        ("sub", "", "missing_claim"),
        ("sub", "null", "claim_type"),
        ("sub", "7", "claim_type"),
        ("sub", r#"["canary"]"#, "claim_type"),
        ("sub", r#"{"name":"canary"}"#, "claim_type"),
        ("sub", r#""""#, "principal"),
        ("sub", r#"" ""#, "principal"),
        ("sub", r#"" canary""#, "principal"),
        ("sub", r#""canary ""#, "principal"),
        ("sub", r#""can\nary""#, "principal"),
        ("sub", r#""canary\u0000""#, "principal"),
        ("sub", r#""canary\u007f""#, "principal"),
        ("sub", r#""can\u00e4ry""#, "principal"),
        ("sub", r#""canary\u202e""#, "principal"),
        ("sub", r#""can\ud800ary""#, "json"),
        ("sub", &long, "principal"),
    ] {
        let token = setup.usual(&[(claim, value)]);
        let case = format!("{claim} = {value}");
        setup.assert_rejected(&case, &token, kind).await;
    }

    let usual = claims(&[]);
    let doubled = |more: &str| usual.replacen('{', &format!("{{{more},"), 1);
    for text in [
        doubled(r#""sub":"canary-admin""#),
        doubled(r#""\u0073ub":"canary-admin""#),
        doubled(r#""aud":"other""#),
        doubled(r#""exp":1"#),
        doubled(r#""iss":"https://issuer.example""#),
        doubled(r#""x":1,"x":1"#),
        format!("{usual}{usual}"),
        format!("[{usual}]"),
        format!("\u{feff}{usual}"),
        usual.replace('}', ",}"),
        usual.replace("\"sub\"", "sub"),
        String::new(),
        "null".to_owned(),
        "\"text\"".to_owned(),
        "[".repeat(4_000),
    ] {
        let token = token(HEADER, &text, es);
        setup.assert_rejected(&text, &token, "json").await;
    }
    let invalid = token_of_bytes(HEADER.as_bytes(), b"{\"sub\":\"\xff\"}", es);
    setup.assert_rejected("not UTF-8", &invalid, "json").await;

    // A token in a token.
    let nested = token(HEADER, &format!("\"{}\"", setup.usual(&[])), es);
    setup.assert_rejected("nested", &nested, "json").await;
}

#[tokio::test(start_paused = true)]
async fn reasons_say_what_to_change() {
    let setup = Setup::new();
    for (members, reason) in [
        (
            &[("exp", "1799999900")][..],
            "the token expired 100 s ago; get a new one",
        ),
        (
            &[("nbf", "1800000100")],
            "the token becomes valid in 100 s (nbf); check the clocks of issuer and engine",
        ),
        (
            &[("aud", "\"other\"")],
            "the claim aud of the token must contain one of: sealwire, sealwire.example",
        ),
        (&[("exp", "")], "the token has no claim exp"),
        (
            &[("iss", "\"x\"")],
            "the claim iss of the token is none of the accepted issuers: https://issuer.example, https://second.example, https://single.example",
        ),
    ] {
        let error = setup.principal(&setup.usual(members)).await.unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
    let error = setup
        .principal(&setup.headed(r#"{"alg":"HS256","kid":"es"}"#))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the algorithm of the token is none of those for issuer main: ES256, EdDSA, RS256, PS256"
    );
}

#[tokio::test(start_paused = true)]
async fn verified_tokens_are_cached_for_a_short_time() {
    let setup = Setup::new();
    let token = setup.usual(&[]);
    assert_eq!(setup.verifier.cached(&token), None);
    setup.principal(&token).await.unwrap();
    tokio::time::advance(CACHE_TIME - Duration::from_millis(1)).await;
    assert!(setup.verifier.cached(&token).is_some());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(setup.verifier.cached(&token), None);

    // A token that expires meanwhile is not used any more.
    setup.principal(&token).await.unwrap();
    setup.clock.set(NOW + 600 + 59);
    assert!(setup.verifier.cached(&token).is_some());
    setup.clock.set(NOW + 600 + 60);
    assert_eq!(setup.verifier.cached(&token), None);
    let error = setup.principal(&token).await.unwrap_err();
    assert_eq!(error, TokenError::Expired { ago_s: 60 });
    setup.clock.set(NOW);

    // Another spelling of a cached token is another token.
    setup.principal(&token).await.unwrap();
    for other in [
        format!("{token} "),
        token.to_lowercase(),
        token[1..].to_owned(),
    ] {
        assert_eq!(setup.verifier.cached(&other), None);
    }
}

#[tokio::test(start_paused = true)]
async fn verified_tokens_are_bounded_in_number() {
    let setup = Setup::new();
    let first = setup.usual(&[]);
    setup.principal(&first).await.unwrap();
    let entry = |at: usize| CachedToken {
        principal: Principal::from_token("main", &format!("{at}")).unwrap(),
        issuer: 0,
        keys_version: 1,
        verified: Instant::now(),
        expires_unix_s: NOW,
    };
    for at in 0..2 * CACHE_ENTRIES.get() {
        let mut cache = setup.verifier.cache.lock().unwrap();
        cache.put(digest(&at.to_string()), entry(at));
    }
    let entries = setup.verifier.cache.lock().unwrap().len();
    assert_eq!(entries, CACHE_ENTRIES.get());
    assert_eq!(setup.verifier.cached(&first), None);
}

#[tokio::test(start_paused = true)]
async fn removed_key_stops_its_tokens_at_once() {
    let setup = Setup::new();
    let token = setup.usual(&[]);
    setup.principal(&token).await.unwrap();

    let file = setup.folder.path().join("main.json");
    let original = std::fs::read(&file).unwrap();
    let new = p256();
    let jwks = json!({"keys": [ec_jwk(&new, "P-256", Some("new"))]});
    write(setup.folder.path(), "main.json", &jwks);
    setup.verifier.reload_files().await.unwrap();
    assert_eq!(setup.verifier.cached(&token), None);
    setup
        .assert_rejected("removed key", &token, "unknown_key")
        .await;
    let header = r#"{"alg":"ES256","kid":"new"}"#;
    let rotated = token_with(header, &new);
    setup.principal(&rotated).await.unwrap();

    // The same id with another key.
    let other = p256();
    let jwks = json!({"keys": [ec_jwk(&other, "P-256", Some("new"))]});
    write(setup.folder.path(), "main.json", &jwks);
    setup.verifier.reload_files().await.unwrap();
    assert_eq!(setup.verifier.cached(&rotated), None);
    setup
        .assert_rejected("replaced key", &rotated, "signature")
        .await;

    // No key at all.
    write(setup.folder.path(), "main.json", &json!({"keys": []}));
    setup.verifier.reload_files().await.unwrap();
    setup
        .assert_rejected("no keys", &rotated, "unknown_key")
        .await;

    // Files that do not load change nothing.
    std::fs::write(&file, &original).unwrap();
    setup.verifier.reload_files().await.unwrap();
    setup.principal(&token).await.unwrap();
    for text in ["", "{}", "{\"keys\":", "[]"] {
        std::fs::write(&file, text).unwrap();
        let error = setup.verifier.reload_files().await.unwrap_err();
        assert!(error.to_string().starts_with("issuer.main: "), "{error}");
        assert_eq!(setup.verifier.failing(), 1);
        assert!(setup.verifier.cached(&token).is_some(), "{text}");
    }
    std::fs::remove_file(&file).unwrap();
    setup.verifier.reload_files().await.unwrap_err();
    assert!(setup.verifier.cached(&token).is_some());

    // The other issuers have their new keys.
    let issuer = format!("\"{SECOND}\"");
    let claims = claims(&[("iss", &issuer)]);
    let second = self::token(HEADER, &claims, Signer::Ecdsa(&setup.keys.second));
    setup.principal(&second).await.unwrap();
    let jwks = json!({"keys": [ec_jwk(&p256(), "P-256", Some("new"))]});
    write(setup.folder.path(), "second.json", &jwks);
    let error = setup.verifier.reload_files().await.unwrap_err();
    assert!(error.to_string().starts_with("issuer.main: "), "{error}");
    assert!(setup.verifier.cached(&token).is_some());
    setup
        .assert_rejected("key of another issuer", &second, "unknown_key")
        .await;
}

fn token_with(header: &str, key: &EcdsaKeyPair) -> String {
    token(header, &claims(&[]), Signer::Ecdsa(key))
}

#[test]
fn key_sets_are_read_strictly() {
    let keys = Keys::new();
    let es = ec_jwk(&keys.es256, "P-256", Some("es"));
    let with = |name: &str, value: Value| {
        let mut key = es.clone();
        key[name] = value;
        json!({"keys": [key]}).to_string()
    };
    let mut private = rsa_jwk(&keys.rsa, "rsa");
    private["d"] = json!("AQAB");
    let padded = format!("{}=", es["x"].as_str().unwrap());
    let rsa_bits = |len: usize, first: u8| {
        let mut n = vec![0xff; len];
        n[0] = first;
        json!({"keys": [{"kty": "RSA", "n": encode(n), "e": "AQAB"}]}).to_string()
    };
    let many = vec![json!({"kty": "new"}); 101];
    for (text, expected) in [
        (json!({"keys": [es]}).to_string(), Ok((1, 0))),
        (json!({"keys": []}).to_string(), Ok((0, 0))),
        (keys.main_jwks().to_string(), Ok((6, 7))),
        (json!({"keys": [es], "more": 1}).to_string(), Ok((1, 0))),
        (with("use", json!("sig")), Ok((1, 0))),
        (with("use", json!("SIG")), Ok((0, 1))),
        (with("use", json!(1)), Ok((0, 1))),
        (with("key_ops", json!(["sign", "verify"])), Ok((1, 0))),
        (with("key_ops", json!([])), Ok((0, 1))),
        (with("key_ops", json!("verify")), Ok((0, 1))),
        (with("alg", json!("ES256")), Ok((1, 0))),
        (with("alg", json!("none")), Ok((0, 1))),
        (with("alg", json!("HS256")), Ok((0, 1))),
        (with("alg", json!(["ES256"])), Ok((0, 1))),
        (with("kid", json!("")), Ok((0, 1))),
        (with("kid", json!(1)), Ok((0, 1))),
        (with("kid", json!("x".repeat(257))), Ok((0, 1))),
        (with("crv", json!("P-384")), Ok((0, 1))),
        (with("crv", json!("secp256k1")), Ok((0, 1))),
        (with("kty", json!("ec")), Ok((0, 1))),
        (with("x", json!(padded)), Ok((0, 1))),
        (with("x", json!("AAAA")), Ok((0, 1))),
        (with("y", json!(encode([0; 32]))), Ok((0, 1))),
        (rsa_bits(256, 0x80), Ok((1, 0))),
        (rsa_bits(256, 0x7f), Ok((0, 1))),
        (rsa_bits(257, 0), Ok((0, 1))),
        (rsa_bits(512, 0xff), Ok((1, 0))),
        (rsa_bits(513, 1), Ok((0, 1))),
        (with("d", json!("AAAA")), Err(JwksError::PrivateKey)),
        (
            json!({"keys": [private]}).to_string(),
            Err(JwksError::PrivateKey),
        ),
        (
            json!({"keys": [es, rsa_jwk(&keys.rsa, "es")]}).to_string(),
            Err(JwksError::DuplicateKid),
        ),
        (json!({"keys": many}).to_string(), Err(JwksError::TooMany)),
        (String::new(), Err(JwksError::Malformed)),
        ("[]".into(), Err(JwksError::Malformed)),
        ("{}".into(), Err(JwksError::Malformed)),
        (r#"{"keys":{}}"#.into(), Err(JwksError::Malformed)),
        (r#"{"keys":[1]}"#.into(), Err(JwksError::Malformed)),
        (r#"{"keys":[],"keys":[]}"#.into(), Err(JwksError::Malformed)),
        (
            r#"{"keys":[{"kty":"EC","kty":"RSA"}]}"#.into(),
            Err(JwksError::Malformed),
        ),
        ("<html></html>".into(), Err(JwksError::Malformed)),
    ] {
        let counts = KeySet::parse(text.as_bytes()).map(|set| set.counts());
        assert_eq!(counts, expected, "{text}");
    }
    assert_eq!(
        format!("{:?}", KeySet::parse(b"{\"keys\":[]}").unwrap()),
        "KeySet(0 keys)"
    );
}

/// Signatures of RFC 7515 (A.2 and A.3) and RFC 8037 (A.4).
#[test]
fn signatures_of_the_standards_are_valid() {
    let claims = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    for (algorithm, jwk, signed, signature) in [
        (
            Algorithm::Es256,
            json!({"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}),
            format!("eyJhbGciOiJFUzI1NiJ9.{claims}"),
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
        (
            Algorithm::Rs256,
            json!({"kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"}),
            format!("eyJhbGciOiJSUzI1NiJ9.{claims}"),
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            Algorithm::EdDsa,
            json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}),
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc".to_owned(),
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
    ] {
        let text = json!({"keys": [jwk]}).to_string();
        let set = KeySet::parse(text.as_bytes()).unwrap();
        let key = set.find(None, algorithm).unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        assert!(
            key.verify_sig(signed.as_bytes(), &signature).is_ok(),
            "{algorithm:?}"
        );
        assert!(key.verify_sig(b"other", &signature).is_err());
    }
}

#[test]
fn names_of_algorithms_with_a_shared_secret_do_not_exist() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
    }
    for name in [
        "HS256", "HS384", "HS512", "none", "None", "", "es256", "dir", "RSA-OAEP",
    ] {
        assert_eq!(Algorithm::from_name(name), None, "{name}");
    }
}

#[test]
fn debug_shows_no_token_and_no_key() {
    let setup = Setup::new();
    let shown = format!("{:?} {:?}", setup.verifier, UnixClock::system());
    assert_eq!(shown, "TokenVerifier { issuers: 3, .. } UnixClock");
}
