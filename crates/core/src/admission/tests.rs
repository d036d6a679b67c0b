use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn stranger(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn member(number: u8) -> IpAddr {
    IpAddr::from([192, 168, 0, number])
}

fn team() -> Admission {
    Admission::new(Limits::of_team(3, 1), [member(0), member(1)])
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + MS * ms
}

fn ticket(verdict: Verdict) -> Option<Ticket> {
    match verdict {
        Verdict::Begin { ticket, .. } => Some(ticket),
        _ => None,
    }
}

#[test]
fn nothing_is_stored_for_an_address_that_may_be_forged() {
    let mut door = team();
    let before = door.addresses();
    for number in 0..100_000u32 {
        let forged = IpAddr::from(number.to_be_bytes());
        let verdict = door.on_attempt(forged, false, at(u64::from(number / 100)));
        assert!(matches!(verdict, Verdict::Prove | Verdict::Ignore(Reason::Unproved)));
    }
    assert_eq!((door.addresses(), door.unfinished()), (before, 0));
    assert!(door.refusals().by_address().is_empty());
    assert!(door.refusals().total(Reason::Unproved) > 90_000);
    let first = ticket(door.on_attempt(member(0), false, at(1_000)));
    assert!(first.is_some(), "a member's address is known");
    assert_eq!(
        door.on_attempt(member(0), false, at(1_000)),
        Verdict::Prove,
        "and may be forged"
    );
}

#[test]
fn one_address_gets_its_share_and_the_rest_is_counted_there() {
    let mut door = team();
    let begun = (0..1_500).filter(|ms| ticket(door.on_attempt(stranger(9), true, at(*ms))).is_some());
    assert!(begun.count() <= 17);
    let refused = door.refusals().by_address();
    assert!(refused.iter().all(|refused| refused.address == stranger(9)));
    assert!(
        refused[0].reason == Reason::TooOften && refused[0].count > 1_400,
        "{refused:?}"
    );
    assert!(
        ticket(door.on_attempt(stranger(8), true, at(1_500))).is_some(),
        "another one is free to try"
    );
}

#[test]
fn a_site_shares_and_a_members_address_of_six_is_its_own() {
    let six = |last| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
    let mut door = Admission::new(Limits::of_team(3, 1), [six(1)]);
    let begun = (2..200).filter(|last| ticket(door.on_attempt(six(*last), true, at(0))).is_some());
    assert!(begun.count() <= 4);
    assert!(ticket(door.on_attempt(six(1), true, at(0))).is_some());
    let link = |last| IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, last]);
    let begun = (1..6).filter(|last| ticket(door.on_attempt(link(*last), true, at(0))).is_some());
    assert_eq!(begun.count(), 5, "all of a link are not one site");
    let mapped = "::ffff:192.168.0.1".parse().unwrap();
    let mut door = team();
    assert!((0..30).all(|_| ticket(door.on_attempt(mapped, true, at(0))).is_some() || door.unfinished() > 10));
}

#[test]
fn a_robot_holds_as_many_connections_as_it_needs_and_no_more() {
    let mut door = team();
    let limit = door.limits.connections_per_robot_max;
    let mut open = Vec::new();
    for number in 0..=limit as u64 {
        let ticket = ticket(door.on_attempt(member(0), true, at(number * 100))).unwrap();
        open.push((ticket, door.on_member(ticket, RobotId(1), at(number * 100 + 5))));
    }
    assert_eq!(open.iter().filter(|(_, stays)| *stays).count(), limit);
    assert_eq!(door.refusals().total(Reason::TooManyConnections), 1);
    door.on_ended(open[0].0, at(5_000));
    let next = ticket(door.on_attempt(member(0), true, at(5_000))).unwrap();
    assert!(door.on_member(next, RobotId(1), at(5_000)));
}

