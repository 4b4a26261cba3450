//! Checks the first bytes of a tunnel that passes untouched: TLS in it must be for the tunnel's
//! host.
//!
//! Without this check, a client could open a tunnel to a listed host and reach another host behind
//! the same address. The relay reads the server name in the TLS ClientHello and forwards no earlier
//! byte.
//!
//! * A ClientHello without a server name is rejected.
//! * An encrypted ClientHello (RFC 9849) is rejected unless its outer name is the tunnel's host.
//! * A server can request a second ClientHello (RFC 8446, section 4.1.4), which is checked too.
//! * No record may precede a ClientHello, because some servers skip alerts and other records.
//!
//! The rest of the connection is encrypted. The relay cannot see the host of an HTTP request within
//! TLS, nor the inner name of an encrypted ClientHello. The servers behind the tunnel's host choose
//! the destination of such requests.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::config::TunnelProtocols;

/// Types of TLS records (RFC 8446, section 5.1; RFC 6520): `change_cipher_spec` is the first and
/// `heartbeat` the last.
const CHANGE_CIPHER_SPEC: u8 = 0x14;
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
const APPLICATION_DATA: u8 = 0x17;
const HEARTBEAT: u8 = 0x18;
/// Length of the header of a record, and of the header of a handshake message.
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Types of handshake messages (RFC 8446, section 4).
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Position of the random bytes in a server's hello.
const RANDOM: std::ops::Range<usize> = 6..38;
/// Type of the extension with the host (RFC 6066, section 3), and the only type of name in it.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Longest content of an unencrypted record.
const RECORD_BYTES_MAX: usize = 1 << 14;
/// Random bytes of a HelloRetryRequest (RFC 8446, section 4.1.3): the SHA-256 of
/// "HelloRetryRequest".
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Most bytes of a client that are held until the relay decides.
const BYTES_MAX: usize = 64 << 10;

/// Reasons why a tunnel was closed, for the log.
const NO_HELLO: &str = "the client's first bytes are not a TLS ClientHello";
const ANOTHER_HOST: &str = "the TLS ClientHello is for another host, or has no server name";
const TOO_LATE: &str = "the TLS ClientHello did not arrive in time";

/// Forwards the first bytes of both sides until the rest can pass unchecked.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for bytes that must not pass, and [`io::ErrorKind::TimedOut`] for
/// a ClientHello that is incomplete after `hello_max`. The two connections cause all other errors.
pub async fn forward_first_bytes<C, U>(
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
    if protocols == TunnelProtocols::Any && !starts_with_tls(client, upstream, &mut bytes).await? {
        return upstream.write_all(&bytes).await;
    }
    let end = timeout(
        hello_max,
        read_client_hello(client, &mut bytes, host, false),
    )
    .await
    .map_err(|_| timeout_error())??;
    let held = bytes.split_off(end);
    upstream.write_all(&bytes).await?;
    upstream.flush().await?;
    forward_second_hello(client, upstream, held, host, hello_max).await
}

/// Returns true if the client's first bytes can be TLS. Returns false if the server sends first,
/// because a TLS server never does. The bytes of such a server pass.
async fn starts_with_tls<C, U>(
    client: &mut C,
    upstream: &mut U,
    bytes: &mut Vec<u8>,
) -> io::Result<bool>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + Unpin,
{
    let mut response = Vec::with_capacity(2 << 10);
    loop {
        tokio::select! {
            read = client.read_buf(bytes) => check_not_ended(read)?,
            read = upstream.read_buf(&mut response) => {
                check_not_ended(read)?;
                client.write_all(&response).await?;
                return Ok(false);
            }
        }
        match bytes.as_slice() {
            [CHANGE_CIPHER_SPEC..=HEARTBEAT, ..] => return Ok(true),
            // An SSL 2 ClientHello has a length, the type of the message, and no server name.
            [0x80..=0xff, _, kind, ..] => return Ok(*kind == 1),
            [0x80..=0xff, ..] => {}
            _ => return Ok(false),
        }
    }
}

/// Waits for the response to the first ClientHello. If the server requests a second one, checks
/// that too. Then forwards all bytes.
async fn forward_second_hello<C, U>(
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
    let is_retry = loop {
        if let Some(is_retry) = is_hello_retry(&response) {
            break is_retry;
        }
        if response.len() >= BYTES_MAX {
            return Err(invalid_data(
                "the response to the TLS ClientHello is too long",
            ));
        }
        tokio::select! {
            read = upstream.read_buf(&mut response) => if read? == 0 { break false },
            read = client.read_buf(&mut held), if held.len() < BYTES_MAX => check_not_ended(read)?,
        }
    };
    client.write_all(&response).await?;
    client.flush().await?;
    if is_retry {
        timeout(hello_max, read_client_hello(client, &mut held, host, true))
            .await
            .map_err(|_| timeout_error())??;
    }
    upstream.write_all(&held).await
}

