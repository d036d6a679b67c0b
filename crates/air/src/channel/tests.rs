use super::*;
use crate::config::Wnic;
use crate::link::Link;
use crate::phy::{Phy, Rate};
use coorp_core::FlowId;
use proptest::prelude::*;

/// A host that records all calls and lets everything pass.
#[derive(Default)]
struct Recorder {
    delivered: Vec<Packet>,
    completed: Vec<(Packet, bool)>,
    /// The same at the access point, for packets of others.
    passed_on: Vec<(Packet, bool)>,
    released: usize,
    dropped: Vec<Packet>,
    on_air: Vec<Transmission>,
    hold: bool,
}

impl Host for Recorder {
    fn may_dequeue(&mut self, _: StationId, category: AccessCategory, _: Load, most: u16, _: Instant) -> u16 {
        let passes = !self.hold || category == AccessCategory::Voice;
        most * u16::from(passes)
    }
    fn enqueued(&mut self, _: StationId, _: &Packet, _: Instant) {}
    fn released(&mut self, _: StationId, _: &Packet, _: u16, _: Instant, _: Instant) {
        self.released += 1;
    }
    fn completed(&mut self, station: StationId, packet: &Packet, _: Instant, acknowledged: bool, _: Instant) {
        match station == packet.from {
            true => self.completed.push((*packet, acknowledged)),
            false => self.passed_on.push((*packet, acknowledged)),
        }
    }
    fn delivered(&mut self, packet: &Packet, _: Instant) {
        self.delivered.push(*packet);
    }
    fn dropped(&mut self, _: StationId, packet: &Packet, _: Instant) {
        self.dropped.push(*packet);
    }
    fn transmitted(&mut self, transmission: &Transmission) {
        self.on_air.push(*transmission);
    }
}

fn edca(aifsn: u8, cw_min: u16, cw_max: u16) -> Edca {
    Edca {
        aifsn,
        cw_min,
        cw_max,
        txop: Duration::ZERO,
        ampdu_frames: 64,
        ampdu_bytes: 65_535,
    }
}

fn config(stations: u16, commit_frames: Option<u16>, loss: f64) -> Config {
    Config {
        phy: Phy {
            standard: Standard::Ac,
            width_mhz: 20,
            guard_interval_ns: 800,
            control_rate_mbps: 24,
        },
        edca: [edca(2, 3, 7), edca(2, 7, 15), edca(3, 15, 1023), edca(7, 15, 1023)],
        rts_over: Duration::MAX,
        retries_max: 7,
        block_ack_frames: 64,
        eifs: true,
        block_ack_request: false,
        access_point: None,
        stations,
        wnic: Wnic {
            queue_frames: 64,
            burst_frames: 16,
            commit_frames,
            completes_on_transfer: false,
            host_queue_packets: 100_000,
            codel: false,
            mpdu_spacing: Duration::ZERO,
        },
        link: Link {
            rate: Rate { mcs: 8, streams: 1 },
            loss,
        },
    }
}

fn packet(from: u16, to: u16, category: AccessCategory, tag: u64, now: Instant) -> Packet {
    let flow = FlowId(u32::from(from) * 1000 + u32::from(to) * 10 + category.index() as u32);
    Packet {
        flow,
        tag,
        bytes: 1500,
        from: StationId(from),
        to: StationId(to),
        category,
        sent_at: now,
    }
}

fn run(air: &mut Air, host: &mut Recorder) -> Instant {
    let mut now = Instant::ZERO;
    while air.next_deadline() < Instant::FAR_FUTURE {
        now = air.next_deadline();
        air.on_deadline(host);
    }
    now
}

