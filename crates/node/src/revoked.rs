//! Knows which certificates are revoked, from the newest list of the team's authority that this robot has.
//!
//! A list is an X.509 CRL (RFC 5280) that the authority signs (`keys/revoke.rs`). Its number, and not a clock, says
//! which of two is newer. It contains the serial numbers of robots' and operators' certificates.
//!
//! Nothing is kept of a list before its signature is verified. The robot keeps the newest list in its state folder. At
//! its start it reads that list and the one beside its keys. A damaged file is an error, because a robot that ignores
//! it would admit revoked certificates.
//!
//! Connections are checked after their handshake, not in it: TLS resumes sessions without showing certificates again.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use quinn::rustls::pki_types::CertificateDer;
use x509_parser::prelude::{CertificateRevocationList, FromDer, ParsedExtension, X509Certificate};

use crate::ground::{replace, Disk, Linux};
use crate::quic::Credentials;
use crate::status;
use crate::sync::lock;
use crate::wire::Revocations;
use crate::Error;

/// The name of the file, in the folder of the keys and in the state folder.
pub(crate) const FILE: &str = "revoked.crl";

/// A robot's knowledge of revoked certificates.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    /// The authorities that may sign lists.
    authorities: Vec<CertificateDer<'static>>,
    /// The file in which the newest list is kept.
    file: Option<(Arc<dyn Disk>, PathBuf)>,
    inner: Mutex<Inner>,
    /// Locked while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    list: List,
    rejected: u64,
}

/// A list whose signature was verified; by default an empty list, before the first one.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// The list as it was signed.
    pub der: Vec<u8>,
    pub number: u64,
    pub serials: BTreeSet<Vec<u8>>,
    /// The index of its signer among the authorities, the newest first.
    pub signer: usize,
}

impl List {
    /// Reads a list that one of these authorities has signed; `None` if it is something else.
    pub fn read(der: &[u8], authorities: &[CertificateDer<'_>]) -> Option<List> {
        let (rest, list) = CertificateRevocationList::from_der(der).ok()?;
        let is_signed = |authority: &CertificateDer<'_>| {
            X509Certificate::from_der(authority)
                .is_ok_and(|(_, authority)| list.verify_signature(authority.public_key()).is_ok())
        };
        if der.len() > Revocations::LIST_BYTES_MAX || !rest.is_empty() {
            return None;
        }
        let signer = authorities.iter().position(is_signed)?;
        let number = match list.crl_number()?.to_u64_digits().as_slice() {
            [] => 0,
            [number] => *number,
            _ => return None,
        };
        let serials = list
            .iter_revoked_certificates()
            .map(|revoked| revoked.raw_serial().to_vec());
        Some(List {
            der: der.to_vec(),
            number,
            serials: serials.collect(),
            signer,
        })
    }

    /// Reads a list from a file; `None` if there is none.
    ///
    /// # Errors
    /// If the file cannot be read, or is not the authority's.
    pub fn load(disk: &dyn Disk, file: &Path, authorities: &[CertificateDer<'_>]) -> Result<Option<List>, Error> {
        let der = match disk.read(file) {
            Ok(der) => der,
            // If the folder cannot exist, nothing was kept.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(Error::at("read", file, error)),
        };
        let list = List::read(&der, authorities).ok_or_else(|| {
            Error::Keys(format!(
                "{} is damaged, or not from this team's authority, and without it revoked robots would be admitted: \
                 copy {FILE} from where the keys were made, or delete this file if another robot that is up has the list",
                file.display()
            ))
        })?;
        Ok(Some(list))
    }

    fn is_newer_than(&self, other: &List) -> bool {
        let rank = |list: &List| (std::cmp::Reverse(list.signer), list.number);
        other.der.is_empty() || rank(self) > rank(other)
    }
}

/// Returns whether a file is a complete list that another authority claims to have signed.
fn is_anothers(disk: &dyn Disk, file: &Path, authorities: &[CertificateDer<'_>]) -> bool {
    let Ok(der) = disk.read(file) else { return false };
    let Ok((_, list)) = CertificateRevocationList::from_der(&der) else {
        return false;
    };
    let signer = list
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(of) => of.key_identifier.as_ref(),
            _ => None,
        });
    let is_signer = |authority: &CertificateDer<'_>| {
        X509Certificate::from_der(authority).is_ok_and(|(_, authority)| {
            authority.iter_extensions().any(|extension| {
                matches!(extension.parsed_extension(), ParsedExtension::SubjectKeyIdentifier(key) if Some(key) == signer)
            })
        })
    };
    signer.is_some() && !authorities.iter().any(is_signer)
}

