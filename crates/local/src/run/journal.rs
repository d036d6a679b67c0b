//! Records the effects of a program's reactions, for comparison and replay.
//!
//! A record contains the tag at which a reaction ran, whether its late handler ran instead, its inputs that were
//! physical or late, and its effects. Everything else in a run follows from these, and from which values came late. So
//! two runs are the same if each reaction has the same records, in order; [`Digest`] compares records without keeping
//! them. Neither depends on the placement.
//!
//! Values are bytes here, in the form that leaves a process.

use super::Failure;
use super::Recorded;
use coorp_core::logical::{ElementId, Graph, ReactionId, Tag};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use xxhash_rust::xxh3::Xxh3;

/// The maximum length of a record that is read.
const RECORD_BYTES_MAX: u32 = 1 << 30;
const MAGIC: &[u8; 8] = b"coorpjn2";

/// A value, in the form that leaves a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The header.
    pub header: Vec<u8>,
    /// The parts.
    pub parts: Vec<Vec<u8>>,
}

/// The effects of a reaction at one tag. Ports and actions have their full names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The reaction's full name.
    pub reaction: String,
    /// The tag.
    pub tag: Tag,
    /// Whether its deadline had passed.
    pub late: bool,
    /// Physical actions, physical connections' inputs and late values that are present, with their values.
    pub physical: Vec<(String, Option<Bytes>)>,
    /// The intended tags of the late values.
    pub meant: Vec<(String, Tag)>,
    /// The outputs that it set.
    pub sets: Vec<(String, Bytes)>,
    /// The actions that it scheduled: name, delay in nanoseconds in addition to the minimum, value.
    pub schedules: Vec<(String, u64, Option<Bytes>)>,
    /// Whether it requested the end.
    pub stop: bool,
}

/// A hash of each reaction's records.
#[derive(Clone, Debug, Default)]
pub struct Digest {
    reactions: BTreeMap<String, u64>,
}

impl Digest {
    /// Adds a reaction's next record.
    pub fn add(&mut self, record: &Record) {
        let before = self.reactions.entry(record.reaction.clone()).or_default();
        let mut hash = Xxh3::with_seed(*before);
        let time = record.tag.time().map_or(u64::MAX, |time| time.as_nanos());
        hash.update(&time.to_le_bytes());
        hash.update(&record.tag.microstep().to_le_bytes());
        for (name, bytes) in &record.physical {
            add(&mut hash, name, bytes.as_ref());
        }
        for (name, meant) in &record.meant {
            let time = meant.time().map_or(u64::MAX, |time| time.as_nanos());
            hash.update(&time.to_le_bytes());
            hash.update(&meant.microstep().to_le_bytes());
            add(&mut hash, name, None);
        }
        for (name, bytes) in &record.sets {
            add(&mut hash, name, Some(bytes));
        }
        for (name, delay, bytes) in &record.schedules {
            hash.update(&delay.to_le_bytes());
            add(&mut hash, name, bytes.as_ref());
        }
        hash.update(&[u8::from(record.stop)]);
        *before = hash.digest();
    }

    /// Returns the hash of each reaction, by its full name.
    pub fn reactions(&self) -> &BTreeMap<String, u64> {
        &self.reactions
    }
}

fn add(hash: &mut Xxh3, name: &str, bytes: Option<&Bytes>) {
    let mut field = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    field(name.as_bytes());
    if let Some(bytes) = bytes {
        field(&bytes.header);
        bytes.parts.iter().for_each(|part| field(part));
    }
    hash.update(&[u8::from(bytes.is_some())]);
}

#[derive(Serialize, Deserialize)]
enum Entry<'a> {
    Ran(Cow<'a, Record>),
    /// A value of this input came after its tag.
    Late(String, Tag),
}

/// Writes the records of one federate.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Begins a journal.
    ///
    /// # Errors
    /// The error of `to`.
    pub fn new(mut to: W) -> std::io::Result<Self> {
        to.write_all(MAGIC)?;
        Ok(Writer { to })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The error of the file.
    pub fn add(&mut self, record: &Record) -> std::io::Result<()> {
        self.write(&Entry::Ran(Cow::Borrowed(record)))
    }

    /// Adds the fact that a value of this input came after its tag.
    ///
    /// # Errors
    /// The error of the file.
    pub fn add_late(&mut self, input: &str, meant: Tag) -> std::io::Result<()> {
        self.write(&Entry::Late(input.to_owned(), meant))
    }

    fn write(&mut self, entry: &Entry<'_>) -> std::io::Result<()> {
        let bytes = postcard::to_allocvec(entry).map_err(std::io::Error::other)?;
        let length = u32::try_from(bytes.len())
            .ok()
            .filter(|length| *length <= RECORD_BYTES_MAX);
        let length = length.ok_or_else(|| std::io::Error::other("a record of more than 1 GiB"))?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(&bytes)
    }

    /// Completes the journal.
    ///
    /// # Errors
    /// The error of the file.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// The records of all federates of a run.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    records: BTreeMap<String, VecDeque<Record>>,
    late: Vec<(String, Tag)>,
}

