//! `[[event]]`: links that degrade, robots that die, and partitions, each at a set time.

use super::robot::{check_mcs, rate};
use super::{robot_id, Roster, HOUR};
use crate::model::{Air, Change, Event, RateOverride, Robot};
use crate::rules::EVENTS_MAX;
use crate::sheet::Sheet;
use crate::units::clip;
use coorp_core::{Duration, RobotId};

/// The latest time of an event: the maximum length of a run.
const LATEST: Duration = Duration::from_secs(24 * 3_600);

pub(super) fn events<'t>(root: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>, airs: &[&Air]) -> Vec<Event> {
    let sheets = root.tables("event", "[[event]]", EVENTS_MAX);
    sheets
        .into_iter()
        .filter_map(|mut sheet| event(&mut sheet, robots, roster, airs))
        .collect()
}

fn event<'t>(sheet: &mut Sheet<'t>, robots: &[Robot], roster: &Roster<'t>, airs: &[&Air]) -> Option<Event> {
    let at = sheet.duration("at", Duration::ZERO..=LATEST);
    sheet.missing("at", "add `at = \"60s\"`, the time of the event");
    let until = sheet.duration("until", Duration::ZERO..=LATEST);
    if let (Some(at), Some(until)) = (at, until) {
        if until <= at {
            let message = format!("`until` at {until} is not after `at` at {at}");
            sheet.problem(
                "until",
                message,
                "choose a later time, or omit `until`, so that the event never ends",
            );
        }
    }
    let interface = interface(sheet, airs.len());
    let change = change(sheet, roster);
    sheet.finish();
    let change = change?;
    let concerned = airs.iter().enumerate();
    for (_, air) in concerned.filter(|(number, _)| interface.is_none_or(|only| only == *number)) {
        check_rates(sheet, &change, robots, air);
    }
    Some(Event {
        at: at.unwrap_or(HOUR),
        until,
        interface,
        change,
    })
}

/// Checks that the standard has the rates of the links that an event changes: together with their own settings, in the
/// order of `Team::rate_on`. Reports the first that it lacks.
fn check_rates(sheet: &Sheet<'_>, change: &Change, robots: &[Robot], air: &Air) {
    let Change::Link { from, to, rate } = change else {
        return;
    };
    if rate.mcs.is_none() && rate.streams.is_none() {
        return;
    }
    let key = if sheet.has("mcs") { "mcs" } else { "streams" };
    let sender = |robot: RobotId| robots.get(usize::from(robot.0)).map(|robot| robot.rate);
    let is_from = |robot: RobotId| from.is_none_or(|from| from == robot);
    let links = air
        .links
        .iter()
        .filter(|link| is_from(link.from) && to.is_none_or(|to| to == link.to));
    let links = links.map(|link| link.rate.or(sender(link.from).unwrap_or_default()));
    let others = (0..robots.len())
        .map(robot_id)
        .filter(|robot| is_from(*robot))
        .filter_map(sender);
    let mut own = links.chain(others);
    own.any(|own| !check_mcs(sheet, key, rate.or(own).or(air.rate()), air));
}

/// Reads the number of the interface that the event affects.
fn interface(sheet: &mut Sheet<'_>, count: usize) -> Option<usize> {
    let (name, _) = sheet.string("interface")?;
    let number = name.strip_prefix("wlan").and_then(|number| number.parse().ok());
    if let Some(number) = number.filter(|number| *number < count) {
        return Some(number);
    }
    let mend = match count {
        1 => "the robots have `wlan0` only; add [[interface]] for another".to_owned(),
        _ => format!("the interfaces are wlan0 to wlan{}", count - 1),
    };
    sheet.problem("interface", format!("there is no interface \"{}\"", clip(name)), mend);
    None
}

/// Reads the change: exactly one of the three kinds.
fn change<'t>(sheet: &mut Sheet<'t>, roster: &Roster<'t>) -> Option<Change> {
    let of_links = ["from", "to", "mcs", "streams", "snr_db", "loss"];
    let link = of_links.into_iter().find(|key| sheet.has(key));
    let (from, to) = (roster.find_if_there(sheet, "from"), roster.find_if_there(sheet, "to"));
    let rate = rate(sheet);
    let (partition, death) = (roster.list(sheet, "partition"), roster.list(sheet, "death"));
    let kinds = [
        link,
        sheet.has("partition").then_some("partition"),
        sheet.has("death").then_some("death"),
    ];
    let mut kinds = kinds.into_iter().flatten();
    let (problems, file) = sheet.problems();
    match (kinds.next(), kinds.next()) {
        (Some(_), None) => {}
        (None, _) => {
            let mend = "set `loss`, `mcs` or `snr_db` for links, or `partition` or `death` with names of robots";
            problems.add(file, sheet.span(), "[[event]] changes nothing", mend);
            return None;
        }
        (Some(one), Some(other)) => {
            let message = format!("[[event]] has both `{one}` and `{other}`");
            sheet.problem(other, message, "write one [[event]] for each");
            return None;
        }
    }
    if sheet.has("death") && sheet.has("interface") {
        sheet.problem(
            "interface",
            "a robot dies with all of its interfaces",
            "remove `interface`",
        );
    }
    if let Some(robots) = partition {
        return Some(Change::Partition(robots));
    }
    if let Some(robots) = death {
        return Some(Change::Death(robots));
    }
    if rate == RateOverride::default() && sheet.sound() {
        let mend = "set `loss`, `mcs`, `snr_db` or `streams`";
        problems.add(
            file,
            sheet.span(),
            "[[event]] names links but changes nothing about them",
            mend,
        );
    }
    if from.is_some() && from == to {
        sheet.problem(
            "to",
            "[[event]] goes from a robot to itself",
            "name two different robots",
        );
    }
    Some(Change::Link { from, to, rate })
}
