//! Programs of configurable size.

use coorp_core::logical::program::{Connection, FederateId, Program, Reaction, Reactor};
use coorp_core::Duration;

const PERIOD: Duration = Duration::from_millis(10);

/// How reactors depend on each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each reacts to those before it, within the tag.
    Forward,
    /// As before, but every tenth connection leads back, with a delay.
    Feedback,
    /// Each sends to any other within the tag, and reads later what it receives: one zero-delay cycle.
    Mutual,
}

/// Builds a reactor that ticks, and a chain of others in which each reacts to the one before it.
pub fn chain(reactors: usize) -> Program {
    let mut program = one_federate();
    program.reactors.push(source("r0", FederateId(0)));
    for at in 1..reactors {
        let relay = Reactor::new(&format!("r{at}"), FederateId(0))
            .input("in")
            .output("out")
            .reaction(Reaction::new("pass").on("in").effect("out"));
        program.reactors.push(relay);
        connect(&mut program, at - 1, &format!("r{at}.in"));
    }
    program
}

/// Builds a reactor that ticks, and others that all react to it.
pub fn fan_out(reactors: usize) -> Program {
    let mut program = one_federate();
    program.reactors.push(source("r0", FederateId(0)));
    for at in 1..reactors {
        let sink = Reactor::new(&format!("r{at}"), FederateId(0))
            .input("in")
            .reaction(Reaction::new("read").on("in"));
        program.reactors.push(sink);
        connect(&mut program, 0, &format!("r{at}.in"));
    }
    program
}

/// Builds `reactors` with `connections` between them, on one federate, or each on its own.
pub fn mesh(shape: Shape, reactors: usize, connections: usize, one_each: bool) -> Program {
    let mut program = Program {
        federates: (0..if one_each { reactors } else { 1 })
            .map(|at| format!("f{at}"))
            .collect(),
        ..Program::default()
    };
    let federate = |at: usize| FederateId(if one_each { at as u16 } else { 0 });
    program.reactors = (0..reactors)
        .map(|at| source(&format!("r{at}"), federate(at)))
        .collect();
    let mut random = 1u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit.max(1) as u64) as usize
    };
    for number in 0..connections {
        let (one, other) = (below(reactors - 1), below(reactors));
        let to = match shape {
            Shape::Mutual => other,
            Shape::Forward | Shape::Feedback => one + 1 + below(reactors - one - 1),
        };
        let goes_back = shape == Shape::Feedback && number % 10 == 0;
        let (from, to) = if goes_back { (to, one) } else { (one, to) };
        let input = format!("i{number}");
        program.reactors[to].inputs.push(input.clone());
        connect(&mut program, from, &format!("r{to}.{input}"));
        if let Some(back) = program.connections.last_mut().filter(|_| goes_back) {
            back.after = Duration::from_millis(1);
        }
    }
    for reactor in &mut program.reactors {
        if !reactor.inputs.is_empty() {
            let mut join = reactor
                .inputs
                .iter()
                .fold(Reaction::new("join"), |join, input| join.on(input));
            if shape != Shape::Mutual {
                join = join.effect("out");
            }
            reactor.reactions.push(join);
        }
    }
    program
}

fn one_federate() -> Program {
    Program {
        federates: vec!["all".into()],
        ..Program::default()
    }
}

fn source(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .output("out")
        .timer("tick", Duration::ZERO, Some(PERIOD))
        .reaction(Reaction::new("emit").on("tick").effect("out"))
}

fn connect(program: &mut Program, from: usize, to: &str) {
    program.connections.push(Connection::new(&format!("r{from}.out"), to));
}
