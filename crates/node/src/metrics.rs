//! What a robot knows of itself, for Prometheus: text over HTTP, at `/metrics` on a port of 127.0.0.1.
//!
//! One thread answers one request after another, each within a second or not at all, so that whoever asks slowly or
//! wrongly keeps only others who ask waiting, and never the robot. The numbers are those of `coorp watch`.
//!
//! Left out: HTTP beyond GET, and other machines; whoever scrapes from afar runs its agent on the robot.

use std::fmt::{Display, Write as _};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::overview::Overview;
use crate::status::{Bulk, Carries, PathState, Permit, Status};
use crate::Error;

/// How long one request may take, reading and answering.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// The longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Metrics that are served, until it is dropped.
#[derive(Debug)]
pub struct Metrics {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Metrics {
    pub(crate) fn serve(overview: &Arc<Overview>, port: u16) -> Result<Metrics, Error> {
        let failed = |error| Error::Socket(format!("cannot serve metrics at 127.0.0.1:{port}"), error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, overview) = (stop.clone(), Arc::downgrade(overview));
        let server = std::thread::Builder::new()
            .name("coorp-metrics".to_owned())
            .spawn(move || serve(&listener, &overview, &stopped));
        Ok(Metrics {
            at,
            stop,
            server: Some(server.map_err(failed)?),
        })
    }

