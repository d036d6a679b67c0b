//! Hand-made messages in both byte orders, and broken ones.

use proptest::prelude::*;

use super::*;

const POSE: [u8; 4] = [0x00, 0x00, 0x12, 0x03];
const IMAGE: [u8; 4] = [0x00, 0x00, 0x13, 0x02];
const PREFIX: [u8; 12] = *b"participant1";
const OTHER: [u8; 12] = *b"participant2";

fn header() -> Vec<u8> {
    [MAGIC, &[2, 3, 1, 16], &PREFIX].concat()
}

fn guid(entity: [u8; 4]) -> Guid {
    Guid::new(&PREFIX, &entity)
}

fn word(value: u16, little: bool) -> [u8; 2] {
    if little {
        value.to_le_bytes()
    } else {
        value.to_be_bytes()
    }
}

fn submessage(kind: u8, flags: u8, little: bool, body: &[u8]) -> Vec<u8> {
    let length = word(body.len() as u16, little);
    [&[kind, flags | u8::from(little)], &length[..], body].concat()
}

fn data(writer: [u8; 4], little: bool, payload: &[u8]) -> Vec<u8> {
    let to_qos = word(16, little);
    let body = [&[0, 0], &to_qos[..], &[0; 4], &writer, &[0; 8], payload].concat();
    submessage(DATA, 0x04, little, &body)
}

fn data_frag(writer: [u8; 4], little: bool, sample_bytes: u32, payload: &[u8]) -> Vec<u8> {
    let size = if little {
        sample_bytes.to_le_bytes()
    } else {
        sample_bytes.to_be_bytes()
    };
    let body = [&[0; 8], &writer[..], &[0; 16], &size, payload].concat();
    submessage(DATA_FRAG, 0, little, &body)
}

fn heartbeat(writer: [u8; 4]) -> Vec<u8> {
    submessage(HEARTBEAT, 0, true, &[&[0; 4], &writer[..], &[0; 20]].concat())
}

fn time(stamp: u8) -> Vec<u8> {
    submessage(INFO_TS, 0, true, &[stamp; 8])
}

fn acknack() -> Vec<u8> {
    submessage(ACKNACK, 0, true, &[0; 24])
}

fn message(submessages: &[Vec<u8>]) -> Vec<u8> {
    [header(), submessages.concat()].concat()
}

fn content(submessages: &[Vec<u8>]) -> Option<Content> {
    read(&message(submessages)).unwrap().content()
}

#[test]
fn a_message_of_one_writer_stays_whole() {
    for little in [false, true] {
        let sample = content(&[time(1), data(POSE, little, &[7; 100]), heartbeat(POSE)]).unwrap();
        assert_eq!(sample.writer, Some(guid(POSE)));
        assert_eq!(sample.sample_bytes, Some(120));
        let fragment = content(&[data_frag(IMAGE, little, 1_000_000, &[7; 100])]).unwrap();
        assert_eq!(
            (fragment.writer, fragment.sample_bytes),
            (Some(guid(IMAGE)), Some(1_000_000))
        );
    }
    let nothing = content(&[heartbeat(POSE)]).unwrap();
    assert_eq!((nothing.writer, nothing.sample_bytes), (Some(guid(POSE)), Some(0)));
    for nobodys in [
        vec![],
        vec![time(1)],
        vec![acknack()],
        vec![data([0, 1, 0, 0xc2], true, &[])],
    ] {
        assert_eq!(content(&nobodys).unwrap().writer, None);
    }
}

#[test]
fn writers_are_taken_apart_with_what_sets_the_receivers_state() {
    let destination = submessage(INFO_DST, 0, true, &OTHER);
    let (pose, image, late) = (
        data(POSE, true, &[1; 8]),
        data_frag(IMAGE, false, 9_000, &[2; 8]),
        data(POSE, true, &[3; 8]),
    );
    let whole = message(&[
        destination.clone(),
        acknack(),
        time(1),
        pose.clone(),
        time(2),
        image.clone(),
        submessage(PAD, 0, true, &[]),
        heartbeat(POSE),
        late.clone(),
    ]);
    let whole = read(&whole).unwrap();
    assert_eq!(whole.content(), None);
    let parts: Vec<_> = whole.parts().collect();
    let writers: Vec<_> = parts.iter().map(|(content, _)| content.writer).collect();
    assert_eq!(writers, [None, Some(guid(POSE)), Some(guid(IMAGE))]);
    let bytes: Vec<_> = parts.into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(bytes[0], message(&[destination.clone(), acknack()]));
    let of_pose = [destination.clone(), time(1), pose, time(2), heartbeat(POSE), late];
    assert_eq!(bytes[1], message(&of_pose));
    assert_eq!(bytes[2], message(&[destination, time(1), time(2), image]));
}

#[test]
fn a_source_changes_whose_writers_follow() {
    let source = submessage(INFO_SRC, 0, true, &[&[0; 8], &OTHER[..]].concat());
    let parts = message(&[data(POSE, true, &[]), source, data(POSE, true, &[])]);
    let writers: Vec<_> = read(&parts)
        .unwrap()
        .parts()
        .map(|(content, _)| content.writer)
        .collect();
    assert_eq!(writers, [Some(guid(POSE)), Some(Guid::new(&OTHER, &POSE))]);
}

