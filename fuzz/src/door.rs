//! Sends strangers' datagrams to a robot's door: its QUIC endpoint with the node's configuration and its admission, in
//! virtual time. An input is a sequence of actions of strangers, and of members among them.
//!
//! Strangers send anything, whole or changed packets of their own and of members, from any address, in any order. They
//! open Initial packets, change the content or the token, and seal them again. At some addresses they hear the robot;
//! the team's addresses and the *blind* ones they can only forge. Nothing panics, and:
//!
//! - the robot's state stays within its limits (`robot.rs`);
//! - no address counts as proved without a token that was sent there in time;
//! - an address without proof gets at most three times the bytes that came from it, and no handshake; an address of the
//!   team gets one handshake, and at most four times the bytes;
//! - no stranger is admitted;
//! - a member is admitted from its own address while strangers' datagrams keep coming, and from a new address
//!   afterwards.

mod initial;
mod robot;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use coorp_core::admission::HANDSHAKE_MAX;
use coorp_node::fuzz::Quic;
use coorp_node::keys::{self, Identity};
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::CertificateDer;
use quinn::rustls::{crypto::ring, ClientConfig, RootCertStore};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{Connection, DatagramEvent, Endpoint, EndpointConfig, Event};

use self::initial::Initial;
use self::robot::Robot;
use super::input::Input;

const ROBOT: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9)), 7_462);
const CLIENTS_MAX: usize = 8;
const SEEN_MAX: usize = 64;
const FLOODS_MAX: usize = 2;
/// The minimum time between two datagrams of a flood: robots ask for a thousand proofs a second.
const FLOOD_EVERY_MS: u64 = 4;
/// The maximum number of strangers' datagrams before a member comes, and while it comes: more would take too long.
const FLOODED_MAX: u32 = 500;
/// The length of a time step; steps are longer if nobody floods.
const STEP_MS: u64 = 5;
const STEP_QUIET_MS: u64 = 25;
const RETRY_TOKEN_MS: u64 = 15_000;
/// An address of the team may have one handshake without a proof. quinn then sends a whole datagram while it has sent
/// less than three times what came, so up to one more datagram is sent.
const AMPLIFIED_MAX: usize = 3;
const AMPLIFIED_TEAM_MAX: usize = 4;
/// The first port of clients; strangers forge the others.
const CLIENTS: u16 = 1_000;

/// Configurations and keys, made once.
struct Keys {
    robot: Quic,
    member: quinn_proto::ClientConfig,
    certificate: CertificateDer<'static>,
    /// Clients without a certificate, with their own certificate, and with another protocol.
    strangers: [quinn_proto::ClientConfig; 3],
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("coorp-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "name = \"fleet\"\n[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"r1\"\n";
        let team = coorp_team::parse(text, "team.toml", &folder).unwrap();
        keys::init(&team).unwrap();
        let quic = |name| Quic::of(&Identity::of(&team, name).unwrap()).unwrap();
        let (robot, member) = (quic("base"), quic("r1"));
        let read = |file: &str| CertificateDer::from_pem_file(team.live.keys.join(file)).unwrap();
        let (authority, certificate) = (read("ca.pem"), read("robots/r1.pem"));
        std::fs::remove_dir_all(&folder).unwrap();
        let strangers = [
            nobody(&authority, b"coorp-control/1"),
            Quic::of_anybody("r1").unwrap().client,
            nobody(&authority, b"h3"),
        ];
        Keys {
            robot,
            member: member.client,
            certificate,
            strangers,
        }
    })
}

