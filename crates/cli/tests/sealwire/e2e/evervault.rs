//! Evervault strings and files through a server: what others made opens, typed; roles are kept
//! shut; nothing else moves.

use sealwire_apps::{Control, Settings};
use sealwire_client::{
    Client, CommonParams, Document, Envelope, Error, FieldError, Inspect, Inspection, Rewrap,
    ValueKind,
};
use sealwire_crypto::evervault::{Datatype, Form, Role, Sealer, looks_like, looks_like_file};
use sealwire_crypto::{KeyPair, KeyScope, KeyState, KeyVersion};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_wire::{
    Decrypt, Encoding, Encrypt, ErrorCode, Format, KeyScope as KeyScopeName, OnError, Suite,
    Unbound, Writing,
};

use crate::e2e::harness::{APP, Harness, import, rpc_error, run, shop};

const VECTORS: &str = include_str!("../../../../../proto/vectors/evervault.jsonl");

/// The key of the worked examples.
const KEY: [u8; 32] = [0x11; 32];

/// Starts a server that can open values sealed to [`KEY`].
async fn server(legacy: bool, open_roles: &[&str]) -> Harness {
    with_key(legacy, open_roles, &KEY).await
}

async fn with_key(legacy: bool, open_roles: &[&str], key: &[u8; 32]) -> Harness {
    let change = |config: &mut sealwire_settings::Config| {
        config.evervault.legacy = legacy;
        config.evervault.open_roles = open_roles.iter().map(|role| (*role).to_owned()).collect();
    };
    Harness::prepared(change, async |control| import(control, key, false).await).await
}

fn array(values: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, u32::try_from(values.len()).unwrap());
    out.extend(values.concat());
    out
}

/// Returns the values of an array, each as its bytes.
fn values(array: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = TokenReader::new(array);
    let Ok(Token::Array(count)) = reader.token() else {
        panic!("not an array")
    };
    (0..count)
        .map(|_| reader.value().unwrap().to_vec())
        .collect()
}

fn str(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::str(&mut out, text);
    out
}

