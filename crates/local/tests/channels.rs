//! The guarantees for a user, within one process. `faults.rs` tests them between processes that are killed.

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use coorp_local::{
    wait_any, Domain, DomainOptions, Error, Payload, Receiver, ReceiverOptions, Sender, SenderOptions, Shortage,
    WhenFull, EAGER_BYTES_MAX, PARTS_MAX,
};
use rustix::time::{clock_gettime, ClockId};

const SECOND: Duration = Duration::from_secs(1);
/// The timeout for something that must arrive.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn domain() -> Domain {
    let time = clock_gettime(ClockId::Monotonic);
    let name = format!("test-{}-{}-{}", std::process::id(), time.tv_sec, time.tv_nsec);
    Domain::join(&name, DomainOptions::default()).unwrap()
}

fn sender(domain: &Domain, options: SenderOptions) -> Sender {
    domain.sender("channel", options).unwrap()
}

fn receiver(domain: &Domain) -> Receiver {
    domain.receiver("channel", ReceiverOptions::default()).unwrap()
}

fn next(receiver: &mut Receiver) -> Payload {
    receiver.recv(PATIENCE).unwrap().expect("a payload was sent")
}

fn first_byte(receiver: &mut Receiver) -> u8 {
    next(receiver).part(0).unwrap()[0]
}

/// A store for exactly four payloads of this size.
const PAYLOAD: usize = 250_000;
const FOUR: SenderOptions = SenderOptions {
    store_bytes: 1 << 20,
    idle_bytes: 0,
    queue_messages: 8,
    held_messages: 8,
    when_full: WhenFull::Fail,
};

#[test]
fn every_receiver_gets_all_of_every_sender_in_its_order() {
    let domain = domain();
    let mut receivers = [receiver(&domain), receiver(&domain), receiver(&domain)];
    let mut senders = [
        sender(&domain, SenderOptions::default()),
        sender(&domain, SenderOptions::default()),
    ];
    let lengths = [
        0,
        1,
        64,
        EAGER_BYTES_MAX - 200,
        EAGER_BYTES_MAX,
        EAGER_BYTES_MAX + 1,
        3_000_000,
    ];
    for (number, &length) in lengths.iter().enumerate() {
        for (which, sender) in senders.iter_mut().enumerate() {
            let mut loan = sender.loan_parts(3, &[length, 0, 5]).unwrap();
            loan.header_mut().copy_from_slice(&[which as u8, number as u8, 7]);
            loan.part_mut(0).fill(number as u8);
            loan.parts_mut()[2].copy_from_slice(b"parts");
            assert_eq!(sender.send(loan).unwrap(), 3);
        }
    }
    for receiver in &mut receivers {
        let mut seen = [0; 2];
        for _ in 0..2 * lengths.len() {
            let payload = next(receiver);
            let [which, number, 7] = *payload.header() else {
                panic!("{:?}", payload.header())
            };
            assert_eq!(number, seen[usize::from(which)]);
            seen[usize::from(which)] += 1;
            let parts: Vec<_> = payload.parts().collect();
            assert_eq!(parts[0], vec![number; lengths[usize::from(number)]]);
            assert_eq!(parts[1..], [b"".as_slice(), b"parts"]);
            assert!(parts.iter().all(|part| part.as_ptr().align_offset(64) == 0));
            assert_eq!((payload.len(), payload.part(3)), (3, None));
        }
        assert!(receiver.try_recv().unwrap().is_none());
    }
}

#[test]
fn channels_and_domains_are_apart() {
    let (one, other) = (domain(), domain());
    let mut sent = one.sender("a", SenderOptions::default()).unwrap();
    let mut near = one.receiver("b", ReceiverOptions::default()).unwrap();
    let mut far = other.receiver("a", ReceiverOptions::default()).unwrap();
    assert_eq!(sent.send_copy(b"x").unwrap(), 0);
    assert!(near.try_recv().unwrap().is_none() && far.try_recv().unwrap().is_none());
    assert_eq!(sent.used_bytes(), 0);
}

