//! The operator's view of a team: asks every robot that it can reach for its status.
//!
//! It is a client of the robots' links with the operator's certificate. It accepts a robot's status only about that
//! robot: the certificate at the other end says whose status it is. It brings the list of revoked certificates beside
//! its keys, if there is one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use coorp_core::paths::PathId;
use coorp_core::RobotId;
use coorp_team::Team;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::{Mutex, Notify};

use crate::discovery::{Finder, Order, Outcome};
use crate::ground::{Ground, Linux, Threads};
use crate::keys::{Identity, OPERATOR};
use crate::links::{self, port, read_frame, OPERATORS_FULL};
use crate::network;
use crate::quic::{connect, is_over_certificates, is_signed_by, lengths, Credentials, Missed};
use crate::revoked::Revoked;
use crate::status::Status;
use crate::sync::lock;
use crate::wire::{self, Frame, StatusQuery};
use crate::Error;

/// Time limit for a robot's answer, and for connecting before that.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Time from the end of a connection until discovery looks for another, and the same if the robot has not answered.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_REFUSED: Duration = Duration::from_secs(3);
/// Maximum time for which ending waits for the threads.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Watches a team from outside it.
#[derive(Debug)]
pub struct Watch {
    threads: Threads,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    team: Team,
    revoked: Revoked,
    newest: Option<CertificateDer<'static>>,
    finder: Finder,
    client: quinn::ClientConfig,
    endpoint: Endpoint,
    seats: BTreeMap<(RobotId, PathId), Seat>,
    /// The reasons why robots that are present do not answer.
    refusals: std::sync::Mutex<BTreeMap<(RobotId, PathId), &'static str>>,
}