impl Journal {
    /// Adds the records that one federate wrote. Leaves out a last record that a crash has cut off.
    ///
    /// # Errors
    /// If it is not a journal, or damaged.
    pub fn read(&mut self, mut from: impl Read) -> std::io::Result<()> {
        let mut magic = [0; 8];
        from.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(std::io::Error::other(
                "this is not a recording of a program's reactions",
            ));
        }
        loop {
            let mut length = [0; 4];
            if from.read_exact(&mut length).is_err() {
                return Ok(());
            }
            let length = u32::from_le_bytes(length);
            if length > RECORD_BYTES_MAX {
                return Err(std::io::Error::other("the recording is damaged"));
            }
            let mut bytes = Vec::new();
            from.by_ref().take(length.into()).read_to_end(&mut bytes)?;
            if bytes.len() < length as usize {
                return Ok(());
            }
            match postcard::from_bytes(&bytes).map_err(std::io::Error::other)? {
                Entry::Ran(record) => self
                    .records
                    .entry(record.reaction.clone())
                    .or_default()
                    .push_back(record.into_owned()),
                Entry::Late(input, meant) => self.late.push((input, meant)),
            }
        }
    }

    /// Returns the physical inputs of the run, each once and ordered by tag.
    ///
    /// # Errors
    /// If a name in it is not the program's.
    pub fn physical(&self, graph: &Graph) -> Result<Vec<Recorded<Bytes>>, Failure> {
        let mut all = BTreeMap::new();
        for record in self.records.values().flatten() {
            for (name, bytes) in &record.physical {
                let element = graph.find(name).ok_or_else(|| Failure::Fault(other_program(name)))?;
                all.insert((record.tag, element), bytes.clone());
            }
        }
        Ok(all
            .into_iter()
            .map(|((tag, element), bytes)| (tag, element, bytes))
            .collect())
    }

    /// Returns the inputs whose values came late, each with the intended tag.
    ///
    /// # Errors
    /// If a name in it is not the program's.
    pub fn late(&self, graph: &Graph) -> Result<BTreeSet<(Tag, ElementId)>, Failure> {
        let late = self.late.iter().map(|(name, meant)| {
            let input = graph.find(name).ok_or_else(|| Failure::Fault(other_program(name)))?;
            Ok((*meant, input))
        });
        late.collect()
    }

    /// Returns the latest tag in it.
    pub fn last(&self) -> Option<Tag> {
        self.records
            .values()
            .filter_map(|records| records.back())
            .map(|record| record.tag)
            .max()
    }

    /// Returns this reaction's next record, if it is at this tag.
    pub fn next(&mut self, graph: &Graph, reaction: ReactionId, tag: Tag) -> Option<Record> {
        let name = &graph.reaction(reaction)?.name;
        let records = self.records.get_mut(name)?;
        records.front().filter(|record| record.tag == tag)?;
        records.pop_front()
    }

    /// Returns the number of records left.
    pub fn len(&self) -> usize {
        self.records.values().map(VecDeque::len).sum()
    }

    /// Returns whether no records are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn other_program(name: &str) -> String {
    format!("the recording is from another program: this one has no `{name}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use coorp_core::Duration;
    use proptest::prelude::*;

    fn record(reaction: &str, ms: u64, value: u8) -> Record {
        let bytes = Bytes {
            header: vec![value],
            parts: vec![vec![value; 3], Vec::new()],
        };
        Record {
            reaction: reaction.into(),
            tag: Tag::at(Duration::from_millis(ms), 0),
            late: false,
            physical: Vec::new(),
            meant: Vec::new(),
            sets: vec![("out".into(), bytes)],
            schedules: Vec::new(),
            stop: false,
        }
    }

    fn digest(records: &[Record]) -> BTreeMap<String, u64> {
        let mut digest = Digest::default();
        records.iter().for_each(|record| digest.add(record));
        digest.reactions().clone()
    }

    #[test]
    fn a_digest_depends_on_the_order_within_a_reaction_only() {
        let [a, b, other] = [record("a", 1, 1), record("a", 2, 1), record("b", 1, 7)];
        let all = [a.clone(), b.clone(), other.clone()];
        assert_eq!(digest(&all), digest(&[other.clone(), a.clone(), b.clone()]));
        assert_ne!(digest(&all), digest(&[b, a.clone(), other.clone()]));
        let changes: [fn(&mut Record); 5] = [
            |record| record.sets[0].1.parts[1].push(0),
            |record| record.stop = true,
            |record| record.physical.push(("p".into(), None)),
            |record| record.meant.push(("p".into(), Tag::START)),
            |record| record.schedules.push(("s".into(), 1, None)),
        ];
        for change in changes {
            let mut changed = a.clone();
            change(&mut changed);
            assert_ne!(digest(std::slice::from_ref(&a)), digest(&[changed]));
        }
    }

    #[test]
    fn a_record_that_is_cut_off_is_left_out() {
        let records = [record("a", 1, 1), record("a", 2, 2)];
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        records.iter().for_each(|record| writer.add(record).unwrap());
        writer.finish().unwrap();
        for (length, count) in [(file.len(), 2), (file.len() - 1, 1), (8, 0)] {
            let mut journal = Journal::default();
            journal.read(&file[..length]).unwrap();
            assert_eq!(journal.len(), count);
        }
        let refused = Journal::default().read(&b"something"[..]).unwrap_err();
        assert!(refused.to_string().contains("not a recording"), "{refused}");
    }

    proptest! {
        #[test]
        fn a_damaged_recording_is_no_panic(at in 0usize..400, byte: u8) {
            let mut file = Vec::new();
            let mut writer = Writer::new(&mut file).unwrap();
            (0..5).for_each(|ms| writer.add(&record("a", ms, 1)).unwrap());
            writer.finish().unwrap();
            let at = at % file.len();
            file[at] = byte;
            let _ = Journal::default().read(&file[..]);
        }
    }
}
