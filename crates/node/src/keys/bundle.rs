//! The keys of one robot or operator in one file: PEM sections with its key, its certificate, the authority's, and the
//! list of revoked certificates. The operator's also has the key and certificates of the page's authority, if there are any.
//!
//! [`bundle`] writes the file where the keys were made. [`install`] unpacks it on the robot: it checks that the parts
//! belong together and to the team, and puts them where a robot looks for them.

use std::fs;
use std::path::{Path, PathBuf};

use coorp_team::Team;
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{check_private, files, make_folders, name_in, page, pair, read, write, Identity, AUTHORITY, OPERATOR};
use crate::file_name::file_name;
use crate::member::robot_named;
use crate::revoked::{List, FILE};
use crate::Error;

/// The maximum length of a bundle, bytes.
const BYTES_MAX: u64 = 256 << 10;
const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";
const LIST: &str = "X509 CRL";

/// Writes the keys of a robot, or of the [`OPERATOR`], into one file of a folder, and replaces an older one.
///
/// # Errors
/// If the team has no such robot, or files are missing or cannot be read or written.
pub fn bundle(team: &Team, name: &str, into: &Path) -> Result<PathBuf, Error> {
    check_name(team, name)?;
    let identity = Identity::of(team, name)?;
    let mut text = String::new();
    for part in [&identity.key, &identity.certificate, &identity.authority] {
        text += &read(part)?;
    }
    let revoked = team.live.keys.join(FILE);
    if revoked.exists() {
        let list = fs::read(&revoked).map_err(|error| Error::at("read", &revoked, error))?;
        text += &encoded(&[&Pem::new(LIST, list)]);
    }
    let (certificate, key) = page::files(&team.live.keys);
    if name == OPERATOR && certificate.exists() && key.exists() {
        text += &(read(&key)? + &read(&certificate)?);
    }
    let path = into.join(format!("{}.bundle", file_name(name)));
    write(&path, text.as_bytes(), 0o600)?;
    Ok(path)
}

/// Unpacks a bundle into the team's folder of keys, and replaces older files. Returns the owner's name.
///
/// # Errors
/// If other users may read it, its parts do not belong together or to this team, this folder has the authority's key,
/// or files cannot be written.
pub fn install(team: &Team, file: &Path) -> Result<String, Error> {
    check_private(file)?;
    let folder = &team.live.keys;
    let (authority, authority_key) = pair(folder, AUTHORITY);
    if authority_key.exists() {
        return Err(Error::Keys(format!(
            "{} has the authority's key, so these keys were made here, and nothing needs to be installed",
            folder.display()
        )));
    }
    let length = fs::metadata(file)
        .map_err(|error| Error::at("read", file, error))?
        .len();
    let text = if length <= BYTES_MAX {
        read(file)?
    } else {
        String::new()
    };
    let parts = Parts::of(&text).ok_or_else(|| {
        Error::Keys(format!(
            "{} is damaged, or not a bundle: make it again with 'coorp keys bundle'",
            file.display()
        ))
    })?;
    check_name(team, &parts.name)?;
    make_folders(folder)?;
    let (certificate, key) = files(folder, &parts.name);
    write(&key, parts.key.as_bytes(), 0o600)?;
    write(&certificate, parts.chain.as_bytes(), 0o644)?;
    write(&authority, parts.authorities.as_bytes(), 0o644)?;
    if let Some(list) = &parts.list {
        write(&folder.join(FILE), list, 0o644)?;
    }
    if parts.name == OPERATOR {
        page::forget(folder)?;
        if let Some((key, certificates)) = &parts.page {
            let (certificate_file, key_file) = page::files(folder);
            write(&key_file, key.as_bytes(), 0o600)?;
            write(&certificate_file, certificates.as_bytes(), 0o644)?;
        }
    }
    Ok(parts.name)
}

/// Refuses names that belong neither to a robot of the team nor to the operator.
pub(super) fn check_name(team: &Team, name: &str) -> Result<(), Error> {
    if name == OPERATOR {
        return Ok(());
    }
    robot_named(team, name).map(|_| ())
}

/// The sections of a bundle, as PEM.
struct Parts {
    name: String,
    key: String,
    chain: String,
    authorities: String,
    list: Option<Vec<u8>>,
    /// The key and the certificates of the page's authority.
    page: Option<(String, String)>,
}

