//! The team's keys: one certificate authority, and a certificate for each robot and for the operator.
//!
//! A certificate of the team's authority makes its owner a member, with the name in the certificate; everybody else is
//! ignored. [`init`] creates what is missing and never overwrites. [`Identity`] is what one robot needs: its own key
//! and certificate, and the authority's certificate. [`bundle`] puts them into one file, and [`install`] unpacks it on
//! the robot; [`page`] is about browsers. [`revoke`] locks out every owner of a certificate, and [`renew`] replaces all
//! keys. The authority's key stays with the operator.
//!
//! Certificates do not expire, because a robot's clock may start in 1970.

mod bundle;
mod p12;
pub mod page;
mod renew;
mod revoke;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use coorp_team::Team;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::CertificateDer;
use rcgen::{
    date_time_ymd, BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

pub use self::bundle::{bundle, install};
pub use self::renew::{finish, renew};
pub use self::revoke::revoke;
use crate::file_name::file_name;
use crate::ground::{replace, Linux};
use crate::state::make_private;
use crate::Error;

/// The name in the operator's certificate. The operator may look but not take part. No robot can have this name.
pub const OPERATOR: &str = "@operator";
/// The name that all robots' certificates are valid for; the common name identifies the robot.
pub(crate) const SERVER_NAME: &str = "robot.coorp.internal";

const AUTHORITY: &str = "ca";
const ROBOTS: &str = "robots";

/// The files that [`init`] has created.
#[derive(Debug, PartialEq, Eq)]
pub struct Made {
    /// Whether the authority is new.
    pub authority: bool,
    /// The certificates that did not exist yet, by name.
    pub certificates: Vec<String>,
}

/// Creates the team's authority and a certificate for every robot and the operator, if they are missing.
///
/// # Errors
/// If everything already exists, or files cannot be read or written.
pub fn init(team: &Team) -> Result<Made, Error> {
    let folder = &team.live.keys;
    renew::check_whole(folder)?;
    make_folders(folder)?;
    let (certificate, key) = pair(folder, AUTHORITY);
    let authority = match (certificate.exists(), key.exists()) {
        (false, false) => {
            let made = KeyPair::generate().map_err(failed)?;
            let signed = authority(team).self_signed(&made).map_err(failed)?;
            write_new(&key, &made.serialize_pem(), 0o600)?;
            write_new(&certificate, &signed.pem(), 0o644)?;
            true
        }
        (true, true) => false,
        (has_certificate, _) => {
            let missing = if has_certificate { &key } else { &certificate };
            return Err(Error::Keys(format!(
                "{} is missing, but the rest of the team's authority exists: copy it here from where the keys were \
                 made, or move {} away and make new keys for all",
                missing.display(),
                folder.display()
            )));
        }
    };
    let issuer = authority_of(folder)?;
    let mut certificates = Vec::new();
    let names = team.robots.iter().map(|robot| robot.name.as_str());
    for name in names.chain([OPERATOR]) {
        let (certificate, key) = files(folder, name);
        if certificate.exists() && key.exists() {
            continue;
        }
        certify(folder, name, &issuer)?;
        certificates.push(name.to_owned());
    }
    if !authority && certificates.is_empty() {
        return Err(Error::Keys(format!(
            "{} already has keys for the whole team, and they stay as they are; 'coorp keys revoke' revokes a \
             robot's",
            folder.display()
        )));
    }
    Ok(Made {
        authority,
        certificates,
    })
}

/// An authority that can sign.
struct AuthorityKey {
    issuer: Issuer<'static, KeyPair>,
    /// Certificates of the accepted authorities; the first is its own.
    certificates: Vec<CertificateDer<'static>>,
    /// The certificate by which robots that know only the previous authority accept this one: see [`renew`].
    link: String,
}

/// Loads the team's authority, on the machine where its keys were made.
fn authority_of(folder: &Path) -> Result<AuthorityKey, Error> {
    let (certificate, key) = pair(folder, AUTHORITY);
    let unusable = |path: &Path, error: String| {
        Error::Keys(format!(
            "{} is not a key or certificate of Coorp's: {error}",
            path.display()
        ))
    };
    let signs = KeyPair::from_pem(&read(&key)?).map_err(|error| unusable(&key, error.to_string()))?;
    let certificates = CertificateDer::pem_file_iter(&certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| unusable(&certificate, error.to_string()))?;
    let own = certificates
        .first()
        .ok_or_else(|| unusable(&certificate, "it is empty".to_owned()))?;
    let issuer = Issuer::from_ca_cert_der(own, signs).map_err(|error| unusable(&certificate, error.to_string()))?;
    let link = renew::link(folder)?;
    Ok(AuthorityKey {
        issuer,
        certificates,
        link,
    })
}

/// Makes a key and a certificate for a robot or the operator.
fn certify(folder: &Path, name: &str, authority: &AuthorityKey) -> Result<(), Error> {
    let (certificate, key) = files(folder, name);
    let made = KeyPair::generate().map_err(failed)?;
    let signed = member(name)?.signed_by(&made, &authority.issuer).map_err(failed)?;
    write_new(&key, &made.serialize_pem(), 0o600)?;
    write_new(&certificate, &(signed.pem() + &authority.link), 0o644)
}

/// Returns the name in a certificate.
pub(crate) fn name_in(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

/// The files that prove one member's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The member's certificate.
    pub certificate: PathBuf,
    /// The member's private key.
    pub key: PathBuf,
}

impl Identity {
    /// Returns the identity of a robot of the team, or of its [`OPERATOR`].
    ///
    /// # Errors
    /// If a file is missing or cannot be read, or others may read the private key or look into the folder.
    pub fn of(team: &Team, name: &str) -> Result<Identity, Error> {
        let folder = &team.live.keys;
        let (certificate, key) = files(folder, name);
        let authority = folder.join(AUTHORITY).with_extension("pem");
        for file in [&authority, &certificate, &key] {
            if !file.exists() {
                return Err(Error::Keys(format!(
                    "{} is missing: create the team's keys with 'coorp keys init', or bring them here from where they \
                     were made, by 'coorp keys bundle' and 'coorp keys install'. Or, on a network that nobody else can \
                     reach, run without keys: --insecure, in Python insecure=True",
                    file.display()
                )));
            }
            read(file)?;
        }
        let owner = CertificateDer::from_pem_file(&certificate).ok();
        let owner = owner.and_then(|certificate| name_in(&certificate));
        if owner.as_deref() != Some(name) {
            return Err(Error::Keys(format!(
                "{} is the certificate of {}, not of {name}: do not rename key files",
                certificate.display(),
                owner.as_deref().unwrap_or("nobody")
            )));
        }
        let folders = [Some(folder.as_path()), certificate.parent()];
        for private in folders.into_iter().flatten().chain([key.as_path()]) {
            check_private(private)?;
        }
        Ok(Identity {
            authority,
            certificate,
            key,
        })
    }
}

/// Refuses a private file or folder that other users of this machine may open.
fn check_private(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|error| Error::at("read", path, error))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    let (may, mode) = if metadata.is_dir() {
        ("look into", 700)
    } else {
        ("read", 600)
    };
    let path = path.display();
    Err(Error::Keys(format!(
        "other users of this machine may {may} {path}: chmod {mode} it"
    )))
}

