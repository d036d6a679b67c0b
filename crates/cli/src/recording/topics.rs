//! Statistics of a topic's messages: how often, how regular, how large. Memory is bounded, however long the recording.
//!
//! Intervals and sizes are kept as random samples (Vitter's algorithm R), from which the quantiles are computed. The
//! **period** is the mean of those intervals that deviate from the median by at most half of it. Pauses and lost
//! messages do not affect it, and unlike the median it is the true rate if a timer alternates between two ticks. The
//! **jitter** is the standard deviation of a message's instant, as in the team file. It is the standard deviation of
//! these intervals, divided by the square root of two because an interval has two ends.

use std::collections::BTreeMap;

use coorp_core::Duration;

use super::Message;

/// Number of intervals and sizes kept per topic.
const SAMPLES_MAX: usize = 4_096;
/// Maximum number of topics.
const TOPICS_MAX: usize = 10_000;
/// With fewer messages, no period can be determined.
const MESSAGES_MIN: u64 = 10;
/// Share of the intervals that must be close to the median for a topic to be periodic.
const EVEN_SHARE_MIN: f64 = 0.75;
/// Share of a topic's time span that its messages must fill at their period: occasional bursts are not periodic.
const FILLED_MIN: f64 = 0.5;

/// All topics of a recording.
#[derive(Debug, Default)]
pub struct Topics {
    by_name: BTreeMap<String, Topic>,
    /// Messages of all topics.
    pub messages: u64,
    /// First and last time over all topics.
    span: Option<(u64, u64)>,
    /// Whether there were more topics than the maximum.
    pub more: bool,
}

/// One topic.
#[derive(Debug)]
pub struct Topic {
    /// The type, if the recording gives it.
    pub schema: String,
    /// Number of messages.
    pub count: u64,
    first_ns: u64,
    last_ns: u64,
    total_bytes: u64,
    intervals_ns: Sample,
    sizes: Sample,
}

/// The timing of a topic's messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rhythm {
    /// Periodic.
    Periodic {
        /// The time between two messages.
        period: Duration,
        /// The standard deviation of a message's instant.
        jitter: Duration,
    },
    /// In bursts, on events, or intermittent.
    Irregular {
        /// The mean time between two messages.
        mean: Duration,
    },
    /// Too few messages to tell.
    Few,
}

impl Topics {
    /// Counts one message.
    pub fn see(&mut self, message: Message<'_>) {
        self.messages += 1;
        let (first, last) = self.span.unwrap_or((message.at_ns, message.at_ns));
        self.span = Some((first.min(message.at_ns), last.max(message.at_ns)));
        if let Some(topic) = self.by_name.get_mut(message.topic) {
            topic.see(message);
        } else if self.by_name.len() < TOPICS_MAX {
            self.by_name.insert(message.topic.to_owned(), Topic::new(message));
        } else {
            self.more = true;
        }
    }

    /// Returns the time from the first message to the last.
    pub fn length(&self) -> Duration {
        self.span
            .map_or(Duration::ZERO, |(first, last)| Duration::from_nanos(last - first))
    }

    /// Returns the topics by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Topic)> {
        self.by_name.iter().map(|(name, topic)| (name.as_str(), topic))
    }
}

impl Topic {
    fn new(first: Message<'_>) -> Topic {
        let mut topic = Topic {
            schema: first.schema.to_owned(),
            count: 1,
            first_ns: first.at_ns,
            last_ns: first.at_ns,
            total_bytes: first.bytes,
            intervals_ns: Sample::default(),
            sizes: Sample::default(),
        };
        topic.sizes.add(first.bytes);
        topic
    }

    fn see(&mut self, message: Message<'_>) {
        self.count += 1;
        self.total_bytes = self.total_bytes.saturating_add(message.bytes);
        self.sizes.add(message.bytes);
        // Messages in a file may be slightly out of order.
        self.intervals_ns.add(message.at_ns.abs_diff(self.last_ns));
        self.first_ns = self.first_ns.min(message.at_ns);
        self.last_ns = message.at_ns.max(self.last_ns);
    }

    /// Returns the mean size in bytes; at least one, because an empty message also takes airtime.
    pub fn size_mean(&self) -> u64 {
        (self.total_bytes as f64 / self.count as f64).round().max(1.0) as u64
    }

    /// Returns the size in bytes that this share of the messages does not exceed.
    pub fn size_quantile(&self, share: f64) -> u64 {
        self.sizes.quantile(share)
    }

