//! The state that all connections share, with lookups of apps and collections.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_access::Permit;
use sealwire_apps::AppState;
use sealwire_wire::{self as wire, Info, Methods};

use crate::access::Authorizer;
use crate::apps::{Apps, CachedApp};
use crate::audit::Audit;
use crate::jobs::error::RequestFailure;
use crate::jobs::failures::Failures;
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::Scheduler;
use crate::jobs::tokens::Collection;
use crate::jobs::tokens::store_io::Tokens;
use crate::objects::LocatedObjects;
use crate::sweeper::{SweepRecorder, Swept};
use sealwire_service::spans::Traces;
use sealwire_settings::Limits;
use sealwire_telemetry::metrics::{Metrics, SweepAction, SweepOutcome};

/// State that all connections share.
#[derive(Debug)]
pub struct Engine {
    /// Every bound.
    pub limits: Limits,
    /// Options for reading the Evervault format.
    pub evervault: Arc<sealwire_settings::Evervault>,
    /// The apps and their keys.
    pub apps: Arc<Apps>,
    /// Decides on permissions.
    pub decider: Authorizer,
    /// The crypto threads, and who may use them.
    pub scheduler: Scheduler,
    /// The token store, where there is one.
    pub tokens: Option<Tokens>,
    /// The object store, where there is one.
    pub objects: Option<Objects>,
    /// Where calls are recorded.
    pub audit: Audit,
    /// Where spans of calls go.
    pub traces: Traces,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Why the token store fails, for the log.
    pub failures: Failures,
}

impl SweepRecorder for Arc<Engine> {
    fn is_ready(&self) -> bool {
        self.audit.check_ready().is_ok()
    }

    fn count(&self, action: SweepAction, rows: u64) {
        self.metrics.sweeps.count_rows(action, rows);
    }

    fn record(&self, swept: &Swept) {
        self.audit.record_sweep(swept);
    }

    fn count_sweep(&self, outcome: SweepOutcome) {
        self.metrics.sweeps.count_sweep(outcome);
    }
}

/// A collection that a request names, and the generation of the lookup.
pub struct Located {
    /// The generation.
    pub generation: u64,
    /// The collection.
    pub collection: Arc<Collection>,
    /// The collection's app.
    pub(crate) app: Arc<CachedApp>,
}

impl Engine {
    /// Returns the collection of tokens of a permitted request.
    ///
    /// # Errors
    ///
    /// The app or collection does not exist, or the served generation is older than the required
    /// one.
    pub fn locate(
        &self,
        permit: &Permit<'_>,
        min_generation: Option<u64>,
    ) -> Result<Located, RequestFailure> {
        let (generation, app) = self.find(permit, min_generation)?;
        let name = permit.collection().ok_or(RequestFailure::NoCollection)?;
        let collection =
            Arc::clone(app.token_collection(name).ok_or_else(
                || match app.object_collection(name) {
                    Some(_) => RequestFailure::Param {
                        name: "collection",
                        rule: "must be one of tokens: this one has objects",
                    },
                    None => RequestFailure::NoCollection,
                },
            )?);

        Ok(Located {
            generation,
            collection,
            app,
        })
    }

    /// Returns the collection of objects of a permitted request.
    ///
    /// # Errors
    ///
    /// The app or collection does not exist, or the served generation is older than the required
    /// one.
    pub(crate) fn locate_objects(
        &self,
        permit: &Permit<'_>,
        min_generation: Option<u64>,
    ) -> Result<LocatedObjects, RequestFailure> {
        let (generation, app) = self.find(permit, min_generation)?;
        let name = permit.collection().ok_or(RequestFailure::NoCollection)?;
        let collection =
            Arc::clone(app.object_collection(name).ok_or_else(
                || match app.token_collection(name) {
                    Some(_) => RequestFailure::Param {
                        name: "collection",
                        rule: "must be one of objects: this one has tokens",
                    },
                    None => RequestFailure::NoCollection,
                },
            )?);

        Ok(LocatedObjects {
            generation,
            collection,
            app,
        })
    }