/// Reads a client's records until a ClientHello is complete, and checks that it is for the host.
/// Returns the end of its last record. Before a second ClientHello, early data and a
/// `change_cipher_spec` record can arrive.
async fn read_client_hello<C: AsyncRead + Unpin>(
    client: &mut C,
    bytes: &mut Vec<u8>,
    host: &str,
    is_second: bool,
) -> io::Result<usize> {
    let mut at = 0;
    let mut message = Vec::new();
    loop {
        let end = record_end(client, bytes, at).await?;
        let record = bytes.get(at..end).unwrap_or_default();
        at = end;
        match record.first() {
            Some(&HANDSHAKE) => {}
            Some(&(CHANGE_CIPHER_SPEC | APPLICATION_DATA)) if is_second && message.is_empty() => {
                continue;
            }
            _ => return Err(invalid_data(NO_HELLO)),
        }

        let content = record.get(RECORD_HEADER..).unwrap_or_default();
        // TLS records have a version from SSL 3 to TLS 1.2, and a record is never empty.
        if record.get(1) != Some(&3) || content.is_empty() || content.len() > RECORD_BYTES_MAX {
            return Err(invalid_data(NO_HELLO));
        }

        message.extend_from_slice(content);
        if message.first() != Some(&CLIENT_HELLO) {
            return Err(invalid_data(NO_HELLO));
        }
        let Some(len) = message_end(&message).filter(|len| *len <= message.len()) else {
            continue;
        };

        let name = server_name(message.get(MESSAGE_HEADER..len).unwrap_or_default())
            .ok_or(invalid_data(NO_HELLO))?;
        let is_own = name.is_some_and(|name| name.eq_ignore_ascii_case(host.as_bytes()));
        // Nothing would check further bytes in the last record of the ClientHello.
        return if is_own && len == message.len() {
            Ok(end)
        } else {
            Err(invalid_data(ANOTHER_HOST))
        };
    }
}

/// Returns the host in a ClientHello (RFC 8446, section 4.1.2, with the forms of older versions).
/// The outer `None` is for a malformed ClientHello, the inner `None` for one without a server name.
fn server_name(hello: &[u8]) -> Option<Option<&[u8]>> {
    let mut rest = hello;
    take_bytes(&mut rest, 2 + 32)?; // Version and random bytes.
    take_vector(&mut rest, 1).filter(|session| session.len() <= 32)?;
    take_vector(&mut rest, 2)
        .filter(|suites| !suites.is_empty() && suites.len().is_multiple_of(2))?;
    take_vector(&mut rest, 1).filter(|compressions| !compressions.is_empty())?;
    // In TLS 1.0, a ClientHello can have no extensions.
    if rest.is_empty() {
        return Some(None);
    }

    let mut extensions = take_vector(&mut rest, 2).filter(|_| rest.is_empty())?;
    let mut kinds = HashSet::new();
    let mut name = None;
    while !extensions.is_empty() {
        let kind = take_number(&mut extensions, 2)?;
        let mut data = take_vector(&mut extensions, 2)?;
        if !kinds.insert(kind) {
            return None;
        }
        if kind == usize::from(SERVER_NAME) {
            let mut names = take_vector(&mut data, 2).filter(|_| data.is_empty())?;
            let is_host = take_number(&mut names, 1)? == usize::from(HOST_NAME);
            let host = take_vector(&mut names, 2)
                .filter(|host| is_host && !host.is_empty() && names.is_empty())?;
            name = Some(host);
        }
    }
    Some(name)
}

/// Takes bytes from the start of a message.
fn take_bytes<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(taken)
}

/// Takes an integer of `bytes` bytes.
fn take_number(rest: &mut &[u8], bytes: usize) -> Option<usize> {
    Some(
        take_bytes(rest, bytes)?
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)),
    )
}

/// Takes a vector whose length field has `len_bytes` bytes.
fn take_vector<'a>(rest: &mut &'a [u8], len_bytes: usize) -> Option<&'a [u8]> {
    let len = take_number(rest, len_bytes)?;
    take_bytes(rest, len)
}

