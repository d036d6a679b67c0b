//! Writes PKCS#12 files (RFC 7292): a key and certificates for the store of keys of a browser or a phone.
//!
//! The key and the certificates are encrypted with three-key triple DES and authenticated with HMAC-SHA-1, both from a
//! password. Nothing newer can be read by all stores: those of Apple and older ones of Android refuse files with AES and
//! SHA-256. What both lack in strength is in the password, which is random ([`password`]) and never a person's.
//!
//! Left out: reading.

use des::cipher::{BlockCipherEncrypt, KeyInit};
use des::TdesEde3;
use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use yasna::models::ObjectIdentifier;
use yasna::{construct_der, DERWriter, Tag};

use super::failed;
use crate::Error;

/// How often SHA-1 is applied for a key.
const ITERATIONS: u32 = 10_000;
const SALT_BYTES: usize = 20;
/// The characters of a password, 5 bits each, none of which looks like another one.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const PASSWORD_LETTERS: usize = 20;

const BLOCK_BYTES: usize = 8;
const KEY_BYTES: usize = 24;
/// SHA-1's block and its digest.
const HASH_BLOCK_BYTES: usize = 64;
const HASH_BYTES: usize = 20;

const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
const ENCRYPTED_DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 6];
const PBE_SHA1_3DES: &[u64] = &[1, 2, 840, 113_549, 1, 12, 1, 3];
const SHROUDED_KEY_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 2];
const CERTIFICATE_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 3];
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 20];
const LOCAL_KEY: &[u64] = &[1, 2, 840, 113_549, 1, 9, 21];
const X509: &[u64] = &[1, 2, 840, 113_549, 1, 9, 22, 1];
const SHA1: &[u64] = &[1, 3, 14, 3, 2, 26];

/// What a derived key is for (RFC 7292, B.3).
#[derive(Clone, Copy)]
enum Purpose {
    Key = 1,
    Start = 2,
    Mac = 3,
}

/// Returns a new password of 100 random bits, in groups that a person can type.
pub fn password() -> Result<String, Error> {
    let random: [u8; PASSWORD_LETTERS] = random()?;
    let letters = random.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]);
    let groups: Vec<_> = letters.chunks(4).map(String::from_utf8_lossy).collect();
    Ok(groups.join("-"))
}

/// Packs a key (PKCS#8, DER) with its certificate, and further certificates.
pub fn pack(name: &str, key: &[u8], certificates: &[&[u8]], password: &str) -> Result<Vec<u8>, Error> {
    let [keys_salt, certificates_salt, mac_salt]: [[u8; SALT_BYTES]; 3] = [random()?, random()?, random()?];
    let certificates = construct_der(|writer| {
        writer.write_sequence_of(|bags| {
            for (place, certificate) in certificates.iter().enumerate() {
                let own = (place == 0).then_some(name);
                bag(bags.next(), CERTIFICATE_BAG, own, |value| {
                    value.write_sequence(|parts| {
                        oid(parts.next(), X509);
                        explicit(parts.next(), |value| value.write_bytes(certificate));
                    });
                });
            }
        });
    });
    let keys = construct_der(|writer| {
        writer.write_sequence_of(|bags| {
            bag(bags.next(), SHROUDED_KEY_BAG, Some(name), |value| {
                value.write_sequence(|parts| {
                    algorithm(parts.next(), &keys_salt);
                    parts.next().write_bytes(&encrypted(key, password, &keys_salt));
                });
            });
        });
    });
    let safe = construct_der(|writer| {
        writer.write_sequence_of(|contents| {
            contents.next().write_sequence(|parts| {
                oid(parts.next(), ENCRYPTED_DATA);
                explicit(parts.next(), |value| {
                    value.write_sequence(|parts| {
                        parts.next().write_u8(0);
                        parts.next().write_sequence(|parts| {
                            oid(parts.next(), DATA);
                            algorithm(parts.next(), &certificates_salt);
                            let hidden = encrypted(&certificates, password, &certificates_salt);
                            let writer = parts.next();
                            writer.write_tagged_implicit(Tag::context(0), |value| value.write_bytes(&hidden));
                        });
                    });
                });
            });
            data(contents.next(), &keys);
        });
    });
    let mac = mac(&safe, password, &mac_salt);
    Ok(construct_der(|writer| {
        writer.write_sequence(|parts| {
            parts.next().write_u8(3);
            data(parts.next(), &safe);
            parts.next().write_sequence(|parts| {
                parts.next().write_sequence(|parts| {
                    parts.next().write_sequence(|parts| {
                        oid(parts.next(), SHA1);
                        parts.next().write_null();
                    });
                    parts.next().write_bytes(mac.as_ref());
                });
                parts.next().write_bytes(&mac_salt);
                parts.next().write_u32(ITERATIONS);
            });
        });
    }))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| failed("the system has no random numbers"))?;
    Ok(bytes)
}

fn oid(writer: DERWriter<'_>, parts: &[u64]) {
    writer.write_oid(&ObjectIdentifier::from_slice(parts));
}

fn explicit(writer: DERWriter<'_>, value: impl FnOnce(DERWriter<'_>)) {
    writer.write_tagged(Tag::context(0), value);
}

/// A ContentInfo with bytes.
fn data(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_sequence(|parts| {
        oid(parts.next(), DATA);
        explicit(parts.next(), |value| value.write_bytes(bytes));
    });
}

