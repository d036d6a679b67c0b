//! Bulk over two paths of the real node, in virtual time: as fast as both together, no slower than the better one, and whole
//! and once when paths, receivers and machines fail.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coorp_core::policy::Policy;
use coorp_core::RobotId;
use coorp_node::trial::{Process, Trial};
use coorp_node::{keys, Options};
use coorp_team::Team;

const LEAD: RobotId = RobotId(0);
const ONE: RobotId = RobotId(1);
/// A path carries some 6 MB/s.
const BYTES: usize = 8 << 20;
/// The virtual time in which everything must happen.
const LONG: Duration = Duration::from_secs(180);

/// What happened in a run.
#[derive(Debug, Default)]
struct Seen {
    /// By path: the long datagrams for bulk.
    sent: [AtomicU64; 2],
    outcome: Mutex<Option<(Result<(), String>, Duration)>>,
    /// The messages that arrived: their names, and whether they were right.
    arrived: Mutex<Vec<(String, bool)>>,
}

impl Seen {
    fn sent(&self) -> [u64; 2] {
        [0, 1].map(|path| self.sent[path].load(Ordering::Relaxed))
    }

    /// Returns the duration of a message that arrived whole and once.
    fn whole(&self) -> Duration {
        assert_eq!(*self.arrived.lock().unwrap(), [("map".to_owned(), true)]);
        let outcome = self.outcome.lock().unwrap().take();
        let (outcome, took) = outcome.unwrap();
        outcome.unwrap();
        took
    }
}

/// Returns a team with keys, in its own folder.
fn team() -> (PathBuf, Team) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("coorp-spread-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let robots = "[[robot]]\nname = \"lead\"\nleader = true\n[[robot]]\nname = \"one\"\n";
    let mut team = coorp_team::parse(robots, "team.toml", &folder).unwrap();
    team.live.keys = folder.join("keys");
    keys::init(&team).unwrap();
    (folder, team)
}

