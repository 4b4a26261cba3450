//! Tests of objects against temporary servers.

mod plans;

use std::sync::Arc;

use crate::tests::open;
use sealwire_store::ObjectStore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_suite() {
    let store: Arc<dyn ObjectStore> = Arc::new(open(false).await);
    sealwire_store::suite::object_store(store).await;
}
