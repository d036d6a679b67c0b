//! One machine's packets through a [`Protect`], in virtual time.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;

mod mixes;

const FULL: u32 = 1_500;
const MS: u64 = 1_000_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

/// Returns the UDP flow of this number.
fn flow(number: u16) -> Flow {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Flow {
        protocol: UDP,
        from: (address(1), 10_000 + number),
        to: (address(2), 7_400),
        writer: None,
    }
}

fn head(number: u16, bytes: u32) -> Head {
    Head {
        flow: flow(number),
        bytes,
        dscp: 0,
        message_bytes: None,
        opens: false,
    }
}

fn ruled(class: Class, port: u16) -> Rule {
    Rule {
        class,
        protocol: None,
        ports: Some((port, port)),
        to: None,
        dscp: None,
        topic: None,
        executable: None,
        cgroup: None,
    }
}

/// Returns a configuration with rules that make flow 0 bulk and flow 1 control.
fn config() -> Config {
    Config {
        rules: vec![ruled(Class::Bulk, 10_000), ruled(Class::Control, 10_001)],
        ..Config::default()
    }
}

fn status<P>(protect: &Protect<P>, number: u16, now: Instant) -> Status {
    let found = protect.flows(now).find(|status| status.flow == flow(number));
    found.unwrap_or_else(|| panic!("flow {number} is not known"))
}

fn class_of<P>(protect: &Protect<P>, number: u16, now: Instant) -> (Class, Reason) {
    let status = status(protect, number, now);
    (status.class, status.reason)
}

fn changes<P>(protect: &mut Protect<P>) -> Vec<(Class, Reason)> {
    std::iter::from_fn(|| protect.poll())
        .map(|change| (change.class, change.reason))
        .collect()
}

fn queue(protect: &mut Protect<u32>, number: u16, packets: std::ops::Range<u32>, now: Instant) {
    for packet in packets {
        let verdict = protect.on_packet(head(number, FULL), packet, now);
        assert_eq!(verdict, Verdict::Queued);
    }
}

/// Takes bulk at about 60 Mbit/s until nothing is left. Returns the packets.
fn drain(protect: &mut Protect<u32>, mut now: Instant) -> Vec<u32> {
    let mut out = Vec::new();
    while let Some((_, packet)) = protect.next(Class::Bulk, now) {
        out.push(packet);
        now += Duration::from_micros(200);
    }
    out
}

#[test]
fn small_packets_of_bulk_go_at_once_unless_others_of_their_flow_wait() {
    let mut protect = Protect::new(config());
    assert_eq!(protect.on_packet(head(0, 52), 1, at(0)), Verdict::Pass(1));
    assert_eq!(protect.on_packet(head(0, 257), 2, at(1)), Verdict::Queued);
    assert_eq!(protect.on_packet(head(0, 52), 3, at(2)), Verdict::Queued);
    protect.set_open(true, at(3));
    assert_eq!(drain(&mut protect, at(3)), [2, 3]);
    assert_eq!(protect.on_packet(head(0, 256), 4, at(4)), Verdict::Pass(4));
}

#[test]
fn a_handshake_needs_no_permit_unless_others_of_its_flow_wait() {
    let mut protect = Protect::new(config());
    let opens = Head {
        opens: true,
        ..head(0, 1_228)
    };
    assert_eq!(protect.on_packet(opens, 1, at(0)), Verdict::Pass(1));
    assert_eq!(protect.on_packet(head(0, 1_228), 2, at(1)), Verdict::Queued);
    assert_eq!(protect.on_packet(opens, 3, at(2)), Verdict::Queued);
    protect.set_open(true, at(3));
    assert_eq!(drain(&mut protect, at(3)), [2, 3]);
    protect.on_packet(head(0, 52), 4, at(4));
    let at_once = (5..100).take_while(|packet| protect.on_packet(opens, *packet, at(5)) == Verdict::Pass(*packet));
    assert_eq!(at_once.count(), 32, "then it is no handshake");
}

/// The head of a TCP packet of this length, with payload.
fn segment(number: u16, bytes: u32) -> Head {
    Head {
        flow: Flow {
            protocol: TCP,
            ..flow(number)
        },
        ..head(number, bytes)
    }
}

/// Sends TCP packets without payload.
fn acknowledge(protect: &mut Protect<u32>, number: u16, packets: std::ops::Range<u32>) -> Vec<Verdict<u32>> {
    let empty = Head {
        message_bytes: Some(0),
        ..segment(number, 52)
    };
    packets
        .map(|packet| protect.on_packet(empty, packet, at(u64::from(packet))))
        .collect()
}

#[test]
fn acknowledgements_can_be_held_until_they_carry_something() {
    let taken = |protect: &mut Protect<u32>| {
        let packets = std::iter::from_fn(|| protect.next(Class::Ordinary, at(50)));
        packets.map(|(_, packet)| packet).collect::<Vec<u32>>()
    };
    let mut protect = Protect::new(config());
    acknowledge(&mut protect, 2, 0..7);
    protect.may_acknowledge(false, at(7));
    assert_eq!(taken(&mut protect), [0, 1, 2, 3, 4, 5, 6], "too few to tell");
    acknowledge(&mut protect, 2, 7..10);
    queue(&mut protect, 3, 20..22, at(20));
    assert!(protect.acknowledge_at().is_some());
    assert_eq!(taken(&mut protect), [20, 21], "others pass");
    assert!(!protect.has(Class::Ordinary) && !protect.acknowledges());
    protect.may_acknowledge(true, at(50));
    assert!(protect.has(Class::Ordinary) && protect.acknowledges());
    assert_eq!(taken(&mut protect), [7, 8, 9]);
    assert_eq!(protect.acknowledge_at(), None);
    protect.may_acknowledge(false, at(50));
    acknowledge(&mut protect, 2, 30..32);
    protect.on_packet(segment(2, FULL), 32, at(32));
    assert_eq!(taken(&mut protect), [30, 31, 32], "in their order");
}

#[test]
fn bulk_that_waits_for_a_permit_does_not_leave_as_an_acknowledgement() {
    let mut protect = Protect::new(config());
    protect.on_packet(segment(0, FULL), 0, at(0));
    acknowledge(&mut protect, 0, 1..20);
    protect.may_acknowledge(true, at(20));
    assert!(!protect.acknowledges() && protect.next(Class::Ordinary, at(20)).is_none());
    protect.set_open(true, at(20));
    assert_eq!(drain(&mut protect, at(20)), (0..20).collect::<Vec<u32>>());
    acknowledge(&mut protect, 0, 20..21);
    protect.may_acknowledge(true, at(21));
    assert!(protect.acknowledges());
}

