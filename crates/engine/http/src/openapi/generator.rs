//! Generates `docs/openapi.json`.
//!
//! Names, types, defaults and bounds are those of [`Method::params`], statuses and codes those of
//! `problem`, paths those of `route`. Sentences, results, details and examples come from the
//! contract, whose tables the tests of `sealwire-wire` compare with the code.

use std::collections::BTreeMap;

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, Method as Verb, StatusCode};
use sealwire_wire::rules::Form;
use sealwire_wire::{DetailValue, ErrorCode, ItemError, Method, OverloadReason, Param};
use serde_json::{Map, Value, json};

use super::contract_page::{Example, Page, Prose, capitalized, has_binary, plain};
use super::schemas::{self, closed_object, nullable};
use crate::body::{JSON, JSON_REQUEST, MSGPACK, MSGPACK_REQUEST};
use crate::params::{self, PAYLOAD, Params, STANDARD};
use crate::problem::{HTTP_STATUSES, PROBLEM, Problem, detail_value, status_of};
use crate::route::{self, Route};

/// The parameter in the path.
const APP: &str = "app";
/// The section of the result that is a document.
const DOCUMENT_RESULT: &str = "Document result";
/// The sections about parameters of several methods.
const COMMON_SECTIONS: [&str; 2] = ["Document params", "Request options"];
/// The statuses of requests without a body.
const STATUSES_OF_GET: [u16; 9] = [400, 401, 403, 417, 429, 431, 500, 503, 504];
/// The tags, with their descriptions.
const TAGS: [(&str, &str); 6] = [
    (
        "documents",
        "Encrypt, decrypt, tokenize and mask the fields of a document.",
    ),
    ("tokens", "Manage the tokens of a collection."),
    (
        "objects",
        "Store objects whose properties are encrypted, and find them.",
    ),
    ("subjects", "Find, export and erase the data of a person."),
    ("keys", "Keys of an app."),
    ("engine", "The engine itself."),
];
const INTRODUCTION: &str = "The methods of an engine over HTTPS, with documents as JSON or MessagePack. \
The contract (proto/README.md) describes every method, and docs/http.md this interface.

A document is the body of a request, and headers carry its parameters. A request object \
(`application/vnd.sealwire.request+json` or `+msgpack`) carries the document and all parameters but \
`app`: send no `sealwire-` headers beside it. Lengths count bytes of UTF-8: `maxLength` counts characters, \
so a text beyond ASCII can be too long although it satisfies its schema. With MessagePack, a value \
whose schema has `x-msgpack-types` can also be binary. Other binary values and extensions occur in \
documents only, and have no JSON form. Numbers have at most 64 bits. An integer has neither a \
fraction nor an exponent: `1.0` is not an integer. Where a text says nil, JSON has null.

Objects of requests are closed: an unknown member is an error. Results can gain members: ignore \
unknown ones. A path with another verb gets status 405 with the header `Allow`. Requests of web \
pages (with `Origin` or `Sec-Fetch-Site`) get 403.";

/// Returns the text of the description.
pub(super) fn generate() -> String {
    let mut generator = Generator::new();
    let paths = generator.paths();
    let components = generator.components(&paths);
    let members = [
        ("openapi", json!("3.1.0")),
        ("info", info()),
        (
            "servers",
            json!([{"url": "https://localhost:7446", "description": "An engine of `sealwire dev`"}]),
        ),
        ("security", security()),
        ("tags", tags()),
        ("paths", paths),
        ("components", components),
    ];
    print(&members)
}

/// Returns every documented status of a failed request, with its codes.
pub(super) fn problems() -> BTreeMap<u16, Vec<ErrorCode>> {
    let mut problems = BTreeMap::<u16, Vec<ErrorCode>>::new();
    for code in ErrorCode::ALL {
        let codes = problems.entry(status_of(code).as_u16()).or_default();
        codes.push(code);
    }
    for status in HTTP_STATUSES {
        let codes = problems.entry(status.as_u16()).or_default();
        codes.push(Problem::new(status, "").error.code);
    }
    problems
}

/// Returns the methods that have a path.
pub(super) fn methods() -> Vec<(Verb, String, Method)> {
    let mut found = Vec::new();
    for method in Method::ALL {
        let plain = format!("/v1/{method}");
        if matches!(route::find(&Verb::GET, &plain), Ok(Route::Plain(_))) {
            found.push((Verb::GET, plain, method));
        }
        let of_app = format!("/v1/apps/app/{method}");
        if matches!(route::find(&Verb::POST, &of_app), Ok(Route::Data { .. })) {
            found.push((Verb::POST, format!("/v1/apps/{{app}}/{method}"), method));
        }
    }
    found
}

