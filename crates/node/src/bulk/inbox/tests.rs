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
    let (folder, bytes) = (scratch("crash"), b"0123456789".to_vec());
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    part(&inbox, &begin(1, &bytes)).append(&bytes[..4]).unwrap();
    let mut again = part(
        &Inbox::open(Arc::new(Linux), &folder, "one").unwrap(),
        &begin(1, &bytes),
    );
    assert_eq!(
        (again.length(), again.hash()),
        (4, *blake3::hash(&bytes[..4]).as_bytes())
    );
    assert!(again.append(&bytes).is_err(), "more than it has");
    again.append(&bytes[4..]).unwrap();
    let whole = again.finish().unwrap().unwrap();
    assert_eq!(fs::read(&whole.path).unwrap(), bytes);
    assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    assert!(matches!(offer(&inbox, &begin(0, &bytes)), Offer::Delivered), "older");
    assert_eq!(inbox.whole().unwrap(), [whole]);
    let other = Begin {
        lineage: 6,
        ..begin(0, &bytes)
    };
    assert_eq!(part(&inbox, &other).length(), 0, "of a sender that started anew");
    fs::remove_dir_all(folder).unwrap();
}

/// An earlier version delivered the message twice if its process was killed between the two steps.
#[test]
fn what_is_whole_is_delivered_though_a_crash_came_before_that_was_written_down() {
    let (folder, bytes) = (scratch("between"), b"0123456789".to_vec());
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let mut whole = part(&inbox, &begin(1, &bytes));
    whole.append(&bytes).unwrap();
    let whole = whole.finish().unwrap().unwrap();
    fs::remove_file(folder.join("bulk/one/delivered")).unwrap();
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    assert_eq!(inbox.mend(), None);
    // The program that takes the message removes it from disk before the sender asks again.
    fs::remove_file(&whole.path).unwrap();
    assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    // An incomplete message still does not count as delivered.
    part(&inbox, &begin(2, &bytes)).append(&bytes[..4]).unwrap();
    assert_eq!(inbox.mend(), None);
    assert_eq!(part(&inbox, &begin(2, &bytes)).length(), 4);
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
    whole.append(&bytes).unwrap();
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
            part.append(&bytes).unwrap();
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
    whole.append(bytes).unwrap();
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
        whole.append(&bytes).unwrap();
        let whole = whole.finish().unwrap().unwrap();
        platter.cut();
        assert_eq!(inbox.whole().unwrap(), std::slice::from_ref(&whole), "seed {seed}");
        assert_eq!(disk.read(&whole.path).unwrap(), bytes, "seed {seed}");
        assert!(matches!(offer(&inbox, &begin(1, &bytes)), Offer::Delivered));
    }
}

/// Offers a message once, as a sender that knows nothing, and takes it if it is whole. Returns whether the sender was
/// told that it was delivered.
fn attempt(disk: &Arc<dyn Disk>, begin: &Begin, bytes: &[u8], step: usize) -> io::Result<bool> {
    let inbox = Inbox::open(disk.clone(), Path::new("/state"), "one")?;
    let whole = match inbox.offer(begin, &Arc::default())? {
        Offer::Part(mut part) => {
            let came = part.length() as usize;
            if part.hash() != *blake3::hash(&bytes[..came]).as_bytes() {
                part.restart()?;
            }
            for piece in bytes[part.length() as usize..].chunks(step) {
                part.append(piece)?;
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
            let bytes: Vec<u8> = (0..rng.random_range(0..20_000)).map(|_| rng.random()).collect();
            let begin = begin(sequence, &bytes);
            loop {
                platter.set_fuse(Some(rng.random_range(0..40)));
                let told = attempt(&disk, &begin, &bytes, rng.random_range(1..20_000));
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
            assert_eq!(disk.read(&into(&begin)).unwrap(), bytes, "seed {seed}: {sequence}");
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
            whole.append(&bytes).unwrap();
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

#[test]
fn wrong_bytes_are_forgotten() {
    let folder = scratch("wrong");
    let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
    let mut wrong = part(&inbox, &begin(1, b"right"));
    wrong.append(b"wrong").unwrap();
    assert_eq!(wrong.finish().unwrap(), None);
    assert_eq!(part(&inbox, &begin(1, b"right")).length(), 0);
    fs::write(folder.join("bulk/one/part"), b"longer than it may be").unwrap();
    assert_eq!(part(&inbox, &begin(1, b"right")).length(), 0);
    fs::remove_dir_all(folder).unwrap();
}

proptest! {
    // Each case writes to the disk and waits for it.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each message arrives whole and once, however often either end stops, and whatever it had written.
    #[test]
    fn every_message_comes_whole_and_once(
        cuts in prop::collection::vec((0usize..40, any::<bool>()), 0..12),
        lengths in prop::collection::vec(0usize..60, 1..4),
    ) {
        let folder = scratch("prop");
        let mut cuts = cuts.into_iter();
        for (sequence, length) in (0u64..).zip(&lengths) {
            let bytes: Vec<u8> = (0..*length).map(|byte| (byte as u64 + sequence) as u8).collect();
            let begin = begin(sequence, &bytes);
            loop {
                let inbox = Inbox::open(Arc::new(Linux), &folder, "one").unwrap();
                let Offer::Part(mut part) = offer(&inbox, &begin) else { break };
                let from = part.length() as usize;
                prop_assert_eq!(part.hash(), *blake3::hash(&bytes[..from]).as_bytes());
                let (cut, tear) = cuts.next().unwrap_or((usize::MAX, false));
                let to = from.saturating_add(cut).min(bytes.len());
                part.append(&bytes[from..to]).unwrap();
                if to == bytes.len() && !tear {
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
