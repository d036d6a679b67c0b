//! HTTP for the page and a WebSocket for its data, and nothing else: four addresses to read, and nothing that changes
//! anything.
//!
//! A browser on this machine also runs what strangers wrote. Such a page can send requests here, and read the answers if its
//! name leads here (DNS rebinding). So a request counts only if it names this machine as a loopback address does, and the
//! WebSocket only if the page that opens it came from here. Whoever is slow or says too much is let go: requests have limits
//! on their bytes and their time, connections and viewers on their number.
//!
//! A browser tells after each message how many it has taken. Who is too far behind gets nothing until it has caught up
//! ([`AHEAD_MAX`]), and then the newest (`hub.rs`): else, what a slow one has not taken would pile up in its own queue.
//!
//! Left out: what HTTP has beyond GET, connections for several requests, and other machines (`mod.rs`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error, Message, WebSocket};

use super::feed::TELL_EVERY;
use super::hub::Hub;
use crate::charts;

/// Limits on what others can take: connections, those of them that view, the bytes and headers of a request and the time for
/// it, the time that a browser may take nothing, and the messages that it may be behind.
const CONNECTIONS_MAX: usize = 32;
const VIEWERS_MAX: usize = 12;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const REQUEST_MAX: Duration = Duration::from_secs(2);
const WRITE_MAX: Duration = Duration::from_secs(5);
const SILENT_MAX: Duration = Duration::from_secs(30);
const AHEAD_MAX: u64 = 10;
/// The longest message that a browser has to send, bytes, and the number of messages that are read between two of ours.
const SAID_BYTES_MAX: usize = 64;
const SAID_MAX: usize = 64;
/// After this, another attempt to accept a connection, if descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// RFC 6455, section 1.3.
const WEBSOCKET_KEY: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const HTML: &str = include_str!("../../../assets/live.html");
const SCRIPT: &str = include_str!("../../../assets/live.js");
const STYLE: &str = include_str!("../../../assets/live.css");

/// The files that the server returns.
#[derive(Debug)]
pub struct Site {
    hub: Arc<Hub>,
    /// The first message to each viewer.
    hello: String,
    connections: AtomicUsize,
}

/// A connection's place among all.
struct Place(Arc<Site>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq)]
enum Route {
    Page,
    Script,
    Style,
    /// The WebSocket, with the answer to its key.
    Live(String),
}

/// A status and its text.
type Refusal = (&'static str, &'static str);

impl Site {
    pub fn new(hub: &Arc<Hub>, hello: String) -> Arc<Site> {
        Arc::new(Site {
            hub: hub.clone(),
            hello,
            connections: AtomicUsize::new(0),
        })
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let one_more = |taken| (taken < CONNECTIONS_MAX).then_some(taken + 1);
        let counted = self
            .connections
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        counted.ok().map(|_| Place(self.clone()))
    }
}

/// Serves until the process ends.
pub fn serve(listener: &TcpListener, site: &Arc<Site>) -> ! {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_AGAIN);
            continue;
        };
        // Too many: closed without an answer.
        let Some(place) = site.place() else { continue };
        // A client without an answer retries; the reason why a connection ended does not matter.
        let _ = std::thread::Builder::new()
            .name("coorp-web".to_owned())
            .spawn(move || answer(stream, &place.0));
    }
}

fn answer(mut stream: TcpStream, site: &Site) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    let Some((head, rest)) = read_head(&mut stream)? else {
        return Ok(());
    };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(&head).is_ok_and(|parsed| parsed.is_complete());
    let route = if parsed {
        route(&request)
    } else {
        Err(("400 Bad Request", "this is no request of HTTP/1.1\n"))
    };
    let page = header(&request, "host").map(policy).unwrap_or_default();
    match route {
        Ok(Route::Page) => respond(&mut stream, "200 OK", "text/html", &page, &[HTML]),
        Ok(Route::Script) => respond(&mut stream, "200 OK", "text/javascript", "", &[charts::SCRIPTS, SCRIPT]),
        Ok(Route::Style) => respond(&mut stream, "200 OK", "text/css", "", &[charts::STYLES, STYLE]),
        Ok(Route::Live(accept)) => {
            let Some(viewer) = site.hub.view(VIEWERS_MAX) else {
                let text = "too many pages are open: close one\n";
                return respond(&mut stream, "503 Service Unavailable", "text/plain", "", &[text]);
            };
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            stream.write_all(head.as_bytes())?;
            // Why it ends is of no interest.
            let _ = view(stream, rest, &site.hello, viewer);
            Ok(())
        }
        Err((status, text)) => respond(&mut stream, status, "text/plain", "", &[text]),
    }
}