fn content() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn options(trial: &Trial, robot: RobotId) -> Options {
    let name = trial.team().robots[usize::from(robot.0)].name.clone();
    Options {
        team: trial.team().clone(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(Path::new("/state").join(&name)),
        robot: name,
    }
}

/// Receives messages until its process ends.
async fn receive(trial: Arc<Trial>, seen: Arc<Seen>, process: Process) {
    let node = process.open(options(&trial, LEAD)).unwrap();
    let receiver = node.bulk_receiver().unwrap();
    loop {
        let message = receiver.next().await;
        let right = message.take().unwrap() == content();
        seen.arrived.lock().unwrap().push((message.name.clone(), right));
    }
}

/// Sends the message once the leader is there.
async fn send(trial: Arc<Trial>, seen: Arc<Seen>, process: Process) {
    let node = process.open(options(&trial, ONE)).unwrap();
    while node.status().unwrap().leader.is_none() || node.status().unwrap().alive.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut stream = node.bulk_stream("lead", "map").unwrap();
    stream.write(&content()).unwrap();
    let began = trial.now();
    let outcome = stream.finish().unwrap().await.map_err(|error| error.to_string());
    *seen.outcome.lock().unwrap() = Some((outcome, trial.now() - began));
    std::future::pending::<()>().await;
}

/// Runs two robots with `paths` paths while `trouble` happens, which begins when some of the message is on its way.
fn run<F: Future<Output = ()>>(
    seed: u64,
    paths: usize,
    before: impl FnOnce(&Trial),
    trouble: impl FnOnce(Arc<Trial>, Arc<Seen>) -> F,
) -> Arc<Seen> {
    let (folder, team) = team();
    let seen: Arc<Seen> = Arc::default();
    let watched = seen.clone();
    let ran = Trial::run(&team, paths, seed, |trial| async move {
        before(&trial);
        let count = watched.clone();
        trial.watch_bulk(move |_, path| _ = count.sent[path].fetch_add(1, Ordering::Relaxed));
        start_receiver(&trial, &watched);
        let (one, its) = (trial.clone(), watched.clone());
        trial
            .machine(ONE)
            .start(|process| async move { send(one, its, process).await });
        let until = async |so: &dyn Fn() -> bool| {
            while !so() && trial.now() < LONG {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        until(&|| watched.sent().iter().sum::<u64>() > 1_500).await;
        trouble(trial.clone(), watched.clone()).await;
        until(&|| watched.outcome.lock().unwrap().is_some()).await;
        // A second copy would arrive soon.
        tokio::time::sleep(Duration::from_secs(10)).await;
    });
    ran.unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    seen
}

fn start_receiver(trial: &Arc<Trial>, seen: &Arc<Seen>) {
    let (lead, its) = (trial.clone(), seen.clone());
    trial
        .machine(LEAD)
        .start(|process| async move { receive(lead, its, process).await });
}

fn unhindered(seed: u64, paths: usize, before: impl FnOnce(&Trial)) -> Arc<Seen> {
    run(seed, paths, before, |_, _| async {})
}

/// A message takes a permit and two answers, which is milliseconds. QUIC once offered the next stream half a second late.
#[test]
fn small_messages_follow_one_another() {
    const MESSAGES: usize = 20;
    let (folder, team) = team();
    let took = Arc::new(Mutex::new(Duration::MAX));
    let its = took.clone();
    let ran = Trial::run(&team, 2, 1, |trial| async move {
        start_receiver(&trial, &Arc::default());
        let one = trial.clone();
        trial.machine(ONE).start(|process| async move {
            let node = process.open(options(&one, ONE)).unwrap();
            while node.status().unwrap().leader.is_none() || node.status().unwrap().alive.len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let began = one.now();
            for _ in 0..MESSAGES {
                let mut stream = node.bulk_stream("lead", "map").unwrap();
                stream.write(&[0; 100]).unwrap();
                stream.finish().unwrap().await.unwrap();
            }
            *its.lock().unwrap() = one.now() - began;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(LONG).await;
    });
    ran.unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let took = *took.lock().unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn two_paths_take_little_more_than_half_as_long() {
    let seen = unhindered(1, 1, |_| ());
    let (alone, needed) = (seen.whole(), seen.sent()[0]);
    let seen = unhindered(1, 2, |_| ());
    let (both, sent) = (seen.whole(), seen.sent());
    assert!(both < alone * 65 / 100, "{both:?}, alone {alone:?}");
    let (least, most) = (sent[0].min(sent[1]), sent[0].max(sent[1]));
    assert!(least * 3 > most, "{sent:?}");
    assert!(
        least + most < needed * 11 / 10,
        "little is sent twice: {sent:?} of {needed}"
    );
}

#[test]
fn a_slow_or_lossy_path_makes_no_message_slower() {
    let alone = unhindered(2, 1, |_| ()).whole().as_secs_f64();
    type Trouble = (&'static str, fn(&Trial));
    let troubles: [Trouble; 3] = [
        ("five times as slow", |trial| trial.slow(1, 5.0)),
        ("fifty times as slow", |trial| trial.slow(1, 50.0)),
        ("loses a third", |trial| trial.lose(1, 0.3)),
    ];
    for (trouble, before) in troubles {
        let both = unhindered(2, 2, before).whole().as_secs_f64();
        assert!(both < 1.05 * alone, "{trouble}: {both}, alone {alone}");
    }
}

#[test]
fn a_message_arrives_whole_and_once_whichever_path_dies() {
    for dead in [0, 1] {
        let seen = run(
            3,
            2,
            |_| (),
            |trial, seen| async move {
                assert!(seen.outcome.lock().unwrap().is_none(), "it is on its way");
                trial.lose(dead, 1.0);
            },
        );
        seen.whole();
        assert!(seen.sent().iter().all(|sent| *sent > 200), "{:?}", seen.sent());
    }
}

#[test]
fn a_message_arrives_when_both_paths_die_and_the_other_one_comes_back() {
    for back in [0, 1] {
        let seen = run(
            4,
            2,
            |_| (),
            |trial, _| async move {
                (0..2).for_each(|path| trial.lose(path, 1.0));
                tokio::time::sleep(Duration::from_secs(8)).await;
                trial.lose(back, 0.0);
            },
        );
        seen.whole();
    }
}

#[test]
fn what_is_on_the_receivers_disk_is_kept_over_restarts_and_checked_after_power_cuts() {
    let needed = unhindered(5, 1, |_| ()).sent()[0];
    for (seed, power) in [(5, false), (6, true), (7, true), (8, true)] {
        let seen = run(
            seed,
            2,
            |_| (),
            |trial, seen| async move {
                assert!(seen.outcome.lock().unwrap().is_none(), "it is on its way");
                if power {
                    trial.machine(LEAD).cut(Duration::from_millis(200)).await;
                    trial.machine(LEAD).switch_on();
                } else {
                    trial.machine(LEAD).kill();
                }
                start_receiver(&trial, &seen);
            },
        );
        seen.whole();
        let sent: u64 = seen.sent().iter().sum();
        assert!(power || sent < needed * 13 / 10, "it was resumed: {sent} of {needed}");
    }
}
