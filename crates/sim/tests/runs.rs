//! Whole runs are reproducible, have plausible numbers, and break no rule, whatever the team and the faults.
#![allow(missing_docs)]

use std::path::Path;

use coorp_core::policy::{Policy, Sight};
use coorp_core::Duration;
use coorp_sim::results::PolicyResult;
use coorp_sim::{Error, Options};
use coorp_team::Team;
use proptest::prelude::*;

fn team(text: &str) -> Team {
    coorp_team::parse(text, "test.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn example(name: &str) -> Team {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    coorp_team::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn options(seconds: u64, seed: u64) -> Options {
    Options {
        duration: Duration::from_secs(seconds),
        seed,
        ..Options::default()
    }
}

fn run(team: &Team, policy: &str, options: &Options) -> PolicyResult {
    let policy = Policy::named(policy).expect("a preset");
    let mut result = coorp_sim::run(team, &policy, options, &|_| {})
        .expect("an unbroken run")
        .result;
    result.wall_s = 0.0;
    result
}

fn json(result: &PolicyResult) -> String {
    serde_json::to_string(result).expect("serialisable")
}

#[test]
fn the_same_seed_gives_the_same_json_and_another_seed_another() {
    let team = example("navigation.toml");
    for policy in Policy::NAMES {
        let first = json(&run(&team, policy, &options(15, 7)));
        assert_eq!(first, json(&run(&team, policy, &options(15, 7))), "{policy}");
        assert_ne!(first, json(&run(&team, policy, &options(15, 8))), "{policy}");
    }
}

#[test]
fn what_robots_send_to_one_another_takes_the_channel_twice_unless_directly() {
    let flow = |air: &str| {
        let text = format!(
            "robot = [{{ name = 'base', leader = true }}, {{ name = 'a' }}, {{ name = 'b' }}]\n[air]\n{air}\n\
             [[flow]]\nname = 'bulk'\nfrom = 'a'\nto = 'b'\nsaturated = true\n\
             [[flow]]\nname = 'messages'\nfrom = 'b'\nto = 'a'\nperiod = '5ms'\nsize = 4000\nac = 'AC_VO'\n"
        );
        let result = run(&team(&text), "edca", &options(3, 1));
        let (bulk, messages) = (&result.flows[0], &result.flows[1]);
        assert!(messages.delivered + 10 >= messages.sent, "{messages:?}");
        (bulk.mbps, messages.latency_ms.expect("messages arrive").p50)
    };
    let (direct, through, at_an_end) = (flow("direct = true"), flow(""), flow("access_point = 'b'"));
    assert!(through.0 < 0.65 * direct.0, "{through:?} {direct:?}");
    assert!(through.1 > 1.3 * direct.1, "{through:?} {direct:?}");
    assert_eq!(at_an_end, direct);
    // A packet that the access point cannot relay is lost there.
    let lossy = "robot = [{ name = 'base', leader = true }, { name = 'a' }, { name = 'b' }]\n[air]\n\
                 [[air.link]]\nfrom = 'base'\nto = 'b'\nloss = 0.9\n\
                 [[flow]]\nname = 'm'\nfrom = 'a'\nto = 'b'\nperiod = '20ms'\nsize = 4000\nac = 'AC_VO'\n";
    let result = run(&team(lossy), "edca", &options(3, 1));
    assert!(
        result.flows[0].delivered < result.flows[0].sent / 2,
        "{:?}",
        result.flows[0]
    );
}

#[test]
fn perceptions_and_commands_have_latencies_of_their_own() {
    let result = run(&example("navigation.toml"), "mpc-only", &options(5, 1));
    let [all, perceptions, commands] = [
        result.control_latency_ms,
        result.perception_latency_ms,
        result.command_latency_ms,
    ]
    .map(|latency| latency.expect("a loop has both").mean);
    // Perceptions are twelve times as long on the air, in addition to the wait for it, and equally many.
    assert!(perceptions > 1.3 * commands, "{perceptions} {commands}");
    assert!(((perceptions + commands) / 2.0 - all).abs() < 0.02 * all, "{all}");
}

/// Runs loops for ten seconds at 100 Hz, with an inference of `inference_ms`.
fn loops(inference_ms: u32, more: &str) -> PolicyResult {
    let text = format!(
        "robot = [{{ name = 'base', leader = true }}, {{ name = 'a' }}, {{ name = 'b' }}]\n[control]\nrate_hz = 100\n\
         perception = 200\ncommand = 200\ninference = '{inference_ms}ms'\ninference_spread = 0\n{more}"
    );
    run(&team(&text), "mpc-only", &options(10, 1))
}

#[test]
fn overlapping_loops_start_by_the_sensors_clock() {
    let overlap = "overlap = true\nbound = '15ms'\n";
    // Below the period nothing overlaps. A loop of 9 ms puts off the next now and then, by jitter.
    let (apart, together) = (loops(5, ""), loops(5, overlap));
    assert!(
        apart.loops > 990 && together.loops == apart.loops,
        "{apart:?} {together:?}"
    );
    // At 9.9 ms plus both transmissions, a loop lasts longer than the period. With overlap, there is still one per
    // period.
    let (apart, together) = (
        loops(9, "jitter = '0ms'\nstack_delay = '1ms'"),
        loops(9, &format!("{overlap}jitter = '0ms'\nstack_delay = '1ms'")),
    );
    assert!(apart.loops < 900, "{}", apart.loops);
    assert!(together.loops > 980, "{}", together.loops);
    assert!(together.reaction_ms.expect("loops end").p50 > 10.0 && together.violation_rate < Some(0.5));
    // If inference is slower than the period, the leader infers back to back, from the newest samples. A reaction stays
    // below the previous inference, its own, and a period.
    let slow = loops(25, overlap);
    assert!((390..=400).contains(&slow.loops), "{}", slow.loops);
    assert!(
        slow.reaction_ms.expect("loops end").p99 < 25.0 + 25.0 + 10.0,
        "{slow:?}"
    );
}

#[test]
fn uniform_jitter_has_a_limit_and_normal_jitter_has_none() {
    // A loop waits for the later of two samples, so the reaction's tail shows how far apart they are.
    let spread = |shape: &str| {
        let result = loops(
            1,
            &format!("jitter = '1ms'\nstack_delay = '0ms'\njitter_shape = '{shape}'\n"),
        );
        result.reaction_ms.expect("loops end").p999
    };
    let widest = 2.0 * 3.0_f64.sqrt() + 1.5;
    assert!(
        spread("uniform") < widest && spread("normal") > widest,
        "{} {}",
        spread("uniform"),
        spread("normal")
    );
}

#[test]
fn a_scripted_event_changes_links_for_its_time() {
    let throughput = |event: &str, start_s: u64| {
        let team = team(&format!(
            "robot = [{{ name = 'base', leader = true }}, {{ name = 'rover' }}]\n[air]\nmcs = 7\n{event}\n[[flow]]\n\
             name = 'map'\nfrom = 'rover'\nto = 'base'\nsaturated = true\nstart = '{start_s}s'\nstop = '{}s'",
            start_s + 1
        ));
        run(&team, "edca", &options(6, 1)).flows[0].mbps
    };
    let event = "[[event]]\nat = '2s'\nuntil = '4s'\nfrom = 'rover'\nmcs = 0";
    let (before, meanwhile, after) = (throughput(event, 0), throughput(event, 2), throughput(event, 5));
    let undisturbed = throughput("", 0);
    assert_eq!(before, undisturbed);
    assert!(meanwhile < undisturbed / 4.0, "{meanwhile} of {undisturbed}");
    assert!(
        (after - undisturbed).abs() < undisturbed / 20.0,
        "{after} of {undisturbed}"
    );
}

#[test]
fn every_example_runs_under_every_policy_that_fits_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut ran = 0;
    for entry in std::fs::read_dir(folder).expect("the examples").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".toml") {
            continue;
        }
        for policy in Policy::NAMES {
            let policy = Policy::named(policy).expect("a preset");
            match coorp_sim::run(&example(&name), &policy, &options(2, 1), &|_| {}) {
                Ok(run) => ran += usize::from(run.result.events > 0),
                Err(Error::Broken { rule }) => panic!("{name}, {}: {rule}", policy.name),
                Err(_) => {}
            }
        }
    }
    assert!(ran >= 40, "six examples, nine policies: only {ran} ran");
}