#[test]
fn memory_is_free_when_the_last_reader_drops_it_in_any_order_and_thread() {
    let domain = domain();
    let (mut one, mut two) = (receiver(&domain), receiver(&domain));
    let mut sent = sender(&domain, SenderOptions::default());
    for length in [10, PAYLOAD, 3 * PAYLOAD, 20] {
        sent.send_copy(&vec![1; length]).unwrap();
    }
    let used = sent.used_bytes();
    assert!(used > 4 * PAYLOAD);
    let mut held: Vec<_> = (0..4).flat_map(|_| [next(&mut one), next(&mut two)]).collect();
    held.swap(0, 5);
    held.swap(3, 6);
    let last = held.pop().unwrap();
    std::thread::spawn(move || drop(held)).join().unwrap();
    assert!(sent.used_bytes() > 0 && sent.used_bytes() < used);
    assert_eq!(last.part(0).unwrap()[0], 1);
    drop(last);
    assert_eq!(sent.used_bytes(), 0);
}

#[test]
fn idle_memory_goes_back_to_the_kernel() {
    let domain = domain();
    let mut read = receiver(&domain);
    let mut sent = sender(
        &domain,
        SenderOptions {
            idle_bytes: 0,
            ..SenderOptions::default()
        },
    );
    sent.send_copy(&vec![1; 10 * PAYLOAD]).unwrap();
    let held = next(&mut read);
    assert!(sent.committed_bytes() >= 10 * PAYLOAD);
    drop(held);
    let began = Instant::now();
    while sent.committed_bytes() > 0 {
        assert!(
            began.elapsed() < 20 * SECOND,
            "{} bytes are still allocated",
            sent.committed_bytes()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // The memory can be allocated again.
    sent.send_copy(&vec![2; 10 * PAYLOAD]).unwrap();
    assert_eq!(first_byte(&mut read), 2);
}

#[test]
fn what_a_sender_left_can_be_received_and_read() {
    let domain = domain();
    let mut read = receiver(&domain);
    let mut sent = sender(&domain, SenderOptions::default());
    sent.send_copy(&[1; PAYLOAD]).unwrap();
    sent.send_copy(&[2; PAYLOAD]).unwrap();
    let first = next(&mut read);
    drop(sent);
    let second = next(&mut read);
    assert_eq!(
        (first.part(0).unwrap(), second.part(0).unwrap()),
        ([1; PAYLOAD].as_slice(), [2; PAYLOAD].as_slice())
    );
    assert!(read.recv(Some(Duration::from_millis(1))).unwrap().is_none());
    assert_eq!(read.senders(), 0);
    drop(read);
    assert_eq!(first.part(0).unwrap(), [1; PAYLOAD]);
}

#[test]
fn a_receiver_that_leaves_gives_back_what_was_queued_for_it() {
    let domain = domain();
    let read = receiver(&domain);
    let mut sent = sender(&domain, SenderOptions::default());
    for _ in 0..10 {
        sent.send_copy(&[0; 1000]).unwrap();
    }
    drop(read);
    let began = Instant::now();
    while sent.used_bytes() > 0 || sent.readers() > 0 {
        assert!(began.elapsed() < 20 * SECOND);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_loan_that_is_not_sent_is_given_back() {
    let domain = domain();
    let mut sent = sender(&domain, SenderOptions::default());
    drop(sent.loan(PAYLOAD).unwrap());
    let loan = sent.loan(PAYLOAD).unwrap();
    assert!(sent.used_bytes() >= PAYLOAD);
    let readers = sent.send(loan).unwrap();
    assert_eq!((readers, sent.used_bytes()), (0, 0));
    // A loan may outlive its sender, without effect.
    let loan = sent.loan(10).unwrap();
    drop(sent);
    drop(loan);
}

#[test]
fn fail_says_what_is_full_and_keeps_the_payload() {
    let domain = domain();
    let mut read = receiver(&domain);
    let mut sent = sender(
        &domain,
        SenderOptions {
            queue_messages: 2,
            held_messages: 1,
            ..FOUR
        },
    );
    sent.send_copy(b"1").unwrap();
    sent.send_copy(b"2").unwrap();
    let mut loan = sent.loan(1).unwrap();
    loan.part_mut(0)[0] = b'3';
    let unsent = sent.send(loan).unwrap_err();
    let pid = std::process::id();
    let Error::Full { shortage, channel } = &unsent.error else {
        panic!("{unsent}")
    };
    assert_eq!((*shortage, channel.as_str()), (Shortage::Queue { pid }, "channel"));
    let held = next(&mut read);
    assert_eq!(sent.send(unsent.loan).unwrap(), 1);
    let again = next(&mut read);
    assert_eq!(
        (held.part(0).unwrap(), again.part(0).unwrap()),
        (b"1".as_slice(), b"2".as_slice())
    );
    // One is queued and two are held: there is no slot for a fourth.
    let Err(Error::Full { shortage, .. }) = sent.send_copy(b"4") else {
        panic!("sent")
    };
    assert_eq!(shortage, Shortage::Held { pid });
    drop(held);
    assert_eq!(sent.send_copy(b"4").unwrap(), 1);
}

#[test]
fn a_full_store_fails_or_waits_or_drops_the_oldest() {
    let domain = domain();
    let mut read = receiver(&domain);
    let fill =
        |sent: &mut Sender, count: u8| (0..count).try_for_each(|byte| sent.send_copy(&[byte; PAYLOAD]).map(|_| ()));

    let mut failing = sender(&domain, FOUR);
    fill(&mut failing, 4).unwrap();
    let Err(Error::Full {
        shortage: Shortage::Store { bytes, used },
        ..
    }) = fill(&mut failing, 1)
    else {
        panic!()
    };
    assert!(bytes > PAYLOAD && used > 4 * PAYLOAD);
    (0..4).for_each(|byte| assert_eq!(first_byte(&mut read), byte));
    drop(failing);

    let time = Duration::from_millis(20);
    let mut waiting = sender(
        &domain,
        SenderOptions {
            when_full: WhenFull::Block(time),
            ..FOUR
        },
    );
    fill(&mut waiting, 4).unwrap();
    let Err(Error::Deadline { waited, .. }) = fill(&mut waiting, 1) else {
        panic!()
    };
    assert!(waited >= time);
    (0..4).for_each(|byte| assert_eq!(first_byte(&mut read), byte));
    drop(waiting);

    let mut dropping = sender(
        &domain,
        SenderOptions {
            when_full: WhenFull::DropOldest,
            ..FOUR
        },
    );
    fill(&mut dropping, 1).unwrap();
    let held = next(&mut read);
    fill(&mut dropping, 7).unwrap();
    assert_eq!(dropping.dropped(), 4);
    (4..7).for_each(|byte| assert_eq!(first_byte(&mut read), byte));
    assert_eq!(held.part(0).unwrap(), [0; PAYLOAD]);
    // Held payloads cannot be dropped.
    fill(&mut dropping, 3).unwrap();
    let all: Vec<_> = (0..3).map(|_| next(&mut read)).collect();
    assert!(matches!(fill(&mut dropping, 1), Err(Error::Full { .. })));
    drop((all, held));
    fill(&mut dropping, 4).unwrap();
}

#[test]
fn a_full_queue_drops_the_oldest_of_the_slow_reader_only() {
    let domain = domain();
    let (mut slow, mut fast) = (receiver(&domain), receiver(&domain));
    let mut sent = sender(
        &domain,
        SenderOptions {
            queue_messages: 3,
            when_full: WhenFull::DropOldest,
            ..FOUR
        },
    );
    for byte in 0..100 {
        sent.send_copy(&[byte]).unwrap();
        assert_eq!(first_byte(&mut fast), byte);
    }
    assert_eq!(sent.dropped(), 97);
    (97..100).for_each(|byte| assert_eq!(first_byte(&mut slow), byte));
}

#[test]
fn a_blocked_sender_wakes_when_a_reader_makes_room_or_leaves() {
    let domain = domain();
    let mut read = receiver(&domain);
    let options = SenderOptions {
        queue_messages: 1,
        when_full: WhenFull::Block(20 * SECOND),
        ..FOUR
    };
    let mut sent = sender(&domain, options);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in 0..200 {
                sent.send_copy(&[byte; PAYLOAD]).unwrap();
            }
            // The reader has left by now, or leaves while this sender is blocked.
            while sent.send_copy(&[0; PAYLOAD]).unwrap() > 0 {}
        });
        scope.spawn(move || {
            let mut held = std::collections::VecDeque::new();
            for byte in 0..200 {
                held.push_back(next(&mut read));
                assert_eq!(held.back().unwrap().part(0).unwrap(), [byte; PAYLOAD]);
                if held.len() > 2 {
                    held.pop_front();
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        });
    });
}

#[test]
fn one_wait_covers_many_channels_and_has_a_deadline() {
    let domain = domain();
    let names: Vec<_> = (0..20).map(|number| format!("channel-{number}")).collect();
    let open = |name: &String| domain.receiver(name, ReceiverOptions { spin: Duration::ZERO }).unwrap();
    let mut receivers: Vec<_> = names.iter().map(open).collect();
    let mut all: Vec<_> = receivers.iter_mut().collect();
    assert_eq!(wait_any(&mut all, Some(Duration::from_millis(5))).unwrap(), None);
    let (channel, other) = (names[13].clone(), &domain);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = other.sender(&channel, SenderOptions::default()).unwrap();
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(1));
                sent.send_copy(b"wake").unwrap();
            }
        });
        for _ in 0..50 {
            assert_eq!(wait_any(&mut all, PATIENCE).unwrap(), Some(13));
            assert_eq!(all[13].try_recv().unwrap().unwrap().part(0).unwrap(), b"wake");
        }
    });
    assert_eq!(wait_any(&mut [], Some(Duration::from_millis(1))).unwrap(), None);
}

