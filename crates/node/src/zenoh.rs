//! The agent as its robot's Zenoh router, in place of `rmw_zenohd`: the sessions of ROS 2 nodes connect to it unchanged.
//!
//! The router listens at the port of `rmw_zenohd`, with its settings, and connects to the other agents' routers
//! (`relay.rs`). Two routers have a connection for each [`Link`], distinguished by ports of the robots. The connections
//! pass the agent's own lane ([`crate::protect`]) like any program's. The lane recognises those of control and of bulk
//! by [`rules`]. [`coorp_core::zenoh`] decides which connection a message takes.
//!
//! Left out: TLS. Anyone who reaches the port may take part, as with `rmw_zenohd`.

use coorp_core::protect::{Class, Rule};
use coorp_core::zenoh::Link;
use coorp_core::RobotId;
use coorp_team::Team;

/// The first port of incoming links, as an offset from a robot's first port; one per [`Link`].
const PORT_LINKS: u16 = 8;
const TCP: u8 = 6;

/// Returns the rules by which the lane recognises the links' connections.
pub(crate) fn rules(team: &Team) -> Vec<Rule> {
    if !team.live.zenoh {
        return Vec::new();
    }
    let mut ports: Vec<u16> = ids(team).map(|robot| team.port(robot)).collect();
    ports.sort_unstable();
    ports.dedup();
    let rule = |class, port| Rule {
        class,
        protocol: Some(TCP),
        ports: Some((port, port)),
        to: None,
        dscp: None,
        topic: None,
        executable: None,
        cgroup: None,
    };
    let of_robots = |first: u16| {
        [
            rule(Class::Control, first + place(Link::Control)),
            rule(Class::Bulk, first + place(Link::Bulk)),
        ]
    };
    ports.into_iter().flat_map(of_robots).collect()
}

fn ids(team: &Team) -> impl Iterator<Item = RobotId> {
    (0u16..).map(RobotId).take(team.robots.len())
}

/// Returns the port of a link, as an offset from a robot's first port.
const fn place(link: Link) -> u16 {
    PORT_LINKS
        + match link {
            Link::Control => 0,
            Link::Ordinary => 1,
            Link::Bulk => 2,
        }
}

#[cfg(feature = "zenoh")]
mod relay;
#[cfg(feature = "zenoh")]
mod router;
#[cfg(feature = "zenoh")]
pub(crate) use self::router::Router;

/// The router of a build without Zenoh.
#[cfg(not(feature = "zenoh"))]
#[derive(Debug)]
pub(crate) struct Router(std::convert::Infallible);

#[cfg(not(feature = "zenoh"))]
impl Router {
    /// Starts the router, if the team file requests it.
    pub fn start(
        member: &crate::member::Member,
        _: &std::sync::Arc<crate::addresses::Addresses>,
    ) -> Result<Option<Router>, crate::Error> {
        if !member.team.live.zenoh {
            return Ok(None);
        }
        Err(crate::Error::Zenoh(
            "the team file has zenoh = true, but this coorp was built without it: build with `--features zenoh`, or remove it"
                .to_owned(),
        ))
    }
}
