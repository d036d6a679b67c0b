use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::BulkMessage;
use super::*;
use crate::ground::Linux;
use crate::state::make_private;
use crate::trial::Platter;
use coorp_core::RobotId;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("coorp-inbox-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn begin(sequence: u64, bytes: &[u8]) -> Begin {
    Begin {
        lineage: 5,
        sequence,
        name: "map".to_owned(),
        length: bytes.len() as u64,
        hash: *blake3::hash(bytes).as_bytes(),
    }
}

const SEGMENT: usize = SEGMENT_BYTES as usize;

/// Returns bytes of which no two segments are the same.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Returns the segments of a message, with their hashes.
fn segments(bytes: &[u8]) -> Vec<(u32, Hash, &[u8])> {
    let pieces = (0..).zip(bytes.chunks(SEGMENT));
    let hashed = pieces.map(|(segment, piece)| {
        let hash = hashes::of_segment(segment, bytes.len() as u64, [piece]);
        (segment, hash, piece)
    });
    hashed.collect()
}

/// Writes the segments of a message.
fn write(part: &mut Part, bytes: &[u8]) -> io::Result<()> {
    let mut segments = segments(bytes).into_iter();
    segments.try_for_each(|(segment, hash, piece)| part.write(segment, hash, piece))
}

/// Keeps what is right in a message, as its sender does. Returns the segments.
fn keep(part: &mut Part, bytes: &[u8]) -> Vec<u32> {
    let segments = segments(bytes);
    let is_right =
        |(segment, hash): &(u32, Hash)| segments.get(*segment as usize).is_some_and(|known| known.1 == *hash);
    let right: Vec<_> = part.list().into_iter().filter(is_right).collect();
    part.keep(right.iter().copied());
    right.into_iter().map(|(segment, _)| segment).collect()
}

fn offer(inbox: &Inbox, begin: &Begin) -> Offer {
    inbox.offer(begin, &Arc::default()).unwrap()
}