#[test]
fn bad_input_is_refused_with_what_is_wrong() {
    let domain = domain();
    let join = |name| Domain::join(name, DomainOptions::default()).map(|_| ());
    assert!(matches!(join("no spaces"), Err(Error::Name { .. })));
    assert!(matches!(
        domain.receiver("", ReceiverOptions::default()),
        Err(Error::Name { .. })
    ));
    let open = |options| domain.sender("x", options).map(|_| ());
    for (options, name) in [
        (
            SenderOptions {
                store_bytes: 10,
                ..FOUR
            },
            "store_bytes",
        ),
        (
            SenderOptions {
                store_bytes: usize::MAX,
                ..FOUR
            },
            "store_bytes",
        ),
        (
            SenderOptions {
                queue_messages: 0,
                ..FOUR
            },
            "queue_messages",
        ),
        (
            SenderOptions {
                held_messages: 1 << 20,
                ..FOUR
            },
            "held_messages",
        ),
    ] {
        let Err(Error::Setting { setting, .. }) = open(options) else {
            panic!("{options:?}")
        };
        assert_eq!(setting, name);
    }
    let patient = ReceiverOptions { spin: Duration::MAX };
    assert!(matches!(
        domain.receiver("x", patient),
        Err(Error::Setting { value: u64::MAX, .. })
    ));
    let mut sent = sender(&domain, FOUR);
    assert!(!sent.wait_for_readers(1, Duration::ZERO));
    assert!(matches!(sent.loan(1 << 21), Err(Error::TooLarge { .. })));
    assert!(matches!(
        sent.loan(usize::MAX),
        Err(Error::TooLarge {
            store_bytes: 0x10_0000,
            ..
        })
    ));
    assert!(matches!(
        sent.loan_parts(0, &[0; PARTS_MAX + 1]),
        Err(Error::TooManyParts(_))
    ));
    assert!(matches!(sent.loan_parts(1 << 24, &[]), Err(Error::HeaderTooLong(_))));
    let error = sent.loan(1 << 21).unwrap_err().to_string();
    assert_eq!(
        error,
        "a payload of 2097216 bytes never fits into a store of 1048576; enlarge `store_bytes`"
    );
}

