//! WebSocket sessions: text messages are edited in both directions.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::e2e::harness::{Harness, run};
use crate::relay::site::start_relay;

const ROUTES: &str = r#"
[[route]]
name = "chat"
listen = "public"
path = "/chat"
upstream = "shop"
app = "shop"
websocket_origins = ["https://shop.example"]
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.text"]
[[route.response]]
action = "decrypt"
select = ["$.text"]

[[route]]
name = "none"
listen = "public"
path = "/none"
upstream = "shop"
pass = true
"#;

/// An upstream that sends every message back, after a copy of it as `seen`.
pub(crate) async fn echo() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else {
                    return;
                };
                while let Some(Ok(message)) = socket.next().await {
                    let Message::Text(text) = message else {
                        continue;
                    };
                    let seen = serde_json::json!({ "seen": text.as_str() }).to_string();
                    if socket.send(Message::Text(seen.into())).await.is_err()
                        || socket.send(Message::Text(text)).await.is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn messages_are_edited_in_both_directions() {
    run(async {
        let engine = Harness::with(|config| config.crypto.threads = 1).await;
        let folder = tempfile::tempdir().unwrap();
        let relay = start_relay(&engine, engine.address, &folder, echo().await, ROUTES).await;
        let address = relay.addresses()[0].1;
        let connect = async |path: &str, origin: Option<&str>| {
            let mut request = format!("ws://{address}{path}")
                .into_client_request()
                .unwrap();
            if let Some(origin) = origin {
                request
                    .headers_mut()
                    .insert("origin", origin.parse().unwrap());
            }
            let stream = TcpStream::connect(address).await.unwrap();
            tokio_tungstenite::client_async(request, stream).await
        };
        let (mut socket, _) = connect("/chat", Some("https://shop.example"))
            .await
            .unwrap();
        for text in ["{\"text\":\"canary\",\"n\":1.50}", "{\"text\":[\"no\"]}"] {
            socket.send(Message::Text(text.into())).await.unwrap();
            match socket.next().await.unwrap().unwrap() {
                Message::Text(seen) => {
                    assert!(seen.contains("sw1:") && !seen.contains("canary"), "{seen}");
                    assert_eq!(
                        socket.next().await.unwrap().unwrap(),
                        Message::Text(text.into())
                    );
                }
                // The second message selects an array, which ends the session.
                Message::Close(Some(frame)) => {
                    assert_eq!(
                        (frame.code, text.contains("no")),
                        (CloseCode::Invalid, true)
                    )
                }
                other => panic!("{other:?}"),
            }
        }
        for (path, origin, status) in [
            ("/chat", Some("https://evil.example"), 403),
            ("/none", None, 403),
        ] {
            match connect(path, origin).await.map(|_| ()) {
                Err(Error::Http(response)) => assert_eq!(response.status(), status, "{path}"),
                other => panic!("{path}: {other:?}"),
            }
        }
        let (mut socket, _) = connect("/chat", None).await.unwrap();
        socket.send(Message::Binary(vec![1].into())).await.unwrap();
        let Message::Close(Some(frame)) = socket.next().await.unwrap().unwrap() else {
            panic!("no close")
        };
        assert_eq!(frame.code, CloseCode::Unsupported);
        // A drain tells both sides.
        let (mut socket, _) = connect("/chat", None).await.unwrap();
        tokio::join!(relay.shutdown(), async {
            let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else {
                panic!("no close")
            };
            assert_eq!(frame.code, CloseCode::Away);
        });
    });
}
