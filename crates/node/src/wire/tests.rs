use std::collections::BTreeSet;
use std::path::Path;

use super::guest::{packed, unpacked, Failure, FromGuest, Lengths, ToGuest, HEAD_BYTES};
use super::*;
use crate::links::MESSAGE_BYTES_MAX;
use coorp_core::arrival::TimeModel;
use coorp_core::failover::{self, Epoch};
use coorp_core::robot::ClockId;
use coorp_core::{paths, permits, Duration, RobotId};
use proptest::prelude::*;

fn epoch() -> Epoch {
    Epoch {
        round: u64::MAX,
        robot: RobotId(u16::MAX),
        incarnation: u32::MAX,
    }
}

const ALL: Instant = Instant::from_nanos(u64::MAX);
const EVER: Duration = Duration::from_nanos(u64::MAX);
const CLOCK: ClockId = ClockId(u64::MAX);

#[test]
fn what_is_not_a_frame_is_refused_for_what_it_is() {
    let start = Start { listed: 7 };
    let frame = encode(&start);
    assert_eq!(decode::<Start>(&frame), Ok(start));
    assert_eq!(decode::<Answer>(&frame), Err(Refusal::Malformed), "of another kind");
    assert_eq!(
        decode::<Start>(&frame[..frame.len() - 1]),
        Err(Refusal::Malformed),
        "cut"
    );
    let longer = [frame.as_slice(), &[0]].concat();
    assert_eq!(decode::<Start>(&longer), Err(Refusal::Malformed), "something behind it");
    let mut newer = frame.clone();
    newer[2] = 9;
    assert_eq!(decode::<Start>(&newer), Err(Refusal::Version(9)));
    assert_eq!(decode::<Start>(&[0; 65]), Err(Refusal::Oversized));
    assert_eq!(decode::<Start>(b"GE"), Err(Refusal::Malformed));
}

#[test]
fn a_listed_segment_keeps_its_number_and_hash() {
    let hash = std::array::from_fn(|place| place as u8);
    assert_eq!(unlisted(listed(u32::MAX - 1, hash)), (u32::MAX - 1, hash));
}

#[test]
fn the_longest_list_of_revoked_certificates_fits() {
    let mut longest = Revocations {
        list: vec![7; Revocations::LIST_BYTES_MAX],
    };
    assert_eq!(decode(&encode(&longest)), Ok(longest.clone()));
    longest.list.push(7);
    assert!(encode(&longest).is_empty());
}

#[test]
fn the_longest_look_fits() {
    let most = u32::MAX;
    let longest = [
        robot::Seen::Window(Some((i32::MIN, most))),
        robot::Seen::Control {
            flow: 255,
            took_us: most,
        },
        robot::Seen::Arrived {
            from: RobotId(u16::MAX),
            flow: 255,
            age_us: Some(most),
        },
        robot::Seen::Bulk {
            path: 255,
            took_us: most,
            packets: most,
        },
    ];
    for seen in longest {
        let look = robot::Look {
            clock: CLOCK,
            now: ALL,
            next: u64::MAX,
            lost: u64::MAX,
            events: vec![(most, seen); robot::LOOK_MAX],
        };
        let looked = Looked { look, status: None };
        let frame = encode(&looked);
        assert!(
            (1..=Looked::BYTES_MAX - Status::BYTES_MAX).contains(&frame.len()),
            "{seen:?}"
        );
        assert_eq!(decode(&frame), Ok(looked));
    }
    let query = LookQuery {
        since: Some((CLOCK, u64::MAX)),
        status: true,
    };
    assert_eq!(decode(&encode(&query)), Ok(query));
}

#[test]
fn a_list_that_says_it_is_longer_than_its_frame_is_refused() {
    let header = [b'C', b'o', VERSION, robot::Message::KIND];
    for kind in [3, 4] {
        // This many models, or arrivals, of clock 0.
        for length in [[0xff, 0xff, 0xff, 0xff, 0x0f].as_slice(), &[9]] {
            let frame = [&header, [kind, 0].as_slice(), length, &[0; 6]].concat();
            assert_eq!(decode::<robot::Message>(&frame), Err(Refusal::Malformed));
        }
    }
}

#[test]
fn the_longest_of_what_robots_say_fits() {
    let epoch = epoch();
    let model = TimeModel {
        period: EVER,
        phase: ALL,
        sigma: EVER,
        early: EVER,
        late: EVER,
    };
    let grant = permits::Message::Grant {
        request: permits::RequestId(u64::MAX),
        token: permits::Token(u64::MAX),
        slice: EVER,
        echo: ALL,
    };
    let reply = robot::Message::TimeReply {
        clock: CLOCK,
        echo: ALL,
        received_at: ALL,
        sent_at: ALL,
    };
    let flows = u8::try_from(robot::FLOWS_MAX).unwrap();
    let models = robot::Message::Models {
        clock: CLOCK,
        models: (0..flows).map(|flow| (u8::MAX - flow, model)).collect(),
    };
    let permit = robot::Message::Coordination(failover::Message::Permit { epoch, message: grant });
    for message in [permit, reply, models] {
        assert_eq!(decode(&encode(&message)), Ok(message));
    }
    let answer = tracker::Answer {
        echo: ALL,
        received_at: ALL,
        sent_at: ALL,
    };
    let accept = tracker::Message::Accept {
        incarnation: u32::MAX,
        topic: TopicId(u32::MAX),
        answer,
    };
    let gathering = Gathering {
        topic: LONGEST_CHARACTER.repeat(64),
        message: accept,
    };
    assert_eq!(decode(&encode(&gathering)), Ok(gathering));
}

