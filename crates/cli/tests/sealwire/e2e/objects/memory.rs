//! Memory of requests on objects that are much larger than the requests.

use sealwire_client::control::PropertySpec;
use sealwire_client::{AddObjects, CollectionTarget, Detail};

use super::{APP, Harness, doc, rpc_error, run, vault};
use crate::e2e::access::{FULL, enforcing, everything_on};

/// Objects of the test. A read has at most 31 of them.
const OBJECTS: usize = 124;
/// Reads of the object store so far.
const READS: &str = "sealwire_store_seconds_count{operation=\"read_objects\"}";

#[test]
fn an_update_of_large_objects_ends_where_its_memory_ends() {
    run(async {
        let prepare = async |control: &sealwire_apps::Control| {
            everything_on(&**control.store(), FULL, "*").await
        };
        // A single client has 16 MiB. A read reserves 8 MiB, and 31 of these objects take 6 MiB.
        let change = |config: &mut sealwire_settings::Config| {
            enforcing(config);
            config.schedule.memory_mib = 32;
        };
        let vault = vault(Harness::prepared(change, prepare).await).await;
        vault
            .create(
                "files",
                ["a", "b", "c"]
                    .map(|name| PropertySpec::new(name, "string"))
                    .to_vec(),
            )
            .await;
        let (files, long) = (CollectionTarget::new(APP, "files"), "x".repeat(65_000));
        let file = format!(r#"{{"a": "{long}", "b": "{long}", "c": "{long}"}}"#);
        let objects = doc(&format!("[{file}, {file}, {file}, {file}]"));
        let mut ids = Vec::new();
        while ids.len() < OBJECTS {
            let add = AddObjects::new(&objects);
            ids.extend(
                vault
                    .client
                    .objects_add(files, add)
                    .await
                    .unwrap()
                    .objects
                    .into_iter()
                    .map(|one| one.id),
            );
        }
        let change = |ids: &[String]| {
            let changes: Vec<String> = ids
                .iter()
                .map(|id| format!(r#"{{"id": "{id}", "set": {{}}}}"#))
                .collect();
            doc(&format!("[{}]", changes.join(", ")))
        };
        let before = vault.harness.metric(READS).await;
        let error = rpc_error(vault.client.objects_update(files, &change(&ids)).await);
        assert_eq!(
            error.details[0],
            Detail::text("reason", "memory"),
            "{error}"
        );
        assert_eq!(vault.harness.metric(READS).await - before, 2.0);
        let changed = vault
            .client
            .objects_update(files, &change(&ids[..8]))
            .await
            .unwrap();
        assert!(changed.objects.len() == 8 && changed.objects.iter().all(|one| one.version == 2));
        vault.harness.settles().await;
    });
}
