//! The operator's view of a team: asks every robot that it can reach for its status.
//!
//! It is a client of the robots' links with the operator's certificate. It takes a robot's word for that robot alone: the
//! certificate at the other end says whose status it is. It brings the list of revoked certificates that lies beside its
//! keys, if there is one.
//!
//! [`Watch::look`] asks all robots at once. [`Watch::follow`] keeps asking each of them what it did and noticed since the last
//! time, over one of its paths, and compares its clock with the operator's: then all that happens has one time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use coorp_core::clock::{ClockEstimate, Offset};
use coorp_core::paths::PathId;
use coorp_core::robot::Look;
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
use crate::wire::{self, Frame, LookQuery, Looked, StatusQuery};
use crate::Error;

/// Time limit for a robot's answer, and for connecting before that.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Time from the end of a connection until discovery looks for another, and the same if the robot has not answered.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_REFUSED: Duration = Duration::from_secs(3);
/// Maximum time for which ending waits for the threads.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// The operator's clock at the start, such that no robot's earlier event is before its zero.
const STARTED: coorp_core::Instant = coorp_core::Instant::from_nanos(1_000_000_000_000);

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
    /// When [`STARTED`] was.
    started: Instant,
    /// Why robots that are there do not answer.
    refusals: std::sync::Mutex<BTreeMap<(RobotId, PathId), &'static str>>,
}

/// A robot's answer to one who follows it.
#[derive(Clone, Debug)]
pub struct Glance {
    /// What it did and noticed since the last glance.
    pub look: Look,
    /// How far its clock is ahead of the operator's ([`Watch::now`]).
    pub offset: Offset,
    /// Its status, now and then.
    pub status: Option<Box<Status>>,
}

/// One who follows a team. Its methods must not block.
pub trait Follower: Send + Sync {
    /// Returns whether robots are to be asked now: it takes some of their airtime.
    fn wants(&self) -> bool;
    /// What a robot answers; `None` if it does not.
    fn on_glance(&self, robot: RobotId, glance: Option<Glance>);
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
        let team = network::placed(team.clone().with_places())?;
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
            started: Instant::now(),
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

    /// Asks each robot `every` so often what it did and noticed, and for its status each `status_every`th time, until this is
    /// dropped.
    pub fn follow(&self, every: Duration, status_every: u32, follower: &Arc<dyn Follower>) {
        for robot in (0u16..).map(RobotId).take(self.shared.team.robots.len()) {
            let following = follow(self.shared.clone(), robot, (every, status_every), follower.clone());
            self.threads.tasks().spawn(Box::pin(following));
        }
    }

    /// The operator's clock, which [`Glance::offset`] compares others with.
    pub fn now(&self) -> coorp_core::Instant {
        self.shared.now()
    }

    /// The robots that are there and refuse the operator, and why.
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
        let lengths = lengths(Linux.mtu(address, (everywhere, None)));
        client.transport_config(links::transport(true, links::KEEP_ALIVE, lengths));
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
        let mut status: Status = self.answer(robot, path, &StatusQuery).await?.0;
        self.name(robot, &mut status);
        Some(status)
    }

    /// It is the certificate that says who answers.
    fn name(&self, robot: RobotId, status: &mut Status) {
        self.team.robots[usize::from(robot.0)]
            .name
            .clone_into(&mut status.robot);
    }

    /// A robot's answer over a path, and when the question went.
    async fn answer<A: Frame>(
        &self,
        robot: RobotId,
        path: PathId,
        query: &impl Frame,
    ) -> Option<(A, coorp_core::Instant)> {
        let seat = self.seats.get(&(robot, path))?;
        let asked = async {
            loop {
                if let Some(open) = &mut *seat.open.lock().await {
                    let sent_at = self.now();
                    return open.ask(query).await.map(|answer| (answer, sent_at));
                }
                seat.opened.notified().await;
            }
        };
        let answer = tokio::time::timeout(ANSWER_MAX, asked).await;
        let Some(answer) = answer.ok().flatten() else {
            // A late answer would be taken for one to the next question.
            if let Some(open) = seat.open.lock().await.take() {
                open.connection.close(0u8.into(), b"no answer");
            }
            return None;
        };
        seat.answers.fetch_add(1, Ordering::AcqRel);
        lock(&self.refusals).remove(&(robot, path));
        Some(answer)
    }

    /// The paths over which a robot can be asked, those first that answered last.
    fn open_to(&self, robot: RobotId) -> Vec<PathId> {
        let seats = self.seats.range((robot, PathId(0))..=(robot, PathId(u8::MAX)));
        let is_open = |seat: &Seat| seat.open.try_lock().is_ok_and(|open| open.is_some());
        let open = seats.filter(|(_, seat)| is_open(seat));
        open.map(|((_, path), _)| *path).collect()
    }

    fn now(&self) -> coorp_core::Instant {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        STARTED + coorp_core::Duration::from_nanos(elapsed)
    }
}

/// Keeps asking one robot.
async fn follow(
    shared: Arc<Shared>,
    robot: RobotId,
    (every, status_every): (Duration, u32),
    follower: Arc<dyn Follower>,
) {
    let (mut since, mut clock, mut last) = (None, ClockEstimate::default(), None);
    // Not all at once.
    let robots = u32::try_from(shared.team.robots.len()).unwrap_or(1).max(1);
    tokio::time::sleep(every * u32::from(robot.0) / robots).await;
    for round in 0u32.. {
        let began = tokio::time::Instant::now();
        if !follower.wants() {
            since = None;
            tokio::time::sleep(every).await;
            continue;
        }
        let paths = shared.open_to(robot);
        // It stays with the path that answers.
        let path = last.filter(|last| paths.contains(last)).or(paths.first().copied());
        let status = since.is_none() || round % status_every.max(1) == 0;
        let answer = match path {
            Some(path) => shared.answer::<Looked>(robot, path, &LookQuery { since, status }).await,
            None => None,
        };
        last = path.filter(|_| answer.is_some());
        let glance = answer.map(|(Looked { look, mut status }, sent_at)| {
            let now = shared.now();
            clock.on_exchange(look.clock.0, sent_at, look.now, look.now, now);
            since = Some(look.cursor());
            if let Some(status) = &mut status {
                shared.name(robot, status);
            }
            let offset = clock.offset(now).map_or(Offset::NONE, |(_, offset)| offset);
            Glance { look, offset, status }
        });
        follower.on_glance(robot, glance);
        tokio::time::sleep_until(began + every).await;
    }
}

impl Open {
    async fn ask<A: Frame>(&mut self, query: &impl Frame) -> Option<A> {
        self.send.write_all(&wire::prefixed(query)).await.ok()?;
        let answer = read_frame(&mut self.receive, A::BYTES_MAX).await.ok()?;
        wire::decode(&answer).ok()
    }
}
