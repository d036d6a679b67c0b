//! `[[place]]`: places for robots that may join the live team without being in the file.
//!
//! A place is expanded into robots, because who is who must be the same for everyone: on the air, a robot is a number. The
//! keys for a place decide who takes it.

use super::live;
use crate::model::{Robot, PORTS};
use crate::rules;
use crate::sheet::Sheet;
use std::collections::HashSet;

/// Reads all places. Returns the robots that may take them, each with the index of its table.
pub(super) fn places(sheets: &mut [Sheet<'_>], founders: &[Robot]) -> Vec<(usize, Robot)> {
    let mut taken: HashSet<String> = founders.iter().map(|robot| robot.name.clone()).collect();
    let mut places = Vec::new();
    for (index, sheet) in sheets.iter_mut().enumerate() {
        let robots = place(sheet);
        sheet.finish();
        if let Some(twice) = robots.iter().find(|robot| taken.contains(&robot.name)) {
            let message = format!("there is already a robot \"{}\"", twice.name);
            sheet.problem("name", message, "give the place another name");
            continue;
        }
        let total = founders.len() + places.len() + robots.len();
        if total > rules::ROBOTS_MAX {
            let message = format!("with this place, the team has {total} robots");
            sheet.problem("count", message, format!("leave room for {}", rules::ROBOTS_MAX));
            break;
        }
        taken.extend(robots.iter().map(|robot| robot.name.clone()));
        places.extend(robots.into_iter().map(|robot| (index, robot)));
    }
    places
}

/// Reads one place: one robot of this name, or `count` of them with a number after the name.
fn place(sheet: &mut Sheet<'_>) -> Vec<Robot> {
    let most = u16::try_from(rules::ROBOTS_MAX).unwrap_or(u16::MAX);
    let count = sheet.integer("count", 1..=most);
    let name = sheet.string("name").map(|(name, _)| name);
    sheet.missing("name", "add `name = \"…\"`");
    let (interfaces, addresses, port) = live::network(sheet);
    let Some(name) = name else {
        return Vec::new();
    };
    let names: Vec<String> = match count {
        Some(count) => (1..=count).map(|number| format!("{name}-{number}")).collect(),
        None => vec![name.to_owned()],
    };
    if let Some(Err((message, mend))) = names.last().map(|name| rules::name(name)) {
        sheet.problem("name", message, mend);
        return Vec::new();
    }
    let last = port.map(|port| usize::from(port) + names.len().saturating_sub(1) * usize::from(PORTS));
    if last.is_some_and(|last| last > usize::from(*rules::PORT_RANGE.end())) {
        let message = format!("there are not enough ports after `port` for {} robots", names.len());
        sheet.problem("port", message, format!("each takes {PORTS}; choose a lower port"));
        return Vec::new();
    }
    let robot = |(number, name): (u16, String)| Robot {
        name,
        interfaces: interfaces.clone(),
        addresses: addresses.clone(),
        // A place on one machine needs ports for all; elsewhere they do no harm.
        port: port.map(|port| port.saturating_add(number.saturating_mul(PORTS))),
        may_join: true,
        ..Robot::default()
    };
    (0u16..).zip(names).map(robot).collect()
}
