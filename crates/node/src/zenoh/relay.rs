//! Relays the router's connections to other robots' routers: decides the order in which they come up, and their
//! addresses.
//!
//! Zenoh's routers inform each other of nodes and topics by messages of the highest priority, which must stay in order.
//! Until the link of that priority is up, Zenoh sends them over any other link. Later messages on the right link may
//! then overtake them, and the routers would not understand each other until they reconnect. Zenoh connects to all its
//! endpoints at once, when it opens and when another robot is back. So its endpoints are here: the first link to a
//! robot goes through at once, and the others once that link is up. The address of a robot is looked up for each
//! connection, so it need not be in the team file.
//!
//! Of two robots, the one earlier in the team file connects to the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use coorp_core::zenoh::{Batches, Link};
use coorp_core::RobotId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{ids, place};
use crate::addresses::Addresses;
use crate::member::Member;
use crate::Error;

/// Maximum time for which Zenoh is kept waiting for a connection, less than its own limit of 60 s.
const PATIENCE: Duration = Duration::from_secs(50);
const CONNECT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(500);
/// If all links to a robot are lost, they are opened again together. For this long, the first link may have been lost
/// without seeming so.
const SETTLE: Duration = Duration::from_millis(200);
/// The number of the other router's answers after which a link is up: to the request and to the opening.
const ANSWERS: u32 = 2;
const BUFFER: usize = 64 << 10;

/// Carries the router's connections until it is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    endpoints: Vec<String>,
    runtime: Option<Runtime>,
}

impl Relay {
    pub fn start(member: &Member, addresses: &Arc<Addresses>) -> Result<Relay, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("coorp-zenoh")
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let mut endpoints = Vec::new();
        for robot in ids(&member.team).filter(|robot| *robot > member.me) {
            let (up, is_up) = watch::channel(false);
            let mut first = Some(up);
            for link in Link::ALL {
                let to = To {
                    addresses: addresses.clone(),
                    robot,
                    paths: member.paths,
                    port: member.team.port(robot) + place(link),
                };
                for reliable in [1, 0] {
                    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
                    let listener =
                        listener.map_err(|error| Error::Socket("cannot listen on 127.0.0.1".to_owned(), error))?;
                    let here = listener.local_addr();
                    let here = here.map_err(|error| Error::Socket("a socket has no address".to_owned(), error))?;
                    let (first_prio, last_prio) = link.priorities();
                    endpoints.push(format!("tcp/{here}?prio={first_prio}-{last_prio};rel={reliable}"));
                    // The first link is control's reliable one, which also carries the routers' own messages.
                    let turn = match first.take() {
                        Some(up) => Turn::First(up),
                        None => Turn::Later(is_up.clone()),
                    };
                    runtime.spawn(serve(listener, to.clone(), turn));
                }
            }
        }
        Ok(Relay {
            endpoints,
            runtime: Some(runtime),
        })
    }

    /// Returns the endpoints to which Zenoh connects.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The target of a connection: a robot's router.
#[derive(Clone, Debug)]
struct To {
    addresses: Arc<Addresses>,
    robot: RobotId,
    paths: usize,
    port: u16,
}

impl To {
    async fn connect(&self) -> Option<TcpStream> {
        let known = (0..self.paths).filter_map(|path| self.addresses.known(self.robot, path));
        for address in known.filter(IpAddr::is_ipv4) {
            let connecting = TcpStream::connect(SocketAddr::new(address, self.port));
            if let Ok(Ok(stream)) = timeout(CONNECT, connecting).await {
                return Some(stream);
            }
        }
        None
    }
}

/// The condition under which a link may come up.
#[derive(Debug)]
enum Turn {
    /// At once; the others are notified.
    First(watch::Sender<bool>),
    /// Once the first link is up.
    Later(watch::Receiver<bool>),
}

