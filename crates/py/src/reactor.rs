//! Runs the reactions of `coorp.reactor`, and the coordinator of a program on several processes.
//!
//! [`Runner`] drives one federate ([`coorp_local::run`]): it sets the ports that a reaction reads, calls the reaction,
//! and takes the effects that its calls have noted. It holds the GIL only meanwhile. `python/coorp/_native.pyi`
//! documents the interface to the front end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coorp_core::logical::graph::ElementKind;
use coorp_core::logical::scheduler::{Effects, Ready};
use coorp_core::logical::{ElementId, FederateId, Graph, ReactionId, RtiConfig, Tag};
use coorp_core::{Duration, Instant};
use coorp_local::run::{
    coordinate, run, Bytes, Clock, Coordination, CoordinatorSettings, Digest, Encoded, Failure, Handle, Input, Inputs,
    Journal, Moment, Ran, Reactions, Record, Recorded, Report, Settings, Standby, Violation, Violations, Writer,
    HEADER_RESERVED, INLINE_BYTES_MAX,
};
use coorp_local::{Sender, WhenFull};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PySystemExit, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::buffer::Contents;
use crate::graph::ReactorGraph;
use crate::local::{find_loan, Loan, Payload};

pyo3::create_exception!(
    coorp,
    RunError,
    PyRuntimeError,
    "A program did not run to its end. The text says why, and what to do."
);

pyo3::create_exception!(
    coorp,
    PeerError,
    RunError,
    "A program did not run to its end because another of its processes died."
);

/// An object of this process. Arrays in it are no longer written.
type Object = Arc<Py<PyAny>>;

/// Room for the header of a loaned array.
const LOAN_HEADER_BYTES: usize = 512;

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RunError", module.py().get_type::<RunError>())?;
    module.add("PeerError", module.py().get_type::<PeerError>())?;
    module.add_class::<Runner>()?;
    module.add_class::<Coordinator>()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of decoded values that are kept for other reactions at the same tag.
const DECODED_MAX: usize = 1024;

/// The code of one reaction, as bound by the front end.
struct Code {
    body: Py<PyAny>,
    late: Option<Py<PyAny>>,
    reads: Vec<(ElementId, Py<PyAny>)>,
    effects: Py<PyList>,
    moment: Py<PyAny>,
    /// The name and line, for errors.
    title: String,
}

/// Runs one federate of a program.
#[pyclass(frozen, module = "coorp._native")]
pub struct Runner {
    graph: Arc<Graph>,
    federate: FederateId,
    settings: Settings,
    options: Options,
    handle: Handle<Object>,
    bound: Mutex<Vec<Option<Code>>>,
}

/// Options besides running.
#[derive(Clone, Debug)]
struct Options {
    pickle: bool,
    /// The number of threads on which independent reactions run.
    threads: usize,
    /// Whether to hash the effects of each reaction.
    digest: bool,
    /// The file in which to record the run.
    record: Option<PathBuf>,
    /// The recordings to replay.
    replay: Vec<PathBuf>,
    /// The file for the trace's events, one JSON object a line.
    trace: Option<PathBuf>,
}

/// Returns a setting, if it is given.
pub(crate) fn optional<'py, T>(settings: &Bound<'py, PyDict>, key: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    match settings.get_item(key)? {
        Some(value) if !value.is_none() => value.extract().map(Some).map_err(Into::into),
        _ => Ok(None),
    }
}

/// Returns the clock of the program's federates.
fn clock(settings: &Bound<'_, PyDict>) -> PyResult<Clock> {
    let is_of_day = optional(settings, "time_of_day")?.unwrap_or(false);
    Ok(if is_of_day { Clock::TimeOfDay } else { Clock::Machine })
}

fn is_decentralised(settings: &Bound<'_, PyDict>) -> PyResult<bool> {
    match optional::<String>(settings, "coordination")?.as_deref() {
        None | Some("centralised") => Ok(false),
        Some("decentralised") => Ok(true),
        Some(other) => Err(PyValueError::new_err(format!("unknown coordination `{other}`"))),
    }
}

/// Returns the exception for a program that did not run to its end.
pub(crate) fn unrun(failure: &Failure) -> PyErr {
    match failure {
        Failure::Died(_) => PeerError::new_err(failure.to_string()),
        Failure::Local(error) => RunError::new_err(no_room(error)),
        _ => RunError::new_err(failure.to_string()),
    }
}

/// Returns the text of an error of an output's channel, with advice for this program.
fn no_room(error: &coorp_local::Error) -> String {
    use coorp_local::{Error, Shortage};
    let (channel, waited, shortage) = match error {
        Error::Deadline {
            channel,
            waited,
            shortage,
        } => (
            channel,
            format!("waited {} ms, and still ", waited.as_millis()),
            shortage,
        ),
        Error::Full { channel, shortage } => (channel, String::new(), shortage),
        Error::TooLarge { bytes, store_bytes } => {
            return format!("a value of {bytes} bytes never fits into {store_bytes}; raise --store-bytes")
        }
        _ => return error.to_string(),
    };
    let why = match shortage {
        Shortage::Store { bytes, used } => format!(
            "there is no room for {bytes} bytes: receivers hold {used}. Have them drop or copy what they keep, or raise \
             --store-bytes or --store-wait"
        ),
        Shortage::Held { pid } => format!(
            "process {pid} holds as many values as it may; have it drop or copy what it keeps, or raise --store-wait"
        ),
        Shortage::Queue { pid } => {
            format!("process {pid} receives too slowly; have it do less for each value, or raise --store-wait")
        }
        _ => shortage.to_string(),
    };
    format!("{channel}: {waited}{why}")
}

