//! The live page on other machines: whom it admits, and how it proves itself to them.
//!
//! A browser shows the operator's certificate, which only the team's authority can sign. [`browser`] packs it into one
//! file for the browser's store of keys.
//!
//! The page's own certificate names the address that a browser connects to, so it is made when somebody does
//! ([`Page::server`]). An authority for that alone signs it: a machine that watches has its key, and best not that of the
//! team's authority.
//!
//! Constraints limit this authority to addresses and to names below `.local`. A thief of its key cannot pose to a browser as
//! a web site with a name. Browsers may ignore constraints in a certificate that they trust directly (RFC 5280, 6.2), but not
//! in one between it and the page's. So a root signs the authority's certificate, and browsers trust the root. The root's key
//! is kept nowhere.
//!
//! All this protects only people who do not go on past a browser's warning. A page in between that one has accepted runs its
//! script under the address of the true one. Its browser then shows the operator's certificate to the true page, and the
//! script reads along (dynamic pharming).

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

use super::bundle::encoded;
use super::{check_private, failed, lasting, name_in, p12, pair, read, write, Identity, OPERATOR};
use crate::quic::Credentials;
use crate::revoked::Revoked;
use crate::Error;

/// The domain of the names that machines on a LAN give themselves (RFC 6762).
const LOCAL: &str = "local";
/// How long the page's certificate is valid before and after it is made. Some browsers accept 825 days at most.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 3_600);
const VALID_AFTER: Duration = Duration::from_secs(800 * 24 * 3_600);
/// How long the page's authority is valid.
const AUTHORITY_VALID: Duration = Duration::from_secs(3_652 * 24 * 3_600);
/// The key of the page's authority, and its certificate with its root's.
const AUTHORITY: &str = "page";
const HTTP: &[u8] = b"http/1.1";

/// What a server of the live page needs to prove itself to browsers, and to tell the operator's from others.
#[derive(Debug)]
pub struct Page {
    authority: Authority,
    operators: Arc<Operators>,
    provider: Arc<CryptoProvider>,
}