/// One path to a robot, because some may be dead.
#[derive(Debug, Default)]
struct Seat {
    /// The connection, kept from one query to the next.
    open: Mutex<Option<Open>>,
    opened: Notify,
    /// The number of answers so far.
    answers: AtomicU64,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

impl Watch {
    /// Begins to look for a team's robots.
    ///
    /// # Errors
    /// If the operator's keys are missing or the network cannot be used.
    pub fn open(team: &Team, insecure: bool) -> Result<Watch, Error> {
        let team = network::placed(team.clone())?;
        let credentials = if insecure {
            Credentials::of_anybody(OPERATOR)?
        } else {
            Credentials::of(&Identity::of(&team, OPERATOR)?)?
        };
        let failed = |error| Error::Socket("cannot look for the robots".to_owned(), error);
        let threads = Linux.threads(1, "coorp-watch", || ()).map_err(failed)?;
        let entered = threads.tasks().enter();
        let six = team
            .robots
            .iter()
            .flat_map(|robot| &robot.addresses)
            .any(IpAddr::is_ipv6);
        let everywhere: IpAddr = if six {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let endpoint = Endpoint::client((everywhere, 0).into()).map_err(failed)?;
        drop(entered);
        let paths_of = |robot| (0u8..).map(PathId).take(team.paths_used(robot));
        let robots = (0u16..).map(RobotId).take(team.robots.len());
        let seats = robots.flat_map(|robot| paths_of(robot).map(move |path| ((robot, path), Seat::default())));
        let seats: BTreeMap<_, _> = seats.collect();
        let paths = seats.keys().map(|(_, path)| usize::from(path.0) + 1).max().unwrap_or(1);
        let revoked = if insecure {
            Revoked::default()
        } else {
            Revoked::of(&credentials, &team.live.keys, None)?
        };
        let shared = Arc::new(Shared {
            finder: Finder::start(&team, None, paths, credentials.authorities(), |why| {
                tracing::error!("{why}")
            })?,
            revoked,
            newest: credentials.authorities().first().cloned(),
            client: credentials.client(links::PROTOCOL)?,
            team,
            endpoint,
            seats,
            refusals: std::sync::Mutex::default(),
        });
        threads.tasks().spawn(Box::pin(dial(shared.clone())));
        Ok(Watch { threads, shared })
    }

    /// Returns the status of each robot that answers, in the team file's order.
    pub fn look(&self) -> Vec<Status> {
        let (answered, answers) = mpsc::channel();
        for (robot, path) in self.shared.seats.keys().copied() {
            let (shared, answered) = (self.shared.clone(), answered.clone());
            self.threads.tasks().spawn(Box::pin(async move {
                if let Some(status) = shared.ask(robot, path).await {
                    let _ = answered.send((robot, status));
                }
            }));
        }
        drop(answered);
        let until = Instant::now() + 2 * ANSWER_MAX;
        let next = || {
            answers
                .recv_timeout(until.saturating_duration_since(Instant::now()))
                .ok()
        };
        let mut found: Vec<(RobotId, Status)> = std::iter::from_fn(next).collect();
        found.sort_by_key(|(robot, _)| *robot);
        found.dedup_by_key(|(robot, _)| *robot);
        found.into_iter().map(|(_, status)| status).collect()
    }

    /// Returns the robots that are present and refuse the operator, and why.
    pub fn refusals(&self) -> Vec<(RobotId, &'static str)> {
        let refusals: BTreeMap<RobotId, _> = lock(&self.shared.refusals)
            .iter()
            .map(|((robot, _), why)| (*robot, *why))
            .collect();
        refusals.into_iter().collect()
    }
}

impl Watch {
    /// Returns the names of the robots that show certificates of the newest authority, and of those that show older
    /// ones. Only robots that [`Watch::look`] has found are named.
    pub fn renewed(&self) -> (Vec<String>, Vec<String>) {
        let shared = &self.shared;
        let mut is_new = BTreeMap::new();
        for ((robot, _), seat) in &shared.seats {
            let Ok(open) = seat.open.try_lock() else { continue };
            if let (Some(open), Some(newest)) = (&*open, &shared.newest) {
                is_new.insert(*robot, is_signed_by(newest, &open.connection));
            }
        }
        let named = |wanted: bool| {
            let robots = is_new.iter().filter(move |(_, new)| **new == wanted);
            robots.map(|(robot, _)| shared.team.robots[usize::from(robot.0)].name.clone())
        };
        (named(true).collect(), named(false).collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let endpoint = self.shared.endpoint.clone();
        endpoint.close(0u8.into(), b"closed");
        self.threads
            .end(async move { endpoint.wait_idle().await }, CLOSE_MAX, CLOSE_MAX);
    }
}

/// Connects to robots at the addresses that discovery finds.
async fn dial(shared: Arc<Shared>) {
    loop {
        // Attempts time out on their own, and no socket is bound to a card.
        let Order::Dial {
            attempt,
            robot,
            path,
            address,
        } = shared.finder.next().await
        else {
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let address = SocketAddr::new(address, port(&shared.team, robot, path.0.into()));
            let before = shared.answers(robot, path);
            let connection = match shared.connect(robot, path, address).await {
                Ok(connection) => connection,
                Err(missed) => {
                    tracing::debug!("robot {} does not answer: {missed}", robot.0);
                    if missed.outcome == Outcome::Misfit {
                        lock(&shared.refusals).insert((robot, path), ANOTHER_TEAM);
                    }
                    return shared.finder.report(attempt, missed.outcome);
                }
            };
            shared.finder.report(attempt, Outcome::Connected(robot));
            let ended = connection.closed().await;
            let has_answered = shared.answers(robot, path) > before;
            if let Some(why) = refusal(&ended).filter(|_| !has_answered) {
                lock(&shared.refusals).insert((robot, path), why);
            }
            // Until then, the robot counts as connected, so that nobody dials it.
            tokio::time::sleep(if has_answered { RETRY } else { RETRY_REFUSED }).await;
            shared.finder.lost(robot, path);
        });
    }
}

/// Returns why a robot has ended a connection, if it refuses the operator.
fn refusal(ended: &ConnectionError) -> Option<&'static str> {
    match ended {
        error if is_over_certificates(error) => Some(ANOTHER_TEAM),
        ConnectionError::ApplicationClosed(closed) if closed.error_code == OPERATORS_FULL => Some(TOO_MANY),
        _ => None,
    }
}

const ANOTHER_TEAM: &str =
    "it does not accept the operator's certificate, or has no certificate of this team: are both from one \
                            'coorp keys init', and is the clock right?";
const TOO_MANY: &str = "too many operators watch it: end another 'coorp watch'";

impl Shared {
    async fn connect(&self, robot: RobotId, path: PathId, address: SocketAddr) -> Result<Connection, Missed> {
        let refused = |error: &dyn std::fmt::Display| Missed::new(Outcome::Refused, error.to_string());
        let everywhere = self.endpoint.local_addr().map_err(|error| refused(&error))?.ip();
        let mut client = self.client.clone();
        client.transport_config(links::transport(true, lengths(Linux.mtu(address, (everywhere, None)))));
        let connection = connect(
            &self.endpoint,
            client,
            (&self.team, &self.revoked, robot),
            address,
            ANSWER_MAX,
        )
        .await?;
        let (mut send, receive) = connection.open_bi().await.map_err(|error| refused(&error))?;
        if let Some(list) = self.revoked.list() {
            let brought = send.write_all(&wire::prefixed(&list)).await;
            brought.map_err(|error| refused(&error))?;
        }
        if let Some(seat) = self.seats.get(&(robot, path)) {
            *seat.open.lock().await = Some(Open {
                connection: connection.clone(),
                send,
                receive,
            });
            seat.opened.notify_one();
        }
        Ok(connection)
    }

    /// Returns the number of answers of a robot over a path.
    fn answers(&self, robot: RobotId, path: PathId) -> u64 {
        let seat = self.seats.get(&(robot, path));
        seat.map_or(0, |seat| seat.answers.load(Ordering::Acquire))
    }

    async fn ask(&self, robot: RobotId, path: PathId) -> Option<Status> {
        let seat = self.seats.get(&(robot, path))?;
        let asked = async {
            loop {
                if let Some(open) = &mut *seat.open.lock().await {
                    return open.ask().await;
                }
                seat.opened.notified().await;
            }
        };
        let answer = tokio::time::timeout(ANSWER_MAX, asked).await;
        let Some(mut status) = answer.ok().flatten() else {
            // A late answer would be taken for the answer to the next question.
            if let Some(open) = seat.open.lock().await.take() {
                open.connection.close(0u8.into(), b"no answer");
            }
            return None;
        };
        seat.answers.fetch_add(1, Ordering::AcqRel);
        lock(&self.refusals).remove(&(robot, path));
        self.team.robots[usize::from(robot.0)]
            .name
            .clone_into(&mut status.robot);
        Some(status)
    }
}

impl Open {
    async fn ask(&mut self) -> Option<Status> {
        self.send.write_all(&wire::prefixed(&StatusQuery)).await.ok()?;
        let answer = read_frame(&mut self.receive, Status::BYTES_MAX).await.ok()?;
        wire::decode(&answer).ok()
    }
}