/// Returns true if a server requests a second ClientHello, and `None` if more bytes are needed to
/// decide. The ServerHello can span several records, and can follow a warning.
fn is_hello_retry(response: &[u8]) -> Option<bool> {
    let mut rest = response;
    let mut message = Vec::new();
    loop {
        let kind = *rest.first()?;
        let header = rest.get(..RECORD_HEADER);
        let is_record = matches!(kind, CHANGE_CIPHER_SPEC | ALERT | HANDSHAKE);
        let Some(&[_, _, _, high, low]) = header else {
            return if is_record { None } else { Some(false) };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let content = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + len)];
        match kind {
            HANDSHAKE => message.extend_from_slice(content),
            // A warning other than `close_notify`.
            ALERT
                if content.first().is_none_or(|level| *level == 1)
                    && content.get(1) != Some(&0) => {}
            CHANGE_CIPHER_SPEC => {}
            _ => return Some(false),
        }
        if message.first().is_some_and(|kind| *kind != SERVER_HELLO) {
            return Some(false);
        }
        if let Some(random) = message.get(RANDOM) {
            return Some(random == RETRY_RANDOM);
        }
        rest = rest.get(RECORD_HEADER + len..)?;
    }
}

/// Returns the end of a handshake message.
fn message_end(message: &[u8]) -> Option<usize> {
    let [_, high, middle, low, ..] = *message else {
        return None;
    };
    Some(MESSAGE_HEADER + u32::from_be_bytes([0, high, middle, low]) as usize)
}

/// Reads until a record is complete, and returns its end.
async fn record_end<C: AsyncRead + Unpin>(
    client: &mut C,
    bytes: &mut Vec<u8>,
    at: usize,
) -> io::Result<usize> {
    loop {
        if let Some([_, _, _, high, low]) = bytes.get(at..at + RECORD_HEADER) {
            let end = at + RECORD_HEADER + usize::from(u16::from_be_bytes([*high, *low]));
            if end <= bytes.len() {
                return Ok(end);
            }
        }
        if bytes
            .get(at)
            .is_some_and(|kind| !(CHANGE_CIPHER_SPEC..=HEARTBEAT).contains(kind))
        {
            return Err(invalid_data(NO_HELLO));
        }
        if bytes.len() >= BYTES_MAX {
            return Err(invalid_data("the TLS ClientHello is too long"));
        }
        check_not_ended(client.read_buf(bytes).await)?;
    }
}

fn check_not_ended(read: io::Result<usize>) -> io::Result<()> {
    if read? == 0 {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(())
    }
}

fn invalid_data(cause: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}