#[test]
fn operators_have_few_places_and_take_none_of_a_robots() {
    let mut door = team();
    let limits = Limits::of_team(3, 1);
    let connect = |door: &mut Admission, from, number: usize| {
        let attempt = door.on_attempt(from, true, at(1_000 * number as u64));
        ticket(attempt).unwrap()
    };
    for number in 0..40 {
        let ticket = connect(&mut door, stranger(7), number);
        assert_eq!(door.on_operator(ticket), number < limits.operators_max);
    }
    assert_eq!(
        door.refusals().total(Reason::TooManyConnections),
        40 - limits.operators_max as u64
    );
    assert!(!door.members.entries.contains_key(&stranger(7)), "no robot is there");
    for number in 0..limits.connections_per_robot_max {
        let ticket = connect(&mut door, stranger(7), 40 + number);
        assert!(door.on_member(ticket, RobotId(1), at(80_000)));
    }
}

#[test]
fn a_member_connects_as_often_as_it_likes() {
    let mut door = team();
    for ms in 0..20_000 {
        let begun = ticket(door.on_attempt(member(1), false, at(ms))).unwrap();
        assert!(door.on_member(begun, RobotId(1), at(ms)));
        door.on_ended(begun, at(ms));
    }
}

/// Attempts that fail at once in the name of a member's address, such as Initial packets that nobody can decrypt, cost
/// nothing.
#[test]
fn forged_attempts_that_fail_take_no_share_of_the_member_nor_of_others() {
    let mut door = team();
    for ms in 0..5_000 {
        if let Some(forged) = ticket(door.on_attempt(member(0), false, at(ms))) {
            door.on_failed(forged, Reason::Unfinished);
        }
        if ms % 150 == 7 {
            for own in [member(0), member(1)] {
                let begun = ticket(door.on_attempt(own, true, at(ms)));
                assert!(begun.is_some(), "{own} at {ms} ms");
                door.on_failed(begun.unwrap(), Reason::Unfinished);
            }
        }
    }
}

#[test]
fn an_address_is_a_members_for_a_while() {
    let mut door = team();
    let first = ticket(door.on_attempt(stranger(1), true, at(0))).unwrap();
    assert!(door.on_member(first, RobotId(2), at(5)));
    let flood = |door: &mut Admission, now| {
        let begun = (0..40).filter(|_| ticket(door.on_attempt(stranger(1), true, now)).is_some());
        begun.count()
    };
    door.on_ended(first, at(1_000));
    let later = at(1_000) + KNOWN_FOR;
    assert!(flood(&mut door, later) > 10, "as a member");
    let later = later + HANDSHAKE_MAX;
    assert!(flood(&mut door, later) <= 4, "as anybody");
}

