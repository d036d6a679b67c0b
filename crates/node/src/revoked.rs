//! Which certificates are revoked: the newest list of the team's authority that this robot has.
//!
//! A list is an X.509 CRL (RFC 5280) that the authority signs (`keys/revoke.rs`). Its number says which of two is newer; no
//! clock does. It contains the serial numbers of robots' and operators' certificates.
//!
//! Nothing is kept of a list before its signature is verified. The robot keeps the newest in its state folder, and reads
//! that one and the one beside its keys at its start. A file that is damaged is an error, because a robot that ignores
//! it would let in who was locked out.
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

/// What a robot knows about revoked certificates.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    /// The authorities that may sign lists.
    authorities: Vec<CertificateDer<'static>>,
    /// Where the newest is kept.
    file: Option<(Arc<dyn Disk>, PathBuf)>,
    inner: Mutex<Inner>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    list: List,
    rejected: u64,
}

/// A list whose signature was verified; by default the empty one before the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// As it was signed.
    pub der: Vec<u8>,
    pub number: u64,
    pub serials: BTreeSet<Vec<u8>>,
    /// The index of its signer among the authorities, the newest first.
    pub signer: usize,
}

impl List {
    /// Reads a list of one of these authorities; `None` if it is not.
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
    /// If it cannot be read, or is not the authority's.
    pub fn load(disk: &dyn Disk, file: &Path, authorities: &[CertificateDer<'_>]) -> Result<Option<List>, Error> {
        let der = match disk.read(file) {
            Ok(der) => der,
            // Where no folder can be, nothing was kept.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(Error::at("read", file, error)),
        };
        let list = List::read(&der, authorities).ok_or_else(|| {
            Error::Keys(format!(
                "{} is damaged, or not of this team's authority, and without it revoked robots would be let in: copy \
                 {FILE} from where the keys were made, or delete this one if another robot that is up has it",
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

/// Returns whether a file is a whole list that another authority claims to have signed.
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
    /// Returns what a robot or an operator knows at its start.
    ///
    /// # Errors
    /// If its own certificate is revoked, or a list is damaged.
    pub fn of(credentials: &Credentials, keys: &Path, state: Option<(Arc<dyn Disk>, &Path)>) -> Result<Revoked, Error> {
        let revoked = Revoked::load(credentials.authorities(), keys, state)?;
        if credentials.certificate().is_some_and(|own| !revoked.admits(own)) {
            return Err(Error::Keys(format!(
                "the certificate in {} is revoked: 'coorp keys init' makes another where the keys were made, and \
                 'coorp keys bundle' one file of it",
                keys.display()
            )));
        }
        Ok(revoked)
    }

    /// Returns the newest of the lists in these folders, those of the keys and of the state. It is kept in the latter.
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
                // The keys have been renewed since, and came with a list of their own.
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

    /// Returns whether a certificate (DER) counts.
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

    /// Returns the newest list, for others; `None` before the first.
    pub fn list(&self) -> Option<Revocations> {
        let list = lock(&self.inner).list.der.clone();
        (!list.is_empty()).then_some(Revocations { list })
    }

    /// A list has arrived. Returns whether it is newer; then it counts from now on, and is to be kept.
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
            "list {} of revoked certificates came from {from}; it has {}",
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
