//! The datagrams by which robots find each other: DNS-SD over multicast DNS (RFC 6762, 6763), one for each robot and
//! path.
//!
//! The instance's name contains neither the team's nor the robot's name, but keyed hashes of them. Only members can
//! compute these: the key is derived from the authority's certificate. A proof, also keyed, covers the robot, the path
//! and the address that the datagram comes from. So a stranger's datagram costs a parse and a hash, and a copy of a
//! member's datagram proves nothing from another address.
//!
//! The port and the addresses in the records are for other tools only: the team file has the port. Left out: TTLs and
//! goodbyes, because nothing is cached; known answers, because questions name the missing robots; and unicast.

use std::net::Ipv4Addr;

use coorp_core::discovery::Refusal;
use coorp_core::RobotId;
use simple_dns::rdata::{RData, A, PTR, SRV, TXT};
use simple_dns::{Name, Packet, PacketFlag, Question, ResourceRecord, SimpleDnsError, CLASS, QCLASS, QTYPE, TYPE};

/// The longest datagram that is read or sent.
pub const DATAGRAM_BYTES_MAX: usize = 1_472;
/// The number of robots that one question names.
const ASKED_MAX: usize = 24;
/// The number of questions and records that a datagram may have.
const ENTRIES_MAX: u32 = 64;

const SERVICE: &str = "_coorp._udp.local";
/// The service's first label as it appears in every datagram about it, because only suffixes are compressed.
const SERVICE_LABEL: &[u8] = b"\x06_coorp";
const VERSION: &[u8] = b"1";
const TTL_S: u32 = 120;
const HEADER_BYTES: usize = 12;

/// The content of a datagram, as a member reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A robot is at the address that the datagram was sent from.
    Announcement {
        /// The robot.
        robot: RobotId,
        /// The path of the robot's interface.
        path: u8,
        /// Whether the team's proof is valid.
        proved: bool,
    },
    /// A question for these robots.
    Question(Vec<(RobotId, u8)>),
    /// A question for all robots, of this team or of any.
    QuestionForAll,
}

/// The hashes by which the members of a team know each other.
pub struct Names {
    team: String,
    robots: Vec<String>,
    proof_key: [u8; 32],
}