/// Reads a request's head, and what came behind it; `None` if the connection was closed before.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    const END: &[u8] = b"\r\n\r\n";
    let until = Instant::now() + REQUEST_MAX;
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(END.len()).position(|window| window == END) {
            let rest = bytes.split_off(end + END.len());
            return Ok(Some((bytes, rest)));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() >= REQUEST_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1_024];
        match stream.read(&mut part)? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, more: &str, body: &[&str]) -> io::Result<()> {
    let length: usize = body.iter().map(|part| part.len() + 1).sum();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Referrer-Policy: no-referrer\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    for part in body {
        stream.write_all(part.as_bytes())?;
        stream.write_all(b"\n")?;
    }
    Ok(())
}

/// What the page may load and by whom it may be shown: only what comes from here. Some browsers do not count a WebSocket as
/// such, unless it is named.
fn policy(host: &str) -> String {
    format!(
        "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
         connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    )
}

/// Which of the four addresses a request asks for, if it may.
fn route(request: &httparse::Request<'_, '_>) -> Result<Route, Refusal> {
    let host = header(request, "host").filter(|host| is_own(host));
    let Some(host) = host else {
        return Err((
            "403 Forbidden",
            "this page answers under the names of this machine alone: open http://127.0.0.1, http://localhost or \
             http://[::1], with the port\n",
        ));
    };
    if request.method != Some("GET") {
        return Err(("405 Method Not Allowed", "GET it\n"));
    }
    let path = request.path.unwrap_or_default().split('?').next();
    match path.unwrap_or_default() {
        "/" => Ok(Route::Page),
        "/live.js" => Ok(Route::Script),
        "/live.css" => Ok(Route::Style),
        "/live" => live(request, host),
        _ => Err(("404 Not Found", "the page is at /\n")),
    }
}

fn live(request: &httparse::Request<'_, '_>, host: &str) -> Result<Route, Refusal> {
    let lists = |name, word: &str| {
        let words = header(request, name).unwrap_or_default().split(',');
        words.into_iter().any(|one| one.trim().eq_ignore_ascii_case(word))
    };
    // Every browser says where the page is from that opens a WebSocket.
    let own = format!("http://{host}");
    if has(request, "origin") && !header(request, "origin").is_some_and(|origin| origin.eq_ignore_ascii_case(&own)) {
        return Err(("403 Forbidden", "only the page from here may ask for this\n"));
    }
    let key = header(request, "sec-websocket-key").filter(|key| {
        let bytes = BASE64.decode(key.as_bytes());
        bytes.is_ok_and(|bytes| bytes.len() == 16)
    });
    match key {
        Some(key)
            if lists("upgrade", "websocket")
                && lists("connection", "upgrade")
                && header(request, "sec-websocket-version") == Some("13") =>
        {
            Ok(Route::Live(accept(key)))
        }
        _ => Err(("426 Upgrade Required", "this is a WebSocket of version 13\n")),
    }
}

/// The proof that a server speaks WebSocket (RFC 6455, section 4.2.2).
fn accept(key: &str) -> String {
    let both = [key.as_bytes(), WEBSOCKET_KEY.as_bytes()].concat();
    BASE64.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &both).as_ref())
}

/// The only header of a name, if it is text.
fn header<'b>(request: &httparse::Request<'_, 'b>, name: &str) -> Option<&'b str> {
    let mut all = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name));
    match (all.next(), all.next()) {
        (Some(only), None) => std::str::from_utf8(only.value).ok().map(str::trim),
        _ => None,
    }
}

fn has(request: &httparse::Request<'_, '_>, name: &str) -> bool {
    let mut all = request.headers.iter();
    all.any(|header| header.name.eq_ignore_ascii_case(name))
}

/// Whether a request's host is a loopback address of this machine, with any port: a tunnel's is another one.
fn is_own(host: &str) -> bool {
    let (name, port) = match host.strip_prefix("[::1]") {
        Some(port) => ("localhost", port),
        None => host.find(':').map_or((host, ""), |colon| host.split_at(colon)),
    };
    let is_port =
        |port: &str| port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost")) && is_port(port)
}

/// Sends what is told to a browser, until it is gone or says what it has no reason to say.
fn view(stream: TcpStream, rest: Vec<u8>, hello: &str, mut viewer: super::hub::Viewer) -> Result<(), Error> {
    let config = WebSocketConfig::default()
        .read_buffer_size(4 << 10)
        .write_buffer_size(0)
        .max_message_size(Some(SAID_BYTES_MAX))
        .max_frame_size(Some(SAID_BYTES_MAX));
    let mut socket = WebSocket::from_partially_read(stream, rest, Role::Server, Some(config));
    socket.send(Message::text(hello))?;
    let (mut sent, mut taken, mut heard) = (0u64, 0u64, Instant::now());
    loop {
        socket.get_ref().set_nonblocking(true)?;
        let said = hear(&mut socket);
        socket.get_ref().set_nonblocking(false)?;
        if let Some(newer) = said?.filter(|newer| (taken + 1..=sent).contains(newer)) {
            (taken, heard) = (newer, Instant::now());
        }
        if sent - taken < AHEAD_MAX {
            if let Some(message) = viewer.next(TELL_EVERY) {
                socket.send(Message::Text(message))?;
                sent += 1;
            }
            continue;
        }
        if heard.elapsed() >= SILENT_MAX {
            return Ok(());
        }
        std::thread::sleep(TELL_EVERY / 2);
    }
}

