//! Stateless resets of QUIC (RFC 9000, section 10.3), by which a restarted robot tells others that connections of its
//! earlier start are over. Without them, the others wait until a connection falls idle, for seconds.
//!
//! A reset is accepted because of the token that came with a connection's ID, and the token is derived from that ID
//! with a key. This key is derived from the robot's private key, which survives restarts. So the next start can compute
//! the tokens, and recognises the IDs as its own.

use std::sync::Arc;

use quinn::crypto::{CryptoError, HmacKey};
use quinn::EndpointConfig;
use quinn_proto::HashedConnectionIdGenerator;

/// Returns the configuration of an endpoint whose later starts end its connections. All starts share `secret`.
pub(crate) fn endpoint(secret: &[u8]) -> EndpointConfig {
    let key = ResetKey(blake3::derive_key("coorp/1 stateless resets", secret));
    let [a, b, c, d, e, f, g, h, ..] = blake3::derive_key("coorp/1 connection ids", secret);
    let ids = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

/// Makes the tokens, by keyed BLAKE3.
struct ResetKey([u8; blake3::KEY_LEN]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        let signed = blake3::keyed_hash(&self.0, data);
        let length = signature.len().min(blake3::OUT_LEN);
        signature[..length].copy_from_slice(&signed.as_bytes()[..length]);
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Compared in constant time.
        let signature = blake3::Hash::from_slice(signature).map_err(|_| CryptoError)?;
        let right = blake3::keyed_hash(&self.0, data) == signature;
        right.then_some(()).ok_or(CryptoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::{ConnectionId, ConnectionIdGenerator};

    fn signed(key: &ResetKey, id: &ConnectionId) -> Vec<u8> {
        let mut signature = vec![0; key.signature_len()];
        key.sign(id, &mut signature);
        signature
    }

    #[test]
    fn a_start_knows_the_connections_of_the_one_before_and_nobody_elses() {
        let id = HashedConnectionIdGenerator::from_key(7).generate_cid();
        assert!(HashedConnectionIdGenerator::from_key(7).validate(&id).is_ok());
        let [own, again, other] = [[1; 32], [1; 32], [2; 32]].map(ResetKey);
        let token = signed(&own, &id);
        assert!(again.verify(&id, &token).is_ok() && signed(&again, &id) == token);
        assert!(other.verify(&id, &token).is_err() && own.verify(&id, &token[1..]).is_err());
    }
}