fn bin(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::bin(&mut out, bytes);
    out
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Encodes the value as a client receives it.
fn typed(kind: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match kind {
        "text" => write::str(&mut out, value),
        "integer" => match value.parse::<u64>() {
            Ok(number) => write::uint(&mut out, number),
            Err(_) => write::int(&mut out, value.parse().unwrap()),
        },
        "float" => write::f64(&mut out, value.parse().unwrap()),
        "boolean" => write::bool(&mut out, value.parse().unwrap()),
        "file" => write::bin(&mut out, &unhex(value)),
        other => panic!("{other}"),
    }
    out
}

async fn decrypt(client: &Client, payload: &[u8]) -> Result<Document, Error> {
    client.decrypt(Decrypt::new(APP, payload)).await
}

async fn report(client: &Client, payload: &[u8]) -> Document {
    client
        .decrypt(Decrypt {
            on_error: OnError::Report,
            ..Decrypt::new(APP, payload)
        })
        .await
        .unwrap()
}

fn listed(code: ErrorCode, places: &[usize]) -> Vec<FieldError> {
    places
        .iter()
        .map(|place| FieldError {
            path: format!("$[{place}]"),
            code,
        })
        .collect()
}

/// Makes a string under [`KEY`] as a client of the format does.
fn string(
    curve: sealwire_crypto::Curve,
    role: Option<&str>,
    datatype: Datatype,
    text: &str,
) -> Vec<u8> {
    let form = Form::Metadata {
        role: role.map(|role| Role::new(role).unwrap()),
        encrypted_at: 1_700_000_000,
    };
    let version = KeyVersion::new(
        1,
        KeyState::Active,
        KeyPair::from_scalar(curve, &KEY).unwrap(),
    );
    let mut out = Vec::new();
    let mut sealer = Sealer::new(version.into(), KeyScope::Request, &form).unwrap();
    sealer.seal(datatype, text, &mut out).unwrap();
    str(std::str::from_utf8(&out).unwrap())
}

/// Returns the string of the vector whose name has this ending.
fn vector(name: &str) -> Vec<u8> {
    let mut vectors = VECTORS
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    str(vectors
        .find(|vector| vector["name"].as_str().unwrap().ends_with(name))
        .unwrap()["sealed"]
        .as_str()
        .unwrap())
}

#[test]
fn vectors_open_typed_or_are_left_and_listed() {
    run(async {
        let lines: Vec<serde_json::Value> = VECTORS
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let key = lines[0]["private_key"].as_str().unwrap();
        let mut seen = (0, 0);
        for legacy in [false, true] {
            let harness = with_key(legacy, &["*"], unhex(key).as_slice().try_into().unwrap()).await;
            let client = harness.client().await;
            // Some vectors fail only with another key, or with another switch. Each is sent with
            // its own settings.
            let of_this = lines
                .iter()
                .filter(|v| v["private_key"] == key && v["legacy"] == legacy);
            let (mut sent, mut expected, mut refused) = (Vec::new(), Vec::new(), Vec::new());
            for vector in of_this {
                let sealed = vector["sealed"].as_str().unwrap();
                let (field, claims) = match vector["kind"] == "file" {
                    true => (bin(&unhex(sealed)), looks_like_file(&unhex(sealed))),
                    false => (str(sealed), looks_like(sealed.as_bytes())),
                };
                let to = &vector["opens_to"];
                match vector["expect"] == "open" {
                    true => expected.push(typed(
                        to["type"].as_str().unwrap(),
                        to["value"].as_str().unwrap(),
                    )),
                    false => {
                        refused.extend(claims.then_some(sent.len()));
                        expected.push(field.clone());
                    }
                }
                sent.push(field);
            }
            let document = report(&client, &array(&sent)).await;
            for (index, (got, want)) in values(&document.payload).iter().zip(&expected).enumerate()
            {
                assert!(
                    got == want,
                    "{index}: {:02x?} became {got:02x?}",
                    sent[index]
                );
            }
            assert_eq!(document.errors, listed(ErrorCode::CannotOpen, &refused));
            seen = (seen.0 + sent.len() - refused.len(), seen.1 + refused.len());
            // With the switch off, every string with a legacy tag fails to open, and every other
            // opens.
            if legacy {
                let strict =
                    with_key(false, &["*"], unhex(key).as_slice().try_into().unwrap()).await;
                let given_up: Vec<Vec<u8>> = lines
                    .iter()
                    .filter(|v| v["legacy"] == true && v["expect"] == "open")
                    .map(|v| match v["kind"] == "file" {
                        true => bin(&unhex(v["sealed"].as_str().unwrap())),
                        false => str(v["sealed"].as_str().unwrap()),
                    })
                    .collect();
                let document = report(&strict.client().await, &array(&given_up)).await;
                assert_eq!(document.payload, array(&given_up));
                let all: Vec<usize> = (0..given_up.len()).collect();
                assert_eq!(document.errors, listed(ErrorCode::CannotOpen, &all));
            }
        }
        assert!(seen.0 >= 80 && seen.1 >= 200, "{seen:?}");
    });
}

#[test]
fn a_value_with_a_role_opens_only_where_the_operator_lists_the_role() {
    run(async {
        let document = array(&[
            string(sealwire_crypto::Curve::P256, None, Datatype::String, "open"),
            string(
                sealwire_crypto::Curve::P256,
                Some("support"),
                Datatype::Number,
                "42",
            ),
            string(
                sealwire_crypto::Curve::Secp256k1,
                Some("card-number"),
                Datatype::Boolean,
                "true",
            ),
            str("plain"),
        ]);
        let sent = values(&document);
        let opened = [str("open"), vec![42], vec![0xc3], str("plain")];
        let cases: [(&[&str], &[usize]); 5] = [
            (&[], &[1, 2]),
            (&["support"], &[2]),
            (&["suppor", "Support"], &[1, 2]),
            (&["card-number", "support"], &[]),
            (&["*"], &[]),
        ];
        for (open_roles, shut) in cases {
            let harness = server(false, open_roles).await;
            let client = harness.client().await;
            let reported = report(&client, &document).await;
            let expected = (0..4).map(|at| {
                if shut.contains(&at) {
                    &sent[at]
                } else {
                    &opened[at]
                }
                .clone()
            });
            assert_eq!(
                values(&reported.payload),
                expected.collect::<Vec<_>>(),
                "{open_roles:?}"
            );
            assert_eq!(reported.errors, listed(ErrorCode::Forbidden, shut));
            let failed = decrypt(&client, &document).await;
            if let Some(first) = shut.first() {
                let error = rpc_error(failed);
                assert_eq!(
                    (error.code, &*error.message),
                    (ErrorCode::Forbidden, "a data role of the value forbids it")
                );
                assert_eq!(
                    error.details,
                    [sealwire_wire::Detail::text("path", format!("$[{first}]"))]
                );
            } else {
                assert_eq!(failed.unwrap().payload, reported.payload);
            }
        }
    });
}

#[test]
fn in_a_mixed_document_only_what_claims_to_be_sealed_changes() {
    run(async {
        let harness = server(false, &[]).await;
        let client = harness.client().await;
        let native = client
            .encrypt(Encrypt::new(APP, &str("native")))
            .await
            .unwrap()
            .payload
            .to_vec();
        let theirs = string(
            sealwire_crypto::Curve::Secp256k1,
            None,
            Datatype::String,
            "theirs",
        );
        // Strings that resemble the format at one end or not at all. Wide headers and duplicate
        // keys show that nothing is re-encoded.
        let others = [
            str("ev:"),
            str("ev:x"),
            str("x:$"),
            str("ev"),
            bin(b"ev:QkTC:$"),
            bin(b"%EVEN"),
            str(""),
        ];
        let wide = b"\xdb\x00\x00\x00\x02hi\xcd\x00\x01\xc0".to_vec();
        let before = [
            &[native.clone(), theirs.clone(), theirs.clone()][..],
            &others,
        ]
        .concat();
        let after = [&[str("native"), str("theirs"), str("theirs")][..], &others].concat();
        let with_wide = |values: &[Vec<u8>]| {
            let mut out = vec![0xdc, 0, u8::try_from(values.len() + 3).unwrap()];
            out.extend(values.concat());
            out.extend(&wide);
            out
        };
        assert_eq!(
            decrypt(&client, &with_wide(&before)).await.unwrap().payload,
            with_wide(&after)
        );

        let select = Decrypt {
            select: Some(vec!["$[1]"]),
            ..Decrypt::new(APP, &[])
        };
        let document = array(&before);
        let one = client
            .decrypt(Decrypt {
                payload: &document,
                ..select
            })
            .await
            .unwrap()
            .payload;
        assert_eq!(
            values(&one),
            [&[native.clone(), str("theirs")][..], &before[2..]].concat()
        );

        // The format binds no context, so its values do not open with a context.
        let bound = client
            .encrypt(Encrypt {
                context: b"row 7",
                ..Encrypt::new(APP, &str("bound"))
            })
            .await
            .unwrap();
        let document = array(&[bound.payload.to_vec(), theirs.clone()]);
        let call = Decrypt {
            context: b"row 7",
            on_error: OnError::Report,
            ..Decrypt::new(APP, &document)
        };
        let reported = client.decrypt(call).await.unwrap();
        assert_eq!(values(&reported.payload), [str("bound"), theirs.clone()]);
        assert_eq!(reported.errors, listed(ErrorCode::CannotOpen, &[1]));

        // Another app does not have the key, and a disabled key opens nothing.
        harness.create_app("other").await;
        let wait = |generation| Decrypt {
            options: CommonParams {
                min_generation: Some(generation),
                ..CommonParams::default()
            },
            ..Decrypt::new("other", &theirs)
        };
        let error = loop {
            match rpc_error(client.decrypt(wait(4)).await) {
                error if error.code == ErrorCode::Conflict => {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await
                }
                error => break error,
            }
        };
        assert_eq!(
            (error.code, &*error.message),
            (ErrorCode::CannotOpen, "cannot open")
        );
    });
}

#[test]
fn a_copy_with_one_character_changed_never_opens() {
    run(async {
        let harness = server(true, &["*"]).await;
        let client = harness.client().await;
        for curve in sealwire_crypto::Curve::ALL {
            let good = string(curve, Some("support"), Datatype::String, "secret");
            let text = std::str::from_utf8(&good[2..]).unwrap().to_owned();
            let copies: Vec<Vec<u8>> = (3..text.len() - 2)
                .map(|at| {
                    let mut copy = text.clone().into_bytes();
                    copy[at] = if copy[at] == b'B' { b'C' } else { b'B' };
                    str(std::str::from_utf8(&copy).unwrap())
                })
                .collect();
            let document = report(&client, &array(&copies)).await;
            assert_eq!(document.payload, array(&copies));
            assert_eq!(document.errors.len(), copies.len());
            assert!(
                document
                    .errors
                    .iter()
                    .all(|error| error.code == ErrorCode::CannotOpen)
            );
        }
    });
}

/// Returns every kind of leaf, with the value that decryption gives.
fn leaves() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut same: Vec<Vec<u8>> = [
        "",
        "x",
        "Zo\u{eb} \u{1f511}",
        "007",
        "42",
        "true",
        "null",
        "ev:QkTC:$",
        " padded ",
    ]
    .iter()
    .map(|text| str(text))
    .collect();
    same.extend([bin(b""), bin(&[0xff; 300]), vec![0xc2], vec![0xc3]]);
    let number = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    same.extend(
        [0, 1, 127, 128, u64::from(u32::MAX), u64::MAX]
            .map(|value| number(&|out| write::uint(out, value))),
    );
    same.extend([-1, -32, -33, i64::MIN].map(|value| number(&|out| write::int(out, value))));
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.1,
        1e21,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    same.extend(floats.map(|value| number(&|out| write::f64(out, value))));
    let mut pairs: Vec<_> = same
        .into_iter()
        .map(|value| (value.clone(), value))
        .collect();
    // The format has one float type and no integer widths.
    pairs.push((
        number(&|out| write::f32(out, 1.5)),
        number(&|out| write::f64(out, 1.5)),
    ));
    pairs.push((vec![0xcf, 0, 0, 0, 0, 0, 0, 0, 7], vec![7]));
    pairs.push((vec![0xd0, 7], vec![7]));
    pairs
}