#[test]
fn a_request_behind_acknowledgements_needs_no_permit() {
    let mut protect = Protect::new(config());
    let taken = |protect: &mut Protect<u32>| {
        let packets = std::iter::from_fn(|| protect.next(Class::Ordinary, at(50)));
        packets.map(|(_, packet)| packet).collect::<Vec<u32>>()
    };
    acknowledge(&mut protect, 0, 0..10);
    // A download ends, and the next request follows over its connection.
    protect.on_packet(segment(0, 200), 10, at(10));
    acknowledge(&mut protect, 0, 11..12);
    protect.may_acknowledge(true, at(20));
    assert_eq!(taken(&mut protect), [7, 8, 9, 10, 11]);
    assert_eq!(protect.on_packet(segment(0, 200), 12, at(20)), Verdict::Pass(12));
    // An upload asks for a permit, but those before it need none.
    acknowledge(&mut protect, 0, 13..30);
    assert!(protect.acknowledge_at().is_some_and(|earliest| earliest > at(50)));
    protect.on_packet(segment(0, FULL), 30, at(30));
    assert_eq!(
        protect.acknowledge_at(),
        Some(at(30)),
        "it does not have to wait for more of them"
    );
    assert!(protect.has(Class::Bulk) && protect.next(Class::Bulk, at(30)).is_none());
    protect.on_packet(segment(0, 200), 31, at(31));
    acknowledge(&mut protect, 0, 32..50);
    protect.may_acknowledge(true, at(50));
    assert_eq!(taken(&mut protect), (20..30).collect::<Vec<u32>>());
    assert!(!protect.acknowledges() && protect.has(Class::Bulk));
    protect.set_open(true, at(60));
    assert_eq!(drain(&mut protect, at(60)), (30..50).collect::<Vec<u32>>());
}

#[test]
fn a_driver_learns_that_what_leaves_with_acknowledgements_is_bulk() {
    let mut protect = Protect::new(config());
    acknowledge(&mut protect, 0, 0..10);
    let marked = Head {
        dscp: 34,
        ..segment(0, 200)
    };
    protect.on_packet(marked, 10, at(10));
    acknowledge(&mut protect, 2, 11..20);
    protect.may_acknowledge(true, at(20));
    let packets = std::iter::from_fn(|| protect.next(Class::Ordinary, at(20)));
    let left: Vec<(Head, u32)> = packets.collect();
    assert_eq!(left.len(), 13);
    for (head, packet) in left {
        assert_eq!(protect.is_bulk(&head.flow), packet <= 10, "{packet}");
    }
}

#[test]
fn only_tcps_acknowledgements_wait() {
    let mut protect = Protect::new(config());
    let empty = Head {
        message_bytes: Some(0),
        ..head(2, 52)
    };
    for packet in 0..20_u32 {
        protect.on_packet(empty, packet, at(u64::from(packet)));
    }
    assert_eq!(protect.acknowledge_at(), None);
    assert!(protect.has(Class::Ordinary));
}

#[test]
fn acknowledgements_leave_together() {
    let mut protect = Protect::new(config());
    acknowledge(&mut protect, 2, 0..10);
    let mut left = Vec::new();
    for now in 10..20 {
        acknowledge(&mut protect, 2, now..now + 1);
        let now = at(u64::from(now));
        if protect.acknowledge_at().is_some_and(|at| at <= now) {
            protect.may_acknowledge(true, now);
        }
        left.push(std::iter::from_fn(|| protect.next(Class::Ordinary, now)).count());
    }
    // The first ones wait among the ordinary packets, and the next one leaves at once. Then one departure takes what has
    // come in 4 ms.
    assert_eq!(left, [11, 1, 0, 0, 0, 4, 0, 0, 0, 4]);
    assert_eq!(protect.acknowledge_at(), None);
    // After a pause there is none to wait for.
    acknowledge(&mut protect, 2, 30..31);
    protect.may_acknowledge(true, at(30));
    assert!(protect.acknowledges());
}

#[test]
fn acknowledgements_under_a_rule_for_bulk_need_no_permit_but_can_be_held() {
    let mut protect = Protect::new(config());
    let passed = |packet| Verdict::Pass(packet);
    assert_eq!(
        acknowledge(&mut protect, 0, 0..7),
        (0..7).map(passed).collect::<Vec<_>>()
    );
    assert_eq!(acknowledge(&mut protect, 0, 7..10).last(), Some(&Verdict::Queued));
    protect.may_acknowledge(false, at(10));
    assert!(protect.acknowledge_at().is_some() && !protect.has(Class::Ordinary) && !protect.has(Class::Bulk));
    protect.may_acknowledge(true, at(10));
    assert_eq!(protect.next(Class::Ordinary, at(10)).map(|(_, packet)| packet), Some(7));
}

#[test]
fn control_goes_at_once_and_the_rest_waits_to_be_asked_for() {
    let mut protect = Protect::new(config());
    let sent = protect.on_packet(head(1, 200), 'c', at(0));
    assert!(matches!(
        sent,
        Verdict::Send {
            packet: 'c',
            begins: true,
            ..
        }
    ));
    // Pieces of one message.
    let sent = protect.on_packet(head(1, 200), 'c', at(1));
    assert!(matches!(sent, Verdict::Send { begins: false, .. }));
    assert_eq!(protect.on_packet(head(0, FULL), 'b', at(1)), Verdict::Queued);
    assert_eq!(protect.on_packet(head(2, FULL), 'o', at(1)), Verdict::Queued);
    assert!(protect.has(Class::Ordinary) && protect.has(Class::Bulk) && !protect.has(Class::Control));
    assert_eq!(protect.next(Class::Ordinary, at(2)), Some((head(2, FULL), 'o')));
    assert_eq!(protect.next(Class::Ordinary, at(2)), None);
    assert_eq!(protect.next(Class::Control, at(2)), None);
    assert_eq!(protect.next(Class::Bulk, at(2)), Some((head(0, FULL), 'b')));
    assert!(!protect.has(Class::Ordinary) && !protect.has(Class::Bulk));
    let told = [(Class::Control, Reason::Rule(1)), (Class::Bulk, Reason::Rule(0))];
    assert_eq!(changes(&mut protect), told);
}

/// A program of this file and this control group.
fn program(executable: &str, cgroup: &str) -> Program {
    Program {
        executable: Some(executable.to_owned()),
        cgroup: Some(cgroup.to_owned()),
    }
}

#[test]
fn rules_name_programs_by_file_and_by_control_group() {
    let any = Rule {
        ports: None,
        ..ruled(Class::Bulk, 0)
    };
    let by_file = |pattern: &str| Rule {
        executable: Some(pattern.to_owned()),
        ..any.clone()
    };
    let by_group = |pattern: &str| Rule {
        cgroup: Some(pattern.to_owned()),
        ..any.clone()
    };
    let rsync = program("/usr/bin/rsync", "/system.slice/maps.service/sync");
    let covers = |rule: &Rule| rule.covers(&flow(0), 0, None, &[program("/bin/sh", "/"), rsync.clone()]);
    for (pattern, covered) in [
        ("rsync", true),
        ("rsy*", true),
        ("sync", false),
        ("/usr/bin/rsync", true),
        ("/usr/*", true),
        ("/opt/*", false),
        ("bin/rsync", false),
    ] {
        assert_eq!(covers(&by_file(pattern)), covered, "{pattern}");
    }
    for (pattern, covered) in [
        ("/system.slice/maps.service/sync", true),
        ("/system.slice/maps.service", true),
        ("/system.slice/map*.service", true),
        ("/system.slice/maps", false),
        ("/system.slice", true),
        ("/user.slice", false),
    ] {
        assert_eq!(covers(&by_group(pattern)), covered, "{pattern}");
    }
    let both = |group: &str| Rule {
        cgroup: Some(group.to_owned()),
        ..by_file("rsync")
    };
    assert!(covers(&both("/system.slice")) && !covers(&both("/user.slice")));
    let unknown = [Program::default()];
    assert!(!by_file("*").covers(&flow(0), 0, None, &unknown) && !by_group("*").covers(&flow(0), 0, None, &[]));
}

