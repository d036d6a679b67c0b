use super::*;
use crate::packet::AccessCategory;
use coorp_core::{Duration, FlowId};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn packet(flow: u32, to: u16, tag: u64, bytes: u16) -> Packet {
    Packet {
        flow: FlowId(flow),
        tag,
        bytes,
        from: StationId(0),
        to: StationId(to),
        category: AccessCategory::BestEffort,
        sent_at: Instant::ZERO,
    }
}

fn at_ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn nothing_dropped(packet: Packet) {
    panic!("{packet:?} was dropped");
}

#[test]
fn packets_of_one_flow_keep_their_order() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..1000 {
        assert_eq!(queue.push(packet(1, 1, tag, 1500), Instant::ZERO), None);
    }
    for tag in 0..1000 {
        assert_eq!(queue.pop(Instant::ZERO, &mut nothing_dropped).map(|p| p.tag), Some(tag));
    }
    assert!(queue.is_empty());
    assert_eq!(queue.pop(Instant::ZERO, &mut nothing_dropped), None);
}

#[test]
fn a_sparse_flow_passes_a_fat_one() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..500 {
        queue.push(packet(1, 1, tag, 1500), Instant::ZERO);
    }
    for _ in 0..10 {
        queue.pop(Instant::ZERO, &mut nothing_dropped);
    }
    queue.push(packet(2, 1, 0, 200), Instant::ZERO);
    assert_eq!(
        queue.pop(Instant::ZERO, &mut nothing_dropped).map(|p| p.flow),
        Some(FlowId(2))
    );
}

#[test]
fn a_flow_that_keeps_coming_new_does_not_starve_the_old() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..500 {
        queue.push(packet(1, 1, tag, 1500), Instant::ZERO);
    }
    let mut fat = 0;
    for tag in 0..400 {
        queue.push(packet(2, 1, tag, 1500), Instant::ZERO);
        let popped = queue
            .pop(Instant::ZERO, &mut nothing_dropped)
            .expect("both flows have packets");
        fat += u32::from(popped.flow == FlowId(1));
    }
    assert!((190..=210).contains(&fat), "the old flow had {fat} of 400 turns");
}

#[test]
fn a_flow_that_ran_empty_does_not_come_new_at_once() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..10 {
        queue.push(packet(1, 1, tag, 100), Instant::ZERO);
    }
    let mut flows = Vec::new();
    for (pushes, pops) in [(0, 3), (1, 2), (1, 3)] {
        (0..pushes).for_each(|tag| assert_eq!(queue.push(packet(2, 1, tag, 100), Instant::ZERO), None));
        flows.extend(
            (0..pops)
                .filter_map(|_| queue.pop(Instant::ZERO, &mut nothing_dropped))
                .map(|p| p.flow.0),
        );
    }
    // Flow 2 overtakes once. Then it is known, and flow 1 first uses up its quantum of three packets.
    assert_eq!(flows, [1, 1, 1, 2, 1, 1, 1, 2]);
}

#[test]
fn fat_flows_share_by_bytes_not_by_packets() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..3000 {
        queue.push(packet(1, 1, tag, 1500), Instant::ZERO);
        queue.push(packet(2, 1, tag, 500), Instant::ZERO);
    }
    let mut bytes = [0_u32; 2];
    for _ in 0..3000 {
        let popped = queue
            .pop(Instant::ZERO, &mut nothing_dropped)
            .expect("both flows have packets");
        bytes[popped.flow.0 as usize - 1] += u32::from(popped.bytes);
    }
    assert!(bytes[0].abs_diff(bytes[1]) <= 3000, "{bytes:?}");
}

#[test]
fn destinations_take_turns_and_can_be_drawn_from_apart() {
    let mut queue = FqCodel::new(Config::default());
    for tag in 0..4 {
        for to in [3, 1, 2] {
            queue.push(packet(7, to, tag, 1500), Instant::ZERO);
        }
    }
    let turns: Vec<u16> = (0..6)
        .filter_map(|_| queue.pop(Instant::ZERO, &mut nothing_dropped))
        .map(|p| p.to.0)
        .collect();
    assert_eq!(turns, [3, 1, 2, 3, 1, 2]);
    assert_eq!(queue.len_for(StationId(2)), 2);
    for tag in 2..4 {
        assert_eq!(
            queue
                .pop_for(StationId(2), Instant::ZERO, &mut nothing_dropped)
                .map(|p| p.tag),
            Some(tag)
        );
    }
    assert_eq!(queue.pop_for(StationId(2), Instant::ZERO, &mut nothing_dropped), None);
    assert_eq!(queue.pop_for(StationId(9), Instant::ZERO, &mut nothing_dropped), None);
    let stations: Vec<u16> = (0..4).filter_map(|_| queue.next_destination()).map(|s| s.0).collect();
    assert_eq!(stations, [3, 1, 3, 1]);
    assert_eq!(queue.len(), 4);
}

/// Serves one packet per millisecond while `arrivals_per_ms` arrive, and counts CoDel's drops.
fn serve(queue: &mut FqCodel, from_ms: u64, to_ms: u64, arrivals_per_ms: u64) -> (u64, Option<Duration>) {
    let mut drops = 0;
    let mut wait = None;
    for ms in from_ms..to_ms {
        let now = at_ms(ms);
        for _ in 0..arrivals_per_ms {
            queue.push(
                Packet {
                    sent_at: now,
                    ..packet(1, 1, 0, 1500)
                },
                now,
            );
        }
        wait = queue.pop(now, &mut |_| drops += 1).map(|p| now.since(p.sent_at));
    }
    (drops, wait)
}

