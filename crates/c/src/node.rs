//! A robot that takes part in its team, and what is opened with it.
#![allow(unsafe_code)]

use std::ffi::{c_char, CString};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use coorp_node::shared_node::{wait, Closing, SharedNode};
use coorp_node::{live_policies, Error, Node, Options, Policy, RobotId};
use tracing_subscriber::EnvFilter;

use crate::boundary::{call, optional, path, place, text, until, CoorpResult, Failure};
use crate::handles::{self, Kind};

/// A robot that takes part in its team until it is closed: this program is it, or a guest of its agent (`coorp up`).
pub struct CoorpNode {
    _opaque: [u8; 0],
}

/// What coorp_node_open() may be given. All zero, or NULL in its place, is the default.
#[repr(C)]
pub struct CoorpOptions {
    /// The policy; NULL: "coorp".
    pub policy: *const c_char,
    /// The folder for received bulk and all else that survives restarts; NULL: below `$XDG_STATE_HOME`, `~/.local/state`, or,
    /// without a home, `/var/lib/coorp`. To join an agent with `--state`, the same folder.
    pub state_folder: *const c_char,
    /// Run without keys: anyone on the network may read, speak for robots and grant permits. Disables bulk.
    pub insecure: bool,
}

/// An open node.
pub struct OpenNode {
    /// The node.
    pub shared: SharedNode,
    robots: Vec<CString>,
    paths: Vec<CString>,
}

impl Kind for CoorpNode {
    type Value = OpenNode;
    const NAME: &'static str = "CoorpNode";
}

impl OpenNode {
    fn open(options: Options) -> Result<OpenNode, Error> {
        let shared = SharedNode::open(options)?;
        // Names have no NUL.
        let in_c = |names: &[String]| {
            let names = names.iter().map(|name| CString::new(name.as_str()).unwrap_or_default());
            names.collect()
        };
        Ok(OpenNode {
            robots: in_c(shared.robots()),
            paths: in_c(shared.paths()),
            shared,
        })
    }

    /// The name of a robot; it lasts as long as this.
    pub fn robot(&self, robot: RobotId) -> *const c_char {
        named(&self.robots, usize::from(robot.0))
    }

    /// The name of a path; it lasts as long as this.
    pub fn path(&self, path: usize) -> *const c_char {
        named(&self.paths, path)
    }
}

fn named(names: &[CString], at: usize) -> *const c_char {
    names.get(at).map_or(c"".as_ptr(), |name| name.as_ptr())
}

/// Something that was opened with a node.
pub struct Opened<T> {
    /// The node.
    pub node: Arc<OpenNode>,
    /// The node's handle.
    pub node_handle: usize,
    /// Whether it has been closed itself.
    pub closing: Arc<Closing>,
    /// What it is.
    pub what: T,
}

impl<T: Send + Sync + 'static> Opened<T> {
    /// Opens something with a node, and makes a handle of it.
    pub fn with<K: Kind<Value = Opened<T>>>(
        node: *mut CoorpNode,
        open: impl FnOnce(&Node) -> Result<T, Error>,
    ) -> Result<*mut K, Failure> {
        let opened = handles::get(node)?;
        let what = opened.shared.with(open)?;
        Opened::handle(opened, node.addr(), what)
    }

    /// Makes a handle of something that was opened with a node, whose handle this is.
    pub fn handle<K: Kind<Value = Opened<T>>>(
        node: Arc<OpenNode>,
        node_handle: usize,
        what: T,
    ) -> Result<*mut K, Failure> {
        let closing = Arc::<Closing>::default();
        let opened = Opened {
            node,
            node_handle,
            closing: closing.clone(),
            what,
        };
        handles::open(Arc::new(opened), Some(node_handle), closing)
    }

    /// Refuses if it or its node has been closed.
    pub fn check<K: Kind>(&self) -> Result<(), Failure> {
        self.node.shared.closing().check()?;
        self.closing.check().map_err(|_| Failure::closed(K::NAME))
    }

    /// Blocks until a result arrives, until the timeout has passed, or until it or its node is closed. `missing` says what did not arrive.
    pub fn wait<K: Kind, R>(
        &self,
        coming: impl Future<Output = R>,
        timeout_ns: i64,
        missing: impl FnOnce() -> String,
    ) -> Result<R, Failure> {
        let coming = self.node.shared.closing().or_closed(self.closing.or_closed(coming));
        match wait(pin!(coming), until(timeout_ns)) {
            Some(Ok(Ok(came))) => Ok(came),
            Some(Ok(Err(_))) => Err(Failure::closed(K::NAME)),
            Some(Err(closed)) => Err(closed.into()),
            None => Err(Failure::timeout(&missing(), timeout_ns)),
        }
    }
}

