use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const WIDE: u64 = 64 << 20;

impl Spread {
    fn check(&self) {
        let segments = 0..self.there.len();
        let free = segments.clone().filter(|segment| self.is_free(*segment));
        assert_eq!(self.free as usize, free.clone().count());
        assert!(free.clone().min().is_none_or(|first| self.next <= first));
        assert_eq!(
            self.missing as usize,
            self.there.iter().filter(|there| !**there).count()
        );
        for (path, ahead) in self.ahead.iter().enumerate() {
            let carries = self.carried.iter().filter(|carried| **carried & 1 << path != 0).count();
            assert_eq!(carries, ahead.unwrap_or(0) as usize);
            assert!(carries <= ALONE_MAX as usize);
        }
        for segment in segments {
            assert!(!self.there[segment] || self.carried[segment] == 0);
        }
    }
}

/// Returns a message of this many segments that has begun over these paths.
fn begun(segments: u32, paths: &[usize]) -> Spread {
    let mut spread = Spread::new(u64::from(segments) * SEGMENT_BYTES);
    paths.iter().for_each(|path| spread.begin(*path, 1, &[]));
    spread
}

fn run(first: u32, count: u32) -> Run {
    Run { first, count }
}

#[test]
fn the_last_segment_may_be_shorter_and_a_message_may_have_none() {
    assert_eq!((segments_of(0), segments_of(1), segments_of(SEGMENT_BYTES)), (0, 1, 1));
    assert_eq!(segments_of(SEGMENT_BYTES + 1), 2);
    assert_eq!(run(1, 2).bytes(SEGMENT_BYTES + 5), SEGMENT_BYTES..SEGMENT_BYTES + 5);
    let mut empty = begun(0, &[0]);
    assert!(empty.is_whole() && empty.take(0, WIDE).is_none());
}

#[test]
fn the_only_path_takes_everything_in_order() {
    let mut spread = begun(10, &[0]);
    let taken: Vec<Run> = std::iter::from_fn(|| spread.take(0, 0)).collect();
    assert_eq!(taken, [run(0, 4), run(4, 4), run(8, 2)]);
    taken.into_iter().for_each(|run| spread.on_arrived(1, run));
    assert!(spread.is_whole() && !spread.is_worth_another());
}

#[test]
fn of_several_paths_each_takes_as_it_has_room() {
    let mut spread = begun(1_000, &[0, 1]);
    let taken = |spread: &mut Spread, path, window| {
        let runs = std::iter::from_fn(|| spread.take(path, window));
        runs.map(|run| run.count).sum::<u32>()
    };
    assert_eq!(taken(&mut spread, 1, 0), AHEAD_MIN);
    assert_eq!(taken(&mut spread, 0, 5 * SEGMENT_BYTES), 10);
    assert_eq!(taken(&mut spread, 0, u64::MAX), AHEAD_MAX - 10);
    spread.on_arrived(1, run(0, 1));
    assert_eq!(spread.take(1, 0), Some(run(66, 1)), "the next, and not more");
    spread.lose(0);
    assert_eq!(spread.take(1, 0), Some(run(2, 4)), "what the lost path carried");
}

#[test]
fn who_has_nothing_left_repeats_the_last_of_the_others() {
    let mut spread = begun(6, &[0, 1]);
    assert_eq!(spread.take(1, WIDE), Some(run(0, 4)));
    assert_eq!(spread.take(0, WIDE), Some(run(4, 2)));
    assert_eq!(spread.take(0, WIDE), None, "it has its own to send");
    spread.on_arrived(1, run(4, 1));
    assert_eq!(spread.take(0, WIDE), Some(run(3, 1)));
    assert_eq!(spread.take(0, WIDE), None, "that is enough for now");
    spread.on_arrived(1, run(3, 3));
    assert_eq!(spread.take(0, WIDE), Some(run(2, 1)));
    spread.on_arrived(1, run(0, 6));
    assert!(spread.is_whole());
    assert_eq!((spread.take(0, WIDE), spread.take(1, WIDE)), (None, None));
}

#[test]
fn what_a_receiver_told_before_its_restart_no_longer_counts() {
    let mut spread = begun(4, &[0, 1]);
    spread.take(0, WIDE);
    spread.on_arrived(1, run(0, 3));
    assert!(spread.has(1, 2) && !spread.has(2, 2) && !spread.has(1, 3));
    spread.begin(0, 2, &[0]);
    assert!(spread.is_begun(0, 2) && !spread.is_begun(1, 1) && !spread.is_begun(1, 2));
    spread.on_arrived(1, run(1, 3));
    assert_eq!((spread.arrived(), spread.take(1, WIDE)), (1, None));
    assert_eq!(spread.take(0, WIDE), Some(run(1, 3)));
}