#[test]
fn a_lone_packet_takes_difs_preamble_symbols_sifs_and_ack() {
    let (mut air, mut host) = (Air::new(config(2, None, 0.0), 1), Recorder::default());
    air.send(
        packet(1, 0, AccessCategory::Voice, 0, Instant::ZERO),
        Instant::ZERO,
        &mut host,
    );
    let end = run(&mut air, &mut host);
    // AIFS 34 us; 1542 bytes at 78 Mbit/s (312 bits a symbol): 40 symbols and 40 us of preamble; SIFS; ACK 28 us.
    assert_eq!(end.as_nanos(), (34 + 40 + 40 * 4 + 16 + 28) * 1_000);
    assert_eq!(host.delivered.len(), 1);
    assert_eq!(host.on_air[0].end.as_nanos(), (34 + 40 + 160) * 1_000);
}

#[test]
fn stations_of_one_slot_collide_and_recover() {
    let (mut air, mut host) = (Air::new(config(3, None, 0.0), 1), Recorder::default());
    for from in [1, 2] {
        air.send(
            packet(from, 0, AccessCategory::Voice, 0, Instant::ZERO),
            Instant::ZERO,
            &mut host,
        );
    }
    run(&mut air, &mut host);
    assert!(air.counters().collisions >= 1);
    assert_eq!(host.on_air[0].outcome, Outcome::Collided);
    assert_eq!(host.delivered.len(), 2);
}

#[test]
fn a_collider_with_a_short_frame_is_ahead_of_everybody() {
    // AC_VO of one station collides with a long AC_BE aggregate of another in the first slot; a third waits.
    let mut config = config(4, None, 0.0);
    config.edca[2] = edca(2, 0, 15);
    config.edca[0] = edca(2, 0, 0);
    let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
    for (from, category) in [(1, AccessCategory::Voice), (2, AccessCategory::BestEffort)] {
        for tag in 0..if category == AccessCategory::Voice { 1 } else { 40 } {
            air.send(packet(from, 0, category, tag, Instant::ZERO), Instant::ZERO, &mut host);
        }
    }
    air.on_deadline(&mut host);
    let collision_end = air.next_deadline();
    let busy = collision_end - Duration::from_micros(1);
    air.send(packet(3, 0, AccessCategory::Voice, 0, busy), busy, &mut host);
    run(&mut air, &mut host);
    assert_eq!(host.on_air[0].outcome, Outcome::Collided);
    let next = &host.on_air[2];
    assert_eq!((next.from, next.category), (StationId(1), AccessCategory::Voice));
    // SIFS and AIFSN slots after the longer frame, without EIFS or an ACK timeout.
    assert_eq!(next.start.since(collision_end), SIFS + SLOT * 2);
}

#[test]
fn a_colliders_other_categories_wait_for_its_ack_timeout_and_not_eifs() {
    // Two AC_VO frames of equal length collide. The first sender has AC_BE waiting too, as does a bystander.
    for (waits, arrives_late) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut config = config(4, None, 0.0);
        config.edca[0] = edca(2, 0, 0);
        config.edca[2] = edca(3, 0, 0);
        config.retries_max = 0;
        let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
        for from in [1, 2] {
            let sent = packet(from, 0, AccessCategory::Voice, 0, Instant::ZERO);
            air.send(sent, Instant::ZERO, &mut host);
        }
        air.on_deadline(&mut host);
        let collision_end = air.next_deadline();
        let at = if arrives_late {
            air.on_deadline(&mut host);
            collision_end + Duration::from_micros(10)
        } else {
            collision_end - Duration::from_micros(10)
        };
        air.send(packet(waits, 0, AccessCategory::BestEffort, 0, at), at, &mut host);
        run(&mut air, &mut host);
        let waited = host.on_air[2].start.since(collision_end);
        let slots = if waits == 1 { 5 } else { 7 };
        assert_eq!(waited, SIFS + SLOT * (slots + 3), "station {waits}, {arrives_late}");
    }
}

