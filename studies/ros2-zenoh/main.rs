//! ROS 2 nodes on hiroz, which speaks `rmw_zenoh`'s protocol and knows nothing of Coorp: a robot of
//! `studies/protect.py` (lib/peers.py), and its Zenoh router if no agent is the router.
//!
//!     cargo build --release --manifest-path studies/ros2-zenoh/Cargo.toml
//!
//! `ros2-zenoh-node robot PLACE [--bulk]` is the node `/robot_PLACE`. It publishes each number that it reads (8 bytes,
//! the highest first) as a `geometry_msgs/PoseStamped` on `/robot_PLACE/pose`, and writes the number of each that
//! arrives on `/robot_PLACE/goal`. Each second it calls the service `/plan` (`example_interfaces/AddTwoInts`) and reads
//! the parameter `robots` of the node `/leader`; it fails if one does not answer in time or answers wrongly. With
//! `--bulk`, from number 1 on, it also publishes `sensor_msgs/Image`s of 1 MB on `/robot_PLACE/image`, each once the
//! last one has been received, as the leader says on `/robot_PLACE/seen`.
//!
//! `ros2-zenoh-node leader ROBOTS` is the node `/leader`. It answers each pose by a goal, and writes the bytes of each image
//! (8 bytes).
//!
//! `ros2-zenoh-node router [ADDRESS...]` is a Zenoh router like `rmw_zenohd`, which connects to other robots' routers.
//! It ends at once if a router already runs on this machine.
//!
//! Each of these ends with its input.
//!
//! Poses have ROS 2's default profile (reliable, keep last 10), and images its sensor profile (best effort, keep last
//! 5).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use hiroz::config::RouterConfigBuilder;
use hiroz::context::{ZContext, ZContextBuilder};
use hiroz::entity::TypeInfo;
use hiroz::msg::{SerdeCdrSerdes, ZMessage, ZService};
use hiroz::node::ZNode;
use hiroz::parameter::{ParameterClient, ParameterDescriptor, ParameterTarget, ParameterType, ParameterValue};
use hiroz::qos::{QosHistory, QosProfile, QosReliability};
use hiroz::{Builder, MessageTypeInfo, ServiceTypeInfo, TypeHash};
use serde::{Deserialize, Serialize};
use zenoh::Wait;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const LINES: u32 = 1_000;
const LINE_BYTES: u32 = 1_000;
const PORT: u16 = 7447;
const EACH: Duration = Duration::from_secs(1);
/// Maximum time for a reply, and time until an image is sent again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Defines a message of ROS 2, with its ROS name.
macro_rules! message {
    ($name:literal, $type:ident { $($fields:tt)* }) => {
        #[derive(Clone, Debug, Default, Serialize, Deserialize, MessageTypeInfo)]
        #[ros_msg(type_name = $name)]
        struct $type { $($fields)* }
        impl ZMessage for $type {
            type Serdes = SerdeCdrSerdes<$type>;
        }
    };
}

message!("builtin_interfaces/msg/Time", Time { sec: i32, nanosec: u32 });
message!(
    "std_msgs/msg/Header",
    Header {
        stamp: Time,
        frame_id: String,
    }
);
message!("geometry_msgs/msg/Point", Point { x: f64, y: f64, z: f64 });
message!(
    "geometry_msgs/msg/Quaternion",
    Quaternion {
        x: f64,
        y: f64,
        z: f64,
        w: f64,
    }
);
message!(
    "geometry_msgs/msg/Pose",
    Pose {
        position: Point,
        orientation: Quaternion,
    }
);
message!(
    "geometry_msgs/msg/PoseStamped",
    PoseStamped {
        header: Header,
        pose: Pose,
    }
);
message!("sensor_msgs/msg/Image", Image {
    header: Header,
    height: u32,
    width: u32,
    encoding: String,
    is_bigendian: u8,
    step: u32,
    data: Vec<u8>,
});
message!(
    "example_interfaces/srv/AddTwoInts_Request",
    AddTwoIntsRequest { a: i64, b: i64 }
);
message!(
    "example_interfaces/srv/AddTwoInts_Response",
    AddTwoIntsResponse { sum: i64 }
);

struct AddTwoInts;

impl ServiceTypeInfo for AddTwoInts {
    fn service_type_info() -> TypeInfo {
        // Both ends are this program, so any hash will do.
        TypeInfo::new("example_interfaces::srv::dds_::AddTwoInts_", TypeHash::zero())
    }
}

impl ZService for AddTwoInts {
    type Request = AddTwoIntsRequest;
    type Response = AddTwoIntsResponse;
}

fn stamped(number: u64) -> PoseStamped {
    let mut pose = PoseStamped::default();
    pose.header.stamp.sec = i32::try_from(number).unwrap_or(i32::MAX);
    pose.header.frame_id = "map".to_owned();
    pose
}

fn number_of(pose: &PoseStamped) -> u64 {
    u64::try_from(pose.header.stamp.sec).unwrap_or(0)
}

/// ROS 2's profile of sensor data.
fn as_sensor() -> QosProfile {
    QosProfile {
        reliability: QosReliability::BestEffort,
        history: QosHistory::KeepLast(NonZeroUsize::new(5).unwrap_or(NonZeroUsize::MIN)),
        ..QosProfile::default()
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["robot", place] => robot(place, false),
        ["robot", place, "--bulk"] => robot(place, true),
        ["leader", robots] => leader(robots.parse()?),
        ["router", others @ ..] => router(others),
        _ => Err("usage: ros2-zenoh-node robot PLACE [--bulk] | leader ROBOTS | router [ADDRESS...]".into()),
    }
}

