//! Refuses long certificate chains before they are verified.
//!
//! TLS verifies a chain before the peer proves that it has the key. With many intermediate certificates that may have issued
//! one another, path building takes seconds of processor time for one handshake. A robot's chain has at most one
//! intermediate certificate, while its team renews its keys.

use std::fmt::Debug;
use std::sync::Arc;

use quinn::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use quinn::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use quinn::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use quinn::rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Maximum number of certificates between a robot's and the authority's.
const BETWEEN_MAX: usize = 2;

/// Passes short chains on to another verifier.
#[derive(Debug)]
pub(super) struct Short<V: ?Sized>(pub Arc<V>);

fn is_short(between: &[CertificateDer<'_>]) -> Result<(), Error> {
    if between.len() <= BETWEEN_MAX {
        Ok(())
    } else {
        Err(CertificateError::UnknownIssuer.into())
    }
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for Short<V> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        is_short(between)?;
        self.0.verify_server_cert(certificate, between, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for Short<V> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        is_short(between)?;
        self.0.verify_client_cert(certificate, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use quinn::rustls::client::WebPkiServerVerifier;
    use quinn::rustls::server::WebPkiClientVerifier;
    use quinn::rustls::{self, RootCertStore};
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// `others` pairs of authorities that have issued each other, none of which the root has signed.
    fn maze(others: usize) -> Vec<CertificateDer<'static>> {
        let names = ["even", "odd"];
        let issuers = names.map(authority);
        (0..others)
            .map(|at| {
                let mut params = CertificateParams::default();
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.distinguished_name.push(DnType::CommonName, names[(at + 1) % 2]);
                let key = KeyPair::generate().unwrap();
                params.signed_by(&key, &issuers[at % 2]).unwrap().der().clone()
            })
            .collect()
    }

    #[test]
    fn long_chains_are_refused_unread() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let root = authority("team");
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = Short(clients.build().unwrap());
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider);
        let servers = Short(servers.build().unwrap());
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([crate::keys::SERVER_NAME.to_owned()]).unwrap();
        let member = params.signed_by(&key, &root).unwrap().der().clone();
        let (maze, now) = (maze(60), UnixTime::now());
        let stranger = {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([crate::keys::SERVER_NAME.to_owned()]).unwrap();
            params.signed_by(&key, &authority("even")).unwrap().der().clone()
        };
        let name = ServerName::try_from(crate::keys::SERVER_NAME).unwrap();
        for certificate in [&member, &stranger] {
            // Even a member's, which would be found at once.
            assert!(clients.verify_client_cert(certificate, &maze, now).is_err());
            assert!(servers.verify_server_cert(certificate, &maze, &name, &[], now).is_err());
        }
        assert!(clients.verify_client_cert(&member, &[], now).is_ok());
        assert!(clients.verify_client_cert(&member, &maze[..BETWEEN_MAX], now).is_ok());
        assert!(servers
            .verify_server_cert(&member, &maze[..BETWEEN_MAX], &name, &[], now)
            .is_ok());
    }
}
