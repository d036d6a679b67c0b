//! Revokes certificates: signs a list of them, an X.509 CRL, with the authority's key.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use coorp_team::Team;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::CertificateDer;
use rcgen::{date_time_ymd, CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{authority_of, certify, failed, files, page, renew, write, AuthorityKey, OPERATOR};
use crate::ground::Linux;
use crate::revoked::{List, FILE};
use crate::wire::Revocations;
use crate::Error;

/// Revokes the certificate of a robot or of the [`OPERATOR`], and deletes it. Robots refuse the certificate as soon as
/// they have the new list. Returns the list's number. The operator gets another certificate at once, and
/// [`super::page::browser`] makes another authority for the page. [`super::init`] makes a certificate for a robot.
///
/// # Errors
/// If there is no such certificate, the authority's key or the last list is missing or damaged, or the list is full.
pub fn revoke(team: &Team, name: &str) -> Result<u64, Error> {
    let folder = &team.live.keys;
    let old = renew::old(folder);
    let folders = [Some(folder.as_path()), old.as_deref()];
    let folders = || folders.into_iter().flatten();
    let held: Vec<_> = folders()
        .map(|folder| files(folder, name))
        .filter(|(of, _)| of.exists())
        .collect();
    if held.is_empty() {
        return Err(Error::Keys(format!(
            "{} is missing: {name} has no certificate here to revoke",
            files(folder, name).0.display()
        )));
    }
    let authority = authority_of(folder)?;
    let mut list = List::load(&Linux, &folder.join(FILE), &authority.certificates)?.unwrap_or_default();
    for (certificate, _) in &held {
        list.serials.insert(serial(certificate)?);
    }
    list.number += 1;
    // While keys are being renewed, all robots know the old authority.
    match &old {
        Some(old) => write_list(folder, &authority_of(old)?, &list)?,
        None => write_list(folder, &authority, &list)?,
    }
    for file in held.iter().flat_map(|(certificate, key)| [certificate, key]) {
        fs::remove_file(file).map_err(|error| Error::at("delete", file, error))?;
    }
    if name == OPERATOR {
        // A thief of the operator's key may also have the page's.
        for folder in folders() {
            page::forget(folder)?;
        }
        certify(folder, name, &authority)?;
    }
    Ok(list.number)
}

/// Signs a list, and puts it beside the keys.
pub(super) fn write_list(folder: &Path, issuer: &AuthorityKey, list: &List) -> Result<(), Error> {
    let file = folder.join(FILE);
    let der = signed(issuer, list.number, &list.serials)?;
    if der.len() > Revocations::LIST_BYTES_MAX {
        return Err(Error::Keys(format!(
            "{} is full: 'coorp keys renew' replaces all keys, and then no list is needed",
            file.display()
        )));
    }
    write(&file, &der, 0o644)
}

fn signed(issuer: &AuthorityKey, number: u64, serials: &BTreeSet<Vec<u8>>) -> Result<Vec<u8>, Error> {
    // Dates mean nothing here, because a robot's clock may start in 1970.
    let revoked = |serial: &Vec<u8>| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: date_time_ymd(1970, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(1970, 1, 1),
        next_update: date_time_ymd(2999, 12, 31),
        crl_number: number.into(),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = params.signed_by(&issuer.issuer).map_err(failed)?;
    Ok(list.der().to_vec())
}

/// Returns the serial number of a certificate.
pub(super) fn serial(file: &Path) -> Result<Vec<u8>, Error> {
    let unusable = |error: String| Error::Keys(format!("{} is not a certificate: {error}", file.display()));
    let certificate = CertificateDer::from_pem_file(file).map_err(|error| unusable(error.to_string()))?;
    let (_, certificate) = X509Certificate::from_der(&certificate).map_err(|error| unusable(error.to_string()))?;
    Ok(certificate.raw_serial().to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{scratch, team};
    use super::super::{init, pair, Identity, AUTHORITY, ROBOTS};
    use super::*;
    use crate::revoked::Revoked;

    fn certificate(file: &Path) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(file).unwrap()
    }

    #[test]
    fn a_revoked_certificate_is_in_the_list_and_the_next_one_is_not() {
        let folder = scratch("revoke");
        let team = team(&folder);
        init(&team).unwrap();
        let file = |name: &str| team.live.keys.join(ROBOTS).join(name);
        let (stolen, other) = (certificate(&file("base.pem")), certificate(&file("r..1.pem")));
        assert_eq!(revoke(&team, "base").unwrap(), 1);
        let again = revoke(&team, "base").unwrap_err().to_string();
        assert!(again.contains("base.pem is missing"), "{again}");
        assert_eq!(init(&team).unwrap().certificates, ["base"]);
        let operators = certificate(&Identity::of(&team, OPERATOR).unwrap().certificate);
        assert_eq!(revoke(&team, OPERATOR).unwrap(), 2);
        let authority = certificate(&pair(&team.live.keys, AUTHORITY).0);
        let revoked = Revoked::load(&[authority], &team.live.keys, None).unwrap();
        assert!(!revoked.admits(&stolen) && !revoked.admits(&operators));
        assert!(revoked.admits(&other) && revoked.admits(&certificate(&file("base.pem"))));
        assert!(revoked.admits(&certificate(&Identity::of(&team, OPERATOR).unwrap().certificate)));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_newer_lists_of_the_own_authority_count_and_they_stay() {
        let [ours, theirs, state] = ["lists-ours", "lists-theirs", "lists-state"].map(scratch);
        fs::create_dir_all(&state).unwrap();
        let teams = [team(&ours), team(&theirs)];
        let lists = teams.each_ref().map(|team| {
            init(team).unwrap();
            ["base", "r..1"].map(|name| {
                revoke(team, name).unwrap();
                Revocations {
                    list: fs::read(team.live.keys.join(FILE)).unwrap(),
                }
            })
        });
        let [[older, newer], [_, foreign]] = lists;
        let authority = certificate(&pair(&teams[0].live.keys, AUTHORITY).0);
        let nowhere = ours.join("nowhere");
        let load = || {
            Revoked::load(
                std::slice::from_ref(&authority),
                &nowhere,
                Some((std::sync::Arc::new(Linux), &state)),
            )
        };
        let revoked = load().unwrap();
        assert!(revoked.list().is_none());
        assert!(revoked.on_list("r1", &older) && !revoked.on_list("r1", &older));
        assert!(revoked.on_list("r1", &newer) && !revoked.on_list("r1", &older));
        let mut longer = newer.clone();
        longer.list.push(0);
        let mut damaged = newer.clone();
        let middle = damaged.list.len() / 2;
        damaged.list[middle] ^= 1;
        for bad in [&foreign, &longer, &damaged, &Revocations { list: vec![] }] {
            assert!(!revoked.on_list("r1", bad));
        }
        revoked.keep();
        let status = revoked.status();
        assert_eq!((status.list, status.certificates, status.rejected), (2, 2, 4));
        // The list is there at the next start, and a damaged one is reported.
        let again = load().unwrap();
        assert_eq!(again.list(), Some(newer.clone()));
        for damage in [&damaged, &foreign, &Revocations { list: vec![] }] {
            fs::write(state.join(FILE), &damage.list).unwrap();
            let error = load().unwrap_err().to_string();
            assert!(error.contains("copy revoked.crl"), "{error}");
        }
        for folder in [ours, theirs, state] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