#[test]
fn written_values_have_the_requested_tag_and_open_again() {
    run(async {
        let harness = server(false, &["card-number"]).await;
        let client = harness.client().await;
        let (sent, back): (Vec<_>, Vec<_>) = leaves().into_iter().unzip();
        let cases = [
            (Suite::P256, Format::Evervault, "QkTC"),
            (Suite::Secp256k1, Format::Evervault, "S0lS"),
            (Suite::P256, Format::EvervaultBare, "Tk9D"),
            (Suite::Secp256k1, Format::EvervaultBare, "RFVC"),
        ];
        for (suite, format, tag) in cases {
            for key_scope in [KeyScopeName::Request, KeyScopeName::Field] {
                let writing = Writing {
                    suite: Some(suite),
                    format: Some(format),
                    key_scope,
                    ..Writing::default()
                };
                let call = Encrypt {
                    writing,
                    ..Encrypt::new(APP, &[])
                };
                let document = array(&sent);
                let sealed = client
                    .encrypt(Encrypt {
                        payload: &document,
                        ..call.clone()
                    })
                    .await
                    .unwrap()
                    .payload;
                let mut ephemerals = std::collections::HashSet::new();
                for (field, plain) in values(&sealed).iter().zip(&sent) {
                    match TokenReader::new(field).token().unwrap() {
                        Token::Str(text) => {
                            let text = std::str::from_utf8(text).unwrap();
                            assert!(
                                text.starts_with(&format!("ev:{tag}:")) && text.ends_with(":$"),
                                "{text}"
                            );
                            ephemerals.insert(text.rsplit(':').nth(2).unwrap().to_owned());
                        }
                        Token::Bin(file) => {
                            assert!(
                                looks_like_file(file)
                                    && matches!(TokenReader::new(plain).token(), Ok(Token::Bin(_)))
                            );
                            ephemerals.insert(format!("{:02x?}", &file[9..42]));
                        }
                        other => panic!("{other:?}"),
                    }
                }
                // A string and a file under one key encode its point in two ways.
                let keys = if key_scope == KeyScopeName::Field {
                    sent.len()
                } else {
                    2
                };
                assert_eq!(ephemerals.len(), keys, "{tag} {key_scope:?}");
                assert_eq!(
                    values(&decrypt(&client, &sealed).await.unwrap().payload),
                    back,
                    "{tag}"
                );
                // A second encryption gives another string.
                let again = client
                    .encrypt(Encrypt {
                        payload: &document,
                        ..call
                    })
                    .await
                    .unwrap()
                    .payload;
                assert!(
                    values(&again)
                        .iter()
                        .zip(values(&sealed))
                        .all(|(one, other)| *one != other)
                );
            }
        }
        // The role is part of the sealed data. This server opens it, and a server that does not
        // list the role denies it.
        let writing = Writing {
            format: Some(Format::Evervault),
            role: Some("card-number"),
            ..Writing::default()
        };
        let sealed = client
            .encrypt(Encrypt {
                writing,
                ..Encrypt::new(APP, &str("4242"))
            })
            .await
            .unwrap()
            .payload;
        assert_eq!(
            decrypt(&client, &sealed).await.unwrap().payload,
            str("4242")
        );
        let writing = Writing {
            role: Some("other"),
            ..writing
        };
        let sealed = client
            .encrypt(Encrypt {
                writing,
                ..Encrypt::new(APP, &str("4242"))
            })
            .await
            .unwrap()
            .payload;
        assert_eq!(
            rpc_error(decrypt(&client, &sealed).await).code,
            ErrorCode::Forbidden
        );
    });
}

