//! Whole programs under coordination, compared with the single-threaded reference.

use super::reference::{self, Kinds, Random};
use super::world::{Scenario, World};
use super::*;
use crate::{Duration, Instant};
use proptest::prelude::*;
use std::sync::Arc;

const MS: u64 = 1_000_000;

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

pub(super) fn tag(time: u64, microstep: u32) -> Tag {
    Tag::at(ms(time), microstep)
}

/// Returns the number of violations, and how many of them a reaction handled.
fn random_run(seed: u64, adjust: impl Fn(&mut Random, &mut Kinds, &mut Scenario)) -> Result<(usize, usize), String> {
    let mut random = Random::new(seed);
    let mut kinds = Kinds {
        federates: 1 + random.below(4) as u16,
        physical_actions: false,
        physical_connections: false,
        shutdown: true,
        periodic: true,
    };
    let mut scenario = Scenario {
        fast: random.one_in(2),
        delay_max_ns: [0, MS, 20 * MS][random.below(3) as usize],
        reaction_max_ns: [0, MS][random.below(2) as usize],
        clock_error_ns: [0, 3 * MS][random.below(2) as usize],
        deaths: 0,
        new_rtis: 0,
        rtis_survive: false,
        stop_at_ns: 40 * MS,
        somebody_asks: true,
        timeout: None,
        offsets: None,
    };
    adjust(&mut random, &mut kinds, &mut scenario);
    if scenario.fast {
        // Federates without upstream federates run far ahead meanwhile.
        scenario.stop_at_ns /= 4;
        scenario.delay_max_ns = scenario.delay_max_ns.min(MS);
    }
    let program = reference::random_program(&mut random, kinds);
    let graph = Arc::new(Graph::new(&program).map_err(|e| e.to_string())?);
    let limit = scenario.timeout.map(|time| Tag::at(time, 0));
    let end = limit.or_else(|| reference::end(&graph).filter(|_| !kinds.periodic));
    // A program that runs forever ends only on request.
    scenario.somebody_asks |= end.is_none() || (scenario.offsets.is_some() && has_loop(&graph));
    let outcome = World::new(Arc::clone(&graph), scenario, random)
        .run()
        .map_err(|e| format!("{scenario:?} {e}"))?;
    let by_itself = !scenario.somebody_asks && scenario.deaths == 0 && outcome.violations == 0;
    if by_itself && end != Some(outcome.stop) {
        return Err(format!("{scenario:?} ends at {} and not {end:?}", outcome.stop));
    }
    let expected = reference::run(&graph, outcome.stop, &outcome.given);
    let waits = scenario.offsets.is_some_and(|(_, offset)| offset.is_none());
    let in_cycles = graph.federates().iter().any(|federate| federate.cycle.is_some());
    if outcome.violations > 0 && waits && !in_cycles && scenario.deaths == 0 {
        return Err(format!("{scenario:?} a violation without an offset\n{program:#?}"));
    }
    if outcome.records == expected {
        return Ok((outcome.violations, outcome.handled));
    }
    let pairs = outcome.records.iter().zip(&expected);
    let at = pairs.take_while(|(a, b)| a == b).count();
    let show = |record: Option<&reference::Record>| {
        record.map(|(tag, reaction, hash)| format!("{tag} {} {hash:x}", graph.reaction(*reaction).unwrap().name))
    };
    Err(format!(
        "{scenario:?} sent {:?} stop {} deaths {:?} takeovers {}\nat {at} of {} and {}: {:?} and not {:?}\n{program:#?}",
        outcome.counts,
        outcome.stop,
        outcome.given.deaths.keys(),
        outcome.takeovers,
        outcome.records.len(),
        expected.len(),
        show(outcome.records.get(at)),
        show(expected.get(at)),
    ))
}

