//! The operator's view of a team: asks every robot that it can reach for its status.
//!
//! It is a client of the robots' links with the operator's certificate. It takes a robot's word for that robot alone: the
//! certificate at the other end says whose status it is.

use std::net::{IpAddr, SocketAddr};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use coorp_core::RobotId;
use coorp_team::Team;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::sync::Mutex;

use crate::addresses::Addresses;
use crate::keys::{Identity, OPERATOR};
use crate::links::{self, port, read_frame};
use crate::network;
use crate::own_runtime::OwnRuntime;
use crate::quic::{connect, lengths, Credentials};
use crate::status::Status;
use crate::wire::{self, Frame, StatusQuery};
use crate::Error;

/// How long a robot has to answer, and to be connected to before that.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How long ending waits for the threads.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Watches a team from outside it.
#[derive(Debug)]
pub struct Watch {
    threads: OwnRuntime,
    endpoint: Endpoint,
    seats: Vec<Arc<Seat>>,
}

/// One path to a robot, because some may be dead.
#[derive(Debug)]
struct Seat {
    team: Arc<Team>,
    robot: RobotId,
    path: usize,
    addresses: Arc<Addresses>,
    client: quinn::ClientConfig,
    /// Kept from one look to the next.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

impl Watch {
    /// Prepares to ask a team's robots.
    ///
    /// # Errors
    /// If the operator's keys are missing or the network cannot be used.
    pub fn open(team: &Team, insecure: bool) -> Result<Watch, Error> {
        let team = Arc::new(network::placed(team.clone())?);
        let credentials = if insecure {
            Credentials::of_anybody(OPERATOR)?
        } else {
            Credentials::of(&Identity::of_operator(&team)?)?
        };
        let client = credentials.client(links::PROTOCOL)?;
        let failed = |error| Error::Socket("cannot look for the robots".to_owned(), error);
        let threads = OwnRuntime::start(1, "coorp-watch", || ()).map_err(failed)?;
        let entered = threads.handle().enter();
        let six = team
            .robots
            .iter()
            .flat_map(|robot| &robot.addresses)
            .any(IpAddr::is_ipv6);
        let everywhere: SocketAddr = if six {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        };
        let endpoint = Endpoint::client(everywhere).map_err(failed)?;
        drop(entered);
        let addresses = Addresses::of(&team);
        let seats = (0u16..).map(RobotId).take(team.robots.len()).flat_map(|robot| {
            let seat = |path| Seat {
                team: team.clone(),
                robot,
                path,
                addresses: addresses.clone(),
                client: client.clone(),
                open: Mutex::default(),
            };
            (0..team.paths_used(robot))
                .map(move |path| Arc::new(seat(path)))
                .collect::<Vec<_>>()
        });
        Ok(Watch {
            seats: seats.collect(),
            threads,
            endpoint,
        })
    }

    /// The status of each robot that answers, in the team file's order.
    pub fn look(&self) -> Vec<Status> {
        let (answered, answers) = mpsc::channel();
        for seat in &self.seats {
            let (seat, endpoint, answered) = (seat.clone(), self.endpoint.clone(), answered.clone());
            self.threads.handle().spawn(async move {
                if let Some(status) = seat.ask(&endpoint).await {
                    let _ = answered.send((seat.robot, status));
                }
            });
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
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.endpoint.close(0u8.into(), b"closed");
        self.threads.end(self.endpoint.wait_idle(), CLOSE_MAX);
    }
}

impl Seat {
    async fn ask(&self, endpoint: &Endpoint) -> Option<Status> {
        // An earlier look may still wait here.
        let mut open = self.open.try_lock().ok()?;
        if open
            .as_ref()
            .is_none_or(|open| open.connection.close_reason().is_some())
        {
            *open = self.connect(endpoint).await;
        }
        let answer = tokio::time::timeout(ANSWER_MAX, open.as_mut()?.ask()).await;
        let mut status = answer.ok().flatten();
        match &mut status {
            Some(status) => self.team.robots[usize::from(self.robot.0)]
                .name
                .clone_into(&mut status.robot),
            None => *open = None,
        }
        status
    }

    async fn connect(&self, endpoint: &Endpoint) -> Option<Open> {
        for address in self.addresses.candidates(self.robot, self.path) {
            let address = SocketAddr::new(address, port(&self.team, self.robot, self.path));
            let mut client = self.client.clone();
            let everywhere = endpoint.local_addr().ok()?.ip();
            client.transport_config(links::transport(true, lengths(address, (everywhere, None))));
            match connect(endpoint, client, (&self.team, self.robot), address, ANSWER_MAX).await {
                Ok(connection) => {
                    // Granted once the robot has seen the certificate.
                    let (send, receive) = connection.open_bi().await.ok()?;
                    return Some(Open {
                        connection,
                        send,
                        receive,
                    });
                }
                Err(why) => tracing::debug!("robot {} does not answer: {why}", self.robot.0),
            }
        }
        None
    }
}

impl Open {
    async fn ask(&mut self) -> Option<Status> {
        self.send.write_all(&wire::prefixed(&StatusQuery)).await.ok()?;
        let answer = read_frame(&mut self.receive, Status::BYTES_MAX).await.ok()?;
        wire::decode(&answer).ok()
    }
}