#[test]
fn unsupported_options_of_the_format_are_rejected_by_name() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let evervault = Writing {
            format: Some(Format::Evervault),
            ..Writing::default()
        };
        let bare = Writing {
            format: Some(Format::EvervaultBare),
            ..Writing::default()
        };
        let role = Some("support");
        let only = "role must be absent: only format \"evervault\" has one";
        let scopes = "key_scope must be \"request\" or \"field\" in this format";
        for (writing, context, message) in [
            (
                Writing {
                    role,
                    ..Writing::default()
                },
                &b""[..],
                only,
            ),
            (Writing { role, ..bare }, b"", only),
            (
                Writing {
                    encoding: Encoding::Binary,
                    ..evervault
                },
                b"",
                "encoding must be \"text\": an Evervault string is text",
            ),
            (
                Writing {
                    encoding: Encoding::Binary,
                    ..bare
                },
                b"",
                "encoding must be \"text\": an Evervault string is text",
            ),
            (
                Writing {
                    key_scope: KeyScopeName::Epoch,
                    ..evervault
                },
                b"",
                scopes,
            ),
            (
                Writing {
                    key_scope: KeyScopeName::Epoch,
                    ..bare
                },
                b"",
                scopes,
            ),
            (
                evervault,
                b"row 7",
                "context must be empty: the Evervault format binds none",
            ),
            (
                bare,
                b"row 7",
                "context must be empty: the Evervault format binds none",
            ),
        ] {
            // Fails before any work: the payload is not even valid.
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing,
                        context,
                        ..Encrypt::new(APP, b"\xa1\xff")
                    })
                    .await,
            );
            assert_eq!(
                (error.code, &*error.message),
                (ErrorCode::BadRequest, message)
            );
        }

        // A field that the format cannot represent fails the request, or is kept and listed.
        let ext = b"\xd4\x05\x00".to_vec();
        let container = [&b"\x81\xa1k"[..], b"\x01"].concat();
        let document = array(&[
            str("a"),
            container.clone(),
            ext.clone(),
            bin(b"file"),
            vec![0xc0],
        ]);
        let select = Some(vec!["$[0]", "$[1]", "$[2]", "$[3]", "$[4]"]);
        let call = Encrypt {
            select,
            ..Encrypt::new(APP, &document)
        };
        let no_form = (
            ErrorCode::BadRequest,
            "the format has no form for this value",
        );
        for (writing, at, expected, code) in [
            (evervault, &[1, 2][..], no_form, ErrorCode::BadRequest),
            (
                Writing { role, ..evervault },
                &[1, 2, 3],
                no_form,
                ErrorCode::BadRequest,
            ),
        ] {
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing,
                        ..call.clone()
                    })
                    .await,
            );
            assert_eq!((error.code, &*error.message), expected);
            assert_eq!(error.details, [sealwire_wire::Detail::text("path", "$[1]")]);
            let reported = client
                .encrypt(Encrypt {
                    writing,
                    on_error: OnError::Report,
                    ..call.clone()
                })
                .await
                .unwrap();
            assert_eq!(reported.errors, listed(code, at));
            let (before, after) = (values(&document), values(&reported.payload));
            for place in 0..5 {
                assert_eq!(
                    before[place] == after[place],
                    at.contains(&place) || place == 4,
                    "$[{place}]"
                );
            }
        }
        for long in [
            bin(&vec![0; (25 << 20) + 1]),
            str(&"x".repeat((25 << 20) + 1)),
        ] {
            let error = rpc_error(
                client
                    .encrypt(Encrypt {
                        writing: evervault,
                        ..Encrypt::new(APP, &long)
                    })
                    .await,
            );
            assert_eq!(error.code, ErrorCode::TooLarge);
        }
        let longest = bin(&vec![7; 25 << 20]);
        let sealed = client
            .encrypt(Encrypt {
                writing: evervault,
                ..Encrypt::new(APP, &longest)
            })
            .await
            .unwrap()
            .payload;
        assert!(decrypt(&client, &sealed).await.unwrap().payload == longest);
    });
}

