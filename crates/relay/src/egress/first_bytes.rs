//! The first bytes of a tunnel that passes untouched: TLS in it must be for the tunnel's host.
//!
//! Otherwise a client could open a tunnel to a listed host, and ask the servers behind its address for another one. The
//! relay reads the name in the TLS hello, and forwards nothing before it. A hello without a name is for another host, and so
//! is an encrypted one (RFC 9849) whose outer name is not the tunnel's host. A server can ask for a second hello (RFC 8446, section 4.1.4),
//! which must be for the host too. Nothing may stand before a hello, because some servers skip alerts and other records.
//! What follows is encrypted: the relay does not see for which host an HTTP request within TLS is. Nor does it see the
//! inner name of an encrypted hello whose outer name is the tunnel's host: the servers behind that host choose whom it
//! reaches.

use std::io;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::config::TunnelProtocols;

/// Types of TLS records (RFC 8446, section 5.1; RFC 6520): `change_cipher_spec` is the first and `heartbeat` the last.
const CHANGE_CIPHER_SPEC: u8 = 0x14;
const HANDSHAKE: u8 = 0x16;
const APPLICATION_DATA: u8 = 0x17;
const HEARTBEAT: u8 = 0x18;
/// Bytes before the content of a record, and before that of a handshake message.
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Type of a server's hello (RFC 8446, section 4).
const SERVER_HELLO: u8 = 2;
/// Position of the random bytes in a record with a server's hello.
const RANDOM: std::ops::Range<usize> = 11..43;
/// The random bytes of a request for a second hello (RFC 8446, section 4.1.3): the SHA-256 of "HelloRetryRequest".
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Most bytes of a client that wait for a decision.
const BYTES_MAX: usize = 64 << 10;

/// Causes of a tunnel's end, for the log.
const NO_HELLO: &str = "the client's first bytes are no TLS hello";
const ANOTHER_HOST: &str = "the TLS hello is for another host, or names none";
const TOO_LATE: &str = "no TLS hello came in time";

/// Forwards the first bytes of both sides until the rest can pass unread.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for bytes that must not pass, and [`io::ErrorKind::TimedOut`] for a hello that is not
/// complete after `hello_max`. Other errors are of the two connections.
pub async fn forward<C, U>(
    client: &mut C,
    upstream: &mut U,
    host: &str,
    protocols: TunnelProtocols,
    hello_max: Duration,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut bytes = Vec::with_capacity(2 << 10);
    if protocols == TunnelProtocols::Any && !begins_tls(client, upstream, &mut bytes).await? {
        return upstream.write_all(&bytes).await;
    }
    let end = timeout(hello_max, hello(client, &mut bytes, host, false)).await.map_err(|_| late())??;
    let held = bytes.split_off(end);
    upstream.write_all(&bytes).await?;
    upstream.flush().await?;
    second_hello(client, upstream, held, host, hello_max).await
}

/// Returns true if the client's first bytes can be TLS. A server that speaks first does not speak TLS; its bytes pass.
async fn begins_tls<C, U>(client: &mut C, upstream: &mut U, bytes: &mut Vec<u8>) -> io::Result<bool>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + Unpin,
{
    let mut response = Vec::with_capacity(2 << 10);
    loop {
        tokio::select! {
            read = client.read_buf(bytes) => filled(read)?,
            read = upstream.read_buf(&mut response) => {
                filled(read)?;
                client.write_all(&response).await?;
                return Ok(false);
            }
        }
        match bytes.as_slice() {
            [CHANGE_CIPHER_SPEC..=HEARTBEAT, ..] => return Ok(true),
            // A hello of SSL 2, which names no host: a length, and the type of the message.
            [0x80..=0xff, _, kind, ..] => return Ok(*kind == 1),
            [0x80..=0xff, ..] => {}
            _ => return Ok(false),
        }
    }
}

/// Waits for the response to a first hello. If it asks for a second one, judges that. Forwards all bytes then.
async fn second_hello<C, U>(
    client: &mut C,
    upstream: &mut U,
    mut held: Vec<u8>,
    host: &str,
    hello_max: Duration,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut response = Vec::with_capacity(2 << 10);
    while response.len() < RANDOM.end && response.first().is_none_or(|kind| *kind == HANDSHAKE) {
        tokio::select! {
            read = upstream.read_buf(&mut response) => filled(read)?,
            read = client.read_buf(&mut held), if held.len() < BYTES_MAX => filled(read)?,
        }
    }
    let is_retry =
        response.get(RECORD_HEADER) == Some(&SERVER_HELLO) && response.get(RANDOM) == Some(&RETRY_RANDOM[..]);
    client.write_all(&response).await?;
    client.flush().await?;
    if is_retry {
        timeout(hello_max, hello(client, &mut held, host, true)).await.map_err(|_| late())??;
    }
    upstream.write_all(&held).await
}

