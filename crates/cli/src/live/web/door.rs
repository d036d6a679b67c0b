//! Admits connections: any on loopback; on other addresses, those over TLS with the operator's certificate.
//!
//! A robot's door decides which handshakes begin (`core::admission`), so strangers take no places from the operator: they
//! have few, for a short time. An address at which the operator's certificate was seen has its own. Strangers get no byte
//! of HTTP.
//!
//! The page's certificate names the address that a browser has connected to. It is made when one first does, so it
//! follows a network that changes.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use coorp_core::admission::{Admission, Limits, Rate, Reason, Share, Ticket, Verdict};
use coorp_core::RobotId;
use coorp_node::keys::page::{local_name, Page};
use rustls::{AlertDescription, CertificateError, ServerConfig, ServerConnection};

/// The connections of a site, and the addresses of this machine for which a certificate is kept.
pub const CONNECTIONS_MAX: usize = 32;
const ADDRESSES_MAX: usize = 64;
/// After this, a new certificate is made for an address; one is also made if the clock has gone back.
const CERTIFICATE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The time for a handshake: some browsers ask a person meanwhile which certificate to show. If others need its place, it has
/// only `core::admission`'s shortest time.
const HANDSHAKE_MAX: Duration = Duration::from_secs(60);
/// The time for one who was refused to read why.
const REFUSED_MAX: Duration = Duration::from_millis(500);
/// How often a viewer's certificate is checked again.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// The time between two notes about refusals for one reason.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// All who show the operator's certificate count as one member.
const OPERATOR: RobotId = RobotId(0);

/// What decides about connections.
pub enum Door {
    /// With the number of connections.
    Loopback(Arc<AtomicUsize>),
    Operators(Arc<Operators>),
}

impl Door {
    /// A door for this machine alone.
    pub fn loopback() -> Door {
        Door::Loopback(Arc::default())
    }

    /// A door for the operator, wherever it is. It says why it refuses others, unless too much waits to be said.
    pub fn operators(page: Page, said: SyncSender<String>) -> Door {
        Door::Operators(Arc::new(Operators {
            page,
            host: host(),
            began: Instant::now(),
            configs: Mutex::default(),
            attempts: Mutex::new(Attempts {
                admission: Admission::new(limits(), []),
                streams: BTreeMap::new(),
            }),
            notes: Mutex::default(),
            said,
        }))
    }

    /// Decides whether a connection may begin; if not, it ends without an answer.
    pub fn admit(&self, stream: TcpStream) -> Option<Admitted> {
        match self {
            Door::Loopback(connections) => {
                let one_more = |taken| (taken < CONNECTIONS_MAX).then_some(taken + 1);
                let counted = connections.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
                counted.ok()?;
                let place = Place::Loopback(connections.clone());
                Some(Admitted { stream, place })
            }
            Door::Operators(operators) => {
                let ticket = operators.admit(&stream)?;
                let place = Place::Operators(operators.clone(), ticket);
                Some(Admitted { stream, place })
            }
        }
    }
}

/// A connection's place among all of a site, until it ends.
enum Place {
    Loopback(Arc<AtomicUsize>),
    Operators(Arc<Operators>, Ticket),
}

impl Drop for Place {
    fn drop(&mut self) {
        match self {
            Place::Loopback(connections) => {
                connections.fetch_sub(1, Ordering::AcqRel);
            }
            Place::Operators(operators, ticket) => operators.on_ended(*ticket),
        }
    }
}

/// A connection that has begun.
pub struct Admitted {
    stream: TcpStream,
    place: Place,
}

impl Admitted {
    /// Returns the connection once its other end has shown who it is.
    pub fn open(self) -> io::Result<Stream> {
        self.stream.set_nodelay(true)?;
        match &self.place {
            Place::Loopback(_) => Ok(Stream::new(Inner::Plain(self.stream), Names::Loopback, self.place)),
            Place::Operators(operators, ticket) => {
                let (secure, names) = operators.open(*ticket, self.stream)?;
                Ok(Stream::new(Inner::Secure(Box::new(secure)), names, self.place))
            }
        }
    }
}

