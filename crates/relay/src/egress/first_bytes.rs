//! The first bytes of a tunnel that passes untouched: TLS in it must be for the tunnel's host.
//!
//! Otherwise a client could open a tunnel to a listed host, and ask the servers behind its address for another one. The
//! relay only reads the name in the TLS hello. A hello without a name, or with the outer name of an encrypted hello
//! (RFC 9849), is for another host. Other protocols pass.

use std::io;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// First byte of a TLS record with a handshake message (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 0x16;
/// Longest hello in bytes.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// Reads the first bytes of a client until they can be judged, and returns them. They are empty if the upstream speaks
/// first.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a hello that is malformed or for another host, and
/// [`io::ErrorKind::TimedOut`] for one that is not complete after `hello_max`. Other errors are of the client.
pub async fn read<C: AsyncRead + Unpin>(
    client: &mut C,
    upstream: &TcpStream,
    host: &str,
    hello_max: Duration,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(2 << 10);
    let read = tokio::select! {
        read = client.read_buf(&mut bytes) => read?,
        ready = upstream.readable() => return ready.map(|()| Vec::new()),
    };
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.first() != Some(&HANDSHAKE) {
        return Ok(bytes);
    }
    let name = timeout(hello_max, server_name(client, &mut bytes)).await??;
    if name.is_some_and(|name| name.eq_ignore_ascii_case(host)) {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Reads a hello to its end, and returns the name in it.
async fn server_name<C: AsyncRead + Unpin>(client: &mut C, bytes: &mut Vec<u8>) -> io::Result<Option<String>> {
    let mut acceptor = Acceptor::default();
    let mut seen = 0;
    loop {
        let mut unseen = bytes.get(seen..).unwrap_or_default();
        while !unseen.is_empty() {
            acceptor.read_tls(&mut unseen)?;
            match acceptor.accept() {
                Ok(Some(accepted)) => return Ok(accepted.client_hello().server_name().map(str::to_owned)),
                Ok(None) => {}
                Err((error, _alert)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        seen = bytes.len();
        if seen > HELLO_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if client.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
