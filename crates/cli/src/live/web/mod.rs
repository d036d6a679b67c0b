//! `coorp watch --web`, `--foxglove` and `--rerun`: what a live team does, on a page and in streams.
//!
//! The page and its script are in the binary (`assets/live.*`); its data comes over a WebSocket. Robots are asked only while
//! somebody views, and once for all viewers of all kinds.
//!
//! | file | what |
//! | --- | --- |
//! | `lane.rs` | from what a robot did to the spans of its lane |
//! | `feed.rs` | from robots' answers to one batch for all viewers |
//! | `stream.rs` | from batches to messages on channels |
//! | `hub.rs` | the newest of either, for each viewer at its own speed |
//! | `door.rs` | who may connect, and TLS |
//! | `http.rs` | HTTP, and who may read |
//! | `serve.rs` | the page |
//! | `foxglove.rs`, `layout.rs` | Foxglove's protocol, and a layout of a team |
//! | `rerun.rs` | Rerun's viewer and files |
//!
//! Left out: streams to other machines. Viewers other than browsers have no certificate to show, and whoever reaches a port
//! without one would see the team. `ssh -L` brings a port to another machine, with ssh's proof of who asks.

mod door;
pub mod feed;
mod foxglove;
mod http;
mod hub;
pub mod lane;
mod layout;
mod rerun;
mod serve;
mod stream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{mpsc, Arc};
use std::time::{Duration, SystemTime};

use coorp_core::Instant;
use coorp_node::keys::page::{self, Page as Keys};
use coorp_node::watch::{Follower, Watch};
use coorp_team::Team;
use tungstenite::Utf8Bytes;

use self::door::Door;
use self::feed::{ask_every, status_every, Feed, TELL_EVERY};
use self::foxglove::Foxglove;
use self::hub::Hub;
use self::serve::Page;
use self::stream::{Block, Stream};
use crate::failure::Failure;
use crate::output;

/// The ports, unless other ones are given: away from those of robots, and where Foxglove looks first.
const PORT: &str = "8460";
const FOXGLOVE_PORT: &str = "8765";

/// How many of this machine's addresses are said, and how many notes may wait for a terminal.
const SHOWN_MAX: usize = 4;
const NOTES_MAX: usize = 16;

/// How often two clocks are read to compare them.
const READINGS: usize = 8;

/// Where a team is shown.
#[derive(Debug, clap::Args)]
pub struct Outlets {
    /// Show the team on a page for browsers on this machine, at http://127.0.0.1:8460 or another PORT. An ADDRESS of this
    /// machine, or 0.0.0.0 for all, is for browsers elsewhere, over TLS and with the operator's certificate
    #[arg(long, value_name = "[ADDRESS:]PORT", num_args = 0..=1, default_missing_value = PORT, value_parser = listen)]
    #[arg(conflicts_with = "once")]
    web: Option<SocketAddr>,
    /// Stream the team to Foxglove on this machine, which opens ws://127.0.0.1:8765 or another PORT
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = FOXGLOVE_PORT, value_parser = listen_here)]
    #[arg(conflicts_with = "once")]
    foxglove: Option<SocketAddr>,
    /// Stream the team to Rerun: to its viewer on this machine, or into FILE.rrd; needs Python and its package rerun-sdk
    #[arg(long, value_name = "PORT|FILE", num_args = 0..=1, default_missing_value = rerun::PORT, value_parser = rerun::To::parse)]
    #[arg(conflicts_with = "once")]
    rerun: Option<rerun::To>,
}

impl Outlets {
    /// Returns whether there is any.
    pub fn any(&self) -> bool {
        self.web.is_some() || self.foxglove.is_some() || self.rerun.is_some()
    }
}

/// Where to listen: PORT of this machine alone, or ADDRESS:PORT.
///
/// # Errors
/// If it is neither.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let at = match text.parse::<u16>() {
        Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
        Err(_) => text.parse::<SocketAddr>().map_err(|_| {
            format!(
                "'{text}' is no port, nor an address with one as in 192.168.1.5:8460 or [fd00::5]:8460; the team file comes \
                 first, as in 'coorp watch TEAM --web' or '--web PORT'"
            )
        })?,
    };
    // An IPv4 address in IPv6's writing is that address.
    Ok(match at {
        SocketAddr::V6(six) if six.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(six.ip().to_canonical(), six.port())
        }
        at => at,
    })
}

/// Where to listen on this machine alone.
///
/// # Errors
/// If another machine could reach it.
fn listen_here(text: &str) -> Result<SocketAddr, String> {
    let at = listen(text)?;
    if at.ip().is_loopback() {
        return Ok(at);
    }
    let port = at.port();
    Err(format!(
        "streams are for this machine alone, because whoever reached them elsewhere could watch the team; from another \
         machine: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, and open 127.0.0.1:{port} there"
    ))
}

/// The browsers that may open the page: any on this machine, or only the operator's on other machines.
///
/// # Errors
/// If the operator's keys cannot be used, or there are none.
fn door(team: &Team, at: SocketAddr, insecure: bool) -> Result<Door, Failure> {
    if at.ip().is_loopback() {
        return Ok(Door::loopback());
    }
    if insecure {
        return Err(Failure::Input(format!(
            "error: --web {at}: without keys, nobody elsewhere can prove to be the operator: create keys with 'coorp keys \
             init', or show the page on this machine alone, with --web {}",
            at.port()
        )));
    }
    let (said, notes) = mpsc::sync_channel::<String>(NOTES_MAX);
    spawn("coorp-notes", move || notes.iter().for_each(|note| output::note(&note)))?;
    Ok(Door::operators(Keys::of(team)?, said))
}

