//! The connection that receives notifications of control state changes.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;

use super::control::CHANNEL;
use super::options::Settings;
use super::session::{Link, Session};
use super::sqlstate::{SqlFault, describe};
use super::worker::reconnect_pause;

/// Interval at which an idle connection is checked.
const ALIVE: Duration = Duration::from_secs(10);

/// Listens forever. Signals the sender of changes on each notification and after each time without
/// a connection. Signals `ready` when listening starts for the first time.
pub(super) async fn listen_for_changes(
    settings: Arc<Settings>,
    change_sender: watch::Sender<()>,
    ready_sender: watch::Sender<bool>,
) {
    let mut target = 0;
    let mut failures = 0;
    loop {
        let result = match Session::open(&settings, &mut target).await {
            Ok((session, link)) => {
                listen_on(&settings, &session, link, &change_sender, &ready_sender).await
            }
            Err(fault) => Err(SqlFault::Lost(fault.error.to_string())),
        };

        if let Err(SqlFault::Invalid(why) | SqlFault::Stale(why)) = result {
            // The database or a connection pooler does not support notifications, so engines only
            // poll.
            tracing::warn!(%why, "the database does not send notifications of control state changes; engines poll instead");
            ready_sender.send_replace(true);
            failures = 10;
        }

        failures += 1;
        sleep(reconnect_pause(failures)).await;
    }
}

/// Listens until the connection breaks. Returns the reason.
async fn listen_on(
    settings: &Settings,
    session: &Session,
    mut link: Link,
    change_sender: &watch::Sender<()>,
    ready_sender: &watch::Sender<bool>,
) -> Result<(), SqlFault> {
    let limit = settings.options.timeout;
    let listen = format!("LISTEN {CHANNEL}");
    tokio::select! {
        biased;
        outcome = timeout(limit, session.batch_execute(&listen)) => outcome.map_err(|_| SqlFault::Lost("no answer".into()))??,
        ended = &mut link => return Err(SqlFault::Lost(ended.err().map_or("the server closed the connection".into(), |error| describe(&error)))),
    }
    // Changes before the first connection need no signal, because the engine loads the state after
    // opening the store.
    if *ready_sender.borrow() {
        change_sender.send_replace(());
    }

    ready_sender.send_replace(true);
    let check_connection = async {
        loop {
            sleep(ALIVE).await;
            match timeout(limit, session.batch_execute("")).await {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => return fault,
                Err(_) => return SqlFault::Lost("no answer".into()),
            }
        }
    };

    let receive_notifications = async {
        loop {
            match poll_fn(|context| link.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => {
                    change_sender.send_replace(());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return SqlFault::Lost(describe(&error)),
                None => return SqlFault::Lost("the server closed the connection".into()),
            }
        }
    };

    tokio::select! {
        fault = check_connection => Err(fault),
        fault = receive_notifications => Err(fault),
    }
}