async fn rewrap(
    client: &Client,
    payload: &[u8],
    format: Format,
    context: &[u8],
    on_error: OnError,
) -> Result<Document, Error> {
    let writing = Writing {
        format: Some(format),
        unbound: Unbound::Bind,
        ..Writing::default()
    };
    client
        .rewrap(Rewrap {
            writing,
            context,
            on_error,
            ..Rewrap::new(APP, payload)
        })
        .await
}

#[test]
fn strings_of_others_move_to_envelopes_and_back_without_being_shown() {
    run(async {
        let harness = server(true, &[]).await;
        let client = harness.client().await;
        let (sent, back): (Vec<_>, Vec<_>) = leaves().into_iter().unzip();
        let document = array(&sent);
        for suite in [Suite::P256, Suite::Secp256k1] {
            let writing = Writing {
                suite: Some(suite),
                format: Some(Format::Evervault),
                ..Writing::default()
            };
            let theirs = client
                .encrypt(Encrypt {
                    writing,
                    ..Encrypt::new(APP, &document)
                })
                .await
                .unwrap()
                .payload;
            // A value without a context does not open under one, unless the request binds it to
            // that context.
            let call = Rewrap {
                context: b"row 7",
                on_error: OnError::Report,
                ..Rewrap::new(APP, &theirs)
            };
            let left = client.rewrap(call).await.unwrap();
            let claiming: Vec<usize> = (0..values(&theirs).len()).collect();
            assert_eq!(
                (left.payload == theirs, left.errors),
                (true, listed(ErrorCode::CannotOpen, &claiming))
            );
            let moved = rewrap(&client, &theirs, Format::Native, b"row 7", OnError::Fail)
                .await
                .unwrap()
                .payload;
            assert!(
                values(&moved)
                    .iter()
                    .all(|field| field.windows(4).any(|four| four == b"sw1:"))
            );
            let opened = client
                .decrypt(Decrypt {
                    context: b"row 7",
                    ..Decrypt::new(APP, &moved)
                })
                .await
                .unwrap();
            assert_eq!(values(&opened.payload), back);
            assert_eq!(
                rpc_error(decrypt(&client, &moved).await).code,
                ErrorCode::CannotOpen
            );
            // From native to each of the two forms, and back.
            let native = rewrap(&client, &theirs, Format::Native, b"", OnError::Fail)
                .await
                .unwrap()
                .payload;
            for format in [Format::Evervault, Format::EvervaultBare] {
                let again = rewrap(&client, &native, format, b"", OnError::Fail)
                    .await
                    .unwrap()
                    .payload;
                let again = rewrap(&client, &again, format, b"", OnError::Fail)
                    .await
                    .unwrap()
                    .payload;
                assert!(values(&again).iter().all(|field| {
                    field
                        .windows(3)
                        .any(|three| three == b"ev:" || three == b"%EV")
                }));
                assert_eq!(
                    values(&decrypt(&client, &again).await.unwrap().payload),
                    back
                );
            }
        }
        // The format cannot keep a context, so the request fails instead of dropping it. Containers
        // have no form either.
        let error = rpc_error(
            rewrap(
                &client,
                &document,
                Format::Evervault,
                b"row 7",
                OnError::Fail,
            )
            .await,
        );
        assert_eq!(
            &*error.message,
            "context must be empty: the Evervault format binds none"
        );
        let select = Some(vec!["$[0]"]);
        let container = array(&[b"\x91\x01".to_vec()]);
        let sealed = client
            .encrypt(Encrypt {
                select,
                ..Encrypt::new(APP, &container)
            })
            .await
            .unwrap()
            .payload;
        let left = rewrap(&client, &sealed, Format::Evervault, b"", OnError::Report)
            .await
            .unwrap();
        assert_eq!(
            (&left.payload, left.errors),
            (&sealed, listed(ErrorCode::BadRequest, &[0]))
        );
    });
}

