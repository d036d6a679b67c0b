use super::*;
use proptest::prelude::*;

fn tag(ns: u64, microstep: u32) -> Tag {
    Tag::at(Duration::from_nanos(ns), microstep)
}

fn after(ns: u64) -> Delay {
    Delay::of_connection(Duration::from_nanos(ns))
}

#[test]
fn rule_13_no_arithmetic_leaves_the_infinities() {
    for infinite in [Tag::NEVER, Tag::FOREVER] {
        for delay in [Delay::NONE, Delay::MICROSTEP, after(5), after(u64::MAX)] {
            assert_eq!(infinite + delay, infinite);
        }
        assert_eq!((infinite.next(), infinite.before()), (infinite, infinite));
        assert_eq!(infinite.time(), None);
    }
    assert!(Tag::NEVER < Tag::START && tag(u64::MAX, u32::MAX) < Tag::FOREVER);
}

#[test]
fn past_the_end_of_time_lies_forever() {
    assert_eq!(tag(10, 0) + after(u64::MAX), Tag::FOREVER);
    assert_eq!(tag(u64::MAX, u32::MAX).next(), Tag::FOREVER);
    assert_eq!(tag(5, u32::MAX).next(), tag(6, 0));
    assert_eq!(after(u64::MAX).then(after(1)), after(u64::MAX).then(after(2)));
}

#[test]
fn a_connection_without_a_delay_keeps_the_tag_and_an_action_does_not() {
    assert_eq!(tag(7, 3) + after(0), tag(7, 3));
    assert_eq!(tag(7, 3) + Delay::of_action(Duration::ZERO), tag(7, 4));
    assert_eq!(tag(7, 3) + after(2), tag(9, 0));
    assert_eq!(tag(7, 3) + Delay::of_action(Duration::from_nanos(2)), tag(9, 0));
}

#[test]
fn rule_3_adding_delays_does_not_commute() {
    let (step, time) = (Delay::MICROSTEP, after(5));
    assert_eq!(step.then(time), time);
    assert_ne!(time.then(step), time);
    assert!(time < time.then(step));
}

#[test]
fn the_first_tag_has_none_before_it() {
    assert_eq!(Tag::START.before(), Tag::NEVER);
    assert_eq!(tag(5, 0).before(), tag(4, u32::MAX));
    assert_eq!(tag(5, 2).before(), tag(5, 1));
}

#[test]
fn tags_read_as_times() {
    assert_eq!(tag(5_000_000, 0).to_string(), "5ms");
    assert_eq!(tag(5_000_000, 2).to_string(), "5ms+2");
    assert_eq!(Tag::FOREVER.to_string(), "forever");
}

fn delays() -> impl Strategy<Value = Delay> {
    (0..4u64, 0..4u32).prop_map(|(ns, microstep)| Delay {
        time: Duration::from_nanos(ns),
        microstep,
    })
}

fn tags() -> impl Strategy<Value = Tag> {
    prop_oneof![
        1 => Just(Tag::NEVER),
        1 => Just(Tag::FOREVER),
        8 => (0..9u64, 0..9u32).prop_map(|(ns, microstep)| tag(ns, microstep)),
        1 => (u64::MAX - 4..=u64::MAX, 0..9u32).prop_map(|(ns, microstep)| tag(ns, microstep)),
    ]
}

proptest! {
    /// The least delay of a path can be found edge by edge and then added to a tag in one step.
    #[test]
    fn a_path_may_be_added_at_once_or_edge_by_edge(tag in tags(), a in delays(), b in delays(), c in delays()) {
        prop_assert_eq!((tag + a) + b, tag + a.then(b));
        prop_assert_eq!(a.then(b).then(c), a.then(b.then(c)));
    }

    #[test]
    fn a_longer_delay_never_leads_to_an_earlier_tag(tag in tags(), a in delays(), b in delays(), c in delays()) {
        let (short, long) = (a.min(b), a.max(b));
        prop_assert!(tag + short <= tag + long);
        prop_assert!(short.then(c) <= long.then(c));
        prop_assert!(a <= a.then(c) && tag <= tag + a);
    }

    #[test]
    fn the_first_tag_past_another_is_past_it_and_none_before_is(reached in tags(), delay in delays()) {
        let first = delay.first_past(reached);
        prop_assert!(first + delay > reached || reached == Tag::FOREVER);
        prop_assert!(first.before() + delay <= reached);
    }

    #[test]
    fn next_and_before_are_inverse(tag in tags()) {
        prop_assert!(tag.before() <= tag && tag <= tag.next());
        prop_assert_eq!(tag.next().before(), tag);
        if tag != Tag::START {
            prop_assert_eq!(tag.before().next(), tag);
        }
    }
}
