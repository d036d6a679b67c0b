//! `coorp watch`: shows which robots are present, and their permits, windows, paths and ages: in a terminal (`terminal`), as
//! text, once or continuously, on a page, or as a stream (`web`).

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use coorp_core::alarms::Alarm;
use coorp_core::discovery::Refusal;
use coorp_core::protect;
use coorp_node::status::{Bulk, Carries, Gathered, Heard, Path, PathState, Permit, Status};
use coorp_node::watch::Watch;
use coorp_node::RobotId;
use coorp_team::Team;

use super::{load, note_insecure, terminal, web};
use crate::failure::Failure;
use crate::output;
use crate::summary::count;
use crate::table::{terminal_width, Sheet, DASH};

/// Time between two updates.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many lines about refused connections are shown of each robot.
const REFUSED_MAX: usize = 4;
/// How many flows are shown of each robot.
const FLOWS_MAX: usize = 16;
/// How long `--once` waits for robots before missing ones count as absent.
const FIND_MAX: Duration = Duration::from_secs(3);

/// Options of `coorp watch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML)
    #[arg(default_value = "team.toml")]
    file: PathBuf,
    /// Print the state once; exit with 0 if all robots are present, with 1 if one is missing
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    outlets: web::Outlets,
    /// Watch a team that runs without keys
    #[arg(long)]
    insecure: bool,
}

/// Runs `coorp watch`; without `--once`, until it is stopped.
///
/// # Errors
/// The operator's keys are missing, or, with `--once`, a robot is.
pub fn run(args: &Args) -> Result<(), Failure> {
    let team = load(&args.file)?;
    if args.insecure {
        note_insecure();
    }
    let watch = Watch::open(&team, args.insecure)?;
    if args.once {
        return once(&watch, &team);
    }
    if args.outlets.any() {
        return web::run(&team, watch, &args.outlets, args.insecure);
    }
    if terminal::is_possible() {
        return terminal::run(&team, watch);
    }
    let term = console::Term::stdout();
    loop {
        let began = Instant::now();
        let text = view(&team, &watch.look()) + &refusals(&team, &watch);
        if term.is_term() {
            // If the terminal is gone, the next print ends the program.
            let _ = term.clear_screen();
        }
        match std::io::stdout().lock().write_all(text.as_bytes()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            _ => std::thread::sleep(LOOK_EVERY.saturating_sub(began.elapsed())),
        }
    }
}

fn once(watch: &Watch, team: &Team) -> Result<(), Failure> {
    let began = Instant::now();
    let mut here = watch.look();
    let missing = |here: &[Status]| -> Vec<&str> {
        let needed = team.robots.iter().filter(|robot| !robot.may_join);
        let names = needed.map(|robot| robot.name.as_str());
        names
            .filter(|name| here.iter().all(|status| status.robot != *name))
            .collect()
    };
    while !missing(&here).is_empty() && began.elapsed() < FIND_MAX {
        std::thread::sleep(LOOK_EVERY / 10);
        here = watch.look();
    }
    output::print(&(view(team, &here) + &refusals(team, watch)))?;
    let missing = missing(&here);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Found(format!("failed: no answer from {}", missing.join(", "))))
}

/// Why robots that are there do not answer, one line each.
fn refusals(team: &Team, watch: &Watch) -> String {
    let line =
        |(robot, why): (RobotId, &str)| format!("{} does not answer: {why}\n", team.robots[usize::from(robot.0)].name);
    watch.refusals().into_iter().map(line).collect()
}

