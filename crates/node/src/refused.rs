//! Counts what a robot refuses, from any thread, and logs it.

use std::net::SocketAddr;
use std::sync::Mutex;

use quinn::ConnectionError;

use crate::quic::is_over_certificates;
use crate::status::Refused;
use crate::sync::lock;
use crate::wire::{self, Frame, Refusal};

/// The counts so far.
#[derive(Debug, Default)]
pub(crate) struct RefusedCounts(Mutex<Refused>);

impl RefusedCounts {
    /// Decodes a frame; counts it if it is refused. `what` names the expected one.
    pub fn decode<F: Frame>(&self, what: &str, frame: &[u8]) -> Option<F> {
        wire::decode(frame).map_err(|refusal| self.count(what, refusal)).ok()
    }

    /// Counts a refused frame. `what` names the expected frame.
    pub fn count(&self, what: &str, refusal: Refusal) {
        let mut counts = lock(&self.0);
        let (counter, why) = match refusal {
            Refusal::Oversized => (&mut counts.oversized, "it is oversized".to_owned()),
            Refusal::Version(version) => (&mut counts.version, format!("it has version {version}")),
            Refusal::Malformed => (&mut counts.malformed, "it is malformed".to_owned()),
        };
        *counter += 1;
        tracing::debug!("refused {what}: {why}");
    }

    pub fn count_stale_grant(&self) {
        lock(&self.0).stale_grants += 1;
        tracing::debug!("refused a grant that was not requested");
    }

    /// Counts a rejected peer; `address` is its origin.
    pub fn count_stranger(&self, address: SocketAddr) {
        lock(&self.0).strangers += 1;
        tracing::debug!("refused a stranger at {address}");
    }

    /// Handles a connection to this robot that was not established, perhaps because of a certificate; `what` names its
    /// purpose.
    pub fn on_not_connected(&self, what: &str, address: SocketAddr, error: Option<&ConnectionError>) {
        let Some(error) = error else {
            return tracing::debug!("a connection for {what} from {address} was not established in time");
        };
        if is_over_certificates(error) {
            self.count_stranger(address);
        }
        tracing::debug!("a connection for {what} from {address} was not established: {error}");
    }

    pub fn read(&self) -> Refused {
        *lock(&self.0)
    }
}
