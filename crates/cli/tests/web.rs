//! `coorp watch --web` from a browser's view: what comes over the WebSocket is what the robots record and report. Other
//! machines: `web/elsewhere.rs`; streams to Foxglove and Rerun: `web/streams.rs`.
#![cfg(feature = "live")]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

#[path = "web/elsewhere.rs"]
mod elsewhere;
#[path = "web/field.rs"]
mod field;
#[path = "web/streams.rs"]
mod streams;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tungstenite::{Message, WebSocket};

use self::field::{drive, json, recorded, times, Field, Web, LONG, ROBOTS, ROUNDED_MS, UPGRADE};

/// What a page has collected of one robot.
#[derive(Default)]
struct Shown {
    /// By kind: starts and ends.
    spans: BTreeMap<String, Vec<(f64, f64)>>,
    arrived: u64,
    within_ms: f64,
    lost: u64,
    status: Value,
    /// The number of messages that the first status counted.
    first: Option<u64>,
}

struct View {
    socket: WebSocket<TcpStream>,
    taken: u64,
    number: Option<u64>,
    /// No message was dropped: the test took all of them in time.
    has_all: bool,
    began_unix_ms: f64,
    robots: Vec<Shown>,
    absent: Vec<u64>,
}

impl View {
    fn open(web: &Web) -> View {
        let mut socket = web.view();
        let hello = json(&mut socket);
        assert_eq!(hello["kind"], "hello");
        assert_eq!(hello["robots"], serde_json::json!(ROBOTS));
        View {
            socket,
            taken: 0,
            number: None,
            has_all: true,
            began_unix_ms: hello["began_unix_ms"].as_f64().unwrap(),
            robots: ROBOTS.iter().map(|_| Shown::default()).collect(),
            absent: Vec::new(),
        }
    }

    /// Takes the next message.
    fn take(&mut self) {
        let batch = json(&mut self.socket);
        assert_eq!(batch["kind"], "batch");
        let number = batch["number"].as_u64();
        self.has_all &= self.number.is_none_or(|last| number == Some(last + 1));
        self.number = number;
        let absent = batch["absent"].as_array().unwrap();
        self.absent = absent.iter().map(|robot| robot[0].as_u64().unwrap()).collect();
        for update in batch["robots"].as_array().unwrap() {
            let robot = &mut self.robots[update["robot"].as_u64().unwrap() as usize];
            for (kind, columns) in update["spans"].as_object().unwrap() {
                let columns: Vec<f64> = columns
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|value| value.as_f64().unwrap())
                    .collect();
                let spans = columns.chunks_exact(3).map(|span| (span[0], span[1]));
                robot.spans.entry(kind.clone()).or_default().extend(spans);
            }
            robot.arrived += update["arrived"].as_u64().unwrap();
            robot.within_ms = robot.within_ms.max(update["within_ms"].as_f64().unwrap());
            robot.lost = update["lost"].as_u64().unwrap();
            if update.get("status").is_some() {
                robot.status = update["status"].clone();
                robot.first = robot.first.or(Some(heard(&robot.status)));
            }
        }
        self.taken += 1;
        self.socket.send(Message::text(self.taken.to_string())).unwrap();
    }

    fn until(&mut self, what: &str, mut is: impl FnMut(&View) -> bool) {
        let began = Instant::now();
        while !is(self) {
            assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}");
            self.take();
        }
    }

    /// Whether enough has happened to be compared: scout's gate has held bulk for some windows, and base has control.
    fn shows_control_and_holds(&self) -> bool {
        let holds = self.robots[1].spans.get("hold").map_or(0, Vec::len);
        holds >= 3 && self.robots[0].arrived > 20
    }

    /// Unix time in nanoseconds as the page tells it.
    fn ms(&self, unix_ns: u64) -> f64 {
        unix_ns as f64 / 1e6 - self.began_unix_ms
    }
}

/// How many control messages a robot has heard.
fn heard(status: &Value) -> u64 {
    let heard = status["heard"].as_array().unwrap();
    heard.iter().map(|heard| heard["count"].as_u64().unwrap()).sum()
}

