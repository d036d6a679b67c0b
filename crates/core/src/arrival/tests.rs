//! Flows with jitter, losses, duplicates, changes and steps.

use super::*;
use proptest::prelude::*;

const PERIOD_NS: u64 = 33_333_333;
const MS: u64 = 1_000_000;

/// Approximately normal numbers, reproducible from a seed.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the sum of twelve uniform numbers, less six, which has a deviation of one.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn message(&mut self, ideal_ns: u64, sigma_ns: f64) -> Instant {
        Instant::from_nanos(ideal_ns.saturating_add_signed((self.normal() * sigma_ns) as i64))
    }
}

fn model(deviation: Deviation) -> ArrivalModel {
    ArrivalModel::new(ArrivalConfig {
        deviation,
        ..ArrivalConfig::default()
    })
}

#[test]
fn a_model_that_was_told_is_compared_across_periods() {
    let told = TimeModel {
        period: Duration::from_nanos(30 * MS),
        phase: Instant::from_nanos(100 * MS),
        sigma: Duration::from_nanos(MS),
        early: Duration::from_nanos(2 * MS),
        late: Duration::from_nanos(2 * MS),
    };
    let tolerance = Duration::from_micros(100);
    let at = |phase_ns| TimeModel {
        phase: Instant::from_nanos(phase_ns),
        ..told
    };
    assert!(at(400 * MS + 90_000).agrees_with(&told, tolerance));
    assert!(at(400 * MS - 90_000).agrees_with(&told, tolerance));
    assert!(!at(400 * MS + 110_000).agrees_with(&told, tolerance));
    assert!(!at(70 * MS).agrees_with(&told, tolerance), "it went back");
    let wider = TimeModel {
        late: Duration::from_nanos(3 * MS),
        ..told
    };
    assert!(!wider.agrees_with(&told, tolerance));
    // A message at 415 ms belongs to the one expected at 430 ms; a message at 414 ms belongs to the one expected at 400
    // ms.
    assert_eq!(
        told.end_of(Instant::from_nanos(415 * MS)),
        Instant::from_nanos(432 * MS)
    );
    assert_eq!(
        told.end_of(Instant::from_nanos(414 * MS)),
        Instant::from_nanos(402 * MS)
    );
    assert_eq!(told.end_of(Instant::from_nanos(60 * MS)), Instant::from_nanos(60 * MS));
}

#[test]
fn messages_that_were_put_off_widen_nothing() {
    let mut widths = [true, false].map(|told| {
        let (mut noise, mut model) = (Noise(7), model(Deviation::Quantile));
        for k in 1..=200 {
            let late_ns = if k % 8 == 0 { 3 * MS } else { 0 };
            let at = noise.message(k * PERIOD_NS + late_ns, 0.1 * MS as f64);
            if told && late_ns > 0 {
                model.on_put_off(at);
            } else {
                model.on_sample(at);
            }
            let next = model.predict(at);
            assert!(next.is_none_or(|next| next.expected > at), "that one came, at {k}");
        }
        let next = model.time_model().unwrap();
        next.early + next.late
    });
    widths.sort_unstable();
    assert!(widths[0] < Duration::from_nanos(MS), "{widths:?}");
    assert!(widths[1] > Duration::from_nanos(5 * MS / 2), "{widths:?}");
}

/// Feeds messages and returns the share that arrived within the interval predicted just after the previous message.
fn coverage(model: &mut ArrivalModel, times: impl Iterator<Item = Instant>) -> f64 {
    let (mut within, mut all, mut last) = (0, 0, Instant::ZERO);
    for at in times {
        all += 1;
        if let Some(arrival) = model.predict(last) {
            within += usize::from(arrival.start() <= at && at <= arrival.end());
        }
        model.on_sample(at);
        last = at;
    }
    within as f64 / all as f64
}