/// The robots that are here, the leader, and the holders of permits.
pub fn summary(team: &Team, here: &[Status]) -> String {
    let names = |places: &[u16]| match places {
        [] => "nobody".to_owned(),
        places => places
            .iter()
            .map(|place| name_in(team, *place))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let absent = |robot: &&coorp_team::Robot| !robot.may_join && here.iter().all(|status| status.robot != robot.name);
    let all = here.len() + team.robots.iter().filter(absent).count();
    let text = format!("{}: {} of {all} robots here", team.name, here.len());
    match here.iter().find(|status| status.leads) {
        Some(leader) => {
            let (holders, queue) = (names(&leader.holders), names(&leader.queue));
            format!("{text}, {} leads; permits: {holders}; waiting: {queue}", leader.robot)
        }
        None => format!("{text}, nobody leads, so nobody gets a permit"),
    }
}

fn name_in(team: &Team, place: u16) -> &str {
    let robot = team.robots.get(usize::from(place));
    robot.map_or("?", |robot| robot.name.as_str())
}

/// The whole view as text.
fn view(team: &Team, here: &[Status]) -> String {
    let name = |place: u16| name_in(team, place);
    let mut text = summary(team, here) + "\n";
    text += &robots(team, here).layout(terminal_width());
    for sheet in [
        heard(here, name, team.control.is_some()),
        gathered(here, name),
        choices(here, name),
        flows(here),
    ] {
        if !sheet.rows.is_empty() {
            text += "\n";
            text += &sheet.layout(terminal_width());
        }
    }
    for status in here {
        // Each such robot has a line of its own.
        for alarm in status.alarms.iter().filter(|alarm| **alarm != Alarm::Twins) {
            text += &format!("{} ALARM: {alarm}\n", status.robot);
        }
        for twins in &status.twins {
            text += &format!("{} ALARM: {}\n", status.robot, twins.told(name(twins.robot)));
        }
    }
    text += &revoked(here);
    text += &refused(here);
    text += &found(here);
    if here.iter().any(|status| !status.secure) {
        text += "WARNING: some robots run without keys (--insecure)\n";
    }
    text
}

/// The newest list of revoked certificates, who lacks it, and who was given others.
pub fn revoked(here: &[Status]) -> String {
    let newest = here
        .iter()
        .map(|status| status.revoked)
        .max_by_key(|revoked| revoked.list);
    let newest = newest.unwrap_or_default();
    let mut text = String::new();
    if newest.list > 0 {
        let certificates = match newest.certificates {
            1 => "1 certificate is".to_owned(),
            certificates => format!("{} certificates are", count(certificates)),
        };
        text += &format!("{certificates} revoked (list {})", newest.list);
        let without = here.iter().filter(|status| status.revoked.list < newest.list);
        let without: Vec<&str> = without.map(|status| status.robot.as_str()).collect();
        if !without.is_empty() {
            text += &format!(
                "; {} not know it yet",
                match without.as_slice() {
                    [one] => format!("{one} does"),
                    several => format!("{} do", several.join(", ")),
                }
            );
        }
        text += "\n";
    }
    for status in here.iter().filter(|status| status.revoked.rejected > 0) {
        let (robot, often) = (&status.robot, count(status.revoked.rejected));
        text +=
            &format!("{robot} refused lists of revoked certificates: {often}, not signed by the team's authority\n");
    }
    text
}

/// What each robot refused most often of those who attempted to connect, one line each.
pub fn refused(here: &[Status]) -> String {
    let mut text = String::new();
    for status in here {
        for refused in status.door.refused.iter().take(REFUSED_MAX) {
            let (robot, often) = (&status.robot, count(refused.count));
            text += &format!(
                "{robot} refused: {often} from {}, {}\n",
                refused.address, refused.reason
            );
        }
    }
    text
}

/// What each robot tried in vain and refused while it looked for the others, one line each.
pub fn found(here: &[Status]) -> String {
    let mut text = String::new();
    for status in here {
        let of_found = &status.found;
        let mut parts = Vec::new();
        if of_found.failed() > 0 {
            let (failed, attempts) = (count(of_found.failed()), count(of_found.attempts));
            parts.push(format!("{failed} of {attempts} attempts failed"));
        }
        // Another team on the same network is nothing to look at.
        for refusal in Refusal::ALL.into_iter().filter(|why| *why != Refusal::OtherTeam) {
            let refused = of_found.refused(refusal);
            if refused > 0 {
                let why = refusal.name().replace('_', " ");
                parts.push(format!("{} announcements refused, {why}", count(refused)));
            }
        }
        if !parts.is_empty() {
            text += &format!("{} looks for robots: {}\n", status.robot, parts.join("; "));
        }
    }
    text
}

/// One row per robot.
fn robots(team: &Team, here: &[Status]) -> Sheet {
    let titles = [
        "robot",
        "up",
        "hears",
        "permit",
        "window",
        "bulk\nwaits",
        "\nsent",
        "\ncame",
        "\nin the card",
        "\nknown by",
        "clock off",
        "paths",
        "refused",
    ];
    let row = |robot: &coorp_team::Robot| match here.iter().find(|status| status.robot == robot.name) {
        Some(status) => Some(row(status)),
        None if robot.may_join => None,
        None => {
            let mut row = vec![robot.name.clone(), "absent".to_owned()];
            row.resize(titles.len(), DASH.to_owned());
            Some(row)
        }
    };
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 1,
        rows: team.robots.iter().filter_map(row).collect(),
    }
}

