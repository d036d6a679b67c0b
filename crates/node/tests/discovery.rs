//! Robots find exactly the others of their team on a LAN of network namespaces and a bridge. Needs root; without it,
//! passes without a check.
//!
//! In place of QUIC, a robot that is dialled answers a datagram with its name: the modules under test do not know what
//! is dialled.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn, JoinHandle};
use std::time::{Duration, Instant};

use coorp_core::paths::PathId;
use coorp_node::discovery::{Finder, Names, Order, Outcome, Refusal};
use coorp_node::{RobotId, Team};
use nix::sched::{setns, CloneFlags};

/// The promised time limit for finding robots, and for finding them again.
const SOON: Duration = Duration::from_secs(5);
const GROUP: (Ipv4Addr, u16) = (Ipv4Addr::new(224, 0, 0, 251), 5_353);
/// The interval at which a connected robot is asked whether it is still there, and the number of failures after which
/// it is lost.
const ASK_EVERY: Duration = Duration::from_millis(200);
const SILENCES_MAX: u32 = 3;

fn ip(arguments: &str) -> bool {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    done.is_ok_and(|done| done.success())
}

/// A bridge, and namespaces with a cable to it; removed when dropped.
struct Lan {
    name: String,
    machines: usize,
}

impl Lan {
    fn new(name: &str, machines: usize) -> Option<Lan> {
        let lan = Lan {
            name: format!("disco-{}-{name}", std::process::id()),
            machines,
        };
        if !ip(&format!("netns add {}", lan.name)) {
            assert!(std::env::var_os("CI").is_none(), "CI is to have root and ip");
            let _ = writeln!(std::io::stderr().lock(), "SKIPPED {name}: not root, or no ip");
            return None;
        }
        assert!(ip(&format!("-n {} link add br0 type bridge", lan.name)));
        assert!(ip(&format!("-n {} link set br0 up", lan.name)));
        for machine in 0..machines {
            assert!(ip(&format!("netns add {}", lan.machine(machine))));
            assert!(ip(&format!("-n {} link set lo up", lan.machine(machine))));
            lan.plug(machine);
            lan.give(machine, lan.address(machine));
        }
        Some(lan)
    }

    fn machine(&self, machine: usize) -> String {
        format!("{}-{machine}", self.name)
    }

    fn address(&self, machine: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 0, machine as u8 + 1)
    }

    /// Plugs in a new card, without an address yet.
    fn plug(&self, machine: usize) {
        let (bridge, name) = (&self.name, self.machine(machine));
        assert!(ip(&format!(
            "link add eth0 netns {name} type veth peer name port{machine} netns {bridge}"
        )));
        assert!(ip(&format!("-n {bridge} link set port{machine} master br0 up")));
        assert!(ip(&format!("-n {name} link set eth0 up")));
    }

    fn unplug(&self, machine: usize) {
        assert!(ip(&format!("-n {} link del eth0", self.machine(machine))));
    }

    fn give(&self, machine: usize, address: Ipv4Addr) {
        assert!(ip(&format!(
            "-n {} addr add {address}/16 dev eth0",
            self.machine(machine)
        )));
    }

    fn take(&self, machine: usize, address: Ipv4Addr) {
        assert!(ip(&format!(
            "-n {} addr del {address}/16 dev eth0",
            self.machine(machine)
        )));
    }

    /// Runs `work` in a thread on one of the machines.
    fn on<T: Send + 'static>(&self, machine: usize, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(Path::new("/var/run/netns").join(self.machine(machine))).unwrap();
        spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        })
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for machine in 0..self.machines {
            ip(&format!("netns del {}", self.machine(machine)));
        }
        ip(&format!("netns del {}", self.name));
    }
}

/// Returns a team of this many robots without addresses.
fn team(name: &str, robots: usize) -> Team {
    let robots = (0..robots).map(|robot| {
        let leader = if robot == 0 { "leader = true\n" } else { "" };
        format!(
            "[[robot]]\nname = \"r{robot}\"\n{leader}port = {}\n",
            7_460 + 16 * robot
        )
    });
    let text = format!("name = \"{name}\"\n{}", robots.collect::<String>());
    coorp_team::parse(&text, "t.toml", Path::new("")).unwrap()
}

/// The knowledge and counts of a robot of the test.
#[derive(Default)]
struct Seen {
    connected: Mutex<BTreeMap<u16, IpAddr>>,
    /// The addresses dialled.
    dialled: Mutex<Vec<IpAddr>>,
    /// Questions by robots of other teams.
    foreign: AtomicU64,
    closed: AtomicBool,
}

