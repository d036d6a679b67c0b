//! A robot's metrics for Prometheus: text over HTTP, at `/metrics` on a port of 127.0.0.1.
//!
//! One thread answers one request after another, each within a second or not at all. So a slow or malformed request
//! delays only other requests, never the robot. `coorp watch` shows the same numbers.
//!
//! Left out: HTTP beyond GET, and other machines; to scrape remotely, run the agent on the robot.

use std::fmt::{Display, Write as _};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coorp_core::alarms::Alarm;
use coorp_core::discovery::Refusal;

use crate::agent::Agent;
use crate::status::{Bulk, Carries, Gathered, Heard, Path, PathState, Permit, Status};
use crate::Error;

/// The longest time for one request, reading and answering.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// The longest request that is read, bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct Metrics {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Metrics {
    pub(crate) fn serve(agent: &Arc<Agent>, port: u16) -> Result<Metrics, Error> {
        let failed = |error| Error::Socket(format!("cannot serve metrics at 127.0.0.1:{port}"), error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, agent) = (stop.clone(), Arc::downgrade(agent));
        let server = std::thread::Builder::new()
            .name("coorp-metrics".to_owned())
            .spawn(move || serve(&listener, &agent, &stopped));
        Ok(Metrics {
            at,
            stop,
            server: Some(server.map_err(failed)?),
        })
    }

    /// Returns the port on which they are served.
    pub fn port(&self) -> u16 {
        self.at.port()
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread waits for a request, so send one.
        let _ = TcpStream::connect_timeout(&self.at, REQUEST_MAX);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(listener: &TcpListener, agent: &Weak<Agent>, stop: &AtomicBool) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // The process has probably no descriptors left; some may become available.
            std::thread::sleep(REQUEST_MAX);
            continue;
        };
        let Some(agent) = agent.upgrade().filter(|_| !stop.load(Ordering::Acquire)) else {
            return;
        };
        if let Err(error) = answer(stream, &agent) {
            tracing::debug!("a request for metrics was not answered: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, agent: &Agent) -> std::io::Result<()> {
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
        (b"GET", b"/metrics") => ("200 OK", text(agent)),
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

fn text(agent: &Agent) -> String {
    let status = agent.status();
    let name = |place: u16| agent.member.name_of(coorp_core::RobotId(place));
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

/// Writes identity, liveness, permits, window, clock and refusals.
fn robot<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let labels = [
        ("robot", status.robot.as_str()),
        ("policy", &status.policy),
        ("secure", if status.secure { "true" } else { "false" }),
    ];
    page.metric("coorp_robot_info").sample(&labels, 1);
    page.number("coorp_up_seconds", seconds(status.up_ms as f64 * 1e3));
    page.number("coorp_leads", u8::from(status.leads));
    let mut leader = page.metric("coorp_leader_info");
    if let Some(place) = status.leader {
        leader.sample(&[("leader", name(place))], 1);
    }
    let mut alive = page.metric("coorp_robot_alive");
    for place in &status.alive {
        alive.sample(&[("peer", name(*place))], 1);
    }
    let permits = [
        ("not-needed", Permit::NotNeeded),
        ("idle", Permit::Idle),
        ("waiting", Permit::Waiting),
        ("holding", Permit::Holding),
    ];
    let mut permit = page.metric("coorp_permit");
    for (state, of) in permits {
        permit.sample(&[("state", state)], u8::from(status.permit == of));
    }
    let mut granted = page.metric("coorp_permit_granted");
    for place in &status.holders {
        granted.sample(&[("peer", name(*place))], 1);
    }
    page.number("coorp_permit_queue", status.queue.len());
    if let Some((start_us, length_us)) = status.window_us {
        page.number("coorp_window_starts_seconds", seconds(start_us as f64));
        page.number("coorp_window_length_seconds", seconds(length_us as f64));
    }
    if let Some((ahead_ns, within_ns)) = status.clock_ns {
        page.number("coorp_clock_offset_seconds", ahead_ns as f64 / 1e9);
        page.number("coorp_clock_error_seconds", within_ns as f64 / 1e9);
    }
    let mut alarms = page.metric("coorp_alarm");
    for alarm in Alarm::ALL {
        alarms.sample(&[("alarm", alarm.name())], u64::from(status.alarms.contains(&alarm)));
    }
    let refused = [
        ("oversized", status.refused.oversized),
        ("version", status.refused.version),
        ("malformed", status.refused.malformed),
        ("stale-grant", status.refused.stale_grants),
    ];
    let mut refusals = page.metric("coorp_refused_frames_total");
    for (reason, count) in refused {
        refusals.sample(&[("reason", reason)], count);
    }
    page.number("coorp_refused_strangers_total", status.refused.strangers);
    // Only by reason: addresses come and go, and a label's values must not.
    let mut refusals = page.metric("coorp_refused_connections_total");
    for (reason, count) in &status.door.totals {
        refusals.sample(&[("reason", reason.name())], *count);
    }
    page.number("coorp_revocation_list", status.revoked.list);
    page.number("coorp_revoked_certificates", status.revoked.certificates);
    page.number("coorp_refused_revocation_lists_total", status.revoked.rejected);
    page.number("coorp_unfinished_handshakes", status.door.unfinished);
    let found = &status.found;
    page.number("coorp_discovery_hints_total", found.hints);
    let ended = [
        ("connected", found.connected),
        ("misfit", found.misfits),
        ("unanswered", found.unanswered),
        ("rejected", found.rejected),
    ];
    let mut attempts = page.metric("coorp_discovery_attempts_total");
    for (outcome, count) in ended {
        attempts.sample(&[("outcome", outcome)], count);
    }
    let mut refusals = page.metric("coorp_discovery_refused_total");
    for refusal in Refusal::ALL {
        refusals.sample(&[("reason", refusal.name())], found.refused(refusal));
    }
    page.number("coorp_connections", status.door.connections);
}

/// The value of a metric in one entry of a status, if known.
type Show<T> = fn(&T) -> Option<f64>;

/// Writes the published and the received topics.
fn control<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let mut published = page.metric("coorp_control_published_total");
    for topic in &status.published {
        published.sample(&[("topic", topic.topic.as_str())], topic.count);
    }
    let of_heard: [(&str, Show<Heard>); 7] = [
        ("coorp_control_received_total", |heard| Some(heard.count as f64)),
        ("coorp_control_missed_total", |heard| Some(heard.missed as f64)),
        ("coorp_control_copies_total", |heard| Some(heard.duplicates as f64)),
        ("coorp_control_silence_seconds", |heard| {
            Some(seconds(heard.quiet_us as f64))
        }),
        ("coorp_control_age_seconds_sum", |heard| {
            Some(seconds(heard.ages_us as f64))
        }),
        ("coorp_control_age_seconds_count", |heard| Some(heard.aged as f64)),
        ("coorp_control_late_total", |heard| Some(heard.late as f64)),
    ];
    for (metric, show) in of_heard {
        let mut samples = page.metric(metric);
        for heard in &status.heard {
            let labels = [
                ("topic", heard.topic.as_str()),
                ("from", name(heard.from)),
                ("path", path_name(status, heard.path)),
            ];
            // A counter's labels must not change, but the path does.
            let labels = if metric == "coorp_control_silence_seconds" {
                &labels[..]
            } else {
                &labels[..2]
            };
            if let Some(value) = show(heard) {
                samples.sample(labels, value);
            }
        }
    }
}

fn path_name(status: &Status, path: u64) -> &str {
    let name = usize::try_from(path).ok().and_then(|path| status.paths.get(path));
    name.map_or("", String::as_str)
}

/// Writes the paths to each robot that has several.
fn paths<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let of_paths: [(&str, Show<Path>); 5] = [
        ("coorp_path_alive", |path| {
            (path.state != PathState::Resting).then(|| truth(path.state == PathState::Alive))
        }),
        ("coorp_path_round_trip_seconds", |path| {
            Some(seconds(path.round_trip_us? as f64))
        }),
        ("coorp_path_failures_ratio", |path| {
            Some(f64::from(path.failures_ppm) / 1e6)
        }),
        ("coorp_path_control", |path| {
            Some(truth(path.carries != Carries::Nothing))
        }),
        ("coorp_path_bulk", |path| Some(truth(path.bulk))),
    ];
    for (metric, show) in of_paths {
        let mut samples = page.metric(metric);
        for path in &status.choices {
            if let Some(value) = show(path) {
                samples.sample(&[("to", name(path.to)), ("path", path_name(status, path.path))], value);
            }
        }
    }
}

