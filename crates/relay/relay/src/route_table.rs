//! Finds the route of a request: the most specific host, then the most specific path, then the
//! method.
//!
//! Paths are compared as received. Servers also accept other spellings of a path:
//!
//! * another case, other escapes, or a slash at its end
//! * the suffix of a format, such as `/orders.json` in Rails and Spring
//! * the script that serves the path, such as `/index.php/orders` or `/orders/index`
//!
//! A path is rejected if it matches one route as received, and a route with rules in one of these
//! spellings. A route whose own path ends in such a spelling is used for that spelling.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use percent_encoding::percent_decode_str;
use sealwire_relay_body::name;

use crate::route::Route;

/// File name suffixes of scripts.
const SCRIPTS: [&str; 12] = [
    "asax", "ashx", "asmx", "asp", "aspx", "cfm", "cgi", "jsp", "php", "php5", "phtml", "svc",
];
/// File name suffixes of formats that are removed from the paths of routes.
const FORMATS: [&str; 37] = [
    "action", "ashx", "asmx", "asp", "aspx", "atom", "cfm", "cgi", "csv", "do", "gif", "htm",
    "html", "ics", "jpg", "js", "json", "jsonp", "jsp", "md", "ndjson", "pdf", "php", "phtml",
    "png", "rss", "svc", "svg", "tsv", "txt", "xhtml", "xls", "xlsx", "xml", "yaml", "yml", "zip",
];
/// The file name of an index, without its suffix.
const INDEX: &str = "index";

/// Reason why a route cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteConflict {
    /// The host is neither a name, nor `*.` and a name, nor `*`.
    #[error("the host must be a name, `*.` and a name, or `*`")]
    Host,
    /// The path does not start with `/`, or its braces are wrong.
    #[error(
        "the path must begin with `/` and have names in braces, such as `/orders/{{id}}` or `/files/{{*rest}}`"
    )]
    Path,
    /// The path overlaps with another path of the host, and neither path is more specific.
    #[error("the path conflicts with that of another route")]
    Overlap,
    /// Another route has the same host, path and method.
    #[error("route {0} has this host, path and method")]
    Taken(Arc<str>),
}

/// Reason why no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// No host matches.
    Host,
    /// No path of the host matches.
    Path,
    /// The path matches, but none of its routes has the method.
    Method,
    /// The path is another spelling of a path whose routes have rules.
    Spelling,
}

/// The routes of one listener.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Box<str>, Paths>,
    /// Paths by the suffix after the `*`, with its dot.
    wildcard: HashMap<Box<str>, Paths>,
    any: Paths,
}

#[derive(Debug, Default)]
struct Paths {
    router: matchit::Router<usize>,
    /// Finds the first entry with a folded path.
    folded: matchit::Router<usize>,
    /// Finds entries with rules by their bare paths.
    bare: matchit::Router<usize>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    path: Box<str>,
    /// The path in its folded form. Names in braces are replaced by numbers.
    folded: Box<str>,
    /// The folded path without scripts and without the suffix of a format.
    bare: Box<str>,
    /// Names of the path's segments by position. The first is empty: it is before the first `/`.
    names: Arc<[Option<Box<str>>]>,
    routes: Vec<(Vec<Method>, Arc<Route>)>,
}

/// The named segments of a path.
#[derive(Clone, Default)]
pub struct Segments {
    names: Arc<[Option<Box<str>>]>,
    path: Box<str>,
}

impl std::fmt::Debug for Segments {
    /// Omits the path, because its segments can be values to encrypt.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segments")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Segments {
    /// Returns the name of the segment at a position. Position 0 is the empty segment before the
    /// first `/`.
    pub fn name_at(&self, at: usize) -> Option<&str> {
        self.names.get(at)?.as_deref()
    }

    /// Returns the decoded value of a segment.
    pub fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let at = self
            .names
            .iter()
            .position(|candidate| candidate.as_deref() == Some(name))?;
        percent_decode_str(self.path.split('/').nth(at)?)
            .decode_utf8()
            .ok()
    }
}

impl RouteTable {
    /// Adds a route for a host, a path and methods. An empty list of methods means all methods.
    ///
    /// # Errors
    /// [`RouteConflict`].
    pub fn add_route(
        &mut self,
        host: &str,
        path: &str,
        methods: Vec<Method>,
        route: Arc<Route>,
    ) -> Result<(), RouteConflict> {
        let host = host.to_ascii_lowercase();
        let paths = match host.strip_prefix('*') {
            Some("") => &mut self.any,
            Some(suffix) if suffix.strip_prefix('.').is_some_and(is_host_name) => {
                self.wildcard.entry(suffix.into()).or_default()
            }
            None if is_host_name(&host) => self.exact.entry(host.as_str().into()).or_default(),
            _ => return Err(RouteConflict::Host),
        };
        paths.add_route(path, methods, route)
    }