#[pymethods]
impl Runner {
    #[new]
    fn new(graph: &ReactorGraph, federate: u16, settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let graph = Arc::clone(&graph.graph);
        let federate = FederateId(federate);
        if graph.federate(federate).is_none() {
            return Err(PyValueError::new_err("the program has no federate with this number"));
        }
        let coordination = if is_decentralised(settings)? {
            let offset = optional(settings, "offset_ns")?.map(Duration::from_nanos);
            Coordination::Decentralised { offset }
        } else {
            Coordination::Centralised
        };
        let mut run_settings = Settings {
            coordination,
            domain: optional(settings, "domain")?.unwrap_or_default(),
            clock: clock(settings)?,
            fast: optional(settings, "fast")?.unwrap_or(false),
            timeout: optional(settings, "timeout_ns")?.map(Duration::from_nanos),
            ..Settings::default()
        };
        let options = Options {
            pickle: optional(settings, "pickle")?.unwrap_or(false),
            threads: optional(settings, "threads")?.unwrap_or(1).max(1),
            digest: optional(settings, "digest")?.unwrap_or(false),
            record: optional(settings, "record")?,
            replay: optional(settings, "replay")?.unwrap_or_default(),
            trace: optional(settings, "trace")?,
        };
        run_settings.trace = options.trace.is_some();
        if !options.replay.is_empty() && graph.federates().len() > 1 {
            return Err(PyValueError::new_err("a replay runs in one process"));
        }
        if let Some(bytes) = optional(settings, "store_bytes")? {
            run_settings.store.store_bytes = bytes;
        }
        if let Some(wait) = optional(settings, "store_wait_ns")? {
            run_settings.store.when_full = WhenFull::Block(std::time::Duration::from_nanos(wait));
        }
        let bound = (0..graph.reactions().len()).map(|_| None).collect();
        Ok(Runner {
            federate,
            settings: run_settings,
            options,
            handle: Handle::new().map_err(|error| RunError::new_err(error.to_string()))?,
            bound: Mutex::new(bound),
            graph,
        })
    }

    /// The code of a reaction. `late` runs instead of `body` if the deadline has passed.
    #[allow(clippy::too_many_arguments)]
    fn bind(
        &self,
        reaction: u32,
        body: Py<PyAny>,
        late: Option<Py<PyAny>>,
        reads: Vec<(u32, Py<PyAny>)>,
        effects: Py<PyList>,
        moment: Py<PyAny>,
        title: String,
    ) -> PyResult<()> {
        let mut bound = lock(&self.bound);
        let place = bound.get_mut(reaction as usize);
        let place = place.ok_or_else(|| PyValueError::new_err("the program has no reaction with this number"))?;
        *place = Some(Code {
            body,
            late,
            reads: reads
                .into_iter()
                .map(|(element, port)| (ElementId(element), port))
                .collect(),
            effects,
            moment,
            title,
        });
        Ok(())
    }

    /// Schedules a physical action now. Any thread may call this.
    #[pyo3(signature = (action, value=None))]
    fn schedule(&self, action: u32, value: Option<Py<PyAny>>) -> PyResult<()> {
        if self.handle.schedule(ElementId(action), value.map(Arc::new)) {
            return Ok(());
        }
        Err(RunError::new_err(
            "too many physical actions wait for their reactions; schedule fewer, or make the reactions faster",
        ))
    }

    /// Returns memory for a value of this output, or `None` if no other process reads it.
    fn loan(&self, py: Python<'_>, output: u32, bytes: usize) -> PyResult<Option<Loan>> {
        let loan = || self.handle.loan(ElementId(output), LOAN_HEADER_BYTES, &[bytes]);
        let loan = py.detach(loan).map_err(|error| RunError::new_err(no_room(&error)))?;
        Ok(loan.map(|loan| Loan::new(loan, vec![bytes])))
    }

    /// Requests the end of the program. Any thread may call this.
    fn request_stop(&self) {
        self.handle.request_stop();
    }

