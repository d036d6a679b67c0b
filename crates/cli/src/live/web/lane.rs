//! From what one robot did and noticed to the spans of its lane, as the report draws them.
//!
//! A span is done once its end is known. One that is not done is shown too, each time anew: an open one lasts until what is
//! known of the robot ends. Times are milliseconds on the page's clock.
//!
//! Streams have no spans, but changes ([`Edge`]). Each span of a permit, window or hold that begins or ends is one.

use std::collections::BTreeMap;

use coorp_core::robot::Seen;
use coorp_core::RobotId;
use serde::{Serialize, Serializer};

/// The kinds of spans, as the script names them (`assets/charts.js`).
pub const PERMIT: &str = "permit";
pub const WINDOW: &str = "window";
pub const HOLD: &str = "hold";
pub const BULK: &str = "bulk";
pub const CONTROL: &str = "control";
pub const LOOP: &str = "loop";

/// A span: start, end and the number of its packets.
pub type Span = (f64, f64, u32);

/// A change of what a robot may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edge {
    /// Bulk may be sent from now on, or no longer.
    Permit(bool),
    /// A window begins, with the milliseconds that it is planned to take, or ends.
    Window(Option<f64>),
    /// The gate of a path holds bulk for a window, or passes it.
    Hold { path: u8, holds: bool },
    /// The leader from now on.
    Led(Option<RobotId>),
}

/// One robot's lane.
#[derive(Debug, Default)]
pub struct Lane {
    /// Until when it is known what the robot did.
    until: f64,
    permitted: Option<f64>,
    /// Start and planned end.
    window: Option<(f64, f64)>,
    /// Whether the beginning of the window was told as an edge.
    in_window: bool,
    /// By path, since when the gate holds bulk for a window, and until when it is planned to.
    held: BTreeMap<u8, (f64, f64)>,
    done: Done,
}

/// Activity since it was last taken.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Done {
    /// By kind.
    #[serde(serialize_with = "columns")]
    pub spans: BTreeMap<&'static str, Vec<Span>>,
    /// Control that arrived: when, its age, and its sender.
    #[serde(serialize_with = "rounded_ages")]
    pub ages: Vec<(f64, f64, u16)>,
    /// The number of control messages that arrived, whether or not their age is known.
    pub arrived: u32,
    /// The changes, each with its time. Those of one kind are in order.
    #[serde(skip)]
    pub edges: Vec<(f64, Edge)>,
}

/// Rounded to the microsecond.
pub fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// Spans as one row of numbers: start, end and count of each.
fn columns<S: Serializer>(spans: &BTreeMap<&'static str, Vec<Span>>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(spans.iter().map(|(kind, spans)| {
        let flat = spans
            .iter()
            .flat_map(|(start, end, count)| [rounded(*start), rounded(*end), f64::from(*count)]);
        (kind, flat.collect::<Vec<f64>>())
    }))
}

/// Ages with rounded times.
fn rounded_ages<S: Serializer>(ages: &[(f64, f64, u16)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ages.iter().map(|(at, age, from)| (rounded(*at), rounded(*age), *from)))
}

impl Lane {
    /// Something happened at a time.
    pub fn on_seen(&mut self, at: f64, seen: Seen) {
        let ago = |us: u32| at - f64::from(us) / 1e3;
        match seen {
            Seen::Permitted(true) => {
                if self.permitted.is_none() {
                    self.permitted = Some(at);
                    self.edge(at, Edge::Permit(true));
                }
            }
            Seen::Permitted(false) => {
                // Told at the beginning too, when nothing was known before.
                self.end_permit(at);
                // The gate is not asked any more.
                self.end_holds(at);
            }
            Seen::Window(window) => self.on_window(at, window),
            Seen::Gate { path, held_us } => {
                // One whose window has ended is over, although the gate is asked later.
                let known = self.held.remove(&path);
                let held = known.filter(|(_, end)| held_us.is_some() && at <= *end);
                if held.is_none() {
                    self.end_hold(path, known, at);
                }
                if let Some(held_us) = held_us {
                    let since = held.map_or(at, |(since, _)| since);
                    self.held.insert(path, (since, at + f64::from(held_us) / 1e3));
                    if held.is_none() {
                        self.edge(at, Edge::Hold { path, holds: true });
                    }
                }
            }
            Seen::Control { took_us, .. } => self.add(CONTROL, (ago(took_us), at, 1)),
            Seen::Bulk { took_us, packets, .. } => self.add(BULK, (ago(took_us), at, packets)),
            Seen::Loop { took_us } => self.add(LOOP, (ago(took_us), at, 0)),
            Seen::Arrived { from, age_us, .. } => {
                self.done.arrived += 1;
                self.done
                    .ages
                    .extend(age_us.map(|age| (at, f64::from(age) / 1e3, from.0)));
            }
            // The page shows it from the status.
            Seen::Led(leader) => self.edge(at, Edge::Led(leader)),
        }
    }

