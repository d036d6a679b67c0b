//! Drives one [`Robot`] in virtual time, on its own clock, with the view that its `Sight` gives.
//!
//! Callers use the run's time; the robot knows only its own clock. Policies without permits or windows decide nothing
//! and have no robot. Left out: clocks that drift within a run.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use coorp_air::tcp::Ack;
use coorp_air::Load;
use coorp_core::paths::PathId;
use coorp_core::policy::{Completions, Policy};
use coorp_core::robot::{Action, Message, Robot, Stamp, Windows, LOOK_HELD, LOOK_OPEN};
use coorp_core::schedwifi::Schedule;
use coorp_core::windows::Window;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::{Team, Traffic};

/// Time of local clocks at the start of the run, so that no skew makes a clock negative.
pub(crate) const CLOCK_ORIGIN: Duration = Duration::from_secs(1_000);
/// Maximum number of packets that a log follows. No WNIC and no TCP window holds more.
const LOG_MAX: usize = 1 << 16;
/// Offset between robots' reads of their send queues.
const LOOKS_APART: Duration = Duration::from_micros(37);

/// A control flow that a robot sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ControlFlow {
    /// The robot's perceptions.
    Perception,
    /// The leader's commands to this robot.
    Command(RobotId),
    /// A plain control flow, by its index in the run.
    Plain(u32),
}

/// Bulk packets on their way, as far as the robot's [`Sight`] shows them.
#[derive(Debug)]
enum Log {
    /// The robot uses the driver's count.
    Driver,
    /// Packets that have entered the WNIC, in order, until the robot sees that the kernel has freed them. The number is
    /// the packets that the kernel has freed since the robot's last read.
    OutQueue(VecDeque<(u64, Instant)>, usize),
    /// Packets that have entered the WNIC, in order, until their transmit status.
    Status(VecDeque<(u64, Instant)>),
    /// Packets that have entered the WNIC, by stream and segment, until they are acknowledged.
    Segments(BTreeMap<(u32, u64), (u64, Instant)>),
}

/// A robot and its measurements.
#[derive(Debug)]
pub(crate) struct Agent {
    me: RobotId,
    /// The number of robots in the team.
    robots: u16,
    robot: Option<Robot>,
    flows: BTreeMap<ControlFlow, FlowId>,
    log: Log,
    /// Whether the robot received input since its actions were last taken, so that it may have new ones, or an earlier
    /// deadline.
    touched: bool,
    /// The number of packets of the log that have left.
    left: u64,
    /// Control messages that the kernel has freed since the robot's last read.
    control_freed: Vec<FlowId>,
    /// When the robot next reads its send queues. Nothing is scheduled unless something was freed.
    look_at: Instant,
    skew_ns: i64,
    /// Delay of the next deadline until the robot gets a core.
    late: Duration,
    up: bool,
    wants_bulk: bool,
    /// The number of streams and flows of bulk to each robot that have something left.
    receivers: BTreeMap<RobotId, u32>,
    permitted: bool,
    held: bool,
    /// Whether the gate held a packet with an empty WNIC.
    held_empty: bool,
    /// The number of packets that the gate let pass.
    passed: u64,
    window: Window,
    /// Windows that are over, if they are drawn.
    windows_over: Option<Vec<(Instant, Instant)>>,
    account: Account,
}

/// How long the robot had bulk that it was permitted to send, and how much of that time was inside windows.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    until: Instant,
    sending: Duration,
    inside: Duration,
}

impl Agent {
    /// # Errors
    /// If the policy's times are inconsistent.
    pub fn new(
        team: &Team,
        policy: &Policy,
        schedule: Option<&Schedule>,
        me: RobotId,
        timeline: bool,
    ) -> Result<Self, String> {
        let mut agent = Agent {
            me,
            robots: team.robots.len() as u16,
            robot: None,
            flows: BTreeMap::new(),
            log: Log::Driver,
            touched: true,
            left: 0,
            control_freed: Vec::new(),
            look_at: Instant::FAR_FUTURE,
            skew_ns: team.robots[usize::from(me.0)].clock_skew_ns,
            late: Duration::ZERO,
            up: true,
            wants_bulk: false,
            receivers: BTreeMap::new(),
            permitted: true,
            held: false,
            held_empty: false,
            passed: 0,
            window: Window::NONE,
            windows_over: timeline.then(Vec::new),
            account: Account::default(),
        };
        agent.restart(team, policy, schedule, 0, Instant::ZERO)?;
        Ok(agent)
    }