    /// Runs until the end of the program, and returns the counts.
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let bound = {
            let mut bound = lock(&self.bound);
            std::mem::take(&mut *bound)
        };
        let mut host = Host::new(py, &self.graph, bound, self.settings.clock, &self.options)?;
        let mut settings = self.settings.clone();
        settings.replay = host.replay.as_ref().map(|replay| replay.last);
        let outcome = py.detach(|| self.drive(&settings, &mut host));
        if let Some(writer) = host.writer.take() {
            writer
                .finish()
                .map_err(|error| unwritten(&self.options.record, &error))?;
        }
        let traced = host.failed.take().map_or(Ok(()), |report| self.write_trace(&report));
        if let Some(error) = host.error.take() {
            return Err(error);
        }
        traced.map_err(|error| unwritten(&self.options.trace, &error))?;
        match outcome {
            Ok(report) => {
                self.write_trace(&report)
                    .map_err(|error| unwritten(&self.options.trace, &error))?;
                let dict = counters(py, &self.graph, &report)?;
                host.add_counters(&dict)?;
                Ok(dict)
            }
            Err(Failure::Interrupted) => Err(PyKeyboardInterrupt::new_err(())),
            Err(failure) => Err(unrun(&failure)),
        }
    }
}

impl Runner {
    /// Runs the federate, and beside it a coordinator that takes over if another one dies.
    fn drive(&self, settings: &Settings, host: &mut Host) -> Result<Report, Failure> {
        if self.graph.federates().len() == 1 {
            return run(&self.graph, self.federate, settings, host, &self.handle);
        }
        let standby = Standby::new()?;
        let coordinator_settings = CoordinatorSettings {
            domain: settings.domain.clone(),
            clock: settings.clock,
            rti: RtiConfig {
                is_decentralised: settings.coordination != Coordination::Centralised,
                ..RtiConfig::default()
            },
        };
        std::thread::scope(|scope| {
            let coordinator = scope.spawn(|| coordinate(&self.graph, &coordinator_settings, &standby));
            let outcome = run(&self.graph, self.federate, settings, host, &self.handle);
            standby.quit();
            // The federate also says why nothing was started.
            let _ = coordinator.join();
            outcome
        })
    }

    fn write_trace(&self, report: &Report) -> std::io::Result<()> {
        let (Some(path), Some(trace)) = (&self.options.trace, &report.trace) else {
            return Ok(());
        };
        let mut file = BufWriter::new(File::create(path)?);
        for event in trace.chrome(&self.graph, self.federate.0) {
            serde_json::to_writer(&mut file, &event)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }
}

fn unrecorded(error: &std::io::Error) -> PyErr {
    PyOSError::new_err(format!("the recording: {error}"))
}

/// Returns the reactions that start.
fn started<'a>(ready: &'a [Ready], starts: &'a [bool]) -> impl Iterator<Item = &'a Ready> {
    ready
        .iter()
        .zip(starts)
        .filter(|(_, starts)| **starts)
        .map(|(ready, _)| ready)
}

fn unwritten(path: &Option<PathBuf>, error: &std::io::Error) -> PyErr {
    let path = path.as_deref().unwrap_or(Path::new(""));
    PyOSError::new_err(format!("{}: {error}", path.display()))
}

/// Returns the counts of a federate, by name.
fn counters<'py>(py: Python<'py>, graph: &Graph, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item(
        "completed_ns",
        report.completed.and_then(Tag::time).map(Duration::as_nanos),
    )?;
    let reactions = PyDict::new(py);
    for (info, spent) in graph
        .reactions()
        .iter()
        .zip(&report.reactions)
        .filter(|(_, spent)| spent.count > 0)
    {
        let counts = PyDict::new(py);
        counts.set_item("count", spent.count)?;
        counts.set_item("late", spent.late)?;
        counts.set_item("total_ns", spent.total.as_nanos())?;
        counts.set_item("longest_ns", spent.longest.as_nanos())?;
        reactions.set_item(&info.name, counts)?;
    }
    dict.set_item("reactions", reactions)?;
    dict.set_item("lag_max_ns", report.lag_max.as_nanos())?;
    let arrivals = PyDict::new(py);
    for (input, times) in &report.arrivals {
        let name = graph.element(*input).map_or("", |element| element.name.as_str());
        let counts = PyDict::new(py);
        counts.set_item("count", times.count())?;
        for (key, share) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999), ("max_ns", 1.0)] {
            counts.set_item(key, times.quantile(share).as_nanos())?;
        }
        arrivals.set_item(name, counts)?;
    }
    dict.set_item("arrivals", arrivals)?;
    let name = |id: ElementId| graph.element(id).map_or("", |element| element.name.as_str());
    let violations = |of: fn(&Violations) -> u64| {
        let counts = report.violations.iter().map(|(input, each)| (name(*input), of(each)));
        counts.collect::<BTreeMap<_, _>>()
    };
    dict.set_item("violations", violations(|each| each.count))?;
    dict.set_item("handled", violations(|each| each.handled))?;
    dict.set_item("gone", &report.gone)?;
    Ok(dict)
}

/// Calls the reactions of one federate.
struct Host {
    graph: Arc<Graph>,
    bound: Vec<Option<Code>>,
    clock: Clock,
    encode: Py<PyAny>,
    decode: Py<PyAny>,
    pickle: bool,
    threads: usize,
    digest: Option<Digest>,
    writer: Option<Writer<BufWriter<File>>>,
    replay: Option<Replay>,
    /// The decoded values of other federates that were read at the latest tag.
    decoded: (Tag, HashMap<ElementId, Py<PyAny>>),
    error: Option<PyErr>,
    /// The report of a program that failed.
    failed: Option<Report>,
}