impl Page {
    /// Loads the operator's keys, and those of the page's authority.
    ///
    /// # Errors
    /// If keys are missing, cannot be used, or are revoked.
    pub fn of(team: &Team) -> Result<Page, Error> {
        let identity = Identity::of(team, OPERATOR)?;
        let credentials = Credentials::of(&identity)?;
        let keys = team.live.keys.clone();
        Ok(Page {
            authority: Authority::of(&keys)?,
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
        let certificate = params.signed_by(&key, &self.authority.issuer).map_err(failed)?;
        let config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?;
        let mut config = config
            .with_client_cert_verifier(self.operators.clone())
            .with_single_cert(
                vec![certificate.der().clone(), self.authority.certificate.clone()],
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

/// What signs the page's certificates.
#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// The certificate that browsers trust, as PEM.
    root: String,
}

impl Authority {
    /// Makes an authority, its root, and a key for either; the root's is kept nowhere.
    fn make(team: &Team) -> Result<(), Error> {
        let (certificate, key) = files(&team.live.keys);
        let (own, above) = (
            KeyPair::generate().map_err(failed)?,
            KeyPair::generate().map_err(failed)?,
        );
        let params = constrained(&format!("Coorp root for the page of {}", team.name), 1);
        let root = params.self_signed(&above).map_err(failed)?;
        let signed = constrained(&format!("Coorp page of {}", team.name), 0);
        let signed = signed.signed_by(&own, &Issuer::new(params, above)).map_err(failed)?;
        write(&key, own.serialize_pem().as_bytes(), 0o600)?;
        write(&certificate, (signed.pem() + &root.pem()).as_bytes(), 0o644)
    }

    /// Loads the authority.
    fn of(folder: &Path) -> Result<Authority, Error> {
        let (certificate, key) = files(folder);
        for file in [&certificate, &key] {
            if !file.exists() {
                return Err(Error::Keys(format!(
                    "{} is missing: 'coorp keys browser' makes it, and the files for browsers; from another machine, \
                     'coorp keys bundle @operator' brings both",
                    file.display()
                )));
            }
        }
        check_private(&key)?;
        let damaged = || {
            Error::Keys(format!(
                "{} is damaged: delete it, and make another one with 'coorp keys browser'",
                certificate.display()
            ))
        };
        let sections = pem::parse_many(read(&certificate)?).map_err(|_| damaged())?;
        let [own, root] = sections.as_slice() else {
            return Err(damaged());
        };
        let own = CertificateDer::from(own.contents().to_vec());
        Ok(Authority {
            issuer: Issuer::from_ca_cert_der(&own, key_of(&key)?).map_err(|_| damaged())?,
            certificate: own,
            root: encoded(&[root]),
        })
    }
}

/// Returns the certificates and the key of the page's authority.
pub(super) fn files(folder: &Path) -> (PathBuf, PathBuf) {
    pair(folder, AUTHORITY)
}

/// Deletes the page's authority, if there is one.
pub(super) fn forget(folder: &Path) -> Result<(), Error> {
    let (certificate, key) = files(folder);
    for file in [certificate, key].iter().filter(|file| file.exists()) {
        std::fs::remove_file(file).map_err(|error| Error::at("delete", file, error))?;
    }
    Ok(())
}

/// The certificate of an authority for the page alone, with at most so many authorities below it. Any address may be in
/// certificates: networks of universities have public ones.
fn constrained(name: &str, below: u8) -> CertificateParams {
    let mut params = lasting(name);
    let now = SystemTime::now();
    params.not_before = (now - VALID_BEFORE).into();
    params.not_after = (now + AUTHORITY_VALID).into();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(LOCAL.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    params.use_authority_key_identifier_extension = true;
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

fn key_of(key: &Path) -> Result<KeyPair, Error> {
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
    /// The root by which a browser trusts the page, as PEM.
    pub authority: PathBuf,
}

/// Writes what a browser needs to open the live page from another machine into a folder, and replaces older files. Makes
/// the page's authority, if there is none.
///
/// # Errors
/// If the operator's keys are missing or revoked, or files cannot be written.
pub fn browser(team: &Team, into: &Path) -> Result<Browser, Error> {
    let identity = Identity::of(team, OPERATOR)?;
    let credentials = Credentials::of(&identity)?;
    Revoked::of(&credentials, &team.live.keys, None)?;
    let (certificate, key) = files(&team.live.keys);
    if !(certificate.exists() && key.exists()) {
        Authority::make(team)?;
    }
    let trusted = Authority::of(&team.live.keys)?.root;
    let key = key_of(&identity.key)?;
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
    write(&written.authority, trusted.as_bytes(), 0o644)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use quinn::rustls::client::danger::ServerCertVerifier;
    use quinn::rustls::client::WebPkiServerVerifier;
    use quinn::rustls::pki_types::pem::PemObject;
    use quinn::rustls::pki_types::ServerName;
    use quinn::rustls::RootCertStore;

    use super::super::tests::{scratch, team, two_machines};
    use super::super::{bundle, init, install, member, revoke};
    use super::*;

    #[test]
    fn what_browsers_trust_vouches_for_no_web_site_with_a_name() {
        let folder = scratch("page");
        let team = team(&folder);
        init(&team).unwrap();
        let missing = Page::of(&team).unwrap_err().to_string();
        assert!(
            missing.contains("page.pem is missing: 'coorp keys browser'"),
            "{missing}"
        );
        let trusted = browser(&team, &folder).unwrap().authority;
        let page = Page::of(&team).unwrap();
        let accepts_chain = |certificate: &CertificateDer<'_>, above: &[CertificateDer<'_>], name: &'static str| {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(&trusted).unwrap()).unwrap();
            // Some browsers ignore constraints in what they trust.
            assert!(roots.roots[0].name_constraints.take().is_some());
            let browser = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), page.provider.clone());
            let name = ServerName::try_from(name).unwrap();
            let browser = browser.build().unwrap();
            let verified = browser.verify_server_cert(certificate, above, &name, &[], UnixTime::now());
            verified.is_ok()
        };
        let accepts = |params: CertificateParams, name: &'static str| {
            let made = params.signed_by(&KeyPair::generate().unwrap(), &page.authority.issuer);
            accepts_chain(
                made.unwrap().der(),
                std::slice::from_ref(&page.authority.certificate),
                name,
            )
        };
        let here = || named("10.0.0.5".parse().unwrap(), Some("laptop")).unwrap();
        assert!(accepts(here(), "10.0.0.5") && accepts(here(), "laptop.local"));
        assert!(!accepts(here(), "10.0.0.6") && !accepts(here(), "other.local"));
        let mut site = here();
        site.subject_alt_names = vec![SanType::DnsName("bank.example".try_into().unwrap())];
        assert!(!accepts(site, "bank.example"));
        // Nor does an authority below this one.
        let (below, key) = (constrained("below", 0), KeyPair::generate().unwrap());
        let signed = below.signed_by(&key, &page.authority.issuer).unwrap();
        let made = here().signed_by(&KeyPair::generate().unwrap(), &Issuer::new(below, key));
        let above = [signed.der().clone(), page.authority.certificate.clone()];
        assert!(!accepts_chain(made.unwrap().der(), &above, "10.0.0.5"));
        let mut old = here();
        old.not_after = (SystemTime::now() - Duration::from_secs(60)).into();
        assert!(!accepts(old, "10.0.0.5"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_certificate_that_another_key_than_the_authoritys_has_signed_opens_the_page() {
        let folder = scratch("issuers");
        let team = team(&folder);
        init(&team).unwrap();
        browser(&team, &folder).unwrap();
        let page = Page::of(&team).unwrap();
        let admits = |certificate: &CertificateDer<'_>, above: &[CertificateDer<'_>]| {
            let verified = page.operators.verify_client_cert(certificate, above, UnixTime::now());
            verified.is_ok()
        };
        let certificates = |file: &Path| -> Vec<CertificateDer<'static>> {
            let all = CertificateDer::pem_file_iter(file).unwrap();
            all.map(Result::unwrap).collect()
        };
        let operator = Identity::of(&team, OPERATOR).unwrap();
        assert!(admits(&certificates(&operator.certificate)[0], &[]));
        let robot = Identity::of(&team, "base").unwrap();
        let (page_certificate, page_key) = files(&team.live.keys);
        for (name, certificate, key) in [
            (OPERATOR, &operator.certificate, &operator.key),
            ("base", &robot.certificate, &robot.key),
            ("Coorp page of team", &page_certificate, &page_key),
        ] {
            let above = certificates(certificate);
            let made = KeyPair::generate().unwrap();
            let issuer = Issuer::from_ca_cert_der(&above[0], key_of(key).unwrap()).unwrap();
            let forged = member(OPERATOR).unwrap().signed_by(&made, &issuer).unwrap();
            assert!(
                !admits(forged.der(), &above[..1]) && !admits(forged.der(), &[]),
                "{name}"
            );
        }
        // What browsers trust, and what it has signed, as the certificate to show.
        let trusted = certificates(&page_certificate);
        assert_eq!(trusted.len(), 2);
        for certificate in &trusted {
            assert!(!admits(certificate, &[]) && !admits(certificate, &trusted[1..]));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn all_devices_trust_the_same_page_until_the_operators_certificate_is_revoked() {
        let ([here, there], [team, other]) = two_machines("page-authority");
        let trusted = |team: &Team, folder: &Path| std::fs::read(browser(team, folder).unwrap().authority).unwrap();
        let first = trusted(&team, &here);
        assert_eq!(trusted(&team, &here), first);
        let (certificate, key) = files(&team.live.keys);
        let file = bundle(&team, OPERATOR, &here).unwrap();
        install(&other, &file).unwrap();
        assert_eq!(trusted(&other, &there), first);
        check_private(&files(&other.live.keys).1).unwrap();
        // Parts of two authorities.
        let whole = std::fs::read_to_string(&file).unwrap();
        let foreign = KeyPair::generate().unwrap().serialize_pem();
        std::fs::write(&file, whole.replace(&read(&key).unwrap(), &foreign)).unwrap();
        let refused = install(&other, &file).unwrap_err().to_string();
        assert!(refused.contains("coorp keys bundle"), "{refused}");
        revoke(&team, OPERATOR).unwrap();
        assert!(!certificate.exists() && !key.exists());
        // A bundle without an authority removes one that may be stolen.
        install(&other, &bundle(&team, OPERATOR, &here).unwrap()).unwrap();
        assert!(Page::of(&other).is_err());
        assert_ne!(trusted(&team, &here), first);
        for folder in [here, there] {
            std::fs::remove_dir_all(folder).unwrap();
        }
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
