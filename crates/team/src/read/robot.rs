//! `[[robot]]`: the robots of the team, and its leader.

use super::{live, robot_id, sole_leader, unique_name, Roster, HOUR, SECOND};
use crate::model::{Air, Control, RateOverride, Robot};
use crate::rules;
use crate::sheet::Sheet;
use coorp_core::{Duration, RobotId};
use std::collections::HashMap;

/// Clocks of simulated robots show 1,000 s more than the run's, so that none is negative.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(900);

/// Reads all robots. Checks that need the air or the control loop are left to `check_against`.
pub(super) fn robots<'t>(sheets: &mut [Sheet<'t>]) -> (Vec<Robot>, Roster<'t>) {
    let mut taken = HashMap::new();
    let mut roster = HashMap::new();
    let mut robots = Vec::with_capacity(sheets.len());
    for (index, sheet) in sheets.iter_mut().enumerate() {
        let name = unique_name(sheet, &mut taken);
        roster.entry(name).or_insert(robot_id(index));
        let (interfaces, addresses, port) = live::network(sheet);
        robots.push(Robot {
            name: name.to_owned(),
            leader: sheet.flag("leader").unwrap_or(false),
            position_m: sheet.point("position_m"),
            waypoints_m: sheet.points("waypoints_m", rules::WAYPOINTS_MAX),
            speed_mps: sheet.number("speed_mps", 0.0..=100.0).unwrap_or(0.0),
            rate: rate(sheet),
            training: sheet.duration("training", Duration::ZERO..=HOUR),
            phase: sheet.duration("phase", Duration::ZERO..=SECOND * 10),
            clock_skew_ns: sheet.signed_duration("clock_skew", CLOCK_SKEW_MAX).unwrap_or(0),
            interfaces,
            addresses,
            port,
            may_join: false,
        });
        movement(sheet);
        sheet.finish();
    }
    roster.remove("");
    (robots, Roster(roster))
}

/// Reads `mcs`, `streams`, `snr_db` and `loss` of a robot or a link.
pub(super) fn rate(sheet: &mut Sheet<'_>) -> RateOverride {
    sheet.exclude("mcs", "snr_db", "the MCS is either fixed or follows from the signal");
    RateOverride {
        mcs: sheet.integer("mcs", 0..=31),
        streams: sheet.integer("streams", 1..=4),
        snr_db: sheet.number("snr_db", -20.0..=80.0),
        loss: sheet.number("loss", 0.0..=0.99),
    }
}

fn movement(sheet: &Sheet<'_>) {
    if sheet.has("waypoints_m") {
        sheet.missing("position_m", "add `position_m = [0.0, 0.0]`, where the robot starts");
        sheet.missing("speed_mps", "add `speed_mps = 1.0`, its speed");
    } else if sheet.has("speed_mps") {
        let mend = "add `waypoints_m = [[…, …], …]`, or remove `speed_mps`";
        sheet.problem("speed_mps", "a robot with a speed has nowhere to go", mend);
    }
}

/// Returns the leader. Reports a problem if there is none or more than one, or fewer than two robots.
pub(super) fn leader(sheet: &Sheet<'_>, sheets: &[Sheet<'_>], robots: &[Robot]) -> Option<RobotId> {
    let (problems, file) = sheet.problems();
    match sheets {
        [] => {
            // A list that could not be read already has a problem.
            if !sheet.has("robot") {
                let mend = "a team has at least two robots; start each with [[robot]] and a `name`";
                problems.add(file, 0..0, "the file describes no robots", mend);
            }
            return None;
        }
        [only] => {
            problems.add(
                file,
                only.span(),
                "the team has only one robot",
                "add another [[robot]]",
            );
            return None;
        }
        _ => {}
    }
    let mut leaders = sheets
        .iter()
        .zip(robots)
        .filter(|(_, robot)| robot.leader)
        .map(|(sheet, _)| sheet);
    match (leaders.next(), leaders.next()) {
        (None, _) => {
            let unread = sheets.iter().find(|sheet| sheet.has("leader") && !sheet.sound());
            if let (None, Some(first)) = (unread, sheets.first()) {
                let mend = "add `leader = true` to the robot that runs inference and grants permits";
                problems.add(file, first.span(), "no robot leads the team", mend);
            }
        }
        (Some(first), Some(second)) => {
            let other = (first.span_of("leader"), "the first is here");
            let mend = "keep `leader = true` only for the robot that runs inference and grants permits";
            problems.add_pair(file, second.span_of("leader"), other, "two robots lead the team", mend);
        }
        (Some(_), None) => {}
    }
    sole_leader(robots)
}

/// Checks the robots against the rest of the file.
pub(super) fn check_against(
    sheets: &[Sheet<'_>],
    robots: &[Robot],
    airs: &[&Air],
    control: Option<&Control>,
    controls: bool,
    learns: bool,
) {
    for (sheet, robot) in sheets.iter().zip(robots) {
        if robot.rate.mcs.is_some() || robot.rate.streams.is_some() {
            let key = if sheet.has("mcs") { "mcs" } else { "streams" };
            for air in airs {
                check_mcs(sheet, key, robot.rate.or(air.rate()), air);
            }
        }
        if sheet.has("phase") && !controls {
            sheet.problem(
                "phase",
                "a phase without a control loop",
                "add [control], or remove `phase`",
            );
        }
        if let (Some(phase), Some(control)) = (robot.phase, control) {
            if phase >= control.period {
                let message = format!(
                    "`phase` is {phase}, not less than the control period of {}",
                    control.period
                );
                sheet.problem("phase", message, "a phase is the sensor's delay within a period");
            }
        }
        if sheet.has("training") && !learns {
            sheet.problem(
                "training",
                "a training time without learning",
                "add [learning], or remove `training`",
            );
        }
    }
    let placed = robots.iter().any(|robot| robot.position_m.is_some());
    let lost = sheets.iter().find(|sheet| !sheet.has("position_m"));
    let by_distance = airs.iter().any(|air| air.mcs.is_none() && air.snr_db.is_none());
    if let (true, true, Some(lost)) = (placed, by_distance, lost) {
        let message = "a robot has no position, but rates depend on the distance";
        let (problems, file) = lost.problems();
        problems.add(
            file,
            lost.span(),
            message,
            "add `position_m = [x, y]`, or fix the rates with `mcs` in [air]",
        );
    }
}

/// Reports a problem at `key` if the standard does not have the MCS. Returns whether it has.
pub(super) fn check_mcs(sheet: &Sheet<'_>, key: &str, rate: RateOverride, air: &Air) -> bool {
    let streams = rate.streams.unwrap_or(air.streams);
    let checked = rate
        .mcs
        .map(|mcs| rules::mcs(air.standard, air.width_mhz, streams, mcs));
    let Some(Err((message, mend))) = checked else {
        return true;
    };
    sheet.problem(key, message, mend);
    false
}