/// A value that several methods have in common, as far as it is the same.
#[derive(Default)]
struct Shared(BTreeMap<String, Vec<(Value, Vec<Method>)>>);

impl Shared {
    fn add(&mut self, name: &str, value: Value, method: Method) {
        let variants = self.0.entry(name.to_owned()).or_default();
        match variants.iter_mut().find(|(known, _)| *known == value) {
            Some((_, methods)) => methods.push(method),
            None => variants.push((value, vec![method])),
        }
    }

    /// Returns the component for a value, if several methods have the value.
    fn component(&self, name: &str, value: &Value) -> Option<String> {
        let mut shared = self.0[name].iter().filter(|(_, methods)| methods.len() > 1);
        let at = shared.clone().position(|(known, _)| known == value)?;
        let (_, methods) = shared.nth(at)?;
        Some(match at {
            0 => pascal(name),
            _ => format!("{}Of{}", pascal(name), pascal(methods[0].name())),
        })
    }

    fn components(&self) -> Map<String, Value> {
        let mut components = Map::new();
        for (name, variants) in &self.0 {
            for (value, _) in variants {
                if let Some(component) = self.component(name, value) {
                    let before = components.insert(component, value.clone());
                    assert!(before.is_none(), "two components of {name}");
                }
            }
        }
        components
    }
}

struct Generator {
    contract: Page,
    interface: Page,
    /// The texts of the sections about parameters.
    prose: BTreeMap<String, Prose>,
    examples: BTreeMap<String, Example>,
    schemas: Map<String, Value>,
    values: Shared,
    headers: Shared,
}

impl Generator {
    fn new() -> Self {
        let contract = Page::new(include_str!("../../../../../proto/README.md"));
        let sections = Method::ALL.into_iter().map(section_of_params);
        let sections = sections.chain(COMMON_SECTIONS.map(ToOwned::to_owned));
        let mut generator = Self {
            examples: contract.examples(),
            prose: sections
                .map(|section| (section.clone(), contract.prose(&section)))
                .collect(),
            contract,
            interface: Page::new(include_str!("../../../../../docs/http.md")),
            schemas: Map::new(),
            values: Shared::default(),
            headers: Shared::default(),
        };
        for (_, _, method) in methods() {
            for param in own_params(method) {
                let value = generator.value(method, param);
                generator.values.add(param.name, value, method);
                if param.name != PAYLOAD && is_header(method, param) {
                    let header = generator.header(method, param);
                    generator.headers.add(param.name, header, method);
                }
            }
        }
        generator
    }

    fn paths(&mut self) -> Value {
        let mut paths = Map::new();
        for (verb, path, method) in methods() {
            let operation = match verb {
                Verb::GET => self.plain_operation(method),
                _ => self.data_operation(method),
            };
            let verb = verb.as_str().to_lowercase();
            paths.insert(path, json!({ verb: operation }));
        }
        let mut operation = json!({
            "operationId": "openapi",
            "tags": ["engine"],
            "summary": "Returns this description",
            "responses": {"200": {
                "description": "This description.",
                "content": {JSON: {"schema": {"type": "object", "additionalProperties": true}}},
            }},
        });
        self.add_problems(&mut operation, &STATUSES_OF_GET);
        paths.insert(super::PATH.into(), json!({ "get": operation }));
        Value::Object(paths)
    }

    /// Returns the operation of a method without an app and without parameters.
    fn plain_operation(&mut self, method: Method) -> Value {
        let (summary, result) = self.summary(method);
        let result = self.result(method, &result);
        let mut content = json!({ "schema": result });
        if let Some(example) = self.examples.get(method.name()) {
            content["examples"] = json!({"object": {"value": example.result}});
        }
        let mut operation = json!({
            "operationId": camel(method.name()),
            "tags": ["engine"],
            "summary": summary,
            "responses": {"200": {"description": "The result.", "content": {JSON: content}}},
        });
        self.add_problems(&mut operation, &STATUSES_OF_GET);
        operation
    }

