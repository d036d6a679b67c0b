//! For the fuzz targets (`fuzz/`): a robot's QUIC for links, configured as at its port but without the port, and the
//! check of wrapped packets.

use std::net::Ipv4Addr;

use quinn::{ClientConfig, EndpointConfig, MtuDiscoveryConfig, ServerConfig};

use crate::ground::{Ground, Linux};
use crate::keys::Identity;
use crate::links::{transport, KEEP_ALIVE, PROTOCOL};
use crate::quic::Credentials;
use crate::Error;

/// Returns whether a packet that a robot has wrapped goes to the kernel, if these are its address and the receiver's.
pub fn unwraps(packet: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> bool {
    crate::protect::accepted(packet, |address| address == from, |address| address == to).is_ok()
}

/// The configurations of QUIC for links.
#[derive(Clone, Debug)]
pub struct Quic {
    /// For the endpoint.
    pub endpoint: EndpointConfig,
    /// For links that others open.
    pub server: ServerConfig,
    /// For links that this robot opens.
    pub client: ClientConfig,
}

impl Quic {
    /// Returns the configurations of a robot with keys.
    ///
    /// # Errors
    /// If the keys cannot be used, or no socket can be opened.
    pub fn of(identity: &Identity) -> Result<Quic, Error> {
        Quic::with(&Credentials::of(identity)?)
    }

    /// Returns the configurations of a peer that makes its own certificate under a name, and admits anybody.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn of_anybody(name: &str) -> Result<Quic, Error> {
        Quic::with(&Credentials::of_anybody(name)?)
    }

    fn with(credentials: &Credentials) -> Result<Quic, Error> {
        // The socket's receive buffer determines how long datagrams may be.
        let socket = Linux.bind((Ipv4Addr::LOCALHOST, 0).into(), None);
        let socket = socket.map_err(|error| Error::Socket("cannot open a socket".to_owned(), error))?;
        let (mut server, mut client) = (credentials.server(PROTOCOL)?, credentials.client(PROTOCOL)?);
        let lengths = MtuDiscoveryConfig::default;
        server.transport_config(transport(false, KEEP_ALIVE, lengths()));
        client.transport_config(transport(true, KEEP_ALIVE, lengths()));
        Ok(Quic {
            endpoint: credentials.endpoint(&Linux, &*socket),
            server,
            client,
        })
    }
}
