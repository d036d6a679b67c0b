//! A policy as data: which parts decide, and their settings.
//!
//! The presets are the systems that Deng 2022 compares (section VI), each of its two components alone (table III), and
//! ours. A simulation and a robot read the same value. Left out: properties of the network or of the team.

pub use crate::arrival::Deviation;
use crate::permits::PermitConfig;
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// The maximum backlog of bulk in the WNIC under `coorp` once control was late (`gate` allows four times as much
/// before). It covers the aggregate on the air and the next one, which a card makes as long as its queue. It also
/// covers the time until the first is known to have left. With 3 ms, aggregates were short and bulk lost a tenth.
/// Windows keep bulk out whatever this bound is. But an unpredicted message waits for the backlog, and the backlog
/// still leaves after a permit is lost without notice. Other presets have no bound.
pub const BACKLOG_MAX: Duration = Duration::from_millis(8);

/// How a robot learns that a bulk packet has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Completions {
    /// The completion hook of a patched driver (Deng 2022, section V).
    Hook,
    /// A transmit status for each frame (`SO_WIFI_STATUS`), after the frame was on the air.
    Status,
    /// The bytes of the robot's sockets that the kernel still holds (`SIOCOUTQ`), which fall when the driver frees a
    /// frame. They are read every [`LOOK_OPEN`](crate::robot::LOOK_OPEN), or every
    /// [`LOOK_HELD`](crate::robot::LOOK_HELD) while the gate holds bulk.
    OutQueue,
    /// The receiver's end-to-end acknowledgements.
    Acknowledgements,
}

/// How much a robot can see of its own traffic. On a stock kernel, this is [`Sight::STOCK`].
///
/// Left out, because they are the same on every ground:
/// - Whether a robot learns when its own control has left. It always does: with real sockets from the send queue of
///   control's socket, in the simulator when the sender's kernel frees the last packet.
/// - Whether a robot knows a message's role in the loop. It does not on any ground. A flow begins loops if its arrival
///   model has the loop's period, and all control that the leader makes counts as commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sight {
    /// How the robot learns that bulk has left.
    pub completions: Completions,
    /// Mean time for which the robot's programs wait for a core before each new control message reaches the kernel, and
    /// before each deadline is served. Exponentially distributed; only for simulated robots.
    pub scheduling_delay: Duration,
}

impl Sight {
    /// The sight of an unpatched kernel and driver.
    pub const STOCK: Sight = Sight {
        completions: Completions::OutQueue,
        scheduling_delay: Duration::ZERO,
    };
    /// The sight of the papers' patched driver.
    pub const PAPER: Sight = Sight {
        completions: Completions::Hook,
        scheduling_delay: Duration::ZERO,
    };
}

/// The traffic that runs, and what coordinates it.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The name on the command line.
    pub name: String,
    /// Whether the control loop and control flows run.
    pub control: bool,
    /// Whether learning and bulk flows run.
    pub bulk: bool,
    /// How access categories are used.
    pub access: Access,
    /// Global preemption: permits for bulk.
    pub global: Option<PermitConfig>,
    /// Whether a robot with several receivers sends bulk to one at a time.
    pub turns: bool,
    /// Local preemption: arrival models, protection windows and the gate.
    pub local: Option<LocalConfig>,
    /// SchedWiFi's ST windows in place of predicted ones.
    pub schedwifi: Option<SchedWifiConfig>,
    /// The number of segments that a receiver of bulk acknowledges together: 2 as in TCP, more if the transport is
    /// ours. Each acknowledgement contends for the air like a packet.
    pub ack_every: u32,
    /// How much a robot sees of its own traffic.
    pub sight: Sight,
    /// A PPDU longer than this begins with RTS/CTS, even if the air is configured without. A collision then costs a
    /// bulk sender, and control behind it, an RTS instead of the whole aggregate. [`Duration::MAX`] leaves the decision
    /// to the air.
    pub rts_over: Duration,
}

/// How access categories are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything goes out in AC_BE.
    BestEffort,
    /// Control goes out in AC_VO, bulk in AC_BE. Plain flows keep the category that they set, except control in a category
    /// of bulk and bulk in one of control.
    Edca,
}

/// The parameters and switches of local preemption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalConfig {
    /// C: the share of control messages that a window should catch, above 0 and below 1.
    pub accuracy: f64,
    /// Constant by which each window is extended at its end.
    pub extension: Duration,
    /// How the width of an interval is computed.
    pub deviation: Deviation,
    /// The interval at which a model is refitted at the latest.
    pub refit_interval: Duration,
    /// The number of samples that a model keeps.
    pub model_samples: usize,
    /// N_samp: the number of completion times kept for each number of packets.
    pub completion_samples: usize,
    /// How long a depth may go without a new completion time before its old ones are forgotten; times without bulk do not
    /// count.
    pub completions_stale: Option<Duration>,
    /// p_prot: the percentile, as a share, at which completion times are read.
    pub protection_percentile: f64,
    /// How far p_prot rises while bulk makes loops late. Beyond that, bulk also keeps a distance from windows. If this
    /// value is not above p_prot, neither happens.
    pub protection_percentile_max: Option<f64>,
    /// Whether a window ends once the messages that it was opened for have left the WNIC.
    pub early_release: bool,
    /// Whether there are windows for commands. They begin when only a free channel can get a loop's commands out before
    /// its bound. Then the leader and every robot that waits for a command hold bulk back.
    pub command_windows: bool,
    /// The longest time for which bulk on its way delays a loop's commands. Bulk is held back for this long before the
    /// last moment at which commands can be made in time.
    pub command_delay: Duration,
    /// Whether windows for the messages of other robots also hold a permit holder's bulk.
    pub shared_windows: bool,
    /// The share of time that windows may take; 1 for no bound.
    pub window_share_max: f64,
    /// Whether sensor phases are steered together, so that one pause protects all.
    pub steered_phases: bool,
    /// The backlog bound. Bulk is held whenever the WNIC would take longer than this to send its packets.
    pub backlog_max: Option<Duration>,
}