fn row(status: &Status) -> Vec<String> {
    let bulk = |show: fn(&Bulk) -> String| status.bulk.as_ref().map_or_else(|| DASH.to_owned(), show);
    vec![
        status.robot.clone(),
        seconds(status.up_ms),
        status.alive.len().to_string(),
        match status.permit {
            Permit::NotNeeded => "not needed",
            Permit::Idle => DASH,
            Permit::Waiting => "waits",
            Permit::Holding => "holds",
        }
        .to_owned(),
        match status.window_us {
            Some((start, length)) if start > 0 => format!("in {} for {}", millis(start as f64), millis(length as f64)),
            Some((start, length)) => format!("now, {} more", millis(length as f64 + start as f64)),
            None => DASH.to_owned(),
        },
        bulk(|bulk| bulk.waiting.to_string()),
        bulk(|bulk| megabytes(bulk.sent_bytes)),
        bulk(|bulk| megabytes(bulk.received_bytes)),
        bulk(|bulk| format!("{}{}", bulk.in_flight, if bulk.held { ", held" } else { "" })),
        bulk(|bulk| bulk.completions.to_string()),
        match status.clock_ns {
            Some((ahead, within)) => format!("{} +- {}", millis(ahead as f64 / 1e3), millis(within as f64 / 1e3)),
            None => DASH.to_owned(),
        },
        status.paths.join(", "),
        status.refused.total().to_string(),
    ]
}

/// One row per control topic, sender and receiver. If the team has a control loop, shows the share of messages over its
/// bound, such as the commands of a late loop.
pub fn heard<'n>(here: &[Status], name: impl Fn(u16) -> &'n str, bounded: bool) -> Sheet {
    let titles = [
        "control",
        "from",
        "to",
        "messages",
        "missed",
        "copies",
        "age",
        "late",
        "silent for",
        "path",
    ];
    let rows = here
        .iter()
        .flat_map(|status| status.heard.iter().map(move |heard| (status, heard)));
    let row = |(status, heard): (&Status, &Heard)| {
        let of_aged = |sum: u64| sum as f64 / heard.aged as f64;
        let is_bounded = bounded && heard.aged > 0;
        let path = usize::try_from(heard.path).ok().and_then(|path| status.paths.get(path));
        vec![
            heard.topic.clone(),
            name(heard.from).to_owned(),
            status.robot.clone(),
            heard.count.to_string(),
            heard.missed.to_string(),
            heard.duplicates.to_string(),
            shown(heard.aged > 0, || millis(of_aged(heard.ages_us))),
            shown(is_bounded, || format!("{:.1} %", 100.0 * of_aged(heard.late))),
            millis(heard.quiet_us as f64),
            path.cloned().unwrap_or_else(|| DASH.to_owned()),
        ]
    };
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 3,
        rows: rows.map(row).collect(),
    }
}

/// One row per path, for robots that send to another robot over one of several paths.
pub fn choices<'n>(here: &[Status], name: impl Fn(u16) -> &'n str) -> Sheet {
    let titles = ["from", "to", "path", "is", "round trip", "fails", "carries"];
    let paths = here
        .iter()
        .flat_map(|status| status.choices.iter().map(move |path| (status, path)));
    let used = paths.filter(|(_, path)| path.state != PathState::Resting);
    let row = |(status, path): (&Status, &Path)| {
        let place = usize::try_from(path.path)
            .ok()
            .and_then(|place| status.paths.get(place));
        let round_trip = path.round_trip_us;
        vec![
            status.robot.clone(),
            name(path.to).to_owned(),
            place.cloned().unwrap_or_else(|| DASH.to_owned()),
            match path.state {
                PathState::Resting => "unknown",
                PathState::Alive => "alive",
                PathState::Dead => "dead",
            }
            .to_owned(),
            round_trip.map_or_else(|| DASH.to_owned(), |us| millis(us as f64)),
            format!("{:.1} %", f64::from(path.failures_ppm) / 1e4),
            match (path.carries, path.bulk) {
                (Carries::Nothing, false) => DASH,
                (Carries::Nothing, true) => "bulk",
                (Carries::Original, false) => "control",
                (Carries::Original, true) => "control, bulk",
                (Carries::Duplicate, false) => "duplicates",
                (Carries::Duplicate, true) => "duplicates, bulk",
            }
            .to_owned(),
        ]
    };
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 3,
        rows: used.map(row).collect(),
    }
}