/// A robot: it finds others, and answers those that dial it.
struct Robot {
    finder: Arc<Finder>,
    seen: Arc<Seen>,
}

impl Robot {
    fn start(lan: &Lan, machine: usize, team: &Team, me: u16) -> Robot {
        Robot::under(lan, machine, team, me, vec![format!("authority of {}", team.name)])
    }

    /// Returns a robot that knows these authorities.
    fn under(lan: &Lan, machine: usize, team: &Team, me: u16, authorities: Vec<String>) -> Robot {
        let (team, seen) = (team.clone(), Arc::new(Seen::default()));
        let (of_answers, of_dials) = (seen.clone(), seen.clone());
        let finder = lan.on(machine, move || {
            let port = team.port(RobotId(me));
            let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
            let name = format!("{} {me}", team.name);
            spawn(move || answer(&socket, &name, &of_answers));
            let finder = Finder::start(&team, Some(RobotId(me)), 1, &authorities, |_| ()).unwrap();
            let finder = Arc::new(finder);
            let dials = finder.clone();
            spawn(move || dial(&dials, &team, me, &of_dials));
            finder
        });
        Robot {
            finder: finder.join().unwrap(),
            seen,
        }
    }

    fn connected(&self) -> BTreeMap<u16, IpAddr> {
        self.seen.connected.lock().unwrap().clone()
    }

    fn dialled(&self) -> Vec<IpAddr> {
        self.seen.dialled.lock().unwrap().clone()
    }
}

impl Drop for Robot {
    fn drop(&mut self) {
        self.seen.closed.store(true, Ordering::Relaxed);
    }
}

