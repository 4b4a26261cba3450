//! Memory of idle connections that were used once.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::document;
use crate::report::{Ask, Report};
use crate::setup::Setup;

const MIB: f64 = 1_048_576.0;
/// Connections that are opened at once.
const AT_ONCE: usize = 50;
/// Time in which the memory of idle connections is given back.
const SETTLE: Duration = Duration::from_secs(20);
/// Most memory of the relay with all connections, in MiB.
const RESIDENT_MIB_MAX: f64 = 200.0;

pub(crate) fn run(setup: &Setup, report: &mut Report) -> io::Result<()> {
    let connections = if setup.is_smoke { 100 } else { 10_000 };
    let address = setup.relay.address;
    let before = setup.relay.resident()?;
    let document = document();
    let mut request = format!(
        "POST /three/x HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        document.len()
    )
    .into_bytes();
    request.extend_from_slice(&document);
    let request: &'static [u8] = Vec::leak(request);
    let open = setup.clients().block_on(async {
        let mut open = Vec::with_capacity(connections);
        while open.len() < connections {
            let count = AT_ONCE.min(connections - open.len());
            let batch: Vec<_> = (0..count)
                .map(|_| tokio::spawn(use_once(address, request)))
                .collect();
            for connection in batch {
                open.push(connection.await??);
            }
        }
        Ok::<_, io::Error>(open)
    })?;
    let count = format!("idle: {} connections", open.len());
    report.add(
        format!("{count}, relay, just used"),
        "MiB",
        &[setup.relay.resident()? / MIB],
        Ask::None,
    );
    // Until the connections are parked and the allocator has given their memory back.
    std::thread::sleep(if setup.is_smoke {
        Duration::ZERO
    } else {
        SETTLE
    });
    let after = setup.relay.resident()?;
    report.add(
        format!("{count}, relay"),
        "MiB",
        &[after / MIB],
        Ask::AtMost(RESIDENT_MIB_MAX),
    );
    report.add(
        format!("{count}, per connection"),
        "KiB",
        &[(after - before) / 1_024.0 / open.len() as f64],
        Ask::None,
    );
    Ok(())
}

/// Opens a connection, sends one request and reads its response.
async fn use_once(address: SocketAddr, request: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request).await?;
    let (mut received, mut buffer) = (Vec::new(), [0; 2_048]);
    while !received.ends_with(b"}") {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::Error::other("the relay closed a connection"));
        }
        received.extend_from_slice(&buffer[..read]);
    }
    if received.starts_with(b"HTTP/1.1 200 ") {
        Ok(stream)
    } else {
        Err(io::Error::other("a request failed"))
    }
}