/// Reads a client's records until a hello is complete, and checks that it is for the host. Returns the end of its last
/// record. Before a second hello, early data and a change of the cipher may stand.
async fn hello<C: AsyncRead + Unpin>(
    client: &mut C,
    bytes: &mut Vec<u8>,
    host: &str,
    is_second: bool,
) -> io::Result<usize> {
    let mut acceptor = Acceptor::default();
    let (mut at, mut message) = (0, Vec::new());
    loop {
        let end = record_end(client, bytes, at).await?;
        let record = bytes.get(at..end).unwrap_or_default();
        at = end;
        match record.first() {
            Some(&HANDSHAKE) => {}
            Some(&(CHANGE_CIPHER_SPEC | APPLICATION_DATA)) if is_second && message.is_empty() => continue,
            _ => return Err(invalid(NO_HELLO)),
        }
        message.extend_from_slice(record.get(RECORD_HEADER..).unwrap_or_default());
        let mut unread = record;
        while !unread.is_empty() {
            acceptor.read_tls(&mut unread).map_err(|_| invalid(NO_HELLO))?;
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let is_own =
                        accepted.client_hello().server_name().is_some_and(|name| name.eq_ignore_ascii_case(host));
                    let is_alone = unread.is_empty() && message_end(&message) == Some(message.len());
                    return if is_own && is_alone { Ok(end) } else { Err(invalid(ANOTHER_HOST)) };
                }
                Ok(None) => {}
                Err(_) => return Err(invalid(NO_HELLO)),
            }
        }
    }
}

/// End of a handshake message.
fn message_end(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low, ..] = *message else { return None };
    Some(MESSAGE_HEADER + u32::from_be_bytes([0, high, middle, low]) as usize)
}

/// Reads until a record is complete, and returns its end.
async fn record_end<C: AsyncRead + Unpin>(client: &mut C, bytes: &mut Vec<u8>, at: usize) -> io::Result<usize> {
    loop {
        if let Some([_, _, _, high, low]) = bytes.get(at..at + RECORD_HEADER) {
            let end = at + RECORD_HEADER + usize::from(u16::from_be_bytes([*high, *low]));
            if end <= bytes.len() {
                return Ok(end);
            }
        }
        if bytes.get(at).is_some_and(|kind| !(CHANGE_CIPHER_SPEC..=HEARTBEAT).contains(kind)) {
            return Err(invalid(NO_HELLO));
        }
        if bytes.len() >= BYTES_MAX {
            return Err(invalid("the TLS hello is too long"));
        }
        filled(client.read_buf(bytes).await)?;
    }
}

fn filled(read: io::Result<usize>) -> io::Result<()> {
    if read? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

fn invalid(cause: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, TOO_LATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use tokio::io::duplex;

    /// A client's hello for a host.
    fn hello_for(host: &'static str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let mut client = rustls::ClientConnection::new(Arc::new(config), host.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn the_cause_of_a_closed_tunnel_is_told() {
        let mut broken = hello_for("a.example");
        broken[5] = SERVER_HELLO;
        for (sent, expected) in [
            (hello_for("b.example"), ANOTHER_HOST),
            // An address is no name in a hello.
            (hello_for("192.0.2.1"), ANOTHER_HOST),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), NO_HELLO),
            (broken, NO_HELLO),
            (vec![HANDSHAKE, 3, 1, 0xff, 0xff], TOO_LATE),
            (Vec::new(), TOO_LATE),
        ] {
            let (mut client, mut at_relay) = duplex(BYTES_MAX);
            let (mut to_server, _server) = duplex(BYTES_MAX);
            client.write_all(&sent).await.unwrap();
            let wait = Duration::from_millis(50);
            let outcome = forward(&mut at_relay, &mut to_server, "a.example", TunnelProtocols::Tls, wait).await;
            assert_eq!(outcome.unwrap_err().to_string(), expected, "{sent:x?}");
        }
    }
}
