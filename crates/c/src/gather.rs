//! Gather: every robot's newest state, as one table a period.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::{from_ref, null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coorp_core::tracker::Topics;
use coorp_node::gather::{Gather, RobotState, Table};

use crate::boundary::{call, or_unknown, place, text, until, CoorpResult, Failure};
use crate::control::aged;
use crate::handles::{self, Kind};
use crate::node::{CoorpNode, OpenNode, Opened};

/// How often a thread that waits for a table looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Gathers the newest state that each robot publishes on a topic.
pub struct CoorpGather {
    _opaque: [u8; 0],
}

/// A robot's newest state in a table.
#[repr(C)]
pub struct CoorpState {
    /// The robot.
    pub robot: *const c_char,
    /// Whether it arrived since the last table; if not, the robot missed its update.
    pub is_fresh: bool,
    /// Its age when the table was taken; negative before the clocks were compared.
    pub age_ns: i64,
    /// The error bound of the age; negative if the age is unknown.
    pub age_error_ns: i64,
    /// When it was made (T1), on this robot's clock, as the table's times; negative before the clocks were compared.
    pub created_at_ns: i64,
    /// When it arrived (T2).
    pub received_at_ns: u64,
    /// Its content.
    pub data: *const c_void,
    /// The length of its content.
    pub length_bytes: usize,
}

/// The newest state of every robot that has sent one, in the team file's order. It is yours to free with coorp_table_free();
/// its states, texts and data last until then, also after its node is closed.
#[repr(C)]
pub struct CoorpTable {
    /// The states; NULL if there are none.
    pub states: *const CoorpState,
    /// The number of states.
    pub state_count: usize,
    /// When the table was made (T3), on this robot's clock.
    pub listed_at_ns: u64,
    /// When the table was taken (T4), on this robot's clock.
    pub taken_at_ns: u64,
}

/// A table that C reads, and what its pointers point to.
pub struct Shown {
    shown: CoorpTable,
    _shown_states: Vec<CoorpState>,
    _states: Vec<RobotState>,
    _node: Arc<OpenNode>,
}

// SAFETY: nobody writes what its pointers point to.
unsafe impl Send for Shown {}
// SAFETY: the same.
unsafe impl Sync for Shown {}

impl Kind for CoorpGather {
    type Value = Opened<(String, Gather)>;
    const NAME: &'static str = "CoorpGather";
}

impl Kind for CoorpTable {
    type Value = Shown;
    const NAME: &'static str = "CoorpTable";
}

/// Gathers a topic: one table every `period_ns`, 0.5 ms to 60 s. Robots may come and go at any time.
///
/// Ownership: `*gather` is yours to close with coorp_gather_close(), and is closed with the node; it is NULL if this fails.
/// Threads: from any; any number of them may use it, and each table goes to one.
/// Errors: COORP_INVALID for a bad topic or period, or if this robot gathers the topic already; COORP_FAILED if the robot's
/// agent does not answer; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_gather_open(
    node: *mut CoorpNode,
    topic: *const c_char,
    period_ns: u64,
    gather: *mut *mut CoorpGather,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let (gather, topic) = unsafe { (place("gather", gather, null_mut())?, text("topic", topic)?) };
        let period = coorp_node::Duration::from_nanos(period_ns);
        *gather = Opened::with(node, |node| {
            Ok((topic.to_owned(), node.gather(topic, period, Topics::OneToOne)?))
        })?;
        Ok(())
    })
}

/// Waits for the next table. `timeout_ns` is how long at most: 0 takes one that is due, and a negative one (COORP_FOREVER) waits
/// for as long as it takes.
///
/// Ownership: `*table` is yours to free with coorp_table_free(); it is NULL if this fails.
/// Threads: from any. Signals do not end the wait; closing the gather or the node in another thread does within 100 ms.
/// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_gather_receive(
    gather: *mut CoorpGather,
    timeout_ns: i64,
    table: *mut *const CoorpTable,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let place = unsafe { place("table", table, null())? };
        let opened = handles::get(gather)?;
        *place = show(&opened.node, next(&opened, timeout_ns)?)?;
        Ok(())
    })
}

fn next(opened: &Opened<(String, Gather)>, timeout_ns: i64) -> Result<Table, Failure> {
    let (topic, gather) = &opened.what;
    let until = until(timeout_ns);
    loop {
        opened.check::<CoorpGather>()?;
        let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
        // On the waiting thread: it makes the table itself when it is due, which is faster than being woken.
        if let Some(table) = gather.recv(Some(left.min(LOOK_EVERY))) {
            return Ok(table);
        }
        if left.is_zero() {
            let missing = format!("no table of \"{topic}\" was made");
            return Err(Failure::timeout(&missing, timeout_ns));
        }
    }
}

fn show(node: &Arc<OpenNode>, table: Table) -> Result<*const CoorpTable, Failure> {
    let states: Vec<CoorpState> = table.states.iter().map(|state| shown(node, state)).collect();
    let shown = Arc::new(Shown {
        shown: CoorpTable {
            states: if states.is_empty() { null() } else { states.as_ptr() },
            state_count: states.len(),
            listed_at_ns: table.listed_at.as_nanos(),
            taken_at_ns: table.taken_at.as_nanos(),
        },
        _shown_states: states,
        _states: table.states,
        _node: node.clone(),
    });
    let address = from_ref(&shown.shown);
    handles::show(shown, address)
}

fn shown(node: &OpenNode, state: &RobotState) -> CoorpState {
    let (age_ns, age_error_ns) = aged(state.age);
    let created_at = state.stamps.created_at;
    CoorpState {
        robot: node.robot(state.from),
        is_fresh: state.fresh,
        age_ns,
        age_error_ns,
        created_at_ns: or_unknown(created_at.map(|at| at.as_nanos())),
        received_at_ns: state.stamps.received_at.as_nanos(),
        data: state.bytes().as_ptr().cast(),
        length_bytes: state.bytes().len(),
    }
}

/// Ends gathering, and waits for tables with COORP_CLOSED.
///
/// Ownership: the handle is gone; tables that were received are not. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_gather_close(gather: *mut CoorpGather) -> CoorpResult {
    call(|| handles::close(gather))
}

/// Frees a table that was received.
///
/// Ownership: the table is gone, with its states, texts and data. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
#[no_mangle]
pub unsafe extern "C" fn coorp_table_free(table: *const CoorpTable) -> CoorpResult {
    call(|| handles::close(table))
}