/// Creates the folders of keys that are missing.
fn make_folders(folder: &Path) -> Result<(), Error> {
    for folder in [folder, &folder.join(ROBOTS)] {
        make_private(&Linux, folder)?;
        check_private(folder)?;
    }
    Ok(())
}

/// Returns a self-signed certificate with a name, and its private key, both DER.
pub(crate) fn unsigned(name: &str) -> Result<(CertificateDer<'static>, Vec<u8>), Error> {
    let made = KeyPair::generate().map_err(failed)?;
    let signed = member(name)?.self_signed(&made).map_err(failed)?;
    Ok((signed.der().clone(), made.serialize_der()))
}

fn authority(team: &Team) -> CertificateParams {
    let mut params = lasting(&format!("Coorp team {}", team.name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn member(name: &str) -> Result<CertificateParams, Error> {
    let mut params = lasting(name);
    let server_name = SERVER_NAME.try_into().map_err(failed)?;
    params.subject_alt_names = vec![rcgen::SanType::DnsName(server_name)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Returns certificate parameters that are valid from before any robot's clock to after all of them.
fn lasting(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(2999, 12, 31);
    params
}

/// Returns the certificate and the key of a robot or the operator.
fn files(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    if name == OPERATOR {
        pair(folder, "operator")
    } else {
        pair(&folder.join(ROBOTS), name)
    }
}

fn pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    // Names may contain dots, so `with_extension` would cut them.
    let name = file_name(name);
    (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")))
}

/// Writes a file that must not exist yet.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(|error| Error::at("write", path, error))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| Error::at("write", path, error))
}

/// Writes a whole file, and replaces an existing one.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    replace(&Linux, path, bytes, mode).map_err(|error| Error::at("write", path, error))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::at("read", path, error))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Crypto(format!("cannot make keys: {error}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn team(folder: &Path) -> Team {
        let text = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"r..1\"\n";
        coorp_team::parse(text, "t.toml", folder).unwrap()
    }

    pub fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("coorp-keys-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    /// Returns two folders, one in which a team's keys are made and a robot's, with the team in each.
    pub fn two_machines(name: &str) -> ([PathBuf; 2], [Team; 2]) {
        let folders = ["here", "there"].map(|place| scratch(&format!("{name}-{place}")));
        let teams = folders.each_ref().map(|folder| team(folder));
        init(&teams[0]).unwrap();
        (folders, teams)
    }

    #[test]
    fn keys_are_made_once_and_nobody_else_reads_them() {
        let folder = scratch("once");
        let team = team(&folder);
        let made = init(&team).unwrap();
        assert!(made.authority);
        assert_eq!(made.certificates, ["base", "r..1", OPERATOR]);
        for key in ["ca.key", "operator.key", "robots/base.key", "robots/r..1.key"] {
            let mode = fs::metadata(team.live.keys.join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        let before = fs::read(team.live.keys.join("ca.key")).unwrap();
        let again = init(&team).unwrap_err().to_string();
        assert!(again.contains("stay as they are"), "{again}");
        assert_eq!(fs::read(team.live.keys.join("ca.key")).unwrap(), before);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_robot_that_joins_gets_a_key_and_the_others_keep_theirs() {
        let folder = scratch("join");
        let team = team(&folder);
        init(&team).unwrap();
        let (certificate, key) = pair(&team.live.keys.join(ROBOTS), "base");
        let other = fs::read(team.live.keys.join("robots/r..1.pem")).unwrap();
        fs::remove_file(certificate).unwrap();
        fs::remove_file(key).unwrap();
        let made = init(&team).unwrap();
        assert_eq!((made.authority, made.certificates), (false, vec!["base".to_owned()]));
        assert_eq!(fs::read(team.live.keys.join("robots/r..1.pem")).unwrap(), other);
        fs::remove_file(team.live.keys.join("ca.key")).unwrap();
        let halved = init(&team).unwrap_err().to_string();
        assert!(halved.contains("ca.key is missing"), "{halved}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_key_that_is_missing_or_open_to_all_is_refused() {
        let folder = scratch("open");
        let team = team(&folder);
        let missing = Identity::of(&team, "base").unwrap_err().to_string();
        assert!(missing.contains("coorp keys init"), "{missing}");
        init(&team).unwrap();
        let identity = Identity::of(&team, "base").unwrap();
        let own = fs::read(&identity.certificate).unwrap();
        fs::copy(files(&team.live.keys, "r..1").0, &identity.certificate).unwrap();
        let renamed = Identity::of(&team, "base").unwrap_err().to_string();
        assert!(renamed.contains("certificate of r..1, not of base"), "{renamed}");
        fs::write(&identity.certificate, own).unwrap();
        fs::set_permissions(&identity.key, fs::Permissions::from_mode(0o640)).unwrap();
        let open = Identity::of(&team, "base").unwrap_err().to_string();
        assert!(open.contains("chmod 600"), "{open}");
        fs::set_permissions(&identity.key, fs::Permissions::from_mode(0o600)).unwrap();
        for folder in [&team.live.keys, &team.live.keys.join(ROBOTS)] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o750)).unwrap();
            for refused in [Identity::of(&team, "base").map(|_| ()), init(&team).map(|_| ())] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("chmod 700"), "{refused}");
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
