//! Sends datagrams to the multicast DNS group, for discovery to handle: it never panics, accepts no proof that was not
//! given, and bounds its state and attempts.
//!
//! The first byte chooses the sender. A stranger sends anything, copies and changes announcements of members, and asks
//! questions: it causes no attempt, and delays no robot that comes. A member, or a thief of its `ca.pem`, also
//! announces any robot at any address: nobody is there, so no attempt succeeds, and attempts soon stop.

use std::net::Ipv4Addr;

use coorp_core::discovery::{Action, AttemptId, Discovery, Hint, Network, Outcome, Target, GUESSES_AT_ONCE_MAX};
use coorp_core::paths::PathId;
use coorp_core::{Duration, Instant, RobotId};
use coorp_node::discovery::{Heard, Names};

use super::input::Input;

const ROBOTS: [&str; 4] = ["base", "r1", "r2", "r3"];
/// The number of other robots; this robot is the last one.
const OTHERS: u16 = 3;
const PORT: u16 = 7_460;
/// The only place with a robot.
const TRUE_ROBOT: RobotId = RobotId(1);
const TRUE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
/// The number of attempts that may fail at first, and the time per attempt after that, as the page about security says.
const ATTEMPTS_MAX: u64 = 10;
const ATTEMPT_EVERY: Duration = Duration::from_secs(60);
/// The maximum number of heard and proven addresses of robots, and of addresses of misfits.
const ADDRESSES_MAX: usize = OTHERS as usize * 6 + 256;

struct World {
    names: Names,
    decisions: Discovery,
    now: Instant,
    is_stranger: bool,
    attempts: Vec<AttemptId>,
    begun: u64,
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Some(first) = input.byte() else { return };
    let targets = (0..OTHERS).map(|robot| Target {
        robot: RobotId(robot),
        path: PathId(0),
        given: None,
    });
    let mut world = World {
        names: Names::new("fleet", Some(b"authority"), ROBOTS),
        decisions: Discovery::new(targets, true, first.into(), Instant::ZERO),
        now: Instant::ZERO,
        is_stranger: first % 2 == 0,
        attempts: Vec::new(),
        begun: 0,
    };
    let network = Network {
        address: [10, 9, 0, 1].into(),
        prefix: 16,
    };
    world.decisions.on_networks(PathId(0), vec![network], world.now);
    while world.step(&mut input).is_some() {
        world.act();
    }
    world.act();
    if world.is_stranger {
        world.hear(&world.announcement(TRUE_ROBOT, TRUE_ADDRESS), TRUE_ADDRESS);
        let actions: Vec<Action> = std::iter::from_fn(|| world.decisions.poll()).collect();
        let is_tried = |action: &Action| matches!(action, Action::Dial { robot, address, .. } if *robot == TRUE_ROBOT && *address == TRUE_ADDRESS);
        assert!(actions.iter().any(is_tried), "strangers delay a robot: {actions:?}");
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 8 {
            // Records of other services are not parsed.
            0 => self.hear(&[input.bytes()?, b"\x06_coorp"].concat(), forged(input)?),
            1 => self.hear(input.bytes()?, forged(input)?),
            2 => {
                let robot = RobotId(u16::from(input.byte()?) % OTHERS);
                let mut changed = self.announcement(robot, TRUE_ADDRESS);
                input.change(&mut changed)?;
                let from = forged(input)?;
                let there = self.names.read(&changed, TRUE_ADDRESS);
                if let Ok(Some(Heard::Announcement {
                    robot: read,
                    path,
                    proved: true,
                })) = there
                {
                    assert_eq!((read, path), (robot, 0), "a change makes it another robot's");
                }
                self.hear(&changed, from);
            }
            3 => {
                let other = Names::new("fleet", Some(b"another authority"), ROBOTS);
                let from = forged(input)?;
                self.hear(&other.announcement(TRUE_ROBOT, 0, from, PORT), from);
            }
            4 => {
                let mut question = self.names.question((0..OTHERS).map(RobotId), input.byte()? % 2);
                input.change(&mut question)?;
                self.hear(&question, forged(input)?);
            }
            5 => {
                let (robot, from) = (RobotId(u16::from(input.byte()?) % OTHERS), forged(input)?);
                if !self.is_stranger {
                    self.hear(&self.announcement(robot, from), from);
                }
            }
            6 => self.end(input.byte()?),
            _ => self.wait(Duration::from_millis(u64::from(input.word()?))),
        }
        Some(())
    }

    fn announcement(&self, robot: RobotId, from: Ipv4Addr) -> Vec<u8> {
        self.names.announcement(robot, 0, from, PORT)
    }

    /// Handles a datagram as the node does if it arrives over the first path.
    fn hear(&mut self, datagram: &[u8], from: Ipv4Addr) {
        match self.names.read(datagram, from) {
            Ok(Some(Heard::Announcement { robot, path, proved })) => {
                assert!(robot.0 < OTHERS + 1);
                assert!(
                    !(self.is_stranger && proved && from != TRUE_ADDRESS),
                    "a stranger proves that {robot:?} is at {from}"
                );
                let hint = Hint {
                    robot,
                    path: PathId(path),
                    address: from.into(),
                    proved,
                };
                if path == 0 {
                    self.decisions.on_hint(hint, self.now);
                }
            }
            Ok(Some(Heard::Question(asked))) => assert!(asked.len() <= 24),
            Ok(Some(Heard::QuestionForAll) | None) => {}
            Err(refusal) => self.decisions.on_refused(refusal),
        }
    }

    fn end(&mut self, how: u8) {
        if self.attempts.is_empty() {
            return;
        }
        let place = usize::from(how / 4) % self.attempts.len();
        let outcome = match how % 4 {
            0 => Outcome::Misfit,
            1 => Outcome::NoAnswer,
            _ => Outcome::Refused,
        };
        self.decisions
            .on_outcome(self.attempts.swap_remove(place), outcome, self.now);
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.decisions.next_deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.decisions.on_deadline(self.now);
            let next = self.decisions.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "it asks for the past");
            self.act();
        }
        self.now = until;
    }

    fn act(&mut self) {
        while let Some(action) = self.decisions.poll() {
            match action {
                Action::Dial { attempt, robot, .. } => {
                    assert!(!self.is_stranger, "a stranger causes an attempt");
                    assert!(robot.0 < OTHERS);
                    self.attempts.push(attempt);
                    self.begun += 1;
                }
                Action::Stop(stopped) => self.attempts.retain(|attempt| *attempt != stopped),
                Action::Search(path) => assert_eq!(path, PathId(0)),
            }
        }
        let minutes = self.now.as_nanos() / ATTEMPT_EVERY.as_nanos();
        assert!(
            self.begun <= ATTEMPTS_MAX + minutes,
            "{} attempts in {minutes} min",
            self.begun
        );
        assert!(self.attempts.len() <= GUESSES_AT_ONCE_MAX);
        assert!(self.decisions.addresses() <= ADDRESSES_MAX);
    }
}

/// Returns an address of the LAN or elsewhere, where nobody is.
fn forged(input: &mut Input<'_>) -> Option<Ipv4Addr> {
    let [net, host] = [input.byte()?, input.byte()?];
    Some(match net % 16 {
        0 => Ipv4Addr::new(8, 8, 8, host),
        1 => Ipv4Addr::new(224, 0, 0, host),
        2 => Ipv4Addr::new(10, 9, 255, host),
        _ => Ipv4Addr::new(10, 9, 2 + net % 4, host),
    })
}
