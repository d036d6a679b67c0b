//! Renews the team's authority and all keys, while robots with new keys and robots with old ones still talk to each
//! other.
//!
//! [`renew`] creates everything again, and keeps the previous keys in the folder `old`. A robot with new keys admits
//! both authorities. To a robot that knows only the old one it shows, beside its certificate, one of the new authority
//! that the old one has signed (RFC 4210, section 4.4: new with old). Until the end, the old authority signs the lists
//! of revoked certificates, because all robots know it.
//!
//! [`finish`] ends this with a list that the new authority signs, and in which the old one is revoked. The list spreads
//! like any other, so no robot has to be visited twice.

use std::fs;
use std::path::{Path, PathBuf};

use coorp_team::Team;
use rcgen::{Issuer, KeyPair};

use super::bundle::encoded;
use super::revoke::{serial, write_list};
use super::{
    authority, authority_of, certify, failed, make_folders, pair, read, write, write_new, AuthorityKey, AUTHORITY,
    OPERATOR,
};
use crate::ground::Linux;
use crate::revoked::{List, FILE};
use crate::Error;

/// The folder of the previous keys, within the folder of the keys.
const OLD: &str = "old";
/// The certificate of the new authority that the old one has signed.
const LINK: &str = "link.pem";

/// Returns the folder with the old keys; `None` if keys are not being renewed.
pub(super) fn old(folder: &Path) -> Option<PathBuf> {
    let old = folder.join(OLD);
    old.exists().then_some(old)
}

/// Returns the certificate by which robots with old keys accept the new authority, as PEM; empty if keys are not being
/// renewed.
pub(super) fn link(folder: &Path) -> Result<String, Error> {
    match old(folder) {
        Some(_) => read(&folder.join(LINK)),
        None => Ok(String::new()),
    }
}