/// Writes the states that the robot gathers.
fn gathered<'n>(page: &mut Page, status: &Status, name: impl Fn(u16) -> &'n str) {
    let of_gathered: [(&str, Show<Gathered>); 5] = [
        ("coorp_gather_lists_total", |of| Some(of.due as f64)),
        ("coorp_gather_missed_total", |of| Some(of.missed as f64)),
        ("coorp_gather_stale_total", |of| Some(of.stale as f64)),
        ("coorp_gather_age_seconds", |of| Some(seconds(of.age_us?.0 as f64))),
        ("coorp_gather_age_error_seconds", |of| {
            Some(seconds(of.age_us?.1 as f64))
        }),
    ];
    for (metric, show) in of_gathered {
        let mut samples = page.metric(metric);
        for of in &status.gathered {
            if let Some(value) = show(of) {
                samples.sample(&[("topic", of.topic.as_str()), ("from", name(of.from))], value);
            }
        }
    }
}

fn bulk(page: &mut Page, bulk: &Bulk) {
    page.number("coorp_bulk_waiting", bulk.waiting);
    page.number("coorp_bulk_sent_bytes_total", bulk.sent_bytes);
    page.number("coorp_bulk_received_bytes_total", bulk.received_bytes);
    page.number("coorp_bulk_delivered_total", bulk.delivered);
    page.number("coorp_bulk_in_flight", bulk.in_flight);
    page.number("coorp_bulk_held", u8::from(bulk.held));
    page.number("coorp_bulk_holds_total", bulk.holds);
    let source = bulk.completions.to_string();
    page.metric("coorp_bulk_completions_info")
        .sample(&[("source", &source)], 1);
}

