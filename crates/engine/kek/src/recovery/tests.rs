use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use zeroize::Zeroizing;

use super::*;

const SET: [u8; 16] = [0xa5; 16];
const SLOT: WrapSlot = WrapSlot {
    set: SET,
    root: [2; 16],
    number: 3,
};

fn root() -> RootBytes {
    Box::new(Zeroizing::new([7; 32]))
}

fn chosen(shares: &[Share], numbers: &[usize]) -> Vec<Share> {
    numbers
        .iter()
        .map(|number| shares[number - 1].clone())
        .collect()
}

#[test]
fn shares_of_a_recovery_key_unwrap_what_its_public_key_wrapped() {
    let key = RecoveryKey::generate(SET).unwrap();
    let public = RecoveryPublicKey::parse(&key.public().unwrap().to_text()).unwrap();
    assert_eq!((public.id(), public.set()), (key.id(), &SET));
    let wrapped = public.wrap(&root(), &SLOT).unwrap();
    assert_eq!(recovery_key_of(&wrapped), Some(key.id()));
    let shares = key.split(3, 5).unwrap();
    for numbers in [&[1, 2, 3][..], &[5, 1, 4], &[1, 2, 3, 4, 5]] {
        let joined = RecoveryKey::join(&chosen(&shares, numbers)).unwrap();
        assert_eq!((joined.id(), joined.set()), (key.id(), &SET));
        assert_eq!(joined.unwrap(&wrapped, &SLOT), Ok(root()), "{numbers:?}");
    }
    // Another split of the same key opens the same copies, and shares of both splits do not mix.
    let again = RecoveryKey::join(&shares[..3])
        .unwrap()
        .split(2, 2)
        .unwrap();
    assert_eq!(
        RecoveryKey::join(&again).unwrap().unwrap(&wrapped, &SLOT),
        Ok(root())
    );
    assert_eq!(
        RecoveryKey::join(&shares[1..4])
            .unwrap()
            .unwrap(&wrapped, &SLOT),
        Ok(root()),
        "old shares still do"
    );
    let mixed = [shares[0].clone(), shares[1].clone(), again[1].clone()];
    assert_eq!(
        RecoveryKey::join(&mixed).unwrap_err(),
        JoinError::OtherSplit { position: 3 }.into()
    );
}

#[test]
fn shares_that_are_too_few_doubled_foreign_or_false_give_no_recovery_key() {
    let shares = RecoveryKey::generate(SET).unwrap().split(3, 5).unwrap();
    let foreign_set = RecoveryKey::generate([1; 16]).unwrap().split(3, 5).unwrap();
    let foreign_key = RecoveryKey::generate(SET).unwrap().split(3, 5).unwrap();
    let with = |other: &Share| vec![shares[0].clone(), shares[1].clone(), other.clone()];
    // Shares of another secret under the names of the key: the checksum is right, and the
    // polynomial is another.
    let names = (*shares[0].set(), *shares[0].key());
    let false_shares = shares::split(&[9; 32], names.0, names.1, 3, 5).unwrap();
    let cases: [(&str, Vec<Share>, RecoveryError); 6] = [
        (
            "none",
            vec![],
            JoinError::TooFew {
                given: 0,
                threshold: 0,
            }
            .into(),
        ),
        (
            "one below the threshold",
            shares[..2].to_vec(),
            JoinError::TooFew {
                given: 2,
                threshold: 3,
            }
            .into(),
        ),
        (
            "doubled",
            chosen(&shares, &[1, 2, 2]),
            JoinError::DuplicateIndex { index: 2 }.into(),
        ),
        (
            "another store",
            with(&foreign_set[2]),
            JoinError::OtherKey { position: 3 }.into(),
        ),
        (
            "another key",
            with(&foreign_key[2]),
            JoinError::OtherKey { position: 3 }.into(),
        ),
        (
            "another secret",
            false_shares[..3].to_vec(),
            RecoveryError::OtherKey,
        ),
    ];
    for (name, given, error) in cases {
        assert_eq!(RecoveryKey::join(&given).unwrap_err(), error, "{name}");
    }
}

#[test]
fn a_copy_opens_in_its_slot_with_its_key_alone() {
    let (key, other) = (
        RecoveryKey::generate(SET).unwrap(),
        RecoveryKey::generate(SET).unwrap(),
    );
    let wrapped = key.public().unwrap().wrap(&root(), &SLOT).unwrap();
    assert_eq!(other.unwrap(&wrapped, &SLOT), Err(RecoveryError::OtherCopy));
    let moved = [
        (WrapSlot { number: 4, ..SLOT }, RecoveryError::DoesNotOpen),
        (
            WrapSlot {
                root: [3; 16],
                ..SLOT
            },
            RecoveryError::DoesNotOpen,
        ),
        (
            WrapSlot {
                set: [1; 16],
                ..SLOT
            },
            RecoveryError::OtherCopy,
        ),
    ];
    for (slot, error) in moved {
        assert_eq!(key.unwrap(&wrapped, &slot), Err(error), "{slot:?}");
    }
    for (at, error) in [
        (0, RecoveryError::DoesNotOpen),
        (1, RecoveryError::OtherCopy),
        (6, RecoveryError::DoesNotOpen),
        (COPY_BYTES - 1, RecoveryError::DoesNotOpen),
    ] {
        let mut altered = wrapped.clone();
        altered[at] ^= 1;
        assert_eq!(key.unwrap(&altered, &SLOT), Err(error), "byte {at}");
    }
    // The id in the copy is no secret and not authenticated: the key decides.
    let mut renamed = wrapped.clone();
    renamed[1..6].copy_from_slice(other.id().as_bytes());
    assert_eq!(
        other.unwrap(&renamed, &SLOT),
        Err(RecoveryError::DoesNotOpen)
    );
    assert_eq!(
        key.unwrap(&wrapped[1..], &SLOT),
        Err(RecoveryError::DoesNotOpen)
    );
}