/// A recording that is replayed.
struct Replay {
    journal: Journal,
    physical: std::vec::IntoIter<Recorded<Bytes>>,
    last: Tag,
    /// The inputs of the recorded run that were absent at these tags, because their values came late.
    late: BTreeSet<(Tag, ElementId)>,
    /// The reactions that differed from the recording: how often, and the first tag.
    different: BTreeMap<String, (u64, Tag)>,
}

impl Replay {
    fn open(graph: &Graph, paths: &[PathBuf]) -> PyResult<Option<Self>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let mut journal = Journal::default();
        for path in paths {
            let read = File::open(path).and_then(|file| journal.read(BufReader::new(file)));
            read.map_err(|error| unwritten(&Some(path.clone()), &error))?;
        }
        let physical = journal.physical(graph).map_err(|failure| unrun(&failure))?.into_iter();
        let last = journal.last().unwrap_or(Tag::START);
        let late = journal.late(graph).map_err(|failure| unrun(&failure))?;
        let different = BTreeMap::new();
        Ok(Some(Replay {
            journal,
            physical,
            last,
            late,
            different,
        }))
    }
}

impl Host {
    fn new(
        py: Python<'_>,
        graph: &Arc<Graph>,
        bound: Vec<Option<Code>>,
        clock: Clock,
        options: &Options,
    ) -> PyResult<Self> {
        let writer = options
            .record
            .as_ref()
            .map(|path| Writer::new(BufWriter::new(File::create(path)?)));
        let writer = writer.transpose().map_err(|error| unwritten(&options.record, &error))?;
        let codec = py.import("coorp.reactor.codec")?;
        Ok(Host {
            graph: Arc::clone(graph),
            bound,
            clock,
            encode: codec.getattr("encode")?.unbind(),
            decode: codec.getattr("decode")?.unbind(),
            pickle: options.pickle,
            threads: options.threads,
            digest: options.digest.then(Digest::default),
            writer,
            replay: Replay::open(graph, &options.replay)?,
            decoded: (Tag::NEVER, HashMap::new()),
            error: None,
            failed: None,
        })
    }

    /// Notes the error that ends the program, with the reaction in which it happened.
    fn fail(&mut self, py: Python<'_>, error: PyErr, name: &str) -> String {
        let what = format!("{name}: {error}");
        // Python 3.11 shows notes.
        let _ = error
            .value(py)
            .call_method1(intern!(py, "add_note"), (format!("in the reaction {name}"),));
        self.error.get_or_insert(error);
        what
    }

    /// Returns the name and line of a reaction.
    fn title(&self, reaction: ReactionId) -> String {
        let code = self.bound.get(reaction.0 as usize).and_then(Option::as_ref);
        code.map_or_else(|| self.name(reaction), |code| code.title.clone())
    }

    /// Returns the error for a value that cannot be encoded.
    fn unsent(&self, py: Python<'_>, reaction: ReactionId, element: ElementId, error: PyErr) -> PyErr {
        let name = self.graph.element(element).map_or("", |element| element.name.as_str());
        let title = self.title(reaction);
        let text = if error.is_instance_of::<RunError>(py) {
            format!("{title}: {}", error.value(py))
        } else {
            format!(
                "{title} sets {name} to a value that cannot be sent: {}",
                error.value(py)
            )
        };
        let told = RunError::new_err(text);
        told.set_cause(py, Some(error));
        told
    }

    fn name(&self, reaction: ReactionId) -> String {
        let info = self.graph.reaction(reaction);
        info.map(|info| info.name.clone()).unwrap_or_default()
    }