/// One row per gathered topic, gathering robot and sender.
pub fn gathered<'n>(here: &[Status], name: impl Fn(u16) -> &'n str) -> Sheet {
    let titles = ["gathered", "from", "by", "lists", "missed", "age"];
    let rows = here
        .iter()
        .flat_map(|status| status.gathered.iter().map(move |gathered| (status, gathered)));
    let row = |(status, gathered): (&Status, &Gathered)| {
        let age = |(age, within): (u64, u64)| format!("{} +- {}", millis(age as f64), millis(within as f64));
        vec![
            gathered.topic.clone(),
            name(gathered.from).to_owned(),
            status.robot.clone(),
            gathered.due.to_string(),
            gathered.missed.to_string(),
            gathered.age_us.map_or_else(|| DASH.to_owned(), age),
        ]
    };
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 3,
        rows: rows.map(row).collect(),
    }
}

/// One row per flow of an unchanged program, for robots that protect theirs; of each robot, those that count most.
pub fn flows(here: &[Status]) -> Sheet {
    let titles = [
        "robot",
        "flow",
        "taken for",
        "because",
        "period",
        "rate",
        "late",
        "waits",
        "dropped",
    ];
    let row = |status: &Status, flow: &protect::Status| {
        vec![
            status.robot.clone(),
            flow.to_string(),
            flow.class.to_string(),
            flow.reason.to_string(),
            flow.period
                .map_or_else(|| DASH.to_owned(), |period| millis(period.as_nanos() as f64 / 1e3)),
            format!("{:.2} Mbit/s", flow.rate_bps as f64 / 1e6),
            millis(flow.late.as_nanos() as f64 / 1e3),
            format!("{:.0} kB", flow.waiting_bytes as f64 / 1e3),
            flow.dropped.to_string(),
        ]
    };
    let more = |status: &Status| {
        let more = status.flows.len().checked_sub(FLOWS_MAX + 1)? + 1;
        let mut row = vec![status.robot.clone(), format!("and {more} more")];
        row.resize(titles.len(), DASH.to_owned());
        Some(row)
    };
    let rows = here.iter().flat_map(|status| {
        let flows = status.flows.iter().take(FLOWS_MAX);
        flows.map(move |flow| row(status, flow)).chain(more(status))
    });
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 2,
        rows: rows.collect(),
    }
}

