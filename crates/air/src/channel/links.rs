//! Rates and loss probabilities of frames between two stations.
//!
//! Control frames use the fastest mandatory legacy rate that is no faster than the data of their link (IEEE
//! 802.11-2020, 10.6.6). Answers use the rate of the frame that they answer. Control frames are lost as often as the
//! same number of bytes in a data frame. Left out: the greater robustness of a rate below the data's.

use crate::config::Config;
use crate::link::Link;
use crate::packet::StationId;
use crate::phy::{ControlRate, Phy, Timing};

/// One direction between two stations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub link: Link,
    pub timing: Timing,
    pub control: ControlRate,
}

impl Way {
    fn new(phy: &Phy, link: Link) -> Self {
        Way {
            link,
            timing: phy.timing(link.rate),
            control: phy.control_rate(link.rate),
        }
    }
}

/// Ways by sender and receiver.
#[derive(Debug)]
pub(super) struct Links {
    phy: Phy,
    default: Way,
    /// The rate of group-addressed frames.
    group: Timing,
    /// One row per sender; empty entries use the default link.
    rows: Vec<Vec<Option<Way>>>,
}

impl Links {
    pub fn new(config: &Config) -> Self {
        Links {
            phy: config.phy,
            default: Way::new(&config.phy, config.link),
            group: config.phy.basic_timing(),
            rows: vec![Vec::new(); usize::from(config.stations)],
        }
    }

    pub fn set(&mut self, from: StationId, to: StationId, link: Link) {
        let row = &mut self.rows[usize::from(from.0)];
        let place = usize::from(to.0);
        if row.len() <= place {
            row.resize(place + 1, None);
        }
        row[place] = Some(Way::new(&self.phy, link));
    }

    /// Returns the way to one station.
    pub fn get(&self, from: StationId, to: StationId) -> &Way {
        let own = self.rows[usize::from(from.0)].get(usize::from(to.0));
        own.and_then(Option::as_ref).unwrap_or(&self.default)
    }

    /// Returns the rate of data to one station or to all.
    pub fn timing(&self, from: StationId, to: StationId) -> &Timing {
        match to {
            StationId::GROUP => &self.group,
            _ => &self.get(from, to).timing,
        }
    }
}
