//! Spreads a reactor program over robots: `coorp_local`'s bridge over a node's control and bulk.
//!
//! Each robot has a control topic for the packets to it. Threads pass what arrives to the bridge.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coorp_core::RobotId;
use coorp_local::run::{Bridge as Local, BridgeArrivals, BridgeSettings, Link};
use coorp_node::bulk::{BulkReceiver, BulkStream, Delivery};
use coorp_node::control::{Publisher, Subscriber};
use coorp_node::Error;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::wait::lock;
use super::{Node, Shared};
use crate::graph::ReactorGraph;
use crate::reactor::{optional, unrun, RunError};

/// The interval at which a thread checks whether it has to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time until bulk for which the bridge has no room is offered again.
const RETRY: Duration = Duration::from_millis(1);

/// Connects the federates of this robot to those of others.
#[pyclass(frozen, module = "coorp._native")]
pub struct Bridge {
    /// Its parts, until it runs.
    idle: Mutex<Option<(Local, NodeLink)>>,
    arrivals: BridgeArrivals,
}

/// A node, as the bridge uses it.
struct NodeLink {
    shared: Arc<Shared>,
    publishers: BTreeMap<RobotId, Publisher>,
    /// Bulk that the node had no room for.
    unfinished: BTreeMap<RobotId, BulkStream>,
    deliveries: mpsc::Sender<Delivery>,
    /// Tells the threads to end.
    is_over: Arc<AtomicBool>,
}

fn topic(to: RobotId) -> String {
    format!("run.{}", to.0)
}

#[pymethods]
impl Bridge {
    #[new]
    fn new(
        py: Python<'_>,
        graph: &ReactorGraph,
        robots: Vec<String>,
        node: &Node,
        settings: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let id = |name: &str| {
            let at = node.shared.node.robots().iter().position(|robot| robot == name);
            let at = at.and_then(|at| u16::try_from(at).ok());
            at.map(RobotId)
                .ok_or_else(|| PyKeyError::new_err(format!("the team has no robot {name:?}")))
        };
        let hub: Option<String> = optional(settings, "rti")?;
        let hub = hub.or_else(|| robots.first().cloned());
        let hub = hub.ok_or_else(|| PyValueError::new_err("the program has no federates"))?;
        let domain: String = optional(settings, "domain")?.unwrap_or_default();
        let places = robots.iter().map(|robot| id(robot)).collect::<PyResult<_>>()?;
        let mut bridged = BridgeSettings::new(&domain, places, id(&node.name)?, id(&hub)?);
        let nanos = |key| PyResult::Ok(optional(settings, key)?.map(coorp_core::Duration::from_nanos));
        if let Some(longest) = nanos("silence_max_ns")? {
            bridged.silence_max = longest;
        }
        if let Some(longest) = nanos("start_max_ns")? {
            bridged.start_max = longest;
        }
        if let Some(bytes) = optional(settings, "store_bytes")? {
            bridged.store.store_bytes = bytes;
        }
        py.detach(|| {
            let here = bridged.here;
            let local = Local::open(&graph.graph, bridged).map_err(|failure| unrun(&failure))?;
            let arrivals = local.arrivals();
            let link = NodeLink::open(&node.shared, here, &arrivals)?;
            Ok(Bridge {
                idle: Mutex::new(Some((local, link))),
                arrivals,
            })
        })
    }

    /// Blocks until the federates that it connects have joined and left, or until [`Bridge::quit`].
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let idle = lock(&self.idle).take();
        let (local, mut link) = idle.ok_or_else(|| RunError::new_err("a bridge runs once"))?;
        py.detach(|| local.run(&mut link)).map_err(|failure| unrun(&failure))
    }

    /// Makes `run` return. Any thread may call this.
    fn quit(&self) {
        self.arrivals.quit();
    }
}