fn timeout_error() -> io::Error {
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
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions();
        let config = builder
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut client =
            rustls::ClientConnection::new(Arc::new(config), host.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Returns a vector whose length field has `len_bytes` bytes.
    fn vector(len_bytes: usize, content: &[u8]) -> Vec<u8> {
        [&content.len().to_be_bytes()[8 - len_bytes..], content].concat()
    }

    /// An extension of a kind.
    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, data)].concat()
    }

    fn name_extension(host: &str) -> Vec<u8> {
        extension(
            SERVER_NAME,
            &vector(2, &[&[HOST_NAME][..], &vector(2, host.as_bytes())].concat()),
        )
    }

    /// A ClientHello of a version with extensions. `None` creates the form without extensions.
    fn old_hello(version: [u8; 2], extensions: Option<&[u8]>) -> Vec<u8> {
        let mut hello = [
            &version[..],
            &[7; 32],
            &vector(1, &[]),
            &vector(2, &[0, 0x2f]),
            &vector(1, &[0]),
        ]
        .concat();
        hello.extend(
            extensions
                .map(|extensions| vector(2, extensions))
                .unwrap_or_default(),
        );
        [&[CLIENT_HELLO][..], &vector(3, &hello)].concat()
    }

    /// Splits a message into records of a version, with `bytes` bytes in each.
    fn records(version: [u8; 2], message: &[u8], bytes: usize) -> Vec<u8> {
        message
            .chunks(bytes)
            .flat_map(|part| [&[HANDSHAKE, version[0], version[1]][..], &vector(2, part)].concat())
            .collect()
    }

    #[tokio::test]
    async fn legal_hellos_for_the_host_pass() {
        const TLS10: [u8; 2] = [3, 1];
        const TLS12: [u8; 2] = [3, 3];
        let name = name_extension("A.example");
        let groups = extension(10, &[0, 2, 0, 23]);
        let old = old_hello(TLS10, Some(&name));
        let new = hello_for("a.example");
        let two_names = [
            &[HOST_NAME][..],
            &vector(2, b"a.example"),
            &[HOST_NAME],
            &vector(2, b"b.example"),
        ]
        .concat();
        for (sent, expected) in [
            (new.clone(), None),
            (records([3, 1], &new[RECORD_HEADER..], 7), None),
            (records(TLS12, &new[RECORD_HEADER..], 1), None),
            // Without signature algorithms, as TLS 1.0 and 1.1 have it, in records of each version.
            (records([3, 0], &old, usize::MAX), None),
            (records(TLS10, &old, usize::MAX), None),
            (records([3, 2], &old, 3), None),
            (
                records(
                    TLS12,
                    &old_hello(TLS12, Some(&[&groups[..], &name].concat())),
                    50,
                ),
                None,
            ),
            (
                records(TLS10, &old_hello(TLS10, None), 50),
                Some(ANOTHER_HOST),
            ),
            (
                records(TLS10, &old_hello(TLS10, Some(&[])), 50),
                Some(ANOTHER_HOST),
            ),
            (
                records(TLS10, &old_hello(TLS10, Some(&groups)), 50),
                Some(ANOTHER_HOST),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&name_extension("b.example"))),
                    5,
                ),
                Some(ANOTHER_HOST),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&name_extension("a.example.b"))),
                    5,
                ),
                Some(ANOTHER_HOST),
            ),
            // More behind the hello, in its record and in its message.
            (
                records(TLS10, &[&old[..], &[0]].concat(), usize::MAX),
                Some(ANOTHER_HOST),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&[&name[..], &[0]].concat())),
                    50,
                ),
                Some(NO_HELLO),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&[&name[..], &name].concat())),
                    50,
                ),
                Some(NO_HELLO),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&extension(SERVER_NAME, &vector(2, &two_names)))),
                    50,
                ),
                Some(NO_HELLO),
            ),
            (
                records(
                    TLS10,
                    &old_hello(TLS10, Some(&extension(SERVER_NAME, &[]))),
                    50,
                ),
                Some(NO_HELLO),
            ),
            (records([2, 0], &old, usize::MAX), Some(NO_HELLO)),
            (
                [
                    &[HANDSHAKE, 3, 1, 0, 0][..],
                    &records(TLS10, &old, usize::MAX),
                ]
                .concat(),
                Some(NO_HELLO),
            ),
            (
                [
                    &[ALERT, 3, 1, 0, 2, 1, 0][..],
                    &records(TLS10, &old, usize::MAX),
                ]
                .concat(),
                Some(NO_HELLO),
            ),
        ] {
            let (mut client, mut at_relay) = duplex(BYTES_MAX);
            let (mut to_server, mut server) = duplex(BYTES_MAX);
            client.write_all(&sent).await.unwrap();
            server.write_all(&[ALERT, 3, 3, 0, 2, 2, 40]).await.unwrap();
            let wait = Duration::from_secs(60);
            let outcome = forward_first_bytes(
                &mut at_relay,
                &mut to_server,
                "a.example",
                TunnelProtocols::Tls,
                wait,
            )
            .await;
            assert_eq!(
                outcome.map_err(|error| error.to_string()),
                expected.map_or(Ok(()), |text| Err(text.into())),
                "{sent:x?}"
            );
            drop(to_server);
            let mut forwarded = Vec::new();
            server.read_to_end(&mut forwarded).await.unwrap();
            assert_eq!(
                forwarded,
                if expected.is_none() { sent } else { Vec::new() }
            );
        }
    }

    #[test]
    fn requests_for_a_second_hello_are_found_in_any_records() {
        fn server_hello(random: &[u8; 32]) -> Vec<u8> {
            let body = [
                &[3, 3][..],
                random,
                &vector(1, &[]),
                &[0x13, 1, 0],
                &vector(2, &[]),
            ]
            .concat();
            [&[SERVER_HELLO][..], &vector(3, &body)].concat()
        }
        let warning = [ALERT, 3, 3, 0, 2, 1, 112];
        let retry = server_hello(&RETRY_RANDOM);
        let once = records([3, 3], &retry, usize::MAX);
        for (response, expected) in [
            (once.clone(), Some(true)),
            (records([3, 3], &retry, 1), Some(true)),
            (records([3, 3], &retry, 9), Some(true)),
            ([&warning[..], &once].concat(), Some(true)),
            (
                [&warning[..], &warning, &records([3, 3], &retry, 7)].concat(),
                Some(true),
            ),
            (records([3, 3], &server_hello(&[9; 32]), 5), Some(false)),
            (once[..once.len() - 4].to_vec(), Some(true)),
            (once[..30].to_vec(), None),
            (warning.to_vec(), None),
            (warning[..5].to_vec(), None),
            (Vec::new(), None),
            (vec![ALERT, 3, 3, 0, 2, 2, 40], Some(false)),
            (vec![ALERT, 3, 3, 0, 2, 1, 0], Some(false)),
            (b"HTTP/1.1 400\r\n".to_vec(), Some(false)),
            (records([3, 3], &[11, 0, 0, 0], usize::MAX), Some(false)),
        ] {
            assert_eq!(is_hello_retry(&response), expected, "{response:x?}");
        }
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
            let outcome = forward_first_bytes(
                &mut at_relay,
                &mut to_server,
                "a.example",
                TunnelProtocols::Tls,
                wait,
            )
            .await;
            assert_eq!(outcome.unwrap_err().to_string(), expected, "{sent:x?}");
        }
    }
}