    /// Finds the route of a request. `host` must be in lower case, and `path` as in the request.
    ///
    /// # Errors
    /// [`NoMatch`].
    pub fn find_route(
        &self,
        host: &str,
        method: &Method,
        path: &str,
    ) -> Result<(Arc<Route>, Segments), NoMatch> {
        // The most specific host decides alone. A request that it has no route for must not match a
        // wider host.
        self.paths_of_host(host)
            .next()
            .ok_or(NoMatch::Host)?
            .find_route(method, path)
    }

    /// Returns true if the path and the method of a request decide which rules apply. This is so if
    /// its host has routes with rules, and either several routes or one that is not for all paths
    /// and methods.
    pub fn depends_on_target(&self, host: &str) -> bool {
        self.paths_of_host(host).next().is_some_and(|paths| {
            let is_one_for_all = matches!(&paths.entries[..], [entry] if entry.is_for_all());
            !is_one_for_all && paths.entries.iter().any(Entry::has_rules)
        })
    }

    /// Returns true if the method of a request to this path decides its route.
    pub fn depends_on_method(&self, host: &str, path: &str) -> bool {
        let Some(paths) = self.paths_of_host(host).next() else {
            return false;
        };
        let Some(entry) = paths
            .router
            .at(path)
            .ok()
            .and_then(|found| paths.entries.get(*found.value))
        else {
            return false;
        };
        entry.has_methods()
            || paths
                .entries_in_other_spellings(entry, path)
                .into_iter()
                .any(Entry::has_methods)
    }

    /// Returns true if a route names this host and has an upstream with this port.
    pub fn has_destination(&self, host: &str, port: u16) -> bool {
        let named = self
            .paths_of_host(host)
            .filter(|paths| !std::ptr::eq(*paths, &raw const self.any));
        let mut routes = named
            .flat_map(|paths| &paths.entries)
            .flat_map(|entry| &entry.routes);
        routes.any(|(_, route)| {
            route
                .upstream
                .as_ref()
                .is_some_and(|pool| pool.upstream().port == port)
        })
    }

    /// Returns the tables that match a host, the most specific first.
    fn paths_of_host<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Paths> {
        let suffixes = host
            .match_indices('.')
            .map(move |(at, _)| host.get(at..).unwrap_or_default());
        let wildcards = suffixes.filter_map(|suffix| self.wildcard.get(suffix));
        let any = (!self.any.entries.is_empty()).then_some(&self.any);
        self.exact.get(host).into_iter().chain(wildcards).chain(any)
    }
}

impl Paths {
    fn add_route(
        &mut self,
        path: &str,
        methods: Vec<Method>,
        route: Arc<Route>,
    ) -> Result<(), RouteConflict> {
        if !path.starts_with('/') {
            return Err(RouteConflict::Path);
        }
        let at = match self.entries.iter().position(|entry| *entry.path == *path) {
            Some(at) => at,
            None => {
                let at = self.entries.len();
                self.router.insert(path, at).map_err(|error| match error {
                    matchit::InsertError::Conflict { .. } => RouteConflict::Overlap,
                    _ => RouteConflict::Path,
                })?;
                let folded = folded_template(path);
                if !self.entries.iter().any(|entry| *entry.folded == *folded) {
                    self.folded
                        .insert(&*folded, at)
                        .map_err(|_| RouteConflict::Overlap)?;
                }
                self.entries.push(Entry {
                    path: path.into(),
                    bare: bare_template(&folded).into(),
                    folded: folded.into(),
                    names: segment_names(path),
                    routes: Vec::new(),
                });
                at
            }
        };
        let Some(entry) = self.entries.get_mut(at) else {
            return Err(RouteConflict::Path);
        };
        let mut routes = entry.routes.iter();
        if let Some((_, other)) = routes.find(|(other, _)| share_a_method(&methods, other)) {
            return Err(RouteConflict::Taken(Arc::clone(&other.name)));
        }

        if !route.pass && !entry.has_rules() {
            let bare = entry.bare.clone();
            let is_there = self
                .entries
                .iter()
                .any(|other| other.has_rules() && other.bare == bare);
            if !is_there {
                self.bare
                    .insert(&*bare, at)
                    .map_err(|_| RouteConflict::Overlap)?;
            }
        }
        let Some(entry) = self.entries.get_mut(at) else {
            return Err(RouteConflict::Path);
        };
        // A route for all methods is matched last.
        let position = if methods.is_empty() {
            entry.routes.len()
        } else {
            0
        };
        entry.routes.insert(position, (methods, route));
        Ok(())
    }

