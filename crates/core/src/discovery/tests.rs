use super::peer::PROVEN_MAX;
use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const ROBOTS: u16 = 12;
const SOON: Duration = Duration::from_secs(5);
const P0: PathId = PathId(0);

fn at(ms: u64) -> Instant {
    Instant::ZERO + MS * ms
}

/// Returns 10.9.c.d. 10.9.0.0/16 is the LAN; true robots are in 10.9.1.0/24, forged addresses elsewhere in it.
fn lan(c: u8, d: u8) -> IpAddr {
    IpAddr::from([10, 9, c, d])
}

fn network() -> Network {
    Network {
        address: lan(0, 1),
        prefix: 16,
    }
}

fn hint(robot: u16, address: IpAddr, proved: bool) -> Hint {
    Hint {
        robot: RobotId(robot),
        path: P0,
        address,
        proved,
    }
}

fn targets(given: impl Fn(u16) -> Option<IpAddr>) -> Vec<Target> {
    let target = |robot| Target {
        robot: RobotId(robot),
        path: P0,
        given: given(robot),
    };
    (0..ROBOTS - 1).map(target).collect()
}

fn on_lan(needs_proof: bool) -> Discovery {
    let mut discovery = Discovery::new(targets(|_| None), needs_proof, 7, at(0));
    discovery.on_networks(P0, vec![network()], at(0));
    discovery
}

fn dials(discovery: &mut Discovery) -> Vec<(AttemptId, RobotId, IpAddr)> {
    let actions = std::iter::from_fn(|| discovery.poll());
    let dial = |action| match action {
        Action::Dial {
            attempt,
            robot,
            address,
            ..
        } => Some((attempt, robot, address)),
        _ => None,
    };
    actions.filter_map(dial).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        jittered(Duration::from_secs(1), &mut self.0).as_nanos() % bound
    }
}

#[derive(Debug)]
enum Event {
    Announce(u16, IpAddr),
    Forge(Hint),
    Ends(AttemptId, Outcome),
    Appears(u16, IpAddr),
    Vanishes(u16),
    NoticesLoss(u16),
}

/// A robot, the last one of its team, among true robots and a forger.
struct World {
    discovery: Discovery,
    random: Random,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    numbers: u64,
    /// Where each robot is, and since when.
    places: BTreeMap<u16, (IpAddr, Instant)>,
    connected: BTreeMap<u16, IpAddr>,
    answered: BTreeMap<u16, Instant>,
    /// Times of attempts at addresses without a robot.
    astray: Vec<Instant>,
    proofs: bool,
}

