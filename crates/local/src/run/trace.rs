//! Records the events of a federate with their times, for a trace viewer such as Perfetto.

use coorp_core::logical::{ElementId, Graph, ReactionId, Tag};
use coorp_core::Instant;
use serde::Serialize;

/// The maximum number of events kept. Later ones are only counted.
const EVENTS_MAX: usize = 1 << 20;

/// An event of a federate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A reaction, or its late handler, ran from this time on.
    Reaction {
        /// The reaction.
        reaction: ReactionId,
        /// The tag.
        tag: Tag,
        /// Whether its deadline had passed.
        late: bool,
        /// The time at which it ended.
        ended: Instant,
    },
    /// A value came from another federate.
    Arrived {
        /// The input.
        input: ElementId,
        /// The tag of the value.
        tag: Tag,
        /// The size.
        bytes: usize,
    },
    /// A value left for other federates.
    Sent {
        /// The output.
        output: ElementId,
        /// The size.
        bytes: usize,
    },
    /// A value came after its tag.
    Violated {
        /// The input.
        input: ElementId,
        /// The intended tag.
        meant: Tag,
    },
    /// The federate may advance up to this tag.
    Granted(Tag),
    /// Everything up to this tag is done and sent.
    Completed(Tag),
}

/// The events of a federate, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    events: Vec<(Instant, Event)>,
    dropped: u64,
}

/// One event in the format that Chrome, Perfetto and Speedscope read.
#[derive(Debug, Serialize)]
pub struct Chrome<'a> {
    name: &'a str,
    /// The category.
    cat: &'static str,
    /// The phase: `X` for a slice, `i` for an instant, `M` for a name.
    ph: &'static str,
    /// The start, in microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u16,
    tid: u32,
    args: Arguments<'a>,
}

#[derive(Debug, Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
}

impl Trace {
    pub(super) fn push(&mut self, at: Instant, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push((at, event));
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the events, each with its time on the program's [`Clock`](super::Clock).
    pub fn events(&self) -> &[(Instant, Event)] {
        &self.events
    }

    /// Returns the number of events for which there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the events for a viewer: federates appear as processes, reactors as threads.
    pub fn chrome<'a>(&'a self, graph: &'a Graph, federate: u16) -> impl Iterator<Item = Chrome<'a>> {
        let reactors = graph.reactors().filter(move |(.., on)| on.0 == federate);
        let label = move |name: &'static str, tid: u32, of: &'a str| Chrome {
            name,
            cat: "",
            ph: "M",
            ts: 0.0,
            dur: None,
            pid: federate,
            tid,
            args: Arguments {
                name: Some(of),
                ..Arguments::default()
            },
        };
        let process = graph
            .federates()
            .get(usize::from(federate))
            .map_or("", |info| info.name.as_str());
        let threads = reactors.map(move |(id, name, _)| label("thread_name", id.0 + 1, name));
        let events = self
            .events
            .iter()
            .map(move |(at, event)| chrome(graph, federate, *at, event));
        [
            label("process_name", 0, process),
            label("thread_name", 0, "coordination"),
        ]
        .into_iter()
        .chain(threads)
        .chain(events)
    }
}

fn chrome<'a>(graph: &'a Graph, pid: u16, at: Instant, event: &Event) -> Chrome<'a> {
    let micros = |at: Instant| at.as_nanos() as f64 / 1e3;
    let of_element = |id: ElementId| {
        let element = graph.element(id);
        element.map_or(("", 0), |element| (element.name.as_str(), element.reactor.0 + 1))
    };
    let mut args = Arguments::default();
    let mut dur = None;
    let (name, cat, tid) = match *event {
        Event::Reaction {
            reaction,
            tag,
            late,
            ended,
        } => {
            let info = graph.reaction(reaction);
            (args.tag, args.late, dur) = (Some(tag.to_string()), Some(late), Some(micros(ended) - micros(at)));
            let (name, tid) = info.map_or(("", 0), |info| (info.name.as_str(), info.reactor.0 + 1));
            (name, if late { "late" } else { "reaction" }, tid)
        }
        Event::Arrived { input, tag, bytes } => {
            (args.tag, args.bytes) = (Some(tag.to_string()), Some(bytes));
            let (name, tid) = of_element(input);
            (name, "arrived", tid)
        }
        Event::Violated { input, meant } => {
            args.tag = Some(meant.to_string());
            let (name, tid) = of_element(input);
            (name, "violation", tid)
        }
        Event::Sent { output, bytes } => {
            args.bytes = Some(bytes);
            let (name, tid) = of_element(output);
            (name, "sent", tid)
        }
        Event::Granted(tag) => {
            args.tag = Some(tag.to_string());
            ("granted", "coordination", 0)
        }
        Event::Completed(tag) => {
            args.tag = Some(tag.to_string());
            ("completed", "coordination", 0)
        }
    };
    let ph = if dur.is_some() { "X" } else { "i" };
    Chrome {
        name,
        cat,
        ph,
        ts: micros(at),
        dur,
        pid,
        tid,
        args,
    }
}
