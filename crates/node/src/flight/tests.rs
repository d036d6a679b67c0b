use coorp_core::policy::Policy;
use coorp_core::{Duration, FlowId, RobotId};
use proptest::prelude::*;

use std::sync::Arc;

use super::write::Ring;
use super::*;
use crate::ground::Linux;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn flown() -> Flown {
    let policy = Policy::named("coorp").unwrap();
    let config = RobotConfig::new(&policy, RobotId(0), 2, RobotId(0), 3);
    let about = About {
        team: "team".to_owned(),
        robots: vec!["base".to_owned(), "rover".to_owned()],
        config: config.clone(),
        origin: (at(1_000), 5),
    };
    Flown::new(Robot::new(config, at(1_000)).unwrap(), about)
}

/// Runs control at 50 Hz, and deadlines. Returns the number of inputs.
fn fly(flown: &mut Flown, span_ms: std::ops::Range<u64>) -> u64 {
    let mut count = 0;
    for ms in span_ms {
        if flown.next_deadline() <= at(ms) {
            flown.handle(Input::Deadline, at(ms));
            count += 1;
        }
        if ms % 20 == 0 {
            flown.handle(Input::Control(FlowId(0)), at(ms));
            count += 1;
        }
    }
    count
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("coorp-flight-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn written(flown: &mut Flown, folder: &Path) -> Vec<PathBuf> {
    let mut ring = Ring::new(Arc::new(Linux), folder.to_owned());
    flown.take().into_iter().for_each(|part| ring.write(part).unwrap());
    files(folder).unwrap()
}

/// Repeats all inputs of a segment to its robot.
fn replay(segment: Segment) -> Robot {
    let mut robot = segment.header.robot;
    for record in segment.records {
        assert_eq!(robot.handle(record.input, record.at), record.answer);
    }
    robot
}

fn bytes(robot: &Robot) -> Vec<u8> {
    postcard::to_allocvec(robot).unwrap()
}

#[test]
fn what_was_written_replays_to_the_same_robot() {
    let (mut flown, folder) = (flown(), folder("replays"));
    flown.handle(Input::AddFlow(Some(Duration::from_millis(20))), at(1_000));
    let told = 1 + fly(&mut flown, 1_000..5_000);
    let files = written(&mut flown, &folder);
    let segment = read(&files[0]).unwrap();
    assert_eq!((segment.records.len() as u64, segment.cut), (told, false));
    assert_eq!((segment.header.unix_ns, segment.header.lost), (5, 0));
    assert_eq!(bytes(&replay(segment)), bytes(&flown));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_there_is_no_room_for_is_counted_and_a_new_segment_begins() {
    let (mut flown, folder) = (flown(), folder("room"));
    let mut told = 0u64;
    while flown.notes.as_ref().unwrap().lost < 10 {
        flown.handle(Input::State("a topic that nobody gathers".to_owned()), at(1_000));
        told += 1;
    }
    let mut parts = flown.take();
    flown.handle(Input::TellModelsAgain, at(1_001));
    fly(&mut flown, 1_001..1_500);
    parts.extend(flown.take());
    let mut ring = Ring::new(Arc::new(Linux), folder.clone());
    parts.into_iter().for_each(|part| ring.write(part).unwrap());
    let segments: Vec<Segment> = files(&folder).unwrap().iter().map(|file| read(file).unwrap()).collect();
    let noted: usize = segments.iter().map(|segment| segment.records.len()).sum();
    let last = segments.last().unwrap();
    assert_eq!(last.header.lost, 10);
    assert_eq!(noted as u64, told - 10 + last.records.len() as u64);
    assert!(segments.len() > 4, "{} segments of a megabyte", segments.len());
    assert_eq!(bytes(&replay(last.clone())), bytes(&flown));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_oldest_files_make_room() {
    let folder = folder("ring");
    for _ in 1..=2 {
        let mut ring = Ring::new(Arc::new(Linux), folder.clone());
        for _ in 0..11 {
            for part in flown().take() {
                ring.write(part).unwrap();
            }
        }
    }
    let files = files(&folder).unwrap();
    assert_eq!(files.len(), 16);
    assert!(files[0].ends_with("0000000001-000006.flight"), "{files:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_files_of_this_start_are_the_newest_whatever_those_before_are_called() {
    let folder = folder("upgraded");
    std::fs::create_dir_all(&folder).unwrap();
    for old in 0..20 {
        std::fs::write(folder.join(format!("4294967295-{old:06}.flight")), "").unwrap();
    }
    let mut ring = Ring::new(Arc::new(Linux), folder.clone());
    for _ in 0..3 {
        for part in flown().take() {
            ring.write(part).unwrap();
        }
    }
    let files = files(&folder).unwrap();
    assert_eq!(files.len(), 16);
    let of_this_start = files
        .iter()
        .filter(|file| file.to_string_lossy().contains("4294967296-"));
    assert_eq!(of_this_start.count(), 3);
    assert!(files[15].ends_with("4294967296-000002.flight"), "{files:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_recording_is_refused_in_words() {
    let folder = folder("refused");
    std::fs::create_dir_all(&folder).unwrap();
    assert!(files(&folder)
        .unwrap_err()
        .to_string()
        .contains("no files of a flight recorder"));
    let file = folder.join("file");
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        read(&file).unwrap_err().to_string()
    };
    assert!(refused(b"").contains("not a flight recorder's file"));
    assert!(refused(b"[team]").contains("not a flight recorder's file"));
    assert!(refused(b"CoFR\x01").contains("ends before"));
    assert!(refused(b"CoFR\xff\x00").contains("has layout 255"));
    let with = |rest: &[u8]| [b"CoFR", LAYOUT.to_le_bytes().as_slice(), rest].concat();
    assert!(refused(&with(b"\xff\xff")).contains("ends before"));
    assert!(refused(&with(b"\x01\x00\x00\x00--------x")).contains("damaged"));
    assert!(read(&folder.join("none")).is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A file with a changed byte or a missing end is refused, or yields fewer of the same records.
    #[test]
    fn damage_is_noticed(place in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
        let (mut flown, folder) = (flown(), folder(&format!("damage-{bit}-{cut}")));
        fly(&mut flown, 1_000..1_300);
        let mut parts = flown.take();
        fly(&mut flown, 1_300..1_600);
        parts.extend(flown.take());
        let mut ring = Ring::new(Arc::new(Linux), folder.clone());
        parts.into_iter().for_each(|part| ring.write(part).unwrap());
        let file = files(&folder).unwrap().remove(0);
        let whole = read(&file).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << bit;
        }
        std::fs::write(&file, bytes).unwrap();
        if let Ok(segment) = read(&file) {
            prop_assert!(segment.records.len() < whole.records.len());
            prop_assert_eq!(&segment.records[..], &whole.records[..segment.records.len()]);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