impl Revoked {
    /// Returns the knowledge of a robot or an operator at its start.
    ///
    /// # Errors
    /// If its own certificate is revoked, or a list is damaged.
    pub fn of(credentials: &Credentials, keys: &Path, state: Option<(Arc<dyn Disk>, &Path)>) -> Result<Revoked, Error> {
        let revoked = Revoked::load(credentials.authorities(), keys, state)?;
        if credentials.certificate().is_some_and(|own| !revoked.admits(own)) {
            return Err(Error::Keys(format!(
                "the certificate in {} is revoked: 'coorp keys init' makes a new one where the keys were made, and \
                 'coorp keys bundle' packs it into one file",
                keys.display()
            )));
        }
        Ok(revoked)
    }

    /// Loads the newer of the lists in the folder of the keys and in the state folder. Later lists are kept in the
    /// state folder.
    pub fn load(
        authorities: &[CertificateDer<'static>],
        keys: &Path,
        state: Option<(Arc<dyn Disk>, &Path)>,
    ) -> Result<Revoked, Error> {
        let file = state.map(|(disk, state)| (disk, state.join(FILE)));
        let own: (Arc<dyn Disk>, PathBuf) = (Arc::new(Linux), keys.join(FILE));
        let mut newest = List::default();
        for (disk, file) in [Some(own), file.clone()].into_iter().flatten() {
            let list = match List::load(&*disk, &file, authorities) {
                // The keys have been renewed since, and came with their own list.
                Err(_) if !newest.der.is_empty() && is_anothers(&*disk, &file, authorities) => None,
                list => list?,
            };
            if let Some(list) = list.filter(|list| list.is_newer_than(&newest)) {
                newest = list;
            }
        }
        let inner = Inner {
            list: newest,
            rejected: 0,
        };
        Ok(Revoked {
            authorities: authorities.to_vec(),
            file,
            inner: Mutex::new(inner),
            writing: Mutex::default(),
        })
    }

    /// Returns whether a certificate (DER) is still valid.
    pub fn admits(&self, certificate: &[u8]) -> bool {
        let inner = lock(&self.inner);
        let serials = &inner.list.serials;
        if serials.is_empty() {
            return true;
        }
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return false;
        };
        let authorities = self.authorities.iter();
        let authorities = authorities.filter_map(|authority| Some(X509Certificate::from_der(authority).ok()?.1));
        let (revoked, others): (Vec<_>, Vec<_>) =
            authorities.partition(|authority| serials.contains(authority.raw_serial()));
        let is_of =
            |authority: &X509Certificate<'_>| certificate.verify_signature(Some(authority.public_key())).is_ok();
        !serials.contains(certificate.raw_serial()) && (revoked.is_empty() || others.iter().any(is_of))
    }

    /// Returns the newest list, to pass on to others; `None` before the first.
    pub fn list(&self) -> Option<Revocations> {
        let list = lock(&self.inner).list.der.clone();
        (!list.is_empty()).then_some(Revocations { list })
    }

    /// Handles a list that has arrived. Returns whether it is newer; then it is valid from now on, and has to be kept.
    pub fn on_list(&self, from: &str, list: &Revocations) -> bool {
        let mut inner = lock(&self.inner);
        if inner.list.der == list.list {
            return false;
        }
        let Some(list) = List::read(&list.list, &self.authorities) else {
            inner.rejected += 1;
            tracing::warn!(
                "refused a list of revoked certificates from {from}: the team's authority has not signed it"
            );
            return false;
        };
        if !list.is_newer_than(&inner.list) {
            return false;
        }
        tracing::info!(
            "received list {} of revoked certificates from {from}, with {} certificates",
            list.number,
            list.serials.len()
        );
        inner.list = list;
        true
    }

    /// Writes the newest list to its file. Waits for the disk.
    pub fn keep(&self) {
        let Some((disk, file)) = &self.file else { return };
        let _writing = lock(&self.writing);
        let der = lock(&self.inner).list.der.clone();
        if let Err(error) = replace(&**disk, file, &der, 0o600) {
            let file = file.display();
            tracing::error!("cannot keep the list of revoked certificates in {file}: {error}");
        }
    }

    pub fn status(&self) -> status::Revoked {
        let inner = lock(&self.inner);
        status::Revoked {
            list: inner.list.number,
            certificates: inner.list.serials.len() as u64,
            rejected: inner.rejected,
        }
    }
}
