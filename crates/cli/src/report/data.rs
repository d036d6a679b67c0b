//! The data for the report's script: the series as compact JSON, stored by column.
//!
//! A second under load contains some thousands of spans per policy, so their numbers are rounded to the
//! microsecond and stored by column. A file with five policies is then some hundred kilobytes instead of
//! megabytes.

use coorp_sim::results::{Charts, SpanKind, Timeline};
use serde::Serialize;

use super::Page;

/// More than any second on one channel contains; keeps a broken run from producing a page that no browser
/// opens.
const SPANS_MAX: usize = 50_000;

#[derive(Serialize)]
struct Data<'a> {
    bound_ms: Option<f64>,
    policies: Vec<Policy<'a>>,
}

#[derive(Serialize)]
struct Policy<'a> {
    name: &'a str,
    reaction: Columns,
    control: Columns,
    throughput: Columns,
    timeline: Second<'a>,
}

/// The two columns of a curve.
#[derive(Serialize)]
struct Columns {
    x: Vec<f64>,
    y: Vec<f64>,
}

#[derive(Serialize)]
struct Second<'a> {
    start_s: f64,
    length_ms: f64,
    robots: &'a [String],
    robot: Vec<u16>,
    kind: Vec<&'static str>,
    start: Vec<f64>,
    end: Vec<f64>,
    frames: Vec<u16>,
    left_out: usize,
}

/// Returns the data as JSON that is safe inside a script element.
pub fn embed(page: &Page<'_>) -> String {
    let pairs = page.numbers.results.iter().zip(page.charts);
    let data = Data {
        bound_ms: page.bound_ms,
        policies: pairs.map(|(result, charts)| policy(&result.policy, charts)).collect(),
    };
    // This can fail only for maps with unusual keys or for failing writers; neither occurs here.
    let json = serde_json::to_string(&data).unwrap_or_else(|_| "null".to_owned());
    // In JSON, '<' occurs only inside strings, where its escape is equivalent, so no name can close the
    // element.
    json.replace('<', "\\u003c")
}

fn policy<'a>(name: &'a str, charts: &'a Charts) -> Policy<'a> {
    Policy {
        name,
        reaction: columns(&charts.reaction_cdf),
        control: columns(&charts.control_cdf),
        throughput: columns(&charts.throughput),
        timeline: second(&charts.timeline),
    }
}

fn columns(points: &[(f64, f64)]) -> Columns {
    let (x, y) = points.iter().map(|(x, y)| (rounded(*x), rounded(*y))).unzip();
    Columns { x, y }
}

fn second(timeline: &Timeline) -> Second<'_> {
    let spans = timeline.spans.get(..SPANS_MAX).unwrap_or(&timeline.spans);
    Second {
        start_s: rounded(timeline.start_s),
        length_ms: rounded(timeline.length_s * 1e3),
        robots: &timeline.robots,
        robot: spans.iter().map(|span| span.robot).collect(),
        kind: spans.iter().map(|span| kind(span.kind)).collect(),
        start: spans.iter().map(|span| rounded(span.start_ms)).collect(),
        end: spans.iter().map(|span| rounded(span.end_ms)).collect(),
        frames: spans.iter().map(|span| span.frames).collect(),
        left_out: timeline.spans.len() - spans.len(),
    }
}

/// Returns the names used by the script.
fn kind(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Permit => "permit",
        SpanKind::Window => "window",
        SpanKind::Hold => "hold",
        SpanKind::Bulk => "bulk",
        SpanKind::Control => "control",
        SpanKind::Collision => "collision",
        SpanKind::Loop => "loop",
    }
}

/// Rounded to a thousandth: a microsecond if the unit is ms, and less than a pixel otherwise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
