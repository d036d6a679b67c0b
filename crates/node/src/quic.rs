//! Parts that all QUIC endpoints of this robot share: the peer's identity by the team's keys, and the length of
//! datagrams.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coorp_core::admission::Reason;
use coorp_core::discovery::Outcome;
use coorp_core::RobotId;
use coorp_team::Team;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::crypto::CryptoProvider;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::rustls::server::danger::ClientCertVerifier;
use quinn::rustls::server::WebPkiClientVerifier;
use quinn::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use quinn::{Connection, ConnectionError, Endpoint, MtuDiscoveryConfig};

use self::anybody::Anybody;
use crate::ground::{Bound, Ground};
use crate::keys::{self, Identity, SERVER_NAME};
use crate::revoked::Revoked;
use crate::Error;

mod anybody;

/// The maximum number of datagrams per call to the kernel: it accepts this many of the longest ones.
pub(crate) const TOGETHER_MAX: usize = 8;
const DATAGRAM_BYTES_MAX: u16 = 8_152;
/// The size of a socket's receive buffer, for datagrams that no thread has taken yet, bytes.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Interfaces with at most this MTU keep QUIC's usual bound, which leaves room for tunnels on the way.
pub(crate) const ETHERNET_BYTES: u16 = 1_500;
const DATAGRAM_BYTES_USUAL: u16 = 1_452;
/// The length of the headers of an IPv6 packet with a datagram, which are longer than IPv4's.
const HEADERS_BYTES: u16 = 48;
/// The maximum number of an endpoint's attempts that wait for the door's decision, which takes microseconds; and the
/// maximum number of bytes after the first packet that are kept meanwhile, of one attempt and of all.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES_MAX: u64 = 16 << 10;
const INCOMING_BYTES_ALL_MAX: u64 = 1 << 20;
/// QUIC's codes (RFC 9001, section 4.8) of TLS's alerts about certificates (RFC 8446, section 6.2): bad, unsupported,
/// revoked, expired, unknown, of an unknown authority, denied, not its owner's, missing.
const CERTIFICATE_ALERTS: [u64; 9] = [0x12a, 0x12b, 0x12c, 0x12d, 0x12e, 0x130, 0x131, 0x133, 0x174];

/// A robot's proof of identity, and the peers that it admits.
pub(crate) struct Credentials {
    /// Admits the peers that these authorities have signed; `None`: anybody, under any name.
    roots: Option<Arc<RootCertStore>>,
    authorities: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Credentials {
    /// Loads a robot's keys of its team.
    pub fn of(identity: &Identity) -> Result<Credentials, Error> {
        let unusable = |path: &Path, error: String| Error::Keys(format!("cannot use {}: {error}", path.display()));
        let certificates = |path: &Path| {
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            read.map_err(|error| unusable(path, error.to_string()))
        };
        let (authorities, chain) = (certificates(&identity.authority)?, certificates(&identity.certificate)?);
        let key = PrivateKeyDer::from_pem_file(&identity.key);
        let key = key.map_err(|error| unusable(&identity.key, error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            let added = roots.add(authority.clone());
            added.map_err(|error| unusable(&identity.authority, error.to_string()))?;
        }
        Ok(Credentials {
            roots: Some(Arc::new(roots)),
            authorities,
            chain,
            key,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
        })
    }

    /// Returns the credentials of a robot without keys, which only claims a name; every claim is accepted.
    pub fn of_anybody(name: &str) -> Result<Credentials, Error> {
        let (certificate, key) = keys::unsigned(name)?;
        Ok(Credentials {
            roots: None,
            authorities: Vec::new(),
            chain: vec![certificate],
            key: PrivatePkcs8KeyDer::from(key).into(),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
        })
    }

    /// Returns the certificates of the team's authorities, the newest first; none without keys.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// Returns the robot's own certificate.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// Returns the robot's own certificate and those that connect it with older authorities.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Returns the implementation of cryptography.
    pub fn provider(&self) -> Arc<CryptoProvider> {
        self.provider.clone()
    }

    /// Returns what admits clients.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let Some(roots) = &self.roots else {
            return Ok(Arc::new(Anybody(self.provider.clone())));
        };
        WebPkiClientVerifier::builder_with_provider(roots.clone(), self.provider.clone())
            .build()
            .map_err(unusable)
    }

    /// Returns the configuration of an endpoint on a socket, the same in all starts of this robot.
    pub fn endpoint(&self, ground: &dyn Ground, socket: &dyn Bound) -> quinn::EndpointConfig {
        let mut config = crate::resets::endpoint(self.key.secret_der());
        config.rng_seed(ground.quic_seed());
        // In a small buffer, a few long datagrams at once are too many, so do not let others send them.
        if socket.is_roomy() {
            if let Err(error) = config.max_udp_payload_size(DATAGRAM_BYTES_MAX) {
                tracing::warn!("datagrams stay short: {error}");
            }
        }
        config
    }