    /// Returns the operation of a method on data of an app.
    fn data_operation(&mut self, method: Method) -> Value {
        let (summary, result_cell) = self.summary(method);
        let example = self.examples.get(method.name()).map(json_example);
        let result = self.result(method, &result_cell);
        let request = self.request(method);

        let body = own_params(method).find(|param| param.name == PAYLOAD);
        let needs_object = own_params(method).any(|param| {
            param.default.is_none() && param.name != PAYLOAD && !is_header(method, param)
        });
        let takes_headers = method.takes_document() && !needs_object;
        let body = body
            .filter(|_| takes_headers)
            .map(|payload| self.shared_value(method, payload));
        let is_document = takes_headers && result == reference("schemas", &pascal(DOCUMENT_RESULT));

        let mut content = Map::new();
        let mut parameters = vec![reference("parameters", "App")];
        let plain_body = match &body {
            Some(body) => Some(body),
            None if !method.takes_document() => Some(&request),
            None => None,
        };
        if let Some(schema) = plain_body {
            content.insert(JSON.into(), json!({ "schema": schema }));
            content.insert(MSGPACK.into(), json!({ "schema": schema }));
        }
        content.insert(JSON_REQUEST.into(), json!({ "schema": request }));
        content.insert(MSGPACK_REQUEST.into(), json!({ "schema": request }));

        let schema = if is_document {
            json!({"anyOf": [body, result]})
        } else {
            result
        };
        let mut response = json!({
            "description": if is_document {
                "The document, or for a request object the result."
            } else {
                "The result."
            },
            "content": {JSON: {"schema": schema}, MSGPACK: {"schema": schema}},
        });
        if is_document {
            response["headers"] = self.result_headers();
        }

        for param in own_params(method).filter(|param| param.name != PAYLOAD) {
            let is_standard = header_of(param) == "traceparent";
            if is_header(method, param) && (takes_headers || is_standard) {
                let value = example
                    .as_ref()
                    .and_then(|(params, _)| params.get(param.name));
                parameters.push(self.shared_header(method, param, value.filter(|_| takes_headers)));
            }
        }
        for (header, param, key) in params::entries(method).filter(|_| takes_headers) {
            parameters.push(json!({
                "name": params::header_name(header),
                "in": "header",
                "required": false,
                "style": "simple",
                "description": format!("The entry `{key}` of `{param}`, as a path of 1 to 1024 bytes."),
                "schema": schemas::of_path_header(),
            }));
        }
        if let Some((params, result)) = example {
            let mut sent = params.clone();
            sent.remove(APP);
            if takes_headers {
                content[JSON]["examples"] = json!({"document": {"value": sent[PAYLOAD]}});
                content[JSON_REQUEST]["examples"] = json!({"object": {"value": sent}});
            } else if method.takes_document() {
                content[JSON_REQUEST]["examples"] = json!({"object": {"value": sent}});
            } else {
                content[JSON]["examples"] = json!({"object": {"value": sent}});
            }
            if let Some(result) = result {
                let mut examples = json!({"object": {"value": result}});
                if is_document {
                    examples["document"] = json!({"value": result[PAYLOAD]});
                }
                response["content"][JSON]["examples"] = examples;
            }
        }

        let text = self.prose[&section_of_params(method)].text.clone();
        let mut operation = json!({
            "operationId": camel(method.name()),
            "tags": [tag(method)],
            "summary": summary,
            "parameters": parameters,
            "requestBody": {"required": true, "content": content},
            "responses": {"200": response},
        });
        if !text.is_empty() {
            operation["description"] = text.into();
        }
        let statuses: Vec<u16> = problems()
            .into_keys()
            .filter(|status| *status != 405)
            .collect();
        self.add_problems(&mut operation, &statuses);
        operation
    }

    /// Returns the sentence about a method, and the cell with its result.
    fn summary(&self, method: Method) -> (String, String) {
        let rows = self.contract.table("Methods", "method").unwrap();
        let row = rows
            .into_iter()
            .find(|row| row[0] == format!("`{method}`"))
            .unwrap_or_else(|| panic!("the contract does not list {method}"));
        (capitalized(&plain(&row[1])), row[2].clone())
    }

    /// Adds the schema of all parameters but the app, and returns a reference to it.
    fn request(&mut self, method: Method) -> Value {
        let name = format!("{}Request", pascal(method.name()));
        let mut properties = Map::new();
        let mut required = Vec::new();
        for param in own_params(method) {
            properties.insert(param.name.into(), self.shared_value(method, param));
            if param.default.is_none() {
                required.push(param.name);
            }
        }
        self.schemas
            .insert(name.clone(), closed_object(properties, &required));
        reference("schemas", &name)
    }