/// An open connection. All reads and writes together have a time limit ([`Stream::allow`]).
pub struct Stream {
    inner: Inner,
    until: Instant,
    /// When the certificate was checked again.
    checked: Option<Instant>,
    names: Names,
    place: Place,
}

enum Inner {
    Plain(TcpStream),
    Secure(Box<Secure>),
}

/// HTTP within TLS. `rustls::StreamOwned` would read its socket any number of times in one read.
struct Secure {
    tls: ServerConnection,
    socket: TcpStream,
}

impl Secure {
    fn read(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            self.send(until)?;
            limit(&self.socket, until)?;
            self.tls.read_tls(&mut self.socket)?;
            if let Err(error) = self.tls.process_new_packets() {
                // Says why, if that is taken.
                let _ = self.send(until);
                return Err(io::Error::other(error));
            }
        }
    }

    fn write(&mut self, bytes: &[u8], until: Instant) -> io::Result<usize> {
        self.send(until)?;
        let written = self.tls.writer().write(bytes)?;
        // These bytes are taken, so an error is for the next call.
        let _ = self.send(until);
        Ok(written)
    }

    /// Sends what waits.
    fn send(&mut self, until: Instant) -> io::Result<()> {
        while self.tls.wants_write() {
            limit(&self.socket, until)?;
            if self.tls.write_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl Stream {
    fn new(inner: Inner, names: Names, place: Place) -> Stream {
        Stream {
            inner,
            until: Instant::now(),
            checked: None,
            names,
            place,
        }
    }

    /// Sets the time for all reads and writes from now on.
    pub fn allow(&mut self, time: Duration) {
        self.until = Instant::now() + time;
    }

    /// The names under which this machine is reached here.
    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn tcp(&self) -> &TcpStream {
        match &self.inner {
            Inner::Plain(stream) => stream,
            Inner::Secure(secure) => &secure.socket,
        }
    }

    /// Returns whether the other end may still view: the operator's certificate may have been revoked.
    pub fn may_go_on(&mut self) -> bool {
        let (Inner::Secure(secure), Place::Operators(operators, _)) = (&self.inner, &self.place) else {
            return true;
        };
        if self.checked.is_some_and(|at| at.elapsed() < CHECK_EVERY) {
            return true;
        }
        self.checked = Some(Instant::now());
        let certificate = secure.tls.peer_certificates().and_then(|chain| chain.first());
        certificate.is_some_and(|certificate| operators.page.still_admits(certificate))
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Plain(stream) => {
                limit(stream, self.until)?;
                stream.read(bytes)
            }
            Inner::Secure(secure) => secure.read(bytes, self.until),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Plain(stream) => {
                limit(stream, self.until)?;
                stream.write(bytes)
            }
            Inner::Secure(secure) => secure.write(bytes, self.until),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.inner {
            Inner::Plain(stream) => stream.flush(),
            Inner::Secure(secure) => secure.send(self.until),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Inner::Secure(secure) = &mut self.inner {
            // TLS says that nothing is missing. Whoever does not take it is gone.
            secure.tls.send_close_notify();
            let _ = secure.send(self.until);
        }
    }
}

/// The names under which a connection may ask for this machine. A page of another name has no business here, even if its name
/// leads here (DNS rebinding).
#[derive(Debug, PartialEq)]
pub enum Names {
    Loopback,
    Own { address: IpAddr, host: Option<String> },
}

impl Names {
    /// Returns whether a request's host is one of these names, with any port: a tunnel's is another one.
    pub fn have(&self, host: &str) -> bool {
        let name = if host.starts_with('[') {
            host.find(']').map_or("", |end| &host[..=end])
        } else {
            host.split(':').next().unwrap_or_default()
        };
        let port = &host[name.len()..];
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let address = bare.unwrap_or(name).parse::<IpAddr>().ok();
        is_port
            && match self {
                Names::Loopback => {
                    address.is_some_and(|address| address.is_loopback()) || name.eq_ignore_ascii_case("localhost")
                }
                Names::Own { address: own, host } => {
                    let is_host = |host: &String| name.eq_ignore_ascii_case(&local_name(host));
                    address == Some(*own) || host.as_ref().is_some_and(is_host)
                }
            }
    }

    /// The schemes of pages and of WebSockets from here.
    pub fn schemes(&self) -> (&'static str, &'static str) {
        match self {
            Names::Loopback => ("http", "ws"),
            Names::Own { .. } => ("https", "wss"),
        }
    }

    /// What to open instead of something that is not here.
    pub fn help(&self) -> &'static str {
        match self {
            Names::Loopback => {
                "this page answers under the names of this machine alone: open http://127.0.0.1, http://localhost or \
                 http://[::1], with the port\n"
            }
            Names::Own { .. } => {
                "this page answers under this machine's address alone: open the address that 'coorp watch' says\n"
            }
        }
    }
}

/// This machine's name without a domain, if a certificate can have it.
pub fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    label(name.trim())
}

fn label(name: &str) -> Option<String> {
    let label = name.split('.').next()?.to_ascii_lowercase();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = (1..=63).contains(&label.len()) && label.bytes().all(is_letter);
    (is_label && !label.starts_with('-') && !label.ends_with('-')).then_some(label)
}

/// Those who have shown the operator's certificate are the members here.
fn limits() -> Limits {
    let rate = |every_ms, burst| Rate {
        every: coorp_core::Duration::from_millis(every_ms),
        burst,
    };
    let share = Share {
        each: rate(100, 20),
        all: rate(10, 100),
        unfinished_each_max: 8,
        unfinished_max: 32,
        addresses_max: 256,
    };
    Limits {
        strangers: share,
        members: share,
        // TCP has proved all addresses.
        proofs: rate(1, 1),
        connections_per_robot_max: CONNECTIONS_MAX,
        connections_per_address_max: CONNECTIONS_MAX,
        operators_max: 0,
    }
}

/// A door that only the operator passes.
pub struct Operators {
    page: Page,
    host: Option<String>,
    began: Instant,
    /// For each address of this machine: how it proves itself there, and since when.
    configs: Mutex<BTreeMap<IpAddr, (SystemTime, Arc<ServerConfig>)>>,
    attempts: Mutex<Attempts>,
    notes: Mutex<BTreeMap<&'static str, Noted>>,
    said: SyncSender<String>,
}

struct Attempts {
    admission: Admission,
    /// Connections whose handshake is not finished.
    streams: BTreeMap<Ticket, TcpStream>,
}

/// A reason for refusals: when it was said, and how many there were since.
#[derive(Default)]
struct Noted {
    at: Option<Instant>,
    more: u64,
}

impl Operators {
    fn now(&self) -> coorp_core::Instant {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        coorp_core::Instant::from_nanos(elapsed)
    }

    fn admit(&self, stream: &TcpStream) -> Option<Ticket> {
        let (from, other) = (stream.peer_addr().ok()?.ip().to_canonical(), stream.try_clone().ok()?);
        let mut attempts = lock(&self.attempts);
        let verdict = attempts.admission.on_attempt(from, true, self.now());
        let Verdict::Begin { ticket, instead_of } = verdict else {
            drop(attempts);
            self.note(from, TOO_OFTEN);
            return None;
        };
        attempts.streams.insert(ticket, other);
        if let Some(older) = instead_of.and_then(|older| attempts.streams.remove(&older)) {
            let _ = older.shutdown(Shutdown::Both);
        }
        Some(ticket)
    }

    fn open(&self, ticket: Ticket, mut stream: TcpStream) -> io::Result<(Secure, Names)> {
        let until = Instant::now() + HANDSHAKE_MAX;
        let from = stream.peer_addr()?.ip().to_canonical();
        let address = stream.local_addr()?.ip().to_canonical();
        let config = self.config(address)?;
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        if let Err(failed) = shake(&mut connection, &mut stream, until) {
            if let Some(why) = failed.why() {
                self.note(from, why);
            }
            let reason = match failed {
                Failed::Refused(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => Reason::Revoked,
                Failed::Refused(_) => Reason::NoCertificate,
                Failed::TimedOut | Failed::Ended => Reason::Unfinished,
            };
            if matches!(failed, Failed::Refused(_)) {
                dismiss(&mut connection, &mut stream);
            }
            lock(&self.attempts).admission.on_failed(ticket, reason);
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut attempts = lock(&self.attempts);
        attempts.streams.remove(&ticket);
        if !attempts.admission.on_member(ticket, OPERATOR, self.now()) {
            drop(attempts);
            self.note(from, TOO_MANY);
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let host = self.host.clone();
        let secure = Secure {
            tls: connection,
            socket: stream,
        };
        Ok((secure, Names::Own { address, host }))
    }

    fn on_ended(&self, ticket: Ticket) {
        let mut attempts = lock(&self.attempts);
        attempts.streams.remove(&ticket);
        attempts.admission.on_ended(ticket, self.now());
    }

    /// How this machine proves itself at one of its addresses.
    fn config(&self, address: IpAddr) -> io::Result<Arc<ServerConfig>> {
        let mut configs = lock(&self.configs);
        let now = SystemTime::now();
        let is_good = |made: &SystemTime| now.duration_since(*made).is_ok_and(|age| age < CERTIFICATE_MAX);
        if let Some((_, config)) = configs.get(&address).filter(|(made, _)| is_good(made)) {
            return Ok(config.clone());
        }
        let config = self.page.server(address, self.host.as_deref());
        let config = config.map_err(io::Error::other)?;
        if configs.len() >= ADDRESSES_MAX {
            configs.clear();
        }
        configs.insert(address, (now, config.clone()));
        Ok(config)
    }

    /// Says why somebody was refused: the first time for each reason, and then once in a while, with a count.
    fn note(&self, from: IpAddr, why: &'static str) {
        let mut notes = lock(&self.notes);
        let (noted, now) = (notes.entry(why).or_default(), Instant::now());
        if noted.at.is_some_and(|at| now - at < NOTE_EVERY) {
            noted.more += 1;
            return;
        }
        let more = match noted.more {
            0 => String::new(),
            more => format!(" ({more} more since the last note)"),
        };
        // Nobody waits for a terminal that takes nothing.
        *noted = match self.said.try_send(format!("refused {from}: {why}{more}")) {
            Ok(()) => Noted { at: Some(now), more: 0 },
            Err(_) => Noted {
                at: noted.at,
                more: noted.more + 1,
            },
        };
    }
}

const TOO_OFTEN: &str = "it connects too often, or too many others do";
const TOO_MANY: &str = "too many connections with the operator's certificate: close pages";

/// Why a handshake failed.
enum Failed {
    TimedOut,
    /// The other end gave up, as a browser does to ask which certificate to show.
    Ended,
    Refused(rustls::Error),
}

impl Failed {
    fn why(&self) -> Option<&'static str> {
        let error = match self {
            Failed::TimedOut => return Some("it did not finish the handshake in time"),
            Failed::Ended => return None,
            Failed::Refused(error) => error,
        };
        Some(match error {
            rustls::Error::NoCertificatesPresented => {
                "it shows no certificate; 'coorp keys browser' makes the file to import there"
            }
            rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                "it shows a robot's certificate; only the operator's opens the page"
            }
            rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
                "its certificate is revoked; 'coorp keys browser' makes new files; then restart 'coorp watch'"
            }
            rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { .. } | CertificateError::NotValidYet)
            | rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. } | CertificateError::Expired) => {
                "its certificate is not valid now; is this machine's clock right?"
            }
            rustls::Error::InvalidCertificate(_) => {
                "it shows a certificate that this team's authority has not signed; 'coorp keys browser' makes the right one"
            }
            rustls::Error::InvalidMessage(_) => "it does not speak TLS 1.3; the address begins with https://",
            rustls::Error::PeerIncompatible(_) => "it does not speak TLS 1.3; a newer browser does",
            rustls::Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::DecryptError
                | AlertDescription::CertificateExpired,
            ) => {
                "it does not trust the page; import page.crt there, which 'coorp keys browser' makes; if that is newer than \
                 this 'coorp watch', restart it"
            }
            rustls::Error::General(_) => {
                "the list of revoked certificates cannot be read with the keys of when 'coorp watch' began: restart \
                 'coorp watch', which also says what is damaged"
            }
            _ => "its TLS does not fit",
        })
    }
}

