//! The rules on made-up records: a correct run passes, and each way to break a rule is reported.

use super::*;

const MS: u64 = 1_000_000;
const END: u64 = 6_000 * MS;
const PERIOD: u64 = 33;

fn fault(at_ms: u64, until_ms: u64, what: Kind) -> (Fault, Span) {
    let fault = Fault {
        at: Duration::from_millis(at_ms),
        until: Duration::from_millis(until_ms),
        what,
    };
    (fault, (at_ms * MS, until_ms * MS))
}

fn begin(at_ms: u64, name: &str, to: Option<u16>) -> Line {
    Line::Begin {
        at: at_ms * MS,
        name: name.to_owned(),
        to,
        bytes: 10,
        hash: "right".to_owned(),
    }
}

fn told(at_ms: u64, name: &str) -> Line {
    Line::Told {
        at: at_ms * MS,
        name: name.to_owned(),
        why: None,
    }
}

fn may(at_ms: u64) -> Line {
    let at = at_ms * MS;
    Line::May { asked: at, at }
}

fn holds(from_ms: u64, to_ms: u64) -> [Line; 3] {
    let at = (to_ms + 1) * MS;
    [may(from_ms), may(to_ms), Line::MayNot { at }]
}

fn taken(by: u16, from: u16, name: &str) -> Taken {
    Taken {
        by,
        from,
        name: name.to_owned(),
        hash: "right".to_owned(),
    }
}

/// Control from a robot between these times.
fn heard(from: u16, from_ms: u64, to_ms: u64) -> impl Iterator<Item = Line> {
    let times = (from_ms..to_ms).step_by(PERIOD as usize);
    times.map(move |ms| Line::Heard {
        at: ms * MS,
        from,
        made_at: (ms - 1) * MS,
    })
}

/// Two robots; robot 1 is frozen from 2 s to 3 s, each sends the other a message, and both take turns.
fn run() -> Seen {
    let life = |other: u16, name: &str, turns: [(u64, u64); 2]| {
        let mut lines = vec![Line::Started { at: MS }, Line::Up { at: 300 * MS }];
        lines.extend(heard(other, 400, 2_000));
        lines.extend(heard(other, 3_100, 5_000));
        lines.push(begin(1_000, name, Some(other)));
        lines.extend(turns.into_iter().flat_map(|(from, to)| holds(from, to)));
        lines.push(told(3_700, name));
        Life { lines, killed: None }
    };
    Seen {
        origin: 0,
        healed: 3_000 * MS,
        judged_to: 4_100 * MS,
        end: END,
        limit: 1,
        permit_within: Duration::from_secs(2),
        channels: 1,
        lives: vec![
            vec![life(1, "a", [(1_000, 1_200), (3_200, 3_400)])],
            vec![life(0, "b", [(1_300, 1_500), (3_500, 3_700)])],
        ],
        faults: vec![fault(2_000, 3_000, Kind::Freeze(RobotId(1)))],
        sent: vec![vec![1_100 * MS, 3_300 * MS], vec![1_400 * MS, 3_600 * MS]],
        taken: vec![taken(1, 0, "a"), taken(0, 1, "b")],
    }
}

fn rules(seen: &Seen) -> Vec<u8> {
    judge(seen).0.iter().map(|broken| broken.rule).collect()
}

fn drop_lines(seen: &mut Seen, robot: usize, unwanted: impl Fn(&Line) -> bool) {
    seen.lives[robot][0].lines.retain(|line| !unwanted(line));
}

#[test]
fn a_run_in_order_passes_with_its_figures() {
    let (broken, figures) = judge(&run());
    assert!(broken.is_empty(), "{broken:?}");
    assert_eq!((figures.begun, figures.delivered, figures.datagrams), (2, 2, 4));
    assert_eq!((figures.resumed_ms, figures.silence_ms), (100.0, 33.0));
    assert_eq!(figures.permit_ms, 500.0);
    assert!(figures.kept_up());
}

#[test]
fn a_message_that_comes_twice_garbled_elsewhere_or_from_nowhere_is_told_of() {
    let mut twice = run();
    twice.taken.push(taken(1, 0, "a"));
    assert_eq!(rules(&twice), [1]);
    let mut garbled = run();
    garbled.taken[0].hash = "wrong".to_owned();
    assert_eq!(rules(&garbled), [1]);
    let mut elsewhere = run();
    elsewhere.taken[0].by = 0;
    assert_eq!(rules(&elsewhere), [1]);
    let mut nowhere = run();
    nowhere.taken.push(taken(1, 0, "never"));
    assert_eq!(rules(&nowhere), [1]);
}

