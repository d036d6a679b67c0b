//! How many copies are enough: Lee, eq. 10 to 17. The sender decides by it, and `coorp plan --paths` answers by it.
//!
//! A message fails if all of its copies do, as if paths failed independently (eq. 11 and 12). One that has failed is
//! sent again, so the number of tries is geometric, with the mean of eq. 14. Eq. 16 bounds the share of failures so that the
//! mean delay is within the target. For 68, 95 or 99 % of the messages, section IV-C takes one, two or three deviations
//! above the mean in its place: [`sigmas_of`].

/// Lee's numbers of deviations, by the share of messages that they stand for, as if delays were normal.
const SIGMAS: [(f64, f64); 3] = [(0.68, 1.0), (0.95, 2.0), (0.99, 3.0)];

/// Returns the number of deviations above the mean within which Lee expects this share of messages, if it names one.
pub fn sigmas_of(share: f64) -> Option<f64> {
    let found = SIGMAS.iter().find(|(of, _)| (of - share).abs() < 1e-9);
    found.map(|(_, sigmas)| *sigmas)
}

/// Returns the highest share of failures at which the delay's mean and `sigmas` deviations above it are within the target.
/// `delay` is that of one try, as a share of the target. Without deviations, this is eq. 16. Negative if no try fits.
pub fn failures_allowed(delay: f64, sigmas: f64) -> f64 {
    if delay > 1.0 {
        return 1.0 - delay;
    }
    // (1 + sigmas sqrt(f)) / (1 - f) <= 1 / delay, solved for f.
    let linear = sigmas * delay;
    let root = ((linear * linear + 4.0 * (1.0 - delay)).sqrt() - linear) / 2.0;
    root * root
}

/// Returns the share of messages that fail on a path: all tries within the target are lost. `delay` is as above.
pub fn failures_of_tries(loss: f64, delay: f64) -> f64 {
    let tries = if delay > 0.0 {
        (1.0 / delay).floor()
    } else {
        f64::INFINITY
    };
    if tries < 1.0 {
        1.0
    } else {
        loss.powf(tries)
    }
}

/// Returns the fewest paths, the first ones first, that fail together at most as often as is allowed for so many (eq. 11).
/// `None` if all of them are not enough.
pub fn fewest(failures: impl IntoIterator<Item = f64>, allowed: impl Fn(usize) -> f64) -> Option<usize> {
    let mut together = 1.0;
    for (at, failures) in failures.into_iter().enumerate() {
        together *= failures;
        if together <= allowed(at + 1) {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interfaces(loss: f64, share: f64, tries: f64) -> Option<usize> {
        let allowed = failures_allowed(1.0 / tries, sigmas_of(share).unwrap());
        fewest(std::iter::repeat_n(loss, 64), |_| allowed)
    }

    /// Lee publishes no target in tries; one of 2.44 agrees best with its shares for one interface.
    #[test]
    fn lees_own_statements_hold_at_the_target_that_fits_them() {
        let share_at = |loss: f64| {
            let mut shares = [0.68, 0.95, 0.99].into_iter();
            shares.rfind(|share| interfaces(loss, *share, 2.45) == Some(1))
        };
        assert_eq!(share_at(0.2), Some(0.95), "'under 0.2, about 95 %'");
        assert_eq!(share_at(0.35), Some(0.68), "'up to 0.35, only about 68 %'");
        assert_eq!(
            interfaces(0.4, 0.95, 2.45),
            Some(2),
            "'0.4, most of the packets' with two"
        );
        assert_eq!(interfaces(0.4, 0.99, 2.45), Some(3));
        assert_eq!(interfaces(0.4, 0.95, 0.9), None, "not even one try fits");
        assert_eq!(sigmas_of(0.9), None);
    }

    #[test]
    fn without_deviations_it_is_equation_16() {
        for delay in [0.0, 0.1, 0.5, 0.99, 1.0, 1.5] {
            assert!((failures_allowed(delay, 0.0) - (1.0 - delay)).abs() < 1e-12);
        }
        assert!(failures_allowed(1.01, 3.0) < 0.0);
    }

    #[test]
    fn a_path_fails_if_all_tries_within_the_target_do() {
        assert_eq!(failures_of_tries(0.5, 0.3), 0.125);
        assert_eq!(failures_of_tries(0.5, 1.0), 0.5);
        assert_eq!(failures_of_tries(0.0, 1.1), 1.0, "no try fits");
        assert_eq!(failures_of_tries(0.5, 0.0), 0.0);
    }

    proptest! {
        /// At the allowed share the delay meets the target, and no other share below is refused.
        #[test]
        fn the_allowed_share_meets_the_target(delay in 0.01f64..0.99, sigmas in 0.0f64..4.0) {
            let allowed = failures_allowed(delay, sigmas);
            prop_assert!((0.0..=1.0).contains(&allowed));
            let tries = |failures: f64| (1.0 + sigmas * failures.sqrt()) / (1.0 - failures);
            prop_assert!((tries(allowed) * delay - 1.0).abs() < 1e-6);
            prop_assert!(tries(allowed * 0.9) * delay < 1.0);
        }
    }
}
