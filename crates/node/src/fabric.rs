//! The fabric: Zenoh sessions of one robot, configured from the team file.
//!
//! *Coordination* uses them: leadership, permits, liveness, subscriptions, status. They run over TLS on TCP: when a
//! process dies, its kernel says so, which frees a permit at once. There is one session per path. Coordination
//! tolerates duplicates, so it uses all of them, marked for AC_VO. Both ends of each link prove their identity by the
//! team's keys. The access rules restrict each robot to keys with its name, so no robot can speak for another. Control
//! has its own links: see `links`.
//!
//! Of two robots with known addresses, the later one in the team file connects to the earlier. Robots without an
//! address are found by multicast on their LAN: a robot searches before it opens a session, and connects to the robots
//! it finds as if their addresses had been given.
//!
//! Left out: one side's marks, if two robots meet later, for example because both start at once. Zenoh then connects by
//! itself and takes marks only from configured addresses, so only the accepting side marks what it sends. Also left
//! out: networks that come up later. Zenoh lists the interfaces once per process, so a robot without addresses waits
//! for the first one.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::time::{Duration, Instant};

use coorp_core::RobotId;
use coorp_team::{Team, PATHS_MAX};
use serde_json::{json, Value};
use zenoh::config::WhatAmI;
use zenoh::{Config, Session, Wait};

use crate::keys::{Identity, OPERATOR};
use crate::own_runtime::waiting;
use crate::{zenoh_threads, Error};

/// The largest control message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// TOS byte of DSCP 48 (CS6), which WiFi's default mapping, old and new, maps to AC_VO.
pub(crate) const TOS_VOICE: u8 = 48 << 2;
/// The multicast group for discovery of robots without addresses: Zenoh's own, on the team's ports.
const SCOUTING_GROUP: &str = "224.0.0.224";
/// Port offsets from a robot's first one. Coordination has one per path, TCP; bulk's is UDP.
pub(crate) const PORTS_COORDINATION: [u16; PATHS_MAX] = [0, 1, 6, 7];
pub(crate) const PORT_BULK: u16 = 1;
/// Control has one per path, UDP.
pub(crate) const PORT_CONTROL: u16 = 2;
const PORT_SCOUTING: u16 = 8;
/// How long a robot searches for others before it opens a session.
const LOOK_AROUND: Duration = Duration::from_millis(300);
/// How long a robot, and the operator, wait for a network to search for others on.
const NETWORK_WITHIN: Duration = Duration::from_secs(60);
const NETWORK_WITHIN_OPERATOR: Duration = Duration::from_secs(2);
const NETWORK_LOOK_EVERY: Duration = Duration::from_millis(20);
/// The maximum number of addresses to try.
const FOUND_MAX: usize = 1_024;
/// A peer whose link is silent for this long is gone. The end of a process is noticed at once.
const LINK_LEASE: Duration = Duration::from_secs(3);
/// Larger teams lengthen this, and the maximum time to connect, in proportion, because each robot has a link to every
/// other.
const LINK_LEASE_ROBOTS: u32 = 16;
/// One thread reads and writes, so a link that takes nothing for this long is closed, because all others wait for it.
const BLOCKED_MAX: Duration = Duration::from_millis(250);
/// An attempt to connect ends after this time, and another begins. A robot that returns is contacted within a second.
/// What this fabric announces has to arrive before that, but TCP repeats a lost first packet only after a second.
const CONNECT_MAX: Duration = Duration::from_millis(600);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_millis(200);
/// Coordination's messages are small; larger ones are not reassembled.
const COORDINATION_BYTES_MAX: usize = 1 << 20;

/// The kind of member that opens sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A robot of the team.
    Robot(RobotId),
    /// The operator, who queries the status and accepts no connections.
    Operator,
}

impl Who {
    /// The only interfaces that it uses; empty: any.
    fn interfaces(self, team: &Team) -> &[String] {
        match self {
            Who::Robot(robot) => &team.robots[usize::from(robot.0)].interfaces,
            Who::Operator => &[],
        }
    }

    /// The only interfaces that it searches for others on; empty: any. A robot with addresses searches on all for those
    /// without.
    fn looks_on(self, team: &Team) -> &[String] {
        match self {
            Who::Robot(robot) if !team.robots[usize::from(robot.0)].addresses.is_empty() => &[],
            who => who.interfaces(team),
        }
    }
}

/// The keys of the fabric. Robot names are valid in them: letters, digits, `-`, `_`, `.`.
#[derive(Clone, Debug)]
pub(crate) struct KeySpace {
    team: String,
}