#[test]
fn without_eifs_bystanders_go_on_from_the_idle_medium() {
    let mut config = config(4, None, 0.0);
    config.edca[0] = edca(2, 0, 0);
    config.edca[2] = edca(3, 0, 0);
    config.eifs = false;
    let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
    for from in [1, 2] {
        let sent = packet(from, 0, AccessCategory::Voice, 0, Instant::ZERO);
        air.send(sent, Instant::ZERO, &mut host);
    }
    air.on_deadline(&mut host);
    let collision_end = air.next_deadline();
    let busy = collision_end - Duration::from_micros(10);
    air.send(packet(3, 0, AccessCategory::BestEffort, 0, busy), busy, &mut host);
    run(&mut air, &mut host);
    assert_eq!(host.on_air[2].from, StationId(3));
    assert_eq!(host.on_air[2].start.since(collision_end), SIFS + SLOT * 3);
}

#[test]
fn a_missed_block_ack_is_asked_for_before_the_data_goes_again() {
    let frames = |block_ack_request, rts| {
        let mut config = config(3, None, 0.0);
        config.edca[2] = edca(2, 1, 1);
        config.block_ack_request = block_ack_request;
        config.rts_over = if rts { Duration::ZERO } else { Duration::MAX };
        let (mut air, mut host) = (Air::new(config, 3), Recorder::default());
        for tag in 0..10 {
            for from in [1, 2] {
                let sent = packet(from, 0, AccessCategory::BestEffort, tag, Instant::ZERO);
                air.queue(sent, Instant::ZERO);
            }
        }
        air.kick(StationId(1), Instant::ZERO, &mut host);
        air.kick(StationId(2), Instant::ZERO, &mut host);
        run(&mut air, &mut host);
        assert_eq!(host.on_air[0].outcome, Outcome::Collided);
        assert_eq!(host.delivered.len(), 20);
        let mine = host.on_air.iter().filter(|sent| sent.from == StationId(1));
        let received = mine.filter(|sent| sent.outcome == Outcome::Received);
        received
            .map(|sent| (sent.frames, sent.end.since(sent.start).as_nanos() / 1_000))
            .collect::<Vec<_>>()
    };
    let data = (10, 40 + 4 * (16 + 8 * 15_440_u64 + 6).div_ceil(312));
    assert_eq!(frames(false, false), [data]);
    // 24 bytes at 96 bits a symbol, behind 20 us.
    assert_eq!(frames(true, false), [(0, 32), data]);
    // An RTS that collided was not data.
    assert_eq!(frames(true, true), [data]);
}

/// Lets station 1 send ten packets to station 0, whose frames back are lost with probability `loss`.
fn with_loss_back(loss: f64, rts: bool, block_ack_request: bool, seed: u64) -> (MacCounters, Recorder) {
    let mut config = config(2, None, 0.0);
    config.rts_over = if rts { Duration::ZERO } else { Duration::MAX };
    config.block_ack_request = block_ack_request;
    let (mut air, mut host) = (Air::new(config, seed), Recorder::default());
    let rate = Rate { mcs: 8, streams: 1 };
    air.set_link(StationId(0), StationId(1), Link { rate, loss });
    for tag in 0..10 {
        let sent = packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO);
        air.queue(sent, Instant::ZERO);
    }
    air.kick(StationId(1), Instant::ZERO, &mut host);
    run(&mut air, &mut host);
    (*air.counters(), host)
}

#[test]
fn data_whose_answer_is_lost_goes_again_and_arrives_once() {
    let (counters, host) = with_loss_back(1.0, false, false, 1);
    let tags: Vec<u64> = host.delivered.iter().map(|packet| packet.tag).collect();
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
    assert_eq!((host.on_air.len(), counters.retries), (8, 70));
    assert!(host.completed.iter().all(|(_, acknowledged)| *acknowledged));
    // The requested block ack reports what the first one would have.
    let (counters, host) = (1..100)
        .map(|seed| with_loss_back(1.0 - 1e-10, false, true, seed))
        .find(|(_, host)| host.on_air.len() == 2)
        .expect("a seed with which only the first answer is lost");
    assert_eq!((host.on_air[1].frames, host.delivered.len()), (0, 10));
    assert_eq!((host.completed.len(), counters.retries), (10, 10));
}

