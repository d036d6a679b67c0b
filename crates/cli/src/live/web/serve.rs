//! The page and the WebSocket for its data, and nothing else: four addresses to read, and nothing that changes anything.
//! Only the page from here may open the WebSocket (`http.rs` says why).
//!
//! A browser tells after each message how many it has taken. Who is too far behind gets nothing until it has caught up
//! ([`AHEAD_MAX`]), and then the newest (`hub.rs`): else, what a slow one has not taken would pile up in its own queue.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tungstenite::{Error, Message, Utf8Bytes, WebSocket};

use super::door::{Names, Stream};
use super::feed::TELL_EVERY;
use super::http::{self, asked, has, header, respond, upgrade, Refusal, Request, VIEWERS_MAX};
use super::hub::{Hub, Viewer};
use crate::charts;

/// The time that a browser may take nothing, and the messages that it may be behind.
const SILENT_MAX: Duration = Duration::from_secs(30);
const AHEAD_MAX: u64 = 10;
/// The longest message that a browser has to send, bytes.
const SAID_BYTES_MAX: usize = 64;

const HTML: &str = include_str!("../../../assets/live.html");
const SCRIPT: &str = include_str!("../../../assets/live.js");
const STYLE: &str = include_str!("../../../assets/live.css");

/// The files of the page, and its data.
#[derive(Debug)]
pub struct Page {
    pub hub: Arc<Hub<Utf8Bytes>>,
    /// The first message to each viewer.
    pub hello: String,
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

impl http::Site for Page {
    fn answer(&self, mut stream: Stream, request: &Request<'_, '_>, rest: Vec<u8>) -> io::Result<()> {
        let socket = stream.names().schemes().1;
        let page = header(request, "host").map(|host| policy(socket, host));
        let page = page.unwrap_or_default();
        match route(request, stream.names()) {
            Ok(Route::Page) => respond(&mut stream, "200 OK", "text/html", &page, &[HTML]),
            Ok(Route::Script) => respond(&mut stream, "200 OK", "text/javascript", "", &[charts::SCRIPTS, SCRIPT]),
            Ok(Route::Style) => respond(&mut stream, "200 OK", "text/css", "", &[charts::STYLES, STYLE]),
            Ok(Route::Live(accept)) => {
                let Some(viewer) = self.hub.view(VIEWERS_MAX) else {
                    let text = "too many pages are open: close one\n";
                    return http::refuse(&mut stream, ("503 Service Unavailable", text));
                };
                let socket = http::open(stream, &accept, "", rest, SAID_BYTES_MAX)?;
                // Why it ends is of no interest.
                let _ = view(socket, &self.hello, viewer);
                Ok(())
            }
            Err(refusal) => http::refuse(&mut stream, refusal),
        }
    }
}

/// What the page may load and by whom it may be shown: only what comes from here. Some browsers do not count a WebSocket as
/// such, unless it is named.
fn policy(socket: &str, host: &str) -> String {
    format!(
        "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
         connect-src 'self' {socket}://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    )
}

/// Which of the four addresses a request asks for, if it may.
fn route(request: &Request<'_, '_>, names: &Names) -> Result<Route, Refusal> {
    let (host, path) = asked(request, names)?;
    match path {
        "/" => Ok(Route::Page),
        "/live.js" => Ok(Route::Script),
        "/live.css" => Ok(Route::Style),
        "/live" => {
            // Every browser says where the page is from that opens a WebSocket.
            let own = format!("{}://{host}", names.schemes().0);
            let is_own = header(request, "origin").is_some_and(|origin| origin.eq_ignore_ascii_case(&own));
            if has(request, "origin") && !is_own {
                return Err(("403 Forbidden", "only the page from here may ask for this\n"));
            }
            upgrade(request).map(Route::Live)
        }
        _ => Err(("404 Not Found", "the page is at /\n")),
    }
}

/// Sends what is told to a browser, until it is gone or says what it has no reason to say.
fn view(mut socket: WebSocket<Stream>, hello: &str, mut viewer: Viewer<Utf8Bytes>) -> Result<(), Error> {
    socket.send(Message::text(hello))?;
    let (mut sent, mut taken, mut heard) = (0u64, 0u64, Instant::now());
    while socket.get_mut().may_go_on() {
        // What a browser says is the number of messages that it has taken.
        for said in http::hear(&mut socket)? {
            let newer = said.as_str().parse().map_err(|_| Error::ConnectionClosed)?;
            if (taken + 1..=sent).contains(&newer) {
                (taken, heard) = (newer, Instant::now());
            }
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(text: &str) -> Result<Route, &'static str> {
        routed_at(&Names::Loopback, text)
    }

    fn routed_at(names: &Names, text: &str) -> Result<Route, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; http::HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        let text = text.replace('\n', "\r\n") + "\r\n\r\n";
        assert!(request.parse(text.as_bytes()).unwrap().is_complete());
        route(&request, names).map_err(|(status, _)| status)
    }

    const UPGRADE: &str = "Upgrade: websocket\nConnection: keep-alive, Upgrade\nSec-WebSocket-Version: 13\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

    #[test]
    fn only_this_machines_own_names_are_answered() {
        for host in [
            "127.0.0.1:8460",
            "127.0.0.2:8460",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8460",
            "[::1]",
        ] {
            assert_eq!(
                routed(&format!("GET / HTTP/1.1\nHost: {host}")),
                Ok(Route::Page),
                "{host}"
            );
        }
        for host in [
            "evil.example:8460",
            "127.0.0.1.evil.example",
            "127.evil.example",
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
    fn over_tls_only_the_page_of_the_same_address_gets_data() {
        let names = Names::Own {
            address: "10.0.0.5".parse().unwrap(),
            host: Some("laptop".to_owned()),
        };
        let live = |host: &str, origin: &str| {
            let request = format!("GET /live HTTP/1.1\nHost: {host}\n{UPGRADE}\nOrigin: {origin}");
            routed_at(&names, &request)
        };
        assert!(live("10.0.0.5:8460", "https://10.0.0.5:8460").is_ok());
        assert!(live("laptop.local:8460", "https://laptop.local:8460").is_ok());
        for origin in [
            "http://10.0.0.5:8460",
            "https://10.0.0.5",
            "https://10.0.0.5:8461",
            "https://laptop.local:8460",
            "https://evil.example",
            "null",
        ] {
            assert_eq!(live("10.0.0.5:8460", origin), Err("403 Forbidden"), "{origin}");
        }
        assert_eq!(live("evil.example", "https://evil.example"), Err("403 Forbidden"));
        assert_eq!(live("localhost:8460", "https://localhost:8460"), Err("403 Forbidden"));
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
