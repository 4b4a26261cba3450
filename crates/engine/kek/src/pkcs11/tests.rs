//! Tests with SoftHSM run in child processes, because SoftHSM reads its configuration from the
//! environment when it is initialized, and because a process has one context per module.

use std::cell::RefCell;
use std::env;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Function};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, ObjectClass};
use cryptoki::session::{Session, UserType};
use cryptoki::types::{AuthPin, Ulong};
use sealwire_testkit::child;
use sealwire_testkit::softhsm::{CONFIGURATION, SoftHsm};

use super::*;

const PIN: &str = "correct-pin";
const TOKEN: &str = "sealwire";
const SLOT: WrapSlot = WrapSlot {
    set: [1; 16],
    root: [2; 16],
    number: 3,
};

/// Name the case, the module and the folder to the child process.
const CASE: &str = "SEALWIRE_TEST_PKCS11_CASE";
const MODULE: &str = "SEALWIRE_TEST_PKCS11_MODULE";
const FOLDER: &str = "SEALWIRE_TEST_PKCS11_FOLDER";

/// Runs a case in a child process, with tokens of these labels.
fn run(case: &str, tokens: &[&str]) {
    let hsm = SoftHsm::new().unwrap_or_else(|error| panic!("{error}"));
    for token in tokens {
        hsm.add_token(token, PIN)
            .unwrap_or_else(|error| panic!("{error}"));
    }
    let output = child::command("pkcs11::tests::child_process")
        .env(CASE, case)
        .env(MODULE, hsm.module())
        .env(FOLDER, hsm.folder())
        .env(CONFIGURATION, hsm.configuration())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{case}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The child process of the tests here; passes at once if none of them started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(case) = env::var(CASE) else { return };
    match case.as_str() {
        "copies" => copies().await,
        "settings" => settings().await,
        "wrong pin" => wrong_pin().await,
        "many callers" => many_callers().await,
        "lost sessions" => lost_sessions(),
        "unsafe keys" => unsafe_keys(),
        "equal tokens" => equal_tokens(),
        case => panic!("no such case: {case}"),
    }
}

fn folder() -> PathBuf {
    env::var_os(FOLDER).unwrap().into()
}

fn write(name: &str, content: &str, mode: u32) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Settings with the right PIN.
fn options(key: &str) -> Pkcs11Options {
    Pkcs11Options {
        module: env::var_os(MODULE).unwrap().into(),
        token: Some(TOKEN.into()),
        serial: None,
        key: key.into(),
        key_id: None,
        pin_file: write("pin", &format!("{PIN}\n"), 0o600),
    }
}

/// A provider that waits as long as a slow machine needs.
fn provider(options: Pkcs11Options) -> Pkcs11Provider {
    Pkcs11Provider {
        time_limit: child::HANG,
        ..Pkcs11Provider::new(options)
    }
}

fn root() -> RootBytes {
    Box::new(zeroize::Zeroizing::new([7; 32]))
}

fn pin(text: &str) -> AuthPin {
    AuthPin::new(text.into())
}

#[test]
fn a_copy_unwraps_in_its_slot_alone() {
    run("copies", &[TOKEN]);
}