#[test]
fn an_altered_public_key_is_rejected() {
    let text = RecoveryKey::generate(SET)
        .unwrap()
        .public()
        .unwrap()
        .to_text();
    assert_eq!(text.len(), 5 + 1_700);
    assert!(RecoveryPublicKey::parse(&format!("\n {text}\n")).is_ok());
    let mut bytes = BASE64URL_NOPAD.decode(&text.as_bytes()[5..]).unwrap();
    let changed = |at: usize, bytes: &mut Vec<u8>| {
        bytes[at] ^= 1;
        let sum = checksum(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(&sum);
        let text = PREFIX.to_owned() + &BASE64URL_NOPAD.encode(bytes);
        bytes[at] ^= 1;
        RecoveryPublicKey::parse(&text).map(|key| key.id())
    };
    assert_eq!(changed(0, &mut bytes), Err(PublicKeyError::Version(0)));
    // Key id, ML-KEM key, point.
    for at in [17, 22, BODY_BYTES - 1] {
        assert_eq!(
            changed(at, &mut bytes),
            Err(PublicKeyError::Key),
            "byte {at}"
        );
    }
    let letter = if &text[100..101] == "A" { "B" } else { "A" };
    let cases = [
        (
            text[..100].to_owned() + letter + &text[101..],
            PublicKeyError::Checksum,
        ),
        (text[1..].to_owned(), PublicKeyError::Form),
        (text[..text.len() - 1].to_owned(), PublicKeyError::Form),
        (text.clone() + "A", PublicKeyError::Form),
        (text.replacen("swr1", "sws1", 1), PublicKeyError::Form),
        (String::new(), PublicKeyError::Form),
    ];
    for (text, error) in cases {
        assert_eq!(RecoveryPublicKey::parse(&text).unwrap_err(), error);
    }
}

#[tokio::test]
async fn a_provider_of_shares_wraps_and_never_unwraps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recovery.pub");
    let provider = SharesProvider::new(path.clone());
    assert!(provider.kind().needs_holders());
    assert!(matches!(
        provider.wrap(&root(), &SLOT).await,
        Err(ProviderError::NotFound(_))
    ));
    let protect = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    fs::write(&path, "swr1:AAAA").unwrap();
    protect(0o644);
    let error = provider.wrap(&root(), &SLOT).await.unwrap_err();
    assert!(
        matches!(&error, ProviderError::Settings(text) if text.contains("recovery.pub: must be `swr1:`")),
        "{error}"
    );
    let key = RecoveryKey::generate(SET).unwrap();
    fs::write(&path, key.public().unwrap().to_text() + "\n").unwrap();
    for mode in [0o664, 0o646] {
        protect(mode);
        let error = provider.wrap(&root(), &SLOT).await.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, ProviderError::Settings(_))
                && text.contains("other users can change it"),
            "{text}"
        );
    }
    protect(0o644);
    let wrapped = provider.wrap(&root(), &SLOT).await.unwrap();
    assert_eq!(key.unwrap(&wrapped, &SLOT), Ok(root()));
    let error = provider.unwrap(&wrapped, &SLOT).await.unwrap_err();
    assert_eq!(error, ProviderError::NeedsHolders);
    assert!(error.to_string().contains("`sealwire root recover`"));
    assert!(matches!(
        provider.unwrap(&[1, 2], &SLOT).await,
        Err(ProviderError::DoesNotUnwrap(_))
    ));
    let foreign = provider
        .wrap(
            &root(),
            &WrapSlot {
                set: [1; 16],
                ..SLOT
            },
        )
        .await
        .unwrap_err();
    assert!(
        matches!(&foreign, ProviderError::Settings(text) if text.contains("another store")),
        "{foreign}"
    );
}

#[test]
fn debug_texts_and_errors_contain_no_recovery_secret() {
    let key = RecoveryKey::generate(SET).unwrap();
    let shares = key.split(2, 3).unwrap();
    let shown = format!("{key:?} {:?} {shares:?}", key.public().unwrap());
    assert!(
        shown.starts_with(&format!("RecoveryKey({})", key.id())),
        "{shown}"
    );
    let seed = data_encoding::HEXLOWER.encode(key.key.seed().expose());
    for secret in shares
        .iter()
        .map(|share| share.to_text()[50..].to_owned())
        .chain([seed])
    {
        assert!(!shown.contains(&secret));
    }
}