impl KeySpace {
    pub fn new(team: &Team) -> Self {
        KeySpace {
            team: team.name.clone(),
        }
    }

    /// A token that lasts as long as the robot's coordination session, whose name it contains.
    pub fn alive(&self, robot: &str, session: &str) -> String {
        format!("coorp/{}/alive/{robot}/{session}", self.team)
    }

    /// The key on which `controller` receives messages about the permits of `robot`.
    pub fn permit(&self, controller: &str, robot: &str) -> String {
        format!("coorp/{}/permit/{controller}/{robot}", self.team)
    }

    /// The key on which a robot tells another one who leads.
    pub fn lead(&self, from: &str, to: &str) -> String {
        format!("coorp/{}/lead/{from}/{to}", self.team)
    }

    /// The key on which a robot tells all others who leads.
    pub fn lead_all(&self, from: &str) -> String {
        format!("coorp/{}/lead-all/{from}", self.team)
    }

    pub fn status(&self, robot: &str) -> String {
        format!("coorp/{}/status/{robot}", self.team)
    }

    /// The key on which a robot says when its control messages are due.
    pub fn models(&self, robot: &str) -> String {
        format!("coorp/{}/models/{robot}", self.team)
    }

    /// A token that lasts as long as a robot's subscription to a topic; `token` makes it unique.
    pub fn subscribes(&self, robot: &str, topic: &str, token: &str) -> String {
        format!("coorp/{}/subscribes/{robot}/{topic}/{token}", self.team)
    }

    /// A token that lasts as long as a robot gathers a topic, within one start of its process and one session.
    pub fn gathers(&self, robot: &str, topic: &str, incarnation: &str, session: &str) -> String {
        format!("coorp/{}/gathers/{robot}/{topic}/{incarnation}/{session}", self.team)
    }

    /// The key on which a gathering robot and a publishing one talk about a topic.
    pub fn fleet(&self, from: &str, to: &str, topic: &str) -> String {
        format!("coorp/{}/fleet/{from}/{to}/{topic}", self.team)
    }

    /// The part of a key at index `place` behind the team: 1 is the first behind the word.
    pub fn part<'k>(&self, key: &'k str, place: usize) -> Option<&'k str> {
        let rest = key
            .strip_prefix("coorp/")?
            .strip_prefix(self.team.as_str())?
            .strip_prefix('/')?;
        rest.split('/').nth(place)
    }
}

/// The error for a failed operation over the fabric.
pub(crate) fn fabric_failed(error: zenoh::Error) -> Error {
    Error::Fabric("the fabric failed", error)
}

/// Coordination's sessions, one per path.
#[derive(Debug)]
pub(crate) struct Sessions(Vec<Session>);

impl Sessions {
    /// Opens them. Works without any peer.
    pub fn open(team: &Team, who: Who, identity: Option<&Identity>, paths: usize) -> Result<Sessions, Error> {
        waiting(|| {
            let sessions = (0..paths).map(|path| coordination(team, who, identity, path));
            Ok(Sessions(sessions.collect::<Result<_, _>>()?))
        })
    }

    /// Returns the address of the peer on a path that has one of these sessions.
    pub fn peer(&self, path: usize, is_its: impl Fn(&str) -> bool + Send) -> Option<IpAddr> {
        let session = self.get(path)?;
        let mut links = waiting(|| session.info().links().wait());
        let link = links.find(|link| is_its(&link.zid().to_string()))?;
        let address = link.dst().address().as_str().parse::<SocketAddr>().ok()?;
        Some(address.ip())
    }

    pub fn close(&self) {
        waiting(|| {
            for session in self.iter() {
                if let Err(error) = session.close().wait() {
                    tracing::debug!("a session did not close: {error}");
                }
            }
        });
    }
}

impl Deref for Sessions {
    type Target = [Session];

    fn deref(&self) -> &[Session] {
        &self.0
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // Dropping the last handle of a session closes it, if that has not happened.
        let sessions = std::mem::take(&mut self.0);
        waiting(|| drop(sessions));
    }
}

/// Opens the session of one path.
fn coordination(team: &Team, who: Who, identity: Option<&Identity>, path: usize) -> Result<Session, Error> {
    let link = Link {
        protocol: if identity.is_some() { "tls" } else { "tcp" },
        // `network.rs` makes sure that no robot has more paths.
        port: PORTS_COORDINATION[path],
        path,
    };
    open(team, who, identity, &link, rules(team))
}