/// Requesting more memory than the machine has is an error before the memory is touched, and kills no process.
#[test]
fn exhausted_memory_is_an_error() {
    let domain = domain();
    let mut sent = sender(
        &domain,
        SenderOptions {
            store_bytes: 1 << 39,
            ..SenderOptions::default()
        },
    );
    let Err(Error::Memory { bytes, .. }) = sent.loan(1 << 38) else {
        panic!("a machine with 256 GiB free")
    };
    assert!(bytes > 1 << 38);
    // Payloads that fit can still be sent.
    assert_eq!(sent.used_bytes(), 0);
    drop(sent.loan(PAYLOAD).unwrap());
}

#[test]
fn a_channel_has_limits() {
    let domain = domain();
    let open = |_| domain.receiver("crowded", ReceiverOptions::default());
    let opened: Result<Vec<_>, _> = (0..=coorp_local::PEERS_MAX).map(open).collect();
    assert!(matches!(
        opened,
        Err(Error::TooMany {
            limit: coorp_local::PEERS_MAX,
            ..
        })
    ));
}

/// The payload stays whichever ends last: the readers, the sender's own handles or the sender.
#[test]
fn a_kept_payload_stays_until_its_readers_and_its_keeper_have_dropped_it() {
    let domain = domain();
    let mut read = receiver(&domain);
    let mut sent = sender(&domain, FOUR);
    for keeper_is_last in [true, false] {
        let mut loan = sent.loan_parts(9, &[PAYLOAD]).unwrap();
        loan.part_mut(0).fill(7);
        let (kept, twice) = (loan.keep(), loan.keep());
        assert_eq!((kept.header(), kept.part(0)), (None, None), "it can still be written");
        loan.header_mut().copy_from_slice(b"shortened");
        loan.truncate_header(5);
        loan.truncate_header(9);
        assert_eq!(sent.send(loan).unwrap(), 1);
        drop(twice);
        let payload = next(&mut read);
        assert_eq!(payload.header(), b"short");
        if keeper_is_last {
            drop(payload);
        } else {
            std::thread::spawn(move || drop(kept)).join().unwrap();
            assert!(sent.used_bytes() > PAYLOAD);
            drop(payload);
            assert_eq!(sent.used_bytes(), 0);
            continue;
        }
        // Payloads sent in the meantime use other memory.
        for byte in 0..20 {
            sent.send_copy(&[byte; PAYLOAD]).unwrap();
            assert_eq!(first_byte(&mut read), byte);
        }
        assert_eq!(kept.header(), Some(b"short".as_slice()));
        assert_eq!(kept.part(0), Some([7; PAYLOAD].as_slice()));
        assert_eq!(kept.part(1), None);
        assert!(sent.used_bytes() > PAYLOAD);
        drop(kept);
        assert_eq!(sent.used_bytes(), 0);
    }
}