impl Parts {
    /// Returns the parts of a bundle; `None` if they do not belong together.
    fn of(text: &str) -> Option<Parts> {
        let all = pem::parse_many(text).ok()?;
        // The second key and what follows are the page's.
        let mut keys = all.iter().enumerate().filter(|(_, section)| section.tag() == KEY);
        let (sections, page) = all.split_at(keys.nth(1).map_or(all.len(), |(place, _)| place));
        let page = match page {
            [] => None,
            [key, certificates @ ..] => {
                let (_, certificate) = X509Certificate::from_der(certificates.first()?.contents()).ok()?;
                let public = KeyPair::try_from(key.contents()).ok()?.subject_public_key_info();
                if certificate.public_key().raw != public.as_slice() {
                    return None;
                }
                let certificates: Vec<&Pem> = certificates.iter().collect();
                Some((encoded(&[key]), encoded(&certificates)))
            }
        };
        let tagged = |tag| sections.iter().filter(move |section| section.tag() == tag);
        let own = tagged(CERTIFICATE).next()?;
        let (_, certificate) = X509Certificate::from_der(own.contents()).ok()?;
        let (authorities, chain): (Vec<&Pem>, Vec<&Pem>) =
            tagged(CERTIFICATE).partition(|section| is_authority(section.contents()));
        let key = tagged(KEY).next()?;
        let public = KeyPair::try_from(key.contents()).ok()?.subject_public_key_info();
        let (_, newest) = X509Certificate::from_der(authorities.first()?.contents()).ok()?;
        certificate.verify_signature(Some(newest.public_key())).ok()?;
        let list = tagged(LIST).next().map(|list| list.contents().to_vec());
        let signers: Vec<_> = authorities.iter().map(|section| section.contents().into()).collect();
        let is_signed = list.as_ref().is_none_or(|list| List::read(list, &signers).is_some());
        let fits = certificate.public_key().raw == public.as_slice() && is_signed;
        fits.then_some(Parts {
            name: name_in(own.contents())?,
            page,
            list,
            key: encoded(&[key]),
            chain: encoded(&chain),
            authorities: encoded(&authorities),
        })
    }
}

/// Returns whether a certificate is an authority's own.
fn is_authority(der: &[u8]) -> bool {
    X509Certificate::from_der(der)
        .is_ok_and(|(_, certificate)| certificate.is_ca() && certificate.verify_signature(None).is_ok())
}

pub(super) fn encoded(sections: &[&Pem]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let encoded = sections.iter().map(|section| pem::encode_config(section, config));
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::two_machines;
    use super::super::{revoke, ROBOTS};
    use super::*;

    #[test]
    fn a_bundle_brings_a_robot_what_it_needs() {
        let ([here, there], [team, robots]) = two_machines("bundle");
        revoke(&team, "base").unwrap();
        fs::create_dir_all(&there).unwrap();
        for name in ["r..1", OPERATOR, "r..1"] {
            let file = bundle(&team, name, &there).unwrap();
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(install(&robots, &file).unwrap(), name);
            let (of, at) = (Identity::of(&team, name).unwrap(), Identity::of(&robots, name).unwrap());
            for (of, at) in [
                (of.key, at.key),
                (of.certificate, at.certificate),
                (of.authority, at.authority),
            ] {
                assert_eq!(fs::read(of).unwrap(), fs::read(at).unwrap());
            }
        }
        let list = |team: &Team| fs::read(team.live.keys.join(FILE)).unwrap();
        assert_eq!(list(&team), list(&robots));
        let again = install(&team, &there.join("r..1.bundle")).unwrap_err().to_string();
        assert!(again.contains("were made here"), "{again}");
        for folder in [here, there] {
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn what_does_not_belong_together_is_not_installed() {
        let ([here, there], [team, robots]) = two_machines("odd");
        let file = bundle(&team, "base", &here).unwrap();
        let whole = fs::read_to_string(&file).unwrap();
        let key = |name: &str| fs::read_to_string(team.live.keys.join(ROBOTS).join(name)).unwrap();
        let others_key = whole.replace(&key("base.key"), &key("r..1.key"));
        let no_authority = whole[..whole.rfind("-----BEGIN").unwrap()].to_owned();
        for odd in [String::new(), others_key, no_authority, whole.replace('M', "N")] {
            fs::write(&file, odd).unwrap();
            let refused = install(&robots, &file).unwrap_err().to_string();
            assert!(refused.contains("coorp keys bundle"), "{refused}");
        }
        fs::write(&file, &whole).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let open = install(&robots, &file).unwrap_err().to_string();
        assert!(open.contains("chmod 600"), "{open}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let text = "[[robot]]\nname = \"other\"\nleader = true\n[[robot]]\nname = \"another\"\n";
        let strangers = coorp_team::parse(text, "t.toml", &there).unwrap();
        let unknown = install(&strangers, &file).unwrap_err().to_string();
        assert!(unknown.contains("no robot \"base\""), "{unknown}");
        assert!(!robots.live.keys.exists());
        fs::remove_dir_all(here).unwrap();
    }
}