impl Names {
    /// Derives the names for a team with an authority, given by its certificate (DER), or else only from its name.
    pub fn new<'a>(team: &str, authority: Option<&[u8]>, robots: impl IntoIterator<Item = &'a str>) -> Names {
        let material = match authority {
            Some(certificate) => [b"authority ", certificate].concat(),
            None => [b"name ", team.as_bytes()].concat(),
        };
        let key = |what: &str| blake3::derive_key(&format!("coorp discovery 1 {what}"), &material);
        let robot_key = key("robot");
        let robots = robots.into_iter();
        let robots = robots.map(|robot| hex(&blake3::keyed_hash(&robot_key, robot.as_bytes()).as_bytes()[..8]));
        Names {
            team: hex(&key("team")[..8]),
            robots: robots.collect(),
            proof_key: key("proof"),
        }
    }

    /// Returns a robot's announcement from an address; `port` is the robot's first one.
    pub fn announcement(&self, robot: RobotId, path: u8, from: Ipv4Addr, port: u16) -> Vec<u8> {
        let built = || -> Result<Vec<u8>, SimpleDnsError> {
            let (instance, host) = (self.instance(robot, path), self.host(robot, path));
            let (instance, host) = (Name::new(&instance)?, Name::new(&host)?);
            let (of_team, proof) = (self.subtype(), hex(&self.proof(robot, path, from)));
            let record = |name: &Name<'_>, data| ResourceRecord::new(name.clone().into_owned(), CLASS::IN, TTL_S, data);
            let text = TXT::new()
                .with_attribute("v", Some(VERSION))?
                .with_attribute("team", Some(self.team.as_bytes()))?
                .with_attribute("proof", Some(proof.as_bytes()))?;
            let service = SRV {
                priority: 0,
                weight: 0,
                port,
                target: host.clone(),
            };
            let mut packet = Packet::new_reply(0);
            packet.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
            packet.answers = vec![
                record(&Name::new(SERVICE)?, RData::PTR(PTR(instance.clone()))),
                record(&Name::new(&of_team)?, RData::PTR(PTR(instance.clone()))),
                record(&instance, RData::SRV(service)).with_cache_flush(true),
                record(&instance, RData::TXT(text.into_owned())).with_cache_flush(true),
                record(&host, RData::A(A::from(from))).with_cache_flush(true),
            ];
            packet.build_bytes_vec_compressed()
        };
        // All names are short.
        built().unwrap_or_default()
    }

    /// Returns a question for some robots on a path.
    pub fn question(&self, robots: impl IntoIterator<Item = RobotId>, path: u8) -> Vec<u8> {
        let built = || -> Result<Vec<u8>, SimpleDnsError> {
            let mut packet = Packet::new_query(0);
            for robot in robots.into_iter().take(ASKED_MAX) {
                let name = Name::new(&self.instance(robot, path))?.into_owned();
                let kind = QTYPE::TYPE(TYPE::TXT);
                packet
                    .questions
                    .push(Question::new(name, kind, QCLASS::CLASS(CLASS::IN), false));
            }
            packet.build_bytes_vec_compressed()
        };
        built().unwrap_or_default()
    }

    /// Reads a datagram from an address. `Ok(None)`: it is about something else.
    ///
    /// # Errors
    /// The reason for refusing an announcement that no robot of this team has sent.
    pub fn read(&self, datagram: &[u8], from: Ipv4Addr) -> Result<Option<Heard>, Refusal> {
        // Most datagrams to the group are about printers and the like.
        let ours = |datagram: &[u8]| datagram.windows(SERVICE_LABEL.len()).any(|at| at == SERVICE_LABEL);
        if !ours(datagram) {
            return Ok(None);
        }
        // The library reserves memory for as many entries as the header claims.
        let header = datagram.get(4..HEADER_BYTES).ok_or(Refusal::Garbled)?;
        let entries = header
            .chunks_exact(2)
            .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
        if datagram.len() > DATAGRAM_BYTES_MAX || entries.sum::<u32>() > ENTRIES_MAX {
            return Err(Refusal::Garbled);
        }
        let packet = Packet::parse(datagram).map_err(|_| Refusal::Garbled)?;
        if packet.has_flags(PacketFlag::RESPONSE) {
            self.read_announcement(&packet, from)
        } else {
            Ok(self.read_question(&packet))
        }
    }

    /// Reads the announcement of one robot: the datagram's first text of this service.
    fn read_announcement(&self, packet: &Packet<'_>, from: Ipv4Addr) -> Result<Option<Heard>, Refusal> {
        let records = packet.answers.iter().chain(&packet.additional_records);
        let texts = records.filter_map(|record| match &record.rdata {
            RData::TXT(text) => Some((instance_of(&record.name)?, text)),
            _ => None,
        });
        let Some((instance, text)) = texts.into_iter().next() else {
            return Ok(None);
        };
        let value = |key: &[u8]| text.iter_raw().find(|(of, _)| *of == key).and_then(|(_, value)| value);
        if value(b"v") != Some(VERSION) {
            return Err(Refusal::Garbled);
        }
        if value(b"team") != Some(self.team.as_bytes()) {
            return Err(Refusal::OtherTeam);
        }
        let (robot, path) = self.named(instance).ok_or(Refusal::UnknownRobot)?;
        let proof = hex(&self.proof(robot, path, from));
        let proved = value(b"proof").is_some_and(|value| is_equal(value, proof.as_bytes()));
        Ok(Some(Heard::Announcement { robot, path, proved }))
    }

    fn read_question(&self, packet: &Packet<'_>) -> Option<Heard> {
        let names = || packet.questions.iter().map(|question| &question.qname);
        let subtype = self.subtype();
        let for_all = [SERVICE, &subtype].map(Name::new_unchecked);
        if names().any(|name| for_all.contains(name)) {
            return Some(Heard::QuestionForAll);
        }
        let asked: Vec<_> = names()
            .filter_map(|name| self.named(instance_of(name)?))
            .take(ASKED_MAX)
            .collect();
        (!asked.is_empty()).then_some(Heard::Question(asked))
    }

    /// Returns the robot and path that an instance's label stands for.
    fn named(&self, label: &[u8]) -> Option<(RobotId, u8)> {
        let (robot, path) = std::str::from_utf8(label).ok()?.split_once('-')?;
        let place = self.robots.iter().position(|name| name == robot)?;
        Some((RobotId(u16::try_from(place).ok()?), path.parse().ok()?))
    }

    fn proof(&self, robot: RobotId, path: u8, from: Ipv4Addr) -> [u8; 16] {
        let claim = format!("{} {path} {from}", self.robot(robot));
        let mut proof = [0; 16];
        proof.copy_from_slice(&blake3::keyed_hash(&self.proof_key, claim.as_bytes()).as_bytes()[..16]);
        proof
    }

    fn robot(&self, robot: RobotId) -> &str {
        self.robots.get(usize::from(robot.0)).map_or("", String::as_str)
    }

    fn instance(&self, robot: RobotId, path: u8) -> String {
        format!("{}-{path}.{SERVICE}", self.robot(robot))
    }

    fn host(&self, robot: RobotId, path: u8) -> String {
        format!("{}-{path}.local", self.robot(robot))
    }

    fn subtype(&self) -> String {
        format!("_{}._sub.{SERVICE}", self.team)
    }
}

