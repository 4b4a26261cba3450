//! The control requests, for a client of a control listener.
//!
//! If the response to a change is lost, the change may have been applied, and a repeat could apply
//! it twice. A change is therefore retried only if no server can have seen the request, or if it
//! was rejected with a retry time.

#[cfg(feature = "public-keys")]
use sealwire_wire::Malformed;
use sealwire_wire::control::{
    AppChanged, AppRequest, Apps, Census, Checked, CollectionChanged, CollectionRequest,
    Collections, CollectionsRequest, Control, Instances, MigratedObjects, PrincipalChanged,
    PrincipalRequest, Principals, PublicKeys, Records, RewrappedRows, RoleChanged, RoleRequest,
    Roles, RootState,
};
use sealwire_wire::{ResultCodec, request};

#[cfg(feature = "public-keys")]
use sealwire_public_keys as public_keys;

use crate::client::Client;
use crate::error::Error;
use crate::request::control::{
    AppOperation, CensusRequest, CheckRequest, CollectionOperation, MigrateRequest,
    PrincipalOperation, PublicKeysRequest, RewrapRowsRequest, RoleOperation, RootOperation,
};
use crate::request::objects::Page;
use crate::retry::Course;

impl Client {
    /// Returns a page of the apps.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::Page;
    ///
    /// for app in client.apps(Page::new()).await?.apps {
    ///     println!("{} is {}, with {} keys", app.app, app.state, app.keys.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn apps(&self, page: Page<'_>) -> Result<Apps, Error> {
        self.control(Control::Apps(page.0), Course::default()).await
    }

    /// Returns a page of the control state as stored. Pages of different generations do not belong
    /// together.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::Page;
    ///
    /// let mut cursor: Option<String> = None;
    /// loop {
    ///     let page = client.export(Page::new().after(cursor.as_deref())).await?;
    ///     println!("{} records of generation {}", page.records.len(), page.generation);
    ///     cursor = page.next;
    ///     if cursor.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn export(&self, page: Page<'_>) -> Result<Records, Error> {
        self.control(Control::Export(page.0), Course::default())
            .await
    }

    /// Changes an app.
    ///
    /// See [`AppOperation`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn change_app(
        &self,
        app: &str,
        operation: AppOperation<'_>,
    ) -> Result<AppChanged, Error> {
        let operation = operation.0;
        self.control(Control::App(AppRequest { app, operation }), Course::once())
            .await
    }

    /// Returns a page of an app's collections.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::Page;
    ///
    /// for collection in client.collections("shop", Page::new()).await?.collections {
    ///     println!("{} holds {}", collection.collection, collection.kind);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn collections(&self, app: &str, page: Page<'_>) -> Result<Collections, Error> {
        self.control(
            Control::Collections(CollectionsRequest { app, page: page.0 }),
            Course::default(),
        )
        .await
    }

    /// Changes a collection.
    ///
    /// See [`CollectionOperation`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn change_collection(
        &self,
        app: &str,
        collection: &str,
        operation: CollectionOperation<'_>,
    ) -> Result<CollectionChanged, Error> {
        let request = CollectionRequest {
            app,
            collection,
            operation: operation.0,
        };
        self.control(Control::Collection(request), Course::once())
            .await
    }

    /// Returns a page of the count of an app's rows by key version. A `conflict` with a retry time
    /// means that not every engine has the newest keys, or that older writes can still end.
    ///
    /// See [`CensusRequest`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn keys_census(&self, request: CensusRequest<'_>) -> Result<Census, Error> {
        self.control(Control::Census(request.0), Course::default())
            .await
    }

    /// Seals a page of an app's rows again, under its newest key versions. Can be repeated without
    /// harm.
    ///
    /// See [`RewrapRowsRequest`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn keys_rewrap(
        &self,
        request: RewrapRowsRequest<'_>,
    ) -> Result<RewrappedRows, Error> {
        self.control(Control::RewrapRows(request.0), Course::default())
            .await
    }

    /// Seals a page of a collection's old records again, in the authenticated format. Can be
    /// repeated without harm. A `conflict` with a retry time means that an engine could still write
    /// old records.
    ///
    /// See [`MigrateRequest`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn collections_migrate(
        &self,
        request: MigrateRequest<'_>,
    ) -> Result<MigratedObjects, Error> {
        self.control(Control::Migrate(request.0), Course::default())
            .await
    }

    /// Returns the engines that serve this control state.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// for engine in client.instances().await?.instances {
    ///     println!("{} at {}: generation {}", engine.id, engine.address, engine.generation);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn instances(&self) -> Result<Instances, Error> {
        self.control(Control::Instances, Course::default()).await
    }

    /// Runs an operation on the store's root key. A `conflict` with a retry time means that a
    /// rotation waits for live engines; it continues when the request is repeated.
    ///
    /// See [`RootOperation`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn root(&self, operation: RootOperation<'_>) -> Result<RootState, Error> {
        let course = if operation.can_be_retried() {
            Course::default()
        } else {
            Course::once()
        };
        self.control(Control::Root(operation.0), course).await
    }

    /// Returns a page of the roles.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::Page;
    ///
    /// for role in client.roles(Page::new()).await?.roles {
    ///     println!("{}: {}", role.role, role.grants.join("; "));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn roles(&self, page: Page<'_>) -> Result<Roles, Error> {
        self.control(Control::Roles(page.0), Course::default())
            .await
    }

    /// Creates, changes or removes a role.
    ///
    /// See [`RoleOperation`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn change_role(
        &self,
        role: &str,
        operation: RoleOperation<'_>,
    ) -> Result<RoleChanged, Error> {
        let operation = operation.0;
        self.control(
            Control::Role(RoleRequest { role, operation }),
            Course::once(),
        )
        .await
    }

    /// Returns a page of the principals that have a role.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::Page;
    ///
    /// for principal in client.principals(Page::new()).await?.principals {
    ///     println!("{} has {}", principal.principal, principal.roles.join(", "));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn principals(&self, page: Page<'_>) -> Result<Principals, Error> {
        self.control(Control::Principals(page.0), Course::default())
            .await
    }

    /// Grants a role to a principal, or revokes it.
    ///
    /// See [`PrincipalOperation`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn change_principal(
        &self,
        principal: &str,
        operation: PrincipalOperation<'_>,
    ) -> Result<PrincipalChanged, Error> {
        let operation = operation.0;
        self.control(
            Control::Principal(PrincipalRequest {
                principal,
                operation,
            }),
            Course::once(),
        )
        .await
    }

    /// Checks whether a principal is permitted to do something, and by which role.
    ///
    /// See [`CheckRequest`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn check(&self, request: CheckRequest<'_>) -> Result<Checked, Error> {
        self.control(Control::Check(request.0), Course::default())
            .await
    }

    /// Returns the public keys to which others seal for an app, without verification. Both
    /// listeners serve this request.
    ///
    /// See [`PublicKeysRequest`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn public_keys(&self, request: PublicKeysRequest<'_>) -> Result<PublicKeys, Error> {
        self.control(Control::PublicKeys(request.0), Course::default())
            .await
    }

    /// Returns the public keys to which others seal for an app. Check them with
    /// [`Signed::verify`](public_keys::Signed::verify).
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    #[cfg(feature = "public-keys")]
    pub async fn signed_public_keys(
        &self,
        request: PublicKeysRequest<'_>,
    ) -> Result<public_keys::Signed, Error> {
        let PublicKeys {
            keys,
            signature,
            signer,
            ..
        } = self.public_keys(request).await?;
        let malformed = |_| Malformed::Expected {
            expected: "a signature and its key in base64",
            found: "another text",
        };
        public_keys::Signed::from_base64(keys, &signature, &signer)
            .map_err(malformed)
            .map_err(Error::protocol)
    }

    async fn control<T: ResultCodec>(
        &self,
        control: Control<'_>,
        course: Course,
    ) -> Result<T, Error> {
        let encode = |out: &mut Vec<u8>, msgid: u32, _| request::control(out, msgid, &control);
        let result = self.call(self.deadline_of(None), course, encode).await?;
        T::decode(&result).map_err(Error::protocol)
    }
}
