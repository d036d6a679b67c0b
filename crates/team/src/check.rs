//! The invariants of a `Team`, for teams built or changed in code.
//!
//! `parse` never returns a team that fails here. Left out: ranges that are a matter of taste, such as the longest
//! period.

use crate::model::{Air, Change, RateOverride, RateSource, Team, Traffic, PATHS_MAX};
use crate::rules;
use coorp_core::{Duration, RobotId};
use std::collections::HashSet;

impl Team {
    /// Checks that the team is consistent: ids name robots, names are unique, exactly one robot leads, periods are
    /// positive, and rates exist.
    ///
    /// # Errors
    /// A sentence on the first violation.
    pub fn check(&self) -> Result<(), String> {
        self.check_robots()?;
        for air in self.channels() {
            self.check_air(air)?;
        }
        self.check_interfaces()?;
        self.check_events()?;
        self.check_flows()?;
        self.check_live()?;
        self.check_protect()?;
        if let Some(control) = &self.control {
            ensure(control.period > Duration::ZERO, || {
                "the control period is zero".to_owned()
            })?;
            ensure(control.bound <= control.period || control.overlap, || {
                "the reaction bound is over the period".to_owned()
            })?;
            ensure(control.bound > Duration::ZERO, || {
                "the reaction bound is zero".to_owned()
            })?;
            ensure(share(control.inference_sigma / 2.0), || {
                "the inference spread is out of range".to_owned()
            })?;
            ensure(control.perception_bytes > 0 && control.command_bytes > 0, || {
                "a message is empty".to_owned()
            })?;
        }
        if let Some(learning) = &self.learning {
            ensure(self.control.is_some(), || "learning needs a control loop".to_owned())?;
            ensure(learning.parameters > 0 && learning.item_bytes > 0, || {
                "learning moves no bytes".to_owned()
            })?;
            ensure(learning.rounds > 0 && learning.batch_loops > 0, || {
                "an epoch is empty".to_owned()
            })?;
            ensure(share(learning.training_sigma / 2.0), || {
                "the training spread is out of range".to_owned()
            })?;
        }
        Ok(())
    }

    fn check_robots(&self) -> Result<(), String> {
        let count = self.robots.len();
        let all = count + self.places.len();
        ensure(2 <= count && all <= rules::ROBOTS_MAX, || {
            format!("{all} robots, but a team has 2 to {}", rules::ROBOTS_MAX)
        })?;
        // They are behind the others: see `Team::with_places`.
        let places = self.robots.iter().skip_while(|robot| !robot.may_join);
        ensure(places.chain(&self.places).all(|robot| robot.may_join), || {
            "a robot of the team is behind places for others".to_owned()
        })?;
        let mut names = HashSet::new();
        for (index, robot) in self.robots.iter().chain(&self.places).enumerate() {
            rules::name(&robot.name).map_err(|(message, _)| message)?;
            ensure(names.insert(robot.name.as_str()), || {
                format!("two robots are named \"{}\"", robot.name)
            })?;
            let leads = index == usize::from(self.leader.0);
            ensure(robot.leader == leads, || {
                format!("\"{}\" is inconsistent about who leads", robot.name)
            })?;
            let points = robot.position_m.iter().chain(&robot.waypoints_m).flatten();
            ensure(points.copied().chain([robot.speed_mps]).all(f64::is_finite), || {
                format!("the position or speed of \"{}\" is not finite", robot.name)
            })?;
            let placed = robot.waypoints_m.is_empty() || robot.position_m.is_some();
            ensure(placed, || format!("\"{}\" has waypoints but no position", robot.name))?;
            let late = robot
                .phase
                .zip(self.control)
                .is_some_and(|(phase, control)| phase >= control.period);
            ensure(!late, || {
                format!("the phase of \"{}\" is not less than the period", robot.name)
            })?;
        }
        ensure(usize::from(self.leader.0) < self.founders(), || {
            "no robot leads".to_owned()
        })
    }