const LONGEST_CHARACTER: &str = "\u{10ffff}";

#[test]
fn the_longest_announcement_fits_and_a_frame_on_a_stream_follows_its_length() {
    let topic = LONGEST_CHARACTER.repeat(64);
    let hello = Hello {
        incarnation: u32::MAX,
        number: u64::MAX,
        subscribes: vec![topic.clone(); Hello::TOPICS_MAX],
        gathers: vec![(topic, u32::MAX); Hello::TOPICS_MAX],
        unwraps: true,
    };
    let written = prefixed(&hello);
    let (length, frame) = written.split_first_chunk().unwrap();
    assert_eq!(u32::from_le_bytes(*length) as usize, frame.len());
    assert!(frame.len() <= STREAM_FRAME_BYTES_MAX);
    assert_eq!(kind(frame), Some(Hello::KIND));
    assert_eq!(decode(frame), Ok(hello));
    assert!([robot::Message::BYTES_MAX, Gathering::BYTES_MAX]
        .iter()
        .all(|bytes| *bytes <= STREAM_FRAME_BYTES_MAX));
    assert_eq!(decode(&encode(&StatusQuery)), Ok(StatusQuery));
    assert_eq!(kind(b"Co"), None);
}

#[test]
fn the_longest_parcels_fit() {
    let topic = LONGEST_CHARACTER.repeat(64);
    let header = ControlHeader {
        incarnation: u32::MAX,
        sequence: u64::MAX,
        stamp: Stamp {
            flow: u8::MAX,
            made_at: Some((CLOCK, ALL)),
            last_loop: Some(Duration::MAX),
            bound: Some(Duration::MAX),
        },
        made_at: ALL,
        copy: Some(u32::MAX),
    };
    let grant = failover::Message::Permit {
        epoch: epoch(),
        message: permits::Message::Grant {
            request: permits::RequestId(u64::MAX),
            token: permits::Token(u64::MAX),
            slice: Duration::MAX,
            echo: ALL,
        },
    };
    let control = Parcel::Control {
        topic: topic.clone(),
        header,
        riders: vec![robot::Message::Coordination(grant); robot::RIDERS_MAX],
    };
    assert_eq!(unpack(&pack(&control)), Ok((control.clone(), pack(&control).len())));
    let sequence = paths::Sequence {
        incarnation: u32::MAX,
        number: u32::MAX,
    };
    let header = State {
        topic: TopicId(u32::MAX),
        header: StateHeader {
            sequence,
            created_at: Some(ALL),
            error: EVER,
        },
        copy: Some(u32::MAX),
    };
    let probe = paths::Probe {
        path: paths::PathId(u8::MAX),
        incarnation: u32::MAX,
        number: u32::MAX,
        sent_at: ALL,
    };
    let echo = paths::Echo {
        probe,
        newest: u32::MAX,
        seen: u64::MAX,
    };
    let arrived = robot::Arrived {
        robot: RobotId(u16::MAX),
        flow: u8::MAX,
        made_at: ALL,
    };
    let arrived = robot::Message::Arrived {
        clock: CLOCK,
        messages: vec![arrived; robot::ARRIVED_MAX],
        caution: u8::MAX,
    };
    let robots = [robot::Message::Probe(probe), robot::Message::Echo(echo), arrived];
    let parcels = robots.map(Parcel::Robot).into_iter();
    let wrapped = Parcel::Wrapped(WrapHeader {
        flow: u32::MAX,
        sequence,
        over: paths::Paths(u8::MAX),
        copy: Some(u32::MAX),
    });
    assert!(pack(&wrapped).len() <= WrapHeader::PACKED_BYTES_MAX);
    for parcel in parcels.chain([Parcel::State { topic, header }, wrapped]) {
        assert_eq!(decode(&encode(&parcel)), Ok(parcel));
    }
}

#[test]
fn a_message_on_a_link_is_read_as_it_was_written() {
    let parcel = Parcel::Robot(robot::Message::TimeQuery { sent_at: ALL });
    let head = pack(&parcel);
    let whole = [head.as_slice(), b"content"].concat();
    assert_eq!(unpack(&whole), Ok((parcel, head.len())));
    for cut in 0..head.len() {
        assert_eq!(unpack(&head[..cut]), Err(Refusal::Malformed), "{cut}");
    }
    let mut newer = whole;
    newer[4] = 9;
    assert_eq!(unpack(&newer), Err(Refusal::Version(9)));
    assert_eq!(unpack(&[0xff; 700]), Err(Refusal::Malformed));
    let long = [600u16.to_le_bytes().as_slice(), &[0; 600]].concat();
    assert_eq!(unpack(&long), Err(Refusal::Oversized));
}