#[test]
fn rules_by_program_hold_once_the_program_is_known() {
    let rule = Rule {
        executable: Some("rsync".to_owned()),
        ports: None,
        ..ruled(Class::Bulk, 0)
    };
    let mut protect = Protect::new(Config {
        rules: vec![rule],
        ..Config::default()
    });
    protect.on_packet(head(0, FULL), 'p', at(0));
    assert_eq!(protect.poll_unknown(), None, "it may be only one packet");
    for _ in 0..2 {
        protect.on_packet(head(0, FULL), 'p', at(0));
        protect.on_packet(head(3, FULL), 'p', at(0));
    }
    let asked: Vec<Flow> = std::iter::from_fn(|| protect.poll_unknown()).collect();
    assert_eq!(asked, [flow(0), flow(3)], "once each");
    assert!(protect.has(Class::Ordinary) && !protect.has(Class::Bulk));
    protect.on_programs(&flow(0), vec![program("/usr/bin/rsync", "/")]);
    protect.on_programs(&flow(3), vec![program("/usr/bin/ssh", "/")]);
    protect.on_programs(&flow(9), vec![program("/usr/bin/rsync", "/")]);
    protect.on_packet(head(0, FULL), 'p', at(1));
    protect.on_packet(head(3, FULL), 'p', at(1));
    assert_eq!(changes(&mut protect), [(Class::Bulk, Reason::Rule(0))]);
    protect.on_packet(head(0, FULL), 'p', at(40_000));
    assert_eq!(protect.poll_unknown(), None);
}

#[test]
fn only_flows_whose_rule_depends_on_their_program_are_asked_for() {
    let by_program = |port| Rule {
        cgroup: Some("/a".to_owned()),
        ..ruled(Class::Bulk, port)
    };
    let mut protect = Protect::new(Config {
        rules: vec![by_program(10_001), ruled(Class::Control, 10_002), by_program(10_002)],
        ..Config::default()
    });
    let icmp = Head {
        flow: Flow { protocol: 1, ..flow(1) },
        ..head(1, 100)
    };
    let mut asked = |now| {
        for head in [head(1, 100), head(2, 100), head(3, 100), icmp].repeat(2) {
            protect.on_packet(head, 'p', at(now));
        }
        std::iter::from_fn(|| protect.poll_unknown()).collect::<Vec<Flow>>()
    };
    assert_eq!(asked(0), [flow(1)]);
    assert_eq!(asked(29_000), []);
    assert_eq!(asked(30_000), [flow(1)], "once more, as nobody was found");
}

#[test]
fn more_flows_than_can_be_asked_for_are_asked_for_later() {
    let rule = Rule {
        cgroup: Some("/a".to_owned()),
        ports: None,
        ..ruled(Class::Bulk, 0)
    };
    let mut protect = Protect::new(Config {
        rules: vec![rule],
        ..Config::default()
    });
    let send = |protect: &mut Protect<char>| {
        for number in 0..300 {
            protect.on_packet(head(number, 100), 'p', at(0));
        }
    };
    let asked = |protect: &mut Protect<char>| std::iter::from_fn(|| protect.poll_unknown()).count();
    send(&mut protect);
    send(&mut protect);
    assert_eq!(asked(&mut protect), UNKNOWN_MAX);
    send(&mut protect);
    assert_eq!(asked(&mut protect), 300 - UNKNOWN_MAX);
}

#[test]
fn the_first_rule_that_covers_a_flow_holds() {
    let to: IpAddr = Ipv4Addr::new(10, 0, 0, 2).into();
    let any = Rule {
        class: Class::Ordinary,
        protocol: Some(TCP),
        ports: None,
        to: Some(to),
        dscp: None,
        topic: None,
        executable: None,
        cgroup: None,
    };
    let rules = vec![
        Rule {
            dscp: Some(8),
            ..ruled(Class::Bulk, 7_400)
        },
        any.clone(),
        Rule {
            protocol: None,
            class: Class::Control,
            ..any
        },
    ];
    let mut protect = Protect::new(Config {
        rules,
        ..Config::default()
    });
    let marked = Head {
        dscp: 8,
        ..head(0, 100)
    };
    let tcp = Head {
        flow: Flow {
            protocol: TCP,
            ..flow(2)
        },
        ..head(2, 100)
    };
    for head in [marked, head(1, 100), tcp] {
        protect.on_packet(head, (), at(0));
    }
    let told: Vec<_> = protect.flows(at(0)).map(|status| status.reason).collect();
    assert_eq!(told, [Reason::Rule(1), Reason::Rule(0), Reason::Rule(2)]);
}

#[test]
fn the_agents_own_rules_come_behind_the_team_files() {
    let mut protect = Protect::new(Config {
        rules: vec![ruled(Class::Control, 10_000)],
        own_rules: vec![ruled(Class::Bulk, 10_000), ruled(Class::Bulk, 10_001)],
        ..Config::default()
    });
    for number in 0..2 {
        protect.on_packet(head(number, FULL), 0, at(0));
    }
    assert_eq!(class_of(&protect, 0, at(1)), (Class::Control, Reason::Rule(0)));
    assert_eq!(class_of(&protect, 1, at(1)), (Class::Bulk, Reason::Own));
}

#[test]
fn control_by_the_agents_own_rules_is_bounded() {
    let mut protect = Protect::new(Config {
        own_rules: vec![ruled(Class::Control, 10_000)],
        ..Config::default()
    });
    protect.on_packet(head(0, 100), 0, at(0));
    assert_eq!(class_of(&protect, 0, at(1)), (Class::Control, Reason::Own));
    for packet in 1..100 {
        protect.on_packet(head(0, FULL), packet, at(packet));
    }
    assert_eq!(class_of(&protect, 0, at(100)), (Class::Ordinary, Reason::TooFast));
}

#[test]
fn port_0_stands_for_no_port() {
    let rule = ruled(Class::Bulk, 0);
    let portless = Flow {
        from: (flow(0).from.0, 0),
        to: (flow(0).to.0, 0),
        ..flow(0)
    };
    assert!(!rule.covers(&portless, 0, None, &[]));
    let all = Rule {
        ports: Some((0, u16::MAX)),
        ..rule
    };
    assert!(!all.covers(&portless, 0, None, &[]) && all.covers(&flow(0), 0, None, &[]));
}

/// The fragments of a periodic message that no rule names stay together, and ordinary.
#[test]
fn fragments_are_not_control_by_their_period() {
    for (protocol, class) in [(UDP, Class::Ordinary), (1, Class::Control)] {
        let mut protect = Protect::new(Config::default());
        let portless = Head {
            flow: Flow {
                protocol,
                from: (flow(0).from.0, 0),
                to: (flow(0).to.0, 0),
                writer: None,
            },
            ..head(0, 1_000)
        };
        for message in 0..40 {
            protect.on_packet(portless, (), at(33 * message));
            protect.next(Class::Ordinary, at(33 * message));
        }
        let status = protect.flows(at(40 * 33)).next().unwrap();
        assert_eq!(status.class, class);
        assert_eq!(status.period, Some(ms(33)));
    }
}