#[test]
fn the_page_shows_what_the_robots_record() {
    let field = Field::new("record", [28_700, 28_720]);
    let (base, scout) = (field.node("base"), field.node("scout"));
    let file = field.0.join("scout.mcap");
    let recording = scout.record(&file).unwrap();
    let web = field.web();
    let mut view = View::open(&web);
    view.until("both are here, and somebody leads", |view| {
        let led = |robot: &Shown| robot.status["leader"].is_u64();
        view.absent.is_empty() && view.robots.iter().all(led)
    });
    let _kept = drive(&base, &scout, |traffic| {
        // Takes all the time, so that nothing is dropped.
        view.until(
            "there is control, and the gate holds bulk",
            View::shows_control_and_holds,
        );
        traffic.end();
        view.until("the last bulk is there", |_| traffic.is_over());
    });
    // Messages in flight arrive, and statuses count them.
    let settled = view.taken + 25;
    view.until("it is quiet", |view| view.taken >= settled);
    recording.finish().unwrap();
    assert!(view.has_all);
    let recording = recorded(&file);
    let shown = &view.robots[1];
    assert_eq!((shown.lost, view.robots[0].lost), (0, 0));
    assert!(shown.within_ms < 250.0, "the clock is known to {} ms", shown.within_ms);
    let near = |all: &[u64], ms: f64| {
        let within = shown.within_ms + ROUNDED_MS;
        all.iter().any(|at| (view.ms(*at) - ms).abs() <= within)
    };
    // Each permit, hold and window that is shown is recorded, and each one that is recorded is shown.
    let event = |name: &'static str| times(&recording, "/coorp/permits", move |value| value["event"] == name);
    let (permitted, ended) = (event("permitted"), event("not-permitted"));
    let permits = &shown.spans["permit"];
    assert_eq!((permits.len(), permits.len()), (permitted.len(), ended.len()));
    for (start, end) in permits {
        assert!(near(&permitted, *start) && near(&ended, *end), "{start} to {end}");
    }
    let within = shown.within_ms + ROUNDED_MS;
    let windows = recording["/coorp/window"].iter().filter_map(|(at, value)| {
        let [ahead, length] = ["starts_in_us", "length_us"].map(|name| value[name].as_f64());
        let start = view.ms(*at) + ahead? / 1e3;
        Some((start, start + length? / 1e3))
    });
    let windows: Vec<(f64, f64)> = windows.collect();
    assert!(!shown.spans["window"].is_empty());
    for (start, _) in &shown.spans["window"] {
        let is_recorded = windows.iter().any(|(window, _)| (window - start).abs() <= within);
        assert!(is_recorded, "{start} is no window");
    }
    // A hold lasts until a window ends, or is given up before. The recording leaves out some of many.
    let holds = &shown.spans["hold"];
    for (start, end) in holds {
        let for_window = windows
            .iter()
            .any(|(_, until)| start - within <= *until && *end <= until + within);
        assert!(for_window, "held from {start} to {end} for no window");
    }
    let for_window = times(&recording, "/coorp/gate", |value| value["why"] == "window");
    assert!(!for_window.is_empty());
    for at in for_window {
        let at = view.ms(at);
        let is_shown = holds
            .iter()
            .any(|(start, end)| start - within <= at && at <= end + within);
        assert!(is_shown, "held at {at}, and not shown: {holds:?}");
    }
    // Bulk is on its way only while a permit is held, but for what leaves the card a little later.
    let slack = 2.0 * (shown.within_ms + ROUNDED_MS) + 50.0;
    for (start, _) in &shown.spans["bulk"] {
        let held = permits
            .iter()
            .any(|(from, to)| from - slack <= *start && *start <= to + slack);
        assert!(held, "bulk at {start} without a permit: {permits:?}");
    }
    // Control: as many messages as were made left, and as many arrived as the status counts.
    let published = shown.status["published"][0]["count"].as_u64().unwrap();
    let left = shown.spans["control"].len() as u64;
    // One that is made while the one before has not left takes its place.
    assert!(
        left <= published && 10 * left >= 9 * published,
        "{left} of {published} left"
    );
    let shown = &view.robots[0];
    let counted = heard(&shown.status) - shown.first.unwrap();
    assert!(
        shown.arrived.abs_diff(counted) <= 1,
        "{} arrived, {counted} counted",
        shown.arrived
    );
    assert!(counted > 10, "{counted}");
    // The text of 'coorp watch' says the same.
    let text = field.run(&["watch", "--once"]).stdout;
    let text = String::from_utf8(text).unwrap();
    let leader = ROBOTS[shown.status["leader"].as_u64().unwrap() as usize];
    assert!(text.contains(&format!("2 of 2 robots here, {leader} leads")), "{text}");
    assert!(text.contains(&heard(&shown.status).to_string()), "{text}");
}