#[test]
fn a_role_goes_along_or_keeps_the_value_where_it_is() {
    run(async {
        let document = array(&[
            string(sealwire_crypto::Curve::P256, None, Datatype::String, "open"),
            string(
                sealwire_crypto::Curve::Secp256k1,
                Some("support"),
                Datatype::Number,
                "42",
            ),
            string(
                sealwire_crypto::Curve::P256,
                Some("other"),
                Datatype::String,
                "x",
            ),
            string(
                sealwire_crypto::Curve::P256,
                None,
                Datatype::Boolean,
                "true",
            ),
        ]);
        let harness = server(false, &["support"]).await;
        let client = harness.client().await;
        // Neither form without a role accepts a value whose role this engine cannot open.
        for format in [Format::Native, Format::EvervaultBare] {
            let moved = rewrap(&client, &document, format, b"", OnError::Report)
                .await
                .unwrap();
            assert_eq!(moved.errors, listed(ErrorCode::Forbidden, &[2]));
            assert_eq!(values(&moved.payload)[2], values(&document)[2]);
            assert_eq!(
                rpc_error(rewrap(&client, &document, format, b"", OnError::Fail).await).code,
                ErrorCode::Forbidden
            );
            let opened = values(&report(&client, &moved.payload).await.payload);
            assert_eq!(
                [&opened[0], &opened[1], &opened[3]],
                [&str("open"), &vec![42], &vec![0xc3]]
            );
        }
        // With metadata each value keeps its role, and is as protected as before.
        let moved = rewrap(&client, &document, Format::Evervault, b"", OnError::Fail)
            .await
            .unwrap()
            .payload;
        assert!(
            values(&moved)
                .iter()
                .zip(values(&document))
                .all(|(new, old)| *new != old)
        );
        let opened = report(&client, &moved).await;
        assert_eq!(opened.errors, listed(ErrorCode::Forbidden, &[2]));
        assert_eq!(values(&opened.payload)[..2], [str("open"), vec![42]]);
    });
}

