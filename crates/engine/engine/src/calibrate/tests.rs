//! The cost model beside measured time, for requests that are dear for their size.

use sealwire_msgpack::TokenReader;
use sealwire_wire::MaskList;

use super::*;

/// A request to measure.
struct Case {
    name: String,
    kind: OperationKind,
    document: Bytes,
    selection: Selection,
    extra: ExtraWork,
    task: Box<dyn Fn() -> Task>,
}

/// Largest ratio of measured time to the model, and of the model to measured time, that is
/// accepted.
const RATIO_MAX: f64 = 3.0;

/// Scalars of a message with a document that are no map keys, as the scan counts them.
fn leaves(document: &[u8]) -> u64 {
    let mut reader = TokenReader::new(document);
    // Values that are left of each container, and whether it is a map.
    let mut open = vec![(1_u64, false)];
    let mut leaves = 4;
    while let Some((left, is_map)) = open.last_mut() {
        if *left == 0 {
            open.pop();
            continue;
        }
        *left -= 1;
        let is_key = *is_map && *left % 2 == 1;
        let token = reader.token().unwrap();
        match token {
            sealwire_msgpack::Token::Array(_) => open.push((token.children(), false)),
            sealwire_msgpack::Token::Map(_) => open.push((token.children(), true)),
            _ => leaves += u64::from(!is_key),
        }
    }
    leaves
}

/// The mask of a document by rules `(target, function)`, where a target is a path, `kind:NAME` or
/// `column:NAME`.
fn mask(
    name: &str,
    rules: Vec<(String, String)>,
    lists: Vec<(String, Vec<String>)>,
    document: Vec<u8>,
) -> Case {
    let keys = token_keys().unwrap();
    let wanted = move || {
        let rules = rules.iter().map(|(target, mask)| MaskRule {
            fields: match target.split_once(':') {
                Some(("kind", kind)) => RuleFields::Kind(kind),
                Some((_, column)) => RuleFields::Column(column),
                None => RuleFields::Path(target),
            },
            mask,
        });
        let lists = lists.iter().map(|(name, entries)| MaskList {
            name,
            entries: entries.iter().map(String::as_str).collect(),
        });
        let unknown = sealwire_wire::UnknownFields::Keep;
        MaskSpec::of(&Masking {
            rules: rules.collect(),
            lists: lists.collect(),
            unknown,
        })
        .unwrap()
    };
    let extra = wanted().extra_work(leaves(&document) - 4, document.len() as u64);
    let task = move || {
        let wanted = wanted();
        let keys = Arc::clone(&keys);
        start(Containers::Descend, move |context| {
            let masks = Arc::new(wanted.into_masks(masks::mask_secret(&keys))?);
            let field_errors = context.errors(OnError::Report);
            let cancel = context.cancel;
            Ok(Fields::Document(Box::new(MaskFields::new(
                masks,
                cancel,
                field_errors,
            ))))
        })
    };
    let kind = OperationKind::of(Method::Mask, Suite::P256, KeyScope::Epoch);
    let name = format!("mask: {name}");
    let document = document.into();
    Case {
        name,
        kind,
        document,
        selection: Selection::everything(),
        extra,
        task: Box::new(task),
    }
}

fn texts(count: u32, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, count);
    (0..count).for_each(|_| write::str(&mut out, text));
    out
}

/// Maps inside each other with a date for every rule, filler, and subjects behind it.
fn nested(depth: u32, rules: u32, filler: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..depth {
        write::map_len(&mut out, 2 * rules + 1);
        for rule in 0..rules {
            write::str(&mut out, &format!("d{rule}"));
            write::str(&mut out, "2000-01-15");
        }
        write::str(&mut out, "in");
    }
    write::array_len(&mut out, filler);
    (0..filler).for_each(|_| write::uint(&mut out, 1));
    for _ in 0..depth {
        for rule in 0..rules {
            write::str(&mut out, &format!("s{rule}"));
            write::uint(&mut out, 1);
        }
    }
    out
}