#[test]
fn period_phase_and_deviation_are_learnt() {
    let mut noise = Noise(7);
    let mut m = model(Deviation::Normal);
    for k in 0..400 {
        m.on_sample(noise.message(50 * MS + k * PERIOD_NS, 500e3));
    }
    let learnt = m.time_model().unwrap();
    assert!(learnt.period.as_nanos().abs_diff(PERIOD_NS) < 5_000, "{learnt:?}");
    assert!(
        learnt.phase.as_nanos().abs_diff(50 * MS + 400 * PERIOD_NS) < 300_000,
        "{learnt:?}"
    );
    assert!((400e3..600e3).contains(&(learnt.sigma.as_nanos() as f64)), "{learnt:?}");
    assert!(
        (1.9..2.1).contains(&(learnt.late.as_secs_f64() / learnt.sigma.as_secs_f64())),
        "{learnt:?}"
    );
}

#[test]
fn the_predicted_interval_is_met_at_the_accuracy() {
    for deviation in [Deviation::Normal, Deviation::Quantile] {
        let mut noise = Noise(3);
        let times = (1..6_000).map(|k| noise.message(k * PERIOD_NS, 700e3));
        let met = coverage(&mut model(deviation), times);
        assert!((0.93..=0.975).contains(&met), "{deviation:?}: {met}");
    }
}

#[test]
fn quantiles_see_that_a_flow_is_late_more_than_early() {
    let mut noise = Noise(11);
    let mut m = model(Deviation::Quantile);
    for k in 1..500u64 {
        // Exponential lateness with a mean of 1 ms.
        let late = -(1.0 - noise.uniform()).ln() * 1e6;
        m.on_sample(Instant::from_nanos(k * PERIOD_NS + late as u64));
    }
    let next = m.predict(Instant::ZERO).unwrap();
    assert!(next.late > next.early * 2, "{next:?}");
    // No message is early by more than the mean lateness; the line's own error adds to it.
    assert!(next.early < Duration::from_micros(1_400), "{next:?}");
}

#[test]
fn lost_and_doubled_messages_do_not_disturb() {
    let mut noise = Noise(5);
    let mut m = model(Deviation::Normal);
    for k in 1..1_000u64 {
        let at = noise.message(k * PERIOD_NS, 300e3);
        if k > 6 && noise.uniform() < 0.3 {
            continue;
        }
        m.on_sample(at);
        if noise.uniform() < 0.3 {
            m.on_sample(at + Duration::from_micros(200));
        }
    }
    let learnt = m.time_model().unwrap();
    assert!(learnt.period.as_nanos().abs_diff(PERIOD_NS) < 5_000, "{learnt:?}");
    assert!(learnt.sigma < Duration::from_micros(400), "{learnt:?}");
}

#[test]
fn a_changed_period_is_learnt_within_a_dozen_messages() {
    for new_ns in [
        30 * MS,
        34 * MS,
        20 * MS,
        10 * MS,
        50 * MS,
        100 * MS,
        2 * PERIOD_NS,
        PERIOD_NS / 3,
    ] {
        let mut noise = Noise(9);
        let mut m = model(Deviation::Normal);
        let mut at = 0;
        for _ in 0..200 {
            at += PERIOD_NS;
            m.on_sample(noise.message(at, 200e3));
        }
        for _ in 0..13 {
            at += new_ns;
            m.on_sample(noise.message(at, 200e3));
        }
        let learnt = m
            .time_model()
            .unwrap_or_else(|| panic!("nothing learnt of {new_ns} ns"));
        assert!(
            learnt.period.as_nanos().abs_diff(new_ns) < 300_000,
            "{new_ns}: {learnt:?}"
        );
        assert!(
            learnt.phase.as_nanos().abs_diff(at + new_ns) < 2 * MS,
            "{new_ns}: {learnt:?}"
        );
    }
}

