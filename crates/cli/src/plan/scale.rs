//! The same team with more or fewer robots, to find out how many fit.
//!
//! The leader stays. The others are repeated in the file's order, each copy with the rates, links and flows of the
//! robot that it repeats, so a team with one slow robot in four keeps that share. Left out: separate positions for
//! copies (they stand where the original does), and phases fixed by the file (copies draw their own, because robots in
//! lockstep would be a different team).

use coorp_core::RobotId;
use coorp_team::{Flow, Link, Robot, Team};

/// One robot of the new team: the robot that it repeats, and the zero-based number of the repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    original: RobotId,
    round: usize,
}

/// Returns the team with `robots` robots, including the leader. `None` if it is too small for a loop, too large for
/// robot ids, or has no robot to repeat.
pub fn team_of(team: &Team, robots: usize) -> Option<Team> {
    let led: Vec<RobotId> = ids(team).filter(|id| *id != team.leader).collect();
    if robots < 2 || led.is_empty() || u16::try_from(robots).is_err() {
        return None;
    }
    // The leader keeps its place among the first, so that a team of the file's size equals the file's team.
    let mut followers = (0..robots - 1).filter_map(|index| {
        let original = led.get(index % led.len())?;
        Some(Place {
            original: *original,
            round: index / led.len(),
        })
    });
    let leader_at = usize::from(team.leader.0).min(robots - 1);
    let mut places: Vec<Place> = followers.by_ref().take(leader_at).collect();
    places.push(Place {
        original: team.leader,
        round: 0,
    });
    places.extend(followers);
    let mut scaled = team.clone();
    scaled.robots = places.iter().filter_map(|place| robot(team, *place)).collect();
    scaled.leader = RobotId(u16::try_from(leader_at).ok()?);
    scaled.air.links = links(team, &places);
    // The number of robots that fit refers to one undisturbed channel.
    scaled.interfaces.clear();
    scaled.events.clear();
    scaled.flows = flows(team, &places);
    if let Some(learning) = &mut scaled.learning {
        // A data item contains every robot's perception.
        let grown = u128::from(learning.item_bytes) * robots as u128 / team.robots.len() as u128;
        learning.item_bytes = u64::try_from(grown).unwrap_or(u64::MAX).max(1);
    }
    Some(scaled)
}

/// Returns the ids of a team's robots.
pub fn ids(team: &Team) -> impl Iterator<Item = RobotId> + '_ {
    (0..team.robots.len())
        .filter_map(|index| u16::try_from(index).ok())
        .map(RobotId)
}

fn robot(team: &Team, place: Place) -> Option<Robot> {
    let mut robot = team.robots.get(usize::from(place.original.0))?.clone();
    if place.round > 0 {
        robot.name = copy_name(&robot.name, place.round);
        robot.phase = None;
    }
    Some(robot)
}

fn copy_name(name: &str, round: usize) -> String {
    format!("{name}#{}", round + 1)
}

/// Returns every pair of new robots that corresponds to an old pair: within one round, or with the leader at one end.
fn pairs(team: &Team, places: &[Place], from: RobotId, to: RobotId) -> Vec<(RobotId, RobotId, usize)> {
    let found = |wanted: RobotId| {
        let ids = places
            .iter()
            .enumerate()
            .filter(move |(_, place)| place.original == wanted);
        ids.filter_map(|(index, place)| Some((RobotId(u16::try_from(index).ok()?), place.round)))
    };
    let with_leader = from == team.leader || to == team.leader;
    found(from)
        .flat_map(|(new_from, from_round)| {
            let partners = found(to).filter(move |(_, to_round)| with_leader || *to_round == from_round);
            partners.map(move |(new_to, to_round)| (new_from, new_to, from_round.max(to_round)))
        })
        .collect()
}

fn links(team: &Team, places: &[Place]) -> Vec<Link> {
    let copies = |link: &Link| {
        let (link, found) = (*link, pairs(team, places, link.from, link.to));
        found.into_iter().map(move |(from, to, _)| Link { from, to, ..link })
    };
    let mut links: Vec<Link> = team.air.links.iter().flat_map(copies).collect();
    // As in the output of the team file's reader: sorted by sender and receiver.
    links.sort_by_key(|link| (link.from, link.to));
    links
}

fn flows(team: &Team, places: &[Place]) -> Vec<Flow> {
    let copies = |flow: &Flow| {
        let found = pairs(team, places, flow.from, flow.to);
        let copy = |(from, to, round): (RobotId, RobotId, usize)| {
            let name = if round > 0 {
                copy_name(&flow.name, round)
            } else {
                flow.name.clone()
            };
            Flow {
                name,
                from,
                to,
                ..flow.clone()
            }
        };
        found.into_iter().map(copy).collect::<Vec<_>>()
    };
    team.flows.iter().flat_map(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TEAM: &str = r#"
        name = "t"
        [[robot]]
        name = "a"
        phase = "1ms"
        [[robot]]
        name = "lead"
        leader = true
        [[robot]]
        name = "b"
        [control]
        rate_hz = 30
        bound = "33ms"
        perception = "12KiB"
        command = "1KiB"
        [[air.link]]
        from = "b"
        to = "lead"
        mcs = 0
        [[flow]]
        name = "video"
        from = "a"
        to = "b"
        saturated = true
    "#;

    fn team() -> Team {
        coorp_team::parse(TEAM, "t.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_files_own_size_gives_the_files_team() {
        assert_eq!(team_of(&team(), 3), Some(team()));
    }

    #[test]
    fn copies_keep_rates_links_and_flows_and_have_names_of_their_own() {
        let grown = team_of(&team(), 6).unwrap();
        let names: Vec<&str> = grown.robots.iter().map(|robot| robot.name.as_str()).collect();
        assert_eq!(names, ["a", "lead", "b", "a#2", "b#2", "a#3"]);
        assert_eq!(grown.robots.iter().filter(|robot| robot.leader).count(), 1);
        assert_eq!(grown.robots[3].phase, None);
        let links: Vec<(u16, u16)> = grown.air.links.iter().map(|link| (link.from.0, link.to.0)).collect();
        assert_eq!(links, [(2, 1), (4, 1)]);
        let flows: Vec<(&str, u16, u16)> = grown
            .flows
            .iter()
            .map(|flow| (flow.name.as_str(), flow.from.0, flow.to.0))
            .collect();
        assert_eq!(flows, [("video", 0, 2), ("video#2", 3, 4)]);
    }

    #[test]
    fn a_smaller_team_loses_what_the_missing_robots_had() {
        let small = team_of(&team(), 2).unwrap();
        assert_eq!(small.robots.len(), 2);
        assert!(small.air.links.is_empty() && small.flows.is_empty());
        assert!(usize::from(small.leader.0) < 2 && small.robots[usize::from(small.leader.0)].leader);
    }

    #[test]
    fn sizes_that_make_no_team_are_refused() {
        assert_eq!(team_of(&team(), 0), None);
        assert_eq!(team_of(&team(), 1), None);
        assert_eq!(team_of(&team(), 70_000), None);
    }
}