#[test]
fn the_access_point_passes_on_what_stations_send_to_one_another() {
    let mut config = config(4, None, 0.0);
    config.access_point = Some(StationId(2));
    let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
    // Frames to and from the access point are sent once. A frame between two others is sent twice, in its category.
    for (from, to) in [(1, 2), (2, 1), (1, 3)] {
        let sent = packet(from, to, AccessCategory::Voice, 0, Instant::ZERO);
        let start = host.on_air.len();
        let now = if start == 0 {
            Instant::ZERO
        } else {
            host.on_air[start - 1].end + Duration::from_millis(1)
        };
        air.send(Packet { sent_at: now, ..sent }, now, &mut host);
        run(&mut air, &mut host);
        let hops: Vec<_> = host.on_air[start..]
            .iter()
            .map(|sent| (sent.from.0, sent.to.0, sent.category))
            .collect();
        let voice = AccessCategory::Voice;
        match (from, to) {
            (1, 3) => assert_eq!(hops, [(1, 2, voice), (2, 3, voice)]),
            _ => assert_eq!(hops, [(from, to, voice)]),
        }
    }
    let ends: Vec<_> = host
        .delivered
        .iter()
        .map(|packet| (packet.from.0, packet.to.0))
        .collect();
    assert_eq!(ends, [(1, 2), (2, 1), (1, 3)]);
    assert_eq!((host.completed.len(), host.passed_on.len()), (3, 1));
}

#[test]
fn the_senders_driver_does_not_hear_of_what_the_access_point_gives_up() {
    let mut config = config(4, None, 0.0);
    config.access_point = Some(StationId(0));
    let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
    let rate = Rate { mcs: 8, streams: 1 };
    air.set_link(StationId(0), StationId(3), Link { rate, loss: 1.0 });
    air.send(
        packet(1, 3, AccessCategory::Voice, 0, Instant::ZERO),
        Instant::ZERO,
        &mut host,
    );
    run(&mut air, &mut host);
    assert!(host.delivered.is_empty());
    assert!(host.completed[0].1 && !host.passed_on[0].1);
    assert_eq!(host.on_air.len(), 9);
}

#[test]
fn without_a_cts_no_data_goes() {
    let (counters, host) = with_loss_back(1.0, true, false, 1);
    assert_eq!((counters.data, counters.retries), (Duration::ZERO, 0));
    assert_eq!((host.delivered.len(), host.on_air.len()), (0, 8));
    let lost = |sent: &Transmission| sent.outcome == Outcome::Lost && sent.end.since(sent.start).as_nanos() == 28_000;
    assert!(host.on_air.iter().all(lost));
    assert!(host.completed.len() == 10 && host.completed.iter().all(|(_, acknowledged)| !acknowledged));
}

#[test]
fn voice_overtakes_best_effort_unless_the_baseband_has_it() {
    let overtaken = |commit_frames| {
        let (mut air, mut host) = (Air::new(config(2, commit_frames, 0.0), 1), Recorder::default());
        for tag in 0..64 {
            air.send(
                packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
                Instant::ZERO,
                &mut host,
            );
        }
        air.on_deadline(&mut host);
        let now = air.next_deadline();
        air.send(packet(1, 0, AccessCategory::Voice, 0, now), now, &mut host);
        run(&mut air, &mut host);
        let place = host
            .delivered
            .iter()
            .position(|packet| packet.category == AccessCategory::Voice);
        place.expect("the voice packet arrives")
    };
    let (ideal, shallow, deep) = (overtaken(None), overtaken(Some(8)), overtaken(Some(60)));
    assert!(ideal < 64, "{ideal}");
    assert_eq!(shallow, 8);
    assert_eq!(deep, 60);
}