impl NodeLink {
    fn open(shared: &Arc<Shared>, here: RobotId, arrivals: &BridgeArrivals) -> PyResult<Self> {
        let subscriber = shared.with(|node| node.control_subscriber(&topic(here)))?;
        let receiver = shared.with(|node| node.bulk_receiver_of(BridgeArrivals::BULK_PREFIX))?;
        let (deliveries, delivered) = mpsc::channel();
        let link = NodeLink {
            shared: shared.clone(),
            publishers: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            deliveries,
            is_over: Arc::default(),
        };
        let (is_over, to) = (link.is_over.clone(), arrivals.clone());
        spawn("coorp-run-control", move || receive(&subscriber, &to, &is_over))?;
        let (is_over, to) = (link.is_over.clone(), arrivals.clone());
        spawn("coorp-run-bulk", move || receive_bulk(&receiver, &to, &is_over))?;
        let to = arrivals.clone();
        spawn("coorp-run-sent", move || watch(&delivered, &to))?;
        Ok(link)
    }

    fn publisher(&mut self, to: RobotId) -> Option<&Publisher> {
        if !self.publishers.contains_key(&to) {
            // Without a publisher, the other robot hears nothing, and counts as silent.
            let publisher = self.shared.with(|node| node.control_publisher(&topic(to), None)).ok()?;
            self.publishers.insert(to, publisher);
        }
        self.publishers.get(&to)
    }

    fn write(&self, to: RobotId, name: &str, slices: &[&[u8]]) -> Result<BulkStream, String> {
        let robot = self.shared.robot(to);
        let stream = self.shared.with(|node| node.bulk_stream(robot, name));
        let mut stream = stream.map_err(|error| error.to_string())?;
        for slice in slices {
            stream.write(slice).map_err(|error| error.to_string())?;
        }
        Ok(stream)
    }
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
    }
}

impl Link for NodeLink {
    fn send(&mut self, to: RobotId, packet: &[u8]) {
        if let Some(publisher) = self.publisher(to) {
            // A closed node sends nothing, and the other robots notice its silence.
            let _ = publisher.put(packet);
        }
    }

    fn send_bulk(&mut self, to: RobotId, name: &str, slices: &[&[u8]]) -> Result<bool, String> {
        // Bulk that the node refused goes first.
        let stream = match self.unfinished.remove(&to) {
            Some(stream) => stream,
            None => self.write(to, name, slices)?,
        };
        match stream.finish() {
            Ok(delivery) => {
                // If the thread is gone, so is the bridge.
                let _ = self.deliveries.send(delivery);
                Ok(true)
            }
            Err(unfinished) if matches!(unfinished.error, Error::QueueFull(_)) => {
                self.unfinished.insert(to, *unfinished.stream);
                Ok(false)
            }
            Err(unfinished) => Err(unfinished.error.to_string()),
        }
    }

    fn name(&self, robot: RobotId) -> String {
        self.shared.robot(robot).to_owned()
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread
        .map(drop)
        .map_err(|error| RunError::new_err(format!("cannot start a thread: {error}")))
}

fn receive(subscriber: &Subscriber, arrivals: &BridgeArrivals, is_over: &AtomicBool) {
    while !is_over.load(SeqCst) {
        if let Some(message) = subscriber.recv(Some(LOOK_EVERY)) {
            arrivals.packet(message.from, message.bytes().to_vec());
        }
    }
}

fn receive_bulk(receiver: &BulkReceiver, arrivals: &BridgeArrivals, is_over: &AtomicBool) {
    while !is_over.load(SeqCst) {
        let Some(message) = receiver.recv(Some(LOOK_EVERY)) else {
            continue;
        };
        while !arrivals.has_room() && !is_over.load(SeqCst) {
            std::thread::sleep(RETRY);
        }
        match message.take() {
            Ok(body) => arrivals.bulk(message.from, message.name.clone(), body),
            Err(error) => arrivals.fail(format!("cannot read {}: {error}", message.name)),
        }
    }
}

/// Waits for each delivery, in order.
fn watch(delivered: &mpsc::Receiver<Delivery>, arrivals: &BridgeArrivals) {
    for delivery in delivered {
        if let Err(error) = delivery.wait() {
            arrivals.fail(error.to_string());
        }
    }
}
