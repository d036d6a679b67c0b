//! The robots' addresses, if they do not come from the team file. `coorp emu` puts a team into its own network and
//! describes it in the variable `COORP_NETWORK`, so that one file works on robots and under the emulator.
//!
//! `base=10.77.0.1@wlan0,10.78.0.1@wlan1 rover=10.77.0.2@wlan0`: each robot's addresses, in the order of its paths,
//! each with its interface.

use std::env;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use coorp_team::{Robot, Team, PATHS_MAX};

use crate::ground::socket;
use crate::Error;

const VARIABLE: &str = "COORP_NETWORK";

/// Returns the team with the robots' addresses from the environment, if there are any.
pub(crate) fn placed(team: Team) -> Result<Team, Error> {
    match env::var(VARIABLE) {
        Ok(network) => place(team, &network),
        Err(env::VarError::NotPresent) => bounded(team),
        Err(error) => Err(Error::Network(format!("{VARIABLE} cannot be read: {error}"))),
    }
}

/// Returns the name of the source of the robots' addresses.
fn source() -> &'static str {
    if env::var_os(VARIABLE).is_some() {
        VARIABLE
    } else {
        "the team file"
    }
}

/// Checks whether this machine has the interfaces and addresses that its robot uses for its paths. An interface that
/// exists may be down, and come up later.
pub(crate) fn check_here(robot: &Robot, paths: usize) -> Result<(), Error> {
    let (name, source) = (&robot.name, source());
    let here = pnet_datalink::interfaces();
    let mut used = robot.interfaces.iter().take(paths);
    // The kernel knows some interfaces by other names as well.
    let anywhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
    let is_here = |name: &String| here.iter().any(|one| one.name == *name) || socket(anywhere, Some(name)).is_ok();
    if let Some(missing) = used.find(|name| !is_here(name)) {
        let names: Vec<&str> = here.iter().map(|one| one.name.as_str()).collect();
        return Err(Error::Network(format!(
            "{source} gives {name} the interface {missing}, but this machine has only {}: correct \
             `interfaces` of {name}, or plug in the card",
            names.join(", ")
        )));
    }
    for (path, address) in robot.addresses.iter().enumerate().take(paths) {
        let interface = robot.interfaces.get(path);
        // Only the kernel knows all usable addresses, for example all of 127.0.0.0/8.
        let bound = socket(SocketAddr::new(*address, 0), interface);
        let Err(error) = bound else { continue };
        if error.kind() == ErrorKind::AddrNotAvailable {
            let over = interface
                .map(|interface| format!(" on {interface}"))
                .unwrap_or_default();
            let addresses = here
                .iter()
                .flat_map(|one| one.ips.iter().map(move |ip| (ip.ip(), &one.name)));
            let addresses: Vec<String> = addresses.map(|(ip, name)| format!("{ip} on {name}")).collect();
            return Err(Error::Network(format!(
                "{source} gives {name} the address {address}{over}, but this machine has only {}: correct \
                 `addresses` of {name}, or connect this machine to that network",
                addresses.join(", ")
            )));
        }
    }
    Ok(())
}

/// Returns the team, if each robot has a port for each of its paths.
fn bounded(team: Team) -> Result<Team, Error> {
    let paths = |robot: &Robot| robot.interfaces.len().max(robot.addresses.len());
    match team.robots.iter().find(|robot| paths(robot) > PATHS_MAX) {
        None => Ok(team),
        Some(robot) => Err(Error::Network(format!(
            "{} gives {} {} interfaces, but a live robot uses at most {PATHS_MAX}: leave some out (under coorp emu, \
             [[interface]] tables of the team file)",
            source(),
            robot.name,
            paths(robot)
        ))),
    }
}

fn place(mut team: Team, network: &str) -> Result<Team, Error> {
    for entry in network.split_whitespace() {
        let wrong = |what: &str| Error::Network(format!("{VARIABLE}: '{entry}' {what}"));
        let (name, places) = entry
            .split_once('=')
            .ok_or_else(|| wrong("is not like rover=10.77.0.2@wlan0"))?;
        let robot = team
            .robot_named(name)
            .ok_or_else(|| wrong("names no robot of the team file"))?;
        let (mut addresses, mut interfaces) = (Vec::new(), Vec::new());
        for place in places.split(',') {
            let (address, interface) = place.split_once('@').ok_or_else(|| wrong("lacks an interface"))?;
            let address: IpAddr = address.parse().map_err(|_| wrong("has an invalid address"))?;
            addresses.push(address);
            interfaces.push(interface.to_owned());
        }
        let robot = &mut team.robots[usize::from(robot.0)];
        (robot.addresses, robot.interfaces) = (addresses, interfaces);
    }
    bounded(team)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn team() -> Team {
        let text = "[[robot]]\nname = \"base\"\nleader = true\naddresses = [\"192.168.1.5\"]\n\
                    [[robot]]\nname = \"rover\"\n";
        coorp_team::parse(text, "team.toml", Path::new("")).unwrap()
    }

    #[test]
    fn the_network_that_is_there_counts_and_not_the_files() {
        let team = place(team(), "base=10.77.0.1@wlan0,10.78.0.1@wlan1 rover=10.77.0.2@wlan0").unwrap();
        let addresses = team.robots.iter().map(|robot| robot.addresses.len());
        assert!(addresses.eq([2, 1]));
        assert_eq!(team.robots[0].addresses[1], IpAddr::from([10, 78, 0, 1]));
        assert_eq!(team.robots[0].interfaces, ["wlan0", "wlan1"]);
        assert_eq!(place(team.clone(), " ").unwrap(), team);
    }

    #[test]
    fn a_robot_has_no_more_paths_than_ports() {
        let network = |paths: usize| {
            let places = (0..paths).map(|path| format!("10.{}.0.1@wlan{path}", 77 + path));
            format!("base={}", places.collect::<Vec<_>>().join(","))
        };
        let most = place(team(), &network(PATHS_MAX)).unwrap();
        assert_eq!(most.robots[0].addresses.len(), PATHS_MAX);
        let error = place(team(), &network(PATHS_MAX + 1)).unwrap_err();
        assert!(matches!(error, Error::Network(_)), "{error:?}");
        assert!(
            error
                .to_string()
                .contains("base 5 interfaces, but a live robot uses at most 4"),
            "{error}"
        );
        // A program may have built the team itself.
        let mut own = team();
        own.robots[1].interfaces = (0..8).map(|number| format!("wlan{number}")).collect();
        assert!(bounded(own).unwrap_err().to_string().contains("rover 8 interfaces"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (network, said) in [
            ("base", "is not like"),
            ("nobody=10.77.0.1@wlan0", "no robot"),
            ("base=10.77.0.1", "lacks an interface"),
            ("base=10.77.0@wlan0", "invalid address"),
        ] {
            let error = place(team(), network).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(network), "{error}");
        }
    }
}