/// Tells every asker the name of the robot here.
fn answer(socket: &UdpSocket, name: &str, seen: &Seen) {
    socket.set_read_timeout(Some(ASK_EVERY)).unwrap();
    let mut buffer = [0; 100];
    while !seen.closed.load(Ordering::Relaxed) {
        let Ok((bytes, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        if !name.as_bytes().starts_with(&buffer[..bytes]) {
            seen.foreign.fetch_add(1, Ordering::Relaxed);
        }
        let _ = socket.send_to(name.as_bytes(), from);
    }
}

/// Asks which robot is at an address, and returns the outcome.
fn ask(team: &str, at: SocketAddr, within: Duration) -> Outcome {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    socket.set_read_timeout(Some(within)).unwrap();
    if socket.connect(at).and_then(|()| socket.send(team.as_bytes())).is_err() {
        return Outcome::Refused;
    }
    let mut buffer = [0; 100];
    match socket.recv(&mut buffer) {
        Ok(bytes) => {
            let name = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
            let (of, robot) = name.split_once(' ').unwrap();
            match of == team {
                true => Outcome::Connected(RobotId(robot.parse().unwrap())),
                false => Outcome::Misfit,
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Outcome::Refused,
        Err(_) => Outcome::NoAnswer,
    }
}

/// Carries out the finder's orders.
fn dial(finder: &Arc<Finder>, team: &Team, me: u16, seen: &Arc<Seen>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    while !seen.closed.load(Ordering::Relaxed) {
        let next = runtime.block_on(async { tokio::time::timeout(ASK_EVERY, finder.next()).await });
        let Ok(Order::Dial {
            attempt,
            robot,
            address,
            ..
        }) = next
        else {
            continue;
        };
        assert_ne!(robot.0, me);
        seen.dialled.lock().unwrap().push(address);
        let (finder, seen) = (finder.clone(), seen.clone());
        let (name, at) = (team.name.clone(), SocketAddr::new(address, team.port(robot)));
        spawn(move || {
            let outcome = ask(&name, at, Duration::from_secs(1));
            if let Outcome::Connected(robot) = outcome {
                seen.connected.lock().unwrap().insert(robot.0, address);
            }
            finder.report(attempt, outcome);
            let mut silences = 0;
            while outcome == Outcome::Connected(robot) && silences < SILENCES_MAX {
                if seen.closed.load(Ordering::Relaxed) {
                    return;
                }
                let still = ask(&name, at, ASK_EVERY) == outcome;
                silences = if still { 0 } else { silences + 1 };
                sleep(ASK_EVERY);
            }
            if outcome == Outcome::Connected(robot) {
                seen.connected.lock().unwrap().remove(&robot.0);
                finder.lost(robot, PathId(0));
            }
        });
    }
}

/// Waits until `done`, and returns how long that took.
fn within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "{what} not within {limit:?}");
        sleep(Duration::from_millis(10));
    }
    began.elapsed()
}

#[test]
fn two_teams_of_twelve_on_one_lan_find_their_own_and_leave_the_other_alone() {
    const ROBOTS: usize = 12;
    let Some(lan) = Lan::new("teams", 2 * ROBOTS) else {
        return;
    };
    let teams = [team("red", ROBOTS), team("blue", ROBOTS)];
    let began = Instant::now();
    let robots: Vec<Robot> = (0..2 * ROBOTS)
        .map(|number| Robot::start(&lan, number, &teams[number % 2], (number / 2) as u16))
        .collect();
    let all = |robots: &[Robot]| robots.iter().all(|robot| robot.connected().len() == ROBOTS - 1);
    within(SOON, "all found", || all(&robots));
    eprintln!("two teams of {ROBOTS} found each other in {:?}", began.elapsed());
    sleep(SOON);
    assert!(all(&robots));
    for (number, robot) in robots.iter().enumerate() {
        assert_eq!(
            robot.seen.foreign.load(Ordering::Relaxed),
            0,
            "robot {number} was asked by strangers"
        );
        let counts = robot.finder.counts();
        assert!(
            counts.refused(Refusal::OtherTeam) > 0,
            "the other team was heard, and not tried"
        );
        assert_eq!(counts.attempts, ROBOTS as u64 - 1, "{counts:?}");
        for (other, address) in robot.connected() {
            assert_eq!(address, lan.address(2 * usize::from(other) + number % 2));
        }
    }
}

#[test]
fn addresses_interfaces_and_cards_that_change_are_found_again() {
    let Some(lan) = Lan::new("change", 3) else { return };
    let team = team("red", 3);
    // The last robot's network comes up later.
    assert!(ip(&format!("-n {} link set eth0 down", lan.machine(2))));
    let robots: Vec<Robot> = (0..3).map(|me| Robot::start(&lan, me.into(), &team, me)).collect();
    let found = |address: Ipv4Addr| {
        let at = Some(IpAddr::from(address));
        let others = robots[..2].iter().all(|robot| robot.connected().get(&2).copied() == at);
        others && robots[2].connected().len() == 2
    };
    within(SOON, "the others found", || {
        robots[..2].iter().all(|robot| robot.connected().len() == 1)
    });
    sleep(Duration::from_secs(4));
    assert!(ip(&format!("-n {} link set eth0 up", lan.machine(2))));
    let came = within(SOON, "an interface that came up found", || found(lan.address(2)));

    let (before, after) = (lan.address(2), Ipv4Addr::new(10, 96, 7, 7));
    lan.take(2, before);
    lan.give(2, after);
    let changed = within(SOON, "another address found", || found(after));

    lan.unplug(2);
    within(SOON, "the loss noticed", || robots[0].connected().len() == 1);
    sleep(Duration::from_secs(3));
    lan.plug(2);
    lan.give(2, after);
    let plugged = within(SOON, "another card found", || found(after));
    eprintln!("an interface came up: {came:?}; an address changed: {changed:?}; a card came back: {plugged:?}");
}

#[test]
fn a_card_that_comes_back_is_to_be_bound_anew() {
    let Some(lan) = Lan::new("card", 1) else { return };
    let mut team = team("red", 2);
    for (robot, address) in team.robots.iter_mut().zip(0..) {
        robot.interfaces = vec!["eth0".to_owned()];
        robot.addresses = vec![lan.address(address).into()];
    }
    // It dials the other robot forever.
    let finder = lan.on(0, {
        let team = team.clone();
        move || Finder::start(&team, Some(RobotId(0)), 1, &[] as &[&[u8]], |_| ()).unwrap()
    });
    let finder = finder.join().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let rebinds = |within: Duration| {
        let (began, mut rebinds) = (Instant::now(), 0);
        while began.elapsed() < within {
            let next = runtime.block_on(async { tokio::time::timeout(ASK_EVERY, finder.next()).await });
            rebinds += u32::from(next == Ok(Order::Rebind(PathId(0))));
        }
        rebinds
    };
    assert_eq!(rebinds(Duration::from_secs(1)), 0);
    lan.unplug(0);
    assert_eq!(rebinds(Duration::from_secs(1)), 0);
    lan.plug(0);
    lan.give(0, lan.address(0));
    assert_eq!(rebinds(Duration::from_secs(2)), 1);
    assert!(ip(&format!("-n {} link set eth0 down", lan.machine(0))));
    sleep(Duration::from_secs(1));
    assert!(ip(&format!("-n {} link set eth0 up", lan.machine(0))));
    assert_eq!(rebinds(Duration::from_secs(2)), 0, "it is the same one");
}

#[test]
fn robots_on_one_machine_find_each_other() {
    let Some(lan) = Lan::new("machine", 1) else { return };
    let team = team("red", 2);
    let robots: Vec<Robot> = (0..2).map(|me| Robot::start(&lan, 0, &team, me)).collect();
    within(SOON, "both found", || {
        robots.iter().all(|robot| robot.connected().len() == 1)
    });
}

/// Sends datagrams to the group until it is dropped, from one address after the other.
fn flood(lan: &Lan, machine: usize, datagrams: Vec<(Ipv4Addr, Vec<u8>)>, every: Duration) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    lan.on(machine, move || {
        let mut sockets = BTreeMap::new();
        for (number, (from, datagram)) in datagrams.iter().enumerate().cycle() {
            if stopped.load(Ordering::Relaxed) {
                return number;
            }
            let socket = sockets.entry(*from).or_insert_with(|| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
                socket.set_multicast_if_v4(from).unwrap();
                socket.bind(&SocketAddr::from((*from, GROUP.1)).into()).unwrap();
                UdpSocket::from(socket)
            });
            let _ = socket.send_to(datagram, GROUP);
            sleep(every);
        }
        0
    });
    stop
}

