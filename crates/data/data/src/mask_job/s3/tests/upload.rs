//! Tests of uploads.

use super::*;

/// Responds like a store without any object.
fn stores(request: &str, _: usize) -> Vec<u8> {
    match request {
        _ if request.starts_with("HEAD") => response("404 Not Found", "", ""),
        _ if request.ends_with("?uploads=") => response(
            "200 OK",
            "",
            "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
        ),
        _ if request.starts_with("PUT") => response("200 OK", "ETag: \"part\"\r\n", ""),
        _ if request.starts_with("POST") => response(
            "200 OK",
            "",
            "<CompleteMultipartUploadResult><ETag>\"all\"</ETag></CompleteMultipartUploadResult>",
        ),
        _ => response("204 No Content", "", ""),
    }
}

const COMPLETE: &str = "POST /lake/in.parquet?uploadId=u1";
const ABORT: &str = "DELETE /lake/in.parquet?uploadId=u1";

/// Writes a small object. The requests are HEAD, creation, part, HEAD, completion, and from number
/// 5 the requests that follow the completion.
fn uploaded_small(object: &S3Object, replace: bool) -> Result<(), JobError> {
    let mut upload = S3Upload::start(object, replace, &JobStop::default())?;
    upload.write(b"small")?;
    upload.finish()
}

/// The response to HEAD of an object.
fn head(marker: Option<&str>, length: usize) -> Vec<u8> {
    let marker = marker
        .map(|marker| format!("x-amz-meta-sealwire-upload: {marker}\r\n"))
        .unwrap_or_default();
    format!("HTTP/1.1 200 OK\r\n{marker}Content-Length: {length}\r\n\r\n").into_bytes()
}

fn uploaded(script: &Script, replace: bool) -> Result<(), JobError> {
    let mut upload = S3Upload::start(&script.object(), replace, &JobStop::default())?;
    upload.write(&vec![7; (16 << 20) + 5])?;
    upload.finish()
}

