//! Records everything that a robot decides, as MCAP: permits, the leader, windows, gates, paths, and its status once a
//! second.
//!
//! Each kind is a channel of JSON with its JSON schema, so that Foxglove, the `mcap` libraries and a text editor can
//! read it. A thread takes the robot's journal and writes; the robot never waits for the disk. Every two seconds a
//! chunk is finished and given to the kernel, so that a killed process leaves everything up to then. If a disk has no
//! more than its reserve free (`disk.rs`), the recording ends with a log message, and the robot continues.
//!
//! Left out: message contents, which a program can record itself; compression, because the data is a few kilobytes per
//! second. MCAP's index is kept in memory until the end: some 5 MB per day.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration as StdDuration;

use coorp_core::permits::Message;
use coorp_core::robot::{Event, Led};
use coorp_core::{Duration, Instant, RobotId};
use mcap::records::MessageHeader;
use mcap::write::NoSeek;
use mcap::{McapError, WriteOptions, Writer};
use serde_json::{json, Value};

use crate::agent::Agent;
use crate::ground::Opened;
use crate::member::Member;
use crate::sync::{lock, spawn};
use crate::{status, Error};

/// The interval at which the journal is read.
const TAKE_EVERY: StdDuration = StdDuration::from_millis(50);
/// After this many intervals, the status is recorded and a chunk is finished.
const STATUS_LOOKS: u64 = 20;
const CHUNK_LOOKS: u64 = 40;
/// A chunk that grows larger is finished earlier, bytes.
const CHUNK_BYTES: u64 = 4 << 20;