    /// Returns the schema of a parameter with its description.
    fn value(&self, method: Method, param: &Param) -> Value {
        let mut schema = schemas::of_param(param);
        if param.default.is_some() {
            // The decoder takes nil as an absent parameter.
            schema = nullable(schema);
        }
        schema["description"] = self.description(method, param).into();
        schema
    }

    fn shared_value(&self, method: Method, param: &Param) -> Value {
        let value = self.value(method, param);
        match self.values.component(param.name, &value) {
            Some(component) => reference("schemas", &component),
            None => value,
        }
    }

    /// Returns the header that carries a parameter.
    fn header(&self, method: Method, param: &Param) -> Value {
        let mut description = self.description(method, param);
        if param.default.is_none() {
            description += " Required beside a document.";
        }
        json!({
            "name": header_of(param),
            "in": "header",
            "required": false,
            "style": "simple",
            "explode": false,
            "description": description,
            "schema": schemas::of_header(param),
        })
    }

    /// Returns the header that carries a parameter. A header with an example is not a component,
    /// because other methods have other examples.
    fn shared_header(&self, method: Method, param: &Param, example: Option<&Value>) -> Value {
        let mut header = self.header(method, param);
        match (example, self.headers.component(param.name, &header)) {
            (Some(example), _) => {
                header["example"] = example.clone();
                header
            }
            (None, Some(component)) => reference("parameters", &component),
            (None, None) => header,
        }
    }

    /// Returns what the contract says about a parameter: under the method, under those of all
    /// methods, or under another method that has the same row.
    fn description(&self, method: Method, param: &Param) -> String {
        let has_row = |other: &Method| other.params().contains(param);
        let same = Method::ALL.into_iter().filter(has_row);
        // A list of objects is not a document.
        let is_document = param.bounds.form != Form::Array;
        let common = COMMON_SECTIONS.into_iter().filter(|_| is_document);
        let told = std::iter::once(section_of_params(method))
            .chain(common.map(ToOwned::to_owned))
            .chain(same.map(section_of_params))
            .find_map(|section| self.prose[&section].params.get(param.name))
            .map(|text| text.trim_end_matches('.').to_owned() + ".");
        let rule = format!("Must be {}.", param.rule);
        let default = param.default.map(|default| format!("Default: {default}."));
        let sentences: Vec<String> = told.into_iter().chain([rule]).chain(default).collect();
        sentences.join(" ")
    }

    /// Adds the schema of a result, as its cell in the table of methods names it.
    fn result(&mut self, method: Method, cell: &str) -> Value {
        if let Some((_, link)) = cell.split_once("](#") {
            let section = self.contract.section_of(link.trim_end_matches(')'));
            return self.result_of(section);
        }
        // A literal, such as {status: "ok"}.
        let literal = cell.trim_matches('`').trim_matches(['{', '}']);
        let (key, value) = literal
            .split_once(": ")
            .unwrap_or_else(|| panic!("{method} has no result: {cell}"));
        let value: Value = serde_json::from_str(value).unwrap();
        let name = format!("{}Result", pascal(method.name()));
        let schema = json!({
            "type": "object",
            "properties": {key: {"type": "string", "const": value}},
            "required": [key],
        });
        self.schemas.insert(name.clone(), schema);
        reference("schemas", &name)
    }

    /// Adds the schema of the result of a section, and returns a reference to it.
    fn result_of(&mut self, section: &'static str) -> Value {
        let name = pascal(section);
        if !self.schemas.contains_key(&name) {
            let rows = self.contract.table(section, "key").unwrap();
            let schema = self.object(section, &rows);
            self.schemas.insert(name.clone(), schema);
        }
        reference("schemas", &name)
    }