/// Returns the folder in which new keys are made, until they are complete.
fn beside(folder: &Path) -> PathBuf {
    let mut new = folder.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Refuses to make keys if a renewal was interrupted between its last two steps.
pub(super) fn check_whole(folder: &Path) -> Result<(), Error> {
    let new = beside(folder);
    if folder.exists() || old(&new).is_none() {
        return Ok(());
    }
    Err(Error::Keys(format!(
        "{} is missing, because a renewal was interrupted: 'coorp keys renew' continues with {}",
        folder.display(),
        new.display()
    )))
}

/// Creates a new authority and new keys for all. Returns whether it did; if not, keys are already being renewed.
///
/// # Errors
/// If the authority's key is not here, or files cannot be read or written.
pub fn renew(team: &Team) -> Result<bool, Error> {
    let folder = &team.live.keys;
    if old(folder).is_some() {
        return Ok(false);
    }
    let new = beside(folder);
    if check_whole(folder).is_ok() {
        let before = authority_of(folder)?;
        if new.exists() {
            // Left by an attempt that was interrupted before anything was moved.
            fs::remove_dir_all(&new).map_err(|error| Error::at("delete", &new, error))?;
        }
        make_all(team, folder, &new, &before)?;
        fs::rename(folder, new.join(OLD)).map_err(|error| Error::at("move", folder, error))?;
    }
    fs::rename(&new, folder).map_err(|error| Error::at("move", &new, error))?;
    Ok(true)
}

fn make_all(team: &Team, folder: &Path, new: &Path, before: &AuthorityKey) -> Result<(), Error> {
    make_folders(new)?;
    let made = KeyPair::generate().map_err(failed)?;
    let params = authority(team);
    let own = params.self_signed(&made).map_err(failed)?;
    let link = params.signed_by(&made, &before.issuer).map_err(failed)?.pem();
    let (certificate, key) = pair(new, AUTHORITY);
    write_new(&key, &made.serialize_pem(), 0o600)?;
    let known = read(&pair(folder, AUTHORITY).0)?;
    write_new(&certificate, &(own.pem() + &known), 0o644)?;
    write_new(&new.join(LINK), &link, 0o644)?;
    let authority = AuthorityKey {
        issuer: Issuer::new(params, made),
        certificates: Vec::new(),
        link,
    };
    let names = team.robots.iter().map(|robot| robot.name.as_str());
    for name in names.chain([OPERATOR]) {
        certify(new, name, &authority)?;
    }
    let list = folder.join(FILE);
    if list.exists() {
        let copied = fs::read(&list).map_err(|error| Error::at("read", &list, error))?;
        write(&new.join(FILE), &copied, 0o644)?;
    }
    Ok(())
}

/// Ends the renewal: the old authority and its certificates are no longer valid. Returns the number of the list that
/// says so.
///
/// # Errors
/// If no keys are being renewed, or files cannot be read or written.
pub fn finish(team: &Team) -> Result<u64, Error> {
    let folder = &team.live.keys;
    let Some(old) = old(folder) else {
        return Err(Error::Keys(format!(
            "the keys in {} are not being renewed: 'coorp keys renew' begins a renewal",
            folder.display()
        )));
    };
    let authority = authority_of(folder)?;
    let mut list = List::load(&Linux, &folder.join(FILE), &authority.certificates)?.unwrap_or_default();
    list.serials.insert(serial(&pair(&old, AUTHORITY).0)?);
    list.number += 1;
    write_list(folder, &authority, &list)?;
    // Keep only the authority's own certificate: bundles made from now on contain no other.
    let certificate = pair(folder, AUTHORITY).0;
    let known = read(&certificate)?;
    let own = pem::parse_many(&known).map_err(failed)?.into_iter().next();
    let own = own.map_or(known, |own| encoded(&[&own]));
    write(&certificate, own.as_bytes(), 0o644)?;
    // Nobody needs it any more.
    let _ = fs::remove_file(folder.join(LINK));
    fs::remove_dir_all(&old).map_err(|error| Error::at("delete", &old, error))?;
    Ok(list.number)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{scratch, team, two_machines};
    use super::super::{bundle, init, install, revoke, Identity};
    use super::*;

    #[test]
    fn a_renewal_that_broke_off_goes_on() {
        let folder = scratch("broken");
        let team = team(&folder);
        assert!(renew(&team).is_err() && finish(&team).is_err());
        init(&team).unwrap();
        let keys = &team.live.keys;
        let first = read(&pair(keys, AUTHORITY).0).unwrap();
        // Before anything was moved.
        make_folders(&beside(keys)).unwrap();
        fs::write(beside(keys).join("ca.pem"), "half").unwrap();
        assert!(renew(&team).unwrap());
        assert_eq!(read(&pair(&keys.join(OLD), AUTHORITY).0).unwrap(), first);
        // Between the two moves.
        fs::rename(keys, beside(keys)).unwrap();
        let refused = init(&team).unwrap_err().to_string();
        assert!(refused.contains("coorp keys renew"), "{refused}");
        assert!(renew(&team).unwrap() && !renew(&team).unwrap());
        assert_eq!(read(&pair(&keys.join(OLD), AUTHORITY).0).unwrap(), first);
        assert_eq!(finish(&team).unwrap(), 1);
        assert!(!read(&pair(keys, AUTHORITY).0).unwrap().contains(&first));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_robot_that_joins_meanwhile_gets_both_authorities_and_one_that_joins_later_the_new_one() {
        let ([here, there], [team, robots]) = two_machines("joins");
        assert!(renew(&team).unwrap());
        revoke(&team, "base").unwrap();
        assert_eq!(init(&team).unwrap().certificates, ["base"]);
        let certificates = |file: &Path| read(file).unwrap().matches("BEGIN CERTIFICATE").count();
        for known in [2, 1] {
            let file = bundle(&team, "base", &here).unwrap();
            install(&robots, &file).unwrap();
            let identity = Identity::of(&robots, "base").unwrap();
            assert_eq!(certificates(&identity.authority), known);
            assert_eq!(
                certificates(&identity.certificate),
                2,
                "its own, and the new authority's by the old one"
            );
            let _ = finish(&team);
        }
        for folder in [here, there] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