    fn find_route(&self, method: &Method, path: &str) -> Result<(Arc<Route>, Segments), NoMatch> {
        let found = self.router.at(path).map_err(|_| NoMatch::Path)?;
        let entry = self.entries.get(*found.value).ok_or(NoMatch::Path)?;
        if self
            .entries_in_other_spellings(entry, path)
            .into_iter()
            .any(|other| other.may_have_rules(method))
        {
            return Err(NoMatch::Spelling);
        }
        let route = entry
            .routes
            .iter()
            .find(|(methods, _)| methods.is_empty() || methods.contains(method));
        let (_, route) = route.ok_or(NoMatch::Method)?;
        let has_names = entry.names.iter().any(Option::is_some);
        let segments = if has_names {
            Segments {
                names: Arc::clone(&entry.names),
                path: path.into(),
            }
        } else {
            Segments::default()
        };
        Ok((Arc::clone(route), segments))
    }

    /// Returns the other entries with rules that some server could find under the path. `entry` is
    /// the entry that the path matches as received.
    fn entries_in_other_spellings<'a>(&'a self, entry: &'a Entry, path: &str) -> Vec<&'a Entry> {
        let path = fold_path(path);
        let mut others = self.folded_like(entry, &path);
        if !entry.path.contains('{') {
            return others;
        }
        let mut end = 0;
        for (at, segment) in path.split('/').enumerate() {
            end += segment.len() + usize::from(at > 0);
            let is_last = end == path.len();
            if is_last || (is_script(segment) && !entry.has_own(at, segment)) {
                let prefix = &path[..end];
                if !is_last {
                    others.extend(self.folded_like(entry, prefix));
                }
                others.extend(self.bare_like(entry, prefix));
            }
        }
        others
    }

    /// Returns the entries with rules that match a folded path, if they differ from `entry`.
    fn folded_like(&self, entry: &Entry, path: &str) -> Vec<&Entry> {
        let found = self
            .folded
            .at(path)
            .ok()
            .and_then(|found| self.entries.get(*found.value));
        let Some(other) = found.filter(|other| other.folded != entry.folded) else {
            return Vec::new();
        };
        self.entries
            .iter()
            .filter(|entry| entry.folded == other.folded && entry.has_rules())
            .collect()
    }

    /// Returns the entries with rules that match a folded path without the suffix of a format, an
    /// index or a script. Skips a form if the path of `entry` itself contains all removed parts.
    fn bare_like(&self, entry: &Entry, path: &str) -> Vec<&Entry> {
        let mut others = Vec::new();
        for (bare, removed) in bare_forms(path) {
            let has_own = removed.iter().all(|(at, text)| entry.has_own(*at, text));
            let found = self
                .bare
                .at(&bare)
                .ok()
                .and_then(|found| self.entries.get(*found.value));
            let other =
                found.filter(|other| other.bare != entry.bare && (removed.is_empty() || !has_own));
            let Some(other) = other else { continue };
            others.extend(
                self.entries
                    .iter()
                    .filter(|entry| entry.bare == other.bare && entry.has_rules()),
            );
        }
        others
    }
}

/// Returns true if two routes of a path have the same method. No methods are all methods.
fn share_a_method(one: &[Method], other: &[Method]) -> bool {
    one.is_empty() == other.is_empty()
        && (one.is_empty() || one.iter().any(|method| other.contains(method)))
}

/// Returns true for a DNS name, an IPv4 address, or an IPv6 address in brackets.
fn is_host_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
        && (!name.contains(':') || (name.starts_with('[') && name.ends_with(']')))
}

impl Entry {
    /// Returns true if the routes of the entry are for all paths and methods.
    fn is_for_all(&self) -> bool {
        self.path.starts_with("/{*") && !self.has_methods()
    }

    fn has_rules(&self) -> bool {
        self.routes.iter().any(|(_, route)| !route.pass)
    }

    /// Returns true if the entry has rules for a method, or no route for the method.
    fn may_have_rules(&self, method: &Method) -> bool {
        let mut routes = self.routes.iter();
        let route = routes.find(|(methods, _)| methods.is_empty() || methods.contains(method));
        route.is_none_or(|(_, route)| !route.pass)
    }

    /// Returns true if a literal segment of the entry's own path ends with this text.
    fn has_own(&self, at: usize, text: &str) -> bool {
        self.folded
            .split('/')
            .nth(at)
            .is_some_and(|segment| segment.ends_with(text) && !text.contains('}'))
    }

    fn has_methods(&self) -> bool {
        self.routes.iter().any(|(methods, _)| !methods.is_empty())
    }
}

/// Returns a path with decoded escapes, with folded case, and without a slash at its end.
fn fold_path(path: &str) -> String {
    let mut folded = name::fold_text(&percent_decode_str(path).decode_utf8_lossy());
    if folded.len() > 1 && folded.ends_with('/') {
        folded.pop();
    }
    folded
}

