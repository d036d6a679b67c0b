//! `coorp watch --web`: a page that shows a live team, as the report of `coorp sim` shows a simulated one.
//!
//! The page and its script are in the binary (`assets/live.*`); data comes over a WebSocket. Robots are asked only while a
//! page is open.
//!
//! | file | what |
//! | --- | --- |
//! | `lane.rs` | from what a robot did to the spans of its lane |
//! | `feed.rs` | from robots' answers to one message for all pages |
//! | `hub.rs` | the newest messages, for each page at its own speed |
//! | `serve.rs` | HTTP and the WebSocket, and who may read |
//!
//! Left out: other machines. A page has no operator's certificate to show, and whoever reaches a port without one would see
//! the team. `ssh -L` brings the page to a phone or another machine, with ssh's proof of who asks.

mod feed;
mod hub;
mod lane;
mod serve;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coorp_core::Instant;
use coorp_node::watch::{Follower, Watch};
use coorp_team::Team;

use self::feed::{ask_every, status_every, Feed, TELL_EVERY};
use self::hub::Hub;
use self::serve::Site;
use crate::failure::Failure;
use crate::output;

/// The port, unless another one is given: away from those of robots.
pub const PORT: &str = "8460";

/// How often two clocks are read to compare them.
const READINGS: usize = 8;

/// Where to listen: PORT or ADDRESS:PORT of this machine alone.
///
/// # Errors
/// If it is neither, or another machine could reach it.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    let at = match text.parse::<u16>() {
        Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        Err(_) => text
            .parse::<SocketAddr>()
            .map_err(|_| format!("'{text}' is no port; use 'coorp watch TEAM --web', or '--web PORT'"))?,
    };
    if at.ip().is_loopback() {
        return Ok(at);
    }
    let port = at.port();
    Err(format!(
        "the page is for this machine alone, because whoever reached it elsewhere could watch the team; from a phone or \
         another machine: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, and open http://127.0.0.1:{port} there"
    ))
}

/// Serves the page until the process ends.
///
/// # Errors
/// If the port cannot be used.
pub fn run(team: &Team, watch: Watch, at: SocketAddr) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| {
        let mend = if error.kind() == std::io::ErrorKind::AddrInUse {
            "; choose another one: --web PORT"
        } else {
            ""
        };
        Failure::Input(format!("error: cannot serve the page at {at}: {error}{mend}"))
    };
    let listener = TcpListener::bind(at).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    let hub = Arc::new(Hub::default());
    let (began, unix) = moment(&watch);
    let feed = Arc::new(Feed::new(team, &hub, began));
    let site = Site::new(&hub, feed.hello(unix));
    let robots = team.robots.len();
    let follower: Arc<dyn Follower> = feed.clone();
    watch.follow(ask_every(robots), status_every(robots), &follower);
    let telling = std::thread::Builder::new()
        .name("coorp-tell".to_owned())
        .spawn(move || tell(&watch, &feed, &hub));
    telling.map_err(cannot)?;
    output::print(&format!("{} is shown at http://{at} (Ctrl-C ends it)\n", team.name))?;
    serve::serve(&listener, &site)
}

/// One moment on the operator's clock and as Unix time: of several, the one whose reading was interrupted least.
fn moment(watch: &Watch) -> (Instant, Duration) {
    let read = |_| {
        let before = watch.now();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        (watch.now().since(before), before, unix.unwrap_or_default())
    };
    let best = (0..READINGS).map(read).min_by_key(|(took, ..)| *took);
    best.map_or_else(|| (watch.now(), Duration::ZERO), |(_, began, unix)| (began, unix))
}

/// Tells all pages what is new.
fn tell(watch: &Watch, feed: &Feed, hub: &Hub) {
    let mut number = 0;
    loop {
        std::thread::sleep(TELL_EVERY);
        if hub.has_viewers() {
            number += 1;
            hub.tell(feed.batch(number, watch.now(), &watch.refusals()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_for_this_machine_alone() {
        assert_eq!(listen("8460").unwrap().to_string(), "127.0.0.1:8460");
        assert_eq!(listen(PORT).unwrap().port(), 8_460);
        assert_eq!(listen("[::1]:80").unwrap().to_string(), "[::1]:80");
        for elsewhere in ["0.0.0.0:8460", "10.0.0.1:8460", "[::]:8460"] {
            let why = listen(elsewhere).unwrap_err();
            assert!(why.contains("ssh -L 8460:127.0.0.1:8460"), "{why}");
        }
        assert!(listen("team.toml").unwrap_err().contains("coorp watch TEAM --web"));
    }
}
