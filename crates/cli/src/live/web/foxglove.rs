//! Foxglove's WebSocket protocol: a viewer gets the list of channels, subscribes to some, and gets their messages as JSON.
//! <https://github.com/foxglove/ws-protocol>, as far as one needs who only tells.
//!
//! The server publishes its time, which is that of the newest message told. So a viewer shows each message at the time when
//! the thing happened, whenever it arrives.
//!
//! The port has another address, `/layout.json`: a layout for this team (`layout.rs`).
//!
//! The protocol has no acknowledgements. A slow viewer holds up its own thread, until it takes what was written or, after
//! some seconds, loses its connection. It goes on with the newest, is told how much it has missed, and gets each state anew.
//!
//! Left out: all that changes something (parameters, services, messages from viewers), and other encodings than JSON.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use coorp_team::Team;
use serde::Deserialize;
use serde_json::json;
use tungstenite::{Error, Message, WebSocket};

use super::door::{Names, Stream};
use super::feed::TELL_EVERY;
use super::http::{self, asked, has, header, is_upgrade, respond, upgrade, Refusal, Request, VIEWERS_MAX};
use super::hub::{Hub, Viewer};
use super::layout;
use super::stream::{Block, Channel};

/// What clients call this protocol. The two have the same messages, as far as they are used here.
const PROTOCOLS: [&str; 2] = ["foxglove.sdk.v1", "foxglove.websocket.v1"];
/// The origins that may view: Foxglove's pages, and desktop programs, whose pages are files. Pages from this machine may too.
const ORIGINS: [&str; 3] = ["https://app.foxglove.dev", "https://studio.foxglove.dev", "file://"];
/// The longest message that a viewer has to send, bytes, and how many subscriptions it may have.
const SAID_BYTES_MAX: usize = 64 << 10;
const SUBSCRIPTIONS_MAX: usize = 256;
/// Kinds of binary messages.
const MESSAGE_DATA: u8 = 1;
const TIME: u8 = 2;

/// What viewers get of a team.
pub struct Foxglove {
    hub: Arc<Hub<Arc<Block>>>,
    /// The first messages to each viewer.
    info: String,
    channels: String,
    layout: String,
}