/// Returns a client that knows the team's authority and has no certificate.
fn nobody(authority: &CertificateDer<'static>, protocol: &[u8]) -> quinn_proto::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    quinn_proto::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

/// Returns the addresses: two of the team file, two blind ones, and four at which strangers hear the robot.
fn address(number: u8) -> IpAddr {
    match number % 8 {
        fixed @ (0 | 1) => [10, 0, 0, 1 + fixed].into(),
        blind @ (2 | 3) => [10, 0, 1, blind].into(),
        7 => "2001:db8::7".parse().unwrap(),
        heard => [10, 0, 2, heard].into(),
    }
}

fn is_heard(address: IpAddr) -> bool {
    address.is_ipv6() || matches!(address, IpAddr::V4(four) if four.octets()[2] == 2)
}

struct Client {
    address: SocketAddr,
    endpoint: Endpoint,
    connection: Connection,
    /// Whether its datagrams are only seen, not delivered.
    is_held: bool,
    is_connected: bool,
}

/// A datagram that comes repeatedly.
struct Flood {
    from: SocketAddr,
    datagram: Vec<u8>,
    every_ms: u64,
    due_ms: u64,
}

/// The traffic from and to an address.
#[derive(Default)]
struct Account {
    received: usize,
    sent: usize,
    token_ms: Option<u64>,
    is_proved: bool,
}

struct World {
    robot: Robot,
    clients: Vec<Client>,
    accounts: BTreeMap<SocketAddr, Account>,
    /// Datagrams to the robot that strangers have seen.
    seen: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Retry packets to strangers' addresses without a client.
    retries: BTreeMap<SocketAddr, (Vec<u8>, Vec<u8>)>,
    floods: Vec<Flood>,
    flooded: u32,
}

pub fn run(bytes: &[u8]) {
    let keys = keys();
    let mut world = World {
        robot: Robot::new(&keys.robot, &keys.certificate, &[address(0), address(1)]),
        clients: Vec::new(),
        accounts: BTreeMap::new(),
        seen: VecDeque::new(),
        retries: BTreeMap::new(),
        floods: Vec::new(),
        flooded: 0,
    };
    let mut input = Input(bytes);
    while world.step(&mut input).is_some() {
        world.settle();
    }
    world.robot.is_busy = false;
    world.settle();
    world.clients.clear();
    world.flooded = 0;
    world.member_gets_in(address(0));
    world.floods.clear();
    world.wait(1_000);
    world.member_gets_in([10, 0, 3, 1].into());
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 12 {
            0 => {
                let from = self.whom(input)?;
                let (mut datagram, is_long) = (input.bytes()?.to_vec(), input.byte()? % 2 == 0);
                datagram.resize(if is_long { 1_200 } else { datagram.len() }, 0);
                self.send(from, &datagram);
            }
            1 | 2 => {
                let (kind, from, how) = (input.byte()?, input.byte()?, input.byte()?);
                self.connect(kind, from, how % 4 == 0);
            }
            3 => {
                let (_, mut datagram) = self.seen(input)?;
                input.change(&mut datagram)?;
                let from = self.whom(input)?;
                self.send(from, &datagram);
            }
            4 => {
                let ((from, datagram), elsewhere) = (self.seen(input)?, input.byte()?);
                let from = if elsewhere % 2 == 0 { from } else { self.whom(input)? };
                self.send(from, &datagram);
            }
            5 | 6 => self.change_inside(input)?,
            7 => self.forge(input)?,
            8 => {
                let ((from, datagram), how) = (self.seen(input)?, input.byte()?);
                let from = if how % 2 == 0 { from } else { self.whom(input)? };
                self.flood(from, datagram, u64::from(how));
            }
            9 => {
                if let Some(client) = self.client(input)? {
                    client.is_held = !client.is_held;
                }
            }
            10 => self.robot.is_busy = input.byte()? % 2 == 0,
            _ => self.wait(u64::from(input.byte()?) * u64::from(input.byte()? % 128)),
        }
        Some(())
    }

    // --- what strangers do ------------------------------------------------------------------------------------

    /// Returns any address, with the port of a client there or another port.
    fn whom(&self, input: &mut Input<'_>) -> Option<SocketAddr> {
        let (number, port) = (input.byte()?, input.byte()?);
        let port = if port % 2 == 0 {
            u16::from(port) + 1
        } else {
            CLIENTS + u16::from(port) / 2
        };
        Some(SocketAddr::new(address(number), port))
    }

    fn seen(&self, input: &mut Input<'_>) -> Option<(SocketAddr, Vec<u8>)> {
        let place = usize::from(input.byte()?);
        // Count from the newest.
        let seen = self.seen.iter().rev().nth(place % self.seen.len().max(1));
        Some(seen.cloned().unwrap_or((SocketAddr::new(address(2), 1), Vec::new())))
    }

    fn client(&mut self, input: &mut Input<'_>) -> Option<Option<&mut Client>> {
        let place = usize::from(input.byte()?) % self.clients.len().max(1);
        Some(self.clients.get_mut(place))
    }

    fn connect(&mut self, kind: u8, from: u8, is_held: bool) {
        let keys = keys();
        let (config, at) = match kind % 4 {
            3 => (&keys.member, address(0)),
            stranger => (&keys.strangers[usize::from(stranger)], address(4 + from % 4)),
        };
        if self.clients.len() == CLIENTS_MAX {
            self.clients.remove(0);
        }
        self.add(config, at, is_held);
    }

    fn add(&mut self, config: &quinn_proto::ClientConfig, at: IpAddr, is_held: bool) {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let connecting = endpoint.connect(self.robot.time.quic(), config.clone(), ROBOT, "robot.coorp.internal");
        let used = |port| self.clients.iter().any(|client| client.address.port() == port);
        let port = (CLIENTS..).find(|port| !used(*port)).unwrap();
        self.clients.push(Client {
            address: SocketAddr::new(at, port),
            endpoint,
            connection: connecting.unwrap().1,
            is_held,
            is_connected: false,
        });
    }

    /// Opens an Initial packet, changes its frames, its token or its number, and sends it again.
    fn change_inside(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (from, datagram) = self.seen(input)?;
        let crypto = &*keys().robot.server.crypto;
        let Some(mut packet) = Initial::open(crypto, &datagram) else {
            return Some(());
        };
        let (what, from_elsewhere) = (input.byte()?, input.byte()?);
        match what % 4 {
            0 => input.change(&mut packet.token)?,
            1 => {
                let (_, other) = self.seen(input)?;
                packet.token = Initial::open(crypto, &other).map_or(Vec::new(), |other| other.token);
            }
            2 => input.change(&mut packet.from)?,
            _ => input.change(&mut packet.frames)?,
        }
        if what & 4 != 0 {
            packet.number = packet.number.wrapping_add(u16::from(what / 8) + 1);
        }
        let from = if from_elsewhere % 2 == 0 {
            from
        } else {
            self.whom(input)?
        };
        if let Some(datagram) = packet.seal(crypto) {
            self.see(from, &datagram);
            self.send(from, &datagram);
        }
        Some(())
    }

    /// Begins a handshake with any frames, and proves the address if the robot asks for that.
    fn forge(&mut self, input: &mut Input<'_>) -> Option<()> {
        let from = self.whom(input)?;
        let crypto = &*keys().robot.server.crypto;
        let mut packet = Initial {
            to: vec![input.byte()?; 8],
            from: b"stranger".to_vec(),
            token: Vec::new(),
            number: 0,
            frames: vec![1],
        };
        self.retries.remove(&from);
        self.send(from, &packet.seal(crypto)?);
        self.settle();
        if let Some((to, token)) = self.retries.remove(&from) {
            (packet.to, packet.token) = (to, token);
        }
        for _ in 0..input.byte()? % 4 + 1 {
            packet.number += 1;
            packet.frames = input.bytes()?.to_vec();
            if let Some(datagram) = packet.seal(crypto) {
                self.see(from, &datagram);
                self.send(from, &datagram);
            }
        }
        Some(())
    }

    fn flood(&mut self, from: SocketAddr, datagram: Vec<u8>, how: u64) {
        if self.floods.len() == FLOODS_MAX {
            self.floods.remove(0);
        }
        self.floods.push(Flood {
            from,
            datagram,
            every_ms: FLOOD_EVERY_MS + how / 2,
            due_ms: self.robot.time.ms(),
        });
    }

    // --- the network ------------------------------------------------------------------------------------------

    fn see(&mut self, from: SocketAddr, datagram: &[u8]) {
        if self.seen.len() == SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back((from, datagram.to_vec()));
    }

    /// Sends a datagram to the robot.
    fn send(&mut self, from: SocketAddr, datagram: &[u8]) {
        self.accounts.entry(from).or_default().received += datagram.len();
        self.robot.receive(from, datagram);
        for (came_ms, address) in std::mem::take(&mut self.robot.proved) {
            self.prove(came_ms, address);
        }
        for (to, datagram) in std::mem::take(&mut self.robot.sent) {
            self.answer(to, &datagram);
        }
    }

    /// Checks that the robot rightly considers an address proved, by a datagram that came at `came_ms`.
    fn prove(&mut self, came_ms: u64, address: SocketAddr) {
        let account = self.accounts.entry(address).or_default();
        let is_true = account
            .token_ms
            .is_some_and(|at| came_ms <= at + RETRY_TOKEN_MS + 1_000);
        assert!(is_true, "{address} is taken for proved");
        account.is_proved = true;
    }

    /// Handles a datagram from the robot.
    fn answer(&mut self, to: SocketAddr, datagram: &[u8]) {
        let (now, ms) = (self.robot.time.quic(), self.robot.time.ms());
        let account = self.accounts.entry(to).or_default();
        account.sent += datagram.len();
        let client = self.clients.iter_mut().find(|client| client.address == to);
        // A member's handshake proves its address without a token.
        let is_proved = account.is_proved || client.is_some() && !is_heard(to.ip());
        let is_teams = [address(0), address(1)].contains(&to.ip());
        let most = if is_teams { AMPLIFIED_TEAM_MAX } else { AMPLIFIED_MAX };
        assert!(
            is_proved || account.sent <= most * account.received,
            "{to} gets {} bytes for {}",
            account.sent,
            account.received
        );
        let retry = initial::retry(datagram);
        if retry.is_some() && (client.is_some() || is_heard(to.ip())) {
            account.token_ms = Some(ms);
        }
        match client {
            Some(client) => {
                let mut buffer = Vec::new();
                let bytes = BytesMut::from(datagram);
                let event = client.endpoint.handle(now, ROBOT, None, None, bytes, &mut buffer);
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                    client.connection.handle_event(event);
                }
            }
            None if is_heard(to.ip()) => {
                if let Some(retry) = retry {
                    self.retries.insert(to, retry);
                }
            }
            None => {}
        }
    }

    /// Delivers all datagrams until nobody sends more.
    fn settle(&mut self) {
        loop {
            let now = self.robot.time.quic();
            self.robot.go_on();
            for (to, datagram) in std::mem::take(&mut self.robot.sent) {
                self.answer(to, &datagram);
            }
            for (came_ms, address) in std::mem::take(&mut self.robot.proved) {
                self.prove(came_ms, address);
            }
            let mut said = Vec::new();
            for client in &mut self.clients {
                said.extend(client.say(now));
            }
            if said.is_empty() {
                return;
            }
            for (from, is_held, datagram) in said {
                self.see(from, &datagram);
                if !is_held {
                    self.send(from, &datagram);
                }
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        let until = self.robot.time.ms() + ms;
        while self.robot.time.ms() < until {
            let is_quiet = self.floods.is_empty() || self.flooded >= FLOODED_MAX;
            let step = if is_quiet { STEP_QUIET_MS } else { STEP_MS };
            self.robot.time.add_ms(step.min(ms));
            for place in 0..self.floods.len() {
                let flood = &mut self.floods[place];
                if flood.due_ms <= self.robot.time.ms() && self.flooded < FLOODED_MAX {
                    self.flooded += 1;
                    flood.due_ms = self.robot.time.ms() + flood.every_ms;
                    let (from, datagram) = (flood.from, flood.datagram.clone());
                    self.send(from, &datagram);
                }
            }
            self.settle();
        }
    }

    fn member_gets_in(&mut self, at: IpAddr) {
        self.add(&keys().member, at, false);
        self.settle();
        let member = self.clients.len() - 1;
        for _ in 0..HANDSHAKE_MAX.as_nanos() / 1_000_000 / STEP_MS {
            if self.clients[member].is_connected {
                return;
            }
            self.wait(STEP_MS);
        }
        panic!("a member at {at} is not admitted");
    }
}

impl Client {
    /// Does what is due, and returns the datagrams to send.
    fn say(&mut self, now: std::time::Instant) -> Vec<(SocketAddr, bool, Vec<u8>)> {
        if self.connection.poll_timeout().is_some_and(|due| due <= now) {
            self.connection.handle_timeout(now);
        }
        while let Some(event) = self.connection.poll() {
            self.is_connected |= matches!(event, Event::Connected);
        }
        let (mut said, mut buffer) = (Vec::new(), Vec::new());
        while self.connection.poll_transmit(now, 1, &mut buffer).is_some() {
            said.push((self.address, self.is_held, std::mem::take(&mut buffer)));
        }
        said
    }
}