/// Returns the first label of an instance's name of this service.
fn instance_of<'n>(name: &'n Name<'_>) -> Option<&'n [u8]> {
    let is_instance = name.get_labels().len() == 4 && name.is_subdomain_of(&Name::new_unchecked(SERVICE));
    name.as_bytes().next().filter(|_| is_instance)
}

/// Compares in a time that does not depend on where the difference is.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
    const ROBOTS: [&str; 3] = ["base", "r1", "r2"];

    fn names(authority: &[u8]) -> Names {
        Names::new("fleet", Some(authority), ROBOTS)
    }

    #[test]
    fn a_member_reads_what_a_member_announces() {
        let (ours, others) = (names(b"one"), names(b"two"));
        let datagram = ours.announcement(RobotId(2), 1, FROM, 7_460);
        assert!(datagram.len() < 400, "{}", datagram.len());
        let heard = |proved| {
            Ok(Some(Heard::Announcement {
                robot: RobotId(2),
                path: 1,
                proved,
            }))
        };
        assert_eq!(ours.read(&datagram, FROM), heard(true));
        let elsewhere = Ipv4Addr::new(10, 0, 0, 8);
        assert_eq!(ours.read(&datagram, elsewhere), heard(false), "a copy proves nothing");
        assert_eq!(others.read(&datagram, FROM), Err(Refusal::OtherTeam));
        let smaller = Names::new("fleet", Some(b"one"), ["base", "r1"]);
        assert_eq!(smaller.read(&datagram, FROM), Err(Refusal::UnknownRobot));
    }

    #[test]
    fn no_name_is_announced() {
        let names = Names::new("secret-team", Some(b"one"), ["secret-robot"]);
        for datagram in [
            names.announcement(RobotId(0), 0, FROM, 7_460),
            names.question([RobotId(0)], 0),
        ] {
            let text = String::from_utf8_lossy(&datagram);
            assert!(!text.contains("secret") && text.contains("_coorp"), "{text}");
        }
    }

    #[test]
    fn who_is_asked_for_knows() {
        let (ours, others) = (names(b"one"), names(b"two"));
        let question = ours.question([RobotId(0), RobotId(2)], 1);
        let asked = vec![(RobotId(0), 1), (RobotId(2), 1)];
        assert_eq!(ours.read(&question, FROM), Ok(Some(Heard::Question(asked))));
        assert_eq!(others.read(&question, FROM), Ok(None));
        let many = Names::new("fleet", None, vec!["r"; 200]).question((0..200).map(RobotId), 0);
        assert!(many.len() <= DATAGRAM_BYTES_MAX, "{}", many.len());
        let mut browse = Packet::new_query(0);
        let name = Name::new_unchecked("_CoorP._udp.local");
        let kind = QTYPE::TYPE(TYPE::PTR);
        browse
            .questions
            .push(Question::new(name, kind, QCLASS::CLASS(CLASS::IN), false));
        // DNS ignores case, but the comparison before the parse does not: robots always write the label the same way.
        let browse = browse.build_bytes_vec().unwrap();
        assert_eq!(ours.read(&browse, FROM), Ok(None));
        let browse = browse.to_ascii_lowercase();
        assert_eq!(ours.read(&browse, FROM), Ok(Some(Heard::QuestionForAll)));
    }

    #[test]
    fn a_thousand_addresses_in_a_reply_are_no_hint() {
        let ours = names(b"one");
        let datagram = ours.announcement(RobotId(1), 0, FROM, 7_460);
        let mut packet = Packet::parse(&datagram).unwrap();
        let host = packet.answers[4].name.clone();
        for last in 0..40 {
            let address = RData::A(A::from(Ipv4Addr::new(10, 0, 1, last)));
            packet
                .answers
                .push(ResourceRecord::new(host.clone(), CLASS::IN, TTL_S, address));
        }
        let forged = packet.build_bytes_vec_compressed().unwrap();
        let read = ours.read(&forged, Ipv4Addr::new(10, 0, 0, 66));
        assert!(
            matches!(read, Ok(Some(Heard::Announcement { proved: false, .. }))),
            "{read:?}"
        );
        let mut counted = datagram.clone();
        counted[6..8].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(ours.read(&counted, FROM), Err(Refusal::Garbled));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = names(b"one").read(&[SERVICE_LABEL, &bytes].concat(), FROM);
        }

        #[test]
        fn a_damaged_announcement_is_never_taken_for_anothers(
            places in proptest::collection::vec((0usize..400, any::<u8>()), 1..6),
        ) {
            let ours = names(b"one");
            let mut datagram = ours.announcement(RobotId(1), 0, FROM, 7_460);
            for (place, byte) in places {
                let length = datagram.len();
                datagram[place % length] = byte;
            }
            if let Ok(Some(Heard::Announcement { robot, path, proved: true })) = ours.read(&datagram, FROM) {
                prop_assert_eq!((robot, path), (RobotId(1), 0));
            }
        }
    }
}
