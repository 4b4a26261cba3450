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
use super::worker::pause;

/// Interval at which an idle connection is checked.
const ALIVE: Duration = Duration::from_secs(10);

/// Listens forever. Signals the sender of changes on each notification and after each time without
/// a connection. Signals `ready` when listening starts for the first time.
pub(super) async fn listen(
    settings: Arc<Settings>,
    told: watch::Sender<()>,
    ready: watch::Sender<bool>,
) {
    let (mut target, mut failures) = (0, 0);
    loop {
        let heard = match Session::open(&settings, &mut target).await {
            Ok((session, link)) => hear(&settings, &session, link, &told, &ready).await,
            Err(fault) => Err(SqlFault::Lost(fault.error.to_string())),
        };
        if let Err(SqlFault::Refused(why) | SqlFault::Stale(why)) = heard {
            // The database or a connection pooler does not support notifications, so engines only
            // poll.
            tracing::warn!(%why, "changes to apps are not announced by the database");
            ready.send_replace(true);
            failures = 10;
        }
        failures += 1;
        sleep(pause(failures)).await;
    }
}

/// Listens until the connection breaks. Returns the reason.
async fn hear(
    settings: &Settings,
    session: &Session,
    mut link: Link,
    told: &watch::Sender<()>,
    ready: &watch::Sender<bool>,
) -> Result<(), SqlFault> {
    let limit = settings.options.timeout;
    let listen = format!("LISTEN {CHANNEL}");
    tokio::select! {
        biased;
        outcome = timeout(limit, session.batch(&listen)) => outcome.map_err(|_| SqlFault::Lost("no answer".into()))??,
        ended = &mut link => return Err(SqlFault::Lost(ended.err().map_or("the server closed the connection".into(), |error| describe(&error)))),
    }
    // Changes before the first connection need no signal, because the engine loads the state after
    // opening the store.
    if *ready.borrow() {
        told.send_replace(());
    }
    ready.send_replace(true);
    let checking = async {
        loop {
            sleep(ALIVE).await;
            match timeout(limit, session.batch("")).await {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => return fault,
                Err(_) => return SqlFault::Lost("no answer".into()),
            }
        }
    };
    let hearing = async {
        loop {
            match poll_fn(|context| link.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => {
                    told.send_replace(());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return SqlFault::Lost(describe(&error)),
                None => return SqlFault::Lost("the server closed the connection".into()),
            }
        }
    };
    tokio::select! {
        fault = checking => Err(fault),
        fault = hearing => Err(fault),
    }
}