/// Runs a handshake until a time.
fn shake(connection: &mut ServerConnection, stream: &mut TcpStream, until: Instant) -> Result<(), Failed> {
    // A read or write whose time is over fails with either.
    let late = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    let unfinished = |error: io::Error| {
        if late.contains(&error.kind()) {
            Failed::TimedOut
        } else {
            Failed::Ended
        }
    };
    loop {
        while connection.wants_write() {
            limit(stream, until).map_err(unfinished)?;
            connection.write_tls(stream).map_err(unfinished)?;
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        limit(stream, until).map_err(unfinished)?;
        if connection.read_tls(stream).map_err(unfinished)? == 0 {
            return Err(Failed::Ended);
        }
        connection.process_new_packets().map_err(Failed::Refused)?;
    }
}

/// Limits the next read and write to the time that is left.
fn limit(stream: &TcpStream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// Tells one who was refused why, as TLS does. What it says meanwhile is dropped: were it left, the kernel would take back
/// the answer.
fn dismiss(connection: &mut ServerConnection, stream: &mut TcpStream) {
    let until = Instant::now() + REFUSED_MAX;
    while connection.wants_write() {
        if limit(stream, until).is_err() || connection.write_tls(stream).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut dropped = [0; 4_096];
    while limit(stream, until).is_ok() && stream.read(&mut dropped).is_ok_and(|read| read > 0) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_beyond_loopback_answers_under_its_own_address_and_name() {
        let host = Some("laptop".to_owned());
        let four = Names::Own {
            address: "10.0.0.5".parse().unwrap(),
            host: host.clone(),
        };
        let six = Names::Own {
            address: "fd00::5".parse().unwrap(),
            host,
        };
        for (names, own) in [
            (&four, "10.0.0.5:8460"),
            (&four, "10.0.0.5"),
            (&six, "[fd00:0::5]:8460"),
            (&six, "[fd00::5]"),
        ] {
            assert!(names.have(own), "{own}");
            assert!(names.have("Laptop.local:8460") && names.have("laptop.local"));
        }
        for foreign in [
            "127.0.0.1:8460",
            "localhost:8460",
            "[::1]",
            "10.0.0.6:8460",
            "10.0.0.5.evil.example",
            "10.0.0.5:x",
            "10.0.0.5:1:2",
            "fd00::5",
            "[fd00::5",
            "[fd00::5]x",
            "[fd00::6]:8460",
            "laptop",
            "laptop.local.evil.example",
            "laptop.local@evil.example",
            "",
        ] {
            assert!(!four.have(foreign) && !six.have(foreign), "{foreign}");
        }
    }

    #[test]
    fn only_what_fits_a_certificate_becomes_a_name() {
        assert_eq!(label("Laptop.example.org").as_deref(), Some("laptop"));
        assert_eq!(label("robot-7").as_deref(), Some("robot-7"));
        for odd in ["", ".", "-a", "a-", "my laptop", "a_b", "\u{fc}", "*", &"a".repeat(64)] {
            assert_eq!(label(odd), None, "{odd}");
        }
    }
}