/// Tests that rewrapping keeps a value's text. A changed text would reveal a value with a closed
/// role by its length.
#[test]
fn rewraps_within_the_format_keep_datatype_and_text() {
    run(async {
        let harness = server(false, &[]).await;
        let client = harness.client().await;
        let texts = [
            (Datatype::Boolean, "1"),
            (Datatype::Boolean, "0"),
            (Datatype::Boolean, "true"),
            (Datatype::Boolean, "false"),
            (Datatype::Number, "1.50"),
            (Datatype::Number, "1e3"),
            (Datatype::Number, "NaN"),
            (Datatype::Number, "007"),
            (Datatype::Number, "null"),
            (Datatype::Number, "18446744073709551617"),
            (Datatype::String, "x"),
        ];
        for role in [None, Some("other")] {
            for curve in sealwire_crypto::Curve::ALL {
                let document =
                    array(&texts.map(|(datatype, text)| string(curve, role, datatype, text)));
                let moved = rewrap(&client, &document, Format::Evervault, b"", OnError::Fail)
                    .await
                    .unwrap()
                    .payload;
                for (before, after) in values(&document).iter().zip(values(&moved)) {
                    assert_ne!(*before, after);
                    let [before, after] =
                        [before, &after].map(|field| match TokenReader::new(field).token() {
                            Ok(Token::Str(text)) => {
                                sealwire_crypto::evervault::inspect(text).unwrap()
                            }
                            other => panic!("{other:?}"),
                        });
                    assert_eq!(
                        (after.datatype, after.payload_bytes),
                        (before.datatype, before.payload_bytes)
                    );
                }
            }
        }
    });
}

#[test]
fn a_listed_role_is_not_lost_where_it_could_be_kept() {
    run(async {
        let names = [
            ": role alone",
            ": a role of 80 bytes",
            ": a role of 81 bytes",
            ": an empty role",
        ];
        let document = array(&names.map(vector));
        let first: serde_json::Value =
            serde_json::from_str(VECTORS.lines().next().unwrap()).unwrap();
        let key = unhex(first["private_key"].as_str().unwrap());
        let with_roles = async |open_roles| {
            with_key(false, open_roles, key.as_slice().try_into().unwrap()).await
        };
        let opened = [(); 4].map(|()| str("metadata"));
        let harness = with_roles(&["*"]).await;
        let client = harness.client().await;
        assert_eq!(
            values(&decrypt(&client, &document).await.unwrap().payload),
            opened
        );
        let moved = rewrap(&client, &document, Format::Evervault, b"", OnError::Report)
            .await
            .unwrap();
        assert_eq!(moved.errors, listed(ErrorCode::Forbidden, &[2, 3]));
        assert_eq!(values(&moved.payload)[2..], values(&document)[2..]);
        assert!((0..2).all(|at| values(&moved.payload)[at] != values(&document)[at]));
        // In forms without roles, listed roles are dropped.
        for format in [Format::Native, Format::EvervaultBare] {
            let moved = rewrap(&client, &document, format, b"", OnError::Fail)
                .await
                .unwrap()
                .payload;
            assert_eq!(
                values(&decrypt(&client, &moved).await.unwrap().payload),
                opened
            );
        }
        let shut = with_roles(&[]).await;
        let moved = rewrap(
            &shut.client().await,
            &document,
            Format::Evervault,
            b"",
            OnError::Report,
        )
        .await
        .unwrap();
        assert_eq!(moved.errors, listed(ErrorCode::Forbidden, &[2, 3]));
    });
}