#[test]
fn an_upload_is_completed_under_its_condition() {
    for replace in [false, true] {
        let script = Script::start(stores);
        uploaded(&script, replace).expect("uploads");
        let seen = script.seen();
        let count = |start: &str| {
            seen.iter()
                .filter(|seen| seen.request.starts_with(start))
                .count()
        };
        assert_eq!(
            (count("PUT"), count("HEAD"), count("DELETE")),
            (2, if replace { 0 } else { 2 }, 0)
        );
        let last = Seen {
            request: COMPLETE.into(),
            is_conditional: !replace,
        };
        assert_eq!(seen.last(), Some(&last));
        // The connection must stay usable for the next request.
        assert_eq!(script.shared.connections.load(Ordering::Relaxed), 1);
    }
    let lacks_conditions: Respond = |request, number| match request {
        COMPLETE if number < 6 => refusal("501 Not Implemented", "NotImplemented"),
        _ => stores(request, number),
    };
    let script = Script::start(lacks_conditions);
    uploaded(&script, false).expect("uploads");
    let completions: Vec<_> = script
        .seen()
        .into_iter()
        .filter(|seen| seen.request == COMPLETE)
        .collect();
    assert_eq!(
        completions
            .iter()
            .map(|seen| seen.is_conditional)
            .collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn a_failed_upload_is_aborted() {
    let cases: &[(Respond, &str)] = &[
        (
            |request, number| match request {
                COMPLETE => refusal("412 Precondition Failed", "PreconditionFailed"),
                _ => stores(request, number),
            },
            "exists already",
        ),
        (
            |request, number| match request {
                _ if request.starts_with("PUT") => refusal("403 Forbidden", "AccessDenied"),
                _ => stores(request, number),
            },
            "the credentials need s3:PutObject",
        ),
        (
            |request, number| match request {
                COMPLETE => Vec::new(),
                _ => stores(request, number),
            },
            "whether the object was made is not known",
        ),
        (
            |request, number| match request {
                COMPLETE => response("200 OK", "", "<Error><Code>QuotaExceeded</Code></Error>"),
                _ => stores(request, number),
            },
            "does not conform to the S3 protocol",
        ),
        // A store that neither shows whether the object exists, nor supports a conditional
        // completion.
        (
            |request, number| match request {
                _ if request.starts_with("HEAD") => refusal("403 Forbidden", "AccessDenied"),
                COMPLETE => refusal("501 Not Implemented", "NotImplemented"),
                _ => stores(request, number),
            },
            "does not tell whether the object exists",
        ),
    ];
    for (respond, expected) in cases {
        let script = Script::start(*respond);
        let error = check_secrets(&uploaded(&script, false).expect_err(expected));
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            script.seen().last().map(|seen| &*seen.request),
            Some(ABORT),
            "{expected}"
        );
    }
    // Drops the upload, also in a task that must not block.
    let script = Script::start(stores);
    let upload = S3Upload::start(&script.object(), false, &JobStop::default()).expect("begins");
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime")
        .block_on(async { drop(upload) });
    assert_eq!(script.seen().last().map(|seen| &*seen.request), Some(ABORT));

    let cannot_abort: Respond = |request, number| match request {
        ABORT => refusal("403 Forbidden", "AccessDenied"),
        COMPLETE => refusal("400 Bad Request", "EntityTooSmall"),
        _ => stores(request, number),
    };
    let script = Script::start(cannot_abort);
    let error = check_secrets(&uploaded(&script, false).expect_err("fails"));
    assert!(
        error.contains("demands larger parts") && error.contains("the parts of the upload u1"),
        "{error}"
    );
}

#[test]
fn an_abort_is_repeated() {
    // The first abort gets no response. It takes effect in one case and not in the other.
    let second: &[Respond] = &[|_, _| refusal("404 Not Found", "NoSuchUpload"), stores];
    for (first, second) in [(Vec::new(), second[1]), (HANG.to_vec(), second[0])] {
        let aborts = AtomicUsize::default();
        let later = move |request: &str, number: usize| match request {
            ABORT if aborts.fetch_add(1, Ordering::Relaxed) == 0 => first.clone(),
            ABORT => second(request, number),
            _ => stores(request, number),
        };
        let script = Script::start_with(later, stores);
        let upload =
            S3Upload::start(&script.impatient(), true, &JobStop::default()).expect("begins");
        let error = upload.discard(JobError::Stopped);
        assert!(matches!(error, JobError::Stopped), "{error}");
        assert!(
            script
                .seen()
                .iter()
                .filter(|seen| seen.request == ABORT)
                .count()
                > 1
        );
    }
    let script = Script::start(|request, number| {
        if request == ABORT {
            Vec::new()
        } else {
            stores(request, number)
        }
    });
    let upload = S3Upload::start(&script.object(), true, &JobStop::default()).expect("begins");
    let error = check_secrets(&upload.discard(JobError::Stopped));
    assert!(error.contains("the parts of the upload u1"), "{error}");
    assert_eq!(script.seen().len(), 1 + RETRIES_MAX + 1);
}

#[test]
fn the_name_of_an_upload_is_no_text_of_the_store() {
    let hostile: Respond = |request, number| match request {
        _ if request.ends_with("?uploads=") => {
            let id = format!("<UploadId>{TOKEN}&#10;u1</UploadId>");
            response(
                "200 OK",
                "",
                &format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>"),
            )
        }
        _ => stores(request, number),
    };
    let script = Script::start(hostile);
    let error = check_secrets(&uploaded(&script, false).expect_err("fails"));
    assert!(
        error.contains("returned an invalid id for the upload"),
        "{error}"
    );
}

#[test]
fn a_failed_completion_tells_whose_object_is_there() {
    type Response = fn(usize) -> Vec<u8>;
    const KNOWN: &str = "";
    let lost: Response = |number| match number {
        4 => Vec::new(),
        _ => refusal("412 Precondition Failed", "PreconditionFailed"),
    };
    let exists: Response = |_| refusal("412 Precondition Failed", "PreconditionFailed");
    let gone: Response = |_| refusal("404 Not Found", "NoSuchUpload");
    let conflict: Response = |_| refusal("409 Conflict", "ConditionalRequestConflict");
    let fails: Response = |_| refusal("500 Internal Server Error", "InternalError");
    let refused: Response = |_| refusal("403 Forbidden", "AccessDenied");
    let garbage: Response = |_| response("200 OK", "", "<html></html>");
    let ours: Response = |_| head(Some(MARKER), 5);
    let others: Response = |_| head(Some("0123456789abcdef0123456789abcdef"), 5);
    let unmarked: Response = |_| head(None, 5);
    let longer: Response = |_| head(None, 6);
    let nothing: Response = |_| response("404 Not Found", "", "");
    let forbidden: Response = |_| response("403 Forbidden", "", "");
    let unknown = "whether the object was made is not known";
    let there = "exists already";
    type Case<'c> = (&'c str, Response, Response, Result<(), (&'c str, &'c str)>);
    let cases: &[Case] = &[
        ("lost, ours", lost, ours, Ok(())),
        ("lost, others", lost, others, Err((there, KNOWN))),
        ("lost, longer", lost, longer, Err((there, KNOWN))),
        // The store can drop markers, or another writer can have created the object.
        (
            "lost, unmarked",
            lost,
            unmarked,
            Err(("another request made", unknown)),
        ),
        (
            "lost, nothing",
            lost,
            nothing,
            Err(("another request made", unknown)),
        ),
        (
            "lost, forbidden",
            lost,
            forbidden,
            Err(("another request made", unknown)),
        ),
        ("exists, ours", exists, ours, Ok(())),
        ("exists, others", exists, others, Err((there, KNOWN))),
        ("exists, unmarked", exists, unmarked, Err((there, KNOWN))),
        ("exists, nothing", exists, nothing, Err((there, KNOWN))),
        ("exists, forbidden", exists, forbidden, Err((there, KNOWN))),
        ("gone, ours", gone, ours, Ok(())),
        ("gone, others", gone, others, Err((there, KNOWN))),
        (
            "gone, nothing",
            gone,
            nothing,
            Err(("the unfinished upload is gone", KNOWN)),
        ),
        ("conflict, ours", conflict, ours, Ok(())),
        ("conflict, others", conflict, others, Err((there, KNOWN))),
        (
            "conflict, unmarked",
            conflict,
            unmarked,
            Err((there, KNOWN)),
        ),
        (
            "conflict, nothing",
            conflict,
            nothing,
            Err(("another request made", KNOWN)),
        ),
        ("fails, ours", fails, ours, Ok(())),
        (
            "fails, nothing",
            fails,
            nothing,
            Err(("try again later", unknown)),
        ),
        ("garbage, ours", garbage, ours, Ok(())),
        (
            "garbage, nothing",
            garbage,
            nothing,
            Err(("does not conform", unknown)),
        ),
        ("no HTTP, ours", |_| b"hello\r\n\r\n".to_vec(), ours, Ok(())),
        (
            "no HTTP, nothing",
            |_| b"hello\r\n\r\n".to_vec(),
            nothing,
            Err(("is not HTTP", unknown)),
        ),
        (
            "too long, ours",
            |_| response("200 OK", "", &"x".repeat(6 << 20)),
            ours,
            Ok(()),
        ),
        (
            "too long, nothing",
            |_| response("200 OK", "", &"x".repeat(6 << 20)),
            nothing,
            Err(("is longer", unknown)),
        ),
        ("hangs, ours", |_| HANG.to_vec(), ours, Ok(())),
        (
            "hangs, nothing",
            |_| HANG.to_vec(),
            nothing,
            Err(("no response of the object store", unknown)),
        ),
        ("refused", refused, ours, Err(("access denied", KNOWN))),
    ];
    for (name, complete, look, expected) in cases {
        let complete = *complete;
        let look = *look;
        let script = Script::start(move |request: &str, number: usize| match request {
            COMPLETE => complete(number),
            _ if request.starts_with("HEAD") && number > 4 => look(number),
            _ => stores(request, number),
        });
        // A short timeout is safe for a completion that hangs.
        let completion = Duration::from_millis(if name.starts_with("hangs") {
            200
        } else {
            60_000
        });
        let timeouts = RequestTimeouts {
            completion,
            ..RequestTimeouts::DEFAULT
        };
        let object = script.object_named("s3://lake/in.parquet", timeouts);
        let outcome = uploaded_small(&object, false);
        let is_aborted = script
            .seen()
            .last()
            .is_some_and(|seen| seen.request == ABORT);
        assert_eq!(is_aborted, outcome.is_err(), "{name}");
        match (outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err((text, note))) => {
                let error = check_secrets(&error);
                assert!(
                    error.contains(text) && error.contains(note),
                    "{name}: {error}"
                );
                assert_eq!(error.contains(unknown), *note == unknown, "{name}: {error}");
            }
            (outcome, _) => panic!("{name}: {outcome:?}"),
        }
    }
}

