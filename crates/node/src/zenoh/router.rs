//! A session of Zenoh in router mode, and its settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use coorp_core::zenoh::{overwrites, Link, Overwrite, To};
use coorp_core::RobotId;
use coorp_team::Team;
use serde_json::{json, Value};
use zenoh::key_expr::OwnedKeyExpr;
use zenoh::{Config, Session, Wait};

use super::place;
use super::relay::Relay;
use crate::addresses::Addresses;
use crate::member::Member;
use crate::Error;

/// The port at which ROS 2 sessions look for their router.
const PORT: u16 = 7_447;
/// The settings of `rmw_zenohd` (rmw_zenoh, DEFAULT_RMW_ZENOH_ROUTER_CONFIG.json5).
const AS_RMW_ZENOHD: [(&str, &str); 12] = [
    ("mode", "\"router\""),
    ("scouting/multicast/enabled", "false"),
    (
        "scouting/gossip/target",
        "{\"router\": [\"router\", \"peer\"], \"peer\": [\"router\"]}",
    ),
    (
        "timestamping/enabled",
        "{\"router\": true, \"peer\": true, \"client\": true}",
    ),
    ("routing/router/peers_failover_brokering", "false"),
    ("transport/unicast/open_timeout", "60000"),
    ("transport/unicast/accept_timeout", "60000"),
    ("transport/unicast/accept_pending", "10000"),
    ("transport/unicast/max_sessions", "10000"),
    ("transport/link/tx/lease", "60000"),
    ("transport/link/tx/keep_alive", "2"),
    ("transport/shared_memory/enabled", "false"),
];
/// Time for which a message that must not be dropped may wait for room before its connection is given up, in us.
/// `rmw_zenohd` has 5 s, but bulk waits for other robots' permits, which last as long. The remaining bound is the
/// lease.
const BLOCKED_US_MAX: u64 = 60_000_000;

/// A running router, until it is dropped.
#[derive(Debug)]
pub(crate) struct Router {
    session: Session,
    /// Ends after the session.
    _relay: Relay,
}

impl Router {
    /// Starts the router, if the team file requests it.
    pub fn start(member: &Member, addresses: &Arc<Addresses>) -> Result<Option<Router>, Error> {
        if !member.team.live.zenoh {
            return Ok(None);
        }
        let any = if taken(Ipv6Addr::UNSPECIFIED.into(), PORT)? {
            "[::]"
        } else {
            "0.0.0.0"
        };
        for link in Link::ALL {
            taken(Ipv4Addr::UNSPECIFIED.into(), member.team.port(member.me) + place(link))?;
        }
        let relay = Relay::start(member, addresses)?;
        let config = config(&member.team, member.me, any, relay.endpoints())?;
        // Zenoh must not be opened on a thread of another runtime.
        let opened = std::thread::scope(|scope| scope.spawn(|| zenoh::open(config).wait()).join());
        let session = match opened {
            Ok(session) => session.map_err(|error| cannot(&error))?,
            Err(_) => return Err(Error::Zenoh("the Zenoh router panicked at its start".to_owned())),
        };
        tracing::info!("running as this machine's Zenoh router, at port {PORT}");
        Ok(Some(Router { session, _relay: relay }))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let session = &self.session;
        let closed = std::thread::scope(|scope| scope.spawn(|| session.close().wait()).join());
        if let Ok(Err(error)) = closed {
            tracing::warn!("the Zenoh router did not end cleanly: {error}");
        }
    }
}

fn cannot(error: &dyn std::fmt::Display) -> Error {
    Error::Zenoh(format!("cannot run as this machine's Zenoh router: {error}"))
}

/// Returns whether this machine has addresses of this kind. Fails if the port is taken.
fn taken(address: IpAddr, port: u16) -> Result<bool, Error> {
    match TcpListener::bind(SocketAddr::new(address, port)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(Error::Zenoh(format!(
            "cannot run as this machine's Zenoh router: TCP port {port} is taken. End the router that runs there, such \
             as rmw_zenohd (`ss -tlnp` shows it), or remove zenoh = true from the team file"
        ))),
        Err(_) => Ok(false),
    }
}

