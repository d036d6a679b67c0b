//! Metrics over real HTTP, of robots that send and receive.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{be_a_robot, until, Fleet};
use coorp_node::control::{Publisher, Subscriber};
use coorp_node::gather::Gather;
use coorp_node::metrics::Metrics;

#[derive(Default)]
struct Held {
    metrics: Option<Metrics>,
    publisher: Option<Publisher>,
    subscriber: Option<Subscriber>,
    gather: Option<Gather>,
}

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let held: RefCell<Held> = RefCell::default();
    be_a_robot(|node, words| {
        let mut held = held.borrow_mut();
        Some(match words {
            ["serve", port] => match node.serve_metrics(port.parse().unwrap()) {
                Ok(metrics) => {
                    let port = metrics.port().to_string();
                    held.metrics = Some(metrics);
                    port
                }
                Err(error) => error.to_string(),
            },
            ["stop"] => held.metrics.take().is_some().to_string(),
            ["publish"] => {
                held.publisher = Some(node.control_publisher("pose", None).unwrap());
                "ok".to_owned()
            }
            ["put"] => held.publisher.as_ref().unwrap().put(b"pose").is_ok().to_string(),
            ["listen"] => {
                held.subscriber = Some(node.control_subscriber("pose").unwrap());
                let period = coorp_core::Duration::from_millis(10);
                held.gather = Some(
                    node.gather("pose", period, coorp_core::tracker::Topics::OneToOne)
                        .unwrap(),
                );
                "ok".to_owned()
            }
            ["take"] => held
                .subscriber
                .as_ref()
                .unwrap()
                .try_recv()
                .is_some_and(|message| message.age.is_some())
                .to_string(),
            ["send", to] => {
                let mut stream = node.bulk_stream(to, "map").unwrap();
                stream.write(&[7; 100_000]).unwrap();
                stream.finish().unwrap().wait().is_ok().to_string()
            }
            _ => return None,
        })
    });
}

/// Returns the response to these bytes.
fn ask(port: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(common::SOON)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Returns the samples of a page whose lines must all be valid.
fn scrape(port: &str) -> BTreeMap<String, f64> {
    let answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let (mut samples, mut described) = (BTreeMap::new(), BTreeSet::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                ["gauge", "counter"].contains(&kind) && described.insert(name.to_owned()),
                "{line}"
            );
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            assert!(described.contains(name), "{line} is not described");
            assert!(
                samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(),
                "{line} is there twice"
            );
        }
    }
    samples
}

#[test]
fn what_a_robot_knows_is_there_for_prometheus() {
    let bound = "[control]\nrate_hz = 30\nperception = \"1KiB\"\ninference = \"1ms\"\n";
    let fleet = Fleet::new(&["lead", "one"], bound);
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    let port = lead.say("serve 0");
    one.say("publish");
    lead.say("listen");
    until(|| one.say("put") == "true" && lead.say("take") == "true");
    let name = |metric: &str| format!("coorp_control_{metric}{{topic=\"pose\",from=\"one\"}}");
    // An age shorter than the clocks' error counts as zero.
    until(|| {
        one.say("put");
        lead.say("take") == "true" && scrape(&port)[&name("age_seconds_sum")] > 0.0
    });
    until(|| {
        one.say("put");
        scrape(&port).contains_key("coorp_gather_age_seconds{topic=\"pose\",from=\"one\"}")
    });
    assert_eq!(one.say("send lead"), "true");
    let at = scrape(&port);
    assert_eq!(
        at["coorp_robot_info{robot=\"lead\",policy=\"coorp\",secure=\"true\"}"],
        1.0
    );
    assert_eq!(at["coorp_robot_alive{peer=\"one\"}"], 1.0);
    assert!(at[&name("received_total")] >= 1.0 && at[&name("age_seconds_count")] >= 1.0);
    assert!(at.contains_key(&name("late_total")));
    assert!(at["coorp_bulk_received_bytes_total"] >= 100_000.0);
    assert_eq!(at["coorp_bulk_delivered_total"], 1.0);
    assert_eq!(at["coorp_refused_frames_total{reason=\"malformed\"}"], 0.0);
    assert_eq!(at["coorp_refused_connections_total{reason=\"no-certificate\"}"], 0.0);
    assert!(at["coorp_connections"] >= 1.0);
    assert_eq!(
        at.iter()
            .filter(|(name, value)| name.starts_with("coorp_permit{") && **value == 1.0)
            .count(),
        1
    );
    let own = one.say("serve 0");
    assert!(scrape(&own)["coorp_bulk_sent_bytes_total"] >= 100_000.0);
    assert_eq!(
        scrape(&own)["coorp_bulk_completions_info{source=\"the kernel's send queue\"}"],
        1.0
    );
}

#[test]
fn who_asks_wrongly_or_slowly_is_sent_away() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut lead = fleet.robot("lead");
    let port = lead.say("serve 0");
    assert!(ask(&port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(&port, "\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert_eq!(ask(&port, &"x".repeat(100_000)), "", "too long");
    // One connection never ends its request, and one sends nothing: both are dropped, and the next is answered.
    let mut slow = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    slow.write_all(b"GET /metr").unwrap();
    let _silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    assert!(scrape(&port).contains_key("coorp_up_seconds"));
    assert_eq!(lead.say("alive"), lead.say("alive"), "and the robot goes on");
    // The port is taken, and free again afterwards.
    assert!(lead.say(&format!("serve {port}")).contains("in use"));
    assert_eq!(lead.say("stop"), "true");
    assert!(TcpStream::connect_timeout(&format!("127.0.0.1:{port}").parse().unwrap(), Duration::from_secs(1)).is_err());
    assert_eq!(lead.say(&format!("serve {port}")), port);
}