#[test]
fn marked_traffic_is_control_while_it_is_slow() {
    for dscp in 0..=u8::MAX {
        let mut protect = Protect::new(Config::default());
        let marked = Head { dscp, ..head(0, FULL) };
        protect.on_packet(marked, (), at(0));
        let urgent = [44, 46, 48, 56].contains(&dscp);
        assert_eq!(class_of(&protect, 0, at(0)).0 == Class::Control, urgent, "{dscp}");
        if !urgent {
            continue;
        }
        // 12 Mbit/s: detected within 130 packets, after which the flow is ordinary.
        let mut sent = 1;
        let mut now = at(1);
        while let Verdict::Send { .. } = protect.on_packet(marked, (), now) {
            sent += 1;
            now += ms(1);
        }
        assert!((120..130).contains(&sent), "{sent}");
        assert_eq!(class_of(&protect, 0, now), (Class::Ordinary, Reason::TooFast));
        let told = [(Class::Control, Reason::Marked), (Class::Ordinary, Reason::TooFast)];
        assert_eq!(changes(&mut protect), told);
    }
}

/// 12 KiB every 33 ms, in one datagram each.
#[test]
fn a_marked_perception_is_control() {
    let mut protect = Protect::new(Config::default());
    for number in 0..300 {
        let marked = Head {
            dscp: 46,
            ..head(0, 12_316)
        };
        let verdict = protect.on_packet(marked, (), at(33 * number));
        assert!(matches!(verdict, Verdict::Send { .. }), "{number}");
    }
}

#[test]
fn a_marked_flow_that_was_fast_is_control_again_after_five_slow_seconds() {
    let mut protect = Protect::new(Config::default());
    let marked = Head {
        dscp: 46,
        ..head(0, FULL)
    };
    for packet in 0..3_000 {
        protect.on_packet(marked, 0, at(packet));
        protect.next(Class::Ordinary, at(packet));
    }
    // 3 Mbit/s is below the bound, but not below half of it.
    for packet in 750..2_625 {
        protect.on_packet(marked, 0, at(4 * packet));
        protect.next(Class::Ordinary, at(4 * packet));
        assert_eq!(class_of(&protect, 0, at(4 * packet)).1, Reason::TooFast);
    }
    // 0.4 Mbit/s is.
    let slow = (0..400).find(|packet| {
        let now = at(10_500 + 30 * packet);
        protect.on_packet(marked, 0, now);
        protect.next(Class::Ordinary, now);
        class_of(&protect, 0, now) == (Class::Control, Reason::Marked)
    });
    let after = slow.map(|packet| 30 * packet).unwrap();
    assert!((4_000..7_000).contains(&after), "{after} ms");
}

#[test]
fn a_flow_gets_another_dscp_only_once_some_packets_in_a_row_have_it() {
    let mut protect = Protect::new(Config::default());
    let with = |dscp| Head { dscp, ..head(0, 100) };
    for packet in 0..200 {
        protect.on_packet(with(if packet % 2 == 0 { 0 } else { 46 }), (), at(7 * packet));
    }
    protect.on_packet(with(0), (), at(10_000));
    for _ in 0..8 {
        assert_eq!(status(&protect, 0, at(10_000)).dscp, 0);
        protect.on_packet(with(46), (), at(10_000));
    }
    assert_eq!(status(&protect, 0, at(10_000)).dscp, 46);
}

/// Returns a packet of a DDS writer.
fn written(writer: u8, bytes: u32, message_bytes: u32) -> Head {
    Head {
        flow: Flow {
            writer: Some(Guid([writer; 16])),
            ..flow(0)
        },
        message_bytes: Some(message_bytes),
        ..head(0, bytes)
    }
}

fn class_of_writer<P>(protect: &Protect<P>, writer: u8, now: Instant) -> (Class, Reason) {
    let flow = written(writer, 0, 0).flow;
    let found = protect.flows(now).find(|status| status.flow == flow).unwrap();
    (found.class, found.reason)
}

/// A pose at 30 Hz and images of 1 MB share the same ports. Four fragments of the images arrive every millisecond.
#[test]
fn writers_behind_one_port_part() {
    let mut protect = Protect::new(Config::default());
    for now in 0..2_000 {
        if now % 33 == 0 {
            protect.on_packet(written(1, 200, 150), 'p', at(now));
            // Heartbeats are not messages, whenever they arrive.
            let heartbeat = at(now) + Duration::from_micros(now * 7_919 % 20_000);
            let sent = protect.on_packet(written(1, 80, 0), 'h', heartbeat);
            assert!(!matches!(sent, Verdict::Send { begins: true, .. }));
        }
        if now % 200 < 180 {
            for _ in 0..4 {
                protect.on_packet(written(2, 1_400, 1_000_000), 'i', at(now));
            }
        }
        while protect.next(Class::Ordinary, at(now)).is_some() {}
        while protect.next(Class::Bulk, at(now)).is_some() {}
        if now == 0 {
            // Bulk at once.
            assert_eq!(class_of_writer(&protect, 2, at(0)), (Class::Bulk, Reason::Large));
        }
    }
    let now = at(2_000);
    assert_eq!(class_of_writer(&protect, 1, now), (Class::Control, Reason::Periodic));
    assert_eq!(class_of_writer(&protect, 2, now), (Class::Bulk, Reason::Large));
}

#[test]
fn a_writer_whose_messages_are_small_again_is_bulk_no_longer() {
    let mut protect = Protect::new(Config::default());
    protect.on_packet(written(1, 1_400, 65_537), (), at(0));
    assert_eq!(class_of_writer(&protect, 1, at(0)), (Class::Bulk, Reason::Large));
    protect.next(Class::Bulk, at(0));
    let calm = (1..2_000).find(|message| {
        let now = at(100 + 7 * message);
        protect.on_packet(written(1, 1_000, 65_536), (), now);
        protect.next(Class::Bulk, now);
        protect.next(Class::Ordinary, now);
        class_of_writer(&protect, 1, now).0 == Class::Ordinary
    });
    assert!((4_900..5_200).contains(&(7 * calm.unwrap())), "{calm:?}");
}

#[test]
fn rules_by_topic_hold_once_the_topic_is_known() {
    let rule = Rule {
        topic: Some("/camera/*".to_owned()),
        ports: None,
        ..ruled(Class::Bulk, 1)
    };
    let mut protect = Protect::new(Config {
        rules: vec![rule],
        ..Config::default()
    });
    protect.on_topic(Guid([2; 16]), "rt/camera/left");
    for writer in [1, 2] {
        protect.on_packet(written(writer, 500, 400), (), at(0));
    }
    assert_eq!(
        class_of_writer(&protect, 1, at(0)),
        (Class::Ordinary, Reason::Undecided)
    );
    assert_eq!(class_of_writer(&protect, 2, at(0)), (Class::Bulk, Reason::Rule(0)));
    protect.on_topic(Guid([1; 16]), "rt/camera/right");
    protect.on_packet(written(1, 500, 400), (), at(1));
    assert_eq!(class_of_writer(&protect, 1, at(1)), (Class::Bulk, Reason::Rule(0)));
    let topics: Vec<_> = protect.flows(at(1)).map(|status| status.topic.unwrap()).collect();
    assert_eq!(topics, ["rt/camera/right", "rt/camera/left"]);
}