#[test]
fn a_kept_payload_needs_no_reader_no_send_and_no_sender() {
    let domain = domain();
    let mut sent = sender(&domain, FOUR);
    let mut loan = sent.loan(PAYLOAD).unwrap();
    loan.part_mut(0).fill(1);
    let unread = loan.keep();
    assert_eq!(sent.send(loan).unwrap(), 0);
    let mut loan = sent.loan(PAYLOAD).unwrap();
    loan.part_mut(0).fill(2);
    let unsent = loan.keep();
    drop(loan);
    let last = sent.loan(PAYLOAD).unwrap();
    assert_eq!(unread.part(0), Some([1; PAYLOAD].as_slice()));
    assert_eq!(unsent.part(0), Some([2; PAYLOAD].as_slice()));
    drop(unread);
    // First the loan's own reference ends, then the keeper's.
    let mut loan = sent.loan(PAYLOAD).unwrap();
    drop(loan.keep());
    drop((loan, last));
    drop(sent);
    assert_eq!(unsent.part(0), Some([2; PAYLOAD].as_slice()));
    std::thread::spawn(move || drop(unsent)).join().unwrap();
}

#[test]
fn a_payload_that_could_not_be_sent_can_be_written_again_though_it_is_kept() {
    let domain = domain();
    let mut read = receiver(&domain);
    let options = SenderOptions {
        queue_messages: 1,
        ..FOUR
    };
    let mut sent = sender(&domain, options);
    sent.send_copy(b"first").unwrap();
    let mut loan = sent.loan(1).unwrap();
    let kept = loan.keep();
    let mut loan = sent.send(loan).unwrap_err().loan;
    assert_eq!(kept.part(0), None);
    loan.part_mut(0)[0] = 5;
    drop(next(&mut read));
    assert_eq!(sent.send(loan).unwrap(), 1);
    assert_eq!(kept.part(0), Some([5].as_slice()));
}