#[test]
fn a_period_that_drifts_within_the_deviation_is_followed() {
    let mut noise = Noise(21);
    let mut m = model(Deviation::Normal);
    let mut at = 0;
    for k in 0..240 {
        // 0.1 ms more each time, a third of the deviation, so no single message stands out at first.
        at += PERIOD_NS + if k < 200 { 0 } else { MS / 10 };
        m.on_sample(noise.message(at, 300e3));
    }
    let next = m.predict(Instant::ZERO).unwrap();
    let due = at + PERIOD_NS + MS / 10;
    assert!(next.expected.as_nanos().abs_diff(due) < 400_000, "{next:?}, due {due}");
    assert!(m.time_model().unwrap().sigma < Duration::from_micros(500));
}

#[test]
fn a_clock_step_is_recovered_from() {
    for step_ns in [
        -3_600_000 * MS as i64,
        -40 * MS as i64,
        -7 * MS as i64,
        9 * MS as i64,
        15 * MS as i64,
        3_600_000 * MS as i64,
    ] {
        let mut noise = Noise(13);
        let mut m = model(Deviation::Normal);
        let start = 7_200_000 * MS;
        let ideal = |k: u64| start + k * PERIOD_NS;
        for k in 0..200 {
            m.on_sample(noise.message(ideal(k), 200e3));
        }
        for k in 200..212 {
            m.on_sample(noise.message(ideal(k).saturating_add_signed(step_ns), 200e3));
        }
        let next = m
            .predict(Instant::ZERO)
            .unwrap_or_else(|| panic!("no prediction after {step_ns} ns"));
        let due = ideal(212).saturating_add_signed(step_ns);
        assert!(
            next.expected.as_nanos().abs_diff(due) < 2 * MS,
            "{step_ns}: {next:?}, due {due}"
        );
    }
}

fn declared(deviation: Deviation, period_ns: u64) -> ArrivalModel {
    ArrivalModel::new(ArrivalConfig {
        deviation,
        period: Some(Duration::from_nanos(period_ns)),
        ..ArrivalConfig::default()
    })
}

#[test]
fn a_flow_that_jitters_widely_is_still_predicted_for_half_of_the_time() {
    for deviation in [Deviation::Normal, Deviation::Quantile] {
        let mut noise = Noise(23);
        let mut m = declared(deviation, 33 * MS);
        let mut times: Vec<Instant> = (5..6_000).map(|k| noise.message(k * 33 * MS, 8e6)).collect();
        times.sort_unstable();
        let (mut predicted, mut met, mut last) = (0, 0, Instant::ZERO);
        for at in &times {
            if let Some(arrival) = m.predict(last) {
                predicted += 1;
                met += usize::from(arrival.start() <= *at && *at <= arrival.end());
            }
            m.on_sample(*at);
            last = *at;
        }
        assert!(predicted * 3 > times.len() * 2, "{deviation:?}: {predicted}");
        // The middle half of a period holds 70 % of the messages, and some overtake others.
        assert!(met * 100 > predicted * 58, "{deviation:?}: {met} of {predicted}");
    }
}

#[test]
fn messages_at_any_time_get_no_windows() {
    let mut noise = Noise(29);
    let mut m = declared(Deviation::Quantile, 33 * MS);
    let (mut predicted, mut at) = (0, 0.0);
    for _ in 0..2_000 {
        at -= (1.0 - noise.uniform()).ln() * 33e6; // A Poisson flow.
        m.on_sample(Instant::from_nanos(at as u64));
        predicted += usize::from(m.predict(Instant::from_nanos(at as u64)).is_some());
    }
    assert!(predicted < 1_000, "{predicted}");
}

#[test]
fn an_irregular_flow_gets_no_prediction_or_a_narrow_one() {
    let mut noise = Noise(17);
    let mut m = model(Deviation::Normal);
    let mut at = 0.0;
    for _ in 0..500 {
        at -= (1.0 - noise.uniform()).ln() * 33e6; // A Poisson flow.
        m.on_sample(Instant::from_nanos(at as u64));
        if let Some(arrival) = m.predict(Instant::from_nanos(at as u64)) {
            let period = m.time_model().unwrap().period;
            assert!(arrival.early + arrival.late < period);
        }
    }
}

