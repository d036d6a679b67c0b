//! A robot: Coorp's node, as any program uses it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coorp_core::policy::Policy;
use coorp_node::control::Publisher;
use coorp_node::{Node, Options};
use serde_json::{json, Value};

use crate::control::{send, Times};
use crate::peer::{Ask, Obey};
use crate::{bulk, Outcome};

const TOPIC: &str = "ping";
/// Time between two permits, so that the returned one has arrived.
const REST: Duration = Duration::from_millis(20);
/// Time between two checks for a permit; the kernel turns it into some 70 us.
const LOOK_EVERY: Duration = Duration::from_micros(10);
const PERMIT_MAX: Duration = Duration::from_secs(10);

pub struct Robot {
    node: Node,
    times: Arc<Times>,
    publisher: Option<Publisher>,
    message: Vec<u8>,
}

impl Robot {
    pub fn open(team: &Path, robot: String, state: PathBuf, is_agent: bool) -> Outcome<Robot> {
        let open = if is_agent { Node::open_agent } else { Node::open };
        let node = open(Options {
            team: coorp_team::load(team).map_err(|error| error.to_string())?,
            robot,
            policy: Policy::named("coorp").ok_or("no such policy")?,
            insecure: false,
            state: Some(state),
        })?;
        Ok(Robot {
            node,
            times: Arc::default(),
            publisher: None,
            message: Vec::new(),
        })
    }

    fn listen(&self) -> Outcome<()> {
        let (subscriber, times) = (self.node.control_subscriber(TOPIC)?, self.times.clone());
        std::thread::spawn(move || {
            while let Some(message) = subscriber.recv(None) {
                times.note(TOPIC, message.bytes());
            }
        });
        Ok(())
    }

    fn bulk(&self, to: &str) -> Outcome<(u64, u64)> {
        let began = Instant::now();
        let mut stream = self.node.bulk_stream(to, "message")?;
        stream.write(&self.message)?;
        let written = began.elapsed().as_nanos() as u64;
        stream.finish()?.wait()?;
        Ok((began.elapsed().as_nanos() as u64, written))
    }

    fn clear(&self) -> Outcome<Vec<u64>> {
        let receiver = self.node.bulk_receiver()?;
        let mut lengths = Vec::new();
        while let Some(message) = receiver.try_recv() {
            lengths.push(message.length);
            std::fs::remove_file(message.path())?;
        }
        Ok(lengths)
    }

    fn permits(&self, count: usize) -> Outcome<Vec<u64>> {
        let mut took = Vec::with_capacity(count);
        for _ in 0..count {
            std::thread::sleep(REST);
            let began = Instant::now();
            let wish = self.node.wish_bulk()?;
            while !self.node.may_send_bulk()? {
                if began.elapsed() > PERMIT_MAX {
                    return Err("no permit arrives".into());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            took.push(began.elapsed().as_nanos() as u64);
            drop(wish);
        }
        Ok(took)
    }
}

impl Obey for Robot {
    fn obey(&mut self, ask: Ask) -> Outcome<Value> {
        Ok(match ask {
            Ask::Listen => json!(self.listen()?),
            Ask::Send {
                bytes,
                count,
                period_us,
                ..
            } => {
                let period = coorp_core::Duration::from_micros(period_us);
                if self.publisher.is_none() {
                    self.publisher = Some(self.node.control_publisher(TOPIC, Some(period))?);
                }
                let publisher = self.publisher.as_ref().ok_or("no publisher")?;
                json!(send(bytes, count, period_us, |message| Ok(publisher.put(message)?))?)
            }
            Ask::Collect { .. } => json!(self.times.take(TOPIC)),
            Ask::Fill { bytes } => json!(bulk::fill(&mut self.message, bytes)),
            Ask::Bulk { to, .. } => json!(self.bulk(&to)?),
            Ask::Clear => json!(self.clear()?),
            Ask::Leads => {
                let status = self.node.status()?;
                json!((status.leads, status.leader.is_some()))
            }
            Ask::Permits { count } => json!(self.permits(count)?),
            Ask::Address | Ask::Processor => return Err("this request is not for robots".into()),
        })
    }
}
