//! Peers that break the rules: each one is refused or cut off by itself, and the others continue.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::bell::{wait_any, Bell};
use crate::memory::{Arena, Words};
use crate::name::Name;
use crate::ring::{Entry, Ring};
use crate::socket::{self, Packet};
use crate::wire::{self, EndpointId, FromHost, OnLink, Role, ToHost, VERSION};
use crate::{Domain, DomainOptions, Error, Receiver, ReceiverOptions, SenderOptions};

const PATIENCE: Duration = Duration::from_secs(20);
/// A timeout that is long enough on a busy machine to find out what is wrong.
const BRIEF: DomainOptions = DomainOptions {
    timeout: Duration::from_secs(1),
};

fn name(test: &str) -> String {
    format!("peers-{}-{test}", std::process::id())
}

fn next_packet(socket: &OwnedFd) -> Packet {
    loop {
        if let Some(packet) = socket::receive(socket.as_fd()).unwrap() {
            return packet;
        }
        assert!(
            wait_any(&[socket.as_fd()], Some(Instant::now() + PATIENCE))
                .unwrap()
                .is_some(),
            "no packet arrived"
        );
    }
}

/// A process that speaks the protocol directly.
struct Impostor {
    host: OwnedFd,
}

impl Impostor {
    fn join(domain: &str) -> Self {
        let host = socket::connect(&socket::address(&Name::new(domain).unwrap()).unwrap()).unwrap();
        socket::send(host.as_fd(), &wire::encode(&ToHost::Hello), &[]).unwrap();
        assert_eq!(wire::decode(&next_packet(&host).bytes), Ok(FromHost::Welcome));
        Self { host }
    }

    fn open(&self, role: Role) {
        let open = ToHost::Open {
            endpoint: EndpointId::of(1),
            role,
            channel: "channel".to_owned(),
        };
        socket::send(self.host.as_fd(), &wire::encode(&open), &[]).unwrap();
    }

    /// Waits for the socket to a peer.
    fn introduced(&self) -> OwnedFd {
        loop {
            let packet = next_packet(&self.host);
            match wire::decode(&packet.bytes) {
                Ok(FromHost::Introduce { .. }) => return packet.descriptors.into_iter().next().unwrap(),
                other => assert!(matches!(other, Ok(FromHost::Opened { .. }))),
            }
        }
    }

    /// Opens an endpoint, and returns the socket to its first peer.
    fn link(&self, role: Role) -> OwnedFd {
        self.open(role);
        self.introduced()
    }
}

/// Returns whether the other end closes the socket.
fn is_closed(socket: &OwnedFd) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while wait_any(&[socket.as_fd()], Some(deadline)).unwrap().is_some() {
        match socket::receive(socket.as_fd()) {
            Ok(_) => {}
            Err(_) => return true,
        }
    }
    false
}

