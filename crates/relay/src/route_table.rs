//! Finds the route of a request: the most specific host, then the most specific path, then the method.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::route::Route;

/// Error of a route that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteConflict {
    /// The host is neither a name, nor `*.` and a name, nor `*`.
    #[error("the host must be a name, `*.` and a name, or `*`")]
    Host,
    /// The path does not begin with `/`, or its braces are wrong.
    #[error("the path must begin with `/` and have names in braces, such as `/orders/{{id}}` or `/files/{{*rest}}`")]
    Path,
    /// The path overlaps with another path of the host, and neither is more specific.
    #[error("the path conflicts with that of another route")]
    Overlap,
    /// Another route has host, path and method.
    #[error("route {0} has this host, path and method")]
    Taken(Arc<str>),
}

/// Reason why no route fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// No host fits.
    Host,
    /// No path of the host fits.
    Path,
    /// The path fits, and none of its routes has the method.
    Method,
}

/// The routes of one listener.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Box<str>, Paths>,
    /// By the suffix behind the `*`, with its dot.
    wildcard: HashMap<Box<str>, Paths>,
    any: Paths,
}

#[derive(Debug, Default)]
struct Paths {
    router: matchit::Router<usize>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    path: Box<str>,
    /// Names of the path's segments by position; the first one is empty, before the first `/`.
    names: Arc<[Option<Box<str>>]>,
    routes: Vec<(Vec<Method>, Arc<Route>)>,
}

/// Segments of a path that a route names.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    names: Arc<[Option<Box<str>>]>,
    path: Box<str>,
}

impl Segments {
    /// Name of the segment at a position; the first one is empty, before the first `/`.
    pub fn name_at(&self, at: usize) -> Option<&str> {
        self.names.get(at)?.as_deref()
    }

    /// Decoded value of a segment.
    pub fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let at = self.names.iter().position(|candidate| candidate.as_deref() == Some(name))?;
        percent_decode_str(self.path.split('/').nth(at)?).decode_utf8().ok()
    }
}

impl RouteTable {
    /// Adds a route for a host, a path and methods; no methods stand for all.
    ///
    /// # Errors
    /// [`RouteConflict`].
    pub fn add(
        &mut self,
        host: &str,
        path: &str,
        methods: Vec<Method>,
        route: Arc<Route>,
    ) -> Result<(), RouteConflict> {
        let host = host.to_ascii_lowercase();
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
        };
        let paths = match host.strip_prefix('*') {
            Some("") => &mut self.any,
            Some(suffix) if suffix.strip_prefix('.').is_some_and(is_name) => {
                self.wildcard.entry(suffix.into()).or_default()
            }
            None if is_name(&host) => self.exact.entry(host.as_str().into()).or_default(),
            _ => return Err(RouteConflict::Host),
        };
        paths.add(path, methods, route)
    }

    /// Finds the route of a request. `host` is in lower case; `path` is as it stands in the request.
    ///
    /// # Errors
    /// [`NoMatch`].
    pub fn find(&self, host: &str, method: &Method, path: &str) -> Result<(Arc<Route>, Segments), NoMatch> {
        let mut reason = NoMatch::Host;
        for paths in self.of_host(host) {
            match paths.find(method, path) {
                Ok(found) => return Ok(found),
                Err(NoMatch::Method) => return Err(NoMatch::Method),
                Err(other) => reason = other,
            }
        }
        Err(reason)
    }

    /// Returns true if a route is for exactly this host.
    pub fn has_host(&self, host: &str) -> bool {
        self.of_host(host).any(|paths| !std::ptr::eq(paths, &raw const self.any))
    }

    /// Tables of a host, the most specific first.
    fn of_host<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Paths> {
        let suffixes = host.match_indices('.').map(move |(at, _)| host.get(at..).unwrap_or_default());
        let wildcards = suffixes.filter_map(|suffix| self.wildcard.get(suffix));
        let any = (!self.any.entries.is_empty()).then_some(&self.any);
        self.exact.get(host).into_iter().chain(wildcards).chain(any)
    }
}

impl Paths {
    fn add(&mut self, path: &str, methods: Vec<Method>, route: Arc<Route>) -> Result<(), RouteConflict> {
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
                self.entries.push(Entry { path: path.into(), names: names(path), routes: Vec::new() });
                at
            }
        };
        let Some(entry) = self.entries.get_mut(at) else { return Err(RouteConflict::Path) };
        let shares = |other: &[Method]| {
            methods.is_empty() == other.is_empty()
                && (methods.is_empty() || methods.iter().any(|method| other.contains(method)))
        };
        if let Some((_, other)) = entry.routes.iter().find(|(other, _)| shares(other)) {
            return Err(RouteConflict::Taken(Arc::clone(&other.name)));
        }
        // A route for all methods comes last.
        let behind = if methods.is_empty() { entry.routes.len() } else { 0 };
        entry.routes.insert(behind, (methods, route));
        Ok(())
    }

    fn find(&self, method: &Method, path: &str) -> Result<(Arc<Route>, Segments), NoMatch> {
        let found = self.router.at(path).map_err(|_| NoMatch::Path)?;
        let entry = self.entries.get(*found.value).ok_or(NoMatch::Path)?;
        let route = entry.routes.iter().find(|(methods, _)| methods.is_empty() || methods.contains(method));
        let (_, route) = route.ok_or(NoMatch::Method)?;
        let has_names = entry.names.iter().any(Option::is_some);
        let segments = if has_names {
            Segments { names: Arc::clone(&entry.names), path: path.into() }
        } else {
            Segments::default()
        };
        Ok((Arc::clone(route), segments))
    }
}

/// Names of the segments of a path. A segment has a name if it is nothing but a name in braces.
fn names(path: &str) -> Arc<[Option<Box<str>>]> {
    path.split('/')
        .map(|segment| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            (!name.starts_with('*')).then(|| name.into())
        })
        .collect()
}