#[test]
fn a_backlog_makes_a_flow_bulk_and_takes_what_waits_along() {
    let mut protect = Protect::new(Config::default());
    queue(&mut protect, 5, 0..11, at(0));
    queue(&mut protect, 6, 0..10, at(0));
    for now in [at(0), at(49)] {
        queue(&mut protect, 5, 11..12, now);
        assert_eq!(class_of(&protect, 5, now).0, Class::Ordinary);
    }
    queue(&mut protect, 5, 12..13, at(50));
    queue(&mut protect, 6, 10..11, at(50));
    assert_eq!(class_of(&protect, 5, at(50)), (Class::Bulk, Reason::Backlog));
    // Ten full packets are not a backlog yet.
    assert_eq!(class_of(&protect, 6, at(50)), (Class::Ordinary, Reason::Undecided));
    assert_eq!(changes(&mut protect), [(Class::Bulk, Reason::Backlog)]);
    let numbers = drain(&mut protect, at(50));
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12]);
}

/// A backlog is also detected when the driver takes packets, because the program may send nothing more.
#[test]
fn a_backlog_shows_without_new_packets() {
    let mut protect = Protect::new(Config::default());
    queue(&mut protect, 5, 0..40, at(0));
    assert!(protect.next(Class::Ordinary, at(49)).is_some());
    assert!(protect.next(Class::Ordinary, at(50)).is_none());
    assert!(protect.has(Class::Bulk));
}

/// Sends messages of a bulk flow one by one. Returns after how many ms it was no longer bulk.
fn until_no_bulk(held: impl Fn(u64) -> bool) -> Option<u64> {
    let mut protect = Protect::new(Config::default());
    queue(&mut protect, 5, 0..20, at(0));
    queue(&mut protect, 5, 20..21, at(60));
    assert_eq!(class_of(&protect, 5, at(60)).0, Class::Bulk);
    (61..40_000).find(|now| {
        protect.set_open(!held(*now), at(*now));
        if now % 50 == 0 {
            protect.on_packet(head(5, 300), 0, at(*now));
        }
        while !held(*now) && protect.next(Class::Bulk, at(*now)).is_some() {}
        class_of(&protect, 5, at(*now)).0 != Class::Bulk
    })
}

#[test]
fn bulk_without_backlog_is_bulk_no_longer_after_some_seconds_in_which_it_could_send() {
    let free = until_no_bulk(|_| false).unwrap();
    assert!((5_000..5_200).contains(&free), "{free}");
    // Open for a quarter of the time: four times as long, less the time before a packet waited.
    let held = until_no_bulk(|now| now % 1_000 < 750).unwrap();
    assert!((16_000..22_000).contains(&held), "{held}");
    assert_eq!(until_no_bulk(|_| true), None);
}

#[test]
fn bulk_whose_backlog_comes_back_stays_bulk() {
    let mut protect = Protect::new(Config::default());
    protect.set_open(true, at(0));
    for step in 0..400 {
        let now = at(50 * step);
        // A backlog every two seconds.
        let count = if step % 40 < 2 { 20 } else { 1 };
        queue(&mut protect, 5, 0..count, now);
        if step > 2 {
            assert_eq!(class_of(&protect, 5, now), (Class::Bulk, Reason::Backlog), "{step}");
        }
        if step % 40 > 1 {
            drain(&mut protect, now);
        }
    }
}

#[test]
fn silence_does_not_make_bulk_ordinary() {
    let mut protect = Protect::new(Config::default());
    protect.set_open(true, at(0));
    for burst in 0..3 {
        let now = at(20_000 * burst);
        queue(&mut protect, 5, 0..20, now);
        queue(&mut protect, 5, 20..21, now + ms(60));
        assert_eq!(class_of(&protect, 5, now).0, Class::Bulk);
        drain(&mut protect, now + ms(60));
        protect.on_packet(head(5, 100), 0, now + ms(10_000));
        assert_eq!(class_of(&protect, 5, now).0, Class::Bulk, "after burst {burst}");
        drain(&mut protect, now + ms(10_000));
    }
}

#[test]
fn control_that_waits_keeps_its_order() {
    let mut protect = Protect::new(Config::default());
    let marked = Head {
        dscp: 46,
        ..head(5, 200)
    };
    protect.on_packet(head(5, 200), 0, at(0));
    for packet in 1..=9 {
        assert_eq!(
            protect.on_packet(marked, packet, at(10 * u64::from(packet))),
            Verdict::Queued
        );
    }
    assert_eq!(class_of(&protect, 5, at(90)).0, Class::Control);
    let out: Vec<u32> = std::iter::from_fn(|| protect.next(Class::Ordinary, at(91)))
        .map(|(_, packet)| packet)
        .collect();
    assert_eq!(out, (0..=9).collect::<Vec<_>>());
    assert!(matches!(
        protect.on_packet(marked, 10, at(100)),
        Verdict::Send { packet: 10, .. }
    ));
}

#[test]
fn a_flow_becomes_control_only_with_a_messages_first_packet() {
    let mut protect = Protect::new(Config::default());
    let marked = Head {
        dscp: 46,
        ..head(5, 200)
    };
    protect.on_packet(head(5, 200), 0, at(0));
    for packet in 0..20_u32 {
        protect.on_packet(marked, packet, at(1));
        protect.next(Class::Ordinary, at(1));
        protect.next(Class::Ordinary, at(1));
        assert_eq!(class_of(&protect, 5, at(1)).0, Class::Ordinary);
    }
    assert!(matches!(
        protect.on_packet(marked, 9, at(3)),
        Verdict::Send { begins: true, .. }
    ));
}

#[test]
fn a_hold_of_15_s_drops_nothing() {
    let mut protect = Protect::new(config());
    // The packets before the hold and those during it take 200 ms in all at 60 Mbit/s, twice as long as CoDel waits.
    protect.set_open(true, at(0));
    queue(&mut protect, 0, 0..500, at(0));
    protect.set_open(false, at(5));
    queue(&mut protect, 0, 500..1_000, at(7_000));
    protect.set_open(true, at(15_005));
    assert_eq!(drain(&mut protect, at(15_005)), (0..1_000).collect::<Vec<_>>());
    assert_eq!(protect.dropped(), 0);
}

/// Without a hold the same queue waits too long, and a short hold does not hide that.
#[test]
fn bulk_that_stands_while_it_may_leave_is_dropped() {
    for hold in [0, 100] {
        let mut protect = Protect::new(config());
        protect.set_open(true, at(0));
        queue(&mut protect, 0, 0..1_000, at(0));
        protect.set_open(false, at(1));
        protect.set_open(true, at(1 + hold));
        let out = drain(&mut protect, at(1 + hold));
        assert_eq!(out.len() as u64 + protect.dropped(), 1_000);
        assert!((1..20).contains(&protect.dropped()), "{}", protect.dropped());
    }
}

/// Windows repeatedly hold bulk for some ms. A packet that waits through two of them has not waited for long.
#[test]
fn short_holds_do_not_count_as_waiting() {
    let mut protect = Protect::new(config());
    queue(&mut protect, 0, 0..8, at(0));
    for cycle in 1..50 {
        queue(&mut protect, 0, 0..8, at(92 * cycle));
        protect.set_open(true, at(92 * cycle));
        for packet in 0..8 {
            let now = at(92 * cycle) + Duration::from_micros(200 * packet);
            assert!(protect.next(Class::Bulk, now).is_some());
        }
        protect.set_open(false, at(92 * cycle + 2));
    }
    assert_eq!(protect.dropped(), 0);
}

