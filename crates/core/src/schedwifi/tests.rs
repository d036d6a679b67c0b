//! Schedules for given flows and for random ones.

use super::*;
use proptest::prelude::*;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

fn flow(id: u32, period: u64, phase: u64, length: u64) -> ScheduledFlow {
    ScheduledFlow {
        flow: FlowId(id),
        period: us(period),
        phase: us(phase),
        length: us(length),
    }
}

#[test]
fn equation_four_is_met() {
    // 12 KiB at 200 Mbit/s: 50 us + (491.52 us + 32 us + 30 us) * 8.
    let window = st_window(12 * 1024, 200e6, us(16), us(30), 7);
    assert_eq!(window.as_nanos(), 50_000 + (491_520 + 62_000) * 8);
    assert_eq!(st_window(1, 0.0, us(16), us(30), 7), Duration::MAX);
}

#[test]
fn windows_are_laid_one_after_another() {
    let s = Schedule::lay(
        &[flow(1, 100, 10, 20), flow(2, 100, 10, 20), flow(3, 100, 80, 10)],
        us(0),
        at(1_000),
    )
    .unwrap();
    let starts: Vec<_> = s.slots().iter().map(|slot| slot.start.as_nanos() / 1_000).collect();
    assert_eq!(starts, [10, 30, 80]);
    let window = |now| s.window_at_or_after(at(now)).unwrap();
    assert_eq!(
        window(0),
        Window {
            start: at(1_010),
            end: at(1_050)
        }
    );
    assert_eq!(
        window(1_049),
        Window {
            start: at(1_010),
            end: at(1_050)
        }
    );
    assert_eq!(
        window(1_050),
        Window {
            start: at(1_080),
            end: at(1_090)
        }
    );
    assert_eq!(
        window(1_095),
        Window {
            start: at(1_110),
            end: at(1_150)
        }
    );
    assert!((s.share() - 0.5).abs() < 1e-9);
}

#[test]
fn skew_widens_both_sides_and_may_wrap() {
    let s = Schedule::lay(&[flow(1, 100, 0, 20)], us(5), at(0)).unwrap();
    assert_eq!(
        s.slots(),
        [Slot {
            flow: FlowId(1),
            start: us(95),
            length: us(30)
        }]
    );
    assert_eq!(
        s.window_at_or_after(at(110)),
        Some(Window {
            start: at(95),
            end: at(125)
        })
    );
    assert_eq!(
        s.window_at_or_after(at(125)),
        Some(Window {
            start: at(195),
            end: at(225)
        })
    );
}

#[test]
fn windows_pushed_past_the_end_begin_the_next_cycle() {
    let s = Schedule::lay(
        &[flow(1, 100, 80, 30), flow(2, 100, 85, 30), flow(3, 100, 5, 10)],
        us(0),
        at(0),
    )
    .unwrap();
    let slots: Vec<_> = s
        .slots()
        .iter()
        .map(|x| (x.flow.0, x.start.as_nanos() / 1_000))
        .collect();
    assert_eq!(slots, [(2, 10), (3, 40), (1, 80)]);
    assert_eq!(
        s.window_at_or_after(at(220)),
        Some(Window {
            start: at(180),
            end: at(250)
        })
    );
}

#[test]
fn too_much_is_refused_with_what_it_would_need() {
    let error = Schedule::lay(&[flow(1, 100, 0, 60), flow(2, 100, 0, 40)], us(0), at(0)).unwrap_err();
    assert_eq!(
        error,
        ScheduleError::DoesNotFit {
            needed: us(100),
            cycle: us(100)
        }
    );
    let endless = ScheduledFlow {
        length: Duration::MAX,
        ..flow(1, 100, 0, 0)
    };
    assert!(Schedule::lay(&[endless], us(1), at(0)).is_err());
    assert_eq!(
        Schedule::lay(&[flow(4, 0, 0, 1)], us(0), at(0)),
        Err(ScheduleError::NoPeriod(FlowId(4)))
    );
    let odd = [flow(1, 33_331, 0, 1), flow(2, 33_333, 0, 1), flow(3, 33_334, 0, 1)];
    assert_eq!(Schedule::lay(&odd, us(0), at(0)), Err(ScheduleError::TooManySlots));
}

#[test]
fn no_flows_reserve_nothing() {
    let s = Schedule::lay(&[], us(5), at(0)).unwrap();
    assert_eq!((s.window_at_or_after(at(7)), s.share()), (None, 0.0));
}

proptest! {
    /// Slots never overlap, also around the end of the cycle, and every flow has its share. The windows found are never
    /// over, leave no slot out, and follow each other with a gap.
    #[test]
    fn slots_never_overlap_and_every_one_is_found(
        flows in prop::collection::vec((0..4usize, 0..1_000u64, 1..12u64), 1..10),
        skew in 0..3u64,
        origin in 0..5_000u64,
    ) {
        let flows: Vec<_> = flows.into_iter().enumerate()
            .map(|(i, (period, phase, length))| flow(i as u32, [50, 100, 200, 300][period], phase, length))
            .collect();
        let Ok(s) = Schedule::lay(&flows, us(skew), at(origin)) else { return Ok(()) };
        let cycle = s.cycle();
        for (i, slot) in s.slots().iter().enumerate() {
            let next = s.slots().get(i + 1).map_or(cycle + s.slots()[0].start, |n| n.start);
            prop_assert!(slot.start < cycle && slot.start + slot.length <= next, "{:?}", s.slots());
        }
        for f in &flows {
            let count = s.slots().iter().filter(|slot| slot.flow == f.flow).count() as u64;
            prop_assert_eq!(count, cycle.as_nanos() / f.period.as_nanos());
        }
        let begin = at(origin) + cycle;
        for slot in s.slots() {
            for inside in [begin + slot.start, begin + slot.start + slot.length - Duration::from_nanos(1)] {
                let w = s.window_at_or_after(inside).unwrap();
                prop_assert!(w.start <= inside && inside < w.end, "{slot:?} {w:?}");
            }
        }
        let mut now = begin;
        while now < begin + cycle * 2 {
            let w = s.window_at_or_after(now).unwrap();
            prop_assert!(w.end > now);
            let after = s.window_at_or_after(w.end).unwrap();
            prop_assert!(after.start > w.end);
            now = w.end;
        }
    }
}