struct Link {
    protocol: &'static str,
    /// Its offset from a robot's first port.
    port: u16,
    path: usize,
}

impl Link {
    fn endpoint(&self, address: IpAddr, port: u16, interface: Option<&String>) -> String {
        let at = SocketAddr::new(address, port + self.port);
        format!("{}/{at}{}", self.protocol, marks(interface))
    }
}

/// A link's mark and interface, in the form that follows its address.
fn marks(interface: Option<&String>) -> String {
    let only = interface.map(|interface| format!(";iface={interface}"));
    format!("#dscp={TOS_VOICE:#x}{}", only.unwrap_or_default())
}

fn open(team: &Team, who: Who, identity: Option<&Identity>, link: &Link, rules: Value) -> Result<Session, Error> {
    zenoh_threads::settle(identity.is_some())?;
    let mut config = config(team, who, identity, link, rules);
    if config["scouting"]["multicast"]["enabled"] == true {
        await_network(who, who.looks_on(team))?;
        for endpoint in look_around(read(&config)?, link, who.interfaces(team).get(link.path))? {
            if let Some(endpoints) = config["connect"]["endpoints"].as_array_mut() {
                endpoints.push(endpoint.into());
            }
        }
    }
    let config = read(&config)?;
    zenoh::open(config)
        .wait()
        .map_err(|error| refused(team, who, link, error))
}

fn read(config: &Value) -> Result<Config, Error> {
    let config = Config::from_json5(&config.to_string());
    config.map_err(|error| Error::Fabric("the fabric does not take its configuration", error))
}

/// Waits until there is an interface on which Zenoh would search for robots, among these if some are given. Zenoh lists
/// them at its first use, and never sees those that come up later. A card that is not connected, or not quite yet, does
/// not count.
fn await_network(who: Who, interfaces: &[String]) -> Result<(), Error> {
    let fit = |interface: &pnet_datalink::NetworkInterface| {
        let used = interfaces.is_empty() || interfaces.contains(&interface.name);
        let works = used && interface.is_up() && interface.is_running() && interface.is_multicast();
        works && !interface.is_loopback() && interface.ips.iter().any(|address| address.is_ipv4())
    };
    let (began, mut told) = (Instant::now(), false);
    let within = if who == Who::Operator {
        NETWORK_WITHIN_OPERATOR
    } else {
        NETWORK_WITHIN
    };
    let which = match interfaces {
        [] => "no interface".to_owned(),
        several => format!("of this robot's interfaces ({}) none", several.join(", ")),
    };
    while !pnet_datalink::interfaces().iter().any(fit) {
        if began.elapsed() > within {
            return Err(Error::NoNetwork(format!(
                "there is no network to look for the other robots on: {which} is up with an IPv4 address; connect this \
                 machine, or give the robots `addresses` in the team file"
            )));
        }
        if !told && began.elapsed() > LOOK_AROUND {
            tracing::warn!("{which} is up with an IPv4 address: waiting for a network");
            told = true;
        }
        std::thread::sleep(NETWORK_LOOK_EVERY);
    }
    Ok(())
}

/// Returns the robots that answer within a moment, as addresses to connect to.
fn look_around(config: Config, link: &Link, interface: Option<&String>) -> Result<Vec<String>, Error> {
    let scout = zenoh::scout(WhatAmI::Peer, config)
        .wait()
        .map_err(|error| Error::Fabric("cannot look for other robots", error))?;
    let until = Instant::now() + LOOK_AROUND;
    let mut found = Vec::new();
    while let Ok(Some(hello)) = scout.recv_timeout(until.saturating_duration_since(Instant::now())) {
        for locator in hello.locators() {
            let endpoint = format!("{locator}{}", marks(interface));
            if locator.protocol().as_str() == link.protocol && !found.contains(&endpoint) && found.len() < FOUND_MAX {
                found.push(endpoint);
            }
        }
    }
    Ok(found)
}

fn refused(team: &Team, who: Who, link: &Link, error: zenoh::Error) -> Error {
    let Who::Robot(robot) = who else {
        return Error::Fabric("cannot open the fabric", error);
    };
    let port = team.port(robot) + link.port;
    let name = &team.robots[usize::from(robot.0)].name;
    let text = error.to_string();
    let why = if text.contains("in use") {
        format!("port {port} is taken: {name} runs here already, or another robot with the same `port` does")
    } else {
        text
    };
    Error::Listen(format!("{name} cannot listen: {why}"))
}