    fn check_live(&self) -> Result<(), String> {
        for robot in self.robots.iter().chain(&self.places) {
            let ports = rules::PORT_RANGE.contains(&robot.port.unwrap_or(self.live.port));
            ensure(ports, || format!("the ports of \"{}\" are out of range", robot.name))?;
            for interface in &robot.interfaces {
                rules::interface(interface).map_err(|(message, _)| message)?;
            }
            let paths = [robot.interfaces.len(), robot.addresses.len()];
            let matched = paths.contains(&0) || paths[0] == paths[1];
            ensure(matched && paths.iter().all(|paths| *paths <= PATHS_MAX), || {
                format!("interfaces and addresses of \"{}\" do not match", robot.name)
            })?;
        }
        let clash = rules::ports_clash(self.robots.iter().chain(&self.places), self.live.port).is_some();
        ensure(!clash, || "two robots have the same address and ports".to_owned())
    }

    fn check_protect(&self) -> Result<(), String> {
        ensure(self.protect.len() <= rules::PROTECT_MAX, || {
            format!("more than {} protection rules", rules::PROTECT_MAX)
        })?;
        for (number, rule) in (1..).zip(&self.protect) {
            let conditions = [
                rule.protocol.is_some(),
                rule.ports.is_some(),
                rule.to.is_some(),
                rule.dscp.is_some(),
                rule.topic.is_some(),
                rule.needs_program(),
            ];
            ensure(conditions.contains(&true), || {
                format!("protection rule {number} has no condition")
            })?;
            let ported = rule.protocol.is_none_or(|protocol| rules::PORTED.contains(&protocol));
            let ports = rule
                .ports
                .is_none_or(|(first, last)| 0 < first && first <= last && ported);
            let dscp = rule.dscp.is_none_or(|dscp| dscp <= rules::DSCP_MAX);
            let names = [&rule.topic, &rule.executable, &rule.cgroup];
            let mut names = names.into_iter().flatten();
            let named = names.all(|name| (1..=rules::NAME_BYTES_MAX).contains(&name.len()));
            ensure(ports && dscp && named, || {
                format!("protection rule {number} is out of range")
            })?;
        }
        Ok(())
    }

    fn check_air(&self, air: &Air) -> Result<(), String> {
        let sorted = air.links.windows(2).all(|pair| match pair {
            [one, next] => (one.from, one.to) < (next.from, next.to),
            _ => true,
        });
        ensure(sorted, || {
            "links are not sorted by sender and receiver without duplicates".to_owned()
        })?;
        for edca in &air.edca {
            let windows = [edca.cw_min, edca.cw_max]
                .iter()
                .all(|window| (u32::from(*window) + 1).is_power_of_two());
            ensure(windows && edca.cw_min <= edca.cw_max, || {
                "a contention window is invalid".to_owned()
            })?;
            ensure(edca.aifsn > 0 && edca.ampdu_frames > 0, || {
                "an access category cannot send".to_owned()
            })?;
        }
        // The rate depends only on the sender, unless a link is described.
        let others = |from: usize| robot(usize::from(from == 0));
        let plain = (0..self.robots.len()).map(|from| (robot(from), others(from)));
        for (from, to) in plain.chain(air.links.iter().map(|link| (link.from, link.to))) {
            let rate = self.rate_on(air, RateOverride::default(), from, to);
            let rate = rate.ok_or("a link names robots that do not exist")?;
            ensure(from != to, || "a link connects a robot to itself".to_owned())?;
            ensure(share(rate.loss), || "a loss is not between 0 and 1".to_owned())?;
            ensure((1..=4).contains(&rate.streams), || {
                "a link does not have 1 to 4 streams".to_owned()
            })?;
            match rate.source {
                RateSource::Mcs(mcs) => {
                    rules::mcs(air.standard, air.width_mhz, rate.streams, mcs).map_err(|(message, _)| message)?
                }
                RateSource::SnrDb(snr_db) => ensure(snr_db.is_finite(), || "a signal is not finite".to_owned())?,
                RateSource::Distance => {}
            }
        }
        Ok(())
    }