/// A SafeBag; `name` is that of the key, and of the certificate that belongs to it.
fn bag(writer: DERWriter<'_>, kind: &[u64], name: Option<&str>, value: impl FnOnce(DERWriter<'_>)) {
    writer.write_sequence(|parts| {
        oid(parts.next(), kind);
        explicit(parts.next(), value);
        let Some(name) = name else { return };
        parts.next().write_set_of(|attributes| {
            attributes.next().write_sequence(|parts| {
                oid(parts.next(), FRIENDLY_NAME);
                parts.next().write_set_of(|values| values.next().write_bmp_string(name));
            });
            attributes.next().write_sequence(|parts| {
                oid(parts.next(), LOCAL_KEY);
                parts.next().write_set_of(|values| values.next().write_bytes(&[1]));
            });
        });
    });
}

fn algorithm(writer: DERWriter<'_>, salt: &[u8]) {
    writer.write_sequence(|parts| {
        oid(parts.next(), PBE_SHA1_3DES);
        parts.next().write_sequence(|parts| {
            parts.next().write_bytes(salt);
            parts.next().write_u32(ITERATIONS);
        });
    });
}

/// Encrypts in CBC mode, padded to whole blocks as in PKCS#7.
fn encrypted(plain: &[u8], password: &str, salt: &[u8]) -> Vec<u8> {
    let key: [u8; KEY_BYTES] = derived(Purpose::Key, password, salt, ITERATIONS);
    let mut before: [u8; BLOCK_BYTES] = derived(Purpose::Start, password, salt, ITERATIONS);
    let cipher = TdesEde3::new(&key.into());
    let padding = BLOCK_BYTES - plain.len() % BLOCK_BYTES;
    let mut bytes = plain.to_vec();
    bytes.resize(plain.len() + padding, u8::try_from(padding).unwrap_or_default());
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let mut mixed = std::array::from_fn::<u8, BLOCK_BYTES, _>(|place| block[place] ^ before[place]).into();
        cipher.encrypt_block(&mut mixed);
        before = mixed.into();
        block.copy_from_slice(&before);
    }
    bytes
}

fn mac(safe: &[u8], password: &str, salt: &[u8]) -> hmac::Tag {
    let key: [u8; HASH_BYTES] = derived(Purpose::Mac, password, salt, ITERATIONS);
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key), safe)
}

/// Derives a key from a password (RFC 7292, B.2).
fn derived<const N: usize>(purpose: Purpose, password: &str, salt: &[u8], iterations: u32) -> [u8; N] {
    let repeated = |bytes: &[u8]| -> Vec<u8> {
        let length = bytes.len().next_multiple_of(HASH_BLOCK_BYTES);
        bytes.iter().copied().cycle().take(length).collect()
    };
    // UTF-16, big-endian, with its final zero.
    let password: Vec<u8> = password.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect();
    let mut input = [repeated(salt), repeated(&password)].concat();
    let mut key = Vec::with_capacity(N + HASH_BYTES);
    while key.len() < N {
        let first = [&[purpose as u8; HASH_BLOCK_BYTES], input.as_slice()].concat();
        let mut hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &first);
        for _ in 1..iterations {
            hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, hash.as_ref());
        }
        key.extend_from_slice(hash.as_ref());
        // Each block of the input, plus the hash, plus one.
        for block in input.chunks_exact_mut(HASH_BLOCK_BYTES) {
            let mut carry = 1u16;
            for (place, byte) in block.iter_mut().enumerate().rev() {
                let sum = u16::from(*byte) + u16::from(hash.as_ref()[place % HASH_BYTES]) + carry;
                let [high, low] = sum.to_be_bytes();
                (carry, *byte) = (high.into(), low);
            }
        }
    }
    std::array::from_fn(|place| key[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `openssl kdf -kdfopt digest:SHA1 ... PKCS12KDF` prints.
    #[test]
    fn keys_are_derived_as_others_derive_them() {
        let salt = [0x0a, 0x58, 0xcf, 0x64, 0x53, 0x0d, 0x82, 0x3f];
        let key: [u8; KEY_BYTES] = derived(Purpose::Key, "smeg", &salt, 1);
        let expected = [
            0x8a, 0xaa, 0xe6, 0x29, 0x7b, 0x6c, 0xb0, 0x46, 0x42, 0xab, 0x5b, 0x07, 0x78, 0x51, 0x28, 0x4e, 0xb7, 0x12,
            0x8f, 0x1a, 0x2a, 0x7f, 0xbc, 0xa3,
        ];
        assert_eq!(key, expected);
        let start: [u8; BLOCK_BYTES] = derived(Purpose::Start, "smeg", &salt, 1);
        assert_eq!(start, [0x79, 0x99, 0x3d, 0xfe, 0x04, 0x8d, 0x3b, 0x76]);
    }

    #[test]
    fn passwords_are_all_different_and_easy_to_type() {
        let passwords: std::collections::BTreeSet<String> = (0..100).map(|_| password().unwrap()).collect();
        assert_eq!(passwords.len(), 100);
        for password in passwords {
            assert_eq!(password.split('-').map(str::len).collect::<Vec<_>>(), [4; 5]);
            let is_letter = |letter: u8| LETTERS.contains(&letter) || letter == b'-';
            assert!(password.bytes().all(is_letter), "{password}");
        }
    }
}
