//! The live page on other machines: whom it admits, and how it proves itself to them.
//!
//! A browser shows the operator's certificate, which only the team's authority can sign. [`browser`] packs it into one
//! file for the browser's store of keys.
//!
//! The page's own certificate names the address that a browser connects to, so it is made when somebody does
//! ([`Page::server`]). The operator's key signs it: a machine that watches has that key, and best not the authority's.
//! A browser trusts another certificate for this purpose, of the same key, that vouches for addresses and names below
//! `.local` alone. So a thief of the key cannot pose to it as a web site with a name, nor can the team's authority.
//!
//! What the page shows is safe even if a browser accepts a false certificate: whoever is in between cannot show the
//! operator's certificate to the page.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coorp_team::Team;
use quinn::rustls::crypto::CryptoProvider;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use quinn::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use quinn::rustls::server::NoServerSessionStorage;
use quinn::rustls::{self, CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, SanType,
};

use super::{failed, lasting, name_in, p12, read, write, Identity, OPERATOR};
use crate::quic::Credentials;
use crate::revoked::Revoked;
use crate::Error;

/// The domain of the names that machines on a LAN give themselves (RFC 6762).
const LOCAL: &str = "local";
/// How long the page's certificate is valid before and after it is made. Some browsers accept 825 days at most.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 3_600);
const VALID_AFTER: Duration = Duration::from_secs(800 * 24 * 3_600);
const HTTP: &[u8] = b"http/1.1";

/// What a server of the live page needs to prove itself to browsers, and to tell the operator's from others.
#[derive(Debug)]
pub struct Page {
    issuer: Issuer<'static, KeyPair>,
    operators: Arc<Operators>,
    provider: Arc<CryptoProvider>,
}

impl Page {
    /// Loads the operator's keys.
    ///
    /// # Errors
    /// If keys are missing, cannot be used, or are revoked.
    pub fn of(team: &Team) -> Result<Page, Error> {
        let identity = Identity::of(team, OPERATOR)?;
        let credentials = Credentials::of(&identity)?;
        let keys = team.live.keys.clone();
        Ok(Page {
            issuer: Issuer::new(authority(team), key_of(&identity)?),
            operators: Arc::new(Operators {
                signed: credentials.verifier()?,
                authorities: credentials.authorities().to_vec(),
                revoked: Revoked::of(&credentials, &keys, None)?,
                keys,
            }),
            provider: credentials.provider(),
        })
    }