    /// Returns the server configuration for a protocol: accepts admitted peers.
    pub fn server(&self, protocol: &[u8]) -> Result<quinn::ServerConfig, Error> {
        let verifier = self.verifier()?;
        let config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let mut config = config
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(unusable)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let config = QuicServerConfig::try_from(config).map_err(unusable)?;
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(config));
        // A connection stays at the addresses at which it began, which determine its path and its share. quinn would
        // also count packets with its ID from other addresses towards what may be sent to an unproved address.
        config
            .migration(false)
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES_MAX)
            .incoming_buffer_size_total(INCOMING_BYTES_ALL_MAX);
        Ok(config)
    }

    /// Returns the client configuration for a protocol: connects to admitted peers.
    pub fn client(&self, protocol: &[u8]) -> Result<quinn::ClientConfig, Error> {
        let config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match &self.roots {
            Some(roots) => config.with_root_certificates(roots.clone()),
            None => config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(self.provider.clone()))),
        };
        let mut config = config
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(unusable)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let config = QuicClientConfig::try_from(config).map_err(unusable)?;
        Ok(quinn::ClientConfig::new(Arc::new(config)))
    }
}

fn unusable(error: impl std::fmt::Display) -> Error {
    Error::Crypto(format!("the keys cannot be used: {error}"))
}

/// Returns the robot at the other end, by its certificate.
pub(crate) fn peer(team: &Team, revoked: &Revoked, connection: &Connection) -> Result<RobotId, Reason> {
    let robot = team.robot_named(&name_of(revoked, connection)?);
    robot.ok_or(Reason::NoCertificate)
}

/// Returns the name in the certificate of the other end, unless that is revoked.
pub(crate) fn name_of(revoked: &Revoked, connection: &Connection) -> Result<String, Reason> {
    let certificate = certificate_of(connection).ok_or(Reason::NoCertificate)?;
    if !revoked.admits(&certificate) {
        return Err(Reason::Revoked);
    }
    keys::name_in(&certificate).ok_or(Reason::NoCertificate)
}

/// Closes a connection if the certificate of its other end has been revoked.
pub(crate) fn close_revoked(revoked: &Revoked, connection: &Connection) {
    if certificate_of(connection).is_some_and(|certificate| !revoked.admits(&certificate)) {
        connection.close(1u8.into(), b"revoked");
    }
}

/// Returns whether an authority has signed the certificate of the other end.
pub(crate) fn is_signed_by(authority: &CertificateDer<'_>, connection: &Connection) -> bool {
    let Some(certificate) = certificate_of(connection) else {
        return false;
    };
    let [authority, certificate] = [authority, &certificate].map(|der| x509_parser::parse_x509_certificate(der));
    match (authority, certificate) {
        (Ok((_, authority)), Ok((_, certificate))) => {
            certificate.verify_signature(Some(authority.public_key())).is_ok()
        }
        _ => false,
    }
}

fn certificate_of(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>();
    chain.ok()?.into_iter().next()
}

/// The reason why a connection was not established.
#[derive(Debug)]
pub(crate) struct Missed {
    pub outcome: Outcome,
    why: String,
}

impl std::fmt::Display for Missed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl Missed {
    pub fn new(outcome: Outcome, why: impl Into<String>) -> Self {
        let why = why.into();
        Missed { outcome, why }
    }

    fn by(error: &ConnectionError) -> Self {
        let outcome = match error {
            error if is_over_certificates(error) => Outcome::Misfit,
            ConnectionError::TimedOut => Outcome::NoAnswer,
            _ => Outcome::Refused,
        };
        Missed::new(outcome, error.to_string())
    }
}

/// Connects to a robot of a team at an address.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    (team, revoked, to): (&Team, &Revoked, RobotId),
    address: SocketAddr,
    within: Duration,
) -> Result<Connection, Missed> {
    let connecting = endpoint.connect_with(config, address, SERVER_NAME);
    let connecting = connecting.map_err(|error| Missed::new(Outcome::Refused, error.to_string()))?;
    let connection = tokio::time::timeout(within, connecting).await;
    let connection = connection
        .map_err(|_| Missed::new(Outcome::NoAnswer, format!("{address} does not answer")))?
        .map_err(|error| Missed::by(&error))?;
    let other = peer(team, revoked, &connection);
    if other == Ok(to) {
        return Ok(connection);
    }
    connection.close(1u8.into(), b"another robot was expected");
    let (outcome, whose) = match other {
        Ok(robot) => (Outcome::Connected(robot), "another robot"),
        Err(Reason::Revoked) => (Outcome::Misfit, "a robot with a revoked certificate"),
        Err(_) => (Outcome::Misfit, "no robot of this team"),
    };
    Err(Missed::new(outcome, format!("{whose} answers at {address}")))
}

/// Returns whether a connection failed because of an identity: a certificate was missing or rejected, at either end.
pub(crate) fn is_over_certificates(error: &ConnectionError) -> bool {
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(closed) => u64::from(closed.error_code),
        _ => return false,
    };
    CERTIFICATE_ALERTS.contains(&code)
}

/// Returns the maximum length of datagrams over an interface with this MTU, which is longer than usual on loopback and
/// with jumbo frames. QUIC probes the path beyond the interface.
pub(crate) fn lengths(mtu: Option<u16>) -> MtuDiscoveryConfig {
    let mut lengths = MtuDiscoveryConfig::default();
    if let Some(mtu) = mtu {
        let usual = if mtu > ETHERNET_BYTES {
            DATAGRAM_BYTES_MAX
        } else {
            DATAGRAM_BYTES_USUAL
        };
        lengths.upper_bound(usual.min(mtu.saturating_sub(HEADERS_BYTES)));
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_datagrams_that_go_together_fit_the_kernels_call() {
        let together = usize::from(DATAGRAM_BYTES_MAX) * TOGETHER_MAX;
        assert!(together + usize::from(HEADERS_BYTES) <= usize::from(u16::MAX));
    }
}