#[test]
fn the_timeline_changes_no_number() {
    let team = example("navigation.toml");
    let plain = run(&team, "coorp", &options(30, 1));
    let policy = Policy::named("coorp").expect("a preset");
    let recorded = Options {
        series: true,
        timeline: true,
        ..options(30, 1)
    };
    let mut run = coorp_sim::run(&team, &policy, &recorded, &|_| {}).expect("an unbroken run");
    run.result.wall_s = 0.0;
    assert_eq!(json(&run.result), json(&plain));
    assert_eq!(run.charts.throughput.len(), 30);
    let timeline = &run.charts.timeline;
    assert_eq!(timeline.robots.len(), 5);
    assert!(
        timeline
            .spans
            .iter()
            .any(|span| span.kind == coorp_sim::results::SpanKind::Bulk),
        "bulk was on the air"
    );
    assert!(timeline
        .spans
        .iter()
        .all(|span| span.start_ms <= span.end_ms && span.end_ms <= 1_001.0));
    assert!(run
        .charts
        .reaction_cdf
        .windows(2)
        .all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
}

#[test]
fn coordination_keeps_control_on_time_and_bulk_running() {
    let team = example("navigation.toml");
    let [alone, edca, coorp] = ["mpc-only", "edca", "coorp"].map(|policy| run(&team, policy, &options(60, 1)));
    let late = |result: &PolicyResult| result.violation_rate.expect("a control loop");
    assert!(late(&edca) > 0.3, "{}", late(&edca));
    assert!(
        late(&coorp) < late(&alone) + 0.02,
        "{} against {}",
        late(&coorp),
        late(&alone)
    );
    let bulk = |result: &PolicyResult| result.bulk_mbps.expect("bulk");
    assert!(
        bulk(&coorp) > 0.9 * bulk(&edca),
        "{} against {}",
        bulk(&coorp),
        bulk(&edca)
    );
    assert_eq!(alone.bulk_mbps, None);
}

#[test]
fn flows_alone_have_flows_alone() {
    let result = run(&example("flows.toml"), "edca", &options(10, 1));
    assert_eq!((result.loops, result.violation_rate, result.epochs), (0, None, 0));
    assert_eq!(result.flows.len(), 4);
    for flow in &result.flows {
        assert!(flow.delivered > 0 && flow.delivered <= flow.sent, "{flow:?}");
    }
    let shares = result.mac.airtime_share;
    assert!((shares.data + shares.control + shares.idle - 1.0).abs() < 1e-9);
}

#[test]
fn a_policy_that_leaves_nothing_says_so() {
    let only_bulk = team(
        "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n\
         [[flow]]\nname = \"log\"\nfrom = \"b\"\nto = \"a\"\nsaturated = true\n",
    );
    let policy = Policy::named("mpc-only").expect("a preset");
    let error = coorp_sim::run(&only_bulk, &policy, &options(1, 1), &|_| {}).expect_err("nothing to run");
    assert!(matches!(error, Error::NothingToRun { .. }));
    assert!(error.to_string().contains("[control]"), "{error}");
}

#[test]
fn paradigms_order_the_epochs() {
    let text = |sync: &str| {
        let spread =
            "training_spread = 0.8\nrounds = 6\nbatch_loops = 10\ntraining = \"300ms\"\nparameters = 300_000\n";
        let robots: String = (1..5).map(|i| format!("[[robot]]\nname = \"r{i}\"\n")).collect();
        format!(
            "[[robot]]\nname = \"l\"\nleader = true\n{robots}[air]\nwidth_mhz = 80\nmcs = 7\n\
             [control]\nperception = \"1KiB\"\ninference = \"5ms\"\n[learning]\n{spread}{sync}\n"
        )
    };
    let epoch_s = |sync| {
        run(&team(&text(sync)), "edca", &options(120, 3))
            .epoch_s
            .expect("epochs")
    };
    let (bsp, ssp, asp) = (
        epoch_s("sync = \"BSP\""),
        epoch_s("sync = \"SSP\"\nstaleness = 1"),
        epoch_s("sync = \"ASP\""),
    );
    assert!(
        asp < ssp && ssp < bsp,
        "uneven training costs most where all wait: {bsp} {ssp} {asp}"
    );
}

fn any_team() -> impl Strategy<Value = String> {
    let robots = prop::collection::vec((0u8..=7, prop::option::of(0.0..0.5f64), -5_000_000i64..5_000_000), 1..5);
    let flow = (
        0usize..6,
        0usize..6,
        0usize..4,
        any::<bool>(),
        any::<bool>(),
        1u32..20_000,
        2u32..50,
    );
    let flows = prop::collection::vec(flow, 0..4);
    let loops = (10u32..60, 1u32..20_000, 1u32..3_000, 0u32..15, any::<bool>());
    (robots, flows, prop::option::of(loops), prop::option::of(1u32..400_000), any::<bool>(), 0usize..3).prop_map(
        |(robots, flows, control, learning, rts_cts, width)| {
            let count = robots.len() + 1;
            let mut text = String::from("[[robot]]\nname = \"r0\"\nleader = true\n");
            for (i, (mcs, loss, skew_us)) in robots.iter().enumerate() {
                let loss = loss.map_or(String::new(), |loss| format!("loss = {loss:.3}\n"));
                let skew = format!("clock_skew = \"{}us\"\n", skew_us / 1000);
                text += &format!("[[robot]]\nname = \"r{}\"\nmcs = {mcs}\n{loss}{skew}", i + 1);
            }
            let width = [20, 40, 80][width];
            text += &format!("[air]\nwidth_mhz = {width}\nrts_cts = {rts_cts}\nwnic = \"mt7612u\"\n");
            if let Some((hz, perception, command, inference, together)) = control {
                text += &format!(
                    "[control]\nrate_hz = {hz}\nperception = {perception}\ncommand = {command}\n\
                     inference = \"{inference}ms\"\njitter = \"1ms\"\nstack_delay = \"200us\"\nsynchronised = {together}\n"
                );
                if let Some(parameters) = learning {
                    text += &format!(
                        "[learning]\nparameters = {parameters}\nrounds = 2\nbatch_loops = 3\ntraining = \"20ms\"\n"
                    );
                }
            }
            for (i, (from, to, ac, tcp, saturated, size, period)) in flows.iter().enumerate() {
                let (from, to) = (from % count, to % count);
                if from == to {
                    continue;
                }
                let ac = ["AC_VO", "AC_VI", "AC_BE", "AC_BK"][*ac];
                let transport = if *tcp { "tcp" } else { "udp" };
                let traffic = if *saturated {
                    "saturated = true\n".to_owned()
                } else {
                    format!("size = {size}\nperiod = \"{period}ms\"\n")
                };
                text += &format!(
                    "[[flow]]\nname = \"f{i}\"\nfrom = \"r{from}\"\nto = \"r{to}\"\nac = \"{ac}\"\n\
                     transport = \"{transport}\"\n{traffic}"
                );
            }
            text
        },
    )
}

/// Returns a team with a control loop and bulk, in which one robot's clock is ahead by `skew`.
fn with_skew(skew: &str) -> Team {
    team(&format!(
        "robot = [{{ name = 'base', leader = true }}, {{ name = 'a', clock_skew = '{skew}' }}]\n\
         [control]\nrate_hz = 30\nbound = '33ms'\nperception = '12KiB'\ninference = '20ms'\n\
         [[flow]]\nname = 'bulk'\nfrom = 'a'\nto = 'base'\nsaturated = true\ntransport = 'tcp'\n"
    ))
}

/// SchedWiFi assumes clocks that agree to within a bound, so the offset of a robot's own clock must not hurt the
/// baseline.
#[test]
fn a_plan_does_not_depend_on_what_clocks_show() {
    let of = |skew| json(&run(&with_skew(skew), "schedwifi", &options(5, 1)));
    assert_eq!(of("0us"), of("20ms"));
}

/// A stock kernel's send queue is polled, so it shows something different from a hook in the driver.
#[test]
fn a_stock_kernel_does_not_see_what_a_hook_sees() {
    let of = |sight| {
        let mut policy = Policy::named("edca+local").expect("a preset");
        policy.sight = sight;
        let run = coorp_sim::run(&with_skew("0us"), &policy, &options(5, 1), &|_| {});
        run.expect("an unbroken run").result.bulk_mbps
    };
    assert_ne!(of(Sight::STOCK), of(Sight::PAPER));
}

/// A plan may leave no gap that a slow packet fits into, especially when clocks are set. That is the plan's cost, not a
/// broken rule.
#[test]
fn a_plan_that_leaves_bulk_no_room_breaks_no_rule() {
    let text = r#"
        robot = [
            { name = "r0", leader = true },
            { name = "r1", mcs = 0, clock_skew = "0us" },
            { name = "r2", mcs = 0, clock_skew = "0us" },
            { name = "r3", mcs = 1, clock_skew = "0us" },
            { name = "r4", mcs = 0, clock_skew = "0us" },
        ]
        flow = [
            { name = "f0", from = "r3", to = "r0", ac = "AC_BE", transport = "udp", saturated = true },
            { name = "f1", from = "r3", to = "r0", ac = "AC_VO", transport = "tcp", saturated = true },
            { name = "f2", from = "r0", to = "r1", ac = "AC_VO", transport = "udp", size = 1, period = "2ms" },
        ]
        [air]
        width_mhz = 40
        rts_cts = false
        wnic = "mt7612u"
    "#;
    let policy = Policy::named("schedwifi").expect("a preset");
    let faults = Options {
        faults: true,
        ..options(3, 7_995_550_241_472_396_098)
    };
    coorp_sim::run(&team(text), &policy, &faults, &|_| {}).expect("no rule is broken");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// No team, policy and seed breaks a rule, with faults or without.
    #[test]
    fn no_team_breaks_a_rule(text in any_team(), policy in 0..Policy::NAMES.len(), seed: u64, faults: bool) {
        let team = team(&text);
        let policy = Policy::named(Policy::NAMES[policy]).expect("a preset");
        match coorp_sim::run(&team, &policy, &Options { faults, ..options(3, seed) }, &|_| {}) {
            Ok(run) => {
                for flow in &run.result.flows {
                    prop_assert!(flow.delivered <= flow.sent, "{:?}", flow);
                }
                if let Some(rate) = run.result.violation_rate {
                    prop_assert!((0.0..=1.0).contains(&rate));
                }
            }
            Err(Error::Broken { rule }) => prop_assert!(false, "{}\n{}", rule, text),
            Err(_) => {}
        }
    }
}

#[test]
fn saturated_flows_share_a_host_queue_that_has_no_room_for_all() {
    let flows = |queue: &str, count: usize| {
        let flow = |number| format!("[[flow]]\nname = 's{number}'\nfrom = 'a'\nto = 'base'\nsaturated = true\n");
        let flows: String = (0..count).map(flow).collect();
        let text = format!("robot = [{{ name = 'base', leader = true }}, {{ name = 'a' }}]\n{queue}{flows}");
        let result = run(&team(&text), "edca", &options(2, 1));
        assert!(result.flows.iter().all(|flow| flow.delivered > 0), "{:?}", result.flows);
        result.bulk_mbps.expect("bulk")
    };
    let alone = flows("", 1);
    assert!(flows("", 14) > 0.8 * alone, "14 of 640 packets in a queue of 8,192");
}

#[test]
fn a_leader_with_more_control_flows_than_it_has_stamps_for_is_still_followed() {
    let names = ["b", "c", "d", "e", "f"]
        .map(|name| format!("{{ name = '{name}' }}"))
        .join(", ");
    let flow = |number, to, period| {
        format!(
            "[[flow]]\nname = 'c{number}'\nfrom = 'base'\nto = '{to}'\nac = 'AC_VO'\nsize = 10\nperiod = '{period}'\n"
        )
    };
    let slow: String = (0..64).map(|number| flow(number, "a", "10s")).collect();
    // The sixth robot has no vote, so the leader's beats may go with its control. That flow is the leader's 65th.
    let text = format!(
        "robot = [{{ name = 'base', leader = true }}, {{ name = 'a' }}, {names}]\n{slow}{}\
         [[flow]]\nname = 'bulk'\nfrom = 'f'\nto = 'base'\nsaturated = true\ntransport = 'tcp'\n",
        flow(64, "f", "20ms")
    );
    let result = run(&team(&text), "edca+global", &options(2, 1));
    let bulk = &result.flows[65];
    assert!(bulk.mbps > 20.0, "{bulk:?}");
}

#[test]
fn control_has_the_same_priority_under_every_policy_that_knows_priorities() {
    let results = |ac: &str| {
        let text = format!(
            "robot = [{{ name = 'base', leader = true }}, {{ name = 'a' }}]\n\
             [[flow]]\nname = 'bulk'\nfrom = 'a'\nto = 'base'\nsaturated = true\ntransport = 'tcp'\n\
             [[flow]]\nname = 'datagrams'\nfrom = 'a'\nto = 'base'\nsize = 1000\nperiod = '30ms'\n{ac}\
             [[flow]]\nname = 'stream'\nfrom = 'a'\nto = 'base'\nsize = 1000\nperiod = '30ms'\ntransport = 'tcp'\n{ac}"
        );
        let team = team(&text);
        let policies = ["edca", "edca+global", "edca+local", "coorp"];
        policies.map(|policy| run(&team, policy, &options(2, 1)))
    };
    let (unmarked, marked) = (results(""), results("ac = 'AC_VO'\n"));
    for (unmarked, marked) in unmarked.iter().zip(&marked) {
        assert_eq!(json(unmarked), json(marked));
        let delivered: u64 = unmarked.flows[1..].iter().map(|flow| flow.delivered).sum();
        let latencies: Vec<f64> = unmarked.flows[1..]
            .iter()
            .map(|flow| flow.latency_ms.expect("some").mean)
            .collect();
        let of_all = unmarked.control_latency_ms.expect("control").mean;
        // Both kinds count: in number they are equal to within a message.
        assert!(
            (latencies.iter().sum::<f64>() / 2.0 - of_all).abs() < 0.05 * of_all,
            "{latencies:?} {of_all}"
        );
        assert!(delivered > 120, "{delivered}");
    }
}
