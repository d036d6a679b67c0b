//! Turns TOML tables into a `Team`, collecting every problem on the way.
//!
//! The order follows the dependencies: robots first, because links and flows name them, then the air, then everything
//! that needs both. Reading continues after a problem with defaults, and the team is discarded at the end.

mod air;
mod control;
mod event;
mod flow;
mod interface;
mod live;
mod place;
mod policy;
mod protect;
mod robot;

use crate::model::{Air, Robot, Team};
use crate::rules;
use crate::sheet::{nearest, Sheet};
use crate::units::clip;
use coorp_core::{Duration, RobotId};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Reads a whole team file. Returns `None` if it does not have two robots; problems are in the sheet's list.
pub(crate) fn team(mut sheet: Sheet<'_>, stem: &str, base: &Path) -> Option<Team> {
    let name = match sheet.string("name") {
        Some((name, span)) => {
            if let Err((message, mend)) = rules::name(name) {
                let (problems, file) = sheet.problems();
                problems.add(file, span, message, mend);
            }
            name.to_owned()
        }
        None => stem.to_owned(),
    };
    let mut robot_sheets = sheet.tables("robot", "[[robot]]", rules::ROBOTS_MAX);
    let (robots, roster) = robot::robots(&mut robot_sheets);
    let leader = robot::leader(&sheet, &robot_sheets, &robots);
    let air = air::air(&mut sheet, &robots, &roster, base);
    let interfaces = interface::interfaces(&mut sheet, &robots, &roster, &air, base);
    let control = control::control(&mut sheet);
    let learning = control::learning(&mut sheet, control.as_ref(), robots.len());
    let flows = flow::flows(&mut sheet, &roster);
    let policy = policy::overrides(&mut sheet);
    let airs: Vec<&Air> = std::iter::once(&air)
        .chain(interfaces.iter().map(|interface| &interface.air))
        .collect();
    let events = event::events(&mut sheet, &robots, &roster, &airs);
    let live = live::live(&mut sheet, base);
    let mut place_sheets = sheet.tables("place", "[[place]]", rules::ROBOTS_MAX);
    let places = place::places(&mut place_sheets, &robots);
    let all = robot_sheets.iter().zip(&robots);
    let all = all.chain(places.iter().map(|(table, robot)| (&place_sheets[*table], robot)));
    live::check_ports(&all.collect::<Vec<_>>(), &live);
    let protect = protect::rules(&mut sheet, &robots);
    robot::check_against(
        &robot_sheets,
        &robots,
        &airs,
        control.as_ref(),
        sheet.has("control"),
        sheet.has("learning"),
    );
    sheet.finish();
    Some(Team {
        name,
        robots,
        leader: leader?,
        air,
        interfaces,
        events,
        control,
        learning,
        flows,
        policy,
        live,
        protect,
        places: places.into_iter().map(|(_, robot)| robot).collect(),
    })
}

/// The robots by name.
pub(crate) struct Roster<'t>(HashMap<&'t str, RobotId>);

impl<'t> Roster<'t> {
    /// Returns the robot that `key` names. Reports a problem if it does not exist.
    fn find(&self, sheet: &mut Sheet<'t>, key: &'static str) -> Option<RobotId> {
        let Some((name, span)) = sheet.string(key) else {
            sheet.missing(key, format!("add `{key} = \"…\"` with a robot's name"));
            return None;
        };
        self.named(sheet, name, span)
    }

    /// Returns the robot that an optional key names. Reports a problem if it does not exist.
    fn find_if_there(&self, sheet: &mut Sheet<'t>, key: &'static str) -> Option<RobotId> {
        let (name, span) = sheet.has(key).then(|| sheet.string(key))??;
        self.named(sheet, name, span)
    }

    /// Returns the robots that a list names, sorted without duplicates; `None` if the key is absent.
    fn list(&self, sheet: &mut Sheet<'t>, key: &'static str) -> Option<Vec<RobotId>> {
        let there = sheet.has(key);
        let names = sheet.strings(key, rules::ROBOTS_MAX, "[\"rover\", \"base\"]");
        if !there {
            return None;
        }
        if names.is_empty() && sheet.sound() {
            sheet.problem(key, format!("`{key}` names no robots"), "name at least one");
        }
        let mut found: Vec<RobotId> = names
            .into_iter()
            .filter_map(|(name, span)| self.named(sheet, name, span))
            .collect();
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    fn named(&self, sheet: &Sheet<'t>, name: &str, span: Range<usize>) -> Option<RobotId> {
        let found = self.0.get(name).copied();
        let (problems, file) = sheet.problems();
        // If the list of robots is invalid, every name would look wrong.
        if found.is_none() && !self.0.is_empty() && !problems.full() {
            let mut names: Vec<&str> = self.0.keys().copied().collect();
            names.sort_unstable();
            let mend = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("the robots are {}", listed(&names)),
            };
            problems.add(file, span, format!("there is no robot \"{}\"", clip(name)), mend);
        }
        found
    }

    /// Reads the two ends of a link or flow, which must differ.
    fn ends(&self, sheet: &mut Sheet<'t>) -> Option<(RobotId, RobotId)> {
        let (from, to) = (self.find(sheet, "from"), self.find(sheet, "to"));
        let (from, to) = (from?, to?);
        if from == to {
            let message = format!("{} goes from a robot to itself", sheet.title());
            sheet.problem("to", message, "name two different robots");
            return None;
        }
        Some((from, to))
    }
}

/// Reads the name that every robot and flow needs. Reports a problem if it is missing, invalid or taken.
fn unique_name<'t>(sheet: &mut Sheet<'t>, taken: &mut HashMap<&'t str, Range<usize>>) -> &'t str {
    let Some((name, span)) = sheet.string("name") else {
        sheet.missing("name", "add `name = \"…\"`");
        return "";
    };
    let (problems, file) = sheet.problems();
    if let Err((message, mend)) = rules::name(name) {
        problems.add(file, span, message, mend);
    } else if let Some(first) = taken.get(name) {
        let message = format!("two {} tables are named \"{}\"", sheet.title(), clip(name));
        problems.add_pair(
            file,
            span,
            (first.clone(), "the first is here"),
            message,
            "give each its own name",
        );
    } else {
        taken.insert(name, span);
    }
    name
}

/// Returns some of the names, for a message.
fn listed(names: &[&str]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown = names
        .iter()
        .take(SHOWN_MAX)
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ");
    match names.len() {
        0..=SHOWN_MAX => shown,
        count => format!("{shown} and {} more", count - SHOWN_MAX),
    }
}

/// Returns the index of a robot as an id. The list's limit keeps it within `u16`.
fn robot_id(index: usize) -> RobotId {
    RobotId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// Returns the leader, if exactly one robot leads.
fn sole_leader(robots: &[Robot]) -> Option<RobotId> {
    let mut leaders = robots.iter().enumerate().filter(|(_, robot)| robot.leader);
    match (leaders.next(), leaders.next()) {
        (Some((index, _)), None) => Some(robot_id(index)),
        _ => None,
    }
}