/// Returns the number of unfinished handshakes of the address that has the most.
fn most(class: &Class) -> usize {
    let mut counts = BTreeMap::<IpAddr, usize>::new();
    for (address, ..) in class.unfinished.values() {
        *counts.entry(*address).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

/// What may happen to an [`Admission`].
#[derive(Clone, Debug)]
enum Event {
    Attempt { from: u8, proved: bool },
    Member { which: prop::sample::Index, robot: u16 },
    Operator(prop::sample::Index),
    Failed(prop::sample::Index),
    Ended(prop::sample::Index),
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let index = any::<prop::sample::Index>;
    let event = prop_oneof![
        8 => (any::<u8>(), prop::bool::weighted(0.8)).prop_map(|(from, proved)| Event::Attempt { from, proved }),
        2 => (index(), 0..4u16).prop_map(|(which, robot)| Event::Member { which, robot }),
        1 => index().prop_map(Event::Operator),
        1 => index().prop_map(Event::Failed),
        1 => index().prop_map(Event::Ended),
        2 => (0..400u64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..300)
}

proptest! {
    /// Whatever happens, all state stays within its limits, and no ticket is reported twice.
    #[test]
    fn everything_is_bounded(events in events()) {
        let mut limits = Limits::of_team(2, 1);
        limits.strangers.addresses_max = 40;
        limits.members.addresses_max = 8;
        limits.members.unfinished_max = 6;
        let mut door = Admission::new(limits, [stranger(0), stranger(1)]);
        let (mut now, mut alive) = (Instant::ZERO, Vec::new());
        for event in events {
            match event {
                Event::Attempt { from, proved } => {
                    let before = (door.addresses(), door.unfinished());
                    match door.on_attempt(stranger(from), proved, now) {
                        Verdict::Begin { ticket, instead_of } => {
                            prop_assert!(proved || from < 2 || door.members.entries.contains_key(&stranger(from)));
                            if let Some(old) = instead_of {
                                let place = alive.iter().position(|known| *known == old);
                                alive.remove(place.unwrap());
                            }
                            alive.push(ticket);
                        }
                        Verdict::Prove => prop_assert!(!proved && before == (door.addresses(), door.unfinished())),
                        Verdict::Ignore(_) => {}
                    }
                }
                Event::Member { which, robot } if !alive.is_empty() => {
                    let place = which.index(alive.len());
                    let open = door.connections();
                    if !door.on_member(alive[place], RobotId(robot), now) && door.connections() == open {
                        door.on_ended(alive.remove(place), now);
                    }
                }
                Event::Operator(which) if !alive.is_empty() => {
                    let place = which.index(alive.len());
                    let open = door.connections();
                    if !door.on_operator(alive[place]) && door.connections() == open {
                        door.on_ended(alive.remove(place), now);
                    }
                }
                Event::Failed(which) if !alive.is_empty() => {
                    let place = which.index(alive.len());
                    if !door.connections.contains_key(&alive[place]) {
                        door.on_failed(alive.remove(place), Reason::NoCertificate);
                    }
                }
                Event::Ended(which) if !alive.is_empty() => door.on_ended(alive.remove(which.index(alive.len())), now),
                Event::Wait(ms) => now += MS * ms,
                _ => {}
            }
            prop_assert!(door.strangers.unfinished.len() <= limits.strangers.unfinished_max);
            prop_assert!(door.members.unfinished.len() <= limits.members.unfinished_max);
            prop_assert!(door.strangers.entries.len() <= limits.strangers.addresses_max);
            prop_assert!(door.members.entries.len() <= limits.members.addresses_max);
            prop_assert!(most(&door.strangers) <= limits.strangers.unfinished_each_max);
            prop_assert!(most(&door.members) <= limits.members.unfinished_each_max);
            for robot in 0..4 {
                let of = door.connections.values().filter(|(_, of)| *of == Some(RobotId(robot))).count();
                prop_assert!(of <= limits.connections_per_robot_max);
            }
            let operators = door.connections.values().filter(|(_, of)| of.is_none()).count();
            prop_assert!(operators <= limits.operators_max);
            prop_assert!(door.refusals().by_address().len() <= ADDRESSES_SHOWN_MAX);
            prop_assert_eq!(alive.len(), door.unfinished() + door.connections());
        }
    }

    /// A flood from any addresses but a member's own neither keeps that member out nor ends its handshake early.
    #[test]
    fn a_member_gets_in_whatever_strangers_do(from in prop::collection::vec((2..=255u8, any::<bool>()), 800), per_ms in 1..6u64) {
        let mut door = team();
        let mut own: Option<Ticket> = None;
        for (number, (from, proved)) in (0u64..).zip(from) {
            let now = at(number / per_ms);
            if number % (100 * per_ms) == 0 {
                own = ticket(door.on_attempt(member(1), (number / (100 * per_ms)) % 2 == 0, now));
                prop_assert!(own.is_some());
            }
            if let Verdict::Begin { instead_of, .. } = door.on_attempt(stranger(from), proved, now) {
                prop_assert!(instead_of.is_none() || instead_of != own);
            }
            if number % (100 * per_ms) == 50 * per_ms {
                prop_assert!(door.on_member(own.unwrap(), RobotId(1), now));
                door.on_ended(own.unwrap(), now);
            }
        }
    }

    /// A member at a new address gets in beside a flood of 150 handshakes a second from a few other addresses that
    /// never finish.
    #[test]
    fn a_member_at_a_new_address_gets_in_beside_few_strangers(others in 1..8u8, comes in 1_000..4_000u64) {
        let mut door = team();
        let mut own = None;
        for ms in (0..5_000).filter(|ms| ms % 7 == 0 || *ms == comes) {
            if ms == comes {
                own = ticket(door.on_attempt(stranger(200), true, at(ms)));
                prop_assert!(own.is_some());
            } else if let Verdict::Begin { instead_of, .. } = door.on_attempt(stranger((ms % u64::from(others)) as u8), true, at(ms)) {
                prop_assert!(instead_of.is_none() || instead_of != own || ms >= comes + 250);
            }
        }
    }
}