/// The description of each metric. Those that end in `_total`, `_sum` and `_count` are counters, the others gauges.
const HELP: &str = "\
coorp_robot_info: The robot's identity; always 1.
coorp_up_seconds: Uptime of the robot.
coorp_leads: Whether the robot leads.
coorp_leader_info: The leader, as far as it is known; 1 for that robot.
coorp_robot_alive: Robots that can be heard, this one included; 1 for each.
coorp_permit: The permit to send bulk; 1 for its current state.
coorp_permit_granted: As the leader: 1 for each robot that holds a permit.
coorp_permit_queue: As the leader: number of robots that wait for a permit.
coorp_window_starts_seconds: Time until the next protection window begins; negative once it has begun.
coorp_window_length_seconds: Length of that window.
coorp_clock_offset_seconds: The leader's clock minus this robot's.
coorp_clock_error_seconds: Error bound of that offset.
coorp_alarm: Alarms for the operator; 1 for each that was raised in the last minute.
coorp_refused_frames_total: Frames that were refused, by reason.
coorp_refused_strangers_total: Connections that were refused for a certificate.
coorp_refused_connections_total: Attempts to connect for control or bulk that were refused, by reason.
coorp_revocation_list: Number of the newest list of revoked certificates; 0 before the first.
coorp_revoked_certificates: Number of certificates in that list.
coorp_refused_revocation_lists_total: Lists of revoked certificates that the team's authority has not signed.
coorp_unfinished_handshakes: Attempts to connect that have not shown a certificate yet.
coorp_discovery_hints_total: Announcements of robots that were taken up.
coorp_discovery_attempts_total: Attempts to connect to robots, by outcome.
coorp_discovery_refused_total: Discovery messages that were refused, by reason.
coorp_connections: Connections for control or bulk that other robots have opened.
coorp_control_published_total: Control messages published.
coorp_control_received_total: Control messages that were newer than all before.
coorp_control_missed_total: Control messages that never arrived, or only after a newer one.
coorp_control_copies_total: Copies of control messages that had already arrived.
coorp_control_silence_seconds: Time since the newest message arrived.
coorp_control_age_seconds_sum: Sum of the messages' ages when they were taken.
coorp_control_age_seconds_count: Messages that were taken and whose age was known.
coorp_control_late_total: Messages among those that were older than the team's reaction bound.
coorp_path_alive: Whether the path is alive; absent while nothing is sent to that robot.
coorp_path_round_trip_seconds: Smoothed round trip of the path.
coorp_path_failures_ratio: Smoothed share of the path's messages that are lost or late.
coorp_path_control: Whether the path carried the newest control message, or a duplicate of it.
coorp_path_bulk: Whether the path carries bulk now.
coorp_gather_lists_total: Lists on which a fresh state was due.
coorp_gather_missed_total: Lists among those without one.
coorp_gather_stale_total: States that were old or copies.
coorp_gather_age_seconds: Current age of the state on the last list.
coorp_gather_age_error_seconds: Error bound of that age.
coorp_bulk_waiting: Messages of this robot that are not delivered yet.
coorp_bulk_sent_bytes_total: Bytes sent, including repeated ones.
coorp_bulk_received_bytes_total: Bytes received.
coorp_bulk_delivered_total: Messages delivered to this robot.
coorp_bulk_in_flight: Datagrams that the kernel has and has not reported as sent.
coorp_bulk_held: Whether the gate holds bulk now.
coorp_bulk_holds_total: Times that a datagram was held back.
coorp_bulk_completions_info: Source of the knowledge of what has left; always 1.
";