/// Asserts that a receiver still receives from sound senders.
fn assert_works(domain: &Domain, receiver: &mut Receiver) {
    let mut sound = domain.sender("channel", SenderOptions::default()).unwrap();
    sound.send_copy(b"sound").unwrap();
    let payload = receiver.recv(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(payload.part(0), Some(b"sound".as_slice()));
}

#[test]
fn a_host_of_another_version_or_a_silent_one_is_named() {
    for (answer, test) in [(Some(b"cpl\x09\0\0".as_slice()), "version"), (None, "silent")] {
        let domain = name(test);
        let listener = socket::listen(&socket::address(&Name::new(&domain).unwrap()).unwrap()).unwrap();
        let host = std::thread::spawn(move || {
            wait_any(&[listener.as_fd()], Some(Instant::now() + PATIENCE)).unwrap();
            let member = socket::accept(listener.as_fd()).unwrap();
            if let Some(answer) = answer {
                socket::send(member.as_fd(), answer, &[]).unwrap();
            }
            // Stay silent until the other end has given up.
            is_closed(&member)
        });
        let options = if answer.is_some() {
            DomainOptions::default()
        } else {
            BRIEF
        };
        let error = Domain::join(&domain, options).unwrap_err();
        assert!(host.join().unwrap());
        match (answer, &error) {
            (
                Some(_),
                Error::OtherVersion {
                    theirs: 9,
                    ours: VERSION,
                },
            ) => {}
            (None, Error::Unreachable { problem, .. }) => {
                assert!(problem.starts_with(&format!("process {} has the domain's address", std::process::id())));
            }
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn strangers_at_the_host_are_cut_off() {
    let domain = name("strangers");
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let address = socket::address(&Name::new(&domain).unwrap()).unwrap();
    let stranger = socket::connect(&address).unwrap();
    socket::send(stranger.as_fd(), b"GET / HTTP/1.1", &[]).unwrap();
    assert!(is_closed(&stranger));
    let newer = socket::connect(&address).unwrap();
    socket::send(newer.as_fd(), b"cpl\x09\0whatever", &[]).unwrap();
    // It is told the version, in a form that every version understands.
    assert_eq!(next_packet(&newer).bytes[..5], [b'c', b'p', b'l', VERSION as u8, 0]);
    assert!(is_closed(&newer));
    let mut receiver = member.receiver("channel", ReceiverOptions::default()).unwrap();
    assert_works(&member, &mut receiver);
}

#[test]
fn offers_of_unsound_memory_are_refused() {
    let domain = name("offers");
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let mut receiver = member.receiver("channel", ReceiverOptions::default()).unwrap();
    let loose = || rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let arena = Arena::reserve("test", 1 << 20).unwrap();
    let (_ring, ring) = Ring::create("test", 4, 4).unwrap();
    let (_words, words) = Words::create("test", 512).unwrap();
    let (loose, bell, arena) = (loose(), Bell::new().unwrap(), arena.read_only().unwrap());
    let (offer, ready) = (wire::encode(&OnLink::Offer { pid: 1 }), wire::encode(&OnLink::Ready));
    let (offer, ready) = (offer.as_slice(), ready.as_slice());
    let sound = [arena.as_fd(), ring.as_fd(), bell.as_fd()];
    for (packet, descriptors) in [
        (offer, vec![loose.as_fd(), ring.as_fd(), bell.as_fd()]),
        (offer, vec![arena.as_fd(), words.as_fd(), bell.as_fd()]),
        (offer, vec![arena.as_fd(), loose.as_fd(), bell.as_fd()]),
        (offer, vec![bell.as_fd(), bell.as_fd(), bell.as_fd()]),
        (offer, vec![arena.as_fd()]),
        (ready, sound.to_vec()),
        (b"garbage".as_slice(), sound.to_vec()),
    ] {
        let impostor = Impostor::join(&domain);
        let link = impostor.link(Role::Sender);
        socket::send(link.as_fd(), packet, &descriptors).unwrap();
        assert!(is_closed(&link), "{packet:?}");
        assert_eq!(receiver.senders(), 0);
    }
    assert_works(&member, &mut receiver);
}

#[test]
fn a_sender_that_points_outside_its_memory_is_cut_off() {
    let domain = name("outside");
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let mut receiver = member.receiver("channel", ReceiverOptions::default()).unwrap();
    let arena = Arena::reserve("test", 1 << 20).unwrap();
    for entry in [
        Entry {
            slot: 0,
            offset: 1 << 20,
        },
        Entry { slot: 0, offset: 64 },
        Entry { slot: 4000, offset: 0 },
    ] {
        let impostor = Impostor::join(&domain);
        let link = impostor.link(Role::Sender);
        let (ring, memory) = Ring::create("test", 4, 4).unwrap();
        let (bell, read_only) = (Bell::new().unwrap(), arena.read_only().unwrap());
        let descriptors = [read_only.as_fd(), memory.as_fd(), bell.as_fd()];
        socket::send(link.as_fd(), &wire::encode(&OnLink::Offer { pid: 77 }), &descriptors).unwrap();
        assert!(matches!(
            wire::decode(&next_packet(&link).bytes),
            Ok(OnLink::Accept { .. })
        ));
        ring.put(0, entry);
        let error = receiver.recv(Some(PATIENCE)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { pid: 77, .. }), "{error}");
        assert!(is_closed(&link));
        assert_works(&member, &mut receiver);
    }
}

#[test]
fn a_reader_that_gives_back_what_it_never_had_is_cut_off() {
    let domain = name("reader");
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let mut sender = member.sender("channel", SenderOptions::default()).unwrap();
    let mut sound = member.receiver("channel", ReceiverOptions::default()).unwrap();
    let impostor = Impostor::join(&domain);
    let link = impostor.link(Role::Receiver);
    let offer = next_packet(&link);
    let ring = Ring::open(&offer.descriptors[1]).unwrap();
    let bell = Bell::new().unwrap();
    socket::send(
        link.as_fd(),
        &wire::encode(&OnLink::Accept { pid: 77 }),
        &[bell.as_fd()],
    )
    .unwrap();
    assert!(sender.wait_for_readers(2, PATIENCE));
    assert_eq!(sender.send_copy(b"both").unwrap(), 2);
    for slot in 0..20 {
        ring.release(slot);
    }
    assert_eq!(sender.send_copy(b"one").unwrap(), 1);
    assert!(is_closed(&link));
    for sent in [b"both".as_slice(), b"one"] {
        assert_eq!(sound.recv(Some(PATIENCE)).unwrap().unwrap().part(0), Some(sent));
    }
    assert_eq!((sender.readers(), sender.used_bytes()), (1, 0));
}

/// The host dies between its two introductions of two endpoints to each other.
#[test]
fn a_half_introduction_does_not_prevent_the_whole_one() {
    let domain = name("half");
    let listener = socket::listen(&socket::address(&Name::new(&domain).unwrap()).unwrap()).unwrap();
    let member = std::thread::spawn({
        let domain = domain.clone();
        move || {
            let member = Domain::join(&domain, DomainOptions::default()).unwrap();
            let receiver = member.receiver("channel", ReceiverOptions::default()).unwrap();
            (member, receiver)
        }
    });
    wait_any(&[listener.as_fd()], Some(Instant::now() + PATIENCE)).unwrap();
    let connection = socket::accept(listener.as_fd()).unwrap();
    assert_eq!(wire::decode(&next_packet(&connection).bytes), Ok(ToHost::Hello));
    socket::send(connection.as_fd(), &wire::encode(&FromHost::Welcome), &[]).unwrap();
    let Ok(ToHost::Open { endpoint, .. }) = wire::decode(&next_packet(&connection).bytes) else {
        panic!("not opened")
    };
    let (peer, (mine, yours)) = (EndpointId::of(9), socket::pair().unwrap());
    let introduce = wire::encode(&FromHost::Introduce { endpoint, peer });
    socket::send(connection.as_fd(), &introduce, &[yours.as_fd()]).unwrap();
    drop(yours);
    // The first link dies unseen: its end and the second introduction arrive together.
    let (mine_again, yours_again) = socket::pair().unwrap();
    drop(mine);
    socket::send(connection.as_fd(), &introduce, &[yours_again.as_fd()]).unwrap();
    drop(yours_again);
    socket::send(connection.as_fd(), &wire::encode(&FromHost::Opened { endpoint }), &[]).unwrap();
    let arena = Arena::reserve("test", 1 << 20).unwrap().read_only().unwrap();
    let ((_ring, ring), bell) = (Ring::create("test", 4, 4).unwrap(), Bell::new().unwrap());
    let offer = wire::encode(&OnLink::Offer { pid: 1 });
    socket::send(mine_again.as_fd(), &offer, &[arena.as_fd(), ring.as_fd(), bell.as_fd()]).unwrap();
    assert!(matches!(
        wire::decode(&next_packet(&mine_again).bytes),
        Ok(OnLink::Accept { .. })
    ));
    socket::send(mine_again.as_fd(), &wire::encode(&OnLink::Ready), &[]).unwrap();
    let (_member, receiver) = member.join().unwrap();
    assert_eq!(receiver.senders(), 1);
}

/// The kernel, not names, tells users apart. If the test runs as root, one thread can be another user.
#[test]
fn other_users_are_refused_at_both_ends() {
    use rustix::process::{geteuid, Uid};
    if !geteuid().is_root() {
        println!("SKIPPED: only root can play another user");
        return;
    }
    let nobody = Uid::from_raw(65534);
    let become_nobody = move || rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    let domain = name("squatter");
    let address = socket::address(&Name::new(&domain).unwrap()).unwrap();
    let squatted = address.clone();
    let listener = std::thread::spawn(move || {
        become_nobody();
        socket::listen(&squatted).unwrap()
    });
    let listener = listener.join().unwrap();
    let error = Domain::join(&domain, BRIEF).unwrap_err();
    assert!(matches!(error, Error::Foreign { uid: 65534, .. }), "{error}");
    drop(listener);

    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let intruder = std::thread::spawn(move || {
        become_nobody();
        socket::connect(&address).unwrap()
    });
    assert!(is_closed(&intruder.join().unwrap()));
    let mut receiver = member.receiver("channel", ReceiverOptions::default()).unwrap();
    assert_works(&member, &mut receiver);
}

/// The opener of a channel does not wait for a peer that died while the two were being connected.
#[test]
fn a_peer_that_dies_between_two_words_holds_up_nobody() {
    let domain = name("words");
    let member = Domain::join(&domain, DomainOptions { timeout: Duration::MAX }).unwrap();
    let (arena, bell) = (
        Arena::reserve("test", 1 << 20).unwrap().read_only().unwrap(),
        Bell::new().unwrap(),
    );
    let (_ring, ring) = Ring::create("test", 4, 4).unwrap();
    let impostor = Impostor::join(&domain);
    impostor.open(Role::Sender);
    let (done, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let receiver = member.receiver("channel", ReceiverOptions::default());
        done.send(receiver.is_ok()).unwrap();
    });
    let link = impostor.introduced();
    let offer = wire::encode(&OnLink::Offer { pid: 1 });
    socket::send(link.as_fd(), &offer, &[arena.as_fd(), ring.as_fd(), bell.as_fd()]).unwrap();
    drop(link);
    assert_eq!(opened.recv_timeout(PATIENCE), Ok(true));
}