/// CoDel distinguishes packets that arrived after a hold from those that were held.
#[test]
fn a_hold_excuses_only_what_met_it() {
    let mut protect = Protect::new(config());
    queue(&mut protect, 0, 0..10, at(0));
    protect.set_open(true, at(1_000));
    queue(&mut protect, 0, 10..1_000, at(1_001));
    drain(&mut protect, at(1_002));
    assert!(protect.dropped() > 0);
}

#[test]
fn a_flow_that_sends_more_than_fits_loses_its_newest() {
    let mut protect = Protect::new(Config {
        flow_bytes_max: 10 * FULL + 255,
        ..config()
    });
    queue(&mut protect, 0, 0..10, at(0));
    // A short packet takes 256 bytes.
    for bytes in [FULL, 20] {
        assert_eq!(protect.on_packet(head(0, bytes), 10, at(0)), Verdict::Dropped(10));
    }
    assert_eq!(status(&protect, 0, at(0)).dropped, 2);
    let long = protect.on_packet(head(4, 20 * FULL), 10, at(0));
    assert_eq!(long, Verdict::Queued, "one may always wait");
    queue(&mut protect, 2, 0..1, at(0));
    assert_eq!(drain(&mut protect, at(0)), (0..10).collect::<Vec<_>>());
}

#[test]
fn if_no_memory_is_left_one_of_the_longest_flows_loses_its_oldest() {
    let mut protect = Protect::new(Config {
        bytes_max: 100 * FULL,
        ..config()
    });
    queue(&mut protect, 2, 0..10, at(0));
    queue(&mut protect, 0, 0..90, at(0));
    queue(&mut protect, 3, 0..5, at(0));
    assert_eq!(
        [0, 2, 3].map(|number| status(&protect, number, at(0)).dropped),
        [5, 0, 0]
    );
    assert_eq!(drain(&mut protect, at(0)), (5..90).collect::<Vec<_>>());
}

/// Packets of 4,000 bytes leave in pieces of at most 1,500, in turn with another flow's.
#[test]
fn the_rest_of_a_packet_stays_the_first_of_its_flow() {
    let rules = (0..2).map(|number| ruled(Class::Bulk, 10_000 + number)).collect();
    let mut protect = Protect::new(Config {
        rules,
        ..Config::default()
    });
    protect.set_open(true, at(0));
    let small = head(0, 100);
    let cut = |packet: &mut (char, u32), _| {
        let piece = (packet.0, 1_500);
        (packet.1 > 1_500).then(|| {
            packet.1 -= 1_500;
            (piece, 1_500)
        })
    };
    for name in ['a', 'b'] {
        assert_eq!(protect.on_packet(head(0, 4_000), (name, 4_000), at(0)), Verdict::Queued);
        assert_eq!(protect.on_packet(head(1, FULL), ('o', FULL), at(0)), Verdict::Queued);
    }
    let mut out = Vec::new();
    while let Some((head, piece)) = protect.next_piece(Class::Bulk, at(1), cut) {
        assert_eq!(head.bytes, piece.1);
        out.push(piece);
        if out.len() == 1 {
            // The queue is not empty, so a small packet waits behind.
            assert_eq!(protect.on_packet(small, ('s', 100), at(1)), Verdict::Queued);
            assert_eq!(status(&protect, 0, at(1)).waiting_bytes, 2_500 + 4_000 + 100);
        }
    }
    let of_first: Vec<_> = out.iter().copied().filter(|piece| piece.0 != 'o').collect();
    let whole = |name| [(name, 1_500), (name, 1_500), (name, 1_000)];
    assert_eq!(of_first, [&whole('a')[..], &whole('b'), &[('s', 100)]].concat());
    let first_two: Vec<_> = out.iter().take(3).map(|piece| piece.0).collect();
    assert!(first_two.contains(&'o'), "{out:?}");
}

/// A packet that waits too long loses one piece if the rest is of use without it, or else everything.
#[test]
fn a_piece_is_dropped_alone_where_the_rest_is_of_use() {
    let dropped = |in_part: bool| {
        let rules = vec![ruled(Class::Bulk, 10_000)];
        let mut protect = Protect::new(Config {
            rules,
            ..Config::default()
        });
        protect.set_open(true, at(0));
        for name in 0..4u32 {
            let verdict = protect.on_packet(head(0, 40_000), (name, 40_000), at(0));
            assert_eq!(verdict, Verdict::Queued);
        }
        let cut = |packet: &mut (u32, u32), drops: bool| {
            let bytes = if drops { 1_000 } else { 10_000 };
            let cuts = packet.1 > bytes && (in_part || !drops);
            cuts.then(|| {
                packet.1 -= bytes;
                ((packet.0, bytes), bytes)
            })
        };
        // One packet every 50 ms is far too slow.
        let times = (1..=20).map(|n| at(50 * n));
        let left: u32 = times
            .filter_map(|now| protect.next_piece(Class::Bulk, now, cut))
            .map(|(_, piece)| piece.1)
            .sum();
        (160_000 - left, status(&protect, 0, at(1_000)).dropped)
    };
    let ((all_bytes, all), (part_bytes, part)) = (dropped(false), dropped(true));
    assert!(
        all > 0 && u64::from(all_bytes) == all * 40_000,
        "{all_bytes} bytes of {all}"
    );
    assert!(
        part > 0 && u64::from(part_bytes) == part * 1_000,
        "{part_bytes} bytes of {part}"
    );
}

/// A flow with one large packet at a time never has a backlog, but still gets no advantage.
#[test]
fn an_empty_queue_pays_no_debt() {
    let rules = (0..2).map(|number| ruled(Class::Bulk, 10_000 + number)).collect();
    let mut protect = Protect::new(Config {
        rules,
        ..Config::default()
    });
    let mut sent = [0u64; 2];
    let sizes = [9_000, FULL];
    for (number, bytes) in [0usize, 1, 1].map(|number| (number, sizes[number])) {
        protect.on_packet(head(number as u16, bytes), number, at(0));
    }
    for _ in 0..1_000 {
        let (head, number) = protect.next(Class::Bulk, at(0)).unwrap();
        sent[number] += u64::from(head.bytes);
        protect.on_packet(head, number, at(0));
    }
    assert!(sent[0].abs_diff(sent[1]) < 2 * 9_000 + 2 * 1_514, "{sent:?}");
}

#[test]
fn a_flow_shows_its_longest_wait() {
    let mut protect = Protect::new(config());
    queue(&mut protect, 0, 0..2, at(100));
    protect.set_open(true, at(107));
    protect.next(Class::Bulk, at(107));
    assert_eq!(status(&protect, 0, at(107)).late, ms(7));
    protect.next(Class::Bulk, at(1_600));
    assert_eq!(status(&protect, 0, at(1_600)).late, ms(1_500));
    protect.on_packet(head(1, 100), 9, at(1_600));
    let mut told = std::iter::from_fn(|| protect.poll());
    let number = told.find(|change| change.class == Class::Control).unwrap().number;
    protect.on_control_left(number, ms(2), at(1_602));
    assert_eq!(status(&protect, 1, at(1_602)).late, ms(2));
}