    /// Starts the robot, or restarts it without memory.
    ///
    /// # Errors
    /// If the policy's times are inconsistent.
    pub fn restart(
        &mut self,
        team: &Team,
        policy: &Policy,
        schedule: Option<&Schedule>,
        incarnation: u32,
        now: Instant,
    ) -> Result<(), String> {
        self.spend(now);
        (self.up, self.touched) = (true, true);
        self.flows.clear();
        self.control_freed.clear();
        self.look_at = Instant::FAR_FUTURE;
        let mut config = team.robot_config(policy, self.me, incarnation);
        // Only the channel of the first interfaces is simulated.
        config.paths_to.fill(1);
        config.paths = 1;
        config.permits = config.permits.filter(|_| policy.bulk);
        config.control = config.control.filter(|_| policy.control);
        if let (Some(schedwifi), Some(schedule)) = (&policy.schedwifi, schedule) {
            // The plan's clock is the leader's. All robots know it to within the plan's bound on skew, whatever their
            // own clocks show.
            let schedule = schedule.clone().with_origin(self.local(Instant::ZERO));
            config.windows = Windows::Scheduled(schedule, schedwifi.shaper.clone());
        }
        self.log = match policy.sight.completions {
            Completions::Hook => Log::Driver,
            Completions::OutQueue => Log::OutQueue(VecDeque::new(), 0),
            Completions::Status => Log::Status(VecDeque::new()),
            Completions::Acknowledgements => Log::Segments(BTreeMap::new()),
        };
        let decides = config.permits.is_some() || !matches!(config.windows, Windows::None);
        let robot = decides.then(|| Robot::new(config, self.local(now)));
        self.robot = robot.transpose()?;
        self.permitted = self.may_send(now);
        self.add_flows(team, policy);
        for to in self.receivers.keys().copied().collect::<Vec<_>>() {
            self.tell(now, |robot, local| robot.on_bulk(to, 0, true, local));
        }
        self.follow_window(now);
        Ok(())
    }

    /// Adds the robot's control flows, as programs do when they begin to publish.
    fn add_flows(&mut self, team: &Team, policy: &Policy) {
        let mut flows = Vec::new();
        if let Some(control) = team.control.filter(|_| policy.control) {
            if self.me == team.leader {
                let others = (0..team.robots.len() as u16).map(RobotId);
                let others = others.filter(|other| *other != self.me);
                flows.extend(others.map(|other| (ControlFlow::Command(other), None, None)));
            } else {
                flows.push((ControlFlow::Perception, Some(control.period), None));
            }
        }
        for (place, flow) in team.flows.iter().enumerate() {
            if let (false, Traffic::Periodic { period, .. }) = (flow.bulk, flow.traffic) {
                if flow.from == self.me && policy.control {
                    flows.push((ControlFlow::Plain(place as u32), Some(period), flow.bound));
                }
            }
        }
        let Some(robot) = &mut self.robot else { return };
        for (flow, period, bound) in flows {
            // Flows beyond the limit are unprotected. A program would learn that about its publisher.
            if let Some(id) = robot.add_flow(period) {
                robot.set_bound(id, bound);
                self.flows.insert(flow, id);
            }
        }
    }

    // --- clocks -----------------------------------------------------------------------------------------------

