//! Lets threads that carry control get a core first on a busy host. They work for microseconds at a time, while
//! perception or bulk may keep every core busy for milliseconds.
//!
//! Left out: bulk's threads, which share the robot's lock with control: while
//! one waited for a core with that lock, control would wait too.

/// The lowest real-time priority; interrupt threads and the emulator have higher ones.
const PRIORITY: libc::c_int = 1;

/// Schedules the calling thread ahead of all normally scheduled threads (`SCHED_RR`). For threads that work for
/// microseconds at a time, such as a control loop's; threads that it starts are scheduled normally. Returns whether that
/// is permitted: it needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`.
#[allow(unsafe_code)]
pub fn real_time() -> bool {
    // SAFETY: an all-zero `sched_param` is valid on every libc, whatever further fields it has.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = PRIORITY;
    // SAFETY: 0 is the calling thread, and `parameters` outlives the call, which only reads it.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &parameters) == 0 }
}
