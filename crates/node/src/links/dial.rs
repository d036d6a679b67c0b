//! Opens links to the addresses at which discovery finds robots.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coorp_core::RobotId;
use quinn::Connection;

use super::{elsewhere, keep_alive, listen, port, transport, Links, Streams};
use crate::discovery::{Finder, Order, Outcome};
use crate::quic::{connect, Missed};
use crate::sync::lock;

/// Time limit of an attempt to connect; then the next begins. QUIC repeats a lost first packet after 150 and 450 ms,
/// and then only after 600 ms more.
const CONNECT_MAX: Duration = Duration::from_millis(600);

/// The number of retries with a card that cannot be used, and the time between them.
const CARD_TRIES: u32 = 60;
const CARD_RETRY: Duration = Duration::from_millis(500);

/// Attempts to open links as discovery orders, until the node closes.
pub(super) async fn dial(links: Weak<Links>, finder: Arc<Finder>) {
    loop {
        let order = finder.next().await;
        let Some(links) = links.upgrade() else { return };
        match order {
            Order::Dial {
                attempt,
                robot,
                path,
                address,
            } => {
                let finder = finder.clone();
                let tasks = links.tasks.clone();
                tasks.spawn("opening a link", async move {
                    let outcome = links.attempt(robot, path.0.into(), address).await;
                    finder.report(attempt, outcome);
                });
            }
            // The attempt will soon time out.
            Order::Stop(_) => {}
            Order::Rebind(path) => {
                let path = path.0.into();
                if !links.use_card(path) {
                    // The card may, for example, get its address a moment later.
                    let again = use_card_later(Arc::downgrade(&links), path);
                    links.tasks.spawn("binding to another card", again);
                }
            }
        }
    }
}

/// Retries to use the card that is now a path's interface.
async fn use_card_later(links: Weak<Links>, path: usize) {
    for _ in 0..CARD_TRIES {
        tokio::time::sleep(CARD_RETRY).await;
        match links.upgrade() {
            Some(links) if !links.use_card(path) => {}
            _ => return,
        }
    }
    if let Some(links) = links.upgrade() {
        let name = links.member.path_name(path);
        tracing::error!("{name} is now another card, which cannot be used: restart this robot; its log says more");
    }
}

impl Links {
    /// Binds all sockets of a path to the card that is now its interface. Returns whether that has succeeded.
    fn use_card(&self, path: usize) -> bool {
        let name = self.member.path_name(path);
        let used = self.rebind(path);
        match &used {
            Ok(()) => tracing::info!("{name} is now another card, and in use"),
            Err(error) => tracing::warn!("{name} is now another card: {error}"),
        }
        used.is_ok()
    }

    async fn connect(&self, to: RobotId, path: usize, address: SocketAddr) -> Result<(Connection, Streams), Missed> {
        let member = &self.member;
        let refused = |why: &str| Missed::new(Outcome::Refused, why);
        let endpoint = lock(&self.endpoints).get(path).cloned();
        let endpoint = endpoint.ok_or_else(|| refused("the node has closed"))?;
        let mut client = self.client.clone();
        let alive = keep_alive(member.team.robots.len());
        client.transport_config(transport(true, alive, member.lengths(path, address)));
        let connection = connect(
            &endpoint,
            client,
            (&member.team, &member.revoked, to),
            address,
            CONNECT_MAX,
        )
        .await?;
        // A robot that admits no stream must not collect links that wait for one.
        let streams = tokio::time::timeout(CONNECT_MAX, connection.open_bi()).await;
        let streams = streams.map_err(|_| refused("it admits no stream"))?;
        let streams = streams.map_err(|error| refused(&error.to_string()))?;
        Ok((connection, streams))
    }

    /// Attempts to open a link. It counts once the other end has announced itself.
    async fn attempt(self: &Arc<Self>, to: RobotId, path: usize, address: IpAddr) -> Outcome {
        let address = SocketAddr::new(address, port(&self.member.team, to, path));
        let (connection, streams) = match self.connect(to, path, address).await {
            Ok(opened) => opened,
            Err(missed) => {
                tracing::debug!(
                    "there is no link to {} over path {path}: {missed}",
                    self.member.name_of(to)
                );
                return missed.outcome;
            }
        };
        let began = self.robot.now();
        listen(self, &connection, to, path);
        let Some(up) = self.begin(&connection, (to, path), (true, began), streams) else {
            return Outcome::Refused;
        };
        tokio::select! {
            biased;
            () = up.heard.notified() => Outcome::Connected(to),
            // If another process runs as one end, nobody dials until `on_unlinked` says so. Otherwise the other robot
            // refuses this one.
            _ = connection.closed() => match up.is_over() || elsewhere(&connection).is_some() {
                true => Outcome::Connected(to),
                false => Outcome::Refused,
            },
            () = tokio::time::sleep(CONNECT_MAX) => {
                connection.close(0u8.into(), b"it says nothing");
                Outcome::NoAnswer
            }
        }
    }
}