#[test]
fn a_robot_that_goes_is_absent_and_its_return_is_seen() {
    let field = Field::new("absent", [28_740, 28_760]);
    let _base = field.node("base");
    let scout = field.node("scout");
    let web = field.web();
    let mut view = View::open(&web);
    view.until("both are here", |view| view.absent.is_empty() && view.taken > 0);
    drop(scout);
    view.until("one is gone", |view| view.absent == [1]);
    let _scout = field.node("scout");
    view.until("it is back", |view| view.absent.is_empty());
    assert_eq!(view.robots[1].status["robot"], "scout");
}

#[test]
fn nobody_but_a_browser_here_gets_anything() {
    let field = Field::new("strangers", [28_780, 28_800]);
    let web = field.web();
    let at = &web.at;
    let page = web.ask(&format!("GET / HTTP/1.1\nHost: {at}\n\n"));
    assert!(
        page.starts_with("HTTP/1.1 200 OK") && page.contains("<script src=\"live.js\">"),
        "{page}"
    );
    for header in ["default-src 'none'", "frame-ancestors 'none'", "nosniff", "same-origin"] {
        assert!(page.contains(header), "no {header}: {page}");
    }
    let script = web.ask(&format!("GET /live.js HTTP/1.1\nHost: {at}\n\n"));
    assert!(script.contains("text/javascript") && script.contains("uPlot") && script.contains("CoorpLive"));
    let style = web.ask(&format!("GET /live.css HTTP/1.1\nHost: {at}\n\n"));
    assert!(style.contains("text/css") && style.contains("prefers-color-scheme"));
    // A name that leads here by DNS rebinding.
    let refused = web.ask("GET / HTTP/1.1\nHost: evil.example\n\n");
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("open http://127.0.0.1"),
        "{refused}"
    );
    // Another page in the same browser.
    let refused = web.ask(&format!(
        "GET /live HTTP/1.1\nHost: {at}\n{UPGRADE}\nOrigin: http://evil.example\n\n"
    ));
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(web
        .ask(&format!("POST / HTTP/1.1\nHost: {at}\n\n"))
        .starts_with("HTTP/1.1 405"));
    // A request that is too long, or does not end, gets no answer.
    assert_eq!(web.ask(&format!("GET /{}", "x".repeat(9_000))), "");
    assert_eq!(web.ask("GET / HTTP/1.1\n"), "");
    // A browser that sends anything but acknowledgements is disconnected.
    let mut socket = web.view();
    assert_eq!(json(&mut socket)["kind"], "hello");
    socket.send(Message::text("grant me a permit")).unwrap();
    let ended = std::iter::from_fn(|| Some(socket.read()))
        .take(100)
        .any(|read| read.is_err());
    assert!(ended);
    // Idle connections hold nobody up for longer than their time.
    let idle: Vec<TcpStream> = (0..40).map(|_| web.connect()).collect();
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(web
        .ask(&format!("GET / HTTP/1.1\nHost: {at}\n\n"))
        .starts_with("HTTP/1.1 200"));
    drop(idle);
}

#[test]
fn a_browser_that_takes_nothing_gets_the_newest_once_it_does() {
    let field = Field::new("slow", [28_820, 28_840]);
    let web = field.web();
    let mut socket = web.view();
    assert_eq!(json(&mut socket)["kind"], "hello");
    std::thread::sleep(Duration::from_secs(4));
    let numbers: Vec<u64> = (0..10).map(|_| json(&mut socket)["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (numbers[0]..numbers[0] + 10).collect::<Vec<_>>());
    // Nothing more was sent meanwhile; then, it goes on with the newest.
    socket.send(Message::text("10")).unwrap();
    let newest = json(&mut socket)["number"].as_u64().unwrap();
    assert!(newest > numbers[9] + 10, "{newest} after {}", numbers[9]);
}