/// Sends ordinary packets, and more bulk than fits, into a card that sends a packet every 0.1 ms and has room for 64 of
/// bulk. `ordinary` says how many packets of flow 2 come at a time. Returns the longest wait of one, and how many packets
/// of each class have left.
fn beside_bulk(span_ms: u64, ordinary: impl Fn(u64) -> u32) -> (Duration, [u32; 2]) {
    let rules = vec![ruled(Class::Bulk, 10_000), ruled(Class::Ordinary, 10_002)];
    let mut protect = Protect::new(Config {
        rules,
        ..Config::default()
    });
    let (mut below, mut longest, mut sent) = (VecDeque::new(), Duration::ZERO, [0, 0]);
    for step in 0..span_ms * 10 {
        let now = Instant::from_nanos(step * MS / 10);
        for (number, packets) in [(0, 2), (2, ordinary(step))] {
            for _ in 0..packets {
                protect.on_packet(head(number, FULL), now, now);
            }
        }
        below.pop_front();
        while below.len() < BELOW_ORDINARY_MAX {
            let Some((_, came_at)) = protect.next(Class::Ordinary, now) else {
                break;
            };
            longest = longest.max(now.since(came_at));
            sent[0] += 1;
            below.push_back(());
        }
        let room = Some(64 - below.len()).filter(|room| *room > 0);
        let room = protect.bulk_room(room, below.len(), now);
        for _ in 0..room.unwrap_or(0) {
            let Some(_) = protect.next(Class::Bulk, now) else { break };
            sent[1] += 1;
            below.push_back(());
        }
    }
    (longest, sent)
}

#[test]
fn an_ordinary_packet_waits_for_room_only_and_not_for_bulks_end() {
    let (longest, [ordinary, bulk]) = beside_bulk(1_000, |step| u32::from(step.is_multiple_of(331)));
    assert_eq!(ordinary, 31);
    assert!(longest <= ms(5), "{longest}");
    assert!(bulk > 9_900, "{bulk}");
}

#[test]
fn ordinary_packets_without_end_leave_bulk_half() {
    let (_, [ordinary, bulk]) = beside_bulk(1_000, |_| 1);
    let share = f64::from(bulk) / f64::from(ordinary + bulk);
    assert!((0.4..=0.6).contains(&share), "{ordinary} and {bulk}");
}

#[test]
fn silent_flows_are_forgotten_and_control_that_was_told_is_told_again() {
    let mut protect = Protect::new(config());
    protect.on_packet(head(1, 100), 0, at(0));
    protect.on_packet(head(2, 100), 0, at(1_000));
    protect.on_packet(head(0, FULL), 0, at(1_000));
    protect.next(Class::Ordinary, at(1_000));
    changes(&mut protect);
    assert_eq!(protect.next_deadline(), Some(at(60_000)));
    protect.on_deadline(at(59_999));
    assert_eq!(protect.flows(at(59_999)).count(), 3);
    protect.on_deadline(at(60_000));
    assert_eq!(changes(&mut protect), [(Class::Ordinary, Reason::Silent)]);
    // Bulk with waiting packets is kept.
    protect.on_deadline(at(61_000));
    let left: Vec<_> = protect.flows(at(61_000)).map(|status| status.flow).collect();
    assert_eq!(left, [flow(0)]);
    assert_eq!(protect.next_deadline(), Some(at(121_000)));
}

#[test]
fn a_forgotten_flow_leaves_nothing_to_the_next() {
    let mut protect = Protect::new(Config {
        flows_max: 1,
        flow_bytes_max: 0,
        ..config()
    });
    queue(&mut protect, 0, 0..1, at(0));
    protect.on_packet(head(0, FULL), 1, at(0));
    assert_eq!(drain(&mut protect, at(0)), [0]);
    queue(&mut protect, 5, 7..8, at(1));
    assert_eq!(protect.next(Class::Ordinary, at(1)), Some((head(5, FULL), 7)));
    assert_eq!(status(&protect, 5, at(1)).dropped, 0);
}

#[test]
fn the_most_silent_flow_is_the_one_whose_last_packet_is_oldest() {
    let mut protect = Protect::new(Config {
        flows_max: 2,
        ..config()
    });
    for (now, number) in [2, 3, 2, 4].into_iter().enumerate() {
        protect.on_packet(head(number, FULL), (), at(now as u64));
        protect.next(Class::Ordinary, at(now as u64));
    }
    let known: Vec<_> = protect.flows(at(4)).map(|status| status.flow).collect();
    assert_eq!(known, [flow(2), flow(4)]);
}

#[test]
fn a_flow_has_sent_before_it_becomes_control_unless_it_begins_as_such() {
    for (number, sent_before) in [(1, false), (2, true)] {
        let mut protect = Protect::new(config());
        let mut now = at(0);
        let change = loop {
            protect.on_packet(head(number, 100), number, now);
            protect.next(Class::Ordinary, now);
            if let Some(change) = protect.poll() {
                break change;
            }
            now += ms(33);
            assert!(now < at(1_000), "{number}");
        };
        assert_eq!(change.class, Class::Control);
        assert_eq!(protect.has_sent(change.number), sent_before, "{number}");
    }
}

#[test]
fn a_full_table_forgets_the_most_silent_and_never_what_waits() {
    let mut protect = Protect::new(Config {
        flows_max: 3,
        ..config()
    });
    protect.on_packet(head(0, FULL), 0, at(0));
    protect.on_packet(head(1, 100), 0, at(1));
    queue(&mut protect, 2, 0..1, at(2));
    changes(&mut protect);
    queue(&mut protect, 3, 0..1, at(3));
    assert_eq!(changes(&mut protect), [(Class::Ordinary, Reason::Silent)]);
    // All flows have waiting packets, so new flows share a queue, and stay in it until it is empty.
    queue(&mut protect, 4, 0..1, at(4));
    let shared = |protect: &Protect<u32>| {
        let shared = protect.flows(at(4)).find(|status| status.flow.protocol == u8::MAX);
        shared.map_or(0, |status| status.packets)
    };
    assert_eq!(shared(&protect), 1);
    assert!(protect.next(Class::Ordinary, at(4)).is_some());
    queue(&mut protect, 4, 1..2, at(4));
    assert_eq!(shared(&protect), 2);
    while protect.next(Class::Ordinary, at(4)).is_some() {}
    queue(&mut protect, 4, 2..3, at(4));
    assert_eq!(shared(&protect), 2);
}

/// Urgent marks do not make a shared queue control, because it is unknown how much of it is control.
#[test]
fn the_shared_queue_is_never_control() {
    let mut protect = Protect::new(Config {
        flows_max: 1,
        ..config()
    });
    queue(&mut protect, 0, 0..1, at(0));
    for packet in 0..100 {
        let marked = Head {
            dscp: 46,
            ..head(2, 100)
        };
        let now = at(u64::from(packet) * 20);
        assert_eq!(protect.on_packet(marked, packet, now), Verdict::Queued);
        assert_eq!(protect.next(Class::Ordinary, now), Some((marked, packet)));
    }
}

#[test]
fn a_driver_that_does_not_poll_gets_no_more_changes() {
    let mut protect = Protect::new(Config::default());
    for number in 0..3_000 {
        let marked = Head {
            dscp: 46,
            ..head(number, 100)
        };
        protect.on_packet(marked, 0, at(u64::from(number)));
    }
    assert_eq!(changes(&mut protect).len(), CHANGES_MAX);
    protect.on_packet(head(3_001, 100), 0, at(3_001));
    assert_eq!(protect.flows(at(3_001)).count(), CHANGES_MAX + 1);
}