/// What a request asks for.
#[derive(Debug, PartialEq)]
enum Route {
    Help,
    Layout,
    /// The WebSocket, with the answer to its key, and the protocol.
    Stream(String, &'static str),
}

/// What viewers say; there is more, which nothing here answers.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
enum Said {
    Subscribe {
        subscriptions: Vec<Subscription>,
    },
    #[serde(rename_all = "camelCase")]
    Unsubscribe {
        subscription_ids: Vec<u32>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    id: u32,
    channel_id: u64,
}

impl Foxglove {
    pub fn new(team: &Team, hub: &Arc<Hub<Arc<Block>>>, began_ns: u64) -> Arc<Foxglove> {
        let version = env!("CARGO_PKG_VERSION");
        let info = json!({
            "op": "serverInfo", "name": format!("{} (Coorp {version})", team.name), "capabilities": ["time"],
            "metadata": {"coorp": version, "team": team.name}, "sessionId": began_ns.to_string(),
        });
        let channels: Vec<_> = Channel::all()
            .zip(1u64..)
            .map(|(channel, id)| {
                json!({
                    "id": id, "topic": channel.topic(), "encoding": "json", "schemaName": channel.schema_name(),
                    "schemaEncoding": "jsonschema", "schema": channel.schema().to_string(),
                })
            })
            .collect();
        Arc::new(Foxglove {
            hub: hub.clone(),
            info: info.to_string(),
            channels: json!({"op": "advertise", "channels": channels}).to_string(),
            layout: layout::layout(team),
        })
    }
}

impl http::Site for Foxglove {
    fn answer(&self, mut stream: Stream, request: &Request<'_, '_>, rest: Vec<u8>) -> io::Result<()> {
        match route(request, stream.names()) {
            Ok(Route::Help) => {
                let text =
                    "Foxglove's WebSocket is here: open a Foxglove WebSocket connection to ws:// and this address.\n\
                            /layout.json is a layout for this team.\n";
                respond(&mut stream, "200 OK", "text/plain", "", &[text])
            }
            Ok(Route::Layout) => {
                let save = "Content-Disposition: attachment; filename=\"layout.json\"\r\n";
                respond(&mut stream, "200 OK", "application/json", save, &[&self.layout])
            }
            Ok(Route::Stream(accept, protocol)) => {
                let Some(viewer) = self.hub.view(VIEWERS_MAX) else {
                    let text = "too many viewers are connected: close one\n";
                    return http::refuse(&mut stream, ("503 Service Unavailable", text));
                };
                let chosen = format!("Sec-WebSocket-Protocol: {protocol}\r\n");
                let socket = http::open(stream, &accept, &chosen, rest, SAID_BYTES_MAX)?;
                // Why it ends is of no interest.
                let _ = self.view(socket, viewer);
                Ok(())
            }
            Err(refusal) => http::refuse(&mut stream, refusal),
        }
    }
}

/// What a request asks for, if it may. The path does not matter to a WebSocket.
fn route(request: &Request<'_, '_>, names: &Names) -> Result<Route, Refusal> {
    let (_, path) = asked(request, names)?;
    if path == "/layout.json" {
        return Ok(Route::Layout);
    }
    if !is_upgrade(request) {
        return match path {
            "/" => Ok(Route::Help),
            _ => Err(("404 Not Found", "the layout is at /layout.json\n")),
        };
    }
    if has(request, "origin") && !header(request, "origin").is_some_and(may_view) {
        return Err((
            "403 Forbidden",
            "this is for Foxglove's pages, those of this machine, and desktop programs alone\n",
        ));
    }
    let accept = upgrade(request)?;
    let protocol = PROTOCOLS
        .into_iter()
        .find(|protocol| http::lists(request, "sec-websocket-protocol", protocol));
    match protocol {
        Some(protocol) => Ok(Route::Stream(accept, protocol)),
        None => Err((
            "400 Bad Request",
            "the WebSocket speaks foxglove.sdk.v1 and foxglove.websocket.v1: name one as its protocol\n",
        )),
    }
}

/// Whether a page from there may view.
fn may_view(origin: &str) -> bool {
    let host = ["http://", "https://"]
        .iter()
        .find_map(|scheme| origin.strip_prefix(scheme));
    host.is_some_and(|host| Names::Loopback.have(host)) || ORIGINS.contains(&origin)
}

/// What one viewer has subscribed to.
#[derive(Default)]
struct Subscriptions {
    /// By the viewer's numbers.
    known: BTreeMap<u32, Channel>,
    /// Those that need what is so.
    fresh: Vec<u32>,
}

impl Subscriptions {
    /// The viewer says something.
    fn on_said(&mut self, text: &str) -> Result<(), Error> {
        match serde_json::from_str(text).map_err(|_| Error::ConnectionClosed)? {
            Said::Subscribe { subscriptions } => {
                for Subscription { id, channel_id } in subscriptions {
                    let channel = Channel::all().zip(1u64..).find(|(_, known)| *known == channel_id);
                    // There is nothing else to subscribe to.
                    let Some((channel, _)) = channel else { continue };
                    self.known.insert(id, channel);
                    self.fresh.push(id);
                    if self.known.len() > SUBSCRIPTIONS_MAX {
                        return Err(Error::ConnectionClosed);
                    }
                }
            }
            Said::Unsubscribe { subscription_ids } => {
                for id in subscription_ids {
                    self.known.remove(&id);
                }
            }
            Said::Other => {}
        }
        Ok(())
    }

    /// All need what is so.
    fn refresh(&mut self) {
        self.fresh = self.known.keys().copied().collect();
    }

    /// The messages of a block for this viewer, in order, with the subscription's number.
    fn of<'b>(&mut self, block: &'b Block) -> Vec<(u32, &'b super::stream::Message)> {
        let mut messages = Vec::new();
        for id in std::mem::take(&mut self.fresh) {
            let Some(channel) = self.known.get(&id) else { continue };
            let states = block.before.iter().filter(|((of, _), _)| of == channel);
            messages.extend(states.map(|(_, message)| (id, &**message)));
        }
        for message in &block.messages {
            let subscribed = self.known.iter().filter(|(_, channel)| **channel == message.channel);
            messages.extend(subscribed.map(|(id, _)| (*id, &**message)));
        }
        messages
    }
}

impl Foxglove {
    /// Tells a viewer what it subscribes to, until it is gone.
    fn view(&self, mut socket: WebSocket<Stream>, mut viewer: Viewer<Arc<Block>>) -> Result<(), Error> {
        socket.write(Message::text(self.info.as_str()))?;
        socket.send(Message::text(self.channels.as_str()))?;
        let (mut subscriptions, mut time_ns) = (Subscriptions::default(), 0);
        loop {
            for said in http::hear(&mut socket)? {
                subscriptions.on_said(said.as_str())?;
            }
            let Some(block) = viewer.next(TELL_EVERY) else { continue };
            let skipped = viewer.take_skipped();
            if skipped > 0 {
                subscriptions.refresh();
                let seconds = (skipped as f64 * TELL_EVERY.as_secs_f64()).max(0.1);
                let message = format!("this viewer was too slow, and about {seconds:.1} s are missing");
                let status = json!({"op": "status", "level": 1, "message": message, "id": "slow"});
                socket.write(Message::text(status.to_string()))?;
            }
            for (id, message) in subscriptions.of(&block) {
                // Time never goes back, for that would be a seek.
                if message.at_ns > time_ns {
                    time_ns = message.at_ns;
                    socket.write(time(time_ns))?;
                }
                socket.write(data(id, message))?;
            }
            if block.until_ns > time_ns {
                time_ns = block.until_ns;
                socket.write(time(time_ns))?;
            }
            socket.flush()?;
        }
    }
}

fn time(at_ns: u64) -> Message {
    Message::binary([&[TIME][..], &at_ns.to_le_bytes()].concat())
}

fn data(subscription: u32, message: &super::stream::Message) -> Message {
    let text = message.text.as_bytes();
    let head = [
        &[MESSAGE_DATA][..],
        &subscription.to_le_bytes(),
        &message.at_ns.to_le_bytes(),
    ];
    Message::binary([&head.concat()[..], text].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(text: &str) -> Result<Route, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; http::HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        let text = text.replace('\n', "\r\n") + "\r\n\r\n";
        assert!(request.parse(text.as_bytes()).unwrap().is_complete());
        route(&request, &Names::Loopback).map_err(|(status, _)| status)
    }

    fn stream(more: &str) -> Result<Route, &'static str> {
        routed(&format!(
            "GET / HTTP/1.1\nHost: localhost:8765\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=={more}"
        ))
    }