    /// Returns the schema of an object with a row for each member.
    fn object(&mut self, section: &'static str, rows: &[Vec<String>]) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for row in rows {
            let key = row[0].trim_matches('`');
            let (types, meaning) = (&row[1], &row[2]);
            let mut schema = match &types[..] {
                "any value" => json!({}),
                "array" | "array of maps" => {
                    let mut items = self.entry(section, key, meaning);
                    if meaning.contains("nil where") {
                        items = nullable(items);
                    }
                    json!({"type": "array", "items": items})
                }
                types => schemas::of_result(types),
            };
            schema["description"] = capitalized(&(plain(meaning) + ".")).into();
            properties.insert(key.into(), schema);
            if !meaning.contains("absent") {
                required.push(key.to_owned());
            }
        }
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    /// Returns the schema of the maps in a list of a result. Their members stand in a table of the
    /// section, or in that of a section to which the meaning refers, or the meaning names them.
    fn entry(&mut self, section: &'static str, key: &str, meaning: &str) -> Value {
        let noun = key.trim_end_matches('s');
        for head in [format!("of a {noun}"), format!("of an {noun}")] {
            if let Some(rows) = self.contract.table(section, &head) {
                let name = pascal(section) + &pascal(noun);
                let schema = self.object(section, &rows);
                self.schemas.insert(name.clone(), schema);
                return reference("schemas", &name);
            }
        }
        if let Some((_, link)) = meaning.split_once("](#") {
            let (anchor, more) = link.split_once(')').unwrap();
            let section = self.contract.section_of(anchor);
            let entry = self.entry(section, key, "");
            let names: Vec<&str> = more.split('`').skip(1).step_by(2).collect();
            if names.is_empty() {
                return entry;
            }
            let properties: Map<String, Value> = names
                .into_iter()
                .map(|name| (name.into(), self.member(name)))
                .collect();
            return json!({"allOf": [entry, {"type": "object", "properties": properties}]});
        }
        let quoted: Vec<&str> = meaning.split('`').skip(1).step_by(2).collect();
        let names: Vec<&str> = match quoted.iter().find(|text| text.starts_with('{')) {
            Some(map) => map.trim_matches(['{', '}']).split(", ").collect(),
            None => quoted,
        };
        assert!(
            !names.is_empty(),
            "no members of {key} in {section}: {meaning}"
        );
        let properties: Map<String, Value> = names
            .iter()
            .map(|name| ((*name).into(), self.member(name)))
            .collect();
        json!({"type": "object", "properties": properties, "required": names})
    }

    /// Returns the schema of a member by its name alone, from another table that has it.
    fn member(&self, name: &str) -> Value {
        match name {
            "code" => return reference("schemas", "ErrorCode"),
            "value" => return json!({}),
            _ => (),
        }
        let mut rows = self.contract.tables_of_entries();
        rows.extend(self.contract.table("Errors", "details").unwrap());
        let row = rows.iter().find(|row| row[0].trim_matches('`') == name);
        let row = row.unwrap_or_else(|| panic!("no table of the contract has {name}"));
        schemas::of_result(&row[1])
    }

    /// Returns the headers of a document, as `docs/http.md` lists them.
    fn result_headers(&self) -> Value {
        let members = self.contract.table(DOCUMENT_RESULT, "key").unwrap();
        let rows = self.interface.table("A document", "header of the response");
        let mut headers = Map::new();
        for row in rows.unwrap() {
            let name = row[0].trim_matches('`');
            let member = format!(
                "`{}`",
                name.trim_start_matches("sealwire-").replace('-', "_")
            );
            let types = members.iter().find(|row| row[0] == member);
            let schema = schemas::of_result(types.map_or("integer", |row| &row[1][..]));
            let description = capitalized(&(plain(&row[1]) + "."));
            headers.insert(
                name.into(),
                json!({"description": description, "style": "simple", "schema": schema}),
            );
        }
        Value::Object(headers)
    }

    /// Adds the responses with these statuses.
    fn add_problems(&self, operation: &mut Value, statuses: &[u16]) {
        for status in statuses {
            let name = status_name(*status);
            operation["responses"][status.to_string()] = reference("responses", &name);
        }
    }

    fn components(&mut self, paths: &Value) -> Value {
        let mut schemas = std::mem::take(&mut self.schemas);
        schemas.append(&mut self.values.components());
        schemas.insert("ErrorCode".into(), error_code());
        schemas.insert("Problem".into(), self.problem());
        let mut parameters = self.headers.components();
        // Headers with an example stand in their operations.
        let used = paths.to_string();
        parameters.retain(|name, _| used.contains(&format!("/parameters/{name}\"")));
        parameters.insert("App".into(), app());
        json!({
            "schemas": schemas,
            "parameters": parameters,
            "headers": {"RetryAfter": {
                "description": "The least pause before a retry, in whole seconds, rounded up. `retry_after_ms` has the exact pause.",
                "schema": {"type": "integer", "minimum": 1},
            }},
            "responses": self.problem_responses(),
            "securitySchemes": security_schemes(),
        })
    }