fn config(team: &Team, who: Who, identity: Option<&Identity>, link: &Link, rules: Value) -> Value {
    let (listen, connect) = (listen(team, who, link), connect(team, who, link));
    let scouting_port = team.live.port + PORT_SCOUTING + link.port;
    let found = team.robots.iter().any(|robot| robot.addresses.is_empty());
    let robots = u32::try_from(team.robots.len()).unwrap_or(u32::MAX);
    let larger = |time: Duration| time * robots.max(LINK_LEASE_ROBOTS) / LINK_LEASE_ROBOTS;
    let lease = larger(LINK_LEASE);
    let mut config = json!({
        "mode": "peer",
        "listen": { "endpoints": listen, "timeout_ms": 0, "exit_on_failure": true },
        "connect": {
            "endpoints": connect,
            "timeout_ms": -1,
            "exit_on_failure": false,
            "retry": {
                "period_init_ms": RETRY_FIRST.as_millis() as u64,
                "period_max_ms": RETRY_LONGEST.as_millis() as u64,
                "period_increase_factor": 2,
            },
        },
        // Peers are admitted as they arrive; nothing waits for them.
        "open": { "return_conditions": { "connect_scouted": false, "declares": false } },
        "scouting": {
            "delay": 0,
            "multicast": {
                "enabled": found,
                "address": format!("{SCOUTING_GROUP}:{scouting_port}"),
                "interface": who.looks_on(team).get(link.path).map_or("auto", String::as_str),
                "autoconnect": ["peer"],
                // A robot that comes later searches and connects. If two meet otherwise, only one connects, because two
                // that connect to each other at once refuse each other.
                "autoconnect_strategy": "greater-zid",
                "listen": who != Who::Operator,
            },
            "gossip": { "enabled": false },
        },
        "timestamping": { "enabled": false },
        "transport": {
            "unicast": {
                "max_sessions": 2 * team.robots.len() + 16,
                "open_timeout": larger(CONNECT_MAX).as_millis() as u64,
            },
            "link": {
                "protocols": [link.protocol],
                "tx": {
                    "lease": lease.as_millis() as u64,
                    "keep_alive": 4,
                    "queue": { "congestion_control": { "block": { "wait_before_close": BLOCKED_MAX.as_micros() as u64 } } },
                },
                "rx": { "max_message_size": COORDINATION_BYTES_MAX },
            },
        },
    });
    if let Some(identity) = identity {
        config["transport"]["link"]["tls"] = json!({
            "enable_mtls": true,
            "root_ca_certificate": identity.authority,
            "listen_private_key": identity.key,
            "listen_certificate": identity.certificate,
            "connect_private_key": identity.key,
            "connect_certificate": identity.certificate,
            // The access rules use the common name as the identity; a robot may have any address.
            "verify_name_on_connect": false,
        });
        config["access_control"] = rules;
    }
    config
}

fn listen(team: &Team, who: Who, link: &Link) -> Vec<String> {
    let Who::Robot(id) = who else { return Vec::new() };
    let robot = &team.robots[usize::from(id.0)];
    let everywhere = IpAddr::from([0, 0, 0, 0]);
    let address = robot.addresses.get(link.path).copied().unwrap_or(everywhere);
    vec![link.endpoint(address, team.port(id), robot.interfaces.get(link.path))]
}

/// The addresses to connect to: in each pair of robots the later one connects, if the earlier has an address.
fn connect(team: &Team, who: Who, link: &Link) -> Vec<String> {
    let mut endpoints = Vec::new();
    for (other, robot) in (0u16..).map(RobotId).zip(&team.robots) {
        let connects = match who {
            Who::Operator => true,
            Who::Robot(me) => {
                let mine = &team.robots[usize::from(me.0)];
                other < me || (other > me && mine.addresses.is_empty())
            }
        };
        if let (true, Some(address)) = (connects, robot.addresses.get(link.path)) {
            endpoints.push(link.endpoint(*address, team.port(other), who.interfaces(team).get(link.path)));
        }
    }
    endpoints
}

/// What a robot, called `ME` here, may do: the action, its messages, and the widest keys behind the team's. It
/// announces that it is alive and what it gathers, requests its own permits, and answers for itself.
const OF_ROBOT: &str = "\
own liveliness_token alive/ME/* subscribes/ME/*/* gathers/ME/*/*/*
ask query permit/*/ME
answer declare_queryable+reply permit/ME/* status/ME
say put models/ME lead/ME/* lead-all/ME fleet/ME/*/*
listen declare_subscriber models/* lead/*/ME lead-all/* fleet/*/ME/*
watch liveliness_query+declare_liveliness_subscriber alive/*/* subscribes/*/*/* gathers/*/*/*/*";
/// What the operator may do.
const OF_OPERATOR: &str = "\
ask query status/*
watch liveliness_query+declare_liveliness_subscriber alive/*/*";
const ALL_MESSAGES: &str = "put+delete+query+reply+declare_subscriber+declare_queryable+liveliness_token+\
                            liveliness_query+declare_liveliness_subscriber";

