use super::super::program::{ActionKind, Connection, Reaction, Reactor};
use super::super::reference::{self, Kinds, Random};
use super::super::tests::ms;
use super::*;

const A: FederateId = FederateId(0);
const B: FederateId = FederateId(1);
const C: FederateId = FederateId(2);

fn program(federates: usize, reactors: Vec<Reactor>, connections: Vec<Connection>) -> Program {
    Program {
        federates: (0..federates).map(|n| format!("f{n}")).collect(),
        reactors,
        connections,
    }
}

/// Returns a reactor that passes its input on, within the same tag.
fn relay(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .input("in")
        .output("out")
        .reaction(Reaction::new("pass").on("in").effect("out"))
}

fn source(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .output("out")
        .timer("tick", Duration::ZERO, Some(ms(10)))
        .reaction(Reaction::new("emit").on("tick").effect("out"))
}

fn problems(program: &Program) -> Vec<Problem> {
    Graph::new(program).map_err(|e| e.problems).unwrap_err()
}

#[test]
fn levels_follow_the_order_of_a_reactor_and_the_connections() {
    let join = Reactor::new("join", A)
        .input("left")
        .input("right")
        .reaction(Reaction::new("first").on("left"))
        .reaction(Reaction::new("second").on("right"));
    let graph = Graph::new(&program(
        1,
        vec![source("s", A), relay("r", A), join],
        vec![
            Connection::new("s.out", "r.in"),
            Connection::new("s.out", "join.left"),
            Connection::new("r.out", "join.right"),
        ],
    ))
    .unwrap();
    let level = |name: &str| graph.reaction(graph.find_reaction(name).unwrap()).unwrap().level;
    assert_eq!(
        ["s.emit", "r.pass", "join.first", "join.second"].map(level),
        [0, 1, 1, 2]
    );
    assert_eq!(graph.element(graph.find("join.right").unwrap()).unwrap().level, Some(2));
    assert_eq!(graph.element(graph.find("r.out").unwrap()).unwrap().level, Some(1));
}

#[test]
fn a_causality_cycle_is_shown_whole() {
    let loops = program(
        1,
        vec![source("s", A), relay("a", A), relay("b", A)],
        vec![Connection::new("a.out", "b.in"), Connection::new("b.out", "a.in")],
    );
    let [Problem::CausalityCycle { path }] = &problems(&loops)[..] else {
        panic!("{:?}", problems(&loops));
    };
    assert_eq!(path.first(), path.last());
    let mut around = path[1..].to_vec();
    around.sort();
    assert_eq!(around, ["a.in", "a.out", "a.pass", "b.in", "b.out", "b.pass"]);
    let text = Graph::new(&loops).unwrap_err().to_string();
    assert!(text.contains("a.pass -> a.out -> b.in -> b.pass"), "{text}");
}

#[test]
fn a_delay_or_a_physical_connection_breaks_a_cycle() {
    for back in [
        Connection::new("b.out", "a.in").after(ms(1)),
        Connection::new("b.out", "a.in").physical(),
    ] {
        let broken = program(
            1,
            vec![relay("a", A), relay("b", A)],
            vec![Connection::new("a.out", "b.in"), back],
        );
        assert!(Graph::new(&broken).is_ok());
    }
}

#[test]
fn the_order_within_a_reactor_can_close_a_cycle() {
    let late = Reactor::new("late", A)
        .input("in")
        .output("out")
        .reaction(Reaction::new("read").on("in"))
        .reaction(Reaction::new("write").on_startup().effect("out"));
    let connections = vec![Connection::new("late.out", "r.in"), Connection::new("r.out", "late.in")];
    let found = problems(&program(1, vec![late, relay("r", A)], connections));
    let [Problem::CausalityCycle { path }] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(path.windows(2).any(|w| w == ["late.read", "late.write"]), "{path:?}");
}

#[test]
fn every_problem_is_reported_at_once_and_by_name() {
    let bad = Reactor::new("bad", FederateId(7))
        .input("in")
        .input("in")
        .input("loose")
        .output("out")
        .timer("t", Duration::ZERO, Some(Duration::ZERO))
        .reaction(Reaction::new("idle"))
        .reaction(Reaction::new("odd").on("nothing").on("out").reads("t").effect("in"));
    let connections = vec![
        Connection::new("bad.out", "bad.in"),
        Connection::new("bad.out", "bad.in"),
        Connection::new("bad.in", "bad.out"),
        Connection::new("ghost.out", "bad.ghost"),
    ];
    let error = Graph::new(&program(1, vec![bad], connections)).unwrap_err();
    let text = error.to_string();
    for line in [
        "bad is placed on federate 7, but there are 1",
        "bad.in is defined twice",
        "bad.t has a period of zero",
        "nothing triggers bad.idle",
        "bad.nothing does not exist as a trigger of bad.odd",
        "bad.out is not allowed as a trigger of bad.odd",
        "bad.t is not allowed as a source of bad.odd",
        "bad.in is not allowed as an effect of bad.odd",
        "bad.in is connected to both bad.out and bad.out",
        "bad.in is not allowed as the start of the connection to bad.out",
        "ghost.out does not exist as the start of the connection to bad.ghost",
        "bad.ghost does not exist as the end of the connection from ghost.out",
        "bad.loose is not connected",
    ] {
        assert!(text.contains(line), "missing: {line}\nin:\n{text}");
    }
}