    /// The port that they are served on.
    pub fn port(&self) -> u16 {
        self.at.port()
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread waits for a request; this is one.
        let _ = TcpStream::connect_timeout(&self.at, REQUEST_MAX);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(listener: &TcpListener, overview: &Weak<Overview>, stop: &AtomicBool) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of files, most likely; they may come back.
            std::thread::sleep(REQUEST_MAX);
            continue;
        };
        let Some(overview) = overview.upgrade().filter(|_| !stop.load(Ordering::Acquire)) else {
            return;
        };
        if let Err(error) = answer(stream, &overview) {
            tracing::debug!("a request for metrics was not answered: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, overview: &Overview) -> std::io::Result<()> {
    let until = Instant::now() + REQUEST_MAX;
    let (mut request, mut length) = ([0; REQUEST_BYTES_MAX], 0);
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || length == request.len() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it does not end"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut request[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
    }
    let line = request[..length]
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (code, body) = match (method, path) {
        (b"GET", b"/metrics") => ("200 OK", text(overview)),
        (b"GET", _) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET it\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(REQUEST_MAX))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn text(overview: &Overview) -> String {
    let status = overview.status();
    let name = |place: u16| overview.member.name_of(coorp_core::RobotId(place));
    let mut page = Page::default();
    robot(&mut page, &status, name);
    control(&mut page, &status, name);
    paths(&mut page, &status, name);
    gathered(&mut page, &status, name);
    if let Some(of) = &status.bulk {
        bulk(&mut page, of);
    }
    page.text
}

/// Who it is, who is there, permits, window, clock, refusals.
fn robot<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let labels = [
        ("robot", status.robot.as_str()),
        ("policy", &status.policy),
        ("secure", if status.secure { "true" } else { "false" }),
    ];
    page.metric("coorp_robot_info", GAUGE, "Who this is; always 1.")
        .sample(&labels, 1);
    page.metric("coorp_up_seconds", GAUGE, "How long it has been up.")
        .sample(&[], seconds(status.up_ms as f64 * 1e3));
    page.metric("coorp_leads", GAUGE, "Whether it leads.")
        .sample(&[], u8::from(status.leads));
    let mut leader = page.metric(
        "coorp_leader_info",
        GAUGE,
        "Who leads, as far as is known; 1 for that robot.",
    );
    if let Some(place) = status.leader {
        leader.sample(&[("leader", name(place))], 1);
    }
    let mut alive = page.metric("coorp_robot_alive", GAUGE, "The robots that it can hear; 1 for each.");
    for place in &status.alive {
        alive.sample(&[("peer", name(*place))], 1);
    }
    let permits = [
        ("not-needed", Permit::NotNeeded),
        ("idle", Permit::Idle),
        ("waiting", Permit::Waiting),
        ("holding", Permit::Holding),
    ];
    let mut permit = page.metric(
        "coorp_permit",
        GAUGE,
        "Its permit to send bulk; 1 for the state that it is in.",
    );
    for (state, of) in permits {
        permit.sample(&[("state", state)], u8::from(status.permit == of));
    }
    let mut granted = page.metric(
        "coorp_permit_granted",
        GAUGE,
        "As the leader: 1 for each robot that holds a permit.",
    );
    for place in &status.holders {
        granted.sample(&[("peer", name(*place))], 1);
    }
    let help = "As the leader: how many robots wait for a permit.";
    page.metric("coorp_permit_queue", GAUGE, help)
        .sample(&[], status.queue.len());
    if let Some((start_us, length_us)) = status.window_us {
        let help = "Until the window that bulk is kept out of begins; negative once it has.";
        page.metric("coorp_window_starts_seconds", GAUGE, help)
            .sample(&[], seconds(start_us as f64));
        let help = "How long that window is.";
        page.metric("coorp_window_length_seconds", GAUGE, help)
            .sample(&[], seconds(length_us as f64));
    }
    if let Some((ahead_ns, within_ns)) = status.clock_ns {
        let help = "The leader's clock minus this robot's.";
        page.metric("coorp_clock_offset_seconds", GAUGE, help)
            .sample(&[], ahead_ns as f64 / 1e9);
        let help = "By how much that may be off.";
        page.metric("coorp_clock_error_seconds", GAUGE, help)
            .sample(&[], within_ns as f64 / 1e9);
    }
    let refused = [
        ("oversized", status.refused.oversized),
        ("version", status.refused.version),
        ("malformed", status.refused.malformed),
        ("stale-grant", status.refused.stale_grants),
    ];
    let mut refusals = page.metric(
        "coorp_refused_frames_total",
        COUNTER,
        "Frames that were refused, by reason.",
    );
    for (reason, count) in refused {
        refusals.sample(&[("reason", reason)], count);
    }
    let help = "Connections that were refused for a certificate.";
    page.metric("coorp_refused_strangers_total", COUNTER, help)
        .sample(&[], status.refused.strangers);
}

/// What is published and heard.
fn control<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let mut published = page.metric(
        "coorp_control_published_total",
        COUNTER,
        "Control messages that it has made.",
    );
    for topic in &status.published {
        published.sample(&[("topic", topic.topic.as_str())], topic.count);
    }
    type Show = fn(&crate::status::Heard) -> f64;
    let of_heard: [(&str, &str, &str, Show); 7] = [
        (
            "coorp_control_received_total",
            COUNTER,
            "Control messages that were newer than all before.",
            |heard| heard.count as f64,
        ),
        (
            "coorp_control_missed_total",
            COUNTER,
            "Control messages that never came, or after a newer one.",
            |heard| heard.missed as f64,
        ),
        (
            "coorp_control_copies_total",
            COUNTER,
            "Copies of control messages that had come already.",
            |heard| heard.duplicates as f64,
        ),
        (
            "coorp_control_silence_seconds",
            GAUGE,
            "How long ago the newest came.",
            |heard| seconds(heard.quiet_us as f64),
        ),
        (
            "coorp_control_age_seconds_sum",
            COUNTER,
            "How old messages were when they were taken, added up.",
            |heard| seconds(heard.ages_us as f64),
        ),
        (
            "coorp_control_age_seconds_count",
            COUNTER,
            "Messages that were taken and whose age was known.",
            |heard| heard.aged as f64,
        ),
        (
            "coorp_control_late_total",
            COUNTER,
            "Messages among those that were older than the team's reaction bound.",
            |heard| heard.late as f64,
        ),
    ];
    for (metric, kind, help, show) in of_heard {
        let mut samples = page.metric(metric, kind, help);
        for heard in &status.heard {
            let path = usize::try_from(heard.path).ok().and_then(|path| status.paths.get(path));
            let path = path.map_or("", String::as_str);
            let labels = [
                ("topic", heard.topic.as_str()),
                ("from", name(heard.from)),
                ("path", path),
            ];
            // A counter's labels must not change; the path does.
            let labels = if kind == GAUGE { &labels[..] } else { &labels[..2] };
            samples.sample(labels, show(heard));
        }
    }
}

/// The paths to each robot to which there are several.
fn paths<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    type Show = fn(&crate::status::Path) -> Option<f64>;
    let of_paths: [(&str, &str, Show); 5] = [
        (
            "coorp_path_alive",
            "Whether a path is there; absent while nothing is sent to that robot.",
            |path| (path.state != PathState::Resting).then_some(f64::from(u8::from(path.state == PathState::Alive))),
        ),
        ("coorp_path_round_trip_seconds", "Its smoothed round trip.", |path| {
            Some(seconds(path.round_trip_us? as f64))
        }),
        (
            "coorp_path_failures_ratio",
            "The share of what it carries that is lost or late, smoothed.",
            |path| Some(f64::from(path.failures_ppm) / 1e6),
        ),
        (
            "coorp_path_control",
            "Whether it carried the newest control message, or a duplicate of it.",
            |path| Some(f64::from(u8::from(path.carries != Carries::Nothing))),
        ),
        ("coorp_path_bulk", "Whether it carries bulk now.", |path| {
            Some(f64::from(u8::from(path.bulk)))
        }),
    ];
    for (metric, help, show) in of_paths {
        let mut samples = page.metric(metric, GAUGE, help);
        for path in &status.choices {
            let place = usize::try_from(path.path)
                .ok()
                .and_then(|place| status.paths.get(place));
            let labels = [("to", name(path.to)), ("path", place.map_or("", String::as_str))];
            if let Some(value) = show(path) {
                samples.sample(&labels, value);
            }
        }
    }
}

