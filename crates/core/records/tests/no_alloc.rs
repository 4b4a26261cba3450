//! A token allocates its row and nothing else.

use allocation_counter::measure;
use sealwire_crypto::{Datatype, KeyState};
use sealwire_records::token::{
    CardEnds, Format, NewToken, RowBuffer, TokenKeyVersion, TokenKeys, TokenSecret,
};

fn allocations(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

#[test]
fn a_row_is_the_only_thing_allocated() {
    let version = TokenKeyVersion {
        number: 1,
        state: KeyState::Active,
        secret: TokenSecret::generate().unwrap(),
    };
    let keys = TokenKeys::new(1, vec![version]).unwrap();
    let value: (Datatype, &[u8]) = (Datatype::String, b"4242424242424242");
    let mut token = String::with_capacity(64);
    let mut buffer = RowBuffer::default();
    let mut row = Vec::new();
    // The random source makes its state at first use.
    Format::Opaque
        .generate(value.0, value.1, &mut token)
        .unwrap();
    for format in [
        Format::Opaque,
        Format::Uuid,
        Format::Digits,
        Format::Card(CardEnds::default()),
        Format::Email,
    ] {
        assert_eq!(
            allocations(|| format.generate(value.0, value.1, &mut token).unwrap()),
            0,
            "{format:?}"
        );
        assert_eq!(allocations(|| assert!(format.has_shape(&token))), 0);
    }
    let (mut id, mut context) = ([0; 16], keys.context(b""));
    assert_eq!(allocations(|| context = keys.context(b"cards.pan")), 0);
    assert_eq!(allocations(|| id = keys.id(2, &token)), 0);
    assert_eq!(
        allocations(|| _ = keys.fingerprint_of_value(2, &context, value.0, value.1)),
        0
    );
    let mut principal = keys.principal("");
    assert_eq!(allocations(|| principal = keys.principal("relay")), 0);
    assert_eq!(
        allocations(|| _ =
            keys.fingerprint_of_request(2, &context, &principal, b"key", 0, value.0, value.1)),
        0
    );
    let new = NewToken {
        subject: None,
        collection: 2,
        id: &id,
        context: &context,
        fingerprint: Some(&[7; 16]),
        token: &token,
        value: Some(value),
    };
    assert_eq!(allocations(|| row = keys.seal(&new).unwrap()), 1);
    let mut open = || {
        allocations(|| {
            let opened = keys.open(2, &id, None, &row, &mut buffer).unwrap();
            assert_eq!(
                (opened.token(), opened.value(&context)),
                (token.as_str(), Ok(Some(value)))
            );
        })
    };
    assert_eq!((open(), open()), (1, 0), "the buffer, once");
}