    /// Runs reactions one after the other, or on several threads, and records or compares their effects.
    fn react(
        &mut self,
        py: Python<'_>,
        moment: Moment,
        ready: &[Ready],
        inputs: &dyn Inputs<Object>,
    ) -> Result<Vec<Ran<Object>>, (ReactionId, PyErr)> {
        let mut recorded = Vec::with_capacity(ready.len());
        let mut calls = Vec::with_capacity(ready.len());
        // In a replay, a value that was late in the recorded run starts nothing.
        let starts: Vec<_> = ready
            .iter()
            .map(|ready| self.starts(ready.reaction, moment.tag, inputs))
            .collect();
        for ready in started(ready, &starts) {
            let replay = self.replay.as_mut();
            let known = replay.and_then(|replay| replay.journal.next(&self.graph, ready.reaction, moment.tag));
            let late = known.as_ref().map_or(ready.late, |known| known.late);
            let call = self.prepare(py, moment, Ready { late, ..*ready }, inputs, known.as_ref());
            calls.push(call.map_err(|error| (ready.reaction, error))?);
            recorded.push(known);
        }
        let outcomes = if self.threads == 1 || calls.len() == 1 {
            calls.iter().map(|call| invoke(py, self.clock, call)).collect()
        } else {
            invoke_on_threads(py, self.clock, &calls, self.threads)
        };
        let mut all = Vec::with_capacity(ready.len());
        let mut failed = None;
        for ((ready, recorded), outcome) in started(ready, &starts).zip(recorded).zip(outcomes) {
            // Take the effects of every reaction, so that none are left for a later tag.
            match self.conclude(py, moment.tag, *ready, recorded, inputs, outcome) {
                Ok(ran) => all.push(ran),
                Err(error) => drop(failed.get_or_insert((ready.reaction, error))),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        let mut all = all.into_iter();
        let ran = starts.iter().filter_map(|starts| match starts {
            true => all.next(),
            false => Some(Ran {
                effects: Effects::default(),
                began: self.clock.now(),
                ended: self.clock.now(),
            }),
        });
        Ok(ran.collect())
    }

    /// Returns whether a trigger is present that was present in the recorded run, if this is a replay.
    fn starts(&self, reaction: ReactionId, tag: Tag, inputs: &dyn Inputs<Object>) -> bool {
        if self.replay.as_ref().is_none_or(|replay| replay.late.is_empty()) {
            return true;
        }
        let triggers = self.graph.reaction(reaction).map_or(&[][..], |info| &info.triggers);
        let mut present = triggers.iter().filter(|id| inputs.get(**id).is_some());
        present.any(|id| !self.was_late(tag, *id))
    }

    fn was_late(&self, tag: Tag, input: ElementId) -> bool {
        let replay = self.replay.as_ref();
        replay.is_some_and(|replay| replay.late.contains(&(tag, input)))
    }

    /// Takes the effects of a reaction that was called, and records or compares them.
    fn conclude(
        &mut self,
        py: Python<'_>,
        tag: Tag,
        mut ready: Ready,
        recorded: Option<Record>,
        inputs: &dyn Inputs<Object>,
        outcome: Outcome,
    ) -> PyResult<Ran<Object>> {
        if let Some(recorded) = &recorded {
            ready.late = recorded.late;
        }
        let Outcome { began, ended, .. } = outcome;
        let mut effects = match self.take(py, ready, outcome.returned) {
            Ok(effects) => effects,
            Err(error) => {
                if self.writer.is_some() {
                    // A replay ends with the same error.
                    let record = self.record(py, tag, ready, recorded.as_ref(), inputs, &Effects::default())?;
                    self.write(&record)?;
                }
                return Err(error);
            }
        };
        if self.digest.is_none() && self.writer.is_none() && self.replay.is_none() {
            return Ok(Ran { effects, began, ended });
        }
        let mut record = self.record(py, tag, ready, recorded.as_ref(), inputs, &effects)?;
        if let Some(replay) = &mut self.replay {
            if recorded.as_ref() != Some(&record) {
                let first = (0, tag);
                replay.different.entry(record.reaction.clone()).or_insert(first).0 += 1;
            }
        }
        if let Some(recorded) = recorded.filter(|recorded| *recorded != record) {
            // The rest of the recorded run followed from these effects.
            effects = self.recorded_effects(py, &recorded)?;
            record = recorded;
        }
        if let Some(digest) = &mut self.digest {
            digest.add(&record);
        }
        self.write(&record)?;
        Ok(Ran { effects, began, ended })
    }

    fn write(&mut self, record: &Record) -> PyResult<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        writer.add(record).map_err(|error| unrecorded(&error))
    }

    fn record(
        &self,
        py: Python<'_>,
        tag: Tag,
        ready: Ready,
        recorded: Option<&Record>,
        inputs: &dyn Inputs<Object>,
        effects: &Effects<Object>,
    ) -> PyResult<Record> {
        let name = |id: ElementId| {
            self.graph
                .element(id)
                .map_or(String::new(), |element| element.name.clone())
        };
        let info = self.graph.reaction(ready.reaction);
        let reads = info
            .into_iter()
            .flat_map(|info| info.triggers.iter().chain(&info.sources));
        let mut physical = Vec::new();
        let mut meant = Vec::new();
        for id in reads.filter(|id| self.is_physical(**id)) {
            meant.extend(inputs.meant(*id).map(|tag| (name(*id), tag)));
            let bytes = match inputs.get(*id) {
                None => continue,
                Some(Input::Present) => None,
                Some(Input::Here(object)) => Some(self.bytes(py, object)?),
                Some(Input::From(received)) => Some(Bytes {
                    header: received.header().to_vec(),
                    parts: (0..received.parts())
                        .filter_map(|at| received.part(at))
                        .map(<[u8]>::to_vec)
                        .collect(),
                }),
            };
            physical.push((name(*id), bytes));
        }
        let bytes = |id: ElementId, object: &Object| {
            let bytes = self.bytes(py, object);
            bytes.map_err(|error| self.unsent(py, ready.reaction, id, error))
        };
        let sets = effects
            .sets
            .iter()
            .map(|(id, object)| Ok((name(*id), bytes(*id, object)?)));
        let schedules = effects.schedules.iter().map(|(id, delay, object)| {
            let bytes = object.as_ref().map(|object| bytes(*id, object)).transpose()?;
            Ok((name(*id), delay.as_nanos(), bytes))
        });
        Ok(Record {
            reaction: self.name(ready.reaction),
            tag,
            late: ready.late,
            physical,
            // A replay cannot determine this by itself.
            meant: recorded.map_or(meant, |recorded| recorded.meant.clone()),
            sets: sets.collect::<PyResult<_>>()?,
            schedules: schedules.collect::<PyResult<_>>()?,
            stop: effects.stop,
        })
    }

    /// Returns the name of an element that stands for late values.
    fn late_name(&self, id: ElementId) -> Option<&str> {
        let info = self.graph.element(id).filter(|info| info.kind == ElementKind::Tardy);
        info.map(|info| info.name.as_str())
    }

    fn is_physical(&self, id: ElementId) -> bool {
        self.graph.element(id).is_some_and(|element| {
            matches!(element.kind, ElementKind::Physical(_) | ElementKind::Tardy)
                || element.from.is_some_and(|link| link.physical)
        })
    }

    fn bytes(&self, py: Python<'_>, object: &Object) -> PyResult<Bytes> {
        let (header, parts) = self.encoded(py, object)?;
        let parts = parts.iter().map(|part| Ok(Contents::of(part)?.as_slice().to_vec()));
        Ok(Bytes {
            header,
            parts: parts.collect::<PyResult<_>>()?,
        })
    }

    fn object(&self, py: Python<'_>, bytes: &Bytes) -> PyResult<Object> {
        let parts = bytes.parts.iter().map(|part| PyBytes::new(py, part));
        decode(
            py,
            &self.decode,
            PyBytes::new(py, &bytes.header),
            PyList::new(py, parts)?,
            self.pickle,
        )
        .map(Arc::new)
    }

    fn recorded_effects(&self, py: Python<'_>, record: &Record) -> PyResult<Effects<Object>> {
        let find = |name: &str| {
            let other = || {
                PyValueError::new_err(format!(
                    "the recording is from another program: this one has no `{name}`"
                ))
            };
            self.graph.find(name).ok_or_else(other)
        };
        let sets = record
            .sets
            .iter()
            .map(|(name, bytes)| Ok((find(name)?, self.object(py, bytes)?)));
        let schedules = record.schedules.iter().map(|(name, delay, bytes)| {
            let object = bytes.as_ref().map(|bytes| self.object(py, bytes)).transpose()?;
            Ok((find(name)?, Duration::from_nanos(*delay), object))
        });
        Ok(Effects {
            sets: sets.collect::<PyResult<_>>()?,
            schedules: schedules.collect::<PyResult<_>>()?,
            stop: record.stop,
        })
    }

    /// Adds the counts of this host, besides the driver's.
    fn add_counters(&self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
        if let Some(digest) = &self.digest {
            dict.set_item("digest", digest.reactions().clone())?;
        }
        if let Some(replay) = &self.replay {
            let different = replay
                .different
                .iter()
                .map(|(name, (count, tag))| (name, (*count, tag.to_string())));
            dict.set_item("different", different.collect::<BTreeMap<_, _>>())?;
            dict.set_item("unplayed", replay.journal.len())?;
        }
        Ok(())
    }

    fn code(&self, reaction: ReactionId) -> PyResult<&Code> {
        let code = self.bound.get(reaction.0 as usize).and_then(Option::as_ref);
        code.ok_or_else(|| PyValueError::new_err("this reaction is not bound"))
    }

    /// Sets the ports that a reaction reads, and returns the method to call.
    fn prepare(
        &mut self,
        py: Python<'_>,
        moment: Moment,
        ready: Ready,
        inputs: &dyn Inputs<Object>,
        recorded: Option<&Record>,
    ) -> PyResult<Py<PyAny>> {
        let bound = self.bound.get(ready.reaction.0 as usize).and_then(Option::as_ref);
        let bound = bound.ok_or_else(|| PyValueError::new_err("this reaction is not bound"))?;
        let (value, present) = (intern!(py, "_value"), intern!(py, "_present"));
        for (element, port) in &bound.reads {
            let read = inputs.get(*element).filter(|_| !self.was_late(moment.tag, *element));
            port.setattr(py, present, read.is_some())?;
            if let Some(late) = self.late_name(*element) {
                let recorded = recorded.into_iter().flat_map(|recorded| &recorded.meant);
                let mut recorded = recorded.filter(|(name, _)| name == late).map(|(_, meant)| *meant);
                let meant = inputs.meant(*element).or_else(|| recorded.next());
                let meant = meant.and_then(Tag::time).map(Duration::as_nanos);
                port.setattr(py, intern!(py, "_meant"), meant)?;
            }
            match read {
                Some(Input::Here(object)) => port.setattr(py, value, object.as_ref())?,
                Some(Input::From(received)) => {
                    let known = self.decoded.1.get(element);
                    let object = match known {
                        Some(object) => object.clone_ref(py),
                        None => {
                            let header = PyBytes::new(py, received.header());
                            let parts = Payload::new(received.clone()).parts(py)?;
                            let object = decode(py, &self.decode, header, parts, self.pickle)?;
                            if self.decoded.1.len() < DECODED_MAX {
                                self.decoded.1.insert(*element, object.clone_ref(py));
                            }
                            object
                        }
                    };
                    port.setattr(py, value, object)?;
                }
                Some(Input::Present) | None => port.setattr(py, value, py.None())?,
            }
        }
        let tag = moment.tag;
        bound
            .moment
            .setattr(py, intern!(py, "time_ns"), tag.time().map_or(0, Duration::as_nanos))?;
        bound.moment.setattr(py, intern!(py, "microstep"), tag.microstep())?;
        bound.moment.setattr(py, intern!(py, "lag_ns"), moment.lag.as_nanos())?;
        let late = bound.late.as_ref().filter(|_| ready.late);
        Ok(late.unwrap_or(&bound.body).clone_ref(py))
    }

    /// Takes the effects that the calls of a reaction noted.
    fn take(&self, py: Python<'_>, ready: Ready, returned: PyResult<()>) -> PyResult<Effects<Object>> {
        let bound = self.code(ready.reaction)?;
        let noted = bound.effects.bind(py);
        let mut effects = match &returned {
            Ok(_) => effects(noted)?,
            Err(_) => Effects::default(),
        };
        noted.del_slice(0, noted.len())?;
        if let Err(error) = returned {
            if error.is_instance_of::<PySystemExit>(py) {
                let title = &bound.title;
                return Err(RunError::new_err(format!(
                    "{title} called sys.exit(); call self.stop() to end the program"
                )));
            }
            if !error.is_instance_of::<PyKeyboardInterrupt>(py) {
                return Err(error);
            }
            effects.stop = true;
        }
        // After the reaction, its ports have no value, and keep no memory.
        for (element, port) in &bound.reads {
            port.setattr(py, intern!(py, "_value"), py.None())?;
            port.setattr(py, intern!(py, "_present"), false)?;
            if self.late_name(*element).is_some() {
                port.setattr(py, intern!(py, "_meant"), py.None())?;
            }
        }
        Ok(effects)
    }

    fn encode_for(&self, py: Python<'_>, output: ElementId, object: &Object, sender: &mut Sender) -> PyResult<Encoded> {
        let (header, parts) = self.encoded(py, object)?;
        let contents = parts.iter().map(Contents::of).collect::<PyResult<Vec<_>>>()?;
        let views: Vec<&[u8]> = contents.iter().map(Contents::as_slice).collect();
        let lengths: Vec<usize> = views.iter().map(|part| part.len()).collect();
        if header.len() + lengths.iter().sum::<usize>() <= INLINE_BYTES_MAX {
            let parts = views.iter().map(|part| part.to_vec()).collect();
            return Ok(Encoded::Inline(header, parts));
        }
        if header.len() <= LOAN_HEADER_BYTES {
            // A loan that was sent before, or belongs to another output, is copied like any memory.
            if let Some(memory) = find_loan(&parts)? {
                if let Ok(loan) = memory.take(sender, HEADER_RESERVED, &header) {
                    memory.seal(py)?;
                    return Ok(Encoded::Loan(loan));
                }
            }
        }
        let name = self.graph.element(output).map_or("", |element| element.name.as_str());
        let refused = |error: coorp_local::Error| RunError::new_err(no_room(&error.on_channel(name)));
        let mut loan = sender
            .loan_parts(HEADER_RESERVED + header.len(), &lengths)
            .map_err(refused)?;
        loan.header_mut()[HEADER_RESERVED..].copy_from_slice(&header);
        for (to, from) in loan.parts_mut().into_iter().zip(views) {
            to.copy_from_slice(from);
        }
        Ok(Encoded::Loan(loan))
    }

    /// Returns a value's header, and its parts as arrays or bytes.
    fn encoded<'py>(&self, py: Python<'py>, object: &Object) -> PyResult<(Vec<u8>, Vec<Bound<'py, PyAny>>)> {
        let options = PyDict::new(py);
        options.set_item(intern!(py, "pickle"), self.pickle)?;
        let encoded = self.encode.bind(py).call((object.as_ref(),), Some(&options))?;
        let (header, parts): (PyBackedBytes, _) = encoded.extract()?;
        Ok((header.to_vec(), parts))
    }
}