fn part(inbox: &Inbox, begin: &Begin) -> Box<Part> {
    match offer(inbox, begin) {
        Offer::Part(part) => part,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_came_before_a_crash_is_kept_and_a_whole_message_comes_once() {
    let (folder, bytes) = (scratch("crash"), content(1, 4 * SEGMENT + 10));
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let segments = segments(&bytes);
    let mut before = part(&inbox, &begin(1, &bytes));
    for at in [0, 4, 2] {
        let (segment, hash, piece) = segments[at];
        before.write(segment, hash, piece).unwrap();
        before.write(segment, [0; 32], piece).unwrap();
    }
    assert_eq!(before.missing(), 2 * SEGMENT_BYTES, "the first copy is kept");
    assert!(before.write(5, [0; 32], &[]).is_err() && before.write(1, [0; 32], &bytes).is_err());
    let again = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let mut again = part(&again, &begin(1, &bytes));
    assert_eq!(
        again.missing(),
        bytes.len() as u64,
        "its sender has to say what is right"
    );
    assert_eq!(keep(&mut again, &bytes), [0, 2, 4]);
    assert_eq!(again.missing(), 2 * SEGMENT_BYTES);
    for at in [3, 1] {
        let (segment, hash, piece) = segments[at];
        again.write(segment, hash, piece).unwrap();
    }
    let whole = again.finish().unwrap().unwrap();
    assert!(fs::read(&whole.path).unwrap() == bytes);
    assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    assert!(matches!(offer(&inbox, &begin(0, &bytes)), Offer::Delivered), "older");
    assert_eq!(inbox.whole().unwrap(), [whole]);
    let other = Begin {
        lineage: 6,
        ..begin(0, &bytes)
    };
    assert_eq!(part(&inbox, &other).list(), [], "of a sender that started anew");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_was_found_does_not_count_once_something_else_was_written() {
    let (folder, bytes) = (scratch("found"), content(1, 2 * SEGMENT));
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    write(&mut part(&inbox, &begin(1, &bytes)), &bytes).unwrap();
    let mut again = part(&inbox, &begin(1, &bytes));
    let list = again.list();
    let other = content(2, SEGMENT);
    again.write(0, [7; 32], &other).unwrap();
    again.keep(list);
    assert_eq!(again.missing(), 0);
    assert_eq!(again.list()[0], (0, [7; 32]), "the one that was written");
    assert_eq!(again.finish().unwrap(), None, "and is wrong");
    fs::remove_dir_all(folder).unwrap();
}

/// An earlier version delivered the message twice if its process was killed between the two steps.
#[test]
fn what_is_whole_is_delivered_though_a_crash_came_before_that_was_written_down() {
    let (folder, bytes) = (scratch("between"), b"0123456789".to_vec());
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let mut whole = part(&inbox, &begin(1, &bytes));
    write(&mut whole, &bytes).unwrap();
    let whole = whole.finish().unwrap().unwrap();
    fs::remove_file(folder.join("bulk/one/delivered")).unwrap();
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    assert_eq!(inbox.mend(), None);
    // The program that takes the message removes it from disk before the sender asks again.
    fs::remove_file(&whole.path).unwrap();
    assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    // An incomplete message still does not count as delivered.
    let bytes = content(2, SEGMENT + 1);
    let mut incomplete = part(&inbox, &begin(2, &bytes));
    let (segment, hash, piece) = segments(&bytes)[0];
    incomplete.write(segment, hash, piece).unwrap();
    assert_eq!(inbox.mend(), None);
    assert_eq!(keep(&mut part(&inbox, &begin(2, &bytes)), &bytes), [0]);
    fs::remove_dir_all(folder).unwrap();
}

/// The disk takes the message and nothing more.
#[test]
fn a_whole_message_that_could_not_be_recorded_comes_once_its_sender_offers_it_again() {
    let (folder, bytes) = (scratch("unrecorded"), b"0123456789".to_vec());
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    // No file can be made where a folder is.
    let in_the_way = folder.join("bulk/one/delivered.new");
    fs::create_dir(&in_the_way).unwrap();
    let mut whole = part(&inbox, &begin(1, &bytes));
    write(&mut whole, &bytes).unwrap();
    assert!(whole.finish().is_err());
    let place = inbox.mend().unwrap();
    assert_eq!(fs::read(&place).unwrap(), bytes);
    assert!(inbox.offer(&begin(1, &bytes), &Arc::default()).is_err());
    fs::remove_dir(in_the_way).unwrap();
    match offer(&inbox, &begin(1, &bytes)) {
        Offer::Whole(whole) => assert_eq!((whole.name.as_str(), whole.path), ("map", place)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_legal_name_has_its_file() {
    let (folder, bytes) = (scratch("names"), b"0123456789".to_vec());
    let longest = "\u{20000}".repeat(64);
    for sender in ["..", "flight", &longest] {
        let inbox = Inbox::open(Arc::new(Linux), &folder, sender).unwrap();
        for (sequence, name) in (1u64..).zip([".", "..", "pose.2", &longest]) {
            let begin = Begin {
                name: name.to_owned(),
                ..begin(sequence, &bytes)
            };
            let mut part = part(&inbox, &begin);
            write(&mut part, &bytes).unwrap();
            let whole = part.finish().unwrap().unwrap();
            assert!(whole.path.starts_with(folder.join("bulk")));
            assert!(inbox.whole().unwrap().contains(&whole), "{name}");
        }
        assert_eq!(inbox.whole().unwrap().len(), 4);
    }
    assert_eq!(fs::read_dir(folder.join("bulk")).unwrap().count(), 3);
    fs::remove_dir_all(folder).unwrap();
}

/// Returns a message that has arrived in a folder.
fn came(folder: &Path, bytes: &[u8]) -> BulkMessage {
    let inbox = Inbox::open(Arc::new(Linux), folder, "one").unwrap();
    let mut whole = part(&inbox, &begin(1, bytes));
    write(&mut whole, bytes).unwrap();
    BulkMessage::new(Arc::new(Linux), RobotId(0), whole.finish().unwrap().unwrap())
}

#[test]
fn a_message_that_could_not_be_taken_is_taken_later() {
    let (folder, bytes) = (scratch("again"), b"0123456789".to_vec());
    let message = came(&folder, &bytes);
    let target = folder.join("elsewhere/map");
    let missing = message.take_to(&target).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let aside = folder.join("aside");
    fs::rename(message.path(), &aside).unwrap();
    assert!(message.take().is_err());
    fs::rename(&aside, message.path()).unwrap();
    fs::create_dir(folder.join("elsewhere")).unwrap();
    message.take_to(&target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), bytes);
    assert!(!message.path().exists());
    assert!(
        message.take_to(&target).is_err() && message.take().is_err(),
        "it is gone"
    );
    assert_eq!(fs::read(&target).unwrap(), bytes);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_message_goes_to_another_disk_or_stays_whole_here() {
    let (folder, bytes) = (scratch("disk"), vec![7; 3 << 20]);
    let message = came(&folder, &bytes);
    let memory = Path::new("/dev/shm");
    let on_another = fs::metadata(memory).is_ok_and(|of| of.dev() != fs::metadata(&folder).unwrap().dev());
    if !on_another {
        eprintln!(
            "left out: {} is not on another disk than {}",
            memory.display(),
            folder.display()
        );
        return fs::remove_dir_all(folder).unwrap();
    }
    let other = memory.join(folder.file_name().unwrap());
    let target = other.join("map");
    let missing = message.take_to(&target).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    // If a folder has the name, the copy is made but cannot be renamed to it.
    fs::create_dir_all(&target).unwrap();
    assert!(message.take_to(&target).is_err());
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1, "the copy is gone");
    assert_eq!(fs::read(message.path()).unwrap(), bytes);
    fs::remove_dir(&target).unwrap();
    fs::write(&target, b"an older one").unwrap();
    message.take_to(&target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), bytes);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    assert!(!message.path().exists());
    fs::remove_dir_all(other).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// Returns an empty disk in memory.
fn platter(seed: u64) -> Arc<Platter> {
    Arc::new(Platter::new(seed, tokio::time::Instant::now(), || ()))
}

/// An earlier version did not sync the folders that the message is in.
#[test]
fn a_whole_message_is_there_after_a_power_cut() {
    for seed in 0..40 {
        let platter = platter(seed);
        let (disk, folder, bytes) = (platter.mount(), Path::new("/var/state"), vec![7; 10_000]);
        make_private(&*disk, folder).unwrap();
        let inbox = Inbox::open(disk.clone(), folder, "one").unwrap();
        let mut whole = part(&inbox, &begin(1, &bytes));
        write(&mut whole, &bytes).unwrap();
        let whole = whole.finish().unwrap().unwrap();
        platter.cut();
        assert_eq!(inbox.whole().unwrap(), std::slice::from_ref(&whole), "seed {seed}");
        assert_eq!(disk.read(&whole.path).unwrap(), bytes, "seed {seed}");
        assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    }
}

/// Offers a message once, as a sender that knows nothing, and takes it if it is whole. The segments arrive in an order
/// that begins with this one. Returns whether the sender was told that it was delivered.
fn attempt(disk: &Arc<dyn Disk>, begin: &Begin, bytes: &[u8], first: usize) -> io::Result<bool> {
    let inbox = Inbox::open(disk.clone(), Path::new("/state"), "one")?;
    let whole = match inbox.offer(begin, &Arc::default())? {
        Offer::Part(mut part) => {
            keep(&mut part, bytes);
            let mut segments = segments(bytes);
            let places = segments.len().max(1);
            segments.rotate_left(first % places);
            for (segment, hash, piece) in segments {
                part.write(segment, hash, piece)?;
            }
            part.finish()?
        }
        Offer::Whole(whole) => Some(whole),
        Offer::Delivered => return Ok(true),
        other => panic!("{other:?}"),
    };
    if let Some(whole) = &whole {
        BulkMessage::new(disk.clone(), RobotId(0), whole.clone()).take_to(&into(begin))?;
    }
    Ok(whole.is_some())
}

fn into(begin: &Begin) -> PathBuf {
    Path::new("/into").join(begin.sequence.to_string())
}

#[test]
fn whenever_the_power_fails_every_message_comes_whole_and_once() {
    let (mut rng, mut cuts) = (Xoshiro256PlusPlus::seed_from_u64(1), 0);
    for seed in 0..100 {
        let failed = Arc::new(AtomicU32::new(0));
        let fails = failed.clone();
        let fails = move || _ = fails.fetch_add(1, Ordering::Relaxed);
        let platter = Arc::new(Platter::new(seed, tokio::time::Instant::now(), fails));
        let disk = platter.mount();
        for folder in ["/state", "/into"] {
            make_private(&*disk, Path::new(folder)).unwrap();
        }
        for sequence in 0..6 {
            let longest = if rng.random_bool(0.3) { 4 * SEGMENT } else { 20_000 };
            let bytes = content(seed, rng.random_range(0..longest));
            let begin = begin(sequence, &bytes);
            loop {
                platter.set_fuse(Some(rng.random_range(0..40)));
                let told = attempt(&disk, &begin, &bytes, rng.random_range(0..4));
                if failed.swap(0, Ordering::Relaxed) == 0 {
                    assert!(told.unwrap());
                    break;
                }
                // The next start.
                cuts += 1;
                platter.set_fuse(None);
                let inbox = Inbox::open(disk.clone(), Path::new("/state"), "one").unwrap();
                assert_eq!(inbox.mend(), None);
                for whole in inbox.whole().unwrap() {
                    assert!(
                        disk.read(&into(&begin)).is_err(),
                        "seed {seed}: {} came twice",
                        begin.sequence
                    );
                    BulkMessage::new(disk.clone(), RobotId(0), whole)
                        .take_to(&into(&begin))
                        .unwrap();
                }
            }
            platter.set_fuse(None);
            platter.cut();
            assert!(disk.read(&into(&begin)).unwrap() == bytes, "seed {seed}: {sequence}");
        }
    }
    assert!(cuts > 200, "{cuts}");
}

#[test]
fn a_message_that_was_taken_does_not_come_back() {
    for seed in 0..40 {
        let platter = platter(seed);
        let (disk, folder, bytes) = (platter.mount(), Path::new("/state"), vec![7; 10_000]);
        make_private(&*disk, folder).unwrap();
        make_private(&*disk, Path::new("/into")).unwrap();
        let inbox = Inbox::open(disk.clone(), folder, "one").unwrap();
        for sequence in [1, 2] {
            let mut whole = part(&inbox, &begin(sequence, &bytes));
            write(&mut whole, &bytes).unwrap();
            let message = BulkMessage::new(disk.clone(), RobotId(0), whole.finish().unwrap().unwrap());
            if sequence == 1 {
                assert_eq!(message.take().unwrap(), bytes);
            } else {
                message.take_to(Path::new("/into/map")).unwrap();
            }
        }
        platter.cut();
        assert_eq!(inbox.whole().unwrap(), [], "seed {seed}");
    }
}

/// A file on a disk that does not take what is written.
#[derive(Debug)]
struct Broken(Box<dyn Opened>);

impl io::Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl io::Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl io::Seek for Broken {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Opened for Broken {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Other.into())
    }

    fn space(&self) -> io::Result<crate::disk::Space> {
        self.0.space()
    }

    fn again(&self) -> io::Result<Box<dyn Opened>> {
        self.0.again()
    }
}

#[test]
fn bytes_that_the_disk_has_not_taken_are_not_believed_when_the_sender_offers_them_again() {
    let folder = scratch("broken");
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let bytes = content(9, 2 * SEGMENT + 5);
    let mut broken = part(&inbox, &begin(1, &bytes));
    write(&mut broken, &bytes).unwrap();
    let file = inbox.disk.open(&inbox.folder.join("part")).unwrap();
    broken.file = Box::new(Broken(file));
    assert!(broken.finish().is_err());
    let again = part(&inbox, &begin(1, &bytes));
    assert_eq!((again.list(), again.missing()), (Vec::new(), bytes.len() as u64));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn wrong_bytes_are_forgotten() {
    let folder = scratch("wrong");
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let mut wrong = part(&inbox, &begin(1, b"right"));
    write(&mut wrong, b"wrong").unwrap();
    assert_eq!(wrong.finish().unwrap(), None);
    assert_eq!(part(&inbox, &begin(1, b"right")).list(), []);
    fs::write(folder.join("bulk/one/part"), b"longer than it may be").unwrap();
    assert_eq!(part(&inbox, &begin(1, b"right")).list(), []);
    fs::write(folder.join("bulk/one/part"), b"wrong").unwrap();
    let mut found = part(&inbox, &begin(1, b"right"));
    assert_eq!((found.list().len(), keep(&mut found, b"right")), (1, vec![]));
    assert_eq!(found.missing(), 5);
    fs::remove_dir_all(folder).unwrap();
}

proptest! {
    // Each case writes to the disk and waits for it.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each message arrives whole and once, however often either end stops, and whatever it had written.
    #[test]
    fn every_message_comes_whole_and_once(
        cuts in prop::collection::vec((prop::collection::vec(0u32..4, 0..4), any::<bool>()), 0..12),
        lengths in prop::collection::vec(0..4 * SEGMENT, 1..4),
    ) {
        let folder = scratch("prop");
        let mut cuts = cuts.into_iter();
        for (sequence, length) in (0u64..).zip(&lengths) {
            let bytes = content(sequence, *length);
            let begin = begin(sequence, &bytes);
            let mut written = Vec::new();
            loop {
                let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
                let Offer::Part(mut part) = offer(&inbox, &begin) else { break };
                written.sort_unstable();
                written.dedup();
                prop_assert_eq!(keep(&mut part, &bytes), written.clone());
                let (some, tear) = cuts.next().unwrap_or(((0..4).collect(), false));
                let segments = segments(&bytes);
                for (segment, hash, piece) in some.iter().filter_map(|at| segments.get(*at as usize)) {
                    part.write(*segment, *hash, piece).unwrap();
                    written.push(*segment);
                }
                if part.missing() == 0 && !tear {
                    prop_assert!(part.finish().unwrap().is_some());
                }
            }
        }
        let whole = Inbox::open(Arc::new(Linux), &folder, "one").unwrap().whole().unwrap();
        let mut came: Vec<usize> = whole.iter().map(|whole| whole.length as usize).collect();
        let mut sent = lengths.clone();
        came.sort_unstable();
        sent.sort_unstable();
        prop_assert_eq!(came, sent);
        fs::remove_dir_all(folder).unwrap();
    }
}