#[test]
fn a_silent_flow_is_not_predicted_until_it_speaks_again() {
    let mut m = model(Deviation::Normal);
    for k in 0..50 {
        m.on_sample(Instant::from_nanos(k * PERIOD_NS));
    }
    assert!(m.predict(Instant::from_nanos(60 * PERIOD_NS)).is_some());
    assert!(m.predict(Instant::from_nanos(70 * PERIOD_NS)).is_none());
    m.on_sample(Instant::from_nanos(100 * PERIOD_NS));
    assert!(m.predict(Instant::from_nanos(100 * PERIOD_NS)).is_some());
}

#[test]
fn a_declared_period_bridges_losses_from_the_start() {
    let config = ArrivalConfig {
        period: Some(Duration::from_nanos(PERIOD_NS)),
        ..ArrivalConfig::default()
    };
    let mut m = ArrivalModel::new(config);
    for k in [0, 3, 5, 6, 10] {
        m.on_sample(Instant::from_nanos(k * PERIOD_NS));
    }
    assert_eq!(m.time_model().unwrap().period, Duration::from_nanos(PERIOD_NS));
}

#[test]
fn predictions_come_after_what_was_seen() {
    let mut m = model(Deviation::Normal);
    for k in 1..=50 {
        m.on_sample(Instant::from_nanos(k * PERIOD_NS));
    }
    let next = m.predict(Instant::ZERO).unwrap();
    assert!(next.expected.as_nanos().abs_diff(51 * PERIOD_NS) < 10_000, "{next:?}");
    let later = m.predict(Instant::from_nanos(55 * PERIOD_NS + MS)).unwrap();
    assert!(later.expected.as_nanos().abs_diff(56 * PERIOD_NS) < 10_000, "{later:?}");
}

#[test]
fn a_model_told_to_others_predicts_alike() {
    let model = TimeModel {
        period: Duration::from_millis(10),
        phase: Instant::from_nanos(100 * MS),
        sigma: Duration::from_micros(500),
        early: Duration::from_millis(1),
        late: Duration::from_millis(1),
    };
    let expected = |after_ms| {
        model
            .next_after(Instant::from_nanos(after_ms * MS))
            .unwrap()
            .expected
            .as_nanos()
            / MS
    };
    assert_eq!(
        [expected(0), expected(100), expected(101), expected(112), expected(995)],
        [100, 100, 110, 120, 1_000]
    );
    assert_eq!(
        TimeModel {
            period: Duration::ZERO,
            ..model
        }
        .next_after(Instant::ZERO),
        None
    );
}

