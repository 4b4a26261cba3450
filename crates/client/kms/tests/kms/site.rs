//! Engines that share a store, a proxy in front of each, and a plugin.

use std::fs::{self, DirBuilder};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealwire_access::{
    Binding, Grant, Principal, PrincipalKind, Role, RoleName, principal_key, role_key,
};
use sealwire_apps::{Control, KeyKind};
use sealwire_crypto::{AppId, Kek, Suite};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};
use sealwire_engine as _;
use sealwire_kms::{config, server};
use sealwire_server::server::{Server, open_control};
use sealwire_settings::{AccessMode, Config, ControlListen, KekSource, Mode};
use sealwire_store::{Commit, ControlStore};
use sealwire_testkit::Proxy;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::api_server::ApiServer;

/// Longest wait for an expected event. Turns a hang into a failure.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// The app of the plugin.
pub(crate) const APP: &str = "kubernetes";
/// An app that the plugin's principal has no role on.
pub(crate) const FORBIDDEN: &str = "payroll";
/// The smallest grant, as docs/kubernetes.md has it.
const GRANT: &str = "encrypt,decrypt apps=kubernetes,absent";
/// The principal of the plugin.
const PRINCIPAL: &str = "kms.cluster-1.internal";

/// Engines on one store, and the files of a plugin.
pub(crate) struct Site {
    folder: TempDir,
    config: Config,
    _engines: Vec<Server>,
    pub(crate) proxies: Vec<Proxy>,
}

impl Site {
    /// Starts this number of engines.
    pub(crate) async fn start(engines: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = prepare(folder.path()).await;
        let mut site = Self {
            folder,
            config,
            _engines: Vec::new(),
            proxies: Vec::new(),
        };
        for _ in 0..engines {
            let engine = Server::start(&site.config).await.unwrap();
            let port = engine.address().unwrap().port();
            site.proxies.push(Proxy::start(port).unwrap());
            site._engines.push(engine);
        }
        site
    }