    #[test]
    fn only_viewers_of_this_protocol_and_no_strangers_pages_get_data() {
        let protocol = "\nSec-WebSocket-Protocol: foxglove.websocket.v1, foxglove.sdk.v1";
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        assert_eq!(
            stream(protocol),
            Ok(Route::Stream(accept, "foxglove.sdk.v1")),
            "no browser"
        );
        for origin in [
            "https://app.foxglove.dev",
            "file://",
            "http://localhost:8080",
            "http://127.0.0.1:3000",
            "https://[::1]:1",
        ] {
            assert!(stream(&format!("{protocol}\nOrigin: {origin}")).is_ok(), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "https://app.foxglove.dev.evil.example",
            "http://app.foxglove.dev",
            "http://localhost.evil.example",
            "null",
            "https://app.foxglove.dev\nOrigin: https://evil.example",
        ] {
            let refused = stream(&format!("{protocol}\nOrigin: {origin}"));
            assert_eq!(refused, Err("403 Forbidden"), "{origin}");
        }
        assert_eq!(stream(""), Err("400 Bad Request"), "no protocol");
        let unknown = "\nSec-WebSocket-Protocol: foxglove.sdk.v11";
        assert_eq!(stream(unknown), Err("400 Bad Request"));
        assert_eq!(
            routed("GET / HTTP/1.1\nHost: evil.example\nUpgrade: websocket"),
            Err("403 Forbidden")
        );
        assert_eq!(routed("GET / HTTP/1.1\nHost: localhost"), Ok(Route::Help));
        assert_eq!(routed("GET /layout.json HTTP/1.1\nHost: localhost"), Ok(Route::Layout));
        assert_eq!(routed("GET /live HTTP/1.1\nHost: localhost"), Err("404 Not Found"));
    }

    #[test]
    fn subscriptions_are_bounded_and_nonsense_ends_them() {
        let mut subscriptions = Subscriptions::default();
        let subscribe = |ids: std::ops::Range<u32>, channel: u64| {
            let all: Vec<_> = ids.map(|id| json!({"id": id, "channelId": channel})).collect();
            json!({"op": "subscribe", "subscriptions": all}).to_string()
        };
        subscriptions.on_said(&subscribe(0..2, 1)).unwrap();
        subscriptions.on_said(&subscribe(2..3, 99)).unwrap();
        subscriptions.on_said(r#"{"op": "getParameters", "id": "1"}"#).unwrap();
        assert_eq!((subscriptions.known.len(), subscriptions.fresh.len()), (2, 2));
        let unsubscribe = r#"{"op": "unsubscribe", "subscriptionIds": [1, 7]}"#;
        subscriptions.on_said(unsubscribe).unwrap();
        assert_eq!(subscriptions.known.keys().collect::<Vec<_>>(), [&0]);
        for nonsense in ["", "{}", "[1]", r#"{"op": "subscribe"}"#] {
            assert!(subscriptions.on_said(nonsense).is_err(), "{nonsense}");
        }
        assert!(subscriptions.on_said(&subscribe(10..1_000, 1)).is_err());
    }

    #[test]
    fn frames_are_those_of_the_protocol() {
        assert_eq!(time(5).into_data()[..], [2, 5, 0, 0, 0, 0, 0, 0, 0]);
    }
}