/// Returns the bare forms of a folded path, each with the removed texts and the positions of their
/// segments. A bare form has no scripts that serve the rest of the path and no name of an index.
/// Further forms lack one or more suffixes that can be a format. Rails accepts any word as a
/// format.
fn bare_forms(folded: &str) -> Vec<(String, Vec<(usize, String)>)> {
    let segments: Vec<&str> = folded.split('/').skip(1).collect();
    let Some((mut last, before)) = segments.split_last().map(|(last, before)| (*last, before))
    else {
        return Vec::new();
    };
    let scripts = before
        .iter()
        .enumerate()
        .filter(|(_, segment)| is_script(segment));
    let scripts: Vec<_> = scripts
        .map(|(at, segment)| (at + 1, (*segment).to_owned()))
        .collect();

    let file_name = last;
    let mut bares = Vec::new();
    loop {
        let mut removed = scripts.clone();
        if last == INDEX {
            removed.push((segments.len(), file_name.to_owned()));
        } else if last.len() < file_name.len() {
            removed.push((segments.len(), file_name[last.len()..].to_owned()));
        }
        bares.push((without_scripts(before, last), removed));
        match last.rsplit_once('.') {
            Some((name, suffix)) if !name.is_empty() && is_word(suffix) => last = name,
            _ => return bares,
        }
    }
}

/// Returns true if a suffix can be a format: a word, or nothing after a final dot. A suffix that
/// does not start with a letter is part of a version.
fn is_word(suffix: &str) -> bool {
    suffix.is_empty()
        || (suffix.starts_with(char::is_alphabetic) && suffix.chars().all(char::is_alphanumeric))
}

/// Returns the bare form of a route's folded path. A word that is not a known format is a part of
/// the name, as in `/api/chat.postMessage`.
fn bare_template(folded: &str) -> String {
    let segments: Vec<&str> = folded.split('/').skip(1).collect();
    let Some((last, before)) = segments.split_last() else {
        return folded.to_owned();
    };
    let name = last
        .rsplit_once('.')
        .filter(|(name, suffix)| !name.is_empty() && FORMATS.contains(suffix));
    without_scripts(before, name.map_or(*last, |(name, _)| name))
}

fn without_scripts(before: &[&str], last: &str) -> String {
    let last = Some(last).filter(|last| *last != INDEX);
    let segments = before.iter().copied().filter(|segment| !is_script(segment));
    let bare: String = segments
        .chain(last)
        .flat_map(|segment| ["/", segment])
        .collect();
    if bare.is_empty() {
        "/".to_owned()
    } else {
        bare
    }
}

/// Returns true for a segment that servers treat as a script, which gets the rest of the path.
fn is_script(segment: &str) -> bool {
    segment
        .rsplit_once('.')
        .is_some_and(|(_, suffix)| SCRIPTS.contains(&suffix))
}

/// Returns the folded form of a route's path. Names in braces become numbers, so that equal forms
/// are equal texts.
fn folded_template(path: &str) -> String {
    let mut out = String::new();
    let mut rest = path;
    let mut names = 0;
    while let Some(start) = rest.find('{') {
        let (before, braces) = rest.split_at(start);
        let escaped = before.replace("}}", "}");
        out.push_str(&folded_literal(&escaped));
        if let Some(after) = braces.strip_prefix("{{") {
            out.push_str("{{");
            rest = after;
            continue;
        }
        let end = braces.find('}').map_or(braces.len(), |end| end + 1);
        out.push_str(if braces.starts_with("{*") { "{*" } else { "{" });
        out.push_str(&format!("n{names}}}"));
        names += 1;
        rest = &braces[end..];
    }
    out.push_str(&folded_literal(&rest.replace("}}", "}")));
    if out.len() > 1 && out.ends_with('/') {
        out.pop();
    }
    out
}

/// Returns a literal part of a route's path in its folded form, with escaped braces.
fn folded_literal(text: &str) -> String {
    name::fold_text(&percent_decode_str(text).decode_utf8_lossy())
        .replace('{', "{{")
        .replace('}', "}}")
}

