//! Lists the places at which a robot looks for others: the networks of its paths, as they are now.

use std::net::{IpAddr, Ipv4Addr};

use coorp_core::discovery::Network;
use coorp_core::RobotId;
use coorp_team::Team;
use pnet_datalink::NetworkInterface;

/// The maximum number of addresses at which one robot listens.
const PLACES_MAX: usize = 16;

/// One of this machine's addresses, at which a path ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub path: u8,
    pub interface: String,
    /// The kernel's number of the card; it changes when the card is unplugged and plugged in again.
    pub index: u32,
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// Whether the robot is to be found here, or only looks for others.
    pub announces: bool,
}

impl Place {
    pub fn network(&self) -> Network {
        Network {
            address: self.address.into(),
            prefix: self.prefix,
        }
    }
}

/// Returns the places of a robot, or of the operator, on a machine with these interfaces: on those that the team file
/// names, or else on all. A robot with addresses only looks for those without.
pub(crate) fn places(team: &Team, me: Option<RobotId>, paths: usize, here: &[NetworkInterface]) -> Vec<Place> {
    let robot = me.and_then(|me| team.robots.get(usize::from(me.0)));
    let (interfaces, addresses) = robot.map_or((&[][..], &[][..]), |robot| (&robot.interfaces, &robot.addresses));
    let mut places = Vec::new();
    for interface in here {
        let named = interfaces.iter().take(paths).position(|name| *name == interface.name);
        let works = interface.is_up() && interface.is_running();
        // Loopback and tunnels are used only if the team file names them.
        let lan = interface.is_multicast() && !interface.is_loopback() && !interface.is_point_to_point();
        if !works || (interfaces.is_empty() && !lan) || (!interfaces.is_empty() && named.is_none()) {
            continue;
        }
        for network in &interface.ips {
            let IpAddr::V4(address) = network.ip() else { continue };
            let given = addresses.iter().take(paths).position(|one| *one == network.ip());
            let path = named.or(given).unwrap_or(0);
            let Ok(path) = u8::try_from(path) else { continue };
            places.push(Place {
                path,
                interface: interface.name.clone(),
                index: interface.index,
                address,
                prefix: network.prefix(),
                announces: robot.is_some() && addresses.get(usize::from(path)).is_none(),
            });
        }
    }
    places.sort();
    places.truncate(PLACES_MAX);
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const RUNS: u32 = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_MULTICAST) as u32;

    fn interface(name: &str, index: u32, flags: u32, address: [u8; 4]) -> NetworkInterface {
        NetworkInterface {
            name: name.to_owned(),
            description: String::new(),
            index,
            mac: None,
            ips: vec![format!("{}/24", Ipv4Addr::from(address)).parse().unwrap()],
            flags,
        }
    }

    fn seen(robots: &str, me: Option<u16>) -> Vec<(u8, String, bool)> {
        let team = coorp_team::parse(robots, "t.toml", Path::new("")).unwrap();
        let here = [
            interface("lo", 1, RUNS | libc::IFF_LOOPBACK as u32, [127, 0, 0, 1]),
            interface("eth0", 2, RUNS, [10, 0, 0, 5]),
            interface("wlan0", 3, RUNS, [10, 1, 0, 5]),
            interface("wlan1", 4, RUNS & !(libc::IFF_RUNNING as u32), [10, 2, 0, 5]),
        ];
        let places = places(&team, me.map(RobotId), 4, &here).into_iter();
        places.map(|one| (one.path, one.interface, one.announces)).collect()
    }

    #[test]
    fn the_file_says_where() {
        let place = |path, interface: &str, announces| (path, interface.to_owned(), announces);
        let robots = "[[robot]]\nname = \"a\"\nleader = true\n\
                      [[robot]]\nname = \"b\"\ninterfaces = [\"wlan1\", \"wlan0\"]\n\
                      [[robot]]\nname = \"c\"\naddresses = [\"10.3.0.5\", \"10.1.0.5\"]\n";
        let all = [place(0, "eth0", true), place(0, "wlan0", true)];
        assert_eq!(seen(robots, Some(0)), all);
        assert_eq!(
            seen(robots, Some(1)),
            [place(1, "wlan0", true)],
            "the other one is down"
        );
        let looks = [place(0, "eth0", false), place(1, "wlan0", false)];
        assert_eq!(seen(robots, Some(2)), looks);
        let looks = [place(0, "eth0", false), place(0, "wlan0", false)];
        assert_eq!(seen(robots, None), looks, "the operator");
    }
}
