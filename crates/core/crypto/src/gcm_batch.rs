//! AES-256-GCM (NIST SP 800-38D) over many short messages under one key.
//!
//! A library that seals one message at a time spends most of the time of a short message on set-up
//! and on waiting for single blocks. Here the counter blocks of all messages of a batch go through
//! the cipher together, so that wide vector units are full. Each tag takes one aggregated GHASH
//! step. The result equals that of any other implementation: nonces have 96 bits, tags 128, and the
//! messages are independent.
//!
//! This module only seals. Opening must not release any plaintext before its tag was checked, which
//! a library for single messages does well.

use aes::Aes256Enc;
use aes::cipher::array::Array;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use zeroize::{Zeroizing, optimization_barrier};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Longest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = (KEYSTREAM_BLOCKS - 1) * BLOCK_BYTES;

const BLOCK_BYTES: usize = 16;
/// Blocks of key stream that are made at a time.
const KEYSTREAM_BLOCKS: usize = 64;
/// Blocks that GHASH takes in one aggregated step.
const HASH_STEP_BLOCKS: usize = 4;

type Block = ghash::Block;

/// An expanded key, wiped on drop. A copy of the hash key can stay on the stack; it opens nothing.
pub struct BatchKey {
    cipher: Aes256Enc,
    /// The hash before its first block. Does not wipe itself: it is copied per message, and wiping
    /// each copy would take longer than the hash.
    hash: GHash,
}

impl Drop for BatchKey {
    fn drop(&mut self) {
        self.hash = GHash::new(&Block::default());
        optimization_barrier(&self.hash);
    }
}

/// Key stream of some messages, wiped on drop. `Zeroizing` writes single bytes, which takes as long
/// as the cipher.
struct Keystream([[u8; BLOCK_BYTES]; KEYSTREAM_BLOCKS]);

impl Drop for Keystream {
    fn drop(&mut self) {
        self.0.fill([0; BLOCK_BYTES]);
        optimization_barrier(&self.0);
    }
}

/// A message of a batch, in a buffer that all messages share.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The nonce, which must never repeat under one key.
    pub nonce: [u8; NONCE_BYTES],
    /// The additional data.
    pub aad: &'a Aad,
    /// Offset of the plaintext in the buffer.
    pub start: usize,
    /// Length of the plaintext, at most [`MESSAGE_BYTES_MAX`]. The tag's [`TAG_BYTES`] bytes follow
    /// it.
    pub length: usize,
}

/// Additional data, in the form in which many messages can share it.
#[derive(Clone, Debug, Default)]
pub struct Aad {
    /// The data, padded with zeros to a whole block.
    blocks: Vec<[u8; BLOCK_BYTES]>,
    bytes: usize,
}

impl Aad {
    /// Prepares additional data.
    #[must_use]
    pub fn new(aad: &[u8]) -> Self {
        let mut prepared = Self::default();
        prepared.set(aad);
        prepared
    }

    /// Prepares other additional data in the same memory.
    pub fn set(&mut self, aad: &[u8]) {
        self.blocks.clear();
        self.blocks
            .resize(aad.len().div_ceil(BLOCK_BYTES), [0; BLOCK_BYTES]);
        self.blocks.as_flattened_mut()[..aad.len()].copy_from_slice(aad);
        self.bytes = aad.len();
    }
}

impl Message<'_> {
    /// Number of blocks of key stream: one that masks the tag, and those of the text.
    fn keystream_blocks(&self) -> usize {
        1 + self.length.div_ceil(BLOCK_BYTES)
    }
}

/// Returns true if the processor has instructions for AES and for carry-less multiplication.
/// Without them the code below is correct and much slower than other libraries.
#[must_use]
pub fn is_accelerated() -> bool {
    #[cfg(target_arch = "x86_64")]
    let accelerated = is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let accelerated = std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let accelerated = false;
    accelerated
}