    fn check_interfaces(&self) -> Result<(), String> {
        ensure(self.interfaces.len() <= rules::INTERFACES_MAX, || {
            format!("more than {} additional interfaces", rules::INTERFACES_MAX)
        })?;
        for (number, interface) in self.interfaces.iter().enumerate() {
            ensure(self.are_robots(&interface.robots), || {
                format!("wlan{} names robots that do not exist", number + 1)
            })?;
            let point = interface.air.access_point.unwrap_or(self.leader);
            ensure(
                [self.leader, point]
                    .iter()
                    .all(|robot| interface.robots.contains(robot)),
                || format!("the leader or the access point has no wlan{}", number + 1),
            )?;
        }
        let bands: Vec<(u16, u16)> = self.channels().map(|air| (air.channel, air.width_mhz)).collect();
        let apart = bands
            .iter()
            .enumerate()
            .all(|(place, one)| !bands.iter().skip(place + 1).any(|other| rules::overlap(*one, *other)));
        ensure(apart, || "two interfaces are on overlapping channels".to_owned())
    }

    fn check_events(&self) -> Result<(), String> {
        for event in &self.events {
            ensure(event.until.is_none_or(|until| until > event.at), || {
                "an event ends before it starts".to_owned()
            })?;
            ensure(
                event.interface.is_none_or(|number| number <= self.interfaces.len()),
                || "an event names an interface that does not exist".to_owned(),
            )?;
            let known = match &event.change {
                Change::Link { from, to, rate } => {
                    ensure(rate.loss.is_none_or(share), || {
                        "a loss is not between 0 and 1".to_owned()
                    })?;
                    ensure(rate.streams.is_none_or(|streams| (1..=4).contains(&streams)), || {
                        "a link does not have 1 to 4 streams".to_owned()
                    })?;
                    self.are_robots(from.as_slice()) && self.are_robots(to.as_slice())
                }
                Change::Partition(robots) | Change::Death(robots) => self.are_robots(robots),
            };
            ensure(known, || "an event names robots that do not exist".to_owned())?;
        }
        Ok(())
    }

    /// Returns whether these robots exist and are sorted without duplicates.
    fn are_robots(&self, robots: &[RobotId]) -> bool {
        let exist = robots.iter().all(|robot| usize::from(robot.0) < self.robots.len());
        exist && robots.is_sorted_by(|one, next| one < next)
    }

    fn check_flows(&self) -> Result<(), String> {
        ensure(self.flows.len() <= rules::FLOWS_MAX, || {
            format!("more than {} flows", rules::FLOWS_MAX)
        })?;
        let mut names = HashSet::new();
        for flow in &self.flows {
            let name = &flow.name;
            ensure(names.insert(name), || format!("two flows are named \"{name}\""))?;
            let known = [flow.from, flow.to]
                .iter()
                .all(|end| usize::from(end.0) < self.robots.len());
            ensure(known && flow.from != flow.to, || {
                format!("flow \"{name}\" does not connect two robots")
            })?;
            ensure(flow.stop.is_none_or(|stop| stop > flow.start), || {
                format!("flow \"{name}\" stops before it starts")
            })?;
            let sends = match flow.traffic {
                Traffic::Saturated { packet_bytes } => packet_bytes > 0,
                Traffic::Periodic {
                    size_bytes,
                    period,
                    jitter,
                } => size_bytes > 0 && period > jitter,
            };
            ensure(sends, || format!("flow \"{name}\" has no size or period"))?;
            let periodic = matches!(flow.traffic, Traffic::Periodic { .. });
            ensure(periodic || flow.recorded.is_none(), || {
                format!("flow \"{name}\" is saturated and cannot replay a recording")
            })?;
        }
        Ok(())
    }
}

fn robot(index: usize) -> RobotId {
    RobotId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// Returns whether the value is between 0 and 1; false for NaN.
fn share(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(otherwise())
    }
}
