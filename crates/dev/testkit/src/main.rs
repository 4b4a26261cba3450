//! `throwaway-postgres`: a server to experiment with, which runs until standard input ends. Prints
//! its address and folder.

use std::error::Error;
use std::io::{Read, Write};

use sealwire_testkit::{Options, Postgres};

fn main() -> Result<(), Box<dyn Error>> {
    let server = Postgres::start(Options::default())?;
    let database = server.database()?;
    let mut out = std::io::stdout();
    writeln!(out, "folder {}", server.folder().display())?;
    writeln!(out, "url {}", database.socket_url())?;
    writeln!(out, "tls {}", database.tls_url())?;
    writeln!(out, "password {}", server.password())?;
    writeln!(out, "ready")?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