/// Maps inside each other, to a depth that the limits permit.
fn deep(depth: usize, width: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..depth {
        write::map_len(&mut out, width + 1);
        for key in 0..width {
            write::str(&mut out, &format!("k{key}"));
            write::uint(&mut out, 1);
        }
        write::str(&mut out, "x");
    }
    write::uint(&mut out, 1);
    out
}

fn mask_cases() -> Vec<Case> {
    let one = |target: &str, mask: &str| vec![(target.to_owned(), mask.to_owned())];
    let subjects = |rules: u32| -> Vec<(String, String)> {
        (0..rules)
            .map(|at| {
                (
                    format!("column:d{at}"),
                    format!("date_shift(within=30, subject=s{at})"),
                )
            })
            .collect()
    };
    let kind = |kind: &str, count: usize| -> Vec<(String, String)> {
        (0..count)
            .map(|_| (format!("kind:{kind}"), "redact".to_owned()))
            .collect()
    };
    let kinds = [
        "card",
        "email",
        "iban",
        "phone",
        "national_id",
        "ip_address",
        "secret",
    ];
    let mut cases = vec![
        mask(
            "hash, 256 short",
            one("$[*]", "hash"),
            vec![],
            document(256, 16),
        ),
        mask(
            "hash, 64 KiB",
            one("$[*]", "hash"),
            vec![],
            document(4, 16 << 10),
        ),
        mask(
            "250 rules with subjects, shared filler",
            subjects(250),
            vec![],
            nested(4, 250, 40_000),
        ),
        mask(
            "1 rule with subject, 120 maps, shared filler",
            subjects(1),
            vec![],
            nested(120, 1, 60_000),
        ),
        mask(
            "1 rule with subject, no filler",
            subjects(1),
            vec![],
            nested(100, 1, 1),
        ),
        mask(
            "256 equal kinds, 256 short",
            kind("card", 256),
            vec![],
            document(256, 16),
        ),
        mask(
            "one kind, 256 short",
            kind("card", 1),
            vec![],
            document(256, 16),
        ),
        mask(
            "1000 column rules",
            (0..1000)
                .map(|at| (format!("column:c{at}"), "hash".to_owned()))
                .collect(),
            vec![],
            document(16, 16),
        ),
        mask(
            "1000 fpe rules",
            (0..1000)
                .map(|at| (format!("column:c{at}"), format!("fpe(domain=\"{at}\")")))
                .collect(),
            vec![],
            document(16, 16),
        ),
        mask(
            "list of 20,000 entries",
            one("$[*]", "pseudonym(list=own)"),
            vec![(
                "own".to_owned(),
                (0..20_000).map(|at| format!("entry {at}")).collect(),
            )],
            document(256, 16),
        ),
        mask("keep", one("$[*]", "keep"), vec![], document(256, 16)),
        mask("redact", one("$[*]", "redact"), vec![], document(256, 16)),
        mask(
            "fpe, short",
            one("$[*]", "fpe"),
            vec![],
            texts(256, "1234567890123456"),
        ),
        mask(
            "fpe, 128 digits",
            one("$[*]", "fpe"),
            vec![],
            texts(256, &"7".repeat(128)),
        ),
        mask(
            "fpe alphanumeric",
            one("$[*]", "fpe(alphabet=alphanumeric)"),
            vec![],
            texts(256, &"a7B".repeat(40)),
        ),
        mask(
            "email",
            one("$[*]", "email"),
            vec![],
            texts(256, "someone@example.org"),
        ),
        mask(
            "phone",
            one("$[*]", "phone"),
            vec![],
            texts(256, "+49 30 1234567"),
        ),
        mask(
            "card",
            one("$[*]", "card"),
            vec![],
            texts(256, "4111 1111 1111 1111"),
        ),
        mask(
            "date_shift",
            one("$[*]", "date_shift(within=30)"),
            vec![],
            texts(256, "2000-01-15T10:00:00Z"),
        ),
        mask(
            "generalize",
            one("$[*]", "generalize(step=10)"),
            vec![],
            texts(256, "123456789012345678.5"),
        ),
        mask(
            "noise",
            one("$[*]", "noise(percent=10)"),
            vec![],
            texts(256, "123456789012345678.5"),
        ),
        mask(
            "partial, 64 KiB",
            one("$[*]", "partial(last=4)"),
            vec![],
            document(4, 16 << 10),
        ),
        mask(
            "pseudonym",
            one("$[*]", "pseudonym(list=full_names)"),
            vec![],
            document(256, 16),
        ),
        mask("$..x, deep", one("$..x", "hash"), vec![], deep(120, 8)),
        mask(
            "integers, unnamed",
            one("$.x", "hash"),
            vec![],
            [&[0xdd, 0, 1, 0, 0][..], &[1; 65_536]].concat(),
        ),
    ];
    for (name, text) in [
        ("x", "x".repeat(320)),
        ("7", "7".repeat(320)),
        ("7-", "7-".repeat(160)),
        ("a.", "a.".repeat(160)),
        ("@", format!("{}@{}", "a".repeat(64), "b.".repeat(120))),
        (":", "a:".repeat(22)),
        ("e30", "123456789012345678901234567890".to_owned()),
        (
            "ey",
            format!(
                "eyJ{}.eyJ{}.{}",
                "a".repeat(5_000),
                "b".repeat(5_000),
                "c".repeat(5_000)
            ),
        ),
        (
            "pem",
            format!("-----BEGIN PRIVATE KEY-----\n{}", "MIIEvQ\n".repeat(2_000)),
        ),
        ("short", "AB12".to_owned()),
    ] {
        let rules = kinds.iter().flat_map(|name| kind(name, 1)).collect();
        cases.push(mask(
            &format!("7 kinds, {name}"),
            rules,
            vec![],
            texts(if text.len() > 1_000 { 8 } else { 256 }, &text),
        ));
    }
    cases
}