/// The states that it gathers.
fn gathered<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    type Show = fn(&crate::status::Gathered) -> Option<f64>;
    let of_gathered: [(&str, &str, &str, Show); 5] = [
        (
            "coorp_gather_lists_total",
            COUNTER,
            "Lists on which a fresh state was due.",
            |of| Some(of.due as f64),
        ),
        (
            "coorp_gather_missed_total",
            COUNTER,
            "Lists among those that had none.",
            |of| Some(of.missed as f64),
        ),
        (
            "coorp_gather_stale_total",
            COUNTER,
            "States that were old or copies.",
            |of| Some(of.stale as f64),
        ),
        (
            "coorp_gather_age_seconds",
            GAUGE,
            "How old the state on the last list is now.",
            |of| Some(seconds(of.age_us?.0 as f64)),
        ),
        (
            "coorp_gather_age_error_seconds",
            GAUGE,
            "By how much that may be off.",
            |of| Some(seconds(of.age_us?.1 as f64)),
        ),
    ];
    for (metric, kind, help, show) in of_gathered {
        let mut samples = page.metric(metric, kind, help);
        for of in &status.gathered {
            if let Some(value) = show(of) {
                samples.sample(&[("topic", of.topic.as_str()), ("from", name(of.from))], value);
            }
        }
    }
}

fn bulk(page: &mut Page, bulk: &Bulk) {
    let numbers = [
        (
            "coorp_bulk_waiting",
            GAUGE,
            "Messages that it has yet to deliver.",
            bulk.waiting,
        ),
        (
            "coorp_bulk_sent_bytes_total",
            COUNTER,
            "Bytes that it has sent, repeated ones included.",
            bulk.sent_bytes,
        ),
        (
            "coorp_bulk_received_bytes_total",
            COUNTER,
            "Bytes that it has received.",
            bulk.received_bytes,
        ),
        (
            "coorp_bulk_delivered_total",
            COUNTER,
            "Messages that were delivered to it.",
            bulk.delivered,
        ),
        (
            "coorp_bulk_in_flight",
            GAUGE,
            "Datagrams that the kernel has and did not report gone.",
            bulk.in_flight,
        ),
        (
            "coorp_bulk_held",
            GAUGE,
            "Whether the gate holds bulk now.",
            u64::from(bulk.held),
        ),
        (
            "coorp_bulk_holds_total",
            COUNTER,
            "How often a datagram was held back.",
            bulk.holds,
        ),
    ];
    for (metric, kind, help, value) in numbers {
        page.metric(metric, kind, help).sample(&[], value);
    }
    let help = "How it knows what has left; always 1.";
    let source = bulk.completions.to_string();
    page.metric("coorp_bulk_completions_info", GAUGE, help)
        .sample(&[("source", &source)], 1);
}

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// The text as it grows.
#[derive(Default)]
struct Page {
    text: String,
}

/// One metric of a page; what it is like is written with its first sample.
struct Samples<'p> {
    page: &'p mut Page,
    name: &'static str,
    head: Option<(&'static str, &'static str)>,
}

impl Page {
    fn metric(&mut self, name: &'static str, kind: &'static str, help: &'static str) -> Samples<'_> {
        Samples {
            page: self,
            name,
            head: Some((kind, help)),
        }
    }
}

impl Samples<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        // Writing into a string cannot fail.
        let (text, name) = (&mut self.page.text, self.name);
        if let Some((kind, help)) = self.head.take() {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        let labels = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let _ = if labels.is_empty() {
            writeln!(text, "{name} {value}")
        } else {
            writeln!(text, "{name}{{{labels}}} {value}")
        };
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(us: f64) -> f64 {
    us / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Gathered, Heard, Path};

    #[test]
    fn a_metric_is_described_once_and_its_labels_are_escaped() {
        let status = Status {
            robot: "a\"b\\c".to_owned(),
            heard: [1, 2]
                .map(|from| Heard {
                    from,
                    ..Heard::default()
                })
                .to_vec(),
            choices: vec![Path {
                to: 2,
                ..Path::default()
            }],
            paths: vec!["wlan0".to_owned()],
            gathered: vec![Gathered {
                age_us: None,
                ..Gathered::default()
            }],
            ..Status::default()
        };
        let (mut page, name) = (Page::default(), |place: u16| if place == 1 { "one" } else { "two" });
        robot(&mut page, &status, name);
        control(&mut page, &status, name);
        paths(&mut page, &status, name);
        gathered(&mut page, &status, name);
        let lines: Vec<&str> = page.text.lines().collect();
        let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!(
            count("coorp_robot_info{robot=\"a\\\"b\\\\c\",policy=\"\""),
            1,
            "{}",
            page.text
        );
        assert_eq!(
            (
                count("# TYPE coorp_control_late_total counter"),
                count("coorp_control_late_total{")
            ),
            (1, 2)
        );
        assert_eq!(count("# TYPE coorp_gather_age_seconds"), 0, "nothing is known of it");
        assert_eq!(count("coorp_permit{state=\"not-needed\"} 1"), 1);
        assert_eq!(count("coorp_permit{"), 4);
        assert_eq!(count("coorp_path_alive"), 0, "nobody knows yet");
        assert_eq!(count("coorp_path_failures_ratio{to=\"two\",path=\"wlan0\"} 0"), 1);
    }
}