#[test]
fn an_object_that_is_replaced_is_known_by_its_marker() {
    for (marker, expected) in [
        (MARKER, None),
        ("0123456789abcdef0123456789abcdef", Some("upload is gone")),
    ] {
        let script = Script::start(move |request: &str, number: usize| match request {
            COMPLETE if number == 2 => Vec::new(),
            COMPLETE => refusal("404 Not Found", "NoSuchUpload"),
            _ if request.starts_with("HEAD") => head(Some(marker), 5),
            _ => stores(request, number),
        });
        match (uploaded_small(&script.object(), true), expected) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => {
                let error = check_secrets(&error);
                assert!(
                    error.contains(expected) && error.contains("is not known"),
                    "{error}"
                );
            }
            (outcome, _) => panic!("{outcome:?}"),
        }
    }
}

#[test]
fn a_key_that_is_named_like_an_error_is_none() {
    let script = Script::start(|request: &str, number: usize| match request {
        _ if request.starts_with("POST") && request.ends_with("uploadId=u1") => response(
            "200 OK",
            "",
            " <?xml version=\"1.0\"?>\n<CompleteMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Location>http://s3/lake/SlowDown/InternalError</Location><Key>SlowDown/InternalError</Key>\
             <ETag>&quot;all&quot;</ETag></CompleteMultipartUploadResult>",
        ),
        _ => stores(request, number),
    });
    let object = script.object_named("s3://lake/SlowDown/InternalError", RequestTimeouts::DEFAULT);
    uploaded_small(&object, false).expect("uploads");
    let seen = script.seen();
    assert_eq!(
        seen.iter()
            .filter(|seen| seen.request.ends_with("?uploadId=u1"))
            .count(),
        1,
        "{seen:?}"
    );
}