#[test]
fn a_txop_carries_several_ppdus_and_ends_within_its_limit() {
    let mut config = config(2, None, 0.0);
    config.edca[2].txop = Duration::from_micros(3_008);
    config.edca[2].ampdu_frames = 4;
    let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
    for tag in 0..20 {
        air.send(
            packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
            Instant::ZERO,
            &mut host,
        );
    }
    run(&mut air, &mut host);
    let gaps: Vec<u64> = host
        .on_air
        .windows(2)
        .map(|pair| pair[1].start.since(pair[0].end).as_nanos() / 1_000)
        .collect();
    // SIFS + block ack + SIFS within the opportunity.
    assert_eq!(gaps[..2], [16 + 32 + 16, 16 + 32 + 16]);
    let opportunity = host.on_air[2].end.since(host.on_air[0].start) + SIFS + Duration::from_micros(32);
    assert!(opportunity <= Duration::from_micros(3_008), "{opportunity}");
    assert!(gaps[2] > 64 || gaps[3] > 64, "the opportunity ended: {gaps:?}");
}

#[test]
fn a_held_gate_keeps_bulk_in_the_host_queue_until_kicked() {
    let (mut air, mut host) = (
        Air::new(config(2, Some(32), 0.0), 1),
        Recorder {
            hold: true,
            ..Default::default()
        },
    );
    air.send(
        packet(1, 0, AccessCategory::BestEffort, 0, Instant::ZERO),
        Instant::ZERO,
        &mut host,
    );
    assert_eq!(air.next_deadline(), Instant::FAR_FUTURE);
    host.hold = false;
    air.kick(StationId(1), Instant::from_nanos(5_000_000), &mut host);
    run(&mut air, &mut host);
    assert_eq!(host.delivered.len(), 1);
}

#[test]
fn a_group_frame_goes_once_at_the_basic_rate_to_all_and_nobody_answers() {
    let (mut air, mut host) = (Air::new(config(4, None, 0.0), 1), Recorder::default());
    air.config.rts_over = Duration::ZERO;
    let lost = Link {
        rate: Rate { mcs: 8, streams: 1 },
        loss: 1.0,
    };
    air.set_link(StationId(0), StationId(3), lost);
    for tag in 0..2 {
        let mut packet = packet(0, 1, AccessCategory::BestEffort, tag, Instant::ZERO);
        packet.to = StationId::GROUP;
        air.send(packet, Instant::ZERO, &mut host);
    }
    run(&mut air, &mut host);
    let receivers: Vec<(u64, u16)> = host.delivered.iter().map(|packet| (packet.tag, packet.to.0)).collect();
    assert_eq!(receivers, [(0, 1), (0, 2), (1, 1), (1, 2)]);
    // 1538 bytes of MPDU at 24 bits a symbol of 4 us, behind 20 us of preamble: one per PPDU, without RTS.
    let lasts = Duration::from_micros(20 + 4 * (16 + 8 * 1538_u64 + 6).div_ceil(24));
    assert_eq!(
        host.on_air
            .iter()
            .map(|sent| sent.end.since(sent.start))
            .collect::<Vec<_>>(),
        [lasts; 2]
    );
    assert_eq!(host.on_air[0].start, Instant::ZERO + SIFS + SLOT * 3);
    assert_eq!(
        host.completed.iter().filter(|(_, acknowledged)| *acknowledged).count(),
        2
    );
}

#[test]
fn a_station_that_is_switched_off_loses_what_waits() {
    let (mut air, mut host) = (Air::new(config(2, Some(4), 0.0), 1), Recorder::default());
    for tag in 0..2_000 {
        air.queue(
            packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
            Instant::ZERO,
        );
    }
    air.kick(StationId(1), Instant::ZERO, &mut host);
    air.purge(StationId(1), Instant::ZERO, &mut host);
    let lost = host.dropped.len();
    assert!(lost > 0);
    air.send(
        packet(1, 0, AccessCategory::BestEffort, 9_999, Instant::ZERO),
        Instant::ZERO,
        &mut host,
    );
    run(&mut air, &mut host);
    assert_eq!(host.delivered.len() + lost, 2_001);
    assert_eq!(host.delivered.last().map(|packet| packet.tag), Some(9_999));
}