#[test]
fn a_message_that_is_lost_is_told_of_and_a_dead_senders_may_be() {
    let mut lost = run();
    lost.taken.clear();
    assert_eq!(rules(&lost), [1, 1]);
    let mut untold = run();
    drop_lines(&mut untold, 0, |line| matches!(line, Line::Told { .. }));
    assert_eq!(rules(&untold), [3]);
    let mut dead = untold.clone();
    dead.taken.remove(0);
    let line = dead.lives[0][0]
        .lines
        .iter()
        .position(|line| matches!(line, Line::Begin { .. }));
    let begun = dead.lives[0][0].lines.remove(line.unwrap());
    let earlier = Life {
        lines: vec![begun],
        killed: Some(500 * MS),
    };
    dead.lives[0].insert(0, earlier);
    let (broken, figures) = judge(&dead);
    assert_eq!((broken, figures.orphaned), (vec![], 1));
}

#[test]
fn control_that_does_not_resume_or_falls_silent_is_told_of() {
    let mut late = run();
    drop_lines(
        &mut late,
        0,
        |line| matches!(line, Line::Heard { at, .. } if (3_000..4_050).contains(&(at / MS))),
    );
    assert_eq!(rules(&late), [2]);
    let mut silent = run();
    drop_lines(
        &mut silent,
        1,
        |line| matches!(line, Line::Heard { at, .. } if (500..1_600).contains(&(at / MS))),
    );
    assert_eq!(rules(&silent), [2]);
    // Messages created before and delivered only now do not count as control resuming.
    let mut stale = run();
    for line in &mut stale.lives[0][0].lines {
        if let Line::Heard { at, made_at, .. } = line {
            *made_at = (*at).min(1_999 * MS);
        }
    }
    assert_eq!(rules(&stale), [2]);
}

#[test]
fn a_path_of_two_that_dies_stands_between_nobody_and_the_only_one_does() {
    let without = |channels, faults: Vec<(Fault, Span)>| {
        let mut seen = run();
        seen.lives.iter_mut().for_each(|lives| {
            lives[0]
                .lines
                .retain(|line| !matches!(line, Line::Heard { at, .. } if (2_000..3_200).contains(&(at / MS))));
        });
        Seen {
            channels,
            faults,
            ..seen
        }
    };
    let path = |interface, until| fault(2_000, until, Kind::PathLoss(interface, 1.0));
    assert!(rules(&without(1, vec![path(0, 3_000)])).is_empty());
    assert_eq!(rules(&without(2, vec![path(0, 3_000)])), [2, 2]);
    assert!(rules(&without(2, vec![path(0, 3_000), path(1, 3_000)])).is_empty());
    let other = fault(2_000, 3_000, Kind::Partition(vec![RobotId(0), RobotId(1)]));
    assert_eq!(rules(&without(1, vec![other])), [2, 2]);
    // A poor path excuses nobody who was not separated before.
    let poor = || fault(2_100, 3_100, Kind::PathLoss(0, 0.6));
    let frozen = fault(1_900, 2_050, Kind::Freeze(RobotId(0)));
    assert_eq!(rules(&without(1, vec![poor()])), [2, 2]);
    assert_eq!(rules(&without(1, vec![frozen.clone()])), [2, 2]);
    assert_eq!(rules(&without(2, vec![frozen.clone(), poor()])), [2, 2]);
    assert!(rules(&without(1, vec![frozen, poor()])).is_empty());
}

#[test]
fn a_stuck_permit_is_told_of() {
    let mut stuck = run();
    drop_lines(&mut stuck, 1, |line| {
        matches!(line, Line::May { at, .. } | Line::MayNot { at } if *at > 3_000 * MS)
            || matches!(line, Line::Told { .. })
    });
    stuck.sent[1].pop();
    assert_eq!(rules(&stuck), [3, 3], "neither through nor permitted");
}

#[test]
fn two_holders_are_told_of_and_as_many_as_the_limit_are_not() {
    let mut two = run();
    two.lives[1][0].lines.splice(2..2, holds(1_100, 1_150));
    assert_eq!(rules(&two), [4]);
    two.limit = 2;
    assert!(rules(&two).is_empty());
}