    /// Returns the robot's clock when the run's shows `now`.
    fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos((now + CLOCK_ORIGIN).as_nanos().saturating_add_signed(self.skew_ns))
    }

    /// Returns the run's time when the robot's clock shows `local`.
    fn global(&self, local: Instant) -> Instant {
        if local == Instant::FAR_FUTURE {
            return local;
        }
        Instant::from_nanos(local.as_nanos().saturating_add_signed(-self.skew_ns)) - CLOCK_ORIGIN
    }

    /// Passes an input to the robot, if it exists and is up.
    fn tell<T>(&mut self, now: Instant, what: impl FnOnce(&mut Robot, Instant) -> T) -> Option<T> {
        let local = self.local(now);
        let robot = self.robot.as_mut().filter(|_| self.up)?;
        let told = what(robot, local);
        self.touched = true;
        self.follow_window(now);
        Some(told)
    }

    // --- permits ----------------------------------------------------------------------------------------------

    /// Returns whether bulk waits for permits on this robot.
    pub fn needs_permit(&self) -> bool {
        !self.permitted
    }

    /// Returns whether the robot runs.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Stops the robot, dead or frozen, or lets it continue. While it is down, it decides nothing and hears nothing.
    pub fn set_up(&mut self, up: bool, now: Instant) {
        self.spend(now);
        self.up = up;
        if up {
            self.on_deadline(now);
            self.permitted = self.may_send(now);
            // Bulk may have appeared or ended meanwhile.
            self.set_bulk(self.wants_bulk, now);
            let me = self.me;
            for to in (0..self.robots).map(RobotId).filter(|to| *to != me) {
                let waits = self.receivers.contains_key(&to);
                self.tell(now, |robot, local| robot.on_bulk(to, 0, waits, local));
            }
        }
    }

    /// Returns whether the robot wants to send bulk.
    pub fn wants_bulk(&self) -> bool {
        self.wants_bulk
    }

    /// Returns whether a permit allows bulk now, or none is needed.
    pub fn may_send(&self, now: Instant) -> bool {
        let local = self.local(now);
        self.robot.as_ref().is_none_or(|robot| robot.is_permitted(local))
    }

    /// Returns whether the robot's streams may run: it is up and has a permit.
    pub fn is_permitted(&self) -> bool {
        self.up && self.permitted
    }

    /// Returns how many robots hold a permit by this robot's records; none if it does not lead.
    pub fn holders(&self) -> usize {
        let robot = self.robot.as_ref().filter(|_| self.up);
        robot.map_or(0, |robot| robot.granted().0.len())
    }

    /// Returns how many packets the gate had let pass, if it holds one now although the WNIC is empty. If the air keeps
    /// a packet from leaving, the gate is not at fault.
    pub fn held_after(&self) -> Option<u64> {
        (self.held_empty && self.robot.as_ref().is_some_and(Robot::is_held)).then_some(self.passed)
    }

    /// Sets whether bulk waits to be sent.
    pub fn set_bulk(&mut self, wants: bool, now: Instant) {
        self.spend(now);
        self.wants_bulk = wants;
        self.tell(now, |robot, local| robot.want_bulk(wants, local));
    }

    /// Counts one more, or one less, stream or flow of bulk to a robot with something left.
    pub fn count_receiver(&mut self, to: RobotId, more: bool, now: Instant) {
        let streams = self.receivers.entry(to).or_default();
        *streams = if more { *streams + 1 } else { streams.saturating_sub(1) };
        let waits = *streams > 0;
        if !waits {
            self.receivers.remove(&to);
        }
        self.tell(now, |robot, local| robot.on_bulk(to, 0, waits, local));
    }

    /// Records that bulk to a robot was handed to the stack.
    pub fn on_bulk_sent(&mut self, to: RobotId, now: Instant) {
        self.tell(now, |robot, local| robot.on_bulk_sent(to, 0, local));
    }

    /// Returns whether turns allow bulk to a robot to be sent now.
    pub fn has_turn(&self, to: RobotId) -> bool {
        self.robot.as_ref().is_none_or(|robot| robot.has_turn(to, 0))
    }

    /// Handles a message of another robot that arrived with its control or separately.
    pub fn on_message(&mut self, from: RobotId, message: Message, with_control: bool, now: Instant) {
        let path = with_control.then_some(PathId(0));
        self.tell(now, |robot, local| robot.on_message(from, path, message, local));
    }

    // --- what is observed -------------------------------------------------------------------------------------

    /// Records that the application made a control message. Returns the stamp to send with it, if there is a robot.
    pub fn on_control_made(&mut self, flow: ControlFlow, now: Instant) -> Option<Stamp> {
        let id = self.flows.get(&flow).copied()?;
        self.tell(now, |robot, local| robot.on_control(id, local))
    }

    /// Returns the messages that go with a control message to a robot.
    pub fn riders(&mut self, to: RobotId, now: Instant) -> Vec<Message> {
        self.tell(now, |robot, local| robot.riders(to, local))
            .unwrap_or_default()
    }

    /// Records that the kernel has freed a whole control message. A driver's hook reports this at once.
    pub fn on_control_freed(&mut self, flow: ControlFlow, now: Instant) {
        let Some(id) = self.flows.get(&flow).copied() else {
            return;
        };
        if let Log::Driver = self.log {
            self.tell(now, |robot, local| robot.on_control_left(id, local));
        } else {
            self.control_freed.push(id);
            self.look_within(LOOK_HELD, now);
        }
    }

    // --- the send queues --------------------------------------------------------------------------------------

    /// Schedules a read of the send queues, because something was freed. Returns whether that is earlier than the
    /// scheduled one.
    fn look_within(&mut self, interval: Duration, now: Instant) -> bool {
        let phase = (now + LOOKS_APART * u64::from(self.me.0)).as_nanos() % interval.as_nanos();
        let at = now + Duration::from_nanos(interval.as_nanos() - phase);
        let earlier = at < self.look_at;
        if earlier {
            (self.look_at, self.touched) = (at, true);
        }
        earlier
    }

    fn look(&mut self, now: Instant) {
        self.look_at = Instant::FAR_FUTURE;
        for id in std::mem::take(&mut self.control_freed) {
            self.tell(now, |robot, local| robot.on_control_left(id, local));
        }
        let Log::OutQueue(log, freed) = &mut self.log else {
            return;
        };
        let seen = log.drain(..std::mem::take(freed).min(log.len())).collect::<Vec<_>>();
        for entered in seen {
            self.on_left(entered, now);
        }
    }

    /// Handles a control message of another robot that arrived here.
    pub fn on_control_arrived(&mut self, from: RobotId, stamp: Stamp, now: Instant) {
        self.tell(now, |robot, local| robot.on_arrived(from, stamp, local));
    }

    /// Returns the flow of this number.
    pub fn flow(&self, id: FlowId) -> Option<ControlFlow> {
        self.flows
            .iter()
            .find(|(_, other)| **other == id)
            .map(|(flow, _)| *flow)
    }

    // --- the gate ---------------------------------------------------------------------------------------------

    /// Decides how many of `most` bulk packets the driver may take before it asks again. Also returns whether the gate
    /// has changed between passing and holding.
    pub fn may_dequeue(&mut self, load: Load, most: u16, now: Instant) -> (u16, bool) {
        let local = self.local(now);
        let Some(robot) = self.robot.as_mut() else {
            return (most, false);
        };
        let on_their_way = match &self.log {
            Log::Driver => usize::from(load.incomplete),
            Log::OutQueue(log, _) | Log::Status(log) => log.len(),
            Log::Segments(log) => log.len(),
        };
        let pass = robot.passes_gate(0, on_their_way, local);
        let may = match &self.log {
            _ if !pass => 0,
            Log::Driver | Log::OutQueue(..) => robot.room(0, on_their_way, usize::from(most), local) as u16,
            // These counts may not rise by one with each packet.
            Log::Status(_) | Log::Segments(_) => 1,
        };
        self.passed += u64::from(may);
        let changed = pass == self.held;
        self.held = !pass;
        self.held_empty = !pass && load.unsent == 0;
        self.touched |= !pass;
        self.follow_window(now);
        (may, changed)
    }

    /// Records that the WNIC got a bulk packet. `segment` gives its stream and its number there, if it will be
    /// acknowledged.
    #[inline]
    pub fn on_enqueued(&mut self, segment: Option<(u32, u64)>, now: Instant) {
        if let Log::Driver = self.log {
            return;
        }
        let local = self.local(now);
        match (&mut self.log, segment) {
            (Log::OutQueue(log, _) | Log::Status(log), _) if log.len() < LOG_MAX => log.push_back((self.left, local)),
            (Log::Segments(log), Some(segment)) if log.len() < LOG_MAX => {
                log.insert(segment, (self.left, local));
            }
            _ => {}
        }
    }

    /// Records that the driver counts a bulk packet as complete and the kernel frees it. Returns whether there is an
    /// earlier deadline. A hook causes none, and changes no window.
    #[inline]
    pub fn on_released(&mut self, ahead: u16, queued_at: Instant, now: Instant) -> bool {
        let (entered_at, local) = (self.local(queued_at), self.local(now));
        match (&mut self.log, self.up, &mut self.robot) {
            (Log::Driver, true, Some(robot)) => robot.on_completed(0, usize::from(ahead), entered_at, local),
            (Log::OutQueue(_, freed), _, Some(robot)) => {
                *freed += 1;
                let held = robot.is_held();
                return self.look_within(if held { LOOK_HELD } else { LOOK_OPEN }, now);
            }
            _ => {}
        }
        false
    }

    /// Records that a bulk packet has its transmit status.
    #[inline]
    pub fn on_status(&mut self, now: Instant) {
        if let Log::Status(log) = &mut self.log {
            if let Some(entered) = log.pop_front() {
                self.on_left(entered, now);
            }
        }
    }

    /// Records that a stream's receiver acknowledges segments. Segments that arrived out of order have left as well.
    #[inline]
    pub fn on_acknowledged(&mut self, stream: u32, ack: &Ack, now: Instant) {
        if !matches!(self.log, Log::Segments(_)) {
            return;
        }
        self.take_acknowledged((stream, 0)..(stream, ack.next), now);
        for range in ack.sack.iter().filter(|range| range.start < range.end) {
            self.take_acknowledged((stream, range.start)..(stream, range.end), now);
        }
    }

    fn take_acknowledged(&mut self, segments: Range<(u32, u64)>, now: Instant) {
        while let Log::Segments(log) = &mut self.log {
            let Some(segment) = log.range(segments.clone()).next().map(|(segment, _)| *segment) else {
                return;
            };
            if let Some(entered) = log.remove(&segment) {
                self.on_left(entered, now);
            }
        }
    }

    fn on_left(&mut self, (before, entered_at): (u64, Instant), now: Instant) {
        self.left += 1;
        let left = (before, self.left);
        self.tell(now, |robot, local| robot.on_left(0, left, entered_at, local));
    }

    // --- being driven -----------------------------------------------------------------------------------------

    pub fn on_deadline(&mut self, now: Instant) {
        if now >= self.look_at {
            self.look(now);
        }
        self.tell(now, Robot::on_deadline);
    }

    /// Returns when to call [`Agent::on_deadline`]: later than the robot requested if its programs wait for a core.
    pub fn next_deadline(&self) -> Option<Instant> {
        let robot = self.robot.as_ref().filter(|_| self.up)?;
        Some(self.global(robot.next_deadline()).min(self.look_at) + self.late)
    }

    /// Sets the delay of the next deadline.
    pub fn set_late(&mut self, late: Duration) {
        self.late = late;
    }

    /// Returns whether there may be actions to take or an earlier deadline since the last call.
    #[inline]
    pub fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched) || self.robot.as_ref().is_some_and(Robot::has_actions)
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        let action = self.robot.as_mut().filter(|_| self.up)?.poll()?;
        if let Action::Permitted(permitted) = action {
            self.spend(now);
            self.permitted = permitted;
        }
        Some(action)
    }

    /// Returns the windows that have ended since the last call, in the run's time.
    pub fn take_windows(&mut self) -> Vec<(Instant, Instant)> {
        self.windows_over.as_mut().map(std::mem::take).unwrap_or_default()
    }

    // --- accounts ---------------------------------------------------------------------------------------------

    /// Accounts for the time before the window changed, if it has changed.
    #[inline]
    fn follow_window(&mut self, now: Instant) {
        let window = self.robot.as_ref().map(Robot::window);
        if let Some(window) = window.filter(|window| *window != self.window) {
            self.set_window(window, now);
        }
    }

    fn set_window(&mut self, window: Window, now: Instant) {
        self.touched = true;
        self.spend(now);
        let (start, end) = (self.global(self.window.start), self.global(self.window.end).min(now));
        if let Some(over) = self.windows_over.as_mut().filter(|_| end > start) {
            over.push((start, end));
        }
        self.window = window;
    }

    /// Accounts for the time since the last call, under the state of that time.
    fn spend(&mut self, now: Instant) {
        self.account = self.account_at(now);
    }

    fn account_at(&self, now: Instant) -> Account {
        let mut account = self.account;
        if self.wants_bulk && self.permitted && self.up {
            let (start, end) = (self.global(self.window.start), self.global(self.window.end));
            let (from, to) = (account.until.max(start), now.min(end));
            account.sending += now.since(account.until);
            account.inside += to.since(from);
        }
        account.until = now;
        account
    }

    /// Returns for how many seconds, inside windows and in all, the robot had bulk that it was permitted to send.
    pub fn window_time_s(&self, now: Instant) -> (f64, f64) {
        let account = self.account_at(now);
        (account.inside.as_secs_f64(), account.sending.as_secs_f64())
    }
}