#[test]
fn a_program_that_is_too_large_is_refused_and_reports_stay_short() {
    let reactors = (0..=REACTORS_MAX).map(|n| Reactor::new(&format!("r{n}"), A)).collect();
    let found = problems(&program(1, reactors, vec![]));
    let what = "reactors";
    let (count, max) = (REACTORS_MAX + 1, REACTORS_MAX);
    assert_eq!(found, [Problem::TooMany { what, count, max }]);

    let loose = (0..150).fold(Reactor::new("r", A), |r, n| r.input(&format!("in{n}")));
    let error = Graph::new(&program(1, vec![loose], vec![])).unwrap_err();
    assert_eq!((error.problems.len(), error.more), (PROBLEMS_MAX, 50));
    assert!(error.to_string().ends_with("and 50 more"));
}

/// Builds the path from s on A through the relays on B and C, with these delays of their connections.
fn chain(first: Duration, second: Duration) -> Graph {
    Graph::new(&program(
        3,
        vec![source("s", A), relay("b", B), relay("c", C)],
        vec![
            Connection::new("s.out", "b.in").after(first),
            Connection::new("b.out", "c.in").after(second),
        ],
    ))
    .unwrap()
}

#[test]
fn delays_add_up_along_a_path() {
    let graph = chain(ms(2), ms(3));
    assert_eq!(graph.delay(A, C), Some(Delay::of_connection(ms(5))));
    assert_eq!(graph.delay(B, C), Some(Delay::of_connection(ms(3))));
    assert_eq!(graph.delay(C, A), None);
    let downstream = graph.federate(A).unwrap().downstream.iter();
    assert_eq!(downstream.map(|(to, _)| *to).collect::<Vec<_>>(), [B, C]);
    assert!(graph.federates().iter().all(|federate| federate.cycle.is_none()));
}

#[test]
fn rule_3_the_delay_of_a_path_depends_on_its_direction() {
    // Along the path through b, an action without a delay costs a microstep, which a later delay in time drops.
    let stepping = |name: &str, federate| {
        Reactor::new(name, federate)
            .input("in")
            .output("out")
            .action("again", ActionKind::Logical, Duration::ZERO)
            .reaction(Reaction::new("store").on("in").effect("again"))
            .reaction(Reaction::new("pass").on("again").effect("out"))
    };
    let delay = |first: Duration, second: Duration| {
        let connections = vec![
            Connection::new("s.out", "b.in").after(first),
            Connection::new("b.out", "c.in").after(second),
        ];
        let reactors = vec![source("s", A), stepping("b", B), relay("c", C)];
        Graph::new(&program(3, reactors, connections))
            .unwrap()
            .delay(A, C)
            .unwrap()
    };
    let five = Delay::of_connection(ms(5));
    assert_eq!(delay(ms(5), Duration::ZERO), five.then(Delay::MICROSTEP));
    assert_eq!(delay(Duration::ZERO, ms(5)), five);
}

#[test]
fn the_shortest_of_several_paths_counts_and_a_physical_connection_is_none() {
    let connections = vec![
        Connection::new("s.out", "b.in").after(ms(9)),
        Connection::new("s.out", "c.in").after(ms(20)),
        Connection::new("b.out", "d.in").after(ms(1)),
        Connection::new("c.out", "e.in").physical(),
    ];
    let reactors = vec![
        source("s", A),
        relay("b", B),
        relay("c", B),
        relay("d", C),
        relay("e", C),
    ];
    let graph = Graph::new(&program(3, reactors, connections)).unwrap();
    assert_eq!(graph.delay(A, B), Some(Delay::of_connection(ms(9))));
    assert_eq!(graph.delay(A, C), Some(Delay::of_connection(ms(10))));
    assert_eq!(graph.federate(C).unwrap().physical_delay, Some(Duration::ZERO));
    assert_eq!(graph.federate(B).unwrap().physical_delay, None);
}

#[test]
fn rule_4_zero_delay_cycles_are_found_across_federates() {
    // a asks b and reads the answer in a later reaction: a cycle between federates, but none between reactions.
    let asks = Reactor::new("a", A)
        .input("answer")
        .output("out")
        .timer("tick", Duration::ZERO, Some(ms(10)))
        .reaction(Reaction::new("ask").on("tick").effect("out"))
        .reaction(Reaction::new("read").on("answer"));
    let reactors = vec![asks, relay("b", B), relay("c", C)];
    let connections = |last: Duration| {
        vec![
            Connection::new("a.out", "b.in"),
            Connection::new("b.out", "c.in"),
            Connection::new("c.out", "a.answer").after(last),
        ]
    };
    let graph = Graph::new(&program(3, reactors.clone(), connections(Duration::ZERO))).unwrap();
    assert_eq!([A, B, C].map(|f| graph.federate(f).unwrap().cycle), [Some(0); 3]);
    assert_eq!(
        graph.federate(A).unwrap().cycle_inputs,
        [graph.find("a.answer").unwrap()]
    );
    assert_eq!(graph.delay(A, A), Some(Delay::NONE));

    let graph = Graph::new(&program(3, reactors, connections(ms(1)))).unwrap();
    assert_eq!([A, B, C].map(|f| graph.federate(f).unwrap().cycle), [None; 3]);
    assert_eq!(graph.delay(A, A), Some(Delay::of_connection(ms(1))));
}

