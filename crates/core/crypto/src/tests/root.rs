//! Root keys: derivations, and the audit secret that outlives them.

use zeroize::Zeroizing;

use super::{hex, unhex};
use crate::{Curve, Error, Kek, KeyPair, RootKey};

const SET: [u8; 16] = [
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
];

fn counting() -> RootKey {
    RootKey::from_bytes(Zeroizing::new(std::array::from_fn(|at| {
        u8::try_from(at).unwrap()
    })))
}

fn secret(byte: u8) -> Zeroizing<[u8; 32]> {
    Zeroizing::new([byte; 32])
}

#[test]
fn a_root_key_gives_the_id_and_the_wrap_key_of_a_vector() {
    // Computed with Python: HMAC-SHA-256 under the bytes 00 to 1f, of label, set and the byte 01.
    assert_eq!(
        hex(&counting().id(&SET).unwrap()),
        "89c8a8d55d2384e13328e06b4e234799"
    );
    let wrap_key = unhex("edbb98a4c540e3d455e43ce7e7593cba2f0f7d9718da819176f5742531574d45");
    let from_vector = Kek::new(&Zeroizing::new(wrap_key.try_into().unwrap())).unwrap();
    let scalar = KeyPair::generate(Curve::P256).unwrap().scalar().unwrap();
    let wrapped = counting()
        .kek(&SET, secret(1))
        .unwrap()
        .wrap(&scalar, b"shop/1")
        .unwrap();
    assert_eq!(
        from_vector.unwrap(&wrapped, b"shop/1").unwrap().expose(),
        scalar.expose()
    );
}

#[test]
fn another_root_key_or_set_gives_another_id_and_kek() {
    let (root, other) = (RootKey::generate().unwrap(), RootKey::generate().unwrap());
    let other_set = [9; 16];
    let again = RootKey::from_bytes(root.expose().clone());
    assert_eq!(again.id(&SET).unwrap(), root.id(&SET).unwrap());
    let wrapped = root
        .kek(&SET, secret(1))
        .unwrap()
        .wrap_secret(&[7; 32], b"shop")
        .unwrap();
    assert_eq!(
        *again
            .kek(&SET, secret(2))
            .unwrap()
            .unwrap_secret(&wrapped, b"shop")
            .unwrap(),
        [7; 32]
    );
    for (root_key, set) in [(&other, &SET), (&root, &other_set), (&other, &other_set)] {
        assert_ne!(root_key.id(set).unwrap(), root.id(&SET).unwrap());
        let kek = root_key.kek(set, secret(1)).unwrap();
        assert_eq!(
            kek.unwrap_secret(&wrapped, b"shop").err(),
            Some(Error::Unwrap)
        );
    }
}

#[test]
fn an_audit_secret_is_carried_from_root_key_to_root_key() {
    let (first, second) = (RootKey::generate().unwrap(), RootKey::generate().unwrap());
    let plain = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
    let kek = first.kek(&SET, plain.audit_secret().clone()).unwrap();
    let wrapped = kek.wrap_audit_secret(&SET).unwrap();
    let opened = first.kek_with_wrapped_audit(&SET, &wrapped).unwrap();
    assert_eq!(opened.audit_secret(), plain.audit_secret());
    let wrapped_again = second
        .kek(&SET, opened.audit_secret().clone())
        .unwrap()
        .wrap_audit_secret(&SET)
        .unwrap();
    let opened = second.kek_with_wrapped_audit(&SET, &wrapped_again).unwrap();
    assert_eq!(opened.audit_secret(), plain.audit_secret());

    let mut altered = wrapped.clone();
    altered[20] ^= 1;
    for (root, set, wrapped) in [
        (&second, SET, &wrapped[..]),
        (&first, [9; 16], &wrapped),
        (&first, SET, &wrapped_again),
        (&first, SET, &altered),
        (&first, SET, &wrapped[1..]),
        (&first, SET, &[]),
        // A secret of another kind.
        (&first, SET, &kek.wrap_secret(&[1; 32], &SET).unwrap()),
    ] {
        assert_eq!(
            root.kek_with_wrapped_audit(&set, wrapped).err(),
            Some(Error::Unwrap)
        );
    }
    assert_eq!(kek.unwrap_secret(&wrapped, &SET).err(), Some(Error::Unwrap));
    assert_eq!(kek.unwrap(&wrapped, &SET).err(), Some(Error::Unwrap));
}

#[test]
fn a_root_key_is_not_printed() {
    let root = RootKey::from_bytes(secret(0xab));
    assert_eq!(
        format!("{root:?} {:?}", root.kek(&SET, secret(0xcd)).unwrap()),
        "RootKey Kek"
    );
}
