//! HTTP for what is viewed: GET, one request a connection, and the opening of a WebSocket.
//!
//! A browser also runs what strangers wrote. Such a page can send requests here, and read the answers if its name leads here
//! (DNS rebinding). So a request counts only if it names this machine as its connection does ([`Names`]). Each site says which
//! pages may open its WebSocket: a browser tells where a page came from.
//!
//! Slow clients and long requests are disconnected: requests have limits on bytes and time, and the number of connections and
//! viewers is limited. `door.rs` admits connections.
//!
//! Left out: what HTTP has beyond GET, and connections for several requests.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error, Message, Utf8Bytes, WebSocket};

use super::door::{Door, Names, Stream};

/// Limits on what others can take: viewers of a site, and a request's bytes, headers and time. Then those on the time for an
/// answer, and on a viewer's for what it is told at once. `door.rs` has those on connections.
pub const VIEWERS_MAX: usize = 12;
const REQUEST_BYTES_MAX: usize = 8 << 10;
pub const HEADERS_MAX: usize = 64;
const REQUEST_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(30);
const TELL_MAX: Duration = Duration::from_secs(5);
/// The number of messages from a viewer that are read between two of ours.
const SAID_MAX: usize = 64;
/// After this, another attempt to accept a connection, if descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// RFC 6455, section 1.3.
const WEBSOCKET_KEY: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A status and its text.
pub type Refusal = (&'static str, &'static str);

pub type Request<'h, 'b> = httparse::Request<'h, 'b>;

/// What answers requests.
pub trait Site: Send + Sync + 'static {
    /// Answers a request; `rest` came behind it.
    fn answer(&self, stream: Stream, request: &Request<'_, '_>, rest: Vec<u8>) -> io::Result<()>;
}

/// Serves until the process ends.
pub fn serve(listener: &TcpListener, door: &Door, site: &Arc<impl Site>) -> ! {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_AGAIN);
            continue;
        };
        // One too many is closed without an answer.
        let Some(admitted) = door.admit(stream) else {
            continue;
        };
        let site = site.clone();
        // A client without an answer retries; the reason why a connection ended does not matter.
        let thread = std::thread::Builder::new().name("coorp-web".to_owned());
        let _ = thread.spawn(move || answer(admitted.open()?, &*site));
    }
}

fn answer(mut stream: Stream, site: &impl Site) -> io::Result<()> {
    stream.allow(REQUEST_MAX);
    let Some((head, rest)) = read_head(&mut stream)? else {
        return Ok(());
    };
    if !stream.may_go_on() {
        return Ok(());
    }
    stream.allow(ANSWER_MAX);
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    if request.parse(&head).is_ok_and(|parsed| parsed.is_complete()) {
        return site.answer(stream, &request, rest);
    }
    refuse(&mut stream, ("400 Bad Request", "this is no request of HTTP/1.1\n"))
}

/// Reads a request's head, and what came behind it; `None` if the connection was closed before.
fn read_head(stream: &mut Stream) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    const END: &[u8] = b"\r\n\r\n";
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(END.len()).position(|window| window == END) {
            let rest = bytes.split_off(end + END.len());
            return Ok(Some((bytes, rest)));
        }
        if bytes.len() >= REQUEST_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut part = [0; 1_024];
        match stream.read(&mut part)? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

pub fn respond(stream: &mut Stream, status: &str, kind: &str, more: &str, body: &[&str]) -> io::Result<()> {
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
    stream.flush()
}

/// Tells why a request gets nothing.
pub fn refuse(stream: &mut Stream, (status, text): Refusal) -> io::Result<()> {
    respond(stream, status, "text/plain", "", &[text])
}

/// The host and path that a request asks for, if it names this machine and only reads.
pub fn asked<'b>(request: &Request<'_, 'b>, names: &Names) -> Result<(&'b str, &'b str), Refusal> {
    let Some(host) = header(request, "host").filter(|host| names.have(host)) else {
        return Err(("403 Forbidden", names.help()));
    };
    if request.method != Some("GET") {
        return Err(("405 Method Not Allowed", "GET it\n"));
    }
    let path = request.path.unwrap_or_default().split('?').next();
    Ok((host, path.unwrap_or_default()))
}

/// Returns whether a request asks for a WebSocket.
pub fn is_upgrade(request: &Request<'_, '_>) -> bool {
    lists(request, "upgrade", "websocket")
}

/// The answer to the key of a request for a WebSocket.
pub fn upgrade(request: &Request<'_, '_>) -> Result<String, Refusal> {
    let key = header(request, "sec-websocket-key").filter(|key| {
        let bytes = BASE64.decode(key.as_bytes());
        bytes.is_ok_and(|bytes| bytes.len() == 16)
    });
    match key {
        Some(key)
            if is_upgrade(request)
                && lists(request, "connection", "upgrade")
                && header(request, "sec-websocket-version") == Some("13") =>
        {
            Ok(accept(key))
        }
        _ => Err(("426 Upgrade Required", "this is a WebSocket of version 13\n")),
    }
}

/// Opens a WebSocket with one who says at most so many bytes at once. `more` are further headers.
pub fn open(
    mut stream: Stream,
    accept: &str,
    more: &str,
    rest: Vec<u8>,
    said_bytes_max: usize,
) -> io::Result<WebSocket<Stream>> {
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.flush()?;
    let config = WebSocketConfig::default()
        .read_buffer_size(4 << 10)
        .max_message_size(Some(said_bytes_max))
        .max_frame_size(Some(said_bytes_max));
    Ok(WebSocket::from_partially_read(stream, rest, Role::Server, Some(config)))
}

/// Texts that a viewer has sent since the last call, without waiting for more. Everything else ends the connection. What is
/// told until the next call has [`TELL_MAX`].
pub fn hear(socket: &mut WebSocket<Stream>) -> Result<Vec<Utf8Bytes>, Error> {
    socket.get_mut().allow(TELL_MAX);
    socket.get_ref().tcp().set_nonblocking(true)?;
    let said = hear_now(socket);
    socket.get_ref().tcp().set_nonblocking(false)?;
    said
}

fn hear_now(socket: &mut WebSocket<Stream>) -> Result<Vec<Utf8Bytes>, Error> {
    let mut texts = Vec::new();
    for _ in 0..SAID_MAX {
        match socket.read() {
            Ok(Message::Text(text)) => texts.push(text),
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(_) => return Err(Error::ConnectionClosed),
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(texts)
}

/// The proof that a server speaks WebSocket (RFC 6455, section 4.2.2).
fn accept(key: &str) -> String {
    let both = [key.as_bytes(), WEBSOCKET_KEY.as_bytes()].concat();
    BASE64.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &both).as_ref())
}

/// The only header of a name, if it is text.
pub fn header<'b>(request: &Request<'_, 'b>, name: &str) -> Option<&'b str> {
    let mut all = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name));
    match (all.next(), all.next()) {
        (Some(only), None) => std::str::from_utf8(only.value).ok().map(str::trim),
        _ => None,
    }
}

/// Returns whether the list in a header has a word.
pub fn lists(request: &Request<'_, '_>, name: &str, word: &str) -> bool {
    let mut words = header(request, name).unwrap_or_default().split(',');
    words.any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Returns whether a request has a header of this name.
pub fn has(request: &Request<'_, '_>, name: &str) -> bool {
    let mut all = request.headers.iter();
    all.any(|header| header.name.eq_ignore_ascii_case(name))
}