    /// From now on, another window counts. One that has not begun is forgotten; one that goes on is the same.
    fn on_window(&mut self, at: f64, window: Option<(i32, u32)>) {
        let before = self.window.filter(|(start, _)| *start < at);
        self.window = window.map(|(ahead, length)| {
            let start = at + f64::from(ahead) / 1e3;
            (start, start + f64::from(length) / 1e3)
        });
        let Some(before) = before else { return };
        match self.window.as_mut().filter(|new| new.0 <= at && at <= before.1) {
            Some(new) => new.0 = before.0,
            None => self.end_window(before, at),
        }
    }

    /// Everything until this time is known.
    pub fn on_until(&mut self, until: f64) {
        self.until = self.until.max(until);
        match self.window {
            Some(window) if window.1 <= until => {
                self.window = None;
                self.end_window(window, until);
            }
            Some(window) if window.0 <= until => self.begin_window(window),
            _ => {}
        }
        let over: Vec<u8> = self
            .held
            .iter()
            .filter(|(_, held)| held.1 <= until)
            .map(|(path, _)| *path)
            .collect();
        for path in over {
            let held = self.held.remove(&path);
            self.end_hold(path, held, until);
        }
    }

    /// A window counts as begun. What it is extended by later is not told.
    fn begin_window(&mut self, (start, end): (f64, f64)) {
        if !self.in_window {
            self.in_window = true;
            self.edge(start, Edge::Window(Some(end - start)));
        }
    }

    /// A window that has begun ends as planned, but not after `at`.
    fn end_window(&mut self, (start, end): (f64, f64), at: f64) {
        self.begin_window((start, end));
        self.in_window = false;
        let end = end.min(at);
        self.edge(end, Edge::Window(None));
        self.end(WINDOW, Some(start), end);
    }

    /// A hold ends as planned, but not after `at`.
    fn end_hold(&mut self, path: u8, held: Option<(f64, f64)>, at: f64) {
        if let Some((since, end)) = held {
            let end = end.min(at);
            self.edge(end, Edge::Hold { path, holds: false });
            self.end(HOLD, Some(since), end);
        }
    }

    fn end_permit(&mut self, at: f64) {
        let since = self.permitted.take();
        self.edge(at, Edge::Permit(false));
        self.end(PERMIT, since, at);
    }

    /// Nothing is held any more.
    fn end_holds(&mut self, at: f64) {
        for (path, held) in std::mem::take(&mut self.held) {
            self.end_hold(path, Some(held), at);
        }
    }

    /// Something is not known: what was open ends where the knowledge ends.
    pub fn lose(&mut self) {
        let until = self.until;
        if self.permitted.is_some() {
            self.end_permit(until);
        }
        self.end_holds(until);
        if let Some(window) = self.window.take().filter(|(start, _)| *start < until) {
            self.end_window(window, until);
        }
    }

    /// Until when everything is known.
    pub fn until(&self) -> f64 {
        self.until
    }

    /// The spans that are not done: kind, start, and the end if that is planned.
    pub fn open(&self) -> Vec<(&'static str, f64, Option<f64>)> {
        let permitted = self.permitted.map(|since| (PERMIT, since, None));
        let window = self.window.map(|(start, end)| (WINDOW, start, Some(end)));
        let held = self.held.values().map(|(since, end)| (HOLD, *since, Some(*end)));
        permitted.into_iter().chain(window).chain(held).collect()
    }