/// A slow path never costs time: with each byte on the best path as slow as before, the message ends no later than over
/// that path alone.
#[test]
fn a_slow_path_makes_no_message_slower() {
    for slowness in [1, 3, 10, 1_000] {
        let took = |paths: &[usize]| {
            let mut spread = begun(100, paths);
            let mut queues = [VecDeque::new(), VecDeque::new()];
            for tick in 1.. {
                for path in paths {
                    while let Some(run) = spread.take(*path, 0) {
                        queues[*path].extend(run.segments());
                    }
                    if *path == 0 || tick % slowness == 0 {
                        if let Some(segment) = queues[*path].pop_front() {
                            spread.on_arrived(1, run(segment, 1));
                        }
                    }
                }
                if spread.is_whole() {
                    return tick;
                }
            }
            unreachable!()
        };
        let (alone, both) = (took(&[0]), took(&[0, 1]));
        assert_eq!(alone, 100);
        assert!(both <= alone, "{slowness}: {both}");
        if slowness == 1 {
            assert!(both <= 52, "two equal paths take half as long: {both}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin(usize),
    Take(usize, u64),
    /// The oldest run of a path arrives, and its sender hears of it or not.
    Arrive(usize, bool),
    Lose(usize),
    /// The receiver restarts, and keeps the segments whose numbers this does not divide.
    Restart(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let path = || 0usize..3;
    prop_oneof![
        2 => path().prop_map(Step::Begin),
        6 => (path(), 0..4 * SEGMENT_BYTES).prop_map(|(path, window)| Step::Take(path, window)),
        6 => (path(), any::<bool>()).prop_map(|(path, heard)| Step::Arrive(path, heard)),
        1 => path().prop_map(Step::Lose),
        1 => (1u32..5).prop_map(Step::Restart),
    ]
}

/// A receiver, and the runs on their way to it.
struct World {
    spread: Spread,
    record: u64,
    has: Vec<bool>,
    /// By path: the record under which it was begun, and its runs, in order.
    under_way: [Option<(u64, VecDeque<Run>)>; 3],
}

impl World {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Begin(path) => {
                let has: Vec<u32> = (0u32..)
                    .zip(&self.has)
                    .filter(|(_, has)| **has)
                    .map(|(at, _)| at)
                    .collect();
                self.spread.begin(path, self.record, &has);
                self.under_way[path] = Some((self.record, VecDeque::new()));
            }
            Step::Take(path, window) => {
                let Some((record, runs)) = &mut self.under_way[path] else {
                    return;
                };
                if !self.spread.is_begun(path, *record) {
                    // Its driver begins it anew.
                    self.under_way[path] = None;
                    return;
                }
                if let Some(run) = self.spread.take(path, window) {
                    assert!(run.count > 0 && run.count <= RUN_MAX);
                    assert!(run.segments().all(|segment| !self.spread.has(*record, segment)));
                    runs.push_back(run);
                }
            }
            Step::Arrive(path, heard) => {
                let Some((record, runs)) = &mut self.under_way[path] else {
                    return;
                };
                let Some(run) = runs.pop_front().filter(|_| *record == self.record) else {
                    return;
                };
                run.segments().for_each(|segment| self.has[segment as usize] = true);
                if heard {
                    self.spread.on_arrived(*record, run);
                } else {
                    self.apply(Step::Lose(path));
                }
            }
            Step::Lose(path) => {
                self.under_way[path] = None;
                self.spread.lose(path);
            }
            Step::Restart(lost) => {
                self.record += 1;
                for (segment, has) in (0u32..).zip(&mut self.has) {
                    *has &= segment % lost != 0;
                }
            }
        }
        self.spread.check();
    }
}

proptest! {
    /// Whatever arrives, is lost and restarts: nothing is believed that the receiver has not, and one path that works
    /// makes the message whole.
    #[test]
    fn every_segment_arrives(segments in 0u32..200, steps in prop::collection::vec(step(), 0..200)) {
        let mut world = World {
            spread: Spread::new(u64::from(segments) * SEGMENT_BYTES),
            record: 1,
            has: vec![false; segments as usize],
            under_way: [None, None, None],
        };
        for step in steps {
            world.apply(step);
            for (segment, has) in (0u32..).zip(&world.has) {
                prop_assert!(*has || !world.spread.has(world.record, segment), "{} is not there", segment);
            }
        }
        world.apply(Step::Begin(0));
        for _ in 0..=segments {
            world.apply(Step::Take(0, 0));
            world.apply(Step::Arrive(0, true));
        }
        prop_assert!(world.spread.is_whole() && world.has.iter().all(|has| *has));
    }
}