/// The outcome of a call.
struct Outcome {
    began: Instant,
    ended: Instant,
    returned: PyResult<()>,
}

fn invoke(py: Python<'_>, clock: Clock, call: &Py<PyAny>) -> Outcome {
    let began = clock.now();
    let returned = call.call0(py).map(drop);
    let ended = clock.now();
    Outcome { began, ended, returned }
}

/// Makes the calls on at most `threads` threads, each taking the next call. Calls run in parallel while they release
/// the GIL.
fn invoke_on_threads(py: Python<'_>, clock: Clock, calls: &[Py<PyAny>], threads: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<_> = calls.iter().map(|_| Mutex::new(None)).collect();
    let work = || loop {
        let at = next.fetch_add(1, Relaxed);
        let (Some(call), Some(outcome)) = (calls.get(at), outcomes.get(at)) else {
            return;
        };
        *lock(outcome) = Some(Python::attach(|py| invoke(py, clock, call)));
    };
    py.detach(|| {
        std::thread::scope(|scope| {
            for _ in 1..threads.min(calls.len()) {
                scope.spawn(work);
            }
            work();
        });
    });
    let outcomes = outcomes.into_iter();
    outcomes
        .filter_map(|outcome| outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

/// Returns the effects that the calls of a reaction noted.
fn effects(noted: &Bound<'_, PyList>) -> PyResult<Effects<Object>> {
    let mut effects = Effects::default();
    for item in noted.iter() {
        if item.is_none() {
            effects.stop = true;
            continue;
        }
        let item = item.cast_into::<PyTuple>()?;
        let element = ElementId(item.get_item(0)?.extract()?);
        match item.len() {
            2 => effects.sets.push((element, Arc::new(item.get_item(1)?.unbind()))),
            3 => {
                let delay = Duration::from_nanos(item.get_item(1)?.extract()?);
                let value = item.get_item(2)?;
                let value = (!value.is_none()).then(|| Arc::new(value.unbind()));
                effects.schedules.push((element, delay, value));
            }
            _ => return Err(PyTypeError::new_err("an effect has two or three fields")),
        }
    }
    Ok(effects)
}

fn decode(
    py: Python<'_>,
    decode: &Py<PyAny>,
    header: Bound<'_, PyBytes>,
    parts: Bound<'_, PyList>,
    pickle: bool,
) -> PyResult<Py<PyAny>> {
    let options = PyDict::new(py);
    options.set_item(intern!(py, "pickle"), pickle)?;
    decode.call(py, (header, parts), Some(&options))
}

impl Reactions for Host {
    type Object = Object;

    fn run(
        &mut self,
        moment: Moment,
        ready: &[Ready],
        inputs: &dyn Inputs<Object>,
    ) -> Result<Vec<Ran<Object>>, String> {
        Python::attach(|py| {
            if self.decoded.0 != moment.tag {
                self.decoded.0 = moment.tag;
                self.decoded.1.clear();
            }
            let ran = self.react(py, moment, ready, inputs);
            ran.map_err(|(reaction, error)| {
                let title = self.title(reaction);
                self.fail(py, error, &title)
            })
        })
    }

    fn on_violation(&mut self, violation: Violation) {
        let (Some(writer), Some(input)) = (&mut self.writer, self.graph.element(violation.input)) else {
            return;
        };
        if let Err(error) = writer.add_late(&input.name, violation.meant) {
            Python::attach(|py| self.fail(py, unrecorded(&error), "the recording"));
        }
    }

    fn encode(
        &mut self,
        reaction: ReactionId,
        output: ElementId,
        object: &Object,
        sender: &mut Sender,
    ) -> Result<Encoded, String> {
        Python::attach(|py| {
            let encoded = self.encode_for(py, output, object, sender);
            encoded.map_err(|error| {
                let error = self.unsent(py, reaction, output, error);
                let what = error.to_string();
                self.error.get_or_insert(error);
                what
            })
        })
    }

    fn on_failed(&mut self, report: Report) {
        self.failed = Some(report);
    }

    fn next_recorded(&mut self) -> Option<Recorded<Object>> {
        let (tag, element, bytes) = self.replay.as_mut()?.physical.next()?;
        let object = bytes.map(|bytes| Python::attach(|py| self.object(py, &bytes)));
        match object.transpose() {
            Ok(object) => Some((tag, element, object)),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    fn is_interrupted(&mut self) -> bool {
        Python::attach(|py| match py.check_signals() {
            Ok(()) => false,
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => true,
            Err(error) => {
                self.fail(py, error, "a signal handler");
                true
            }
        })
    }
}

/// Coordinates a program on several processes.
#[pyclass(frozen, module = "coorp._native")]
pub struct Coordinator {
    graph: Arc<Graph>,
    settings: CoordinatorSettings,
    standby: Standby,
}

#[pymethods]
impl Coordinator {
    #[new]
    fn new(graph: &ReactorGraph, settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut rti = RtiConfig {
            is_decentralised: is_decentralised(settings)?,
            ..RtiConfig::default()
        };
        if let Some(longest) = optional(settings, "report_max_ns")? {
            rti.report_max = Duration::from_nanos(longest);
        }
        Ok(Coordinator {
            graph: Arc::clone(&graph.graph),
            settings: CoordinatorSettings {
                domain: optional(settings, "domain")?.unwrap_or_default(),
                clock: clock(settings)?,
                rti,
            },
            standby: Standby::new().map_err(|error| RunError::new_err(error.to_string()))?,
        })
    }

    /// Blocks until the program is over, or until [`Coordinator::quit`].
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| coordinate(&self.graph, &self.settings, &self.standby))
            .map_err(|failure| unrun(&failure))
    }

    /// Requests the end of the program. Any thread may call this.
    fn request_stop(&self) {
        self.standby.request_stop();
    }

    /// Makes `run` return. Any thread may call this.
    fn quit(&self) {
        self.standby.quit();
    }
}
