//! Bulk messages, and permits: a node compared with plain QUIC (quinn), with the same keys and windows.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use coorp_node::keys::Identity;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::crypto::ring::default_provider;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::server::WebPkiClientVerifier;
use quinn::rustls::{ClientConfig, RootCertStore, ServerConfig};
use quinn::{Endpoint, Incoming, TransportConfig, VarInt};
use serde_json::{json, Value};
use tokio::runtime::Runtime;

use crate::peer::{Ask, Obey, Peer, Role};
use crate::team::Team;
use crate::{turns, Extent, Outcome, Row};

/// The same window as a node's.
const WINDOW_BYTES: u32 = 8 << 20;
const THREADS: usize = 2;
const PROTOCOL: &[u8] = b"cost";
/// The name in every robot's certificate.
const SERVER_NAME: &str = "robot.coorp.internal";
/// A folder in memory, if this machine has it.
const MEMORY: &str = "/dev/shm";

/// Fills a message with incompressible bytes, once for each length.
pub fn fill(message: &mut Vec<u8>, bytes: usize) {
    if message.len() == bytes {
        return;
    }
    let mut random = 1u64;
    let words = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    });
    *message = words.flatten().take(bytes).collect();
}

/// An end of plain QUIC.
pub struct Quic {
    runtime: Runtime,
    endpoint: Endpoint,
    message: Vec<u8>,
}

impl Quic {
    pub fn open(team: &Path, name: &str, state: PathBuf) -> Outcome<Quic> {
        let team = coorp_team::load(team).map_err(|error| error.to_string())?;
        let (server, client) = configs(&Identity::of(&team, name)?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let mut endpoint = Endpoint::server(server, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        endpoint.set_default_client_config(client);
        let accepting = endpoint.clone();
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                if let Err(error) = receive(incoming, &state).await {
                    eprintln!("plain QUIC: {error}");
                }
            }
        });
        drop(entered);
        Ok(Quic {
            runtime,
            endpoint,
            message: Vec::new(),
        })
    }

    fn bulk(&mut self, to: &str, checked: bool) -> Outcome<(u64, u64)> {
        let began = Instant::now();
        let sent = send(&self.endpoint, to.parse()?, &self.message, checked);
        self.runtime.block_on(sent)?;
        Ok((began.elapsed().as_nanos() as u64, 0))
    }
}

impl Obey for Quic {
    fn obey(&mut self, ask: Ask) -> Outcome<Value> {
        Ok(match ask {
            Ask::Fill { bytes } => json!(fill(&mut self.message, bytes)),
            Ask::Bulk { to, checked } => json!(self.bulk(&to, checked)?),
            Ask::Address => json!(self.endpoint.local_addr()?.to_string()),
            _ => return Err("only QUIC does bulk".into()),
        })
    }
}

fn configs(identity: &Identity) -> Outcome<(quinn::ServerConfig, quinn::ClientConfig)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&identity.authority)?)?;
    let roots = Arc::new(roots);
    let chain = vec![CertificateDer::from_pem_file(&identity.certificate)?];
    let key = PrivateKeyDer::from_pem_file(&identity.key)?;
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES));
    let transport = Arc::new(transport);
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
    server.transport_config(transport.clone());
    let mut client = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
    client.transport_config(transport);
    Ok((server, client))
}

/// Sends a message on a new connection: whether it is to be checked, its hash if so, and its bytes.
async fn send(endpoint: &Endpoint, to: SocketAddr, message: &[u8], checked: bool) -> Outcome<()> {
    let mut head = vec![u8::from(checked)];
    if checked {
        head.extend(tokio::task::block_in_place(|| blake3::hash(message)).as_bytes());
    }
    let connection = endpoint.connect(to, SERVER_NAME)?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&head).await?;
    send.write_all(message).await?;
    send.finish()?;
    let mut answer = [0; 8];
    receive.read_exact(&mut answer).await?;
    connection.close(0u8.into(), b"done");
    if u64::from_le_bytes(answer) == message.len() as u64 {
        Ok(())
    } else {
        Err("plain QUIC did not deliver the message".into())
    }
}

/// Receives a message: drops it, or hashes it, writes it to the disk and syncs. Answers with its length.
async fn receive(incoming: Incoming, folder: &Path) -> Outcome<()> {
    let connection = incoming.await?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    let (mut checked, mut announced) = ([0; 1], [0; 32]);
    receive.read_exact(&mut checked).await?;
    let path = folder.join("message");
    let mut file = None;
    if checked[0] != 0 {
        receive.read_exact(&mut announced).await?;
        file = Some((File::create(&path)?, blake3::Hasher::new()));
    }
    let mut length = 0u64;
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        length += chunk.bytes.len() as u64;
        if let Some((file, hasher)) = &mut file {
            hasher.update(&chunk.bytes);
            file.write_all(&chunk.bytes)?;
        }
    }
    if let Some((file, hasher)) = file {
        if *hasher.finalize().as_bytes() != announced {
            length = 0;
        }
        file.sync_all()?;
        std::fs::remove_file(&path)?;
    }
    send.write_all(&length.to_le_bytes()).await?;
    send.finish()?;
    connection.closed().await;
    Ok(())
}