    /// Path of the plugin's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/kms.sock")
    }

    /// Returns the configuration of a plugin. `replaced` replaces parts of its text.
    pub(crate) fn text(&self, replaced: &[(&str, &str)]) -> String {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let endpoints: Vec<String> = self
            .proxies
            .iter()
            .map(|proxy| format!("'localhost:{}'", proxy.port()))
            .collect();
        let mut text = format!(
            "[plugin]\nsocket = '{}'\napp = '{APP}'\ncluster = 'prod'\n[engine]\nendpoints = [{}]\nca = '{}'\ncertificate = '{}'\nkey = '{}'\n\
             deadline_ms = 60000\n",
            self.socket().display(),
            endpoints.join(", "),
            at("ca.pem"),
            at("kms.pem"),
            at("kms-key.pem"),
        );
        for (from, to) in replaced {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        text
    }

    /// Writes a configuration to a file.
    pub(crate) fn file(&self, replaced: &[(&str, &str)]) -> PathBuf {
        let file = self.folder.path().join("kms.toml");
        fs::write(&file, self.text(replaced)).unwrap();
        file
    }

    /// Starts a plugin and connects to it.
    pub(crate) async fn plugin(&self, replaced: &[(&str, &str)]) -> (server::Server, ApiServer) {
        let config = config::parse(&self.text(replaced), []).unwrap();
        let plugin = server::Server::start(&config).unwrap();
        let api_server = ApiServer::connect(&config.plugin.socket).await;
        (plugin, api_server)
    }

    /// Changes the apps. Engines load the change soon afterwards.
    pub(crate) async fn change<T>(&self, change: impl AsyncFnOnce(&Control, &AppId) -> T) -> T {
        let (control, stores) = open_control(&self.config).await.unwrap();
        let changed = change(&control, &AppId::new(APP).unwrap()).await;
        stores.close().await;
        changed
    }

    /// Makes a new key version of the app.
    pub(crate) async fn rotate(&self) {
        self.change(async |control, app| {
            control
                .rotate(app, KeyKind::Suite(Suite::P256Psk))
                .await
                .unwrap();
        })
        .await;
    }

    /// Cuts an engine off, or brings it back.
    pub(crate) fn set_gone(&self, engine: usize, is_gone: bool) {
        let proxy = &self.proxies[engine];
        proxy.refuse(is_gone);
        if is_gone {
            proxy.cut();
        }
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !holds().await {
        assert!(Instant::now() < end, "the event never came");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Writes the files of engines and plugin, and creates apps and a role. Engines share a file of
/// state.
async fn prepare(folder: &Path) -> Config {
    let authority = Authority::create("kms", Validity::days(10)).unwrap();
    let mut config = Config::defaults(folder);
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listen.address = Some(any_port);
    config.admin.address = any_port;
    config.crypto.threads = 2;
    config.crypto.precomputed_tables = 0;
    config.limits.deadline_ms_default = config.limits.deadline_ms_max;
    config.schedule.wait_max_ms = 3_600_000;
    config.state.mode = Mode::Stateless;
    config.access.mode = AccessMode::Enforce;
    config.control = Some(ControlListen {
        address: any_port,
        client_ca: None,
        client_crl: None,
        principals: [(PrincipalKind::Dns, "operator".to_owned())].into(),
    });

    let engine = authority.issue(&leaf(Usage::Server, "localhost")).unwrap();
    let KekSource::File(kek) = &config.kek else {
        panic!("the default is a file")
    };
    for file in [
        &config.tls.certificate,
        &config.tls.key,
        &config.tls.client_ca,
        kek,
    ] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    fs::write(&config.tls.certificate, &engine.cert_pem).unwrap();
    private(&config.tls.key, engine.key_pem.expose());
    fs::write(&config.tls.client_ca, authority.cert_pem()).unwrap();
    private(kek, &Kek::generate_hex().unwrap());

    let plugin = authority.issue(&leaf(Usage::Client, PRINCIPAL)).unwrap();
    // The plugin rejects a folder that its group can write, as a umask of 002 makes it.
    DirBuilder::new()
        .mode(0o700)
        .create(folder.join("run"))
        .unwrap();
    fs::write(folder.join("ca.pem"), authority.cert_pem()).unwrap();
    fs::write(folder.join("kms.pem"), &plugin.cert_pem).unwrap();
    private(&folder.join("kms-key.pem"), plugin.key_pem.expose());

    let (control, stores) = open_control(&config).await.unwrap();
    for app in [APP, FORBIDDEN] {
        let app = AppId::new(app).unwrap();
        control.create(&app, &Suite::ALL).await.unwrap();
    }
    let role = Role::new("kms", vec![Grant::from_text(GRANT).unwrap()]).unwrap();
    let principal = Principal::from_text(PRINCIPAL).unwrap();
    let binding = Binding {
        principal: principal.clone(),
        roles: vec![RoleName::new("kms").unwrap()],
    };
    let store = &**control.store();
    put(store, &role_key(role.name()), role.to_record()).await;
    put(store, &principal_key(&principal), binding.to_record()).await;
    stores.close().await;
    config
}

async fn put(store: &dyn ControlStore, key: &str, record: Vec<u8>) {
    let base = store.generation().await.unwrap();
    let commit = store.commit(base, key, Some(&record)).await.unwrap();
    assert!(matches!(commit, Commit::Done(_)));
}

fn leaf(usage: Usage, name: &str) -> Leaf {
    Leaf {
        common_name: name.into(),
        names: vec![
            Name::Dns(name.into()),
            Name::Ip(IpAddr::from([127, 0, 0, 1])),
        ],
        usage,
        validity: Validity::days(1),
    }
}

fn private(path: &Path, contents: &str) {
    sealwire_dev_ca::write(path, contents.as_bytes(), Access::Owner, Existing::Replace).unwrap();
}