fn robot(place: &str, bulk: bool) -> Outcome {
    let context = ZContextBuilder::default().build()?;
    let name = format!("robot_{place}");
    let node = Arc::new(context.create_node(&name).build()?);
    let publisher = node.create_pub::<PoseStamped>(&format!("/{name}/pose")).build()?;
    let goals = node.create_sub::<PoseStamped>(&format!("/{name}/goal")).build()?;
    background(move || {
        let mut output = io::stdout().lock();
        loop {
            output.write_all(&number_of(&goals.recv()?).to_be_bytes())?;
            output.flush()?;
        }
    });
    let (started, start) = mpsc::sync_channel(1);
    let images = (bulk, node.clone());
    background(move || match images {
        (true, node) => send(&name, &node, &start),
        (false, _) => Ok(()),
    });

    let (mut number, mut input) = ([0; 8], io::stdin().lock());
    let mut asked = false;
    while input.read_exact(&mut number).is_ok() {
        let number = u64::from_be_bytes(number);
        publisher.publish(&stamped(number))?;
        if number > 0 && !asked {
            asked = true;
            // There is room for one signal, and one is enough.
            let _ = started.try_send(());
            let node = node.clone();
            background(move || ask(&node));
        }
    }
    Ok(())
}

/// Publishes images, once `start` is signalled.
fn send(name: &str, node: &ZNode, start: &Receiver<()>) -> Outcome {
    let qos = as_sensor();
    let publisher = node
        .create_pub::<Image>(&format!("/{name}/image"))
        .with_qos(qos)
        .build()?;
    let seen = node.create_sub::<PoseStamped>(&format!("/{name}/seen")).build()?;
    start.recv()?;
    let mut image = Image {
        height: LINES,
        width: LINE_BYTES,
        encoding: "mono8".to_owned(),
        step: LINE_BYTES,
        data: vec![0; (LINES * LINE_BYTES) as usize],
        ..Image::default()
    };
    loop {
        image.header.stamp.sec += 1;
        publisher.publish(&image)?;
        // A lost image is sent again, as the next one.
        while seen
            .recv_timeout(PATIENCE)
            .is_ok_and(|seen| seen.header.stamp.sec < image.header.stamp.sec)
        {}
    }
}

/// Calls the leader's service and reads its parameter, each second.
fn ask(node: &Arc<ZNode>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let client = node.create_client::<AddTwoInts>("/plan").build()?;
    let target = ParameterTarget::from_fqn("/leader").ok_or("no name of a node")?;
    let parameters = ParameterClient::new(node.clone(), target)?;
    for a in 0.. {
        let sum = runtime.block_on(client.call_with_timeout(&AddTwoIntsRequest { a, b: 1 }, PATIENCE));
        let sum = sum.map_err(|error| format!("the service /plan: {error}"))?.sum;
        if sum != a + 1 {
            return Err(format!("the service /plan says that {a} and 1 are {sum}").into());
        }
        let values = runtime.block_on(async { tokio::time::timeout(PATIENCE, parameters.get(&["robots"])).await });
        let values = values.map_err(|_| "the parameters of /leader do not answer")??;
        if !matches!(values.as_slice(), [ParameterValue::Integer(1..)]) {
            return Err(format!("the parameter robots of /leader is {values:?}").into());
        }
        thread::sleep(EACH);
    }
    Ok(())
}

fn leader(robots: u32) -> Outcome {
    let context: ZContext = ZContextBuilder::default().build()?;
    let node = Arc::new(context.create_node("leader").build()?);
    let about = ParameterDescriptor::new("robots", ParameterType::Integer);
    node.declare_parameter("robots", ParameterValue::Integer(robots.into()), about)?;
    for place in 0..robots {
        let name = format!("/robot_{place}");
        let poses = node.create_sub::<PoseStamped>(&format!("{name}/pose")).build()?;
        let goals = node.create_pub::<PoseStamped>(&format!("{name}/goal")).build()?;
        background(move || {
            loop {
                goals.publish(&poses.recv()?)?;
            }
        });
        let qos = as_sensor();
        let images = node
            .create_sub::<Image>(&format!("{name}/image"))
            .with_qos(qos)
            .build()?;
        let seen = node.create_pub::<PoseStamped>(&format!("{name}/seen")).build()?;
        background(move || {
            loop {
                let image = images.recv()?;
                let mut pose = stamped(0);
                pose.header.stamp = image.header.stamp;
                seen.publish(&pose)?;
                let mut output = io::stdout().lock();
                output.write_all(&(image.data.len() as u64).to_be_bytes())?;
                output.flush()?;
            }
        });
    }
    background(until_the_end);
    let mut service = node.create_service::<AddTwoInts>("/plan").build()?;
    loop {
        let request = service.take_request()?;
        let sum = request.message().a + request.message().b;
        request.reply_blocking(&AddTwoIntsResponse { sum })?;
    }
}

fn router(others: &[&str]) -> Outcome {
    if TcpStream::connect(("localhost", PORT)).is_ok() {
        return Ok(());
    }
    let mut config = RouterConfigBuilder::new().build_config()?;
    let others: Vec<String> = others.iter().map(|address| format!("tcp/{address}:{PORT}")).collect();
    config.insert_json5("connect/endpoints", &format!("{others:?}"))?;
    let _session = zenoh::open(config).wait()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Ends the process with its input.
fn until_the_end() -> Outcome {
    io::copy(&mut io::stdin(), &mut io::sink())?;
    process::exit(0)
}

/// Runs `work` in a thread, and ends the process if it fails.
fn background(work: impl FnOnce() -> Outcome + Send + 'static) {
    thread::spawn(|| {
        if let Err(problem) = work() {
            eprintln!("ros2-zenoh-node: {problem}");
            process::exit(1);
        }
    });
}
