//! Tests of roles on several engines: a role that is revoked on one engine grants nothing on any
//! engine.

use sealwire_client::control::{PrincipalOperation, RoleOperation};
use sealwire_client::{Client, Encrypt, Error, ErrorCode, to_payload};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, run, until};

async fn passes(client: &Client) -> bool {
    let payload = to_payload(&["value"]).unwrap();
    match client.encrypt(Encrypt::new(APP, &payload)).await {
        Ok(_) => true,
        Err(Error::Rpc(error)) if error.code == ErrorCode::Forbidden => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_role_taken_away_on_one_engine_ends_at_once_there_and_with_the_notification_elsewhere() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).enforcing();
        let engines = ["one", "two"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        let operator = cluster.operator(&engines[0]);
        let set = RoleOperation::set(["encrypt apps=*"]);
        operator.change_role("relay", set).await.unwrap();
        let clients = engines.each_ref().map(|engine| cluster.client(&[engine]));
        for _ in 0..2 {
            let grant = PrincipalOperation::grant("relay");
            operator.change_principal("relay", grant).await.unwrap();
            assert!(passes(&clients[0]).await, "at once where it was granted");
            let granted = async || passes(&clients[1]).await.then_some(());
            until("the other engine grants", granted).await;
            let revoke = PrincipalOperation::revoke(None);
            operator.change_principal("relay", revoke).await.unwrap();
            assert!(
                !passes(&clients[0]).await,
                "at once where it was taken away"
            );
            let gone = async || (!passes(&clients[1]).await).then_some(());
            until("the other engine denies", gone).await;
        }
    });
}