    /// Activity since the last call.
    pub fn take(&mut self) -> Done {
        std::mem::take(&mut self.done)
    }

    fn end(&mut self, kind: &'static str, since: Option<f64>, at: f64) {
        if let Some(since) = since.filter(|since| *since <= at) {
            self.add(kind, (since, at, 0));
        }
    }

    fn edge(&mut self, at: f64, edge: Edge) {
        self.done.edges.push((at, edge));
    }

    fn add(&mut self, kind: &'static str, span: Span) {
        self.done.spans.entry(kind).or_default().push(span);
    }
}

#[cfg(test)]
mod tests {
    use coorp_core::RobotId;

    use super::*;

    fn spans(lane: &mut Lane, kind: &str) -> Vec<Span> {
        lane.take().spans.remove(kind).unwrap_or_default()
    }

    fn edges(lane: &mut Lane) -> Vec<(f64, Edge)> {
        let mut edges = lane.take().edges;
        edges.sort_by(|one, other| one.0.total_cmp(&other.0));
        edges
    }

    fn gate(path: u8, held_us: Option<u32>) -> Seen {
        Seen::Gate { path, held_us }
    }

    #[test]
    fn what_is_not_done_is_open_until_it_is() {
        let mut lane = Lane::default();
        lane.on_seen(10.0, Seen::Permitted(true));
        lane.on_seen(11.0, Seen::Permitted(true));
        lane.on_seen(12.0, gate(0, Some(6_000)));
        lane.on_seen(13.0, gate(1, Some(20_000)));
        lane.on_until(14.0);
        let open = [(PERMIT, 10.0, None), (HOLD, 12.0, Some(18.0)), (HOLD, 13.0, Some(33.0))];
        assert_eq!(lane.open(), open);
        // The window is longer, and then shorter.
        lane.on_seen(14.5, gate(0, Some(8_000)));
        lane.on_seen(15.0, gate(0, None));
        lane.on_seen(16.0, gate(0, None));
        lane.on_seen(20.0, Seen::Permitted(false));
        assert!(lane.open().is_empty(), "without a permit, the gate is not asked");
        let done = lane.take();
        assert_eq!(done.spans[HOLD], [(12.0, 15.0, 0), (13.0, 20.0, 0)]);
        assert_eq!(done.spans[PERMIT], [(10.0, 20.0, 0)]);
        assert_eq!(lane.take(), Done::default());
        // There is no more bulk that would ask.
        lane.on_seen(30.0, gate(0, Some(2_000)));
        lane.on_until(40.0);
        assert_eq!(spans(&mut lane, HOLD), [(30.0, 32.0, 0)]);
        // A busy machine asks long after.
        lane.on_seen(50.0, gate(0, Some(2_000)));
        lane.on_seen(60.0, gate(0, Some(3_000)));
        lane.on_seen(70.0, gate(0, None));
        assert_eq!(spans(&mut lane, HOLD), [(50.0, 52.0, 0), (60.0, 63.0, 0)]);
    }

    #[test]
    fn a_window_that_is_replaced_before_it_begins_never_was() {
        let mut lane = Lane::default();
        lane.on_seen(0.0, Seen::Window(Some((5_000, 4_000))));
        lane.on_seen(3.0, Seen::Window(Some((3_000, 4_000))));
        assert_eq!(lane.open(), [(WINDOW, 6.0, Some(10.0))]);
        // Early release at 8, and the next one.
        lane.on_seen(8.0, Seen::Window(Some((20_000, 4_000))));
        assert_eq!(spans(&mut lane, WINDOW), [(6.0, 8.0, 0)]);
        // It is extended while it goes on: still one.
        lane.on_seen(29.0, Seen::Window(Some((-1_000, 6_000))));
        lane.on_until(33.0);
        assert!(spans(&mut lane, WINDOW).is_empty());
        lane.on_until(40.0);
        assert_eq!(spans(&mut lane, WINDOW), [(28.0, 34.0, 0)]);
        // Its end has passed before the next was planned.
        lane.on_seen(40.0, Seen::Window(Some((1_000, 2_000))));
        lane.on_seen(50.0, Seen::Window(None));
        assert_eq!(spans(&mut lane, WINDOW), [(41.0, 43.0, 0)]);
        assert!(lane.open().is_empty());
    }