fn seal_case(
    name: &str,
    suite: Suite,
    scope: crypto::KeyScope,
    seals: bool,
    context: usize,
    plain: Vec<u8>,
    paths: &[String],
) -> Case {
    let of = suite::from_wire(suite);
    let keys = keys(of).unwrap();
    let context = vec![7; context];
    let metrics = Arc::new(Metrics::new());
    let sealing = {
        let keys = Arc::clone(&keys);
        let context = context.clone();
        move || -> Task {
            let keys = Arc::clone(&keys);
            let context = context.clone();
            start(Containers::Whole, move |job| {
                let newest = keys.newest(of).cloned().ok_or(RequestFailure::NoKey)?;
                let sealer =
                    Sealer::new(keys.app(), newest, scope, crypto::Encoding::Text, &context)
                        .map_err(|_| RequestFailure::Internal("the crypto library failed"))?;
                let field_errors = job.errors(OnError::Fail);
                let cancel = job.cancel;
                Ok(Fields::Document(Box::new(SealFields {
                    writer: FieldSealer::Native(sealer.into()),
                    contexts: None,
                    cancel,
                    field_errors,
                })))
            })
        }
    };
    let selection = if paths.is_empty() {
        Selection::everything()
    } else {
        Selection::parse(paths.iter().map(String::as_str)).unwrap()
    };
    let wire_scope = if scope == crypto::KeyScope::Field {
        KeyScope::Field
    } else {
        KeyScope::Request
    };
    if seals {
        let extra = crate::jobs::cost::authenticated(leaves(&plain), context.len());
        let kind = OperationKind::of(Method::Encrypt, suite, wire_scope);
        return Case {
            name: format!("encrypt: {name}"),
            kind,
            document: plain.into(),
            selection,
            extra,
            task: Box::new(sealing),
        };
    }
    let (_, sealed) = best(&sealing, &plain.into(), &metrics).unwrap();
    let extra = crate::jobs::cost::authenticated(leaves(&sealed), context.len());
    let task = move || -> Task {
        let native = Opener::new(Arc::clone(&keys), &context);
        let evervault = Evervault::new(Arc::clone(&keys), Arc::default());
        let opener = FieldOpener::new(native, evervault, Limits::default().depth_max as usize);
        let open = OpenSpec {
            opener: Box::new(opener),
            on_error: OnError::Fail,
        };
        start(Containers::Descend, |context| {
            Ok(Fields::Document(Box::new(ShowFields {
                open: open.start(context),
                disclosure: Disclosure::clear(),
            })))
        })
    };
    let kind = OperationKind::of(Method::Decrypt, suite, KeyScope::Request);
    Case {
        name: format!("decrypt: {name}"),
        kind,
        document: sealed,
        selection,
        extra,
        task: Box::new(task),
    }
}