    /// Returns the configuration for connections to an address of this machine. `host`, if there is one, is the machine's
    /// name without a domain; the certificate also names it below `.local`.
    ///
    /// Sessions are not resumed, so that each connection shows its certificate.
    ///
    /// # Errors
    /// If the certificate cannot be made.
    pub fn server(&self, address: IpAddr, host: Option<&str>) -> Result<Arc<ServerConfig>, Error> {
        let key = KeyPair::generate().map_err(failed)?;
        let params = named(address, host)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?;
        let mut config = config
            .with_client_cert_verifier(self.operators.clone())
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .map_err(failed)?;
        config.alpn_protocols = vec![HTTP.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Returns whether a certificate that was admitted before still is: it may have been revoked since.
    pub fn still_admits(&self, certificate: &CertificateDer<'_>) -> bool {
        self.operators.check(certificate).is_ok()
    }
}

/// Returns a machine's name in the page's certificate.
pub fn local_name(host: &str) -> String {
    format!("{host}.{LOCAL}")
}

/// Returns the addresses at which other machines may reach this one.
pub fn addresses() -> Vec<IpAddr> {
    let is_elsewhere = |address: &IpAddr| match address {
        IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local(),
        // A browser cannot name the interface of a link-local address.
        IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local(),
    };
    let interfaces = pnet_datalink::interfaces().into_iter();
    let all = interfaces
        .filter(pnet_datalink::NetworkInterface::is_up)
        .flat_map(|interface| interface.ips);
    all.map(|network| network.ip()).filter(is_elsewhere).collect()
}

/// The certificate that browsers have to trust: that of whoever signs the page's.
fn authority(team: &Team) -> CertificateParams {
    let mut params = lasting(&format!("Coorp page of {}", team.name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Addresses are not constrained.
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(LOCAL.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    params
}

/// The page's own certificate, as it is now.
fn named(address: IpAddr, host: Option<&str>) -> Result<CertificateParams, Error> {
    let mut params = lasting("Coorp page");
    let now = SystemTime::now();
    params.not_before = (now - VALID_BEFORE).into();
    params.not_after = (now + VALID_AFTER).into();
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    if let Some(host) = host {
        let name = local_name(host).try_into().map_err(failed)?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn key_of(identity: &Identity) -> Result<KeyPair, Error> {
    let key = &identity.key;
    KeyPair::from_pem(&read(key)?)
        .map_err(|error| Error::Keys(format!("{} is not a key of Coorp's: {error}", key.display())))
}

/// Admits only the operator's certificates: signed by the team's authority, and not revoked.
#[derive(Debug)]
struct Operators {
    signed: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    /// The newest list so far.
    revoked: Revoked,
    keys: PathBuf,
}

impl Operators {
    /// Checks what is left once the certificate's signature and its dates are good. Reads the list of revoked
    /// certificates again, because there may be a newer one; if there is none any more, the last one counts.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if name_in(certificate).as_deref() != Some(OPERATOR) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        // With a damaged list, nobody is admitted.
        let read = Revoked::load(&self.authorities, &self.keys, None);
        let read = read.map_err(|error| rustls::Error::General(error.to_string()))?;
        if let Some(list) = read.list() {
            self.revoked.on_list("the folder of the keys", &list);
        }
        if self.revoked.admits(certificate) {
            Ok(())
        } else {
            Err(CertificateError::Revoked.into())
        }
    }
}

impl ClientCertVerifier for Operators {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.signed.verify_client_cert(certificate, intermediates, now)?;
        self.check(certificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// The files that [`browser`] has written.
#[derive(Debug)]
pub struct Browser {
    /// The operator's key and certificates, as PKCS#12.
    pub identity: PathBuf,
    /// The password of that file.
    pub password: String,
    /// The certificate by which a browser trusts the page, as PEM.
    pub authority: PathBuf,
}

/// Writes what a browser needs to open the live page from another machine into a folder, and replaces older files.
///
/// # Errors
/// If the operator's keys are missing or revoked, or files cannot be written.
pub fn browser(team: &Team, into: &Path) -> Result<Browser, Error> {
    let identity = Identity::of(team, OPERATOR)?;
    let credentials = Credentials::of(&identity)?;
    Revoked::of(&credentials, &team.live.keys, None)?;
    let key = key_of(&identity)?;
    let trusted = authority(team).self_signed(&key).map_err(failed)?;
    // Not what it trusts: of the same key, some stores would take it for another certificate to show.
    let certificates: Vec<&[u8]> = credentials.chain().iter().map(AsRef::as_ref).collect();
    let password = p12::password()?;
    let packed = p12::pack(
        &format!("Coorp operator of {}", team.name),
        &key.serialize_der(),
        &certificates,
        &password,
    )?;
    let written = Browser {
        identity: into.join("operator.p12"),
        password,
        authority: into.join("page.crt"),
    };
    write(&written.identity, &packed, 0o600)?;
    write(&written.authority, trusted.pem().as_bytes(), 0o644)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use quinn::rustls::client::danger::ServerCertVerifier;
    use quinn::rustls::client::WebPkiServerVerifier;
    use quinn::rustls::pki_types::ServerName;
    use quinn::rustls::RootCertStore;

    use super::super::tests::{scratch, team};
    use super::super::{init, revoke};
    use super::*;

    #[test]
    fn what_browsers_trust_vouches_for_no_web_site_with_a_name() {
        let folder = scratch("page");
        let team = team(&folder);
        init(&team).unwrap();
        let page = Page::of(&team).unwrap();
        let key = key_of(&Identity::of(&team, OPERATOR).unwrap()).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(authority(&team).self_signed(&key).unwrap().der().clone())
            .unwrap();
        let browser = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), page.provider.clone());
        let browser = browser.build().unwrap();
        let accepts = |params: CertificateParams, name: &'static str| {
            let made = params.signed_by(&KeyPair::generate().unwrap(), &page.issuer).unwrap();
            let name = ServerName::try_from(name).unwrap();
            browser
                .verify_server_cert(made.der(), &[], &name, &[], UnixTime::now())
                .is_ok()
        };
        let here = || named("10.0.0.5".parse().unwrap(), Some("laptop")).unwrap();
        assert!(accepts(here(), "10.0.0.5") && accepts(here(), "laptop.local"));
        assert!(!accepts(here(), "10.0.0.6") && !accepts(here(), "other.local"));
        let mut site = here();
        site.subject_alt_names = vec![SanType::DnsName("bank.example".try_into().unwrap())];
        assert!(!accepts(site, "bank.example"));
        let mut old = here();
        old.not_after = (SystemTime::now() - Duration::from_secs(60)).into();
        assert!(!accepts(old, "10.0.0.5"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_for_a_browser_are_private_and_not_made_of_revoked_keys() {
        use std::os::unix::fs::PermissionsExt;
        let folder = scratch("browser");
        let team = team(&folder);
        init(&team).unwrap();
        let file = team.live.keys.join("operator.pem");
        let old = std::fs::read(&file).unwrap();
        let made = browser(&team, &folder).unwrap();
        let mode = std::fs::metadata(&made.identity).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(browser(&team, &folder).unwrap().password, made.password);
        revoke(&team, OPERATOR).unwrap();
        browser(&team, &folder).unwrap();
        std::fs::write(file, old).unwrap();
        let refused = browser(&team, &folder).unwrap_err().to_string();
        assert!(refused.contains("is revoked"), "{refused}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