/// Carries one connection at a time: if there is a newer connection, Zenoh has given up the earlier one.
async fn serve(listener: TcpListener, to: To, turn: Turn) {
    let mut newest = None;
    loop {
        let near = match newest.take() {
            Some(near) => near,
            None => match listener.accept().await {
                Ok((near, _)) => near,
                Err(_) => {
                    sleep(AGAIN).await;
                    continue;
                }
            },
        };
        tokio::select! {
            () = carry(near, &to, &turn) => {}
            accepted = listener.accept() => newest = accepted.ok().map(|(near, _)| near),
        }
        if let Turn::First(up) = &turn {
            up.send_replace(false);
        }
    }
}

async fn carry(mut near: TcpStream, to: &To, turn: &Turn) {
    let connected = async {
        if let Turn::Later(up) = turn {
            sleep(SETTLE).await;
            up.clone().wait_for(|up| *up).await.ok()?;
        }
        loop {
            match to.connect().await {
                Some(far) => return Some(far),
                None => sleep(AGAIN).await,
            }
        }
    };
    let Ok(Some(mut far)) = timeout(PATIENCE, connected).await else {
        return;
    };
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let (from_near, to_near) = near.split();
    let (from_far, to_far) = far.split();
    let mut answers = Batches::default();
    let hear = |bytes: &[u8]| {
        if let Turn::First(up) = turn {
            answers.add(bytes);
            up.send_if_modified(|up| {
                let comes = !*up && answers.whole() >= ANSWERS;
                *up |= comes;
                comes
            });
        }
    };
    // If one end has closed, close the other; what has been written is still sent.
    tokio::select! {
        _ = pump(from_near, to_far, |_| ()) => {}
        _ = pump(from_far, to_near, hear) => {}
    }
}

async fn pump<'a>(
    mut from: tokio::net::tcp::ReadHalf<'a>,
    mut to: tokio::net::tcp::WriteHalf<'a>,
    mut passed: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let bytes = match from.read(&mut buffer).await? {
            0 => return Ok(()),
            length => &buffer[..length],
        };
        to.write_all(bytes).await?;
        passed(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn listen() -> (TcpListener, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    /// Returns a link's near end, and the far one's listener.
    async fn link(turn: Turn) -> (u16, TcpListener) {
        let text = "[[robot]]\nname = \"a\"\nleader = true\naddresses = [\"127.0.0.1\"]\n[[robot]]\nname = \"b\"\n";
        let team = coorp_team::parse(text, "team.toml", std::path::Path::new(".")).unwrap();
        let ((near, port), (far, far_port)) = (listen().await, listen().await);
        let to = To {
            addresses: Addresses::of(&team),
            robot: RobotId(0),
            paths: 1,
            port: far_port,
        };
        tokio::spawn(serve(near, to, turn));
        (port, far)
    }

    #[tokio::test]
    async fn other_links_wait_until_the_first_one_is_up() {
        let (up, is_up) = watch::channel(false);
        let (first, first_far) = link(Turn::First(up)).await;
        let (later, later_far) = link(Turn::Later(is_up.clone())).await;
        let _waits = TcpStream::connect((Ipv4Addr::LOCALHOST, later)).await.unwrap();
        let mut near = TcpStream::connect((Ipv4Addr::LOCALHOST, first)).await.unwrap();
        let (mut far, _) = first_far.accept().await.unwrap();
        near.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        // Send one answer and a part of the next.
        far.write_all(&[1, 0, 7, 2, 0, 8]).await.unwrap();
        let not_yet = timeout(SETTLE * 3, later_far.accept()).await;
        assert!(not_yet.is_err() && !*is_up.borrow());
        far.write_all(&[8]).await.unwrap();
        timeout(PATIENCE, later_far.accept()).await.unwrap().unwrap();
        drop(near);
        is_up.clone().wait_for(|up| !*up).await.unwrap();
        assert_eq!(far.read(&mut got).await.unwrap(), 0);
    }
}