async fn copies() {
    let first = provider(options("first"));
    first.generate_key().await.unwrap();
    first.check().await.unwrap();
    let again = first.generate_key().await;
    assert!(
        matches!(again, Err(ProviderError::Settings(_))),
        "{again:?}"
    );

    let copy = first.wrap(&root(), &SLOT).await.unwrap();
    assert_eq!(copy.len(), 60);
    assert_ne!(
        copy,
        first.wrap(&root(), &SLOT).await.unwrap(),
        "nonces differ"
    );
    assert_eq!(first.unwrap(&copy, &SLOT).await, Ok(root()));

    for other in [
        WrapSlot {
            set: [9; 16],
            ..SLOT
        },
        WrapSlot {
            root: [9; 16],
            ..SLOT
        },
        WrapSlot { number: 4, ..SLOT },
    ] {
        let result = first.unwrap(&copy, &other).await;
        assert!(
            matches!(result, Err(ProviderError::DoesNotUnwrap(_))),
            "{other:?}: {result:?}"
        );
    }
    let mut altered: Vec<Vec<u8>> = (0..copy.len())
        .map(|at| {
            let mut copy = copy.clone();
            copy[at] ^= 1 << (at % 8);
            copy
        })
        .collect();
    altered.extend([
        vec![],
        copy[1..].to_vec(),
        copy[..copy.len() - 1].to_vec(),
        [&copy[..], &[0]].concat(),
    ]);
    for copy in altered {
        let result = first.unwrap(&copy, &SLOT).await;
        assert!(
            matches!(result, Err(ProviderError::DoesNotUnwrap(_))),
            "{copy:?}: {result:?}"
        );
    }
    assert_eq!(first.unwrap(&copy, &SLOT).await, Ok(root()));

    let second = provider(Pkcs11Options {
        key_id: Some(vec![1, 2]),
        ..options("second")
    });
    second.generate_key().await.unwrap();
    let result = second.unwrap(&copy, &SLOT).await;
    assert!(
        matches!(result, Err(ProviderError::DoesNotUnwrap(_))),
        "another key: {result:?}"
    );
    // The id alone tells the keys apart.
    let third = provider(Pkcs11Options {
        key_id: Some(vec![3]),
        ..options("second")
    });
    third.generate_key().await.unwrap();
    third.check().await.unwrap();
    let ambiguous = provider(options("second")).check().await;
    assert!(
        matches!(ambiguous, Err(ProviderError::Settings(_))),
        "{ambiguous:?}"
    );
}

#[test]
fn settings_that_fit_nothing_are_told_apart() {
    run("settings", &[TOKEN]);
}

