//! Paths of the HTTP interface.
//!
//! | path | request |
//! | --- | --- |
//! | `POST /v1/apps/{app}/encrypt`, and the other methods of the contract | a request on data of an app |
//! | `GET /v1/health`, `GET /v1/info` | the methods of these names |
//! | `GET /openapi.json` | the description of this interface |

use http::header::ORIGIN;
use http::{HeaderMap, Method as Verb, StatusCode};
use sealwire_wire::{Method, Methods};

use crate::openapi;
use crate::problem::Problem;

/// The request that a path names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// A method on data of an app.
    Data {
        /// The method of the contract.
        method: Method,
        /// The app, as the path spells it.
        app: &'a str,
    },
    /// A method without an app and without parameters.
    Plain(Method),
    /// The description of this interface.
    Description,
}

/// Rejects requests of web pages. A browser sends the client's certificate with them, and no page
/// is meant to use it. An address that the user enters is allowed.
///
/// # Errors
/// The request has an `Origin`, or a `Sec-Fetch-Site` other than `none`.
pub(crate) fn check_no_web_page(headers: &HeaderMap) -> Result<(), Problem> {
    let has_site = headers
        .get_all("sec-fetch-site")
        .iter()
        .any(|site| site != "none");
    if has_site || headers.contains_key(ORIGIN) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "requests of web pages, with Origin or Sec-Fetch-Site, are not served",
        ));
    }
    Ok(())
}

/// Finds the request that a path names.
///
/// # Errors
/// A path that does not exist, or a verb that it does not have.
pub(crate) fn find<'a>(verb: &Verb, path: &'a str) -> Result<Route<'a>, Problem> {
    if path == openapi::PATH {
        return match *verb {
            Verb::GET => Ok(Route::Description),
            _ => Err(Problem::wrong_verb("GET")),
        };
    }
    let rest = path.strip_prefix("/v1/").ok_or_else(unknown_path)?;
    if let Some(method) = plain(rest) {
        return match *verb {
            Verb::GET => Ok(Route::Plain(method)),
            _ => Err(Problem::wrong_verb("GET")),
        };
    }
    let (app, name) = rest
        .strip_prefix("apps/")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(unknown_path)?;
    if app.contains('%') || name.contains('%') {
        return Err(Problem::bad_request(
            "the path must not have escapes: names of apps are of A-Z a-z 0-9 . _ -",
        ));
    }
    let method = Method::from_name(name.as_bytes())
        .filter(|method| Methods::DATA.contains(*method) && takes_app(*method))
        .ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                "no such method; GET /v1/info lists the methods of this engine",
            )
        })?;
    match *verb {
        Verb::POST => Ok(Route::Data { method, app }),
        _ => Err(Problem::wrong_verb("POST")),
    }
}

fn plain(name: &str) -> Option<Method> {
    match name {
        "health" => Some(Method::Health),
        "info" => Some(Method::Info),
        _ => None,
    }
}

/// Returns true if the method has the parameter `app`.
fn takes_app(method: Method) -> bool {
    method.params().iter().any(|param| param.name == "app")
}

fn unknown_path() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no such path; requests go to /v1/apps/{app}/{method}, such as /v1/apps/demo/encrypt",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_pages_are_rejected() {
        for (name, value, is_served) in [
            ("sec-fetch-site", "none", true),
            ("sec-fetch-site", "same-origin", false),
            ("sec-fetch-site", "cross-site", false),
            ("origin", "https://localhost:7446", false),
            ("origin", "null", false),
            ("sec-fetch-mode", "navigate", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            let checked = check_no_web_page(&headers).map_err(|problem| problem.status.as_u16());
            let expected = if is_served { Ok(()) } else { Err(403) };
            assert_eq!(checked, expected, "{name}: {value}");
        }
    }

    #[test]
    fn paths_name_methods() {
        for (verb, path, expected) in [
            (Verb::GET, "/v1/health", Ok(Route::Plain(Method::Health))),
            (Verb::GET, "/v1/info", Ok(Route::Plain(Method::Info))),
            (Verb::GET, "/openapi.json", Ok(Route::Description)),
            (Verb::POST, "/openapi.json", Err(405)),
            (Verb::GET, "/openapi.json/", Err(404)),
            (Verb::GET, "/v1/openapi.json", Err(404)),
            (
                Verb::POST,
                "/v1/apps/demo/encrypt",
                Ok(Route::Data {
                    method: Method::Encrypt,
                    app: "demo",
                }),
            ),
            (
                Verb::POST,
                "/v1/apps/a.b-c_D/objects.query",
                Ok(Route::Data {
                    method: Method::ObjectsQuery,
                    app: "a.b-c_D",
                }),
            ),
            (Verb::POST, "/v1/health", Err(405)),
            (Verb::GET, "/v1/apps/demo/encrypt", Err(405)),
            (Verb::POST, "/", Err(404)),
            (Verb::POST, "/v2/apps/demo/encrypt", Err(404)),
            (Verb::POST, "/v1/apps/demo", Err(404)),
            (Verb::POST, "/v1/apps/demo/", Err(404)),
            (Verb::POST, "/v1/apps/demo/encrpyt", Err(404)),
            (Verb::POST, "/v1/apps/demo/encrypt/", Err(404)),
            (Verb::POST, "/v1/apps/demo/../demo/encrypt", Err(404)),
            (Verb::POST, "/v1/apps/demo%2fx/encrypt", Err(400)),
            (Verb::POST, "//v1/apps/demo/encrypt", Err(404)),
            // Control methods are those of the control listener alone.
            (Verb::POST, "/v1/apps/demo/apps.create", Err(404)),
            (Verb::POST, "/v1/apps/demo/health", Err(404)),
        ] {
            let found = find(&verb, path).map_err(|problem| problem.status.as_u16());
            assert_eq!(found, expected, "{verb} {path}");
        }
    }
}