proptest! {
    /// Any times in any order cause no panic, and any predicted interval ends after the requested time.
    #[test]
    fn any_samples_are_survived(
        steps in prop::collection::vec((prop_oneof![0..100u64, 30_000_000..36_000_000u64, any::<u64>()], any::<bool>(), 0..20u8), 1..300),
        quantile in any::<bool>(),
        period in prop::option::of(any::<u64>()),
        samples_max in 0..200usize,
    ) {
        let mut m = ArrivalModel::new(ArrivalConfig {
            deviation: if quantile { Deviation::Quantile } else { Deviation::Normal },
            period: period.map(Duration::from_nanos),
            samples_max,
            ..ArrivalConfig::default()
        });
        let mut now = Instant::from_nanos(MS);
        for (step, again, back) in steps {
            now = if back == 0 { now - Duration::from_nanos(step) } else { now + Duration::from_nanos(step) };
            m.on_sample(now);
            if again {
                m.on_sample(now);
            }
            if let Some(arrival) = m.predict(now) {
                prop_assert!(arrival.start() <= arrival.end());
                // Far from the origin, a float is accurate to a microsecond.
                prop_assert!(arrival.end() + Duration::from_micros(1) >= now, "{arrival:?} {now:?}");
            }
        }
    }

    /// A model that has learnt a wrong period, such as a fraction of the flow's period, discovers the mistake.
    #[test]
    fn a_wrong_multiple_of_the_period_is_given_up(
        (part, of) in (1..7u64, 1..7u64),
        wrong in 4..40u64,
        jitter in 0.0..0.04f64,
        seed in 1..u64::MAX,
    ) {
        let period = 33 * MS;
        let (mut noise, mut m, mut at) = (Noise(seed), model(Deviation::Quantile), 100 * MS);
        for _ in 0..wrong {
            at += period * part / of;
            m.on_sample(noise.message(at, jitter * period as f64));
        }
        for _ in 0..60 {
            at += period;
            m.on_sample(noise.message(at, jitter * period as f64));
        }
        let learnt = m.period().map(Duration::as_nanos);
        prop_assert!(learnt.is_some_and(|learnt| learnt.abs_diff(period) < period / 20), "{learnt:?}");
    }

    /// However much a flow with a declared period jitters, its interval is no wider than half the period. At deviations
    /// up to a fifth there is an interval most of the time, and it catches more than chance would.
    #[test]
    fn windows_degrade_gracefully(
        share in 0.0..0.5f64,
        period in 2_000_000..200_000_000u64,
        quantile: bool,
        seed in 1..u64::MAX,
    ) {
        let mut m = declared(if quantile { Deviation::Quantile } else { Deviation::Normal }, period);
        let mut noise = Noise(seed);
        let mut times: Vec<Instant> = (5..800).map(|k| noise.message(k * period, share * period as f64)).collect();
        times.sort_unstable();
        let (mut hits, mut all, mut last) = (0, 0, Instant::ZERO);
        for at in times {
            if let Some(arrival) = m.predict(last) {
                let most = m.period().unwrap_or_default() / 2 + Duration::from_nanos(3);
                prop_assert!(arrival.early + arrival.late <= most, "{arrival:?}");
                hits += usize::from(arrival.start() <= at && at <= arrival.end());
            }
            all += 1;
            m.on_sample(at);
            last = at;
        }
        prop_assert!(share > 0.2 || hits * 2 > all, "{hits} of {all}");
    }

    /// After any history, a steady flow is predicted well again.
    #[test]
    fn any_history_is_recovered_from(
        history in prop::collection::vec(0..80_000_000u64, 0..200),
        period in 2_000_000..200_000_000u64,
        seed in 1..u64::MAX,
    ) {
        let mut m = model(Deviation::Quantile);
        let mut at = 0;
        for gap in history {
            at += gap;
            m.on_sample(Instant::from_nanos(at));
        }
        let mut noise = Noise(seed);
        let sigma = period as f64 / 100.0;
        for _ in 0..300 {
            at += period;
            m.on_sample(noise.message(at, sigma));
        }
        let next = m.predict(Instant::ZERO);
        prop_assert!(next.is_some_and(|n| n.expected.as_nanos().abs_diff(at + period) < period / 20), "{next:?} {}", at + period);
    }
}

#[test]
fn what_nobody_declared_periodic_is_predicted_only_while_it_is_regular() {
    // Commands after inferences whose duration varies by 3 ms: arrival times that resemble a period of 33 ms.
    let widths = |period: Option<Duration>, off_us: u64| {
        let mut model = ArrivalModel::new(ArrivalConfig {
            period,
            ..ArrivalConfig::default()
        });
        let mut now = Instant::ZERO;
        for k in 1..=100 {
            now = Instant::from_nanos(k * 33_000_000 + (k * 7 % 5) * off_us * 500);
            model.on_sample(now);
        }
        model.predict(now)
    };
    let declared = Some(Duration::from_millis(33));
    assert!(widths(declared, 3_000).is_some());
    assert!(widths(None, 3_000).is_none());
    assert!(widths(None, 500).is_some());
}