async fn settings() {
    type Expected = fn(&ProviderError) -> bool;
    let not_found: Expected = |error| matches!(error, ProviderError::NotFound(_));
    let settings: Expected = |error| matches!(error, ProviderError::Settings(_));
    let good = options("kek");
    provider(good.clone()).generate_key().await.unwrap();
    let libc = fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .find_map(|line| {
            line.split_whitespace()
                .last()
                .filter(|path| path.contains("libc.so"))
                .map(PathBuf::from)
        })
        .expect("this process uses a C library");
    let cases: Vec<(&str, Pkcs11Options, Expected)> = vec![
        (
            "no module",
            Pkcs11Options {
                module: folder().join("missing.so"),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no library",
            Pkcs11Options {
                module: write("text.so", "x", 0o600),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no PKCS #11",
            Pkcs11Options {
                module: libc,
                ..good.clone()
            },
            settings,
        ),
        (
            "no token",
            Pkcs11Options {
                token: Some("other".into()),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no serial",
            Pkcs11Options {
                serial: Some("0".into()),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no label",
            Pkcs11Options {
                token: None,
                serial: Some("0".into()),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no key",
            Pkcs11Options {
                key: "other".into(),
                ..good.clone()
            },
            not_found,
        ),
        (
            "no id",
            Pkcs11Options {
                key_id: Some(vec![1]),
                ..good.clone()
            },
            not_found,
        ),
    ];
    for (case, options, expected) in cases {
        let error = provider(options).check().await.unwrap_err();
        assert!(expected(&error), "{case}: {error:?}");
        let names_token = error.to_string().contains("token ");
        assert_eq!(
            names_token,
            !matches!(case, "no module" | "no library" | "no PKCS #11"),
            "{case}: {error}"
        );
    }
}

#[test]
fn a_rejected_pin_is_not_tried_again() {
    run("wrong pin", &[TOKEN]);
}

async fn wrong_pin() {
    let good = options("kek");
    for (content, mode) in [
        ("", 0o600),
        ("\n", 0o600),
        ("correct-pin", 0o644),
        (&*"9".repeat(256), 0o600),
    ] {
        let pin_file = write("other-pin", content, mode);
        let error = provider(Pkcs11Options {
            pin_file,
            ..good.clone()
        })
        .check()
        .await
        .unwrap_err();
        assert!(
            matches!(error, ProviderError::Settings(_)),
            "{content:?} {mode:o}: {error:?}"
        );
    }
    let missing = Pkcs11Options {
        pin_file: folder().join("missing"),
        ..good.clone()
    };
    assert!(matches!(
        provider(missing).check().await,
        Err(ProviderError::NotFound(_))
    ));

    let wrong = Pkcs11Options {
        pin_file: write("wrong-pin", "wrong-pin", 0o600),
        ..good.clone()
    };
    let denied = |error: ProviderError, text: &str| {
        assert!(matches!(error, ProviderError::Denied(_)), "{error:?}");
        let shown = error.to_string();
        let [file, rest] = [wrong.pin_file.display().to_string(), shown.clone()];
        assert!(
            rest.contains(text) && !rest.replace(&file, "").contains("wrong-pin"),
            "{shown}"
        );
    };
    denied(
        provider(wrong.clone()).check().await.unwrap_err(),
        "it rejected the PIN",
    );
    // From here the token would take the PIN: another login would succeed.
    change_pin(&good, PIN, "wrong-pin").await;
    denied(
        provider(wrong.clone()).check().await.unwrap_err(),
        "not tried again",
    );
    denied(
        provider(wrong.clone())
            .wrap(&root(), &SLOT)
            .await
            .unwrap_err(),
        "not tried again",
    );
    change_pin(&good, "wrong-pin", PIN).await;

    // A login can fail by other codes than those of a wrong PIN: this token has no PIN yet.
    let fresh = Pkcs11Options {
        token: Some("fresh".into()),
        ..good.clone()
    };
    provider(good.clone())
        .call(|module| {
            let slots = module.context.get_all_slots().unwrap();
            let free = slots.into_iter().find(|slot| {
                !module
                    .context
                    .get_token_info(*slot)
                    .unwrap()
                    .token_initialized()
            });
            module
                .context
                .init_token(free.unwrap(), &pin("security-officer"), "fresh")
                .unwrap();
            Ok(())
        })
        .await
        .unwrap();
    let failed = provider(fresh.clone()).check().await.unwrap_err();
    assert!(
        failed.to_string().contains("UserPinNotInitialized"),
        "{failed:?}"
    );
    let again = provider(fresh).check().await.unwrap_err();
    assert!(again.to_string().contains("not tried again"), "{again:?}");

    // Another PIN in the same file is tried.
    write("wrong-pin", PIN, 0o600);
    provider(wrong.clone()).generate_key().await.unwrap();
    provider(good).check().await.unwrap();
}

/// Changes the user's PIN on the module's own thread.
async fn change_pin(options: &Pkcs11Options, old: &str, new: &str) {
    let (old, new) = (pin(old), pin(new));
    let change = move |module: &mut Module| {
        let slot = module.context.get_slots_with_initialized_token().unwrap()[0];
        let session = module.context.open_rw_session(slot).unwrap();
        session.login(UserType::User, Some(&old)).unwrap();
        session.set_pin(&old, &new).unwrap();
        session.logout().unwrap();
        Ok(())
    };
    provider(options.clone()).call(change).await.unwrap();
}

#[test]
fn callers_of_one_module_share_its_thread() {
    run("many callers", &[TOKEN, "second"]);
}

async fn many_callers() {
    // A copy, because the folder can be on another file system than the module.
    let [module, link, hard_link] =
        ["copy.so", "link.so", "hard.so"].map(|name| folder().join(name));
    fs::copy(env::var_os(MODULE).unwrap(), &module).unwrap();
    symlink(&module, &link).unwrap();
    fs::hard_link(&module, &hard_link).unwrap();
    let providers = [
        provider(Pkcs11Options {
            module: module.clone(),
            ..options("a")
        }),
        provider(Pkcs11Options {
            module: link,
            ..options("b")
        }),
        provider(Pkcs11Options {
            module: hard_link,
            ..options("c")
        }),
        provider(Pkcs11Options {
            module: module.clone(),
            token: Some("second".into()),
            ..options("a")
        }),
    ];
    for provider in &providers {
        provider.generate_key().await.unwrap();
    }
    // The file is found once.
    fs::remove_file(&module).unwrap();
    let session = async || {
        let options = Arc::clone(&providers[0].options);
        providers[0]
            .call(move |module| Ok(module.logged_in_session(&options).unwrap().handle()))
            .await
            .unwrap()
    };
    let before = session().await;
    assert_eq!(before, session().await);
    let panicked = providers[0]
        .call(|_| -> Result<(), ProviderError> { panic!("a test") })
        .await;
    assert!(
        matches!(&panicked, Err(ProviderError::Unavailable(text)) if text.contains("panicked")),
        "{panicked:?}"
    );
    assert_ne!(before, session().await, "a panic drops the sessions");
    let tasks: Vec<_> = (0..QUEUE_MAX as u32)
        .map(|task| {
            let provider = providers[task as usize % providers.len()].clone();
            tokio::spawn(async move {
                for number in 0..10 {
                    let slot = WrapSlot {
                        number: task * 100 + number,
                        ..SLOT
                    };
                    let copy = provider.wrap(&root(), &slot).await.unwrap();
                    assert_eq!(provider.unwrap(&copy, &slot).await, Ok(root()));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let threads = fs::read_dir("/proc/self/task").unwrap().filter(|task| {
        let name = fs::read_to_string(task.as_ref().unwrap().path().join("comm")).unwrap();
        name.trim_end() == "pkcs11"
    });
    assert_eq!(
        threads.count(),
        1,
        "links lead to the same module, and a panic ends no thread"
    );

    // The module is not even loaded for a caller that has gone.
    let [hasty, patient] = [Duration::ZERO, child::HANG];
    for (time_limit, loaded) in [(hasty, false), (patient, true)] {
        let (queue, jobs) = mpsc::sync_channel(1);
        let provider = with_queue(
            Pkcs11Provider {
                time_limit,
                ..providers[0].clone()
            },
            queue,
        );
        let call = tokio::spawn(async move { provider.call(|_| Ok(())).await });
        let mut thread = ModuleThread {
            path: env::var_os(MODULE).unwrap().into(),
            module: None,
        };
        if loaded {
            thread.run(&jobs);
            assert_eq!(call.await.unwrap(), Ok(()));
        } else {
            assert!(matches!(
                call.await.unwrap(),
                Err(ProviderError::Unavailable(_))
            ));
            thread.run(&jobs);
        }
        assert_eq!(thread.module.is_some(), loaded);
    }
}

#[test]
fn a_lost_session_is_opened_again() {
    run("lost sessions", &[TOKEN]);
}

fn lost_sessions() {
    let (options, aad) = (options("kek"), SLOT.aad());
    let mut module = Module::load(&options.module).unwrap();
    module.generate_key(&options).unwrap();
    let copy = module.wrap(&options, &root(), &aad).unwrap();
    type Loss = fn(&mut Module, &Pkcs11Options);
    let losses: [(&str, Loss); 4] = [
        ("nothing", |_, _| {}),
        ("logged out", |module, options| {
            module.logged_in_session(options).unwrap().logout().unwrap()
        }),
        ("not initialized", |module, _| {
            module.context.clone().finalize().unwrap()
        }),
        ("initialized again", |module, _| {
            module.context.clone().finalize().unwrap();
            module
                .context
                .initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))
                .unwrap();
        }),
    ];
    for (loss, lose) in losses {
        lose(&mut module, &options);
        assert_eq!(module.unwrap(&options, &copy, &aad), Ok(root()), "{loss}");
        lose(&mut module, &options);
        let copy = module.wrap(&options, &root(), &aad).unwrap();
        assert_eq!(module.unwrap(&options, &copy, &aad), Ok(root()), "{loss}");
    }
    // A key that was made before the session was lost is the key that was asked for.
    let (first, made) = (
        RefCell::new(true),
        Pkcs11Options {
            key: "made".into(),
            ..options.clone()
        },
    );
    let lost_once = |_: &Session| match first.replace(false) {
        true => Err(Error::Pkcs11(RvError::SessionClosed, Function::Decrypt).into()),
        false => Ok(()),
    };
    assert_eq!(module.generate_key_and(&made, lost_once), Ok(()));
    module.check(&made).unwrap();
    // A session that is lost again at once is an error, not a loop.
    let sessions = RefCell::new(Vec::new());
    let result: Result<(), _> = module.with_session(&options, |session| {
        sessions.borrow_mut().push(session.handle());
        Err(Error::Pkcs11(RvError::SessionClosed, Function::Encrypt).into())
    });
    assert!(
        matches!(result, Err(ProviderError::Unavailable(_))),
        "{result:?}"
    );
    let sessions = sessions.into_inner();
    assert_eq!(sessions.len(), 2);
    assert_ne!(sessions[0], sessions[1], "the second is new");
    assert_eq!(module.unwrap(&options, &copy, &aad), Ok(root()));
}

#[test]
fn keys_that_can_leave_the_token_are_rejected() {
    run("unsafe keys", &[TOKEN]);
}

fn unsafe_keys() {
    let generate = |module: &mut Module, name: &str, more: &[Attribute]| {
        let info = module
            .logged_in_session(&options(name))
            .unwrap()
            .get_session_info()
            .unwrap();
        let session = module.context.open_rw_session(info.slot_id()).unwrap();
        let mut attributes = vec![Attribute::Token(true), Attribute::Label(name.into())];
        attributes.extend_from_slice(more);
        session
            .generate_key(&Mechanism::AesKeyGen, &attributes)
            .unwrap();
    };
    let both = [Attribute::Encrypt(true), Attribute::Decrypt(true)];
    let key = |bytes: u64, sensitive: bool, extractable: bool| {
        let mut attributes = both.to_vec();
        attributes.extend([
            Attribute::ValueLen(Ulong::from(bytes)),
            Attribute::Sensitive(sensitive),
            Attribute::Extractable(extractable),
        ]);
        attributes
    };
    let mut module = Module::load(&options("").module).unwrap();
    for (name, template, problem) in [
        ("good", key(32, true, false), None),
        (
            "extractable",
            key(32, true, true),
            Some("must be sensitive and must not be extractable"),
        ),
        (
            "readable",
            key(32, false, false),
            Some("must be sensitive and must not be extractable"),
        ),
        ("short", key(16, true, false), Some("must be of 32 bytes")),
    ] {
        generate(&mut module, name, &template);
        let result = module.wrap(&options(name), &root(), &SLOT.aad());
        match (problem, result) {
            (None, Ok(_)) => {}
            (Some(problem), Err(ProviderError::Settings(text))) => {
                assert!(text.contains(problem), "{name}: {text}")
            }
            (_, result) => panic!("{name}: {result:?}"),
        }
    }
    // A generated key is as safe as it must be.
    let options = options("generated");
    module.generate_key(&options).unwrap();
    let session = module.logged_in_session(&options).unwrap();
    let [key] = session
        .find_objects(&[Attribute::Label("generated".into())])
        .unwrap()[..]
    else {
        panic!("one key")
    };
    let expected = [
        (
            AttributeType::Class,
            Attribute::Class(ObjectClass::SECRET_KEY),
        ),
        (AttributeType::Token, Attribute::Token(true)),
        (AttributeType::Private, Attribute::Private(true)),
        (AttributeType::Sensitive, Attribute::Sensitive(true)),
        (
            AttributeType::AlwaysSensitive,
            Attribute::AlwaysSensitive(true),
        ),
        (AttributeType::Extractable, Attribute::Extractable(false)),
        (
            AttributeType::NeverExtractable,
            Attribute::NeverExtractable(true),
        ),
        (AttributeType::Local, Attribute::Local(true)),
        (AttributeType::Wrap, Attribute::Wrap(false)),
        (AttributeType::Unwrap, Attribute::Unwrap(false)),
        (
            AttributeType::ValueLen,
            Attribute::ValueLen(Ulong::from(32)),
        ),
    ];
    for (kind, value) in expected {
        assert_eq!(session.get_attributes(key, &[kind]).unwrap(), [value]);
    }
    assert_eq!(
        session
            .get_attributes(key, &[AttributeType::Value])
            .unwrap(),
        [],
        "the value cannot be read"
    );
}

#[test]
fn a_serial_number_tells_tokens_apart() {
    run("equal tokens", &[TOKEN, TOKEN]);
}

fn equal_tokens() {
    let both = options("kek");
    let mut module = Module::load(&both.module).unwrap();
    let ambiguous = module.check(&both);
    assert!(
        matches!(ambiguous, Err(ProviderError::Settings(_))),
        "{ambiguous:?}"
    );
    let serials: Vec<String> = module
        .context
        .get_slots_with_initialized_token()
        .unwrap()
        .into_iter()
        .map(|slot| {
            module
                .context
                .get_token_info(slot)
                .unwrap()
                .serial_number()
                .to_owned()
        })
        .collect();
    let [first, second] = [0, 1].map(|at| Pkcs11Options {
        serial: Some(serials[at].clone()),
        ..both.clone()
    });
    module.generate_key(&first).unwrap();
    let copy = module.wrap(&first, &root(), &SLOT.aad()).unwrap();
    assert_eq!(
        module.unwrap(
            &Pkcs11Options {
                token: None,
                ..first
            },
            &copy,
            &SLOT.aad()
        ),
        Ok(root())
    );
    assert!(matches!(
        module.unwrap(&second, &copy, &SLOT.aad()),
        Err(ProviderError::NotFound(_))
    ));
}

/// Returns the provider with another queue than the module's.
fn with_queue(provider: Pkcs11Provider, queue: ModuleQueue) -> Pkcs11Provider {
    Pkcs11Provider {
        queue: Arc::new(OnceCell::new_with(Some(queue))),
        ..provider
    }
}

/// A provider of a module that is never loaded.
fn stuck() -> Pkcs11Provider {
    Pkcs11Provider::new(Pkcs11Options {
        module: "/nowhere.so".into(),
        token: Some(TOKEN.into()),
        serial: None,
        key: "kek".into(),
        key_id: None,
        pin_file: "/nowhere".into(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_module_that_hangs_costs_its_time_limit_and_a_bounded_queue() {
    let (queue, jobs) = mpsc::sync_channel(QUEUE_MAX);
    let provider = with_queue(stuck(), queue);
    for _ in 0..QUEUE_MAX {
        let result = provider.call(|_| Ok(())).await;
        assert_eq!(
            result,
            Err(ProviderError::Unavailable(
                "module /nowhere.so: no answer within 5 seconds".into()
            ))
        );
    }
    let result = provider.call(|_| Ok(())).await;
    assert_eq!(
        result,
        Err(ProviderError::Unavailable(
            "module /nowhere.so: 16 calls wait already".into()
        ))
    );
    drop(jobs);
    let result = provider.call(|_| Ok(())).await;
    assert!(matches!(result, Err(ProviderError::Unavailable(text)) if text.contains("restart")));
}

#[tokio::test(start_paused = true)]
async fn a_module_file_that_hangs_costs_the_time_limit() {
    let provider = stuck();
    let _permit = provider.reader.block();
    let result = provider.check().await;
    assert!(
        matches!(&result, Err(ProviderError::Unavailable(text)) if text.contains("5 seconds")),
        "{result:?}"
    );
}

#[test]
fn a_thread_survives_a_panic() {
    let (queue, jobs) = mpsc::sync_channel::<ModuleJob>(2);
    let (ran, has_run) = mpsc::channel();
    queue.send(Box::new(|_| panic!("a test"))).unwrap();
    queue
        .send(Box::new(move |_| ran.send(()).unwrap()))
        .unwrap();
    drop(queue);
    ModuleThread {
        path: "/nowhere.so".into(),
        module: None,
    }
    .run(&jobs);
    assert!(has_run.try_recv().is_ok());
}

/// In a process of its own: no other call can begin afterwards.
#[test]
fn the_end_of_the_process_waits_for_a_call_that_runs() {
    const CHILD: &str = "SEALWIRE_TEST_END_OF_CALLS";
    if env::var_os(CHILD).is_none() {
        let name = "pkcs11::tests::the_end_of_the_process_waits_for_a_call_that_runs";
        let mut child = std::process::Command::new(env::current_exe().unwrap());
        let output = child
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let (queue, jobs) = mpsc::sync_channel::<ModuleJob>(2);
    let (begun, has_begun) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_ended = Arc::clone(&ended);
    queue
        .send(Box::new(move |_| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            ended.store(true, std::sync::atomic::Ordering::SeqCst);
        }))
        .unwrap();
    let (ran, has_run) = mpsc::channel();
    queue
        .send(Box::new(move |_| ran.send(()).unwrap()))
        .unwrap();
    drop(queue);
    let module = thread::spawn(move || {
        ModuleThread {
            path: "/nowhere.so".into(),
            module: None,
        }
        .run(&jobs)
    });
    has_begun.recv().unwrap();
    let ending = thread::spawn(end_calls);
    while !CALLS.lock().unwrap().is_shutting_down {
        thread::yield_now();
    }
    assert!(!ending.is_finished());
    go_on.send(()).unwrap();
    ending.join().unwrap();
    assert!(
        is_ended.load(std::sync::atomic::Ordering::SeqCst),
        "the call was waited for"
    );
    module.join().unwrap();
    assert!(has_run.try_recv().is_err(), "no other call began");
}

#[tokio::test]
async fn debug_output_has_no_pin() {
    let shown = format!("{:?}", stuck());
    assert!(
        shown.contains("/nowhere.so") && shown.len() < 300,
        "{shown}"
    );
}