/// The text under construction.
#[derive(Default)]
struct Page {
    text: String,
}

/// One metric of a page; its description is written with its first sample.
struct Samples<'p> {
    page: &'p mut Page,
    name: &'static str,
    begun: bool,
}

impl Page {
    fn metric(&mut self, name: &'static str) -> Samples<'_> {
        Samples {
            page: self,
            name,
            begun: false,
        }
    }

    /// Writes a metric with one number.
    fn number(&mut self, name: &'static str, value: impl Display) {
        self.metric(name).sample(&[], value);
    }
}

impl Samples<'_> {
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        // Writing into a string cannot fail.
        let (text, name) = (&mut self.page.text, self.name);
        if !std::mem::replace(&mut self.begun, true) {
            let help = HELP
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let counts = ["_total", "_sum", "_count"].iter().any(|end| name.ends_with(end));
            let kind = if counts { "counter" } else { "gauge" };
            let _ = write!(
                text,
                "# HELP {name} {}\n# TYPE {name} {kind}\n",
                help.unwrap_or_default()
            );
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

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn seconds(us: f64) -> f64 {
    us / 1e6
}

#[cfg(test)]
mod tests {
    use coorp_core::discovery::Counts;

    use super::*;

    #[test]
    fn a_metric_is_described_once_and_its_labels_are_escaped() {
        let status = Status {
            robot: "a\"b\\c".to_owned(),
            alarms: vec![Alarm::DiskShort],
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
            found: Counts {
                unanswered: 3,
                ..Counts::default()
            },
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
        assert_eq!(count("coorp_alarm{alarm=\"disk-short\"} 1"), 1);
        assert_eq!(count("coorp_alarm{"), 6);
        assert_eq!(count("coorp_discovery_attempts_total{outcome=\"unanswered\"} 3"), 1);
        assert_eq!(count("coorp_discovery_refused_total{"), Refusal::ALL.len());
        assert_eq!(count("coorp_path_alive"), 0, "nobody knows yet");
        assert_eq!(count("coorp_path_failures_ratio{to=\"two\",path=\"wlan0\"} 0"), 1);
        bulk(&mut page, &Bulk::default());
        let described = |line: &str| !line.starts_with("# HELP") || line.ends_with('.');
        assert!(page.text.lines().all(described), "{}", page.text);
    }
}
