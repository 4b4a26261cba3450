//! Engine, relay, plain proxy and upstream of a run.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use sealwire_benches::document::APP;
use sealwire_benches::world::World;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::child::ServerChild;

/// Everything that runs.
pub(crate) struct Setup {
    /// True for a brief run that judges no speed.
    pub(crate) is_smoke: bool,
    world: World,
    _folder: TempDir,
    /// The relay.
    pub(crate) relay: ServerChild,
    /// The plain proxy.
    pub(crate) plain: ServerChild,
    _upstream: ServerChild,
}

impl Setup {
    /// Starts everything.
    pub(crate) fn start(is_smoke: bool) -> io::Result<Self> {
        let mut pki = PathBuf::new();
        let world = World::start_with(|folder| pki = folder.to_owned());
        let engine = world.client_config().endpoints[0].address.clone();
        let upstream = ServerChild::start("upstream", "-")?;
        let plain = ServerChild::start("plain", &upstream.address.to_string())?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        // Another process could take the port meanwhile, which the relay would tell.
        let admin = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        std::fs::write(&file, text(&engine, &pki, upstream.address, admin))?;
        let relay = ServerChild::start("relay", &file.to_string_lossy())?;
        Ok(Self {
            is_smoke,
            world,
            _folder: folder,
            relay,
            plain,
            _upstream: upstream,
        })
    }

    /// Returns the runtime of the clients.
    pub(crate) fn clients(&self) -> &Runtime {
        self.world.callers()
    }

    /// Stops the children, then the engine.
    pub(crate) fn stop(self) {
        let Self {
            world,
            relay,
            plain,
            _upstream: upstream,
            ..
        } = self;
        drop((relay, plain, upstream));
        world.stop();
    }
}

/// The relay's configuration. The path of a route is `/NAME/{*rest}`.
fn text(engine: &str, pki: &std::path::Path, upstream: SocketAddr, admin: SocketAddr) -> String {
    let pki = pki.display();
    let mut text = format!(
        "[engine]\nendpoints = [\"{engine}\"]\nserver_name = \"localhost\"\nca = \"{pki}/ca.pem\"\n\
         certificate = \"{pki}/client.pem\"\nkey = \"{pki}/client.key\"\ndeadline_ms = 20000\n\
         [limits]\nidle_timeout_ms = 600000\n\
         [admin]\naddress = \"{admin}\"\n\
         [listen.bench]\naddress = \"127.0.0.1:0\"\nclients = \"open\"\n\
         [upstream.bench]\nurl = \"http://{upstream}\"\naddresses = [\"127.0.0.0/8\"]\n\
         [upstream.shared]\nurl = \"http://{upstream}\"\naddresses = [\"127.0.0.0/8\"]\nprotocol = \"http2\"\n\
         [[route]]\nname = \"shared\"\nlisten = \"bench\"\npath = \"/shared/{{*rest}}\"\nupstream = \"shared\"\npass = true\n"
    );
    let fields = |count: usize| {
        (0..count)
            .map(|field| format!("\"$.f{field:02}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let rows = "\"$.rows[*].number\"".to_owned();
    for (name, key, select) in [
        (
            "pass",
            "pass = true\nwebsocket_origins = [\"*\"]",
            String::new(),
        ),
        ("three", "", fields(3)),
        ("thirty", "", fields(30)),
        ("held", "", rows),
        (
            "array",
            "request_stream = true",
            "\"$[*].number\"".to_owned(),
        ),
        ("lines", "request_stream = true", "\"$.number\"".to_owned()),
    ] {
        let _ = write!(
            text,
            "[[route]]\nname = \"{name}\"\nlisten = \"bench\"\npath = \"/{name}/{{*rest}}\"\nupstream = \"bench\"\n\
             app = \"{APP}\"\n{key}\n"
        );
        if !select.is_empty() {
            let types = if name == "lines" {
                "types = [\"application/x-ndjson\"]\n"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "[[route.request]]\naction = \"encrypt\"\nunneeded = \"deny\"\n{types}select = [{select}]"
            );
        }
    }
    let _ = write!(
        text,
        "[[route]]\nname = \"decrypt\"\nlisten = \"bench\"\npath = \"/decrypt/{{*rest}}\"\nupstream = \"bench\"\n\
         app = \"{APP}\"\n[[route.response]]\naction = \"decrypt\"\nselect = [\"$.f00\"]\n"
    );
    text
}
