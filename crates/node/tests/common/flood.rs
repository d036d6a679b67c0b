//! QUIC handshakes that begin and never end.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn::rustls::{crypto::ring, ClientConfig, RootCertStore};
use quinn_proto::{Connection, DatagramEvent, Endpoint, EndpointConfig};

/// A flood of handshakes that never continue, until it is dropped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    /// The number of handshakes begun, and the number that proved their address.
    begun: Arc<AtomicU64>,
    proved: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// The maximum number of handshakes that wait for a Retry.
const WAITING_MAX: usize = 512;

impl Flood {
    /// Begins `per_second` handshakes a second, from these addresses in turn, to a robot's ports for bulk and for
    /// control in turn. With `prove`, they answer a Retry, but nothing else.
    pub fn new(doors: [SocketAddr; 2], from: &[[u8; 4]], per_second: u32, prove: bool) -> Flood {
        let [bulk, control] = doors;
        let targets = [(client("coorp-bulk/1"), bulk), (client("coorp-control/1"), control)];
        let sockets = from.iter().map(|from| {
            let socket = UdpSocket::bind(SocketAddr::from((*from, 0))).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let sockets: Vec<UdpSocket> = sockets.collect();
        let (stop, begun, proved) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::default());
        let (stopped, counts) = (stop.clone(), (Arc::clone(&begun), Arc::clone(&proved)));
        let run = move || flood(&targets, &sockets, per_second, prove, &stopped, &counts);
        Flood {
            stop,
            begun,
            proved,
            thread: Some(std::thread::spawn(run)),
        }
    }

    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub fn proved(&self) -> u64 {
        self.proved.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn flood(
    targets: &[(quinn::ClientConfig, SocketAddr)],
    sockets: &[UdpSocket],
    per_second: u32,
    prove: bool,
    stop: &AtomicBool,
    (begun, proved): &(Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let started = Instant::now();
    let mut waiting: BTreeMap<Vec<u8>, (Endpoint, Connection)> = BTreeMap::new();
    let (mut packet, mut buffer) = (vec![0; 2_000], Vec::new());
    for number in 0u32.. {
        let turn = number as usize;
        let ((config, to), socket) = (&targets[turn % targets.len()], &sockets[turn % sockets.len()]);
        while started.elapsed() * per_second < Duration::from_secs(1) * number {
            std::thread::sleep(Duration::from_millis(1));
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let connect = endpoint.connect(Instant::now(), config.clone(), *to, "robot.coorp.internal");
        let (_, mut connection) = connect.unwrap();
        buffer.clear();
        let first = connection.poll_transmit(Instant::now(), 1, &mut buffer).unwrap();
        let _ = socket.send_to(&buffer[..first.size], to);
        begun.fetch_add(1, Ordering::Relaxed);
        // After the version: the other end's ID, then its own.
        let other = usize::from(buffer[5]);
        let own = &buffer[7 + other..][..usize::from(buffer[6 + other])];
        waiting.insert(own.to_vec(), (endpoint, connection));
        while waiting.len() > WAITING_MAX {
            waiting.pop_first();
        }
        for socket in sockets {
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                let packet = &packet[..length];
                // A Retry: the ID of its receiver follows the version.
                if !prove || packet[0] & 0xf0 != 0xf0 {
                    continue;
                }
                let Some((mut endpoint, mut connection)) = waiting.remove(&packet[6..][..usize::from(packet[5])])
                else {
                    continue;
                };
                let (now, bytes) = (Instant::now(), BytesMut::from(packet));
                buffer.clear();
                if let Some(DatagramEvent::ConnectionEvent(_, event)) =
                    endpoint.handle(now, from, None, None, bytes, &mut buffer)
                {
                    connection.handle_event(event);
                    buffer.clear();
                    if let Some(again) = connection.poll_transmit(now, 1, &mut buffer) {
                        let _ = socket.send_to(&buffer[..again.size], from);
                        proved.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// Returns a client without keys that trusts nobody, because no handshake gets that far.
fn client(protocol: &str) -> quinn::ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty());
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(Arc::new(config))
}
