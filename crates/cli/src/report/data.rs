//! What the report's script draws from: the series as compact JSON, columns instead of objects.
//!
//! A second under load holds some thousands of spans a policy, so their numbers are rounded to the microsecond
//! and stored by column; that makes a file of five policies some hundred kilobytes instead of megabytes.

use coorp_sim::results::{Charts, SpanKind, Timeline};
use serde::Serialize;

use super::Page;

/// More than any second on one channel holds; it keeps a broken run from making a page that no browser opens.
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

/// Two columns of a curve.
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

/// The data as JSON that is safe inside a script element.
pub fn embed(page: &Page<'_>) -> String {
    let pairs = page.numbers.results.iter().zip(page.charts);
    let data = Data {
        bound_ms: page.bound_ms,
        policies: pairs.map(|(result, charts)| policy(&result.policy, charts)).collect(),
    };
    // Only maps with odd keys and failing writers make this fail; here are neither.
    let json = serde_json::to_string(&data).unwrap_or_else(|_| "null".to_owned());
    // In JSON '<' stands only inside strings, where its escape means the same: no name can end the element.
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

/// The names that the script knows.
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

/// To a thousandth: a microsecond where the unit is ms, finer than a pixel everywhere else.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