/// Runs a small upload against a server that stops the job when it gets a request that begins with
/// `at`.
fn stopped_at(
    at: &'static str,
    respond: Respond,
    stop: &JobStop,
) -> (Script, Result<(), JobError>) {
    let asked = stop.clone();
    let later = move |request: &str, number: usize| {
        if request.starts_with(at) {
            asked.request();
        }
        respond(request, number)
    };
    let script = Script::start_with(later, stores);
    let upload = || {
        let mut upload = S3Upload::start(&script.object(), true, stop)?;
        match upload.write(b"small") {
            Ok(()) => upload.finish(),
            Err(error) => Err(upload.discard(error)),
        }
    };
    let outcome = upload();
    (script, outcome)
}

#[test]
fn a_stalled_creation_tells_what_can_remain() {
    let stop = JobStop::with_timeout(Duration::from_millis(500));
    let asked = stop.clone();
    let hangs = move |_: &str, _: usize| {
        asked.request();
        HANG.to_vec()
    };
    let script = Script::start_with(stores, hangs);
    let error = S3Upload::start(&script.object(), true, &stop)
        .err()
        .expect("is stopped");
    let text = check_secrets(&error);
    assert!(
        text.contains("stopped; ")
            && text.contains("an upload of s3://lake/in.parquet without parts"),
        "{text}"
    );
    // A stopped job starts no upload.
    let error = S3Upload::start(&script.object(), true, &stop)
        .err()
        .expect("is stopped");
    assert!(
        matches!(error, JobError::Stopped) && script.seen().len() == 1,
        "{error}"
    );
}

#[test]
fn a_stop_is_heeded_until_the_completion_and_waits_for_it_then() {
    let hangs: Respond = |_, _| HANG.to_vec();
    let part_hangs: Respond = |request, number| match request {
        _ if request.starts_with("PUT") => HANG.to_vec(),
        _ => stores(request, number),
    };
    let completion_hangs: Respond = |request, number| match request {
        COMPLETE => HANG.to_vec(),
        _ => stores(request, number),
    };
    let lost: Respond = |request, number| match request {
        COMPLETE if number == 2 => Vec::new(),
        COMPLETE => refusal("404 Not Found", "NoSuchUpload"),
        _ if request.starts_with("HEAD") => head(Some(MARKER), 5),
        _ => stores(request, number),
    };
    const UNKNOWN: &str = "whether the object was made is not known";
    const LEFT: &str = "the parts of the upload u1";
    // The job is stopped during the request, and the deadline of stalled requests is short. Each
    // error contains all texts of its case.
    type Case = (
        &'static str,
        &'static str,
        Respond,
        bool,
        Result<(), &'static [&'static str]>,
    );
    let cases: &[Case] = &[
        ("part", "PUT", stores, false, Err(&["stopped"])),
        ("stalled part", "PUT", part_hangs, false, Err(&["stopped"])),
        (
            "stalled store",
            "PUT",
            hangs,
            false,
            Err(&[
                "stopped; ",
                LEFT,
                "did not respond after the job was stopped",
            ]),
        ),
        ("completion", COMPLETE, stores, true, Ok(())),
        ("lost completion", COMPLETE, lost, true, Ok(())),
        // The abort has a separate time limit.
        (
            "stalled completion",
            COMPLETE,
            completion_hangs,
            true,
            Err(&[UNKNOWN]),
        ),
    ];
    for (name, at, respond, completes, expected) in cases {
        let is_overdue = name.starts_with("stalled");
        let stop = if is_overdue {
            JobStop::with_timeout(Duration::from_millis(500))
        } else {
            JobStop::default()
        };
        let (script, outcome) = stopped_at(at, *respond, &stop);
        let has_completed = script.seen().iter().any(|seen| seen.request == COMPLETE);
        assert_eq!(has_completed, *completes, "{name}");
        match (outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(texts)) => {
                let text = check_secrets(&error);
                assert!(
                    texts.iter().all(|expected| text.contains(expected)),
                    "{name}: {text}"
                );
                assert_eq!(
                    matches!(error, JobError::Stopped),
                    texts == &["stopped"],
                    "{name}: {text}"
                );
            }
            (outcome, _) => panic!("{name}: {outcome:?}"),
        }
    }
}