    /// Returns the schema of a problem document.
    fn problem(&self) -> Value {
        let mut properties = Map::new();
        let of_part = DetailValue::Errors(vec![ItemError {
            path: String::new(),
            code: ErrorCode::BadRequest,
            message: "".into(),
        }]);
        let part = detail_value(&of_part)[0].as_object().unwrap().clone();
        for row in self.contract.table("Errors", "details").unwrap() {
            let name = row[0].trim_matches('`');
            let mut schema = match &row[1][..] {
                "array of maps" => {
                    let names: Vec<&String> = part.keys().collect();
                    let members = names.iter().map(|name| match &name[..] {
                        "code" => reference("schemas", "ErrorCode"),
                        _ => json!({"type": "string"}),
                    });
                    let properties: Map<String, Value> = names
                        .iter()
                        .map(|name| (*name).clone())
                        .zip(members)
                        .collect();
                    json!({"type": "array", "items": {"type": "object", "properties": properties, "required": names}})
                }
                types => schemas::of_result(types),
            };
            if name == "reason" {
                schema["enum"] = json!(OverloadReason::ALL.map(OverloadReason::name));
            }
            let description = match &row[1][..] {
                "array of maps" => "The first parts of the payload that are to blame.".into(),
                _ => capitalized(&format!("{}. With {}.", plain(&row[3]), plain(&row[2]))),
            };
            schema["description"] = description.into();
            properties.insert(name.into(), schema);
        }
        let retry = "The least pause before a retry, in milliseconds.";
        let members = [
            (
                "type",
                json!({"type": "string", "format": "uri", "description": "`urn:sealwire:error:` and the code."}),
            ),
            (
                "title",
                json!({"type": "string", "description": "The reason phrase of the status."}),
            ),
            (
                "status",
                json!({"type": "integer", "description": "The status of the response."}),
            ),
            (
                "detail",
                json!({"type": "string", "description": "A sentence for people, without values of documents."}),
            ),
            ("code", reference("schemas", "ErrorCode")),
            (
                "retry_after_ms",
                json!({"type": "integer", "minimum": 0, "description": retry}),
            ),
        ];
        for (name, schema) in members {
            properties.insert(name.into(), schema);
        }
        json!({
            "type": "object",
            "description": "A problem document (RFC 9457).",
            "properties": properties,
            "required": ["type", "title", "status", "detail", "code"],
        })
    }

    fn problem_responses(&self) -> Value {
        let meanings = self.contract.table("Errors", "code").unwrap();
        let mut responses = Map::new();
        for (status, codes) in problems() {
            if status == 405 {
                continue; // Not a response of an operation, but of a path.
            }
            let meaning = |code: &ErrorCode| {
                let row = meanings.iter().find(|row| row[0] == format!("`{code}`"));
                format!("`{code}`: {}", plain(&row.unwrap()[1]))
            };
            let reason = StatusCode::from_u16(status).unwrap();
            let description = if HTTP_STATUSES.contains(&reason) {
                reason.canonical_reason().unwrap().to_owned()
            } else {
                codes.iter().map(meaning).collect::<Vec<_>>().join("; ")
            };
            let names: Vec<&str> = codes.iter().map(|code| code.name()).collect();
            let schema = json!({"allOf": [
                reference("schemas", "Problem"),
                {"type": "object", "properties": {"status": {"const": status}, "code": {"enum": names}}},
            ]});
            let mut response = json!({
                "description": description + ".",
                "content": {PROBLEM: {"schema": schema}},
            });
            if codes.iter().any(|code| code.is_retryable()) {
                let pause = reference("headers", "RetryAfter");
                response["headers"] = json!({ (RETRY_AFTER.as_str()): pause });
            }
            if codes.contains(&ErrorCode::Unauthenticated) {
                let challenge = "What to change about the token, or that one is needed.";
                response["headers"] = json!({ (WWW_AUTHENTICATE.as_str()): {
                    "description": challenge,
                    "schema": {"type": "string"},
                }});
            }
            responses.insert(status_name(status), response);
        }
        Value::Object(responses)
    }
}

fn info() -> Value {
    json!({
        "title": "Sealwire",
        "version": sealwire_wire::PROTOCOL.to_string(),
        "summary": "Field encryption, tokens, masks and encrypted objects",
        "description": INTRODUCTION,
        "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
    })
}