/// What a browser has said since the last time: the number of messages that it has taken.
fn hear(socket: &mut WebSocket<TcpStream>) -> Result<Option<u64>, Error> {
    let mut newest = None;
    for _ in 0..SAID_MAX {
        match socket.read() {
            Ok(Message::Text(text)) => {
                let taken = text.as_str().parse().map_err(|_| Error::ConnectionClosed)?;
                newest = Some(taken);
            }
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(_) => return Err(Error::ConnectionClosed),
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => return Ok(newest),
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(text: &str) -> Result<Route, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let text = text.replace('\n', "\r\n") + "\r\n\r\n";
        assert!(request.parse(text.as_bytes()).unwrap().is_complete());
        route(&request).map_err(|(status, _)| status)
    }

    const UPGRADE: &str = "Upgrade: websocket\nConnection: keep-alive, Upgrade\nSec-WebSocket-Version: 13\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

    #[test]
    fn only_this_machines_own_names_are_answered() {
        for host in ["127.0.0.1:8460", "localhost", "LOCALHOST:1", "[::1]:8460", "[::1]"] {
            assert_eq!(
                routed(&format!("GET / HTTP/1.1\nHost: {host}")),
                Ok(Route::Page),
                "{host}"
            );
        }
        for host in [
            "evil.example:8460",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8460",
            "10.0.0.1:8460",
            "127.0.0.1:x",
            "127.0.0.1:8460:8460",
            "[::1].evil.example",
            "[::1]x:80",
            "localhost@evil.example",
            "",
        ] {
            let refused = routed(&format!("GET / HTTP/1.1\nHost: {host}"));
            assert_eq!(refused, Err("403 Forbidden"), "{host}");
        }
        assert_eq!(routed("GET / HTTP/1.1"), Err("403 Forbidden"), "without a host");
        let two = "GET / HTTP/1.1\nHost: localhost\nHost: evil.example";
        assert_eq!(routed(two), Err("403 Forbidden"));
    }

    #[test]
    fn only_the_page_from_here_gets_data() {
        let live = |more: &str| routed(&format!("GET /live HTTP/1.1\nHost: localhost:8460\n{UPGRADE}{more}"));
        let accept = Route::Live("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned());
        assert_eq!(
            live("\nOrigin: http://localhost:8460").unwrap(),
            accept,
            "RFC 6455's example"
        );
        assert!(live("").is_ok(), "no browser");
        for origin in [
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "http://127.0.0.1:8460",
            "https://localhost:8460",
            "null",
            "http://localhost:8460\nOrigin: http://evil.example",
        ] {
            assert_eq!(live(&format!("\nOrigin: {origin}")), Err("403 Forbidden"), "{origin}");
        }
        for part in ["Upgrade: websocket\n", "keep-alive, Upgrade", "13", "b25jZQ=="] {
            let less = format!("GET /live HTTP/1.1\nHost: localhost\n{UPGRADE}").replace(part, "");
            assert_eq!(routed(&less), Err("426 Upgrade Required"), "without {part}");
        }
    }

    #[test]
    fn nothing_but_reading_four_addresses_is_there() {
        let asked = |line: &str| routed(&format!("{line} HTTP/1.1\nHost: localhost"));
        assert_eq!(asked("GET /live.js?1"), Ok(Route::Script));
        assert_eq!(asked("GET /live.css"), Ok(Route::Style));
        assert_eq!(asked("GET /live"), Err("426 Upgrade Required"));
        assert_eq!(asked("GET /../etc/passwd"), Err("404 Not Found"));
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
            assert_eq!(asked(&format!("{method} /")), Err("405 Method Not Allowed"));
        }
    }

    #[test]
    fn the_page_loads_only_what_is_served() {
        for (place, _) in HTML.match_indices("src=").chain(HTML.match_indices("href=")) {
            let value = HTML[place..].split('"').nth(1).unwrap();
            assert!(["live.js", "live.css", "data:,"].contains(&value), "{value}");
        }
        for outside in [
            "@import",
            "url(",
            "http://",
            "https://",
            "<style",
            " style=",
            " onclick=",
        ] {
            assert!(!HTML.contains(outside) && !STYLE.contains(outside), "{outside}");
        }
    }
}