#[test]
fn a_sender_that_waits_for_memory_wakes_when_it_is_no_longer_kept_or_loaned() {
    let domain = domain();
    let options = SenderOptions {
        when_full: WhenFull::Block(60 * SECOND),
        ..FOUR
    };
    let mut sent = sender(&domain, options);
    for keeps in [true, false] {
        let mut loan = sent.loan(3 * PAYLOAD).unwrap();
        let kept = keeps.then(|| loan.keep());
        let loan = if keeps {
            assert_eq!(sent.send(loan).unwrap(), 0);
            None
        } else {
            Some(loan)
        };
        let began = Instant::now();
        let dropped = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop((kept, loan));
        });
        drop(sent.loan(2 * PAYLOAD).unwrap());
        assert!(began.elapsed() < 20 * SECOND, "it was not woken");
        dropped.join().unwrap();
    }
}

#[test]
fn random_loans_sends_and_drops_lose_nothing_and_overwrite_nothing() {
    let domain = domain();
    let (mut one, mut two) = (receiver(&domain), receiver(&domain));
    let mut sent = sender(&domain, FOUR);
    let mut random = 1_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    let (mut payloads, mut kept) = (Vec::new(), Vec::new());
    for byte in (0..=250).cycle().take(4000) {
        if let Ok(mut loan) = sent.loan(1 + below(PAYLOAD as u64) as usize) {
            loan.part_mut(0).fill(byte);
            for _ in 0..below(3) {
                kept.push((byte, loan.keep()));
            }
            if below(4) > 0 {
                // If a queue is full, the loan ends here.
                let _ = sent.send(loan);
            }
        }
        for read in [&mut one, &mut two] {
            if below(2) == 0 {
                payloads.extend(read.try_recv().unwrap());
            }
        }
        for _ in 0..below(4) {
            if !payloads.is_empty() {
                let payload = payloads.swap_remove(below(payloads.len() as u64) as usize);
                let part = payload.part(0).unwrap();
                assert!(part.iter().all(|found| *found == part[0]), "torn");
            }
            if !kept.is_empty() {
                let (byte, kept) = kept.swap_remove(below(kept.len() as u64) as usize);
                assert!(kept.part(0).unwrap().iter().all(|found| *found == byte), "overwritten");
            }
        }
    }
    drop((payloads, kept));
    for mut read in [one, two] {
        while read.try_recv().unwrap().is_some() {}
    }
    assert_eq!(sent.used_bytes(), 0);
}
