//! A ROS 2 node on RustDDS, which knows nothing of Coorp: a robot of `studies/protect.py` (lib/peers.py).
//!
//!     cargo build --release --manifest-path studies/ros2/Cargo.toml
//!
//! `ros2-node PLACE [--bulk]` is the node `/robot_PLACE`. It publishes each number that it reads (8 bytes, the highest
//! first) as a `geometry_msgs/PoseStamped` on `/robot_PLACE/pose`, and writes the number of each that arrives on
//! `/robot_PLACE/goal`. With `--bulk`, from number 1 on, it also publishes `sensor_msgs/Image`s of 1 MB on
//! `/robot_PLACE/image`, each once the last one is acknowledged. All topics have ROS 2's default profile: reliable,
//! keep last 10.
//!
//! A reliable publisher of ros2-client queues up to 8,192 messages, and does not report acknowledgements. So images
//! have a writer of RustDDS itself.

use std::error::Error;
use std::io::{self, Read, Write};
use std::process;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use futures::executor::{block_on, block_on_stream};
use ros2_client::qos::{Durability, History, WhenFull};
use ros2_client::{Context, MessageTypeName, Name, NodeName, NodeOptions, QosProfile, Subscription};
use rustdds::dds::statusevents::{DataWriterStatus, StatusEvented};
use rustdds::Topic;
use serde::{Deserialize, Serialize};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const LINES: u32 = 1_000;
const LINE_BYTES: u32 = 1_000;

/// `std_msgs/Header` with its `builtin_interfaces/Time`, whose second is the number of a message here.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Header {
    sec: i32,
    nanosec: u32,
    frame_id: String,
}

impl Header {
    fn new(number: i32) -> Header {
        Header {
            sec: number,
            nanosec: 0,
            frame_id: "map".to_owned(),
        }
    }
}

/// `geometry_msgs/PoseStamped`.
#[derive(Debug, Serialize, Deserialize)]
struct PoseStamped {
    header: Header,
    position: [f64; 3],
    orientation: [f64; 4],
}

/// `sensor_msgs/Image`.
#[derive(Clone, Debug, Serialize)]
struct Image {
    header: Header,
    height: u32,
    width: u32,
    encoding: String,
    is_bigendian: u8,
    step: u32,
    data: Vec<u8>,
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (place, bulk) = match arguments.as_slice() {
        [place] => (place, false),
        [place, bulk] if bulk == "--bulk" => (place, true),
        _ => return Err("usage: ros2-node PLACE [--bulk]".into()),
    };
    let profile = QosProfile::publisher_default()
        .reliability_reliable(WhenFull::Block)
        .durability(Durability::Volatile)
        .history(History::KeepLast { depth: 10 });
    let (name, namespace) = (format!("robot_{place}"), format!("/robot_{place}"));
    let context = Context::new()?;
    let mut node = context.new_node(NodeName::new("/", &name)?, NodeOptions::new())?;
    let pose = MessageTypeName::new("geometry_msgs", "PoseStamped");
    let poses = node.create_topic(&Name::new(&namespace, "pose")?, pose.clone(), &profile)?;
    let publisher = node.create_publisher::<PoseStamped>(&poses, None)?;
    let goals = node.create_topic(&Name::new(&namespace, "goal")?, pose, &profile)?;
    let subscription = node.create_subscription::<PoseStamped>(&goals, None)?;
    let image = MessageTypeName::new("sensor_msgs", "Image");
    let images = node.create_topic(&Name::new(&namespace, "image")?, image, &profile)?;
    let spinner = node.spinner()?;
    let (started, start) = mpsc::sync_channel(1);
    background(move || Ok(block_on(spinner.spin())?));
    background(move || take(&subscription));
    if bulk {
        background(move || send(&context, &images, &profile, &start));
    }

    let (mut number, mut input) = ([0; 8], io::stdin().lock());
    while input.read_exact(&mut number).is_ok() {
        let number = u64::from_be_bytes(number);
        publisher.publish(PoseStamped {
            header: Header::new(i32::try_from(number)?),
            position: [0.0; 3],
            orientation: [0.0, 0.0, 0.0, 1.0],
        })?;
        if number > 0 {
            // There is room for one signal, and one is enough.
            let _ = started.try_send(());
        }
    }
    Ok(())
}

/// Runs `work` in a thread, and ends the process if it fails.
fn background(work: impl FnOnce() -> Outcome + Send + 'static) {
    thread::spawn(|| {
        if let Err(problem) = work() {
            eprintln!("ros2-node: {problem}");
            process::exit(1);
        }
    });
}

/// Writes the number of each goal.
fn take(goals: &Subscription<PoseStamped>) -> Outcome {
    let mut output = io::stdout().lock();
    for goal in block_on_stream(Box::pin(goals.async_stream())) {
        let number = u64::try_from(goal?.0.header.sec)?;
        output.write_all(&number.to_be_bytes())?;
        output.flush()?;
    }
    Ok(())
}

/// Publishes images, once `start` is signalled.
fn send(context: &Context, topic: &Topic, profile: &QosProfile, start: &Receiver<()>) -> Outcome {
    let publisher = context.domain_participant().create_publisher(&profile.into())?;
    let writer = publisher.create_datawriter_no_key_cdr::<Image>(topic, None)?;
    // Nothing is acknowledged before there is a subscriber.
    block_on_stream(writer.as_async_status_stream())
        .find(|status| matches!(status, DataWriterStatus::PublicationMatched { .. }));
    start.recv()?;
    let image = Image {
        header: Header::new(0),
        height: LINES,
        width: LINE_BYTES,
        encoding: "mono8".to_owned(),
        is_bigendian: 0,
        step: LINE_BYTES,
        data: vec![0; (LINES * LINE_BYTES) as usize],
    };
    loop {
        writer.write(image.clone(), None)?;
        while !writer.wait_for_acknowledgments(Duration::from_secs(1))? {}
    }
}