#[test]
fn the_rate_is_that_of_the_last_second() {
    let mut protect = Protect::new(config());
    for now in 0..4_000 {
        protect.on_packet(head(1, 125), 0, at(now));
        if now > 1_500 {
            let rate = status(&protect, 1, at(now)).rate_bps;
            assert!((980_000..=1_020_000).contains(&rate), "{rate} at {now} ms");
        }
    }
    assert!((450_000..550_000).contains(&status(&protect, 1, at(4_500)).rate_bps));
    assert_eq!(status(&protect, 1, at(6_000)).rate_bps, 0);
}

/// One step of a machine.
#[derive(Clone, Debug)]
enum Step {
    Packet {
        flow: u16,
        bytes: u32,
        dscp: u8,
        count: u8,
    },
    /// Packets without payload.
    Empty {
        flow: u16,
        count: u8,
    },
    MayAcknowledge(bool),
    Take {
        class: Class,
        count: u8,
    },
    Open(bool),
    Wait {
        us: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![Just(0), Just(64), Just(FULL), Just(65_535), any::<u32>()];
    let dscp = prop_oneof![Just(0), Just(46), any::<u8>()];
    let class = prop_oneof![Just(Class::Ordinary), Just(Class::Bulk), Just(Class::Control)];
    let step = prop_oneof![
        6 => (0u16..8, bytes, dscp, 1u8..30).prop_map(|(flow, bytes, dscp, count)| Step::Packet { flow, bytes, dscp, count }),
        3 => (0u16..8, 1u8..30).prop_map(|(flow, count)| Step::Empty { flow, count }),
        2 => any::<bool>().prop_map(Step::MayAcknowledge),
        4 => (class, 1u8..40).prop_map(|(class, count)| Step::Take { class, count }),
        1 => any::<bool>().prop_map(Step::Open),
        3 => prop_oneof![0u64..100, 0u64..60_000, 0u64..100_000_000].prop_map(|us| Step::Wait { us }),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    /// Every packet is sent, waits, or is counted as dropped. No flow's packets overtake each other. Nothing waits
    /// beyond the limits.
    #[test]
    fn packets_keep_their_order_and_none_is_lost_unseen(
        steps in steps(),
        flows_max in 1usize..9,
        flow_bytes_max in 0u32..300_000,
        bytes_max in prop_oneof![Just(10_000u32), Just(u32::MAX)],
    ) {
        let mut rules = config().rules;
        rules.push(ruled(Class::Bulk, 10_004));
        let mut protect = Protect::new(Config { rules, flows_max, flow_bytes_max, bytes_max, ..config() });
        let of = |number: u16, bytes| if number < 4 { head(number, bytes) } else { segment(number, bytes) };
        let mut now = Instant::ZERO;
        let (mut came, mut left, mut refused) = (0u64, 0u64, 0u64);
        let mut newest = [0u64; 8];
        for step in steps {
            let mut gone = Vec::new();
            match step {
                Step::Packet { flow: number, count, .. } | Step::Empty { flow: number, count } => for _ in 0..count {
                    came += 1;
                    let head = match step {
                        Step::Packet { bytes, dscp, .. } => Head { dscp, ..of(number, bytes) },
                        _ => Head { message_bytes: Some(0), ..of(number, 52) },
                    };
                    match protect.on_packet(head, (number, came), now) {
                        Verdict::Send { packet, .. } | Verdict::Pass(packet) => gone.push(packet),
                        Verdict::Queued => {}
                        Verdict::Dropped(packet) => {
                            prop_assert_eq!(packet, (number, came));
                            refused += 1;
                        }
                    }
                },
                Step::Take { class, count } => {
                    let had = protect.has(class);
                    for _ in 0..count {
                        let Some((head, packet)) = protect.next(class, now) else {
                            break;
                        };
                        prop_assert!(had);
                        prop_assert_eq!(head.flow, of(packet.0, 0).flow);
                        prop_assert!(class == Class::Bulk || head.bytes <= 256 || !protect.is_bulk(&head.flow));
                        gone.push(packet);
                    }
                }
                Step::MayAcknowledge(may) => protect.may_acknowledge(may, now),
                Step::Open(open) => protect.set_open(open, now),
                Step::Wait { us } => {
                    now += Duration::from_micros(us);
                    protect.on_deadline(now);
                }
            }
            for (number, packet) in gone {
                prop_assert!(packet > newest[usize::from(number)], "flow {} reordered", number);
                newest[usize::from(number)] = packet;
                left += 1;
            }
            while protect.poll().is_some() {}
            let waiting: u64 = protect.flows(now).map(|status| u64::from(status.waiting_packets)).sum();
            prop_assert_eq!(came, left + waiting + protect.dropped());
            prop_assert!(refused <= protect.dropped());
            prop_assert!(protect.flows(now).count() <= flows_max + 1);
            for status in protect.flows(now) {
                prop_assert!(status.waiting_packets <= 1 || status.waiting_bytes <= u64::from(flow_bytes_max));
                prop_assert!(bytes_max == u32::MAX || status.waiting_bytes <= u64::from(bytes_max));
            }
            prop_assert_eq!(
                protect.has(Class::Ordinary) || protect.has(Class::Bulk) || protect.acknowledge_at().is_some(),
                waiting > 0,
            );
        }
    }

    /// All packets that wait when a long hold ends leave without a drop, if they are within the limits.
    #[test]
    fn a_long_hold_drops_nothing(
        before in 0u32..500,
        during in prop::collection::vec(1u32..300, 1..4),
        hold_ms in 1_000u64..15_000,
        flows in 1u16..4,
    ) {
        let rules = (0..flows).map(|number| ruled(Class::Bulk, 10_000 + number)).collect();
        let mut protect = Protect::new(Config { rules, ..Config::default() });
        protect.set_open(true, at(0));
        let mut sent = 0;
        for number in 0..flows {
            queue(&mut protect, number, 0..before, at(0));
            sent += before;
        }
        protect.set_open(false, at(1));
        for (step, count) in during.iter().enumerate() {
            for number in 0..flows {
                queue(&mut protect, number, 0..*count, at(2 + step as u64 * hold_ms / 4));
                sent += count;
            }
        }
        protect.set_open(true, at(1 + hold_ms));
        prop_assert_eq!(drain(&mut protect, at(1 + hold_ms)).len(), sent as usize);
        prop_assert_eq!(protect.dropped(), 0);
    }

    /// Flows that always have something to send get the same share, to within two packets and two rounds.
    #[test]
    fn shares_are_equal(sizes in prop::collection::vec(257u32..3_000, 2..6), rounds in 50usize..300) {
        let rules = (0..6).map(|number| ruled(Class::Bulk, 10_000 + number)).collect();
        let mut protect = Protect::new(Config { rules, ..Config::default() });
        let mut sent = vec![0u64; sizes.len()];
        for (number, bytes) in sizes.iter().enumerate() {
            for _ in 0..2 {
                protect.on_packet(head(number as u16, *bytes), number, at(0));
            }
        }
        for _ in 0..rounds * sizes.len() {
            let (head, number) = protect.next(Class::Bulk, at(0)).unwrap();
            sent[number] += u64::from(head.bytes);
            protect.on_packet(head, number, at(0));
        }
        let most = u64::from(*sizes.iter().max().unwrap());
        let spread = sent.iter().max().unwrap() - sent.iter().min().unwrap();
        prop_assert!(spread <= 2 * most + 2 * 1_514, "{:?} of {:?}", sent, sizes);
    }
}