    /// Returns the object store.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::NoTokens`] if the engine has no object store.
    pub fn objects(&self) -> Result<&Objects, RequestFailure> {
        self.objects.as_ref().ok_or(RequestFailure::NoTokens)
    }

    /// Returns the token store.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::NoTokens`] if the engine has no token store.
    pub fn tokens(&self) -> Result<&Tokens, RequestFailure> {
        self.tokens.as_ref().ok_or(RequestFailure::NoTokens)
    }

    /// The app that is permitted, and the generation this is true of.
    pub(crate) fn find(
        &self,
        permit: &Permit<'_>,
        min_generation: Option<u64>,
    ) -> Result<(u64, Arc<CachedApp>), RequestFailure> {
        let (have, app) = self
            .apps
            .find_unsealed(permit.app().ok_or(RequestFailure::NoApp)?)?;
        if min_generation.is_some_and(|wanted| wanted > have) {
            self.apps.request_refresh();
            return Err(RequestFailure::OldGeneration { have });
        }
        let app = app.ok_or(RequestFailure::NoApp)?;
        match app.state {
            AppState::Active => Ok((have, app)),
            AppState::Disabled => Err(RequestFailure::AppDisabled),
        }
    }

    /// The public keys of the app that is permitted, signed.
    ///
    /// # Errors
    ///
    /// No such app, no such key, or an older generation than demanded.
    pub fn public_keys(
        &self,
        permit: &Permit<'_>,
        min_generation: Option<u64>,
    ) -> Result<wire::control::PublicKeys, RequestFailure> {
        let (generation, app) = self.find(permit, min_generation)?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        app.public_keys(generation, now.as_secs())
    }

    /// Returns the methods that the engine serves. All other methods are unknown.
    pub fn methods(&self) -> Methods {
        let mut methods = Methods::DATA;
        if self.tokens.is_none() {
            methods = methods.without(Methods::TOKENS);
        }
        if self.objects.is_none() {
            methods = methods.without(Methods::OBJECTS);
        }
        methods
    }

    /// Returns the time limit of a request: the requested time in milliseconds, or the default, up
    /// to the maximum.
    pub fn deadline(&self, requested_ms: Option<u32>) -> Duration {
        let limits = &self.limits;
        Duration::from_millis(
            requested_ms
                .map_or(limits.deadline_ms_default, u64::from)
                .min(limits.deadline_ms_max),
        )
    }

    /// Returns the response to `info`.
    pub fn info(&self) -> Info {
        let limits = &self.limits;
        Info {
            name: "sealwire".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: wire::PROTOCOL,
            generation: self.apps.generation(),
            methods: owned(self.methods().iter().map(wire::Method::name)),
            suites: owned(wire::Suite::ALL.iter().map(|suite| suite.name())),
            formats: owned(wire::Format::ALL.iter().map(|format| format.name())),
            encodings: owned(wire::Encoding::ALL.iter().map(|encoding| encoding.name())),
            key_scopes: owned(wire::KeyScope::ALL.iter().map(|scope| scope.name())),
            limits: vec![
                ("message_bytes_max".into(), limits.message_bytes_max as u64),
                ("depth_max".into(), limits.depth_max.into()),
                ("elements_max".into(), limits.elements_max as u64),
                ("reply_bytes_max".into(), limits.reply_bytes_max as u64),
                ("discard_bytes_max".into(), limits.discard_bytes_max as u64),
                (
                    "tokens_per_call_max".into(),
                    limits.tokens_per_call_max as u64,
                ),
                (
                    "token_value_bytes_max".into(),
                    limits.token_value_bytes_max as u64,
                ),
                (
                    "in_flight_per_connection_max".into(),
                    limits.in_flight_per_connection_max as u64,
                ),
                ("deadline_ms_default".into(), limits.deadline_ms_default),
                ("deadline_ms_max".into(), limits.deadline_ms_max),
            ],
        }
    }
}

fn owned(names: impl Iterator<Item = &'static str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}