#[test]
fn the_last_submessage_may_reach_to_the_end() {
    let mut last = data(IMAGE, true, &[5; 70_000]);
    last[2..4].fill(0);
    let whole = message(&[data(POSE, true, &[]), last.clone()]);
    let parts: Vec<_> = read(&whole).unwrap().parts().collect();
    assert_eq!(parts[1].1, message(&[last]));
    assert_eq!(parts[1].0.sample_bytes, Some(70_020));
    // An INFO_TS without a time is really empty.
    let invalid = submessage(INFO_TS, 0x02, true, &[]);
    assert_eq!(content(&[invalid, heartbeat(POSE)]).unwrap().writer, Some(guid(POSE)));
}

#[test]
fn what_may_cover_the_whole_message_keeps_it_whole() {
    for kind in [0x00, 0x30, 0x31, 0x33, 0x80, 0xff] {
        let cover = submessage(kind, 0, true, &[0; 8]);
        let two = [cover.clone(), data(POSE, true, &[1; 80]), data(IMAGE, true, &[])];
        assert_eq!(
            content(&two),
            Some(Content {
                writer: None,
                sample_bytes: Some(100)
            })
        );
        assert_eq!(
            content(&[cover.clone(), heartbeat(POSE)]).unwrap().writer,
            Some(guid(POSE))
        );
        assert_eq!(content(&[cover]), Some(Content::default()), "hidden");
    }
    let many: Vec<_> = (0..9).map(|number| data([0, 0, number, 3], true, &[])).collect();
    assert_eq!(content(&many).unwrap().writer, None);
    assert_eq!(content(&many[..8]), None);
}

/// Builds an announcement as Cyclone DDS and Fast DDS send it.
fn announcement(little: bool, name: &[u8]) -> Vec<u8> {
    let parameter = |number: u16, value: &[u8]| {
        let padded = [value, &[0; 3][..value.len().wrapping_neg() % 4]].concat();
        [&word(number, little)[..], &word(padded.len() as u16, little), &padded].concat()
    };
    let length = name.len() as u32;
    let length = if little {
        length.to_le_bytes()
    } else {
        length.to_be_bytes()
    };
    let list = [
        vec![0, if little { 3 } else { 2 }, 0, 0],
        parameter(0x07, b"\x05\0\0\0Pose\0"),
        parameter(PID_TOPIC_NAME, &[&length[..], name].concat()),
        parameter(PID_ENDPOINT_GUID, &guid(POSE).0),
        parameter(PID_SENTINEL, &[]),
    ];
    data(ANNOUNCES_WRITERS, little, &list.concat())
}

#[test]
fn announcements_tell_topics() {
    for little in [false, true] {
        let whole = message(&[
            time(1),
            announcement(little, b"rt/pose\0"),
            heartbeat(ANNOUNCES_WRITERS),
        ]);
        let told: Vec<_> = read(&whole).unwrap().topics().collect();
        assert_eq!(told, [(guid(POSE), "rt/pose")]);
    }
    let long = vec![b'a'; 300];
    for bad in [&b"no end"[..], b"\xff\xfe\0", &long, b""] {
        assert_eq!(read(&message(&[announcement(true, bad)])).unwrap().topics().count(), 0);
    }
    let pose = message(&[data(POSE, true, &[0, 3, 0, 0])]);
    assert_eq!(read(&pose).unwrap().topics().count(), 0);
}

#[test]
fn what_ends_too_soon_is_read_as_far_as_it_tells_its_writer() {
    assert_eq!(read(b"RTPX and the rest of a header"), None);
    let whole = message(&[time(1), data_frag(IMAGE, true, 9_000, &[2; 8]), heartbeat(POSE)]);
    let (sample, size_is_known) = (HEADER_BYTES + 12, HEADER_BYTES + 12 + 36);
    for end in 0..whole.len() {
        let found = read(&whole[..end]).and_then(|message| message.content());
        let expected = match end {
            end if end < HEADER_BYTES => None,
            // A submessage has at least its own header.
            end if end < HEADER_BYTES + 4 || (sample..sample + 4).contains(&end) => Some(NOTHING),
            end if end < sample => Some(Content::default()),
            end if end < size_is_known => None,
            end if end < sample + 44 + 4 => Some(Content {
                writer: Some(guid(IMAGE)),
                sample_bytes: Some(9_000),
            }),
            // The heartbeat's writer is not known yet, and later there are two writers.
            end if end < sample + 44 + 12 => None,
            _ => Some(Content {
                writer: None,
                sample_bytes: Some(9_000),
            }),
        };
        assert_eq!(found, expected, "{end}");
    }
}

proptest! {
    /// For any input, the parts have each writer's submessage once, and parse with the same content.
    #[test]
    fn parts_are_messages_of_one_writer(
        pieces in prop::collection::vec((0u8..24, 0u8..8, any::<bool>(), prop::collection::vec(any::<u8>(), 0..48)), 0..12),
        cut in 0usize..600,
    ) {
        let mut whole = header();
        for (kind, flags, little, body) in pieces {
            whole.extend(submessage(kind, flags, little, &body));
        }
        whole.truncate(whole.len().saturating_sub(cut.saturating_sub(500)));
        if let Some(read_whole) = read(&whole) {
            let _ = read_whole.topics().count();
            if read_whole.content().is_none() {
                let mut owned = 0;
                for (content, part) in read_whole.parts() {
                    let again = read(&part).unwrap();
                    prop_assert_eq!(again.content(), Some(content));
                    owned += again.submessages.iter().filter(|(place, _)| place.is_some()).count();
                }
                let all = read_whole.submessages.iter().filter(|(place, _)| place.is_some()).count();
                prop_assert_eq!(owned, all);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let rtps = [MAGIC, &bytes].concat();
        if let Some(message) = read(&rtps) {
            let _ = (message.parts().count(), message.topics().count());
        }
    }
}