fn envelope_cases() -> Vec<Case> {
    let recursive: Vec<String> = (0..60).map(|at| format!("$..k{at}")).collect();
    let long: Vec<String> = vec![format!("${}", "..x".repeat(120))];
    let mut cases = Vec::new();
    for suite in [Suite::P256, Suite::Xaes] {
        for seals in [true, false] {
            let request = crypto::KeyScope::Request;
            let mut case = |name: &str, context, plain, paths: &[String]| {
                cases.push(seal_case(
                    &format!("{name}, {suite:?}"),
                    suite,
                    request,
                    seals,
                    context,
                    plain,
                    paths,
                ));
            };
            case("256 short", 0, document(256, 16), &[]);
            case("256 short, context of 4 KiB", 4_096, document(256, 16), &[]);
            case("4 short, context of 4 KiB", 4_096, document(4, 16), &[]);
            case("256 of 1 KiB", 0, document(256, 1_024), &[]);
            case("1 MiB", 0, document(1, 1 << 20), &[]);
            if seals {
                case("60 recursive paths, deep", 0, deep(120, 60), &recursive);
                case("one path of 120 recursions, deep", 0, deep(120, 8), &long);
                case("non-ASCII", 0, texts(256, &"\u{e9}".repeat(512)), &[]);
                case(
                    "large integers",
                    0,
                    {
                        let mut out = Vec::new();
                        write::array_len(&mut out, 256);
                        (0..256).for_each(|_| write::uint(&mut out, u64::MAX));
                        out
                    },
                    &[],
                );
            }
        }
    }
    cases
}

/// Prints the model beside measured time. By hand, since it measures:
/// `cargo test --release -p sealwire-engine --lib calibrate -- --ignored --nocapture`.
#[test]
#[ignore = "measures time"]
fn dear_requests_cost_what_the_model_says() {
    let costs = calibrate().unwrap();
    let metrics = Arc::new(Metrics::new());
    let mut far = Vec::new();
    println!("| request | bytes | fields and bytes us | modelled us | measured us | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for case in mask_cases().into_iter().chain(envelope_cases()) {
        let work_size = case
            .kind
            .work_size(leaves(&case.document), case.document.len() as u64);
        let plain = costs.estimate(case.kind, work_size).as_nanos();
        let modelled = costs
            .estimate(
                case.kind,
                crate::jobs::cost::with_extra(work_size, case.extra),
            )
            .as_nanos();
        let took = (0..RUNS).map(|_| {
            let (mut job, finished) = job_of(
                (case.task)(),
                &case.document,
                case.selection.clone(),
                &metrics,
            );
            let began = thread_cpu();
            job.slice(&SliceBudget::UNLIMITED);
            let took = thread_cpu().saturating_sub(began);
            drop(finished);
            took.as_nanos() as f64
        });
        let took = took.fold(f64::INFINITY, f64::min);
        let ratio = took / modelled as f64;
        println!(
            "| {} | {} | {:.1} | {:.1} | {:.1} | {ratio:.2} |",
            case.name,
            case.document.len(),
            plain as f64 / 1e3,
            modelled as f64 / 1e3,
            took / 1e3
        );
        if ratio > RATIO_MAX {
            far.push((case.name, ratio));
        }
    }
    assert!(far.is_empty(), "{far:?}");
}