    #[test]
    fn what_is_lost_ends_where_the_knowledge_does() {
        let mut lane = Lane::default();
        lane.on_seen(1.0, Seen::Permitted(true));
        lane.on_seen(2.0, gate(0, Some(50_000)));
        lane.on_seen(2.0, Seen::Window(Some((0, 100_000))));
        lane.on_until(9.0);
        lane.lose();
        let done = lane.take().spans;
        assert_eq!(done[PERMIT], [(1.0, 9.0, 0)]);
        assert_eq!(done[HOLD], [(2.0, 9.0, 0)]);
        assert_eq!(done[WINDOW], [(2.0, 9.0, 0)]);
        assert!(lane.open().is_empty());
    }

    #[test]
    fn what_took_a_time_began_before() {
        let mut lane = Lane::default();
        let (flow, took_us) = (0, 2_500);
        lane.on_seen(50.0, Seen::Control { flow, took_us });
        lane.on_seen(60.0, Seen::Loop { took_us: 30_000 });
        let (path, packets) = (0, 7);
        lane.on_seen(70.0, Seen::Bulk { path, took_us, packets });
        let from = RobotId(3);
        for age_us in [Some(4_000), None] {
            lane.on_seen(80.0, Seen::Arrived { from, flow, age_us });
        }
        let done = lane.take();
        assert_eq!(done.spans[CONTROL], [(47.5, 50.0, 1)]);
        assert_eq!(done.spans[LOOP], [(30.0, 60.0, 0)]);
        assert_eq!(done.spans[BULK], [(67.5, 70.0, 7)]);
        assert_eq!((done.ages.as_slice(), done.arrived), (&[(80.0, 4.0, 3)][..], 2));
    }

    #[test]
    fn each_span_that_counts_begins_and_ends_once_for_streams() {
        let mut lane = Lane::default();
        lane.on_seen(0.0, Seen::Led(Some(RobotId(1))));
        lane.on_seen(1.0, Seen::Permitted(false));
        lane.on_seen(2.0, Seen::Permitted(true));
        lane.on_seen(2.5, Seen::Permitted(true));
        // Replaced before it begins, then it begins, is extended, and ends as planned.
        lane.on_seen(3.0, Seen::Window(Some((5_000, 4_000))));
        lane.on_seen(4.0, Seen::Window(Some((2_000, 4_000))));
        lane.on_until(7.0);
        lane.on_seen(8.0, Seen::Window(Some((-2_000, 6_000))));
        lane.on_seen(8.0, gate(1, Some(4_000)));
        lane.on_seen(9.0, gate(1, Some(3_000)));
        lane.on_until(20.0);
        lane.on_seen(21.0, gate(1, None));
        lane.on_seen(22.0, Seen::Permitted(false));
        let (path, told) = (1, edges(&mut lane));
        let hold = |holds| Edge::Hold { path, holds };
        let expected = [
            (0.0, Edge::Led(Some(RobotId(1)))),
            (1.0, Edge::Permit(false)),
            (2.0, Edge::Permit(true)),
            (6.0, Edge::Window(Some(4.0))),
            (8.0, hold(true)),
            (12.0, Edge::Window(None)),
            (12.0, hold(false)),
            (22.0, Edge::Permit(false)),
        ];
        assert_eq!(told, expected);
        // One whose beginning was not seen before it ended.
        lane.on_seen(30.0, Seen::Window(Some((0, 50_000))));
        lane.on_seen(31.0, Seen::Window(None));
        assert_eq!(
            edges(&mut lane),
            [(30.0, Edge::Window(Some(50.0))), (31.0, Edge::Window(None))]
        );
    }
}