#[test]
fn codel_drops_under_a_standing_queue_and_stops_when_the_wait_is_gone() {
    let mut queue = FqCodel::new(Config::default());
    for _ in 0..200 {
        queue.push(packet(1, 1, 0, 1500), Instant::ZERO);
    }
    let (early, _) = serve(&mut queue, 0, 100, 1);
    assert_eq!(early, 0, "the delay has not lasted for an interval yet");
    let (later, wait) = serve(&mut queue, 100, 5_000, 1);
    assert!(later > 100, "only {later} drops");
    assert!(
        wait.expect("still served") <= Duration::from_millis(21),
        "wait is {wait:?}"
    );
    let (after, _) = serve(&mut queue, 5_000, 8_000, 1);
    assert!(after <= 1, "{after} drops at a short wait");
}

#[test]
fn codel_drops_faster_the_longer_the_wait_stands() {
    let mut queue = FqCodel::new(Config::default());
    let (first, _) = serve(&mut queue, 0, 1_000, 2);
    let (second, _) = serve(&mut queue, 1_000, 2_000, 2);
    assert!(second > first, "{first} then {second}");
}

#[test]
fn codel_off_drops_nothing() {
    let mut queue = FqCodel::new(Config {
        codel: None,
        ..Config::default()
    });
    let (drops, _) = serve(&mut queue, 0, 3_000, 2);
    assert_eq!(drops, 0);
    assert_eq!(queue.len(), 3_000);
}

#[test]
fn a_full_queue_drops_the_oldest_of_the_fattest_flow() {
    let mut queue = FqCodel::new(Config {
        packet_limit: 10,
        ..Config::default()
    });
    for tag in 0..9 {
        assert_eq!(queue.push(packet(1, 1, tag, 1500), Instant::ZERO), None);
    }
    assert_eq!(queue.push(packet(2, 2, 0, 100), Instant::ZERO), None);
    let dropped = queue.push(packet(2, 2, 1, 100), Instant::ZERO);
    assert_eq!(dropped.map(|p| (p.flow, p.tag)), Some((FlowId(1), 0)));
    assert_eq!(queue.len(), 10);
}

#[test]
fn flows_past_the_table_share_their_destinations_queue() {
    let mut queue = FqCodel::new(Config::default());
    let flows = MAX_FLOWS as u32 + 100;
    for flow in 0..flows {
        queue.push(packet(flow, (flow % 7) as u16, 0, 100), Instant::ZERO);
    }
    assert!(queue.flows.len() <= MAX_FLOWS + 7);
    let mut seen = BTreeSet::new();
    while let Some(popped) = queue.pop(Instant::ZERO, &mut nothing_dropped) {
        assert_eq!(u32::from(popped.to.0), popped.flow.0 % 7);
        assert!(seen.insert(popped.flow.0));
    }
    assert_eq!(seen.len(), flows as usize);
}

#[derive(Clone, Debug)]
enum Step {
    Push { flow: u32, to: u16, bytes: u16 },
    Pop,
    PopFor { to: u16 },
    Wait { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u32..6, 0_u16..4, 0_u16..3000).prop_map(|(flow, to, bytes)| Step::Push { flow, to, bytes }),
        2 => Just(Step::Pop),
        1 => (0_u16..5).prop_map(|to| Step::PopFor { to }),
        1 => (0_u64..200).prop_map(|ms| Step::Wait { ms }),
    ]
}

proptest! {
    /// Each packet pushed is popped or reported as dropped, once, in its flow's order, and never to a wrong
    /// destination.
    #[test]
    fn packets_are_conserved(
        steps in proptest::collection::vec(step(), 0..600),
        packet_limit in 0_usize..40,
        quantum_bytes in 0_u16..2000,
    ) {
        let mut queue = FqCodel::new(Config { packet_limit, quantum_bytes, ..Config::default() });
        let mut now = Instant::ZERO;
        let mut pushed = 0_u64;
        let mut gone: Vec<Packet> = Vec::new();
        for step in steps {
            match step {
                Step::Push { flow, to, bytes } => {
                    gone.extend(queue.push(packet(flow, to, pushed, bytes), now));
                    pushed += 1;
                }
                Step::Pop => {
                    let was_empty = queue.is_empty();
                    let popped = queue.pop(now, &mut |p| gone.push(p));
                    prop_assert_eq!(popped.is_none(), was_empty);
                    gone.extend(popped);
                }
                Step::PopFor { to } => {
                    let popped = queue.pop_for(StationId(to), now, &mut |p| gone.push(p));
                    prop_assert!(popped.is_none_or(|p| p.to == StationId(to)));
                    gone.extend(popped);
                }
                Step::Wait { ms } => now += Duration::from_millis(ms),
            }
            prop_assert!(queue.len() <= packet_limit.max(1));
            prop_assert_eq!(queue.len() as u64 + gone.len() as u64, pushed);
        }
        while let Some(popped) = queue.pop(now, &mut |p| gone.push(p)) {
            gone.push(popped);
        }
        let tags: BTreeSet<u64> = gone.iter().map(|p| p.tag).collect();
        prop_assert_eq!(gone.len() as u64, pushed);
        prop_assert_eq!(tags.len() as u64, pushed);
        for (flow, to) in (0..6).flat_map(|flow| (0..4).map(move |to| (flow, to))) {
            let order: Vec<u64> =
                gone.iter().filter(|p| p.flow.0 == flow && p.to.0 == to).map(|p| p.tag).collect();
            prop_assert!(order.is_sorted());
        }
    }
}