#[test]
fn inspect_says_what_a_string_says() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let said = async |envelope| client.inspect(Inspect { envelope }).await;
        let evervault =
            |tag: Option<&str>, version, suite, datatype, encoding, plaintext_bytes| Inspection {
                format: Format::Evervault,
                version,
                tag: tag.map(str::to_owned),
                suite,
                key_id: None,
                outside: false,
                datatype,
                sequence: None,
                encoding,
                plaintext_bytes,
                encapsulation: None,
                debug: Some(false),
            };
        let r1 = "ev:QkTC:number:AAECAwQFBgcICQoL:A9Zak5d8qj0bCBhS/1ennkZfFmBXcwS66tUF3TpIWJzz:vYj5I5ezaS4pmAruUZ8cD09ZioaTsR35ZbaHYSUxmBENbp1oSK5KlH3DLus2q6ss:$";
        let k1 = "ev:RFVC:AAECAwQFBgcICQoL:AkZtf8rlY+XLCaDRhwu1gDRIBGF4eaFJSc8iKF8brj8n:IMG3MCrR2YRlEklKmZa7BJs6yKjS:$";
        let untagged = k1.replace("RFVC:", "");
        let debug = k1.replace("ev:", "ev:debug:boolean:").replace("RFVC:", "");
        let file = unhex(
            "254556454e4303370003d65a93977caa3d1b081852ff57a79e465f1660577304baead505dd3a48589cf3000102030405060708090a0b00c9ed16ed9c753b40c14c04dc81346a44526bb51c94dc44eaee",
        );
        let (text, number, boolean) = (ValueKind::String, ValueKind::Number, ValueKind::Boolean);
        for (envelope, expected) in [
            (
                Envelope::Text(r1),
                evervault(Some("QkTC"), None, Suite::P256, number, Encoding::Text, 32),
            ),
            (
                Envelope::Text(k1),
                evervault(
                    Some("RFVC"),
                    None,
                    Suite::Secp256k1,
                    text,
                    Encoding::Text,
                    5,
                ),
            ),
            (
                Envelope::Text(&untagged),
                evervault(Some(""), None, Suite::Secp256k1, text, Encoding::Text, 5),
            ),
            (
                Envelope::Text(&debug),
                Inspection {
                    debug: Some(true),
                    ..evervault(Some(""), None, Suite::Secp256k1, boolean, Encoding::Text, 5)
                },
            ),
            (
                Envelope::Binary(&file),
                evervault(
                    None,
                    Some(3),
                    Suite::P256,
                    ValueKind::Binary,
                    Encoding::Binary,
                    5,
                ),
            ),
        ] {
            assert_eq!(said(envelope).await.unwrap(), expected, "{envelope:?}");
        }
        for none in [
            Envelope::Text("ev:$"),
            Envelope::Text(&k1[1..]),
            Envelope::Binary(&file[..60]),
            Envelope::Binary(r1.as_bytes()),
        ] {
            assert_eq!(
                rpc_error(said(none).await).code,
                ErrorCode::BadRequest,
                "{none:?}"
            );
        }
        let info = client.info().await.unwrap();
        assert_eq!(info.formats, ["native", "evervault", "evervault-bare"]);
    });
}

#[test]
fn an_apps_format_holds_where_a_call_names_none() {
    run(async {
        let choose = async |control: &Control| {
            let set =
                |settings: &mut Settings| settings.format = sealwire_apps::DefaultFormat::Evervault;
            control.configure(&shop(), set).await.unwrap();
        };
        let harness = Harness::prepared(
            |config| config.evervault.open_roles = vec!["support".into()],
            choose,
        )
        .await;
        let client = harness.client().await;
        let begins = |payload: &[u8], with: &str| {
            payload
                .windows(with.len())
                .any(|part| part == with.as_bytes())
        };
        let call = |format, role| {
            let writing = Writing {
                format,
                role,
                ..Writing::default()
            };
            Encrypt {
                writing,
                ..Encrypt::new(APP, b"\xa1x")
            }
        };
        for (format, role, tag) in [
            (None, None, "ev:QkTC:"),
            (None, Some("support"), "ev:QkTC:"),
            (Some(Format::EvervaultBare), None, "ev:Tk9D:"),
            (Some(Format::Native), None, "sw1:"),
        ] {
            let sealed = client.encrypt(call(format, role)).await.unwrap().payload;
            assert!(begins(&sealed, tag), "{format:?}");
            assert_eq!(
                &decrypt(&client, &sealed).await.unwrap().payload[..],
                b"\xa1x"
            );
            let moved = client
                .rewrap(Rewrap::new(APP, &sealed))
                .await
                .unwrap()
                .payload;
            assert!(begins(&moved, "ev:QkTC:"), "{format:?}");
        }
        // A parameter that the app's format does not support is rejected by name.
        let error = rpc_error(
            client
                .encrypt(Encrypt {
                    context: b"row 7",
                    ..call(None, None)
                })
                .await,
        );
        assert_eq!(
            &*error.message,
            "context must be empty: the Evervault format binds none"
        );
        client
            .encrypt(Encrypt {
                context: b"row 7",
                ..call(Some(Format::Native), None)
            })
            .await
            .unwrap();
    });
}