/// Opens a node of a robot. Where the robot's agent (`coorp up`) runs on this machine, the program becomes its guest, beside any
/// number of others; otherwise it is the robot itself, and the only one. Works without any other robot. Blocks for a fraction
/// of a second, or for up to three seconds if an agent was killed here. If RUST_LOG is set, the robot logs to standard error.
///
/// `team_file` is the path of the team file, and `robot` a name in it. `options` may be NULL.
///
/// Ownership: `*node` is yours to close with coorp_node_close(); it is NULL if this fails. Nothing given is kept.
/// Threads: from any. Do not fork() while a node is open, except to exec().
/// Errors: COORP_INVALID if the team file is missing or wrong, it has no such robot, keys are missing or revoked, this machine
/// lacks the robot's addresses or interfaces, or its agent does not let this program join; COORP_FAILED if ports are taken.
#[no_mangle]
pub unsafe extern "C" fn coorp_node_open(
    team_file: *const c_char,
    robot: *const c_char,
    options: *const CoorpOptions,
    node: *mut *mut CoorpNode,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let (team_file, robot, options, node) = unsafe {
            let node = place("node", node, std::ptr::null_mut())?;
            (
                path("team_file", team_file)?,
                text("robot", robot)?,
                optional(options),
                node,
            )
        };
        let mut opened = Options {
            team: coorp_node::load(team_file).map_err(|error| Failure::invalid(error.to_string()))?,
            robot: robot.to_owned(),
            policy: policy("coorp")?,
            insecure: options.is_some_and(|options| options.insecure),
            state: None,
        };
        if let Some(given) = options {
            // SAFETY: the same.
            unsafe {
                if !given.policy.is_null() {
                    opened.policy = policy(text("options->policy", given.policy)?)?;
                }
                if !given.state_folder.is_null() {
                    opened.state = Some(path("options->state_folder", given.state_folder)?.to_owned());
                }
            }
        }
        log();
        let opened = Arc::new(OpenNode::open(opened)?);
        *node = handles::open(opened, None, Arc::default())?;
        Ok(())
    })
}

fn policy(name: &str) -> Result<Policy, Failure> {
    Policy::named(name).ok_or_else(|| {
        let names: Vec<&str> = live_policies().collect();
        let names = names.join(", ");
        Failure::invalid(format!("there is no policy '{name}'; choose one of {names}"))
    })
}

/// Sends the robot's log to standard error, if somebody wants it. If the program has a log of its own, it stays as it is.
fn log() {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("coorp_node=info"));
        let log = tracing_subscriber::fmt().with_env_filter(filter);
        let _ = log.with_writer(std::io::stderr).with_ansi(false).try_init();
    }
}

/// Sets `*is_guest` to whether this program is a guest of the robot's agent, and not the robot itself.
///
/// Threads: from any.
/// Errors: COORP_INVALID for NULL; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_node_is_guest(node: *mut CoorpNode, is_guest: *mut bool) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let is_guest = unsafe { place("is_guest", is_guest, false)? };
        *is_guest = handles::get(node)?.shared.with(|node| Ok(node.is_guest()))?;
        Ok(())
    })
}

/// Leaves the team. Closes everything that was opened with the node, and ends waits on it with COORP_CLOSED. What was received
/// stays until it is freed. Blocks for a fraction of a second, or until other threads that open something with it have done so.
/// A program that ends without it looks to others like one that was killed.
///
/// Ownership: the handle is gone, and so are those that were opened with it. NULL is allowed, and does nothing.
/// Threads: from any, but not from a signal handler.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_node_close(node: *mut CoorpNode) -> CoorpResult {
    call(|| {
        if node.is_null() {
            return Ok(());
        }
        let opened = handles::get(node)?;
        handles::close(node)?;
        opened.shared.close();
        Ok(())
    })
}
