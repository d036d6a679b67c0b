//! QUIC's side of the team's keys: both ends of a bulk connection are of the team, and it is known which robot each is.

use std::sync::Arc;
use std::time::Duration;

use coorp_core::RobotId;
use coorp_team::Team;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::server::WebPkiClientVerifier;
use quinn::rustls::{ClientConfig, RootCertStore, ServerConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};

use super::socket::PermittedCubicConfig;
use crate::keys::Identity;
use crate::Error;

const PROTOCOL: &[u8] = b"coorp-bulk/1";
/// An end that says nothing for so long is gone.
const IDLE_MS: u32 = 3_000;
/// The receiver speaks up this often: a sender without a permit may not.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// What a receiver takes ahead of its disk, and a sender keeps ready.
const WINDOW_BYTES: u32 = 8 << 20;

struct Files {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn files(identity: &Identity) -> Result<Files, Error> {
    let unusable =
        |path: &std::path::Path, error: String| Error::Input(format!("cannot use {}: {error}", path.display()));
    let authority = CertificateDer::from_pem_file(&identity.authority);
    let authority = authority.map_err(|error| unusable(&identity.authority, error.to_string()))?;
    let certificate = CertificateDer::from_pem_file(&identity.certificate);
    let certificate = certificate.map_err(|error| unusable(&identity.certificate, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&identity.key);
    let key = key.map_err(|error| unusable(&identity.key, error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots
        .add(authority)
        .map_err(|error| unusable(&identity.authority, error.to_string()))?;
    Ok(Files {
        roots: Arc::new(roots),
        chain: vec![certificate],
        key,
    })
}

/// How bulk is received: from whoever is of the team.
pub(crate) fn server(identity: &Identity) -> Result<quinn::ServerConfig, Error> {
    let Files { roots, chain, key } = files(identity)?;
    let provider = Arc::new(quinn::rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(tls)?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?;
    let mut config = config
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(tls)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let config = QuicServerConfig::try_from(config).map_err(tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(config));
    let mut transport = transport();
    // One message at a time from one sender.
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// How bulk is sent: as permits allow.
pub(crate) fn client(identity: &Identity, permitted: PermittedCubicConfig) -> Result<quinn::ClientConfig, Error> {
    let Files { roots, chain, key } = files(identity)?;
    let provider = Arc::new(quinn::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?;
    let mut config = config
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(tls)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let config = QuicClientConfig::try_from(config).map_err(tls)?;
    let mut config = quinn::ClientConfig::new(Arc::new(config));
    let mut transport = transport();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .congestion_controller_factory(Arc::new(permitted));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .datagram_receive_buffer_size(None);
    transport
}

/// Which robot is at the other end, by its certificate.
pub(crate) fn peer(team: &Team, connection: &quinn::Connection) -> Option<RobotId> {
    let chain = connection
        .peer_identity()?
        .downcast::<Vec<CertificateDer<'static>>>()
        .ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    team.robot_named(name)
}

fn tls(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("the keys cannot be used for bulk: {error}"))
}

/// Lets a connection look whether it may send.
pub(crate) fn wake(connection: &quinn::Connection) {
    connection.set_send_window(u64::from(WINDOW_BYTES));
}
