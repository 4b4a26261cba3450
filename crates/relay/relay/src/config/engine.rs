//! The configuration of the engine's client.

use std::path::Path;
use std::time::Duration;

use sealwire_client::{ClientConfig, Endpoint, Pem};
use sealwire_service::settings::host_of;

use super::EngineConfig;

impl EngineConfig {
    /// Returns the configuration of the client. Opens no file.
    pub fn client(&self) -> ClientConfig {
        let pem = |path: &Path| Pem::File(path.to_owned());
        let mut client = ClientConfig::new(
            "",
            "",
            pem(&self.ca),
            pem(&self.certificate),
            pem(&self.key),
        );
        client.endpoints = self
            .endpoints
            .iter()
            .map(|address| Endpoint::new(address.clone(), self.name_of(address)))
            .collect();
        client.connections = self.connections;
        client.connection_age_max = Duration::from_secs(self.connection_age_max_s.into());
        client.in_flight_max = self.in_flight_max;
        // A client of the relay waits for the response. The client should get a correct status
        // soon, and can retry itself.
        client.attempts_max = 2;
        client.backoff_max = Duration::from_millis(500);
        client.deadline = Duration::from_millis(self.deadline_ms.into());
        client
    }

    /// Returns the name that the certificate of an endpoint must have.
    fn name_of<'a>(&'a self, address: &'a str) -> &'a str {
        if self.server_name.is_empty() {
            host_of(address)
        } else {
            &self.server_name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn an_endpoint_has_the_name_of_its_host_unless_one_is_given() {
        let named = |name: &str| {
            let text = format!(
                "[engine]\nendpoints = ['a.internal:7443', '[::1]:7']\nserver_name = '{name}'\nca = 'a'\ncertificate = 'c'\nkey = 'k'\n"
            );
            let client = parse(&text, []).unwrap().engine.client();
            client
                .endpoints
                .iter()
                .map(|endpoint| endpoint.server_name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(named(""), ["a.internal", "::1"]);
        assert_eq!(named("engine"), ["engine", "engine"]);
    }
}