#[test]
fn what_nobody_looked_at_is_not_held() {
    let mut frozen = run();
    // The frozen robot believed that it held a permit until its next check, long after the other had one.
    let gap = Line::Gap {
        from: 1_050 * MS,
        to: 1_250 * MS,
    };
    let may_not = Line::MayNot { at: 1_251 * MS };
    let lines = [may(1_010), may(1_050), gap, may_not];
    let place = frozen.lives[0][0]
        .lines
        .iter()
        .position(|line| matches!(line, Line::May { .. }));
    let place = place.unwrap();
    frozen.lives[0][0].lines.splice(place..place + 3, lines);
    frozen.lives[1][0].lines.splice(2..2, holds(1_100, 1_200));
    frozen.sent[0].remove(0);
    assert!(rules(&frozen).is_empty());
    // A killed robot held the permit until its last check, and no longer.
    let mut killed = run();
    killed.lives[0][0].killed = Some(3_450 * MS);
    drop_lines(
        &mut killed,
        0,
        |line| matches!(line, Line::MayNot { at } if *at > 3_000 * MS),
    );
    assert!(rules(&killed).is_empty());
    let mut after = killed.clone();
    after.lives[1][0].lines.extend(holds(3_405, 3_410));
    assert!(rules(&after).is_empty());
    killed.lives[1][0].lines.extend(holds(3_400, 3_410));
    assert_eq!(rules(&killed), [4]);
}

#[test]
fn bulk_beside_a_holder_is_told_of_but_for_what_a_stop_had_caught() {
    let mut caught = run();
    caught.sent[0].extend((0..CAUGHT_MAX as u64).map(|number| 1_400 * MS + number));
    let (broken, figures) = judge(&caught);
    assert_eq!((broken, figures.caught), (vec![], CAUGHT_MAX));
    caught.sent[0].push(1_450 * MS);
    assert_eq!(rules(&caught), [4]);
}

#[test]
fn on_a_slow_machine_only_a_broken_rule_about_time_proves_nothing() {
    let broken = |rules: &[u8]| {
        let what = |rule: &u8| Broken {
            rule: *rule,
            what: String::new(),
        };
        rules.iter().map(what).collect::<Vec<_>>()
    };
    let figures = Figures::default();
    let counted = |rules: &[u8], kept_up| {
        let (counted, judged) = count(broken(rules), &figures, kept_up);
        (counted.iter().map(|broken| broken.rule).collect::<Vec<_>>(), judged)
    };
    assert_eq!(counted(&[], false), (vec![], true));
    assert_eq!(counted(&[2, 3], false), (vec![], false));
    assert_eq!(counted(&[0, 1, 2, 4], false), (vec![0, 1, 4], true));
    assert_eq!(counted(&[2, 3], true), (vec![2, 3], true));
    let late = Figures {
        up_ms: UP_MAX_MS + 1.0,
        ..figures
    };
    assert_eq!(
        count(vec![], &late, false),
        (vec![], false),
        "the first fault came too early"
    );
}

#[test]
fn a_slow_machine_is_noticed_and_a_freeze_is_none() {
    let gap = |from, to| Line::Gap { from, to };
    let mut frozen = run();
    frozen.lives[1][0].lines.push(gap(1_999 * MS, 3_001 * MS));
    assert!(judge(&frozen).1.kept_up());
    let mut slow = run();
    slow.lives[0][0].lines.push(gap(1_000 * MS, 1_200 * MS));
    assert!(!judge(&slow).1.kept_up());
    let mut late = run();
    drop_lines(&mut late, 0, |line| matches!(line, Line::Up { .. }));
    assert!(!judge(&late).1.kept_up());
}

#[test]
fn the_bound_for_permits_follows_from_leases_and_turns() {
    let failover = FailoverConfig::for_team(RobotId(0), 3);
    let permits = failover.permits(PermitConfig {
        slice: Duration::from_millis(200),
        ..PermitConfig::default()
    });
    let bound = permit_within(&failover, &permits, 3);
    // 1 s until all are up, 0.3 s of silence, 0.95 s to take over, and 0.75 s of turns.
    assert_eq!(bound, Duration::from_micros(3_000_000));
}
