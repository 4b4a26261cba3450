//! Unmodified clients in other languages. Those that this machine lacks are named in the output.

use std::process::Command;

use crate::e2e::harness::run;
use crate::relay::site::Site;

const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
select = ["$.pan"]
[[route.response]]
action = "decrypt"
select = ["$.pan"]
"#;

const BODY: &str = r#"{"pan":"4111111111111111","n":1.50}"#;

/// Scripts that post `$BODY` to `$URL` and print the response's body.
const SCRIPTS: [(&str, &[&str]); 6] = [
    ("curl over HTTP/1.1", &["curl", "-sS", "--fail-with-body", "-H", "content-type: application/json", "-d", BODY]),
    (
        "curl over HTTP/2",
        &[
            "curl",
            "-sS",
            "--http2-prior-knowledge",
            "--fail-with-body",
            "-H",
            "content-type: application/json",
            "-d",
            BODY,
        ],
    ),
    (
        "curl with 100-continue",
        &["curl", "-sS", "-H", "expect: 100-continue", "-H", "content-type: application/json", "-d", BODY],
    ),
    ("curl with gzip allowed", &["curl", "-sS", "--compressed", "-H", "content-type: application/json", "-d", BODY]),
    (
        "fetch of Node (undici)",
        &[
            "node",
            "-e",
            "fetch(process.argv[2], {method: 'POST', headers: {'content-type': 'application/json'}, body: process.argv[1]}).then(r => r.text()).then(t => process.stdout.write(t))",
            BODY,
        ],
    ),
    (
        "urllib of Python",
        &[
            "python3",
            "-c",
            "import sys, urllib.request as u; sys.stdout.write(u.urlopen(u.Request(sys.argv[2], sys.argv[1].encode(), {'content-type': 'application/json'})).read().decode())",
            BODY,
        ],
    ),
];

#[test]
fn clients_of_other_languages_see_their_own_document() {
    run(async {
        let site = Site::start(ROUTES).await;
        let mut tried = 0;
        for (name, command) in SCRIPTS {
            let url = site.url("/orders");
            let program = Command::new(command[0]).args(&command[1..]).arg(&url).output();
            let Ok(output) = tokio::task::spawn_blocking(move || program).await.unwrap() else {
                println!("not tried, because it is not installed: {name}");
                continue;
            };
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(String::from_utf8_lossy(&output.stdout), BODY, "{name}");
            tried += 1;
        }
        assert!(tried >= 2, "{tried} clients were tried");
        site.upstream.never_saw("4111111111111111");
    });
}
