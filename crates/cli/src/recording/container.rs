//! MCAP files, read as a stream. No index is needed, so a file whose writer was killed is read as far as it goes.
//!
//! Memory is limited by the largest record, and a length that may be damaged is trusted only as far as there are bytes.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};

use mcap::records::{op, Record};
use mcap::sans_io::{LinearReadEvent, LinearReader, LinearReaderOptions};
use mcap::McapError;

use super::{payload_bytes, Message, See, Stopped};

/// The largest record to read, as large as the largest message of a team file.
const RECORD_BYTES_MAX: usize = 1 << 30;
/// Number of bytes read at once.
const READ_BYTES: usize = 1 << 18;

/// Reads to the end of the data and passes each message to `see`.
pub fn read(from: &mut dyn Read, see: &mut See<'_>) -> Result<(), Stopped> {
    let options = LinearReaderOptions::default()
        .with_validate_chunk_crcs(true)
        .with_record_length_limit(RECORD_BYTES_MAX);
    let mut reader = LinearReader::new_with_options(options);
    let mut state = State::default();
    let mut read_bytes = 0u64;
    while let Some(event) = reader.next_event() {
        match event {
            Ok(LinearReadEvent::ReadRequest(_)) => {
                // Read in fixed pieces whatever is requested: after damage, the request may be arbitrarily large.
                let read = match from.read(reader.insert(READ_BYTES)) {
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(damage(read_bytes, &error.to_string())),
                };
                reader.notify_read(read);
                read_bytes += read as u64;
            }
            Ok(LinearReadEvent::Record { opcode, data }) => {
                if opcode == op::DATA_END {
                    break;
                }
                state
                    .record(opcode, data, see)
                    .map_err(|error| stopped(&error, read_bytes))?;
            }
            Err(error) => return Err(stopped(&error, read_bytes)),
        }
    }
    match state.of_no_topic {
        0 => Ok(()),
        count => Err(Stopped::Damage(format!(
            "does not give the topic of {count} messages, which were left out"
        ))),
    }
}

/// The facts known about the file so far.
#[derive(Default)]
struct State {
    schemas: HashMap<u16, String>,
    channels: HashMap<u16, Channel>,
    of_no_topic: u64,
}

struct Channel {
    topic: String,
    schema: u16,
    cdr: bool,
}

impl State {
    fn record(&mut self, opcode: u8, data: &[u8], see: &mut See<'_>) -> Result<(), McapError> {
        // The other records may be large, and contain nothing relevant.
        if ![op::SCHEMA, op::CHANNEL, op::MESSAGE].contains(&opcode) {
            return Ok(());
        }
        match mcap::parse_record(opcode, data)? {
            Record::Schema { header, .. } => {
                self.schemas.insert(header.id, header.name);
            }
            Record::Channel(channel) => {
                let cdr = channel.message_encoding == "cdr";
                let (topic, schema) = (channel.topic, channel.schema_id);
                self.channels.insert(channel.id, Channel { topic, schema, cdr });
            }
            Record::Message { header, data } => match self.channels.get(&header.channel_id) {
                Some(channel) => see(Message {
                    topic: &channel.topic,
                    schema: self.schemas.get(&channel.schema).map_or("", String::as_str),
                    at_ns: header.log_time,
                    bytes: if channel.cdr {
                        payload_bytes(&data)
                    } else {
                        data.len() as u64
                    },
                }),
                None => self.of_no_topic += 1,
            },
            _ => {}
        }
        Ok(())
    }
}

fn stopped(error: &McapError, read_bytes: u64) -> Stopped {
    match error {
        McapError::UnexpectedEof => Stopped::Damage(format!(
            "is truncated after {read_bytes} bytes: its recorder was killed, or its disk was full"
        )),
        McapError::UnsupportedCompression(name) => Stopped::Unusable(format!(
            "is compressed with '{name}', which is not supported; rewrite it: mcap compress --compression zstd"
        )),
        McapError::RecordTooLarge { len, .. } => damage(
            read_bytes,
            &format!("a record of {len} bytes exceeds the limit of 1 GiB"),
        ),
        error => damage(read_bytes, &error.to_string()),
    }
}

fn damage(read_bytes: u64, why: &str) -> Stopped {
    Stopped::Damage(format!("is damaged before byte {read_bytes}: {why}"))
}
