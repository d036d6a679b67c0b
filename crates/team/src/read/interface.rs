//! `[[interface]]`: additional interfaces of the robots, each on its own channel.
//!
//! A table has the keys and defaults of `[air]`, and lists the robots that have the interface. Channels must not
//! overlap, because the air does not model interference between channels.

use super::air::{self, channel_and_links, links};
use super::{robot_id, sole_leader, Roster};
use crate::model::{Air, Interface, Robot};
use crate::rules::{self, INTERFACES_MAX};
use crate::sheet::Sheet;
use std::path::Path;

pub(super) fn interfaces<'t>(
    root: &mut Sheet<'t>,
    robots: &[Robot],
    roster: &Roster<'t>,
    first: &Air,
    base: &Path,
) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for mut sheet in root.tables("interface", "[[interface]]", INTERFACES_MAX) {
        let members = members(&mut sheet, robots, roster);
        let (mut air, link_sheets) = channel_and_links(&mut sheet, "interface", base);
        air.access_point = air::access_point(&mut sheet, robots, roster);
        check_access_point(&sheet, &members, &air, robots);
        sheet.finish();
        air.links = links(link_sheets, robots, roster, &air);
        let others = std::iter::once(first).chain(found.iter().map(|interface| &interface.air));
        for (number, other) in others.enumerate() {
            if rules::overlap((air.channel, air.width_mhz), (other.channel, other.width_mhz)) {
                let shown = |air: &Air| format!("channel {} at {} MHz", air.channel, air.width_mhz);
                let message = format!(
                    "wlan{} on {} overlaps wlan{number} on {}",
                    found.len() + 1,
                    shown(&air),
                    shown(other)
                );
                sheet.problem("channel", message, "choose another `channel`, such as 100 or 149");
                break;
            }
        }
        found.push(Interface { robots: members, air });
    }
    found
}

/// Reads the robots that have the interface: those named, or all.
fn members<'t>(sheet: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>) -> Vec<coorp_core::RobotId> {
    let Some(members) = roster.list(sheet, "robots") else {
        return (0..robots.len()).map(robot_id).collect();
    };
    let leader = sole_leader(robots).filter(|leader| !members.contains(leader));
    if let (Some(leader), true) = (leader, sheet.sound()) {
        let name = robots
            .get(usize::from(leader.0))
            .map_or("", |robot| robot.name.as_str());
        let message = "the leader is not among `robots`";
        sheet.problem("robots", message, format!("add \"{name}\""));
    }
    members
}

fn check_access_point(sheet: &Sheet<'_>, members: &[coorp_core::RobotId], air: &Air, robots: &[Robot]) {
    let point = air.access_point.filter(|point| !members.contains(point));
    let point = point.and_then(|point| robots.get(usize::from(point.0)));
    if let (Some(point), true) = (point, sheet.has("access_point")) {
        let message = format!("the access point \"{}\" is not among `robots`", point.name);
        sheet.problem("access_point", message, format!("add \"{}\" to `robots`", point.name));
    }
}