/// SchedWiFi's parameters (Deng 2022, eq. 4 and the values given with it).
#[derive(Clone, Debug, PartialEq)]
pub struct SchedWifiConfig {
    /// R: the number of retransmissions that a window has room for.
    pub retries: u32,
    /// Duration of an acknowledgement.
    pub acknowledgement: Duration,
    /// Short interframe space.
    pub sifs: Duration,
    /// Bound on the difference between two robots' clocks; windows are widened by it on both sides.
    pub clock_skew: Duration,
    /// The gate in its role as time-aware shaper: how the drain before a window is predicted.
    pub shaper: LocalConfig,
}

impl Default for LocalConfig {
    /// Returns local preemption as in Deng 2022: C = 95 %, 2 ms extension, normal deviations, none of the switches. The
    /// modules decide without a switch what the paper leaves open: reading an n without samples, clearing a table that
    /// lets nothing pass, replacing a window that has not begun, and leases.
    fn default() -> Self {
        LocalConfig {
            accuracy: 0.95,
            extension: Duration::from_millis(2),
            deviation: Deviation::Normal,
            refit_interval: Duration::from_secs(10),
            model_samples: 300,
            completion_samples: 100,
            completions_stale: None,
            protection_percentile: 0.95,
            protection_percentile_max: None,
            early_release: false,
            command_windows: false,
            command_delay: Duration::from_millis(4),
            shared_windows: false,
            window_share_max: 1.0,
            steered_phases: false,
            backlog_max: None,
        }
    }
}

impl Default for SchedWifiConfig {
    fn default() -> Self {
        SchedWifiConfig {
            retries: 7,
            acknowledgement: Duration::from_micros(30),
            sifs: Duration::from_micros(16),
            clock_skew: Duration::from_micros(100),
            shaper: LocalConfig::default(),
        }
    }
}

impl Policy {
    /// The presets, by name.
    pub const NAMES: [&'static str; 9] = [
        "mpc-only",
        "bulk-only",
        "best-effort",
        "edca",
        "edca+global",
        "edca+local",
        "schedwifi",
        "coorp-paper",
        "coorp",
    ];

    /// Returns the preset of this name.
    pub fn named(name: &str) -> Option<Policy> {
        let mut policy = Policy {
            name: name.to_owned(),
            control: true,
            bulk: true,
            access: Access::Edca,
            global: None,
            turns: false,
            local: None,
            schedwifi: None,
            ack_every: 2,
            sight: Sight::STOCK,
            rts_over: Duration::MAX,
        };
        match name {
            "mpc-only" => policy.bulk = false,
            "bulk-only" => policy.control = false,
            "best-effort" => policy.access = Access::BestEffort,
            "edca" => {}
            "edca+global" => policy.global = Some(PermitConfig::default()),
            "edca+local" => policy.local = Some(LocalConfig::default()),
            "schedwifi" => policy.schedwifi = Some(SchedWifiConfig::default()),
            "coorp-paper" => {
                policy.sight = Sight::PAPER;
                policy.global = Some(PermitConfig::default());
                policy.local = Some(LocalConfig::default());
            }
            "coorp" => {
                policy.global = Some(PermitConfig::default());
                policy.turns = true;
                policy.local = Some(LocalConfig {
                    deviation: Deviation::Quantile,
                    completions_stale: Some(Duration::from_secs(4)),
                    protection_percentile: 0.5,
                    protection_percentile_max: Some(0.95),
                    window_share_max: 0.5,
                    early_release: true,
                    command_windows: true,
                    shared_windows: true,
                    backlog_max: Some(BACKLOG_MAX),
                    ..LocalConfig::default()
                });
            }
            _ => return None,
        }
        Some(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy_of_that_name_and_no_other_is() {
        for name in Policy::NAMES {
            assert_eq!(Policy::named(name).map(|policy| policy.name).as_deref(), Some(name));
        }
        assert_eq!(Policy::named("tc"), None);
    }

    #[test]
    fn coorp_bounds_what_is_in_the_card() {
        let local = Policy::named("coorp").and_then(|policy| policy.local);
        assert_eq!(local.and_then(|local| local.backlog_max), Some(BACKLOG_MAX));
    }

    #[test]
    fn coorp_paper_is_exactly_the_papers() {
        let policy = Policy::named("coorp-paper").expect("a preset");
        let (global, local) = (policy.global.expect("global"), policy.local.expect("local"));
        assert_eq!((global.limit, global.slice), (1, Duration::from_secs(5)));
        assert_eq!((local.accuracy, local.extension), (0.95, Duration::from_millis(2)));
        assert_eq!(local.deviation, Deviation::Normal);
        assert!(!(local.early_release || local.command_windows || local.shared_windows || local.steered_phases));
        assert_eq!(local.backlog_max, None);
    }
}