fn shown(is_known: bool, show: impl FnOnce() -> String) -> String {
    if is_known {
        show()
    } else {
        DASH.to_owned()
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn seconds(ms: u64) -> String {
    format!("{:.0} s", ms as f64 / 1e3)
}

fn millis(us: f64) -> String {
    format!("{:.1} ms", us / 1e3)
}

#[cfg(test)]
mod tests {
    use coorp_core::discovery::Counts;

    use super::*;
    use coorp_core::admission::{Reason, Refused};
    use coorp_node::status::{Door, Revoked, Twins};

    #[test]
    fn few_flows_of_a_robot_are_shown_and_the_others_counted() {
        let flow = protect::Status {
            flow: protect::Flow {
                protocol: 17,
                from: ([10, 0, 0, 1].into(), 9),
                to: ([10, 0, 0, 2].into(), 9),
                writer: None,
            },
            topic: None,
            class: protect::Class::Ordinary,
            reason: protect::Reason::Undecided,
            period: None,
            dscp: 0,
            packets: 1,
            bytes: 100,
            rate_bps: 0,
            silent: coorp_core::Duration::ZERO,
            late: coorp_core::Duration::ZERO,
            waiting_packets: 0,
            waiting_bytes: 0,
            dropped: 0,
        };
        let rows = |count: usize| {
            let status = Status {
                robot: "base".to_owned(),
                flows: vec![flow.clone(); count],
                ..Status::default()
            };
            flows(&[status]).rows
        };
        assert_eq!(rows(FLOWS_MAX).len(), FLOWS_MAX);
        let many = rows(FLOWS_MAX + 24);
        assert_eq!(many.len(), FLOWS_MAX + 1);
        assert_eq!(many[FLOWS_MAX][..3], ["base", "and 24 more", DASH]);
        assert_eq!(many[FLOWS_MAX].len(), many[0].len());
    }

    #[test]
    fn the_view_names_who_is_here_who_is_not_and_who_may_send() {
        let text =
            "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"scout\"\n[[robot]]\nname = \"mule\"\n\
             [[place]]\nname = \"guest\"\ncount = 9\n";
        let team = coorp_team::parse(text, "fleet.toml", std::path::Path::new("")).unwrap();
        let team = team.with_places();
        let base = Status {
            robot: "base".to_owned(),
            leads: true,
            secure: true,
            holders: vec![2],
            window_us: Some((-1_000, 4_000)),
            paths: vec!["wlan0".to_owned(), "wlan1".to_owned()],
            heard: vec![Heard {
                topic: "pose".to_owned(),
                from: 2,
                quiet_us: 12_300,
                path: 1,
                aged: 4,
                ages_us: 13_200,
                late: 1,
                ..Heard::default()
            }],
            choices: vec![
                Path {
                    to: 2,
                    path: 1,
                    state: PathState::Dead,
                    round_trip_us: Some(4_200),
                    failures_ppm: 625_000,
                    carries: Carries::Duplicate,
                    bulk: true,
                },
                Path {
                    to: 1,
                    ..Path::default()
                },
            ],
            gathered: vec![Gathered {
                topic: "pose".to_owned(),
                from: 2,
                age_us: Some((4_500, 200)),
                ..Gathered::default()
            }],
            door: Door {
                refused: vec![Refused {
                    address: [10, 0, 0, 9].into(),
                    reason: Reason::NoCertificate,
                    count: 1_503,
                }],
                ..Door::default()
            },
            found: Counts {
                attempts: 1_204,
                unanswered: 3,
                ..Counts::default()
            },
            revoked: Revoked {
                list: 3,
                certificates: 2,
                rejected: 4,
            },
            ..Status::default()
        };
        let scout = Status {
            robot: "scout".to_owned(),
            alarms: vec![Alarm::Twins, Alarm::DiskShort],
            twins: vec![Twins {
                robot: 2,
                at: vec![[10, 0, 0, 3].into(), [10, 0, 0, 9].into()],
            }],
            permit: Permit::Waiting,
            bulk: Some(Bulk {
                sent_bytes: 7_500_000,
                ..Bulk::default()
            }),
            ..Status::default()
        };
        let late = heard(std::slice::from_ref(&base), |_| "mule", true).layout(None);
        assert!(late.contains("25.0 %"), "{late}");
        let shown = view(&team, &[base, scout]);
        for part in [
            "2 of 3 robots here, base leads",
            "permits: mule; waiting: nobody",
            "7.5 MB",
            "3.3 ms     -     12.3 ms  wlan1",
            "4.5 ms +- 0.2 ms",
            "now, 3.0 ms more",
            "base  mule  wlan1  dead",
            "4.2 ms  62.5 %  duplicates, bulk",
            "waits",
            "absent",
            "scout ALARM: the disk has less than its reserve free",
            "scout ALARM: two processes run as mule, at 10.0.0.3 and 10.0.0.9, and one of them is ignored: stop one",
            "base refused: 1,503 from 10.0.0.9, no certificate",
            "base looks for robots: 3 of 1,204 attempts failed\n",
            "2 certificates are revoked (list 3); scout does not know it yet",
            "base refused lists of revoked certificates: 4, not signed",
            "--insecure",
        ] {
            assert!(shown.contains(part), "no '{part}' in\n{shown}");
        }
        assert!(!shown.contains("guest"), "nobody has taken these places:\n{shown}");
        let guest = Status {
            robot: "guest-9".to_owned(),
            ..Status::default()
        };
        let shown = view(&team, &[guest]);
        for part in ["1 of 4 robots here", "guest-9"] {
            assert!(shown.contains(part), "no '{part}' in\n{shown}");
        }
        assert!(!shown.contains("unknown"), "what nobody uses is not shown:\n{shown}");
    }
}