impl World {
    fn new(seed: u64, needs_proof: bool) -> World {
        let mut discovery = Discovery::new(targets(|_| None), needs_proof, seed, at(0));
        discovery.on_networks(P0, vec![network()], at(0));
        World {
            discovery,
            random: Random(seed),
            now: at(0),
            events: BTreeMap::new(),
            numbers: 0,
            places: BTreeMap::new(),
            connected: BTreeMap::new(),
            answered: BTreeMap::new(),
            astray: Vec::new(),
            proofs: needs_proof,
        }
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    /// Lets a forger send `per_second` hints for all names, from any addresses of the LAN.
    fn flood(&mut self, per_second: u64, from: Instant, until: Instant, proved: bool) {
        let every = Duration::from_secs(1) / per_second;
        let mut when = from;
        while when < until {
            let robot = self.random.below(u64::from(ROBOTS) + 2) as u16;
            let address = match self.random.below(10) {
                0 => IpAddr::from([8, 8, 8, 8]),
                1 => lan(200, 1),
                _ => lan(2 + self.random.below(250) as u8, self.random.below(256) as u8),
            };
            self.plan(when, Event::Forge(hint(robot, address, proved)));
            when += every;
        }
    }

    fn run(&mut self, until: Instant) {
        loop {
            self.act();
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wake = self.discovery.next_deadline().unwrap_or(Instant::FAR_FUTURE);
            let next = event.unwrap_or(Instant::FAR_FUTURE).min(wake);
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            if wake <= self.now {
                self.discovery.on_deadline(self.now);
                let wake = self.discovery.next_deadline();
                assert!(wake.is_none_or(|wake| wake > self.now), "it asks for the past");
            } else if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
            }
            self.check();
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Announce(robot, address) => {
                if self.places.get(&robot).is_some_and(|(at, _)| *at == address) {
                    self.discovery.on_hint(hint(robot, address, self.proofs), now);
                }
            }
            Event::Forge(hint) => {
                self.discovery.on_hint(hint, now);
            }
            Event::Ends(attempt, outcome) => {
                let begun = self.discovery.attempts.get(&attempt).copied();
                self.discovery.on_outcome(attempt, outcome, now);
                if let Some(begun) = begun.filter(|begun| outcome == Outcome::Connected(begun.robot)) {
                    self.connected.insert(begun.robot.0, begun.address);
                }
            }
            Event::Appears(robot, address) => {
                self.places.insert(robot, (address, now));
                // The first announcement may be lost.
                let heard = self.random.below(2) == 0;
                for ms in [50, 1_000, 3_000].into_iter().skip(usize::from(!heard)) {
                    self.plan(now + MS * ms, Event::Announce(robot, address));
                }
            }
            Event::Vanishes(robot) => {
                self.places.remove(&robot);
                self.plan(now + MS * 1_000, Event::NoticesLoss(robot));
            }
            Event::NoticesLoss(robot) => {
                let at = self.connected.get(&robot).copied();
                if at.is_some() && at != self.places.get(&robot).map(|(at, _)| *at) {
                    self.connected.remove(&robot);
                    self.discovery.on_lost(RobotId(robot), P0, now);
                }
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.discovery.poll() {
            match action {
                Action::Dial {
                    attempt,
                    robot,
                    address,
                    ..
                } => {
                    let owner = self
                        .places
                        .iter()
                        .find(|(_, (at, _))| *at == address)
                        .map(|(who, _)| *who);
                    if owner.is_none() {
                        self.astray.push(self.now);
                    }
                    let (after, outcome) = match owner {
                        Some(owner) => (20, Outcome::Connected(RobotId(owner))),
                        None => match self.random.below(3) {
                            0 => (5_000, Outcome::NoAnswer),
                            1 => (10, Outcome::Misfit),
                            _ => (1, Outcome::Refused),
                        },
                    };
                    assert!(robot.0 < ROBOTS - 1 && network().has(address), "{robot:?} at {address}");
                    self.plan(self.now + MS * after, Event::Ends(attempt, outcome));
                }
                Action::Stop(_) => {}
                Action::Search(path) => {
                    let missing: Vec<u16> = self.discovery.missing(path).map(|robot| robot.0).collect();
                    for (robot, (address, _)) in self.places.clone() {
                        let soon = self.now + MS * (10 + self.random.below(100));
                        let last = self.answered.get(&robot).map_or(soon, |last| *last + MS * 1_000);
                        if missing.contains(&robot) && last <= soon.max(last) {
                            let when = soon.max(last);
                            self.answered.insert(robot, when);
                            self.plan(when, Event::Announce(robot, address));
                        }
                    }
                }
            }
        }
    }

    fn check(&self) {
        let most = usize::from(ROBOTS) * (HEARD_MAX + PROVEN_MAX) + MISFITS_MAX;
        assert!(self.discovery.addresses() <= most);
        let heard = self
            .discovery
            .attempts
            .values()
            .filter(|one| one.source == Source::Heard);
        assert!(heard.count() <= GUESSES_AT_ONCE_MAX);
    }

    /// Panics if a robot has been at its address for five seconds and is not connected.
    fn assert_found(&self) {
        for (robot, (address, since)) in &self.places {
            let found = self.connected.get(robot) == Some(address);
            assert!(
                found || self.now.since(*since) < SOON,
                "robot {robot} at {address} since {since:?}, and not found at {:?}",
                self.now
            );
        }
    }

    fn run_and_find(&mut self, until: Instant) {
        while self.now < until {
            self.run((self.now + MS * 250).min(until));
            self.assert_found();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Robots join, move and leave while somebody without the team's key floods the network.
    #[test]
    fn a_stranger_delays_nobody_and_causes_no_attempt(seed in any::<u64>()) {
        let mut world = World::new(seed, true);
        world.flood(500, at(0), at(40_000), false);
        for robot in 0..ROBOTS - 1 {
            let mut when = world.random.below(10_000);
            for stay in 0..4 {
                let address = lan(1, robot as u8 * 8 + stay + 1);
                world.plan(at(when), Event::Appears(robot, address));
                when += 6_000 + world.random.below(4_000);
                world.plan(at(when), Event::Vanishes(robot));
            }
        }
        world.run_and_find(at(40_000));
        // Robots that left are tried at their last address; nothing else is tried.
        prop_assert!(world.discovery.counts().misfits + world.discovery.counts().hints > 0);
        prop_assert!(world.discovery.counts().refused(Refusal::Unproved) == 20_000);
    }

    /// No robot is present, and all hints are forged by somebody who can prove them, or who need not.
    #[test]
    fn forged_hints_cause_ten_attempts_at_most(seed in any::<u64>(), needs_proof in any::<bool>()) {
        let mut world = World::new(seed, needs_proof);
        world.flood(300, at(0), at(60_000), true);
        world.run(at(60_000));
        prop_assert!(!world.astray.is_empty() && world.astray.len() <= 10, "{:?}", world.astray);
    }

    /// Robots that were reached once are reached again, whatever a member forges.
    #[test]
    fn who_was_connected_is_found_again_under_forged_hints(seed in any::<u64>()) {
        let mut world = World::new(seed, false);
        for robot in 0..ROBOTS - 1 {
            let address = lan(1, robot as u8 + 1);
            let come = world.random.below(1_000);
            let gone = 8_000 + world.random.below(8_000);
            let back = gone + 2_000 + world.random.below(20_000);
            world.plan(at(come), Event::Appears(robot, address));
            world.plan(at(gone), Event::Vanishes(robot));
            world.plan(at(back), Event::Appears(robot, address));
        }
        world.flood(300, at(7_000), at(50_000), true);
        world.run_and_find(at(50_000));
        // Attempts at absent robots are not attempts at forged addresses.
        prop_assert_eq!(world.connected.len(), usize::from(ROBOTS) - 1);
    }
}

#[test]
fn a_single_reply_with_a_thousand_addresses_is_soon_forgotten() {
    let mut discovery = on_lan(true);
    for number in 0..1_024u32 {
        let address = lan(2 + (number / 250) as u8, (number % 250) as u8 + 1);
        discovery.on_hint(hint(3, address, true), at(0));
    }
    let mut tried = 0;
    for ms in 0..600_000 {
        discovery.on_deadline(at(ms));
        tried += dials(&mut discovery).len();
    }
    assert!((1..=10).contains(&tried), "{tried}");
    assert!(discovery.counts().refused(Refusal::TooMany) > 1_000);
    assert_eq!(discovery.addresses(), 0, "and forgotten");
}

#[test]
fn only_addresses_of_an_own_network_are_tried() {
    let mut discovery = on_lan(true);
    let refused = [
        IpAddr::from([8, 8, 8, 8]),
        IpAddr::from([10, 10, 0, 1]),
        IpAddr::from([224, 0, 0, 1]),
        IpAddr::from([127, 0, 0, 1]),
        lan(255, 255),
        lan(0, 0),
        "fe80::1".parse().unwrap(),
        "2001:db8::1".parse().unwrap(),
    ];
    for address in refused {
        let refusal = discovery.on_hint(hint(1, address, true), at(1));
        assert_eq!(refusal, Some(Refusal::Elsewhere), "{address}");
    }
    let other_path = Hint {
        path: PathId(1),
        ..hint(1, lan(1, 1), true)
    };
    assert_eq!(discovery.on_hint(other_path, at(1)), Some(Refusal::Elsewhere));
    assert!(dials(&mut discovery).is_empty());
    assert_eq!(discovery.on_hint(hint(1, lan(1, 1), true), at(1)), None);
    assert_eq!(dials(&mut discovery).len(), 1);
}

#[test]
fn a_network_has_its_addresses() {
    let has = |own: [u8; 4], prefix, address: [u8; 4]| {
        let network = Network {
            address: own.into(),
            prefix,
        };
        network.has(address.into())
    };
    assert!(has([10, 0, 0, 1], 31, [10, 0, 0, 0]));
    assert!(has([10, 0, 0, 1], 32, [10, 0, 0, 1]));
    assert!(!has([10, 0, 0, 1], 32, [10, 0, 0, 2]));
    assert!(has([10, 0, 0, 1], 0, [11, 0, 0, 2]));
    assert!(!has([10, 0, 0, 1], 24, [10, 0, 0, 255]));
    let six = Network {
        address: "2001:db8::1".parse().unwrap(),
        prefix: 64,
    };
    assert!(six.has("2001:db8::7".parse().unwrap()));
    assert!(!six.has("2001:db8:0:1::7".parse().unwrap()));
}

#[test]
fn a_wrong_certificate_is_remembered_longer_each_time() {
    let mut discovery = on_lan(true);
    let (address, mut tried, mut ms) = (lan(1, 1), Vec::new(), 0);
    while ms < 400_000 {
        discovery.on_hint(hint(1, address, true), at(ms));
        discovery.on_hint(hint(2, address, true), at(ms));
        for (attempt, ..) in dials(&mut discovery) {
            tried.push(ms);
            discovery.on_outcome(attempt, Outcome::Misfit, at(ms + 5));
        }
        ms += 100;
    }
    // One of the two may have begun earlier.
    assert!(tried.len() <= 8, "{tried:?}");
    assert!(discovery.counts().refused(Refusal::Misfit) > 1_000);
    let first = tried.iter().filter(|ms| **ms < 4_000);
    assert!(first.count() <= 2, "{tried:?}");
}

#[test]
fn an_address_that_a_stranger_had_is_tried_within_five_seconds() {
    let mut discovery = on_lan(true);
    discovery.on_hint(hint(1, lan(1, 1), true), at(0));
    let (attempt, ..) = dials(&mut discovery)[0];
    discovery.on_outcome(attempt, Outcome::Misfit, at(10));
    // The robot gets that address from the stranger.
    let again = (0..50).map(|tenth| at(100 + tenth * 100));
    let tried = again.filter(|now| {
        discovery.on_hint(hint(1, lan(1, 1), true), *now);
        !dials(&mut discovery).is_empty()
    });
    assert_eq!(tried.count(), 1);
}

#[test]
fn given_addresses_are_tried_without_a_network_or_a_hint() {
    let mut discovery = Discovery::new(targets(|robot| Some(lan(1, robot as u8))), true, 1, at(0));
    let first = dials(&mut discovery);
    assert_eq!(first.len(), usize::from(ROBOTS) - 1, "each of them at once");
    // Somebody else is at the first address.
    let outcome = |robot: RobotId| match robot.0 {
        0 => Outcome::Misfit,
        _ => Outcome::Refused,
    };
    for (attempt, robot, _) in first {
        discovery.on_outcome(attempt, outcome(robot), at(1));
    }
    let mut tried = [0; ROBOTS as usize - 1];
    for ms in 1..20_000 {
        discovery.on_deadline(at(ms));
        for (attempt, robot, _) in dials(&mut discovery) {
            tried[usize::from(robot.0)] += 1;
            discovery.on_outcome(attempt, outcome(robot), at(ms));
        }
    }
    assert!((4..8).contains(&tried[0]), "{tried:?}");
    assert!(tried[1..].iter().all(|count| (15..40).contains(count)), "{tried:?}");
    discovery.on_networks(P0, vec![network()], at(20_000));
    discovery.on_hint(hint(1, lan(1, 77), true), at(20_000));
    discovery.on_deadline(at(20_100));
    assert!(dials(&mut discovery).iter().all(|(.., address)| *address != lan(1, 77)));
    assert_eq!(discovery.missing(P0).count(), 0, "nobody is searched for");
}

#[test]
fn an_address_that_changed_is_tried_while_the_old_one_is_silent() {
    let mut discovery = on_lan(true);
    discovery.on_hint(hint(1, lan(1, 1), true), at(0));
    let (attempt, ..) = dials(&mut discovery)[0];
    discovery.on_outcome(attempt, Outcome::Connected(RobotId(1)), at(10));
    discovery.on_hint(hint(1, lan(1, 2), true), at(60_000));
    assert!(dials(&mut discovery).is_empty(), "it is connected");
    discovery.on_lost(RobotId(1), P0, at(61_000));
    let both: Vec<IpAddr> = dials(&mut discovery).iter().map(|(.., address)| *address).collect();
    assert_eq!(both, [lan(1, 1), lan(1, 2)]);
}

#[test]
fn a_connection_from_the_other_side_ends_the_attempts() {
    let mut discovery = on_lan(true);
    discovery.on_hint(hint(1, lan(1, 1), true), at(0));
    let (attempt, ..) = dials(&mut discovery)[0];
    discovery.on_connected(RobotId(1), P0, lan(1, 1), at(5));
    let actions: Vec<Action> = std::iter::from_fn(|| discovery.poll()).collect();
    assert!(actions.contains(&Action::Stop(attempt)), "{actions:?}");
    discovery.on_outcome(attempt, Outcome::Misfit, at(6));
    assert_eq!(discovery.counts().misfits, 0, "what was stopped has no outcome");
    assert!(!discovery.missing(P0).any(|robot| robot == RobotId(1)));
}

#[test]
fn a_robot_at_another_ones_address_is_dialled_there() {
    let mut discovery = on_lan(true);
    discovery.on_hint(hint(1, lan(1, 1), true), at(0));
    let (attempt, ..) = dials(&mut discovery)[0];
    discovery.on_outcome(attempt, Outcome::Connected(RobotId(2)), at(5));
    let missing: Vec<u16> = discovery.missing(P0).map(|robot| robot.0).collect();
    assert!(missing.contains(&1) && missing.contains(&2));
    let (attempt, robot, address) = dials(&mut discovery)[0];
    assert_eq!((robot, address), (RobotId(2), lan(1, 1)));
    discovery.on_outcome(attempt, Outcome::Connected(RobotId(2)), at(10));
    assert!(!discovery.missing(P0).any(|robot| robot == RobotId(2)));
}

#[test]
fn attempts_end_where_the_network_went() {
    let mut discovery = on_lan(true);
    discovery.on_hint(hint(1, lan(1, 1), true), at(0));
    let (attempt, ..) = dials(&mut discovery)[0];
    discovery.on_networks(P0, Vec::new(), at(5));
    let actions: Vec<Action> = std::iter::from_fn(|| discovery.poll()).collect();
    assert_eq!(actions, [Action::Stop(attempt)]);
    assert_eq!(discovery.next_deadline(), None, "and nothing is due without one");
    discovery.on_networks(P0, vec![network()], at(60_000));
    discovery.on_deadline(at(60_050));
    assert_eq!(discovery.poll(), Some(Action::Search(P0)));
}

#[test]
fn searches_slow_down_and_end_with_the_last_robot() {
    let mut discovery = on_lan(true);
    let mut searches = Vec::new();
    for ms in 0..60_000 {
        discovery.on_deadline(at(ms));
        searches.extend(std::iter::from_fn(|| discovery.poll()).map(|_| ms));
    }
    assert!((14..26).contains(&searches.len()), "{searches:?}");
    assert!(searches[..3].iter().all(|ms| *ms < 2_000), "{searches:?}");
    for robot in 0..ROBOTS - 1 {
        discovery.on_connected(RobotId(robot), P0, lan(1, 1), at(60_000));
    }
    assert_eq!(discovery.next_deadline(), None);
}
