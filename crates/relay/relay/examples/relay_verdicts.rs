//! Reports for each message on standard input whether a relay would forward it, and the forwarded
//! form, without an engine. `proto/interop/relay` reads the results and compares them with those of
//! other readers.
//!
//! A line is a JSON object: `kind` (`json`, `form`, `multipart`, `query`), `type` (the content
//! type), `text` (base64). The result is `null` for a rejected message. Otherwise it is the text in
//! base64, with `sealed` in place of each selected value.

use std::error::Error;
use std::io::{BufRead as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request};
use sealwire_relay::error::Phase;
use sealwire_relay::route_table::RouteTable;
use sealwire_relay::{config, fields, request_check};
use sealwire_relay_body::{Format, Limits, Piece, Place};

const CONFIG: &str = "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n\
    [listen.public]\naddress = '127.0.0.1:0'\nclients = 'open'\n[upstream.u]\nurl = 'http://u'\n\
    [[route]]\nname = 'fields'\nlisten = 'public'\npath = '/fields'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.ssn', '$.token', '$.card.number', '$.items[0]']\n\
    query = ['ssn', 'token', 'card_number', 'user[ssn]', 'items[0]']\ncontainers = 'leaves'\n\
    [[route.request]]\naction = 'encrypt'\ncontainers = 'leaves'\n\
    types = ['application/x-www-form-urlencoded', 'multipart/form-data']\n\
    select = ['$.ssn', '$.token', '$.card_number', \"$['user[ssn]']\", \"$['items[0]']\"]\n";

fn main() -> Result<(), Box<dyn Error>> {
    let config = config::parse(CONFIG, []).map_err(|error| error.to_string())?;
    let compiled = config::compile(&config).map_err(|error| error.to_string())?;
    let routes = &compiled.listeners.first().ok_or("no listener")?.routes;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: serde_json::Value = serde_json::from_str(&line?)?;
        let field = |name: &str| case[name].as_str().unwrap_or_default();
        let text = STANDARD.decode(field("text"))?;
        let pieces = if field("kind") == "query" {
            query(routes, &text)
        } else {
            body(routes, field("type"), &text)
        };
        let answer = pieces.map(|pieces| STANDARD.encode(sealed(&pieces)));
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

/// Returns the pieces of a body, or `None` if the body is rejected.
fn body(routes: &RouteTable, content_type: &str, body: &[u8]) -> Option<Vec<Piece>> {
    http::HeaderValue::from_str(content_type).ok()?;
    let (route, _) = routes.find_route("a", &Method::POST, "/fields").ok()?;
    let format = Format::from_content_type(content_type).ok()?;
    let rules = route.request.body_rules(&format)?;
    let mut scanner = route
        .request
        .new_scanner(format, rules, Limits::default(), Phase::Request);
    let mut pieces = Vec::new();
    scanner
        .push(&Bytes::copy_from_slice(body), &mut pieces)
        .ok()?;
    scanner.finish(&mut pieces).ok()?;
    Some(pieces)
}

/// Returns the pieces of a query, or `None` if its request is rejected.
fn query(routes: &RouteTable, query: &[u8]) -> Option<Vec<Piece>> {
    let target = [b"/fields?", query].concat();
    let request = Request::builder()
        .uri(&*target)
        .header("host", "a")
        .body(())
        .ok()?;
    let target = request_check::check(&request.into_parts().0, false).ok()?;
    let (route, segments) = routes
        .find_route(&target.host, &Method::GET, &target.path)
        .ok()?;
    let pieces = fields::target_pieces(
        &route.request,
        &segments,
        &target.path,
        target.query.as_deref(),
    )
    .ok()?;
    // Without the path and the question mark.
    Some(
        pieces
            .into_iter()
            .skip_while(|piece| piece.source() != "?")
            .skip(1)
            .collect(),
    )
}

/// Joins the pieces, with a fixed text in each hole.
fn sealed(pieces: &[Piece]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(match piece {
            Piece::Literal(bytes) => bytes,
            Piece::Hole(hole) if hole.place == Place::Json => b"\"sealed\"",
            Piece::Hole(_) => b"sealed",
        });
    }
    out
}
