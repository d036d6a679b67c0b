//! `[[interface]]`: further interfaces of the robots, each on a channel of its own.
//!
//! A table has `[air]`'s keys and defaults and says who has the interface. Channels must not overlap: the air models
//! no neighbour's noise, so two that did would wrongly leave each other alone.

use super::air::{channel_and_links, links};
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
        sheet.finish();
        air.links = links(link_sheets, robots, roster, &air);
        let others = std::iter::once(first).chain(found.iter().map(|interface| &interface.air));
        for (number, other) in others.enumerate() {
            if rules::overlap((air.channel, air.width_mhz), (other.channel, other.width_mhz)) {
                let shown = |air: &Air| format!("channel {} of {} MHz", air.channel, air.width_mhz);
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

/// Who has the interface: the robots that are named, or all.
fn members<'t>(sheet: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>) -> Vec<coorp_core::RobotId> {
    let Some(members) = roster.list(sheet, "robots") else {
        return (0..robots.len()).map(robot_id).collect();
    };
    let leader = sole_leader(robots).filter(|leader| !members.contains(leader));
    if let (Some(leader), true) = (leader, sheet.sound()) {
        let name = robots
            .get(usize::from(leader.0))
            .map_or("", |robot| robot.name.as_str());
        let message = "the leader, who is the access point, is not among `robots`";
        sheet.problem("robots", message, format!("add \"{name}\""));
    }
    members
}