/// A contender: who sends bulk, and how.
struct Contender {
    name: &'static str,
    /// The name of the same contender without the time to hand over the message, if that is measured separately.
    written: Option<&'static str>,
    /// The index of its pair of processes.
    pair: usize,
    checked: bool,
}

const CONTENDERS: [Contender; 5] = [
    Contender {
        name: "quinn",
        written: None,
        pair: 0,
        checked: false,
    },
    Contender {
        name: "quinn, BLAKE3, to memory",
        written: None,
        pair: 1,
        checked: true,
    },
    Contender {
        name: "coorp, to memory",
        written: Some("coorp, to memory, written"),
        pair: 3,
        checked: true,
    },
    Contender {
        name: "quinn, BLAKE3, to disk",
        written: None,
        pair: 0,
        checked: true,
    },
    Contender {
        name: "coorp, to disk",
        written: Some("coorp, to disk, written"),
        pair: 2,
        checked: true,
    },
];

pub fn measure(extent: &Extent) -> Outcome<Vec<Row>> {
    let (team, in_memory) = (Team::make()?, Team::make()?);
    let memory = Memory::make()?;
    let mut pairs = [
        quic_pair(&team, &team.folder("plain")?)?,
        quic_pair(&team, &memory.0)?,
        team.robots(None)?,
        in_memory.robots(Some(&memory.0))?,
    ];
    let mut found: [Found; CONTENDERS.len()] = Default::default();
    for round in 0..extent.bulk_rounds {
        for turn in turns(CONTENDERS.len(), round) {
            let contender = &CONTENDERS[turn];
            run(
                &mut pairs[contender.pair],
                contender,
                extent.bulk_bytes,
                &mut found[turn],
            )?;
        }
    }
    let mut rows = Vec::new();
    for (contender, mut found) in CONTENDERS.iter().zip(found) {
        let mut row = Row::new("bulk", contender.name, extent.bulk_bytes, found.took, 0)?;
        found.processor.sort_unstable();
        let median = found.processor.get(found.processor.len() / 2);
        row.processor_ms = median.map(|used| *used as f64 / 1e6);
        rows.push(row);
        if let Some(name) = contender.written {
            rows.push(Row::new("bulk", name, extent.bulk_bytes, found.once_written, 0)?);
        }
    }
    let permits = pairs[2][1].ask(&Ask::Permits { count: extent.permits })?;
    rows.push(Row::new("permit", "coorp", 0, permits, 0)?);
    Ok(rows)
}

/// A folder in memory, or, without one, among the temporary files. Removed when it is dropped.
struct Memory(PathBuf);

impl Memory {
    fn make() -> Outcome<Memory> {
        let base = Some(PathBuf::from(MEMORY)).filter(|memory| memory.is_dir());
        let base = base.unwrap_or_else(std::env::temp_dir);
        let folder = base.join(format!("coorp-cost-memory-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Memory(folder))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn quic_pair(team: &Team, state: &Path) -> Outcome<[Peer; 2]> {
    let start = |name: &str| {
        Peer::start(&Role::Quic {
            team: team.file.clone(),
            name: name.to_owned(),
            state: state.to_owned(),
        })
    };
    Ok([start("one")?, start("two")?])
}

/// The measurements of a contender, nanoseconds.
#[derive(Default)]
struct Found {
    took: Vec<u64>,
    once_written: Vec<u64>,
    /// The processor time of both ends.
    processor: Vec<u64>,
}

/// Sends one message.
fn run([receiver, sender]: &mut [Peer; 2], contender: &Contender, bytes: usize, found: &mut Found) -> Outcome<()> {
    let ours = contender.name.starts_with("coorp");
    let to = if ours {
        "one".to_owned()
    } else {
        receiver.ask(&Ask::Address)?
    };
    sender.ask::<()>(&Ask::Fill { bytes })?;
    let before = processor(receiver, sender)?;
    let checked = contender.checked;
    let (took, giving): (u64, u64) = sender.ask(&Ask::Bulk { to, checked })?;
    found.processor.push(processor(receiver, sender)? - before);
    found.took.push(took);
    found.once_written.push(took - giving);
    if ours && receiver.ask::<Vec<u64>>(&Ask::Clear)? != [bytes as u64] {
        return Err("the message was not delivered whole exactly once".into());
    }
    Ok(())
}

fn processor(receiver: &mut Peer, sender: &mut Peer) -> Outcome<u64> {
    Ok(receiver.ask::<u64>(&Ask::Processor)? + sender.ask::<u64>(&Ask::Processor)?)
}