/// Returns the names of the segments of a path. A segment has a name if it consists of one name in
/// braces.
fn segment_names(path: &str) -> Arc<[Option<Box<str>>]> {
    path.split('/')
        .map(|segment| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            (!name.starts_with('*')).then(|| name.into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Direction;
    use crate::upstream::pool::Pool;
    use crate::upstream::{Protocol, Upstream};

    /// Returns a route. It passes everything if its name ends with `pass`.
    fn route(name: &str) -> Arc<Route> {
        let second = std::time::Duration::from_secs(1);
        let upstream = Upstream {
            name: "shop".into(),
            is_tls: false,
            host: "shop".into(),
            port: 80,
            base_path: "".into(),
            roots: None,
            identity: None,
            addresses: Vec::new(),
            protocol: Protocol::Auto,
            connections_max: 1,
            connections_per_client_max: 1,
            window_bytes: 64 << 10,
            connect_timeout: second,
            first_byte_timeout: second,
            body_idle_timeout: second,
            idle_timeout: second,
        };
        Arc::new(Route {
            name: name.into(),
            path: "".into(),
            via: "".into(),
            upstream: Some(Pool::new(Arc::new(upstream))),
            strip_prefix: None,
            pass: name.ends_with("pass"),
            request: Direction::default(),
            response: Direction::default(),
            fail_open: false,
            deadline: second,
            websockets: crate::websocket::Sessions::default(),
        })
    }

    fn table(routes: &[(&str, &str, &str)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (host, path, methods) in routes {
            let name = format!("{host} {path} {methods}");
            let methods = methods
                .split_whitespace()
                .map(|method| method.parse().unwrap())
                .collect();
            table
                .add_route(host, path, methods, route(&name))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        table
    }

    #[test]
    fn the_most_specific_route_is_found() {
        let table = table(&[
            ("*", "/{*rest}", ""),
            ("*.example.com", "/orders/{id}", ""),
            ("*.eu.example.com", "/orders/{id}", ""),
            ("API.example.com", "/orders/{id}", ""),
            ("api.example.com", "/orders/new", ""),
            ("api.example.com", "/orders/{id}/items/{item}", ""),
            ("api.example.com", "/methods", "GET HEAD"),
            ("api.example.com", "/methods", "POST"),
            ("api.example.com", "/mixed", "GET"),
            ("api.example.com", "/mixed", ""),
            ("api.example.com", "/v{version}", ""),
            ("[::1]", "/", ""),
        ]);
        for (host, method, path, expected) in [
            (
                "api.example.com",
                "GET",
                "/orders/1",
                "API.example.com /orders/{id} ",
            ),
            (
                "api.example.com",
                "GET",
                "/orders/new",
                "api.example.com /orders/new ",
            ),
            (
                "api.example.com",
                "GET",
                "/orders/1/items/2",
                "api.example.com /orders/{id}/items/{item} ",
            ),
            (
                "www.example.com",
                "GET",
                "/orders/1",
                "*.example.com /orders/{id} ",
            ),
            (
                "a.b.example.com",
                "GET",
                "/orders/1",
                "*.example.com /orders/{id} ",
            ),
            (
                "a.eu.example.com",
                "GET",
                "/orders/1",
                "*.eu.example.com /orders/{id} ",
            ),
            ("example.com", "GET", "/orders/1", "* /{*rest} "),
            ("badexample.com", "GET", "/orders/1", "* /{*rest} "),
            ("[::1]", "GET", "/", "[::1] / "),
            (
                "api.example.com",
                "HEAD",
                "/methods",
                "api.example.com /methods GET HEAD",
            ),
            (
                "api.example.com",
                "POST",
                "/methods",
                "api.example.com /methods POST",
            ),
            (
                "api.example.com",
                "GET",
                "/mixed",
                "api.example.com /mixed GET",
            ),
            (
                "api.example.com",
                "PUT",
                "/mixed",
                "api.example.com /mixed ",
            ),
            (
                "api.example.com",
                "GET",
                "/v2",
                "api.example.com /v{version} ",
            ),
        ] {
            let found = table.find_route(host, &method.parse().unwrap(), path);
            let name = found.as_ref().map(|(route, _)| &*route.name);
            assert_eq!(name, Ok(expected), "{method} {host}{path}");
        }
    }

    #[test]
    fn spellings_of_a_path_with_rules_are_rejected() {
        let mut table = RouteTable::default();
        for (path, name) in [
            ("/v1/orders:charge", "charge"),
            ("/v1/Users/{id}", "users"),
            ("/v1/Users/{id}/", "users with a slash"),
            ("/v1/a|b/{x}/c", "bar"),
            ("/v1/gr%C3%BC%C3%9Fe", "greeting"),
            ("/v1/{{x}}", "braces"),
            ("/v1/health", "health pass"),
            ("/v1/{*rest}", "rest pass"),
        ] {
            table
                .add_route("a", path, Vec::new(), route(name))
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        for (path, expected) in [
            ("/v1/orders:charge", Ok("charge")),
            ("/v1/orders%3Acharge", Err(NoMatch::Spelling)),
            ("/v1/orders%3acharge", Err(NoMatch::Spelling)),
            ("/v1/ORDERS:charge", Err(NoMatch::Spelling)),
            ("/v1/orders:charge/", Err(NoMatch::Spelling)),
            ("/v1/orders:charge2", Ok("rest pass")),
            ("/v1/Users/1", Ok("users")),
            ("/v1/Users/1/", Ok("users with a slash")),
            ("/v1/Users/a%40b.example", Ok("users")),
            ("/v1/Users/a@b.example", Ok("users")),
            ("/v1/Users/A%20B", Ok("users")),
            ("/v1/users/1", Err(NoMatch::Spelling)),
            ("/v1/users/1/", Err(NoMatch::Spelling)),
            ("/v1/users", Ok("rest pass")),
            ("/v1/a|b/1/c", Ok("bar")),
            ("/v1/a%7Cb/1/c", Err(NoMatch::Spelling)),
            ("/v1/A|b/1/C/", Err(NoMatch::Spelling)),
            ("/v1/gr%C3%BC%C3%9Fe", Ok("greeting")),
            ("/v1/GR%C3%9C%C3%9FE", Err(NoMatch::Spelling)),
            ("/v1/{x}", Ok("braces")),
            ("/v1/%7Bx%7D", Err(NoMatch::Spelling)),
            // Another spelling of a path that passes is no way around rules.
            ("/v1/HEALTH", Ok("rest pass")),
            ("/v1/a%40b", Ok("rest pass")),
            ("/V1/orders:charge", Err(NoMatch::Path)),
        ] {
            let found = table.find_route("a", &Method::POST, path);
            assert_eq!(
                found
                    .as_ref()
                    .map(|(route, _)| &*route.name)
                    .map_err(|error| *error),
                expected,
                "{path}"
            );
        }
        let conflict = table.add_route("a", "/V1/users/{*all}", Vec::new(), route("all"));
        assert_eq!(conflict, Err(RouteConflict::Overlap));
    }

    #[test]
    fn formats_and_scripts_of_a_path_with_rules_are_rejected() {
        let mut table = RouteTable::default();
        for (path, name) in [
            ("/orders", "orders"),
            ("/orders/{id}", "order"),
            ("/orders/new", "new"),
            ("/orders/help.html", "help pass"),
            ("/report.csv", "report"),
            ("/v1.0", "version"),
            ("/shop/index.php/cart", "cart"),
            ("/gr%C3%BC%C3%9Fe", "greeting"),
            ("/health", "health pass"),
            ("/login.php", "login"),
            ("/login.php/help", "login help pass"),
            ("/docs.php", "docs"),
            ("/docs.php/{page}", "page pass"),
            ("/orders.asmx", "service"),
            ("/api/chat.postMessage", "message"),
            ("/api/v1", "api"),
            ("/users/me", "me"),
            ("/{*rest}", "rest pass"),
        ] {
            table
                .add_route("a", path, Vec::new(), route(name))
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        for (path, expected) in [
            // A script gets the rest of the path as data.
            ("/login.php", Ok("login")),
            ("/login.php/x", Err(NoMatch::Spelling)),
            ("/login.php/x/y.html", Err(NoMatch::Spelling)),
            ("/Login.PHP/x", Err(NoMatch::Spelling)),
            ("/index.php/login.php/x", Err(NoMatch::Spelling)),
            ("/login.php/help", Ok("login help pass")),
            ("/docs.php/1", Ok("page pass")),
            ("/docs.php/1/x", Err(NoMatch::Spelling)),
            ("/orders.asmx/Charge", Err(NoMatch::Spelling)),
            ("/other.php/x", Ok("rest pass")),
            // Names with dots.
            ("/api/chat.postMessage", Ok("message")),
            ("/api/chat.postMessage.json", Err(NoMatch::Spelling)),
            ("/api/chat.update", Ok("rest pass")),
            ("/api/chat", Ok("rest pass")),
            ("/api/v1.1", Ok("rest pass")),
            ("/api/v1.json", Err(NoMatch::Spelling)),
            ("/users/me.smith@x.example", Ok("rest pass")),
            ("/users/me.", Err(NoMatch::Spelling)),
            ("/orders", Ok("orders")),
            ("/orders.json", Err(NoMatch::Spelling)),
            ("/ORDERS.JSON", Err(NoMatch::Spelling)),
            ("/orders.json/", Err(NoMatch::Spelling)),
            ("/orders.", Err(NoMatch::Spelling)),
            ("/orders.1", Ok("rest pass")),
            ("/orders.any", Err(NoMatch::Spelling)),
            ("/orders.any.json", Err(NoMatch::Spelling)),
            ("/orders.a.b", Err(NoMatch::Spelling)),
            ("/orders.php", Err(NoMatch::Spelling)),
            ("/orders/index", Err(NoMatch::Spelling)),
            ("/orders/index.php", Err(NoMatch::Spelling)),
            ("/index.php/orders", Err(NoMatch::Spelling)),
            ("/app_dev.php/orders/7", Err(NoMatch::Spelling)),
            ("/Index.PHP/orders.json", Err(NoMatch::Spelling)),
            ("/orders/7", Ok("order")),
            ("/orders/7.json", Ok("order")),
            ("/orders/jane.doe@a.example", Ok("order")),
            ("/orders/new", Ok("new")),
            ("/orders/new.json", Err(NoMatch::Spelling)),
            ("/orders/help.html", Ok("help pass")),
            ("/report.csv", Ok("report")),
            ("/report", Err(NoMatch::Spelling)),
            ("/report.xml", Err(NoMatch::Spelling)),
            ("/v1.0", Ok("version")),
            ("/v1", Ok("rest pass")),
            ("/v1.1", Ok("rest pass")),
            ("/shop/cart", Err(NoMatch::Spelling)),
            ("/shop/index.php/cart", Ok("cart")),
            ("/shop/index.php", Ok("rest pass")),
            // Other forms of one character.
            ("/gr%C3%BC%C5%BF%C5%BFe", Err(NoMatch::Spelling)),
            ("/gru%CC%88%C3%9Fe", Err(NoMatch::Spelling)),
            ("/gr%C3%BC%E2%80%8B%C3%9Fe", Err(NoMatch::Spelling)),
            ("/%EF%BD%8Frders", Err(NoMatch::Spelling)),
            ("/health.json", Ok("rest pass")),
            ("/orders2.json", Ok("rest pass")),
            ("/.orders", Ok("rest pass")),
            ("/assets/app.js", Ok("rest pass")),
            ("/", Err(NoMatch::Path)),
        ] {
            let found = table.find_route("a", &Method::POST, path);
            assert_eq!(
                found
                    .as_ref()
                    .map(|(route, _)| &*route.name)
                    .map_err(|error| *error),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn routes_decide_on_spellings_that_they_have_themselves() {
        let mut table = RouteTable::default();
        for (path, name) in [
            ("/orders", "orders"),
            ("/{tenant}/orders", "tenant pass"),
            ("/reports", "reports"),
            ("/{tenant}/reports.csv", "report pass"),
        ] {
            table.add_route("a", path, Vec::new(), route(name)).unwrap();
        }
        for (path, expected) in [
            ("/shop/orders", Ok("tenant pass")),
            ("/index.php/orders", Err(NoMatch::Spelling)),
            ("/shop/reports.csv", Ok("report pass")),
            ("/index.php/reports.csv", Err(NoMatch::Spelling)),
        ] {
            let found = table.find_route("a", &Method::POST, path);
            assert_eq!(
                found
                    .as_ref()
                    .map(|(route, _)| &*route.name)
                    .map_err(|error| *error),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn spellings_are_rejected_for_methods_with_rules() {
        let mut table = RouteTable::default();
        for (path, method, name) in [
            ("/orders", "POST", "orders"),
            ("/orders", "GET", "list pass"),
            ("/login.php", "POST", "login"),
            ("/login.php", "GET", "page pass"),
            ("/{*rest}", "", "rest pass"),
        ] {
            let methods = method
                .split_whitespace()
                .map(|method| method.parse().unwrap())
                .collect();
            table.add_route("a", path, methods, route(name)).unwrap();
        }
        for path in [
            "/orders.json",
            "/orders/",
            "/ORDERS",
            "/orders/index.html",
            "/index.php/orders",
            "/login.php/x",
        ] {
            for (method, is_ok) in [
                (Method::GET, true),
                (Method::POST, false),
                (Method::PUT, false),
            ] {
                assert_eq!(
                    table.find_route("a", &method, path).is_ok(),
                    is_ok,
                    "{method} {path}"
                );
            }
            // A header that overrides the method decides on rules here too.
            assert!(table.depends_on_method("a", path), "{path}");
        }
        assert!(!table.depends_on_method("a", "/other"));
    }

    #[test]
    fn rules_depend_on_path_or_method() {
        for (routes, path, method) in [
            (&[("/{*rest}", "", "seal")][..], false, false),
            (
                &[("/{*rest}", "", "rest pass"), ("/x", "", "x pass")],
                false,
                false,
            ),
            (
                &[("/{*rest}", "", "rest pass"), ("/x", "", "seal")],
                true,
                false,
            ),
            (&[("/{*rest}", "POST", "seal")], true, true),
            (&[("/x", "", "seal")], true, false),
            (&[("/x", "POST", "seal"), ("/x", "", "pass")], true, true),
        ] {
            let mut table = RouteTable::default();
            for (path, methods, name) in routes {
                let methods = methods
                    .split_whitespace()
                    .map(|method| method.parse().unwrap())
                    .collect();
                table.add_route("a", path, methods, route(name)).unwrap();
            }
            assert_eq!(table.depends_on_target("a"), path, "{routes:?}");
            assert_eq!(table.depends_on_method("a", "/x"), method, "{routes:?}");
            assert!(!table.depends_on_target("b") && !table.depends_on_method("b", "/x"));
        }
    }

    #[test]
    fn failed_match_names_its_cause() {
        let table = table(&[
            ("a.example", "/x", "GET"),
            ("*.example", "/x", ""),
            ("*.example", "/y/{id}", ""),
        ]);
        for (host, path, expected) in [
            ("b.test", "/x", NoMatch::Host),
            ("", "/x", NoMatch::Host),
            ("a.example", "/z", NoMatch::Path),
            ("b.example", "/z", NoMatch::Path),
            ("b.example", "/y/", NoMatch::Path),
            ("b.example", "/y/1/2", NoMatch::Path),
            // The most specific host decides alone, so that no other spelling of a path is a way
            // around its rules.
            ("a.example", "/y/1", NoMatch::Path),
            // The method of the most specific host decides: a route for fewer methods is no way
            // around it.
            ("a.example", "/x", NoMatch::Method),
        ] {
            assert_eq!(
                table.find_route(host, &Method::POST, path).map(drop),
                Err(expected),
                "{host}{path}"
            );
        }
        assert_eq!(
            RouteTable::default()
                .find_route("a", &Method::GET, "/")
                .map(drop),
            Err(NoMatch::Host)
        );
    }

    #[test]
    fn conflicts_are_rejected() {
        for (host, path, methods, expected) in [
            (
                "a.example",
                "/orders/{id}",
                "",
                "route a.example /orders/{id} GET",
            ),
            (
                "a.example",
                "/orders/{id}",
                "HEAD GET",
                "has this host, path and method",
            ),
            (
                "A.example",
                "/orders/{id}",
                "GET",
                "has this host, path and method",
            ),
            ("a.example", "/all", "", "has this host, path and method"),
            (
                "a.example",
                "/orders/{other}",
                "",
                "conflicts with that of another route",
            ),
            (
                "a.example",
                "/orders/{*rest}",
                "",
                "conflicts with that of another route",
            ),
            ("a.example", "orders", "", "must begin with `/`"),
            ("a.example", "", "", "must begin with `/`"),
            ("a.example", "/{", "", "must begin with `/`"),
            ("a.example", "/{*rest}/x", "", "must begin with `/`"),
            ("", "/", "", "the host must be a name"),
            ("*.", "/", "", "the host must be a name"),
            ("*a.example", "/", "", "the host must be a name"),
            ("a.*.example", "/", "", "the host must be a name"),
            ("a/b", "/", "", "the host must be a name"),
            ("b\u{fc}cher.example", "/", "", "the host must be a name"),
        ] {
            let mut table = table(&[
                ("a.example", "/orders/{id}", "GET"),
                ("a.example", "/all", ""),
            ]);
            let methods: Vec<Method> = methods
                .split_whitespace()
                .map(|method| method.parse().unwrap())
                .collect();
            let is_for_all = methods.is_empty() && path == "/orders/{id}";
            match table.add_route(host, path, methods, route("new")) {
                // A route for all methods takes those that the other one does not have.
                Ok(()) => assert!(is_for_all, "{host}{path}"),
                Err(error) => assert!(
                    error.to_string().contains(expected),
                    "{host}{path}: {error}"
                ),
            }
        }
    }

    #[test]
    fn segments_are_decoded_once() {
        let table = table(&[
            ("*", "/orders/{id}/items/{item}", ""),
            ("*", "/v{version}/x", ""),
        ]);
        let (_, segments) = table
            .find_route("a", &Method::GET, "/orders/a%20b/items/%2541")
            .unwrap();
        assert_eq!(segments.value("id").as_deref(), Some("a b"));
        assert_eq!(segments.value("item").as_deref(), Some("%41"));
        assert_eq!(segments.value("other"), None);
        assert_eq!(
            (segments.name_at(2), segments.name_at(3)),
            (Some("id"), None)
        );
        let (_, segments) = table
            .find_route("a", &Method::GET, "/orders/%ff/items/1")
            .unwrap();
        assert_eq!(segments.value("id"), None, "not UTF-8");
        // Only whole segments have names.
        let (_, segments) = table.find_route("a", &Method::GET, "/v1/x").unwrap();
        assert_eq!(segments.value("version"), None);
    }

    #[test]
    fn hosts_of_a_proxy_are_those_of_routes() {
        let table = table(&[
            ("*", "/", ""),
            ("a.example", "/", ""),
            ("*.b.example", "/", ""),
        ]);
        for (host, expected) in [
            ("a.example", true),
            ("x.b.example", true),
            ("b.example", false),
            ("c.example", false),
        ] {
            assert_eq!(table.has_destination(host, 80), expected, "{host}");
            assert!(!table.has_destination(host, 81), "{host}");
        }
    }
}