#[test]
fn the_longest_of_what_guests_and_their_agent_say_fits() {
    let name = LONGEST_CHARACTER.repeat(64);
    let said = [
        FromGuest::Publish {
            id: u64::MAX,
            topic: name.clone(),
            period: Some(EVER),
        },
        FromGuest::Address {
            id: u64::MAX,
            to: name.clone(),
            name: name.clone(),
        },
        FromGuest::Send {
            id: u64::MAX,
            to: RobotId(u16::MAX),
            name: name.clone(),
            length: u64::MAX,
            hash: [u8::MAX; 32],
        },
    ];
    for frame in said {
        assert_eq!(decode(&encode(&frame)), Ok(frame));
    }
    let bulk = ToGuest::Bulk {
        id: u64::MAX,
        message: u64::MAX,
        from: RobotId(u16::MAX),
        name: name.clone(),
        length: u64::MAX,
        path: vec![b'x'; 4_096],
        wanted: true,
    };
    let failure = Failure::from(crate::Error::Undelivered(LONGEST_CHARACTER.repeat(10_000)));
    let outcome = Err(failure);
    for frame in [bulk, ToGuest::Delivered { id: u64::MAX, outcome }] {
        assert_eq!(decode(&encode(&frame)), Ok(frame));
    }
}

#[test]
fn a_guests_frame_is_read_with_its_payload_once_it_is_whole() {
    let frame = FromGuest::Put { id: 300 };
    let written = [packed(&frame, b"content"), b"next".to_vec()].concat();
    let whole = written.len() - 4;
    for cut in 0..whole {
        assert_eq!(unpacked::<FromGuest>(&written[..cut]), Ok(None), "{cut}");
    }
    let (read, lengths) = unpacked::<FromGuest>(&written).unwrap().unwrap();
    assert_eq!((read, lengths.whole(), lengths.payload), (frame, whole, 7));
    assert_eq!(
        unpacked::<ToGuest>(&written),
        Err(Refusal::Malformed),
        "of another kind"
    );
    let lengths = |frame: u32, payload: u32| [frame.to_le_bytes(), payload.to_le_bytes()].concat();
    let of = |frame, payload| Lengths::of::<FromGuest>(*lengths(frame, payload).first_chunk::<HEAD_BYTES>().unwrap());
    let most = (FromGuest::BYTES_MAX as u32, MESSAGE_BYTES_MAX as u32);
    assert!(of(most.0, most.1).is_ok());
    assert_eq!(of(most.0 + 1, 0), Err(Refusal::Oversized));
    assert_eq!(of(0, most.1 + 1), Err(Refusal::Oversized));
}

/// The decoder of one kind of frame, with the kind's name in the source and its number.
type Reader = (&'static str, u8, fn(&[u8]));

macro_rules! readers {
    ($($kind:ty),*) => {
        [$((stringify!($kind), <$kind as Frame>::KIND, |bytes: &[u8]| {
            let _ = decode::<$kind>(bytes);
        })),*]
    };
}

/// All kinds.
fn readers() -> [Reader; 15] {
    readers![
        robot::Message,
        Hello,
        Gathering,
        Revocations,
        StatusQuery,
        LookQuery,
        Looked,
        Status,
        Begin,
        Answer,
        Start,
        Segments,
        Parcel,
        FromGuest,
        ToGuest
    ]
}

#[test]
fn no_kind_is_left_out_here_or_in_the_fuzzer_and_each_has_a_number_of_its_own() {
    fn kinds_below(folder: &Path, kinds: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                kinds_below(&path, kinds);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let of = text.lines().filter_map(|line| line.strip_prefix("impl Frame for "));
            kinds.extend(of.map(|rest| rest.trim_end_matches(" {").to_owned()));
        }
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut kinds = BTreeSet::new();
    kinds_below(&package.join("src"), &mut kinds);
    let names = readers().map(|(name, ..)| name.to_owned());
    assert_eq!(kinds, BTreeSet::from(names));
    let numbers = BTreeSet::from(readers().map(|(_, kind, _)| kind));
    assert_eq!(numbers.len(), kinds.len());
    let fuzzer = std::fs::read_to_string(package.join("../../fuzz/src/wire.rs")).unwrap();
    for kind in kinds {
        assert!(
            fuzzer.contains(&format!("read::<{kind}>(body)")),
            "{kind} is not fuzzed"
        );
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (_, kind, read) in readers() {
            read(&bytes);
            read(&[&[b'C', b'o', VERSION, kind], bytes.as_slice()].concat());
        }
        let _ = unpack(&bytes);
        let _ = unpacked::<FromGuest>(&bytes);
        let _ = unpacked::<ToGuest>(&bytes);
    }
}