/// Where the page is, for a person.
fn shown_at(at: SocketAddr) -> String {
    if at.ip().is_loopback() {
        return format!("http://{at} (Ctrl-C ends it)");
    }
    let port = at.port();
    let mut all = if at.ip().is_unspecified() {
        let fits = |address: &IpAddr| at.is_ipv6() || address.is_ipv4();
        page::addresses().into_iter().filter(fits).collect()
    } else {
        vec![at.ip()]
    };
    all.truncate(SHOWN_MAX);
    let mut all: Vec<_> = all
        .iter()
        .map(|address| format!("https://{}", SocketAddr::new(*address, port)))
        .collect();
    all.extend(door::host().map(|host| format!("https://{}:{port}", page::local_name(&host))));
    format!(
        "{} to browsers with the operator's certificate ('coorp keys browser' makes what they need; Ctrl-C ends it)",
        all.join(" or ")
    )
}

/// Shows a team until the process ends, or, with Rerun alone, until that does.
///
/// # Errors
/// If a port cannot be used, or Rerun fails.
pub fn run(team: &Team, watch: Watch, outlets: &Outlets, insecure: bool) -> Result<(), Failure> {
    let page = match outlets.web {
        Some(at) => Some((door(team, at, insecure)?, bind(at, "--web")?)),
        None => None,
    };
    let foxglove = outlets.foxglove.map(|at| bind(at, "--foxglove")).transpose()?;
    let (pages, streams) = (Arc::<Hub<Utf8Bytes>>::default(), Arc::<Hub<Arc<Block>>>::default());
    let (began, unix) = moment(&watch);
    let began_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
    let wanted = (pages.clone(), streams.clone());
    let feed = Arc::new(Feed::new(team, began, move || {
        wanted.0.has_viewers() || wanted.1.has_viewers()
    }));
    let hello = feed.hello(unix);
    let robots = team.robots.len();
    let follower: Arc<dyn Follower> = feed.clone();
    watch.follow(ask_every(robots), status_every(robots), &follower);
    let has_streams = foxglove.is_some() || outlets.rerun.is_some();
    let stream = has_streams.then(|| Stream::new(team, began_ns));
    let to = (pages.clone(), streams.clone());
    spawn("coorp-tell", move || tell(&watch, &feed, stream, &to))?;
    let mut serving = Vec::new();
    if let Some((door, (listener, at))) = page {
        let site = Arc::new(Page { hub: pages, hello });
        serving.push(spawn("coorp-page", move || http::serve(&listener, &door, &site))?);
        output::print(&format!("{} is shown at {}\n", team.name, shown_at(at)))?;
    }
    if let Some((listener, at)) = foxglove {
        let site = Foxglove::new(team, &streams, began_ns);
        serving.push(spawn("coorp-foxglove", move || {
            http::serve(&listener, &Door::loopback(), &site)
        })?);
        output::print(&format!(
            "{} streams to Foxglove: open ws://{at} there, with the layout http://{at}/layout.json (Ctrl-C ends it)\n",
            team.name
        ))?;
    }
    if let Some(to) = &outlets.rerun {
        rerun::run(team, &streams, to)?;
    }
    for thread in serving {
        // It ends by a panic alone.
        let _ = thread.join();
    }
    Ok(())
}

fn bind(at: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let cannot = |error: std::io::Error| {
        let mend = if error.kind() == std::io::ErrorKind::AddrInUse {
            format!("; choose another one: {option} PORT")
        } else {
            String::new()
        };
        Failure::Input(format!("error: cannot listen at {at}: {error}{mend}"))
    };
    let listener = TcpListener::bind(at).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    Ok((listener, at))
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| Failure::Found(format!("failed: {error}")))
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

/// Tells all viewers what is new.
fn tell(watch: &Watch, feed: &Feed, mut stream: Option<Stream>, to: &(Arc<Hub<Utf8Bytes>>, Arc<Hub<Arc<Block>>>)) {
    let (pages, streams) = to;
    let mut number = 0;
    loop {
        std::thread::sleep(TELL_EVERY);
        if !pages.has_viewers() && !streams.has_viewers() {
            continue;
        }
        number += 1;
        let refusals = watch.refusals();
        let batch = feed.batch(number, watch.now(), &refusals);
        if pages.has_viewers() {
            let text = batch.text();
            let bytes = text.len();
            pages.tell(text.into(), bytes);
        }
        // Also while only pages are open: a stream knows what is so.
        if let Some(stream) = &mut stream {
            let block = stream.on_batch(&batch);
            let bytes = block.bytes();
            streams.tell(block, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_for_this_machine_unless_an_address_says_otherwise() {
        assert_eq!(listen("8460").unwrap().to_string(), "127.0.0.1:8460");
        assert_eq!(listen(PORT).unwrap().port(), 8_460);
        assert_eq!(listen("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(listen("[::ffff:127.0.0.1]:8460").unwrap().to_string(), "127.0.0.1:8460");
        assert_eq!(listen("[::ffff:10.0.0.5]:8460").unwrap().to_string(), "10.0.0.5:8460");
        assert_eq!(listen("[fe80::5%2]:8460").unwrap().to_string(), "[fe80::5%2]:8460");
        for elsewhere in ["0.0.0.0:8460", "10.0.0.1:8460", "[::]:8460"] {
            assert!(!listen(elsewhere).unwrap().ip().is_loopback(), "TLS");
            let why = listen_here(elsewhere).unwrap_err();
            assert!(why.contains("ssh -L 8460:127.0.0.1:8460"), "{why}");
        }
        assert!(listen("team.toml").unwrap_err().contains("coorp watch TEAM --web"));
    }
}