/// Returns whether messages of some federate can return to it. Then decentralised federates promise each other a little
/// more forever.
fn has_loop(graph: &Graph) -> bool {
    let count = graph.federates().len();
    let mut reaches = vec![vec![false; count]; count];
    for element in graph.elements() {
        for link in element
            .to
            .iter()
            .filter(|link| link.federate != element.federate && !link.physical)
        {
            reaches[usize::from(element.federate.0)][usize::from(link.federate.0)] = true;
        }
    }
    for over in 0..count {
        for from in 0..count {
            for to in 0..count {
                reaches[from][to] |= reaches[from][over] && reaches[over][to];
            }
        }
    }
    (0..count).any(|at| reaches[at][at])
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn many_federates_do_what_the_reference_does(seed in any::<u64>()) {
        let result = random_run(seed, |_, _, _| {});
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn physical_events_keep_their_tags_everywhere(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            kinds.physical_actions = true;
            kinds.physical_connections = random.one_in(2);
            scenario.fast = random.one_in(4);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_new_rti_takes_nothing_back_and_loses_nothing(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            kinds.physical_actions = random.one_in(2);
            scenario.new_rtis = 1 + random.below(3);
            scenario.rtis_survive = random.one_in(2);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_death_cuts_what_the_dead_sent_and_nothing_else(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            kinds.federates = 2 + random.below(3) as u16;
            kinds.physical_actions = random.one_in(2);
            scenario.deaths = 1 + random.below(2);
            scenario.new_rtis = random.below(2);
            scenario.rtis_survive = random.one_in(2);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_program_without_events_ends_by_itself(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            kinds.periodic = false;
            scenario.somebody_asks = random.one_in(4);
            scenario.deaths = random.below(2);
            scenario.new_rtis = random.below(3);
            scenario.rtis_survive = random.one_in(2);
            scenario.stop_at_ns /= [1, 8][random.below(2) as usize];
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_program_ends_at_its_time_limit_unless_somebody_asks_before(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            kinds.periodic = random.one_in(2);
            kinds.physical_actions = random.one_in(2);
            scenario.timeout = Some(Duration::from_millis(random.below(12)));
            scenario.somebody_asks = random.one_in(2);
            scenario.deaths = random.below(2);
            scenario.new_rtis = random.below(3);
            scenario.rtis_survive = random.one_in(2);
            scenario.stop_at_ns /= [1, 4, 8][random.below(3) as usize];
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn decentralised_federates_do_what_the_reference_does_with_what_came_in_time(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            decentralise(random, scenario);
            kinds.physical_actions = random.one_in(3);
            scenario.timeout = random.one_in(2).then(|| Duration::from_millis(random.below(12)));
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_decentralised_program_without_events_ends_by_itself(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            decentralise(random, scenario);
            kinds.periodic = false;
            scenario.somebody_asks = random.one_in(4);
            scenario.deaths = random.below(2);
            scenario.new_rtis = random.below(3);
            scenario.rtis_survive = random.one_in(2);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn decentralised_federates_notice_nothing_of_a_new_rti(seed in any::<u64>()) {
        let result = random_run(seed, |random, _, scenario| {
            decentralise(random, scenario);
            scenario.new_rtis = 1 + random.below(3);
            scenario.rtis_survive = random.one_in(2);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn decentralised_federates_go_on_and_end_together_when_one_dies(seed in any::<u64>()) {
        let result = random_run(seed, |random, kinds, scenario| {
            decentralise(random, scenario);
            kinds.federates = 2 + random.below(3) as u16;
            scenario.deaths = 1 + random.below(2);
            scenario.new_rtis = random.below(3);
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

/// Makes a scenario decentralised. Members of zero-delay cycles have an offset; others may wait forever.
fn decentralise(random: &mut Random, scenario: &mut Scenario) {
    let offset = Duration::from_millis(random.below(12));
    scenario.offsets = Some((offset, Some(offset).filter(|_| random.one_in(2))));
}

/// The properties above would also hold if every run had a violation.
#[test]
fn decentralised_runs_with_and_without_violations_both_occur() {
    let runs = 100;
    let run = |seed| random_run(seed, |random, _, scenario| decentralise(random, scenario)).unwrap();
    let outcomes: Vec<_> = (0..runs).map(run).collect();
    let violated = outcomes.iter().filter(|(violations, _)| *violations > 0).count();
    let handled = outcomes.iter().filter(|(_, handled)| *handled > 0).count();
    assert!((3..60).contains(&violated), "{violated} of {runs}");
    assert!(handled > 1, "{handled} of {runs}");
}