fn config(team: &Team, me: RobotId, any: &str, connects: &[String]) -> Result<Config, Error> {
    let mut config = Config::default();
    let mut set = |key: &str, value: &str| config.insert_json5(key, value).map_err(|error| cannot(&error));
    for (key, value) in AS_RMW_ZENOHD {
        set(key, value)?;
    }
    set(
        "transport/link/tx/queue/congestion_control/block/wait_before_close",
        &BLOCKED_US_MAX.to_string(),
    )?;
    set("transport/unicast/max_links", &(2 * Link::ALL.len()).to_string())?;
    set("listen/endpoints", &json!(listens(team, me, any)).to_string())?;
    set("connect/endpoints", &json!(connects).to_string())?;
    set("qos/network", &json!(changes(team)?).to_string())?;
    Ok(config)
}

fn listens(team: &Team, me: RobotId, any: &str) -> Vec<String> {
    let links = Link::ALL.map(|link| format!("tcp/0.0.0.0:{}", team.port(me) + place(link)));
    [format!("tcp/{any}:{PORT}")].into_iter().chain(links).collect()
}

/// Returns the changes that the router makes to messages that it sends, as Zenoh's configuration.
fn changes(team: &Team) -> Result<Vec<Value>, Error> {
    let all = overwrites(&team.protect).map_err(|index| {
        Error::Zenoh(format!(
            "[[protect]] table {} has too many `*` in its `topic` for Zenoh: at most six, or remove zenoh = true",
            index + 1
        ))
    })?;
    all.iter().map(change).collect()
}

fn change(overwrite: &Overwrite) -> Result<Value, Error> {
    let keys: Result<Vec<_>, _> = overwrite.keys.iter().cloned().map(OwnedKeyExpr::autocanonize).collect();
    let mut change = json!({ "flows": ["egress"], "messages": ["put", "delete"] });
    if overwrite.requests {
        change["messages"] = json!(["put", "delete", "query"]);
    }
    match keys.map_err(|error| cannot(&error))? {
        keys if keys.is_empty() => {}
        keys => change["key_exprs"] = json!(keys),
    }
    let end = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| bytes.to_string());
    match overwrite.bytes {
        (None, None) => {}
        (from, to) => change["payload_size"] = json!(format!("{}..{}", end(from), end(to))),
    }
    let mut only = serde_json::Map::new();
    if overwrite.unset {
        only.insert("priority".to_owned(), json!("data"));
    }
    change["overwrite"] = match overwrite.to {
        To::Priority(priority) => json!({ "priority": name(priority) }),
        To::Aside => {
            only.insert("congestion_control".to_owned(), json!("drop"));
            json!({ "congestion_control": "block_first" })
        }
    };
    if !only.is_empty() {
        change["qos"] = only.into();
    }
    Ok(change)
}

/// Returns Zenoh's name of a priority.
fn name(priority: u8) -> &'static str {
    match priority {
        0 | 1 => "real_time",
        2 => "interactive_high",
        3 => "interactive_low",
        4 => "data_high",
        5 => "data",
        6 => "data_low",
        _ => "background",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEAM: &str = r#"
[[robot]]
name = "base"
leader = true
[[robot]]
name = "rover"
port = 8000
[live]
zenoh = true
[[protect]]
as = "control"
topic = "/cmd_vel"
[[protect]]
as = "bulk"
topic = "/camera/*/image*"
"#;

    fn team(text: &str) -> Team {
        coorp_team::parse(text, "team.toml", std::path::Path::new(".")).unwrap()
    }

    #[test]
    fn zenoh_takes_the_configuration() {
        let connects = ["tcp/127.0.0.1:40000?prio=0-3;rel=1".to_owned()];
        let config = config(&team(TEAM), RobotId(1), "[::]", &connects).unwrap();
        let of = |key: &str| -> Value { serde_json::from_str(&config.get_json(key).unwrap()).unwrap() };
        assert_eq!(of("mode"), "router");
        assert_eq!(of("transport/unicast/max_links"), 6);
        assert_eq!(of("connect/endpoints"), json!(connects));
        assert_eq!(
            of("listen/endpoints"),
            json!([
                "tcp/[::]:7447",
                "tcp/0.0.0.0:8008",
                "tcp/0.0.0.0:8009",
                "tcp/0.0.0.0:8010"
            ])
        );
        let changes = of("qos/network");
        let last = changes.as_array().unwrap().last().unwrap();
        assert_eq!(last["key_exprs"], json!(["*/cmd_vel/*/*"]));
        assert_eq!(last["overwrite"]["priority"], "real_time");
    }

    #[test]
    fn a_pattern_with_too_many_stars_is_told() {
        let stars = team(&TEAM.replace("/cmd_vel", "/a*b*c*d*e*f*g*h"));
        let error = changes(&stars).unwrap_err().to_string();
        assert!(error.contains("table 1 has too many `*`"), "{error}");
    }
}
