//! A single request and its response on a connection, outside of a load.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sealwire_wire::{MessageHeader, Response};

use crate::fault::Fault;
use crate::frames;
use crate::stream::Stream;

/// Timeout of each connection set-up and of each request before a load.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Sends the data in a stream and waits for the response to [`frames::MSGID`].
pub(crate) fn ask(stream: &mut Stream, scratch: &mut [u8]) -> Result<Vec<u8>, Fault> {
    let end = Instant::now() + PATIENCE;
    let mut answer = None;
    while answer.is_none() {
        stream.flush();
        if let Some(why) = stream.ended() {
            return Err(Fault::Lost(why.to_owned()));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Fault::Failed(format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )));
        }
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, stream.wants_write());
        let wait = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(stream, flags)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        stream.receive(scratch, |stream, boundary, message| match boundary.header {
            MessageHeader::Response {
                msgid: frames::MSGID,
            } => answer = Some(message.to_vec()),
            _ => end_by_notice(stream, message),
        });
    }
    Ok(answer.unwrap_or_default())
}

/// Ends a stream with the reason in `message`. A message that is not a response states why the
/// engine closes the connection.
pub(crate) fn end_by_notice(stream: &mut Stream, message: &[u8]) {
    let why = sealwire_wire::decode_protocol_error(message);
    stream.end(why.map_or_else(|error| error.to_string(), |error| error.to_string()));
}

/// Returns the result in a response.
pub(crate) fn result(answer: &[u8]) -> Result<&[u8], Fault> {
    let reply = Response::decode(answer).map_err(|error| Fault::Wrong(error.to_string()))?;
    reply
        .outcome
        .map_err(|error| Fault::Failed(error.to_string()))
}