proptest! {
    /// Every packet is delivered once and in the order of its flow, or reported as given up. None stays behind.
    #[test]
    fn packets_are_conserved(
        seed: u64,
        loss in 0.0..0.6f64,
        nines_back in 0i32..30,
        access_point in prop::option::of(0u16..5),
        commit in prop::option::of(1u16..80),
        rts_over_us in 0u64..6_000,
        on_transfer: bool,
        block_ack_request: bool,
        txop_us in 0u64..4_000,
        sends in prop::collection::vec((0u16..5, 0u16..6, 0usize..4, 0u64..3_000), 1..300),
    ) {
        let mut config = config(5, commit, loss);
        config.rts_over = Duration::from_micros(rts_over_us);
        config.wnic.completes_on_transfer = on_transfer;
        config.block_ack_request = block_ack_request;
        config.access_point = access_point.map(StationId);
        config.edca.iter_mut().for_each(|edca| edca.txop = Duration::from_micros(txop_us));
        let (mut air, mut host) = (Air::new(config, seed), Recorder::default());
        // Station 1's frames hardly arrive, its answers to others more often than its data.
        let back = Link { rate: Rate { mcs: 1, streams: 1 }, loss: 1.0 - 0.1_f64.powi(nines_back) };
        (0..5).for_each(|to| air.set_link(StationId(1), StationId(to), back));
        let mut now = Instant::ZERO;
        let mut sent = 0;
        for (tag, (from, to, category, wait_us)) in sends.iter().enumerate() {
            let at = now + Duration::from_micros(*wait_us);
            while air.next_deadline() <= at {
                air.on_deadline(&mut host);
            }
            now = at;
            if from != to {
                let category = AccessCategory::ALL[*category];
                let mut packet = packet(*from, *to, category, tag as u64, now);
                if *to == 5 {
                    packet.to = StationId::GROUP;
                }
                air.send(packet, now, &mut host);
                sent += 1;
            }
        }
        run(&mut air, &mut host);
        let passed_on = host.passed_on.len();
        prop_assert_eq!((host.completed.len(), host.released), (sent, sent + passed_on));
        let to_all = |packet: &Packet| packet.flow.0 % 1000 / 10 == 5;
        let to_one = host.completed.iter().filter(|(packet, _)| !to_all(packet));
        let acknowledged = to_one.filter(|(_, acknowledged)| *acknowledged).count();
        let lost_there = host.passed_on.iter().filter(|(_, acknowledged)| !acknowledged).count();
        let delivered = host.delivered.iter().filter(|packet| !to_all(packet)).count();
        prop_assert_eq!(delivered + lost_there, acknowledged);
        let through = |packet: &Packet| {
            let ends = [packet.from, packet.to];
            !to_all(packet) && access_point.is_some_and(|point| !ends.contains(&StationId(point)))
        };
        let have_to = host.completed.iter().filter(|(packet, reached)| *reached && through(packet));
        prop_assert_eq!(passed_on, have_to.count());
        let mut last = std::collections::HashMap::new();
        for packet in &host.delivered {
            let before = last.insert((packet.flow, packet.to), packet.tag);
            prop_assert!(before.is_none_or(|tag| tag < packet.tag), "{:?} after {:?}", packet, before);
        }
        // The medium is never used twice at once, except in collisions.
        for pair in host.on_air.windows(2) {
            let together = pair[0].outcome == Outcome::Collided && pair[0].start == pair[1].start;
            prop_assert!(together || pair[1].start >= pair[0].end, "{:?}", pair);
        }
    }
}