    /// Returns the timing of its messages.
    pub fn rhythm(&self) -> Rhythm {
        let span_s = (self.last_ns - self.first_ns) as f64 * 1e-9;
        if self.count < MESSAGES_MIN || span_s <= 0.0 {
            return Rhythm::Few;
        }
        let gaps = (self.count - 1) as f64;
        let irregular = Rhythm::Irregular {
            mean: Duration::from_secs_f64(span_s / gaps),
        };
        let median = self.intervals_ns.quantile(0.5);
        let (low, high) = (median / 2, median.saturating_add(median / 2));
        let even: Vec<f64> = self.intervals_ns.within(low, high).map(|ns| ns as f64 * 1e-9).collect();
        let share = even.len() as f64 / self.intervals_ns.kept.len() as f64;
        let period_s = even.iter().sum::<f64>() / even.len() as f64;
        if median == 0 || share < EVEN_SHARE_MIN || period_s * gaps < FILLED_MIN * span_s {
            return irregular;
        }
        let variance = even.iter().map(|interval| (interval - period_s).powi(2)).sum::<f64>() / even.len() as f64;
        Rhythm::Periodic {
            period: Duration::from_secs_f64(period_s),
            jitter: Duration::from_secs_f64((variance / 2.0).sqrt()),
        }
    }
}

/// A fixed number of values; each added value is kept with equal probability. The draws are the same every time.
#[derive(Debug, Default)]
struct Sample {
    kept: Vec<u64>,
    added: u64,
    state: u64,
}

impl Sample {
    fn add(&mut self, value: u64) {
        self.added += 1;
        if self.kept.len() < SAMPLES_MAX {
            self.kept.push(value);
            return;
        }
        let place = (u128::from(self.draw()) * u128::from(self.added)) >> 64;
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.kept.get_mut(place)) {
            *kept = value;
        }
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn quantile(&self, share: f64) -> u64 {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let place = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
        sorted.get(place).copied().unwrap_or(0)
    }

    fn within(&self, low: u64, high: u64) -> impl Iterator<Item = u64> + '_ {
        self.kept
            .iter()
            .copied()
            .filter(move |value| (low..=high).contains(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(times_ms: impl IntoIterator<Item = f64>) -> Topic {
        let mut topics = Topics::default();
        for at_ms in times_ms {
            topics.see(Message {
                topic: "t",
                schema: "",
                at_ns: (at_ms * 1e6) as u64,
                bytes: 100,
            });
        }
        topics.by_name.remove("t").unwrap()
    }

    fn periodic(topic: &Topic) -> (f64, f64) {
        match topic.rhythm() {
            Rhythm::Periodic { period, jitter } => (period.as_millis_f64(), jitter.as_millis_f64()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_period_is_found_under_jitter_pauses_and_losses() {
        let mut draws = Sample::default();
        // A sum of twelve uniform draws is nearly normal, with standard deviation one.
        let mut normal = || (0..12).map(|_| draws.draw() as f64 / 2f64.powi(64)).sum::<f64>() - 6.0;
        let times: Vec<f64> = (0..3000)
            .filter(|tick| tick % 10 != 3 && !(1000..1500).contains(tick))
            .map(|tick| 100.0 + f64::from(tick) * 33.0 + normal())
            .collect();
        let (period, jitter) = periodic(&topic(times));
        assert!((period - 33.0).abs() < 0.1, "{period}");
        assert!((jitter - 1.0).abs() < 0.1, "{jitter}");
    }

    #[test]
    fn a_timer_between_two_ticks_keeps_its_rate() {
        let times = (0..1000).map(|tick| f64::from(tick / 3) * 100.0 + [0.0, 32.0, 64.0][tick as usize % 3]);
        let (period, _) = periodic(&topic(times));
        assert!((period - 33.333).abs() < 0.05, "{period}");
    }

    #[test]
    fn bursts_and_events_are_irregular() {
        // Ten in ten milliseconds, then nothing for a second: most intervals are similar.
        let bursts = (0..500).map(|n| f64::from(n / 10) * 1000.0 + f64::from(n % 10));
        assert!(matches!(topic(bursts).rhythm(), Rhythm::Irregular { mean } if mean > Duration::from_millis(50)));
        let mut draws = Sample::default();
        let mut at = 0.0;
        let events = (0..2000).map(|_| {
            at -= 20.0 * ((draws.draw() as f64 + 1.0) / 2f64.powi(64)).ln();
            at
        });
        assert!(matches!(topic(events).rhythm(), Rhythm::Irregular { .. }));
    }

    #[test]
    fn few_messages_and_those_of_one_instant_have_no_rhythm() {
        assert_eq!(topic([1.0, 2.0, 3.0]).rhythm(), Rhythm::Few);
        assert_eq!(topic([5.0; 100]).rhythm(), Rhythm::Few);
    }

    #[test]
    fn memory_stays_bounded_and_quantiles_right() {
        let mut sample = Sample::default();
        for value in 0..1_000_000 {
            sample.add(value);
        }
        assert_eq!(sample.kept.len(), SAMPLES_MAX);
        let median = sample.quantile(0.5) as f64;
        assert!((median / 500_000.0 - 1.0).abs() < 0.03, "{median}");
        let p99 = sample.quantile(0.99) as f64;
        assert!((p99 / 990_000.0 - 1.0).abs() < 0.01, "{p99}");
    }
}