impl BatchKey {
    /// Expands a key.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let cipher = Aes256Enc::new(key.into());
        let mut subkey = Zeroizing::new([0; BLOCK_BYTES]);
        cipher.encrypt_block((&mut *subkey).into());
        Self {
            hash: GHash::new((&*subkey).into()),
            cipher,
        }
    }

    /// Seals messages in place: replaces each plaintext in `buffer` by its ciphertext, and the
    /// bytes after it by its tag.
    ///
    /// # Panics
    /// If a message is longer than [`MESSAGE_BYTES_MAX`], or it does not lie in the buffer with its
    /// tag.
    pub fn seal(&self, messages: &[Message<'_>], buffer: &mut [u8]) {
        let mut keystream = Keystream([[0; BLOCK_BYTES]; KEYSTREAM_BLOCKS]);
        let mut rest = messages;
        while !rest.is_empty() {
            let (part, later) = rest.split_at(count_that_fits(rest));
            let blocks = counter_blocks(part, &mut keystream.0);
            self.cipher
                .encrypt_blocks(Array::cast_slice_from_core_mut(blocks));
            let mut blocks = &*blocks;
            for message in part {
                let (own, others) = blocks.split_at(message.keystream_blocks());
                self.seal_one(
                    message,
                    own,
                    &mut buffer[message.start..][..message.length + TAG_BYTES],
                );
                blocks = others;
            }
            rest = later;
        }
    }

    /// Seals one message with its key stream.
    #[inline]
    fn seal_one(&self, message: &Message<'_>, keystream: &[[u8; BLOCK_BYTES]], data: &mut [u8]) {
        let (mask, keystream) = keystream
            .split_first()
            .expect("the first block masks the tag");
        let mut hash = Hash::new(self, message.aad.blocks.len() + keystream.len() + 1);
        message
            .aad
            .blocks
            .iter()
            .for_each(|block| hash.push(*block));
        for (at, key) in (0..).step_by(BLOCK_BYTES).zip(keystream) {
            // An incomplete last block extends into the place of the tag, which is written later.
            let block: &mut [u8; BLOCK_BYTES] = (&mut data[at..at + BLOCK_BYTES])
                .try_into()
                .expect("16 bytes");
            *block = first_bytes(xor(block, key), message.length - at);
            hash.push(*block);
        }
        let aad_bits = message.aad.bytes as u128 * 8;
        let message_bits = message.length as u128 * 8;
        hash.push((aad_bits << 64 | message_bits).to_be_bytes());
        data[message.length..].copy_from_slice(&xor(&hash.finish(), mask));
    }
}

/// A GHASH that takes its blocks in aggregated steps.
struct Hash {
    hash: GHash,
    /// Blocks of the next step.
    blocks: [Block; HASH_STEP_BLOCKS],
    count: usize,
}

impl Hash {
    /// Starts a hash of the given number of blocks. Leading zero blocks do not change the hash, and
    /// fill up the first step.
    #[inline]
    fn new(key: &BatchKey, blocks: usize) -> Self {
        let count = blocks.next_multiple_of(HASH_STEP_BLOCKS) - blocks;
        Self {
            hash: key.hash.clone(),
            blocks: [Block::default(); HASH_STEP_BLOCKS],
            count,
        }
    }

    #[inline]
    fn push(&mut self, block: [u8; BLOCK_BYTES]) {
        self.blocks[self.count] = block.into();
        self.count += 1;
        if self.count == HASH_STEP_BLOCKS {
            self.hash.update(&self.blocks);
            self.count = 0;
        }
    }

    /// Returns the hash after the announced number of blocks.
    #[inline]
    fn finish(self) -> [u8; BLOCK_BYTES] {
        debug_assert_eq!(self.count, 0, "another number of blocks than announced");
        self.hash.finalize().into()
    }
}

/// Returns the number of messages, from the first, whose key streams fit into one buffer.
fn count_that_fits(messages: &[Message<'_>]) -> usize {
    let mut left = KEYSTREAM_BLOCKS;
    let count = messages
        .iter()
        .take_while(|message: &&Message<'_>| {
            let rest = left.checked_sub(message.keystream_blocks());
            rest.is_some_and(|rest| {
                left = rest;
                true
            })
        })
        .count();
    assert!(
        count > 0,
        "a message is longer than {MESSAGE_BYTES_MAX} bytes"
    );
    count
}

/// Writes the counter blocks of messages to the front of `blocks` and returns them. Each message
/// has block 1 for its tag, then those of its text (SP 800-38D, section 7.1).
#[inline]
fn counter_blocks<'a>(
    messages: &[Message<'_>],
    blocks: &'a mut [[u8; BLOCK_BYTES]; KEYSTREAM_BLOCKS],
) -> &'a mut [[u8; BLOCK_BYTES]] {
    let mut used = 0;
    for message in messages {
        let count = message.keystream_blocks();
        for (block, counter) in blocks[used..used + count].iter_mut().zip(1_u32..) {
            block[..NONCE_BYTES].copy_from_slice(&message.nonce);
            block[NONCE_BYTES..].copy_from_slice(&counter.to_be_bytes());
        }
        used += count;
    }
    &mut blocks[..used]
}

/// Returns a block with zeros in place of all but its first `bytes` bytes.
#[inline]
fn first_bytes(block: [u8; BLOCK_BYTES], bytes: usize) -> [u8; BLOCK_BYTES] {
    if bytes >= BLOCK_BYTES {
        return block;
    }
    let mask = (1_u128 << (8 * bytes)) - 1;
    (u128::from_le_bytes(block) & mask).to_le_bytes()
}

#[inline]
fn xor(a: &[u8; BLOCK_BYTES], b: &[u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes()
}

impl std::fmt::Debug for BatchKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BatchKey")
    }
}