/// A recording in progress. Dropping it finishes it.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    end: Option<Sender<()>>,
    recorder: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Recording {
    pub(crate) fn begin(agent: &Arc<Agent>, path: &Path) -> Result<Recording, Error> {
        if !agent.robot.tell(|robot, _| robot.begin_journal()) {
            return Err(Error::Recorded);
        }
        let begun = Recorder::begin(agent, path).and_then(|recorder| Recording::new(recorder, path));
        if begun.is_err() {
            agent.robot.tell(|robot, _| robot.end_journal());
        }
        begun
    }

    fn new(mut recorder: Recorder, path: &Path) -> Result<Recording, Error> {
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let (end, ended) = channel();
        let (report, shown) = (failed.clone(), path.to_owned());
        let thread = spawn("coorp-record", move || {
            let outcome = recorder.run(&ended);
            if let Some(agent) = recorder.agent.upgrade() {
                agent.robot.tell(|robot, _| robot.end_journal());
            }
            if let Err(error) = outcome.and_then(|()| recorder.finish()) {
                let text = format!("the recording {} ends here: {}", shown.display(), plain(&error));
                tracing::error!("{text}; the robot continues");
                *lock(&report) = Some(text);
            }
        });
        Ok(Recording {
            path: path.to_owned(),
            end: Some(end),
            recorder: Some(thread?),
            failed,
        })
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why the recording has ended early, if it has.
    pub fn failed(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    /// Ends the recording, and writes its index.
    ///
    /// # Errors
    /// If not everything could be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.end();
        self.failed().map_or(Ok(()), |text| Err(Error::Recording(text)))
    }

    fn end(&mut self) {
        drop(self.end.take());
        if let Some(recorder) = self.recorder.take() {
            let _ = recorder.join();
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the cause of an error, without the library's own text.
fn plain(error: &McapError) -> String {
    match error {
        McapError::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// The channels, in this order. `coorp watch --foxglove` has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Permits,
    Leader,
    Window,
    Gate,
    Paths,
    Status,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = {
        use Kind::*;
        [Permits, Leader, Window, Gate, Paths, Status]
    };

    /// Returns the channel's topic, which is also its schema's name.
    pub fn topic(self) -> String {
        format!("/coorp/{self:?}").to_lowercase()
    }

    /// Returns the JSON schema of its messages. Each property has one type, because Foxglove reads no others.
    pub fn schema(self) -> Value {
        let (text, number, truth) = (
            json!({"type": "string"}),
            json!({"type": "number"}),
            json!({"type": "boolean"}),
        );
        let one_of = |texts: &[&str]| json!({"type": "string", "enum": texts});
        let (about, properties) = match self {
            Kind::Permits => (
                "Messages about permits that this robot sends or receives, and when it may send bulk",
                json!({
                    "event": one_of(&["request", "grant", "renew", "release", "refuse", "permitted", "not-permitted"]),
                    "from": text, "to": text, "leader": text, "round": number, "token": number, "request": number,
                    "slice_ms": number, "retry_after_ms": number,
                }),
            ),
            Kind::Leader => (
                "The leader, as this robot decides or learns it",
                json!({
                    "event": one_of(&["leads", "follows", "deposed"]),
                    "leader": text, "round": number, "incarnation": number,
                }),
            ),
            Kind::Window => (
                "The window that bulk is kept out of, after the message's time; without both fields there is none",
                json!({"starts_in_us": number, "length_us": number}),
            ),
            Kind::Gate => (
                "The gate of a path opens or closes; `skipped` changes before this one are left out",
                json!({
                    "path": text, "open": truth, "why": one_of(&["window", "backlog"]), "in_flight": number,
                    "skipped": number,
                }),
            ),
            Kind::Paths => (
                "The state of a path to another robot, and what it carries from now on, if there is a choice of paths",
                json!({
                    "to": text, "path": text, "state": one_of(&["Resting", "Alive", "Dead"]),
                    "carries": one_of(&["Nothing", "Original", "Duplicate"]), "bulk": truth,
                    "round_trip_us": number, "failures": number,
                }),
            ),
            Kind::Status => (
                "The robot's status, as in `coorp watch`; `lost_decisions` were too fast to be recorded",
                json!({"robot": text, "leads": truth, "permit": text, "lost_decisions": number}),
            ),
        };
        json!({"title": self.topic(), "description": about, "type": "object", "properties": properties})
    }
}

struct Recorder {
    agent: Weak<Agent>,
    /// The file, to query the space on its disk.
    file: File,
    writer: Writer<NoSeek<BufWriter<File>>>,
    channels: Vec<u16>,
    sequences: Vec<u32>,
    /// The robot's clock and Unix time at the beginning, so that setting the clock does not disrupt the recording.
    began: (Instant, u64),
    lost: u64,
    /// The paths to robots with several, as last recorded.
    paths: Vec<status::Path>,
}

impl Recorder {
    fn begin(agent: &Arc<Agent>, path: &Path) -> Result<Recorder, Error> {
        let file = open(path)?;
        let kept = file.try_clone().map_err(|error| Error::at("record to", path, error))?;
        let began = agent.robot.moment();
        let failed =
            |error: McapError| Error::Recording(format!("cannot record to {}: {}", path.display(), plain(&error)));
        // Chunks are assembled in memory: a file never contains half of a chunk's length.
        let options = WriteOptions::new()
            .compression(None)
            .chunk_size(Some(CHUNK_BYTES))
            .disable_seeking(true)
            .emit_message_indexes(false)
            .library(concat!("coorp ", env!("CARGO_PKG_VERSION")));
        let mut writer = options.create(NoSeek::new(BufWriter::new(file))).map_err(failed)?;
        let mut channels = Vec::with_capacity(Kind::ALL.len());
        let about = BTreeMap::from([
            ("team".to_owned(), agent.member.team.name.clone()),
            ("robot".to_owned(), agent.member.name().to_owned()),
        ]);
        for kind in Kind::ALL {
            let schema = writer.add_schema(&kind.topic(), "jsonschema", kind.schema().to_string().as_bytes());
            let schema = schema.map_err(failed)?;
            let channel = writer.add_channel(schema, &kind.topic(), "json", &about);
            channels.push(channel.map_err(failed)?);
        }
        Ok(Recorder {
            agent: Arc::downgrade(agent),
            file: kept,
            writer,
            sequences: vec![0; channels.len()],
            channels,
            began,
            lost: 0,
            paths: Vec::new(),
        })
    }

    /// Records until it is stopped, or the node is gone.
    fn run(&mut self, ended: &Receiver<()>) -> Result<(), McapError> {
        let mut last = false;
        for look in 0u64.. {
            let Some(agent) = self.agent.upgrade() else {
                return Ok(());
            };
            let (events, lost) = agent.robot.tell(|robot, _| robot.take_journal());
            self.lost += lost;
            for (at, event) in &events {
                let (kind, value) = said(&agent.member, *at, event);
                self.write(kind, *at, &value)?;
            }
            self.paths(&agent)?;
            if look % STATUS_LOOKS == 0 {
                self.status(&agent)?;
            }
            if look % CHUNK_LOOKS == 0 {
                self.writer.flush()?;
                self.file.space()?.check()?;
            }
            drop(agent);
            if last {
                return Ok(());
            }
            // The recording includes decisions until the stop, so read the journal once more.
            last = ended.recv_timeout(TAKE_EVERY) != Err(RecvTimeoutError::Timeout);
        }
        Ok(())
    }

    /// Writes the index.
    fn finish(&mut self) -> Result<(), McapError> {
        self.writer.finish().map(drop)
    }

    fn status(&mut self, agent: &Agent) -> Result<(), McapError> {
        let at = agent.robot.now();
        let mut status = serde_json::to_value(agent.status()).unwrap_or_default();
        status["lost_decisions"] = self.lost.into();
        self.write(Kind::Status, at, &status)
    }

    /// Records the paths whose state has changed since the last time.
    fn paths(&mut self, agent: &Agent) -> Result<(), McapError> {
        let (now, paths) = agent.robot.ask(|robot, now| (now, robot.paths(now)));
        let paths: Vec<_> = paths.into_iter().map(status::Path::from).collect();
        for path in &paths {
            if self.paths.iter().any(|known| known.is_like(path)) {
                continue;
            }
            let place = usize::try_from(path.path).unwrap_or(usize::MAX);
            let (to, name) = (agent.member.name_of(RobotId(path.to)), agent.member.path_name(place));
            self.write(Kind::Paths, now, &path.recorded(to, &name))?;
        }
        self.paths = paths;
        Ok(())
    }

    fn write(&mut self, kind: Kind, at: Instant, value: &Value) -> Result<(), McapError> {
        let place = kind as usize;
        let (began, unix_ns) = self.began;
        let time = unix_ns.saturating_add(at.since(began).as_nanos());
        let header = MessageHeader {
            channel_id: self.channels[place],
            sequence: self.sequences[place],
            log_time: time,
            publish_time: time,
        };
        self.sequences[place] = self.sequences[place].wrapping_add(1);
        self.writer
            .write_to_known_channel(&header, value.to_string().as_bytes())
    }
}

/// Opens a new file, or something writable that is not a file, such as a pipe.
fn open(path: &Path) -> Result<File, Error> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if path.is_file() {
                return Err(Error::FileExists(path.to_owned()));
            }
            let opened = OpenOptions::new().write(true).open(path);
            opened.map_err(|error| Error::at("record to", path, error))
        }
        Err(error) => Err(Error::at("record to", path, error)),
    }
}

/// Returns a decision in its channel's form.
fn said(member: &Member, at: Instant, event: &Event) -> (Kind, Value) {
    let name = |robot: RobotId| member.name_of(robot);
    match event {
        Event::Said {
            from,
            to,
            epoch,
            message,
        } => {
            let mut value = permit(message);
            value["from"] = name(*from).into();
            value["to"] = name(*to).into();
            value["leader"] = name(epoch.robot).into();
            value["round"] = epoch.round.into();
            (Kind::Permits, value)
        }
        Event::Permitted(permitted) => {
            let event = if *permitted { "permitted" } else { "not-permitted" };
            (Kind::Permits, json!({"event": event, "from": member.name()}))
        }
        Event::Led(led, epoch) => {
            let event = match led {
                Led::Leads => "leads",
                Led::Follows => "follows",
                Led::Deposed => "deposed",
            };
            let leader = name(epoch.robot);
            let value = json!({
                "event": event, "leader": leader, "round": epoch.round, "incarnation": epoch.incarnation,
            });
            (Kind::Leader, value)
        }
        Event::Window(None) => (Kind::Window, json!({})),
        Event::Window(Some(window)) => {
            let until = micros(window.start.since(at)) - micros(at.since(window.start));
            let length = micros(window.end.since(window.start));
            (Kind::Window, json!({"starts_in_us": until, "length_us": length}))
        }
        Event::Gate(gate) => {
            let why = if gate.for_window { "window" } else { "backlog" };
            let path = member.path_name(gate.path);
            let mut value = json!({
                "path": path, "open": gate.open, "in_flight": gate.in_flight, "skipped": gate.skipped,
            });
            if !gate.open {
                value["why"] = why.into();
            }
            (Kind::Gate, value)
        }
    }
}

fn permit(message: &Message) -> Value {
    match message {
        Message::Request { request, .. } => json!({"event": "request", "request": request.0}),
        Message::Grant {
            request, token, slice, ..
        } => json!({"event": "grant", "request": request.0, "token": token.0, "slice_ms": slice.as_secs_f64() * 1e3}),
        Message::Release { token } => json!({"event": "release", "token": token.0}),
        Message::Renew { token, .. } => json!({"event": "renew", "token": token.0}),
        Message::Refuse { request, retry_after } => {
            json!({"event": "refuse", "request": request.0, "retry_after_ms": retry_after.as_secs_f64() * 1e3})
        }
    }
}

fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}
