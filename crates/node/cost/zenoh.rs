//! Plain Zenoh, to compare a node's control with.

use std::sync::Arc;

use ::zenoh::{Config, Session, Wait};
use coorp_node::keys::Identity;
use serde_json::{json, Value};

use crate::control::{send, Times};
use crate::peer::{Ask, Obey, Peer, Role};
use crate::team::{free_ports, Team};
use crate::Outcome;

/// The keys of its messages, by the way of receiving them.
pub const CALLBACK: &str = "cost/callback";
pub const RECV: &str = "cost/recv";

/// A session of Zenoh, with Zenoh's defaults except for its endpoints.
pub struct Plain {
    session: Session,
    times: Arc<Times>,
}

impl Plain {
    pub fn open(config: &str) -> Outcome<Plain> {
        Ok(Plain {
            session: ::zenoh::open(Config::from_json5(config)?).wait()?,
            times: Arc::default(),
        })
    }

    fn listen(&self) -> Outcome<()> {
        let times = self.times.clone();
        let callback = self.session.declare_subscriber(CALLBACK);
        let callback = callback.callback(move |sample| times.note(CALLBACK, &sample.payload().to_bytes()));
        callback.background().wait()?;
        let (subscriber, times) = (self.session.declare_subscriber(RECV).wait()?, self.times.clone());
        std::thread::spawn(move || {
            while let Ok(sample) = subscriber.recv() {
                times.note(RECV, &sample.payload().to_bytes());
            }
        });
        Ok(())
    }
}

impl Obey for Plain {
    fn obey(&mut self, ask: Ask) -> Outcome<Value> {
        Ok(match ask {
            Ask::Listen => json!(self.listen()?),
            Ask::Send {
                key,
                bytes,
                count,
                period_us,
            } => {
                let publisher = self.session.declare_publisher(key).wait()?;
                json!(send(bytes, count, period_us, |message| publisher.put(message).wait())?)
            }
            Ask::Collect { key } => json!(self.times.take(&key)),
            _ => return Err("only Zenoh does control here".into()),
        })
    }
}

/// Returns two processes with a session each, over this protocol.
pub fn pair(team: &Team, protocol: &str) -> Outcome<[Peer; 2]> {
    let endpoint = format!("{protocol}/127.0.0.1:{}", free_ports(1)?);
    let start = |name: &str, listen: &[&str], connect: &[&str]| {
        let mut config = json!({
            "mode": "peer",
            "listen": { "endpoints": listen },
            "connect": { "endpoints": connect },
            // Otherwise the pairs would find each other.
            "scouting": { "multicast": { "enabled": false } },
        });
        if protocol != "tcp" {
            let identity = Identity::of(&coorp_team::load(&team.file).map_err(|error| error.to_string())?, name)?;
            config["transport"]["link"]["tls"] = json!({
                "enable_mtls": true,
                "verify_name_on_connect": false,
                "root_ca_certificate": identity.authority,
                "listen_private_key": identity.key,
                "listen_certificate": identity.certificate,
                "connect_private_key": identity.key,
                "connect_certificate": identity.certificate,
            });
        }
        let config = config.to_string();
        Peer::start(&Role::Zenoh { config })
    };
    Ok([start("one", &[&endpoint], &[])?, start("two", &[], &[&endpoint])?])
}