/// Returns the ways to authenticate. Each scheme of [`security_schemes`] is enough alone.
fn security() -> Value {
    let schemes = security_schemes();
    let names = schemes.as_object().unwrap().keys();
    names.map(|name| json!({ name: [] })).collect()
}

fn security_schemes() -> Value {
    json!({
        "mutualTLS": {
            "type": "mutualTLS",
            "description": "A client certificate of an authority that the engine trusts. It names the principal, whose roles permit requests.",
        },
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "A token of an identity provider that the engine's configuration names, on a connection without a client certificate.",
        },
    })
}

fn tags() -> Value {
    TAGS.map(|(name, description)| json!({"name": name, "description": description}))
        .into_iter()
        .collect()
}

/// Returns the tag of a method on data of an app.
fn tag(method: Method) -> &'static str {
    let group = match method.name().split_once('.') {
        Some((group, _)) => group,
        None if method.takes_document() => "documents",
        None => "keys",
    };
    TAGS.iter()
        .map(|(name, _)| *name)
        .find(|name| *name == group)
        .unwrap_or("keys")
}

fn app() -> Value {
    let param = Method::Encrypt
        .params()
        .iter()
        .find(|param| param.name == APP);
    let param = param.unwrap();
    json!({
        "name": APP,
        "in": "path",
        "required": true,
        "description": format!("The app. Must be {}.", param.rule),
        "schema": schemas::of_param(param),
        "example": "shop",
    })
}

fn error_code() -> Value {
    json!({
        "type": "string",
        "description": "What kind of failure it is. Treat an unknown code as `internal`.",
        "enum": ErrorCode::ALL.map(ErrorCode::name),
    })
}

/// Returns the section of the contract about the parameters of a method.
fn section_of_params(method: Method) -> String {
    format!("{method} params")
}

/// Returns the parameters of a method but the app, which stands in the path.
fn own_params(method: Method) -> impl Iterator<Item = &'static Param> {
    method.params().iter().filter(|param| param.name != APP)
}

/// Returns the name of the header that carries a parameter: that of another standard, if there is
/// one.
fn header_of(param: &Param) -> String {
    let standard = STANDARD
        .into_iter()
        .find(|name| name.replace('-', "_") == param.name);
    standard.map_or_else(|| params::header_name(param.name), ToOwned::to_owned)
}

/// Returns true if a header can carry the parameter.
fn is_header(method: Method, param: &Param) -> bool {
    // One of these is a valid form of each type that a header can carry.
    ["1", "true"].into_iter().any(|value| {
        let name = params::header_name(param.name);
        let mut headers = HeaderMap::new();
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
        Params::of_app(APP).add_headers(method, &headers).is_ok()
    })
}

/// Returns an example without what JSON cannot carry: the parameters, and the result if it has a
/// JSON form.
fn json_example(example: &Example) -> (Map<String, Value>, Option<Value>) {
    let mut params = example.params.as_object().unwrap().clone();
    if !has_binary(&example.result) {
        return (params, Some(example.result.clone()));
    }
    // The result is binary because the request asks for binary envelopes.
    assert_eq!(params.remove("encoding"), Some("binary".into()));
    (params, None)
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

/// Returns the name of the component for a status.
fn status_name(status: u16) -> String {
    pascal(
        StatusCode::from_u16(status)
            .unwrap()
            .canonical_reason()
            .unwrap(),
    )
}

/// Returns words, separated by spaces, dots, dashes or underscores, as `PascalCase`.
fn pascal(words: &str) -> String {
    words.split([' ', '.', '-', '_']).map(capitalized).collect()
}

/// Returns words as `camelCase`.
fn camel(words: &str) -> String {
    let pascal = pascal(words);
    pascal[..1].to_lowercase() + &pascal[1..]
}

/// Prints the members of the document in their order, and all other objects in the order of their
/// names.
fn print(members: &[(&str, Value)]) -> String {
    let mut out = String::new();
    for (name, value) in members {
        let mut member = json!({ *name: value });
        member.sort_all_objects();
        let text = serde_json::to_string_pretty(&member).unwrap();
        let text = text.trim_start_matches("{\n").trim_end_matches("\n}");
        out += if out.is_empty() { "{\n" } else { ",\n" };
        out += text;
    }
    out + "\n}\n"
}