/// What members may do, by the names in their certificates. Everything else is refused.
fn rules(team: &Team) -> Value {
    let rule = |id: &str, flow: &str, messages: &str, keys: Vec<String>| {
        json!({
            "id": id,
            "messages": messages.split('+').collect::<Vec<_>>(),
            "flows": [flow],
            "permission": "allow",
            "key_exprs": keys,
        })
    };
    let key = |key: &str| format!("coorp/{}/{key}", team.name);
    let mut rules = vec![rule("out", "egress", ALL_MESSAGES, vec![key("**")])];
    let (mut subjects, mut policies) = (Vec::new(), Vec::new());
    let robots = team.robots.iter().map(|robot| (robot.name.as_str(), OF_ROBOT));
    for (name, allowed) in robots.chain([(OPERATOR, OF_OPERATOR)]) {
        let mut ids = vec!["out".to_owned()];
        for line in allowed.lines() {
            let mut words = line.split(' ');
            let id = format!("{name} {}", words.next().unwrap_or_default());
            let messages = words.next().unwrap_or_default();
            let own = |part| if part == "ME" { name } else { part };
            let keys = words.map(|word| key(&word.split('/').map(own).collect::<Vec<_>>().join("/")));
            rules.push(rule(&id, "ingress", messages, keys.collect()));
            ids.push(id);
        }
        subjects.push(json!({ "id": name, "cert_common_names": [name] }));
        policies.push(json!({ "rules": ids, "subjects": [name] }));
    }
    json!({
        "enabled": true,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn team(robots: &str) -> Team {
        coorp_team::parse(robots, "fleet.toml", Path::new("")).unwrap()
    }

    const FIXED: &str = "[[robot]]\nname = \"a\"\nleader = true\naddresses = [\"10.0.0.1\"]\n\
                         [[robot]]\nname = \"b\"\naddresses = [\"10.0.0.2\", \"fd00::2\"]\ninterfaces = [\"w0\", \"w1\"]\n";

    fn link(path: usize) -> Link {
        Link {
            protocol: "tls",
            port: PORTS_COORDINATION[path],
            path,
        }
    }

    #[test]
    fn the_later_robot_connects_and_both_mark_what_they_send() {
        let team = team(FIXED);
        let (a, b) = (Who::Robot(RobotId(0)), Who::Robot(RobotId(1)));
        assert_eq!(listen(&team, a, &link(0)), ["tls/10.0.0.1:7460#dscp=0xc0"]);
        assert_eq!(connect(&team, a, &link(0)), [""; 0]);
        assert_eq!(connect(&team, b, &link(0)), ["tls/10.0.0.1:7460#dscp=0xc0;iface=w0"]);
        assert_eq!(listen(&team, b, &link(1)), ["tls/[fd00::2]:7461#dscp=0xc0;iface=w1"]);
        assert_eq!(connect(&team, Who::Operator, &link(0)).len(), 2);
        assert_eq!(
            config(&team, a, None, &link(0), json!({}))["scouting"]["multicast"]["enabled"],
            false
        );
    }

    #[test]
    fn who_has_no_address_is_looked_for_and_connects_to_who_has_one() {
        let team =
            team("[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\naddresses = [\"10.0.0.2\"]\n");
        let a = Who::Robot(RobotId(0));
        assert_eq!(connect(&team, a, &link(0)), ["tls/10.0.0.2:7460#dscp=0xc0"]);
        assert_eq!(connect(&team, Who::Robot(RobotId(1)), &link(0)), [""; 0]);
        assert_eq!(
            config(&team, a, None, &link(0), json!({}))["scouting"]["multicast"]["enabled"],
            true
        );
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keyspace = KeySpace::new(&team(FIXED));
        assert_eq!(keyspace.part(&keyspace.permit("a", "b"), 2), Some("b"));
        assert_eq!(keyspace.part(&keyspace.alive("b", "77"), 1), Some("b"));
        assert_eq!(keyspace.part("coorp/other/alive/b/77", 1), None);
        assert_eq!(keyspace.part("", 1), None);
    }
}
