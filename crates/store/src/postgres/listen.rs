//! The connection that hears of changes to control state.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;

use super::control::CHANNEL;
use super::options::Settings;
use super::session::{Link, Session};
use super::sqlstate::{Fault, describe};
use super::worker::pause;

/// How often a connection on which nobody speaks is asked whether it is one.
const ALIVE: Duration = Duration::from_secs(10);

/// Listens, and says so each time that something may have changed: when it is told, and when it could not be told for a
/// while. Without end. `ready` is sent once it listens for the first time.
pub(super) async fn listen(settings: Arc<Settings>, told: watch::Sender<()>, ready: watch::Sender<bool>) {
    let (mut target, mut failures) = (0, 0);
    loop {
        let heard = match Session::open(&settings, &mut target).await {
            Ok((session, link)) => hear(&settings, &session, link, &told, &ready).await,
            Err(fault) => Err(Fault::Lost(fault.error.to_string())),
        };
        if let Err(Fault::Refused(why) | Fault::Stale(why)) = heard {
            // A database or a pooler that cannot: engines poll.
            tracing::warn!(%why, "changes to apps are not announced by the database");
            ready.send_replace(true);
            failures = 10;
        }
        failures += 1;
        sleep(pause(failures)).await;
    }
}

/// Hears until the connection breaks, and why it did.
async fn hear(
    settings: &Settings,
    session: &Session,
    mut link: Link,
    told: &watch::Sender<()>,
    ready: &watch::Sender<bool>,
) -> Result<(), Fault> {
    let limit = settings.options.timeout;
    let listen = format!("LISTEN {CHANNEL}");
    tokio::select! {
        biased;
        outcome = timeout(limit, session.batch(&listen)) => outcome.map_err(|_| Fault::Lost("no answer".into()))??,
        ended = &mut link => return Err(Fault::Lost(ended.err().map_or("the server closed the connection".into(), |error| describe(&error)))),
    }
    // What happened before the first time is what whoever opened the store is going to load.
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
                Err(_) => return Fault::Lost("no answer".into()),
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
                Some(Err(error)) => return Fault::Lost(describe(&error)),
                None => return Fault::Lost("the server closed the connection".into()),
            }
        }
    };
    tokio::select! {
        fault = checking => Err(fault),
        fault = hearing => Err(fault),
    }
}