#[test]
fn while_keys_are_renewed_both_kinds_find_each_other() {
    let Some(lan) = Lan::new("renewed", 3) else { return };
    let team = team("red", 3);
    let authorities = [["new", "old"].as_slice(), &["old"], &["new"]];
    let robots: Vec<Robot> = (0u16..3)
        .zip(authorities)
        .map(|(me, known)| {
            let known = known.iter().map(|known| (*known).to_owned());
            Robot::under(&lan, me.into(), &team, me, known.collect())
        })
        .collect();
    within(SOON, "found under either authority", || {
        let met = |robot: usize| robots[robot].connected().into_keys().collect::<Vec<_>>();
        met(0) == [1, 2] && met(1) == [0] && met(2) == [0]
    });
}

#[test]
fn forged_announcements_cause_ten_attempts_at_most_and_delay_nobody() {
    const ATTACKER: usize = 3;
    const ADDRESSES: u16 = 200;
    let Some(lan) = Lan::new("forged", 4) else { return };
    let team = team("red", 12);
    let names = || team.robots.iter().map(|robot| robot.name.as_str());
    let own = Names::new(&team.name, Some(b"authority of red"), names());
    for number in 0..ADDRESSES {
        lan.give(ATTACKER, attackers(number));
    }
    // A stranger knows what was announced, and can change all of it but the proof.
    let forged = |number: u16, proved: bool| {
        let from = attackers(number % ADDRESSES);
        let mut datagram = own.announcement(RobotId(number % 12), 0, from, 7_460);
        let proof = datagram.windows(6).position(|at| at == b"proof=").unwrap() + 6;
        datagram[proof] ^= u8::from(!proved);
        (from, datagram)
    };
    let strangers: Vec<_> = (0..1_024).map(|number| forged(number, false)).collect();
    let stop = flood(&lan, ATTACKER, strangers, Duration::from_micros(500));
    sleep(Duration::from_millis(500));
    let mut robots: Vec<Robot> = (0..2).map(|me| Robot::start(&lan, me.into(), &team, me)).collect();
    let first = within(SOON, "found in a flood", || {
        robots.iter().all(|robot| robot.connected().len() == 1)
    });
    sleep(SOON);
    for robot in &robots {
        let counts = robot.finder.counts();
        assert!(counts.refused(Refusal::Unproved) > 1_000, "{counts:?}");
        assert_eq!(robot.dialled().len(), 1, "no forged address was tried");
    }
    stop.store(true, Ordering::Relaxed);

    // A member with valid proofs names robots that do not exist, and robots that do.
    let members: Vec<_> = (0..1_024).map(|number| forged(number, true)).collect();
    let stop = flood(&lan, ATTACKER, members, Duration::from_micros(500));
    sleep(2 * SOON);
    for robot in &robots {
        let forged = robot.dialled().len() - 1;
        assert!((1..=10).contains(&forged), "{forged} attempts: {:?}", robot.dialled());
    }
    // The earlier robot comes back, under the flood.
    lan.take(1, lan.address(1));
    within(SOON, "the loss noticed", || robots[0].connected().is_empty());
    lan.give(1, lan.address(1));
    let again = within(SOON, "found again in a flood", || {
        robots[0].connected().contains_key(&1)
    });
    stop.store(true, Ordering::Relaxed);
    eprintln!("found in a stranger's flood: {first:?}; again in a member's: {again:?}");
    robots.clear();
}

fn attackers(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 100, (number + 1) as u8)
}
