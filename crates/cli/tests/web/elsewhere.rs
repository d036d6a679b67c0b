//! `coorp watch --web ADDRESS:PORT` from a browser elsewhere: over TLS, for the operator's certificate alone.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

use super::field::{json, Field, LONG, ROBOTS, UPGRADE};

/// All addresses include this one, over TLS too.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// `coorp watch --web` on all addresses, until it is dropped.
struct Page {
    child: Child,
    at: String,
    port: u16,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Page {
    fn new(field: &Field) -> Page {
        make(field);
        let mut command = field.command(&["watch", "--web", "0.0.0.0:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let port = said.split("https://").nth(1).and_then(|at| at.split(' ').next());
        let port = port
            .and_then(|at| at.rsplit(':').next())
            .and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port: {said}"));
        let (notes, heard) = (Arc::<Mutex<Vec<String>>>::default(), child.stderr.take().unwrap());
        let to = notes.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(heard).lines().map_while(Result::ok) {
                to.lock().unwrap().push(line);
            }
        });
        let at = format!("{HERE}:{port}");
        Page { child, at, port, notes }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((HERE, self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// A connection over TLS. The page's own certificate is checked, with its address.
    fn dial(&self, client: &Arc<ClientConfig>) -> Tls {
        let tls = ClientConnection::new(client.clone(), ServerName::from(HERE)).unwrap();
        StreamOwned::new(tls, self.connect())
    }

    /// The whole answer to a request; empty if there is none.
    fn ask(&self, client: &Arc<ClientConfig>, request: &str) -> io::Result<String> {
        let mut tls = self.dial(client);
        tls.write_all(request.replace('\n', "\r\n").as_bytes())?;
        let mut answer = String::new();
        tls.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn get(&self, client: &Arc<ClientConfig>) -> io::Result<String> {
        self.ask(client, &format!("GET / HTTP/1.1\nHost: {}\n\n", self.at))
    }

    /// The page's WebSocket, as a browser opens it.
    fn view(&self, client: &Arc<ClientConfig>) -> WebSocket<Tls> {
        let (mut tls, at) = (self.dial(client), &self.at);
        let request = format!("GET /live HTTP/1.1\nHost: {at}\nOrigin: https://{at}\n{UPGRADE}\n\n");
        tls.write_all(request.replace('\n', "\r\n").as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tls.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        WebSocket::from_raw_socket(tls, Role::Client, None)
    }

    /// How many notes have a text, once one does.
    fn noted(&self, text: &str) -> usize {
        let began = Instant::now();
        loop {
            let notes = self.notes.lock().unwrap();
            let count = notes.iter().filter(|note| note.contains(text)).count();
            if count > 0 {
                return count;
            }
            assert!(began.elapsed() < LONG, "no note '{text}': {notes:?}");
            drop(notes);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes what browsers need, and returns the certificate that they trust.
fn make(field: &Field) -> PathBuf {
    let trusted = field.0.join("page.crt");
    if !trusted.exists() {
        let made = field.run(&["keys", "browser"]);
        assert!(made.status.success(), "{made:?}");
    }
    trusted
}

/// A browser that trusts what `coorp keys browser` says, and shows a certificate: that of `name` in the field's keys.
fn browser(field: &Field, shows: Option<(&Field, &str)>) -> Arc<ClientConfig> {
    let trusted = make(field);
    let certificates = |file: &Path| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(file)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add(certificates(&trusted).remove(0)).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    Arc::new(match shows {
        Some((field, name)) => {
            let file = |kind: &str| field.0.join("keys").join(format!("{name}.{kind}"));
            let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
            config.with_client_auth_cert(certificates(&file("pem")), key).unwrap()
        }
        None => config.with_no_client_auth(),
    })
}

#[test]
fn a_browser_elsewhere_with_the_operators_certificate_sees_the_page() {
    let field = Field::new("elsewhere", [29_100, 29_120]);
    let (_base, _scout) = (field.node("base"), field.node("scout"));
    let page = Page::new(&field);
    let operator = browser(&field, Some((&field, "operator")));
    let at = &page.at;
    let shown = page.get(&operator).unwrap();
    assert!(
        shown.starts_with("HTTP/1.1 200 OK") && shown.contains(&format!("connect-src 'self' wss://{at};")),
        "{shown}"
    );
    let script = page
        .ask(&operator, &format!("GET /live.js HTTP/1.1\nHost: {at}\n\n"))
        .unwrap();
    assert!(script.contains("CoorpLive"));
    let mut socket = page.view(&operator);
    let hello = json(&mut socket);
    assert_eq!(
        (&hello["kind"], &hello["robots"]),
        (&"hello".into(), &serde_json::json!(ROBOTS))
    );
    let (mut taken, began) = (0, Instant::now());
    loop {
        let batch = json(&mut socket);
        taken += 1;
        socket.send(Message::text(taken.to_string())).unwrap();
        if batch["absent"] == serde_json::json!([]) {
            break;
        }
        assert!(began.elapsed() < LONG, "{batch}");
    }
    // Another page in that browser, and names that lead here.
    let refused = |host: &str, more: &str| {
        let request = format!("GET /live HTTP/1.1\nHost: {host}\n{UPGRADE}\n{more}\n");
        let answer = page.ask(&operator, &request).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    };
    for origin in ["https://evil.example", &format!("http://{at}"), "null"] {
        refused(at, &format!("Origin: {origin}\n"));
    }
    refused("evil.example", "");
    refused(&format!("localhost:{}", page.port), "");
}

#[test]
fn nobody_elsewhere_without_the_operators_certificate_gets_anything() {
    let field = Field::new("others", [29_140, 29_160]);
    let other = Field::new("another-team", [29_180, 29_200]);
    let page = Page::new(&field);
    let none = browser(&field, None);
    for (shows, says) in [
        (None, "it shows no certificate"),
        (Some((&field, "robots/scout")), "it shows a robot's certificate"),
        (Some((&other, "operator")), "this team's authority has not signed"),
    ] {
        let client = browser(&field, shows);
        for _ in 0..2 {
            let answer = page.get(&client);
            assert!(answer.is_err(), "{says}: {answer:?}");
        }
        page.noted(says);
    }
    // Neither without TLS: what comes back is no HTTP, but TLS's alert.
    let mut plain = page.connect();
    plain
        .write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", page.at).as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(
        answer.is_empty() || (answer.len() == 7 && answer[0] == 21),
        "{answer:?}"
    );
    page.noted("https://");
    // A browser that does not trust the page says so.
    let distrusts = browser(&other, Some((&field, "operator")));
    assert!(page.get(&distrusts).is_err());
    page.noted("import page.crt there");
    // Those who say nothing, and those who come too often, keep the operator out for a short time at most.
    let operator = browser(&field, Some((&field, "operator")));
    assert!(page.get(&operator).unwrap().starts_with("HTTP/1.1 200"));
    let idle: Vec<TcpStream> = (0..60).map(|_| page.connect()).collect();
    let flood: Vec<_> = (0..60).map(|_| page.get(&none).is_err()).collect();
    assert!(flood.iter().all(|refused| *refused));
    page.noted("too often");
    let began = Instant::now();
    while !page
        .get(&operator)
        .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(idle);
    // A note a minute, however often.
    assert!(page.noted("it shows no certificate") < 10 && page.noted("too often") < 10);
}

#[test]
fn a_person_may_take_time_to_choose_a_certificate_and_a_request_may_not() {
    let field = Field::new("trickle", [29_300, 29_320]);
    let page = Page::new(&field);
    let operator = browser(&field, Some((&field, "operator")));
    let mut slow = page.dial(&operator);
    slow.conn.write_tls(&mut slow.sock).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    slow.write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", page.at).as_bytes())
        .unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A request within one record of TLS, a byte at a time: it would take 200 s.
    let Tls { mut conn, mut sock } = page.dial(&operator);
    while conn.is_handshaking() || conn.wants_write() {
        conn.complete_io(&mut sock).unwrap();
    }
    conn.writer().write_all(&[b'x'; 2_000]).unwrap();
    let mut record = Vec::new();
    conn.write_tls(&mut record).unwrap();
    sock.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut bytes, began) = (record.iter(), Instant::now());
    // The server closes: first TLS, then TCP.
    while sock
        .read(&mut [0; 64])
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    {
        assert!(began.elapsed() < LONG, "it goes on");
        let _ = sock.write(&[*bytes.next().unwrap()]);
    }
}

#[test]
fn a_revoked_operator_loses_the_page_at_once() {
    let field = Field::new("revoked", [29_220, 29_240]);
    let page = Page::new(&field);
    let stolen = browser(&field, Some((&field, "operator")));
    let mut socket = page.view(&stolen);
    assert_eq!(json(&mut socket)["kind"], "hello");
    let revoked = field.run(&["keys", "revoke", "@operator"]);
    let said = String::from_utf8(revoked.stdout).unwrap();
    assert!(
        revoked.status.success() && said.contains("delete the old page.crt"),
        "{said}"
    );
    let began = Instant::now();
    while socket.read().is_ok() {
        assert!(began.elapsed() < LONG, "it goes on");
    }
    assert!(page.get(&stolen).is_err());
    page.noted("its certificate is revoked");
    let new = browser(&field, Some((&field, "operator")));
    assert!(page.get(&new).unwrap().starts_with("HTTP/1.1 200"));
    // It stays revoked without the list, and with a damaged one nobody gets in.
    std::fs::remove_file(field.0.join("keys/revoked.crl")).unwrap();
    assert!(page.get(&stolen).is_err());
    assert!(page.get(&new).unwrap().starts_with("HTTP/1.1 200"));
    std::fs::write(field.0.join("keys/revoked.crl"), "x").unwrap();
    assert!(page.get(&new).is_err());
    page.noted("the list of revoked certificates cannot be read");
}

#[test]
fn without_keys_no_page_is_shown_elsewhere() {
    let field = Field::new("keyless", [29_260, 29_280]);
    let output = field.run(&["watch", "--insecure", "--web", "0.0.0.0:8460"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("coorp keys init") && said.contains("--web 8460"),
        "{said}"
    );
    let output = field.run(&["watch", "--web", "0.0.0.0:0"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("page.pem is missing: 'coorp keys browser'"),
        "{said}"
    );
    let output = field.run(&["watch", "--web", "somewhere:8460"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("192.168.1.5:8460"),
        "{said}"
    );
    let output = field.run(&["watch", "--web", "--once"]);
    assert_eq!(output.status.code(), Some(2), "one or the other");
}
