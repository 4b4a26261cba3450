//! Tests of engines that have only one of the two listeners, as for separate data and control
//! machines.

use std::net::TcpStream;

use sealwire_client::control::{AppOperation, PrincipalOperation, RoleOperation};
use sealwire_client::{Decrypt, Encrypt, to_payload};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, run, until};

#[test]
fn an_engine_serves_one_plane_and_another_the_other() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).enforcing();
        let (mut control, mut data) = (
            cluster.engine_of_control_alone("control"),
            cluster.engine_of_data_alone("data"),
        );
        assert!(
            TcpStream::connect(control.address).is_err(),
            "nobody listens for data requests"
        );
        assert!(
            TcpStream::connect(data.control).is_err(),
            "nobody listens for control requests"
        );

        let operator = cluster.operator(&control);
        operator
            .change_app(APP, AppOperation::create())
            .await
            .unwrap();
        let set = RoleOperation::set(["encrypt,decrypt apps=*"]);
        operator.change_role("relay", set).await.unwrap();
        let grant = PrincipalOperation::grant("relay");
        operator.change_principal("relay", grant).await.unwrap();
        let client = cluster.client(&[&data]);
        let payload = to_payload(&["value"]).unwrap();
        let sealed = until("an app made on the other plane", async || {
            client.encrypt(Encrypt::new(APP, &payload)).await.ok()
        })
        .await;
        let opened = client
            .decrypt(Decrypt::new(APP, &sealed.payload))
            .await
            .unwrap();
        assert_eq!(opened.payload, payload);
        let mut listed: Vec<String> = operator
            .instances()
            .await
            .unwrap()
            .instances
            .into_iter()
            .map(|instance| instance.address)
            .collect();
        listed.sort_unstable();
        assert_eq!(listed, [String::new(), data.address.to_string()]);
        control.stop();
        assert!(
            client.encrypt(Encrypt::new(APP, &payload)).await.is_ok(),
            "data requests need no control listener"
        );
        data.stop();
    });
}
