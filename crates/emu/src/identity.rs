//! The identity that a robot is given: its name, its interfaces with their addresses, and how to reach the others.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use coorp_core::RobotId;
use coorp_scene::{robots, station};
use coorp_team::Team;

use crate::frame::mac;
use crate::namespace::Interface;

pub fn name(team: &Team, robot: RobotId) -> &str {
    team.robots
        .get(usize::from(robot.0))
        .map_or("", |robot| robot.name.as_str())
}

/// Returns the numbers of the interfaces that a robot has.
pub fn numbers(team: &Team, robot: RobotId) -> Vec<usize> {
    (0..team.channels().count())
        .filter(|number| team.has_interface(robot, *number))
        .collect()
}

/// Returns a robot's address on an interface: each interface is a separate network.
fn address(number: usize, robot: RobotId) -> String {
    let [high, low] = (robot.0 + 1).to_be_bytes();
    format!("10.{}.{high}.{low}", 77 + number)
}

pub fn interface(number: usize, robot: RobotId) -> Interface {
    Interface {
        name: format!("wlan{number}"),
        mac: mac(number, station(robot)),
        address: format!("{}/16", address(number, robot)),
    }
}

/// Returns the content of `/etc/hosts` on every robot. A robot's name is its address on wlan0, which all robots have;
/// with an interface's name appended, as in `rover.wlan1`, it is its address there.
pub fn hosts(team: &Team) -> String {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    if !machine.trim().is_empty() {
        text += &format!("127.0.1.1 {}\n", machine.trim());
    }
    for robot in robots(team) {
        text += &format!("{} {}\n", address(0, robot), name(team, robot));
    }
    for robot in robots(team) {
        for number in numbers(team, robot) {
            text += &format!("{} {}.wlan{number}\n", address(number, robot), name(team, robot));
        }
    }
    text
}

/// Returns the addresses of all robots, in the form that Coorp's own programs read. It lists each robot's addresses
/// with their interfaces, from wlan0 up to the first one it lacks, because a path leads from an interface to the same
/// interface of another robot.
fn network(team: &Team) -> String {
    let of = |robot| {
        let places = (0..team.channels().count()).take_while(|number| team.has_interface(robot, *number));
        let places: Vec<String> = places
            .map(|number| format!("{}@wlan{number}", address(number, robot)))
            .collect();
        format!("{}={}", name(team, robot), places.join(","))
    };
    robots(team).map(of).collect::<Vec<_>>().join(" ")
}

/// Returns the environment of a program: its robot, the leader, the team file, its own addresses and everyone's.
pub fn environment(team: &Team, robot: RobotId, team_file: &Path) -> Vec<(String, OsString)> {
    let file = fs::canonicalize(team_file).unwrap_or_else(|_| team_file.to_path_buf());
    let addresses: Vec<String> = numbers(team, robot)
        .iter()
        .map(|number| address(*number, robot))
        .collect();
    let interfaces: Vec<String> = numbers(team, robot)
        .iter()
        .map(|number| interface(*number, robot).name)
        .collect();
    vec![
        ("COORP_ROBOT".to_owned(), name(team, robot).into()),
        ("COORP_LEADER".to_owned(), name(team, team.leader).into()),
        ("COORP_TEAM".to_owned(), file.into()),
        ("COORP_ADDRESSES".to_owned(), addresses.join(" ").into()),
        ("COORP_NETWORK".to_owned(), network(team).into()),
        ("COORP_OUTQUEUE".to_owned(), interfaces.join(" ").into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Team {
        let text = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"a\"\n[[robot]]\nname = \"b\"\n\
                    [[interface]]\nchannel = 100\nrobots = [\"base\", \"b\"]\n";
        coorp_team::parse(text, "t.toml", Path::new("")).unwrap()
    }

    #[test]
    fn names_resolve_and_each_interface_has_its_own() {
        let text = hosts(&team());
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("10.")).collect();
        assert_eq!(
            lines,
            [
                "10.77.0.1 base",
                "10.77.0.2 a",
                "10.77.0.3 b",
                "10.77.0.1 base.wlan0",
                "10.78.0.1 base.wlan1",
                "10.77.0.2 a.wlan0",
                "10.77.0.3 b.wlan0",
                "10.78.0.3 b.wlan1"
            ]
        );
        assert!(text.starts_with("127.0.0.1 localhost\n"));
    }

    #[test]
    fn a_program_is_told_who_it_is() {
        let told = environment(&team(), RobotId(2), Path::new("/nowhere/t.toml"));
        let value = |key: &str| {
            told.iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value.to_str().unwrap())
        };
        assert_eq!((value("COORP_ROBOT"), value("COORP_LEADER")), (Some("b"), Some("base")));
        assert_eq!(value("COORP_TEAM"), Some("/nowhere/t.toml"));
        assert_eq!(value("COORP_ADDRESSES"), Some("10.77.0.3 10.78.0.3"));
        assert_eq!(
            value("COORP_NETWORK"),
            Some("base=10.77.0.1@wlan0,10.78.0.1@wlan1 a=10.77.0.2@wlan0 b=10.77.0.3@wlan0,10.78.0.3@wlan1")
        );
    }

    #[test]
    fn a_thousand_robots_have_addresses() {
        assert_eq!(address(0, RobotId(999)), "10.77.3.232");
        assert_eq!(interface(7, RobotId(0)).address, "10.84.0.1/16");
    }
}