#[test]
fn traffic_both_ways_that_does_not_meet_is_no_path_but_may_be_a_wait() {
    // Both federates send to each other at the same tag; neither message causes another one.
    let both = |name: &str, federate| {
        source(name, federate)
            .input("in")
            .reaction(Reaction::new("read").on("in"))
    };
    let connections = vec![Connection::new("a.out", "b.in"), Connection::new("b.out", "a.in")];
    let graph = Graph::new(&program(2, vec![both("a", A), both("b", B)], connections)).unwrap();
    assert_eq!(graph.delay(A, A), None);
    assert_eq!(graph.delay(A, B), Some(Delay::NONE));
    assert_eq!([A, B].map(|f| graph.federate(f).unwrap().cycle), [Some(0); 2]);
}

/// Computes delays by definition: step by step from each federate's reactions, until no delay becomes shorter.
fn delays_by_definition(graph: &Graph, from: FederateId) -> BTreeMap<FederateId, Delay> {
    let (mut reactions, mut elements, mut arrivals) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (at, reaction) in graph.reactions().iter().enumerate() {
        if reaction.federate == from {
            reactions.insert(ReactionId(at as u32), Delay::NONE);
        }
    }
    fn lower<K: Ord>(known: &mut BTreeMap<K, Delay>, at: K, delay: Delay) -> bool {
        let is_less = known.get(&at).is_none_or(|known| delay < *known);
        if is_less {
            known.insert(at, delay);
        }
        is_less
    }
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for (reaction, delay) in reactions.clone() {
            for effect in &graph.reaction(reaction).unwrap().effects {
                let step = match graph.element(*effect).unwrap().kind {
                    ElementKind::Logical(delay_min) => Delay::of_action(delay_min),
                    ElementKind::Physical(_) => Delay::MICROSTEP,
                    _ => Delay::NONE,
                };
                changed |= lower(&mut elements, *effect, delay.then(step));
            }
        }
        for (id, delay) in elements.clone() {
            let element = graph.element(id).unwrap();
            for reaction in &element.triggers {
                changed |= lower(&mut reactions, *reaction, delay);
            }
            for link in &element.to {
                let crosses = link.federate != element.federate;
                if link.physical && crosses {
                    continue;
                }
                let step = if link.physical { Delay::MICROSTEP } else { link.delay() };
                changed |= lower(&mut elements, link.other, delay.then(step));
                if crosses {
                    lower(&mut arrivals, link.federate, delay.then(step));
                }
            }
        }
    }
    arrivals
}

#[test]
fn delays_and_cycles_are_as_defined() {
    let mut with_cycles = 0;
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let kinds = Kinds {
            federates: 2 + random.below(6) as u16,
            physical_actions: random.one_in(2),
            physical_connections: random.one_in(2),
            shutdown: true,
            periodic: true,
        };
        let graph = Graph::new(&reference::random_program(&mut random, kinds)).unwrap();
        let ids: Vec<_> = graph.federate_ids().collect();
        for from in &ids {
            let defined = delays_by_definition(&graph, *from);
            let downstream: Vec<_> = defined.clone().into_iter().collect();
            assert_eq!(graph.federate(*from).unwrap().downstream, downstream, "seed {seed}");
            for to in &ids {
                assert_eq!(graph.delay(*from, *to), defined.get(to).copied(), "seed {seed}");
            }
        }
        // Whether one waits for another at the same tag, over any number of federates.
        let direct = |from: FederateId, to| graph.delay(from, to) == Some(Delay::NONE);
        let mut waits: Vec<Vec<_>> = ids
            .iter()
            .map(|from| ids.iter().map(|to| direct(*from, *to)).collect())
            .collect();
        for over in 0..ids.len() {
            for from in 0..ids.len() {
                for to in 0..ids.len() {
                    waits[from][to] |= waits[from][over] && waits[over][to];
                }
            }
        }
        for (one, row) in waits.iter().enumerate() {
            let cycle = |at: usize| graph.federates()[at].cycle;
            assert_eq!(cycle(one).is_some(), row[one], "seed {seed}");
            with_cycles += usize::from(row[one]);
            for (other, waits_for) in row.iter().enumerate() {
                let together = *waits_for && waits[other][one];
                let same = cycle(one).is_some() && cycle(one) == cycle(other);
                assert_eq!(same, together, "seed {seed}: {one} and {other}");
            }
        }
    }
    assert!(with_cycles > 100, "{with_cycles}");
}
