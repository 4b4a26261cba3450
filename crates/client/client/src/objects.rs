//! The requests on objects.
//!
//! A write whose response was lost may have been made. So the client repeats a write only if that
//! is safe: an addition with an idempotency key, and a change of the expiry.

use std::time::Duration;

use sealwire_wire::{
    self as wire, Counted, Objects, ObjectsChanged, ObjectsOperation, ObjectsRequest, ResultCodec,
    SubjectErased, SubjectExport, SubjectFound, SubjectsOperation, SubjectsRequest, TokenMap,
    request,
};

use crate::client::Client;
use crate::error::Error;
use crate::request::objects::{
    AddObjects, Page, PropertyDisclosure, SubjectErasure, SubjectTarget,
};
use crate::request::tokens::{CollectionTarget, Listing, Sweep};
use crate::retry::Course;

impl Client {
    /// Adds objects: all of them or none. The objects are maps of property names to values.
    ///
    /// See [`AddObjects`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_add(
        &self,
        target: CollectionTarget<'_>,
        add: AddObjects<'_>,
    ) -> Result<ObjectsChanged, Error> {
        request::check_payload(add.0.objects).map_err(Error::payload)?;
        let course = if add.0.idempotency_key.is_some() {
            Course::on_tokens()
        } else {
            Course::once_on_tokens()
        };
        self.objects(target, ObjectsOperation::Add(add.0), course)
            .await
    }

    /// Returns objects by id.
    ///
    /// See [`PropertyDisclosure`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_get(
        &self,
        target: CollectionTarget<'_>,
        ids: &[&str],
        disclosure: PropertyDisclosure<'_>,
    ) -> Result<Objects, Error> {
        let operation = ObjectsOperation::Get {
            ids: ids.to_vec(),
            disclosure: disclosure.0,
        };
        self.objects(target, operation, Course::on_tokens()).await
    }

    /// Changes objects: all of them or none. `changes` is a MessagePack array of maps
    /// `{id, set, if_version?}`.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client, id: String) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::CollectionTarget;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Change<'a> {
    ///     id: &'a str,
    ///     set: std::collections::BTreeMap<&'a str, &'a str>,
    ///     if_version: u64,
    /// }
    ///
    /// let change = Change { id: &id, set: [("name", "Ada King")].into(), if_version: 1 };
    /// let changes = sealwire_client::to_payload(&[change])?;
    /// client.objects_update(CollectionTarget::new("shop", "customers"), &changes).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_update(
        &self,
        target: CollectionTarget<'_>,
        changes: &[u8],
    ) -> Result<ObjectsChanged, Error> {
        request::check_payload(changes).map_err(Error::payload)?;
        self.objects(
            target,
            ObjectsOperation::Update { changes },
            Course::once_on_tokens(),
        )
        .await
    }

    /// Removes objects permanently: all of them or none. `versions`: the version that each object
    /// must have.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client, id: String) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::CollectionTarget;
    ///
    /// let customers = CollectionTarget::new("shop", "customers");
    /// let deleted = client.objects_delete(customers, &[&id], Some(vec![3])).await?;
    /// println!("{} objects deleted", deleted.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_delete(
        &self,
        target: CollectionTarget<'_>,
        ids: &[&str],
        versions: Option<Vec<u64>>,
    ) -> Result<Counted, Error> {
        let operation = ObjectsOperation::Delete {
            ids: ids.to_vec(),
            versions,
        };
        self.objects(target, operation, Course::once_on_tokens())
            .await
    }

    /// Returns a page of the objects for which all clauses hold. `clauses` is a MessagePack array
    /// of maps `{property, eq | in | prefix}`.
    ///
    /// See [the crate](crate#objects) for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_query(
        &self,
        target: CollectionTarget<'_>,
        clauses: &[u8],
        disclosure: PropertyDisclosure<'_>,
        page: Page<'_>,
    ) -> Result<Objects, Error> {
        request::check_payload(clauses).map_err(Error::payload)?;
        let operation = ObjectsOperation::Query {
            clauses,
            disclosure: disclosure.0,
            after: page.0.after,
            limit: page.0.limit,
        };
        self.objects(target, operation, Course::on_tokens()).await
    }

    /// Returns a page of a collection's objects.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::{CollectionTarget, Listing, PropertyDisclosure};
    ///
    /// let customers = CollectionTarget::new("shop", "customers");
    /// let names = PropertyDisclosure::new().properties(["name"]);
    /// let page = client.objects_list(customers, Listing::new().limit(500), names).await?;
    /// for object in page.objects.iter().flatten() {
    ///     println!("{} in version {}", object.id, object.version);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_list(
        &self,
        target: CollectionTarget<'_>,
        listing: Listing<'_>,
        disclosure: PropertyDisclosure<'_>,
    ) -> Result<Objects, Error> {
        let operation = ObjectsOperation::List {
            listing: listing.0,
            disclosure: disclosure.0,
        };
        self.objects(target, operation, Course::on_tokens()).await
    }

    /// Sets when objects expire: after this time from now, in seconds, rounded up. Zero: at once.
    /// `None`: never.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use std::time::Duration;
    /// use sealwire_client::CollectionTarget;
    ///
    /// let customers = CollectionTarget::new("shop", "customers");
    /// let counted = client
    ///     .objects_expire(customers, &["01941f29-7c00-71d8-8e2a-5b6f7c1d0e93"], Duration::from_secs(86_400))
    ///     .await?;
    /// println!("{} objects expire in a day", counted.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_expire(
        &self,
        target: CollectionTarget<'_>,
        ids: &[&str],
        time: impl Into<Option<Duration>>,
    ) -> Result<Counted, Error> {
        let operation = ObjectsOperation::Expire {
            ids: ids.to_vec(),
            expires_s: time.into().map(crate::request::seconds),
        };
        self.objects(target, operation, Course::on_tokens()).await
    }

    /// Runs one step of archiving expired objects.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::{CollectionTarget, Sweep};
    ///
    /// let customers = CollectionTarget::new("shop", "customers");
    /// let archived = client.objects_archive(customers, Sweep::new().limit(10_000)).await?;
    /// println!("{} objects archived", archived.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_archive(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.objects(
            target,
            ObjectsOperation::Archive(sweep.0),
            Course::on_tokens(),
        )
        .await
    }

    /// Runs one step of removing archived objects permanently.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::{CollectionTarget, Sweep};
    ///
    /// let customers = CollectionTarget::new("shop", "customers");
    /// let removed = client.objects_prune(customers, Sweep::new()).await?;
    /// println!("{} objects removed", removed.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn objects_prune(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.objects(
            target,
            ObjectsOperation::Prune(sweep.0),
            Course::on_tokens(),
        )
        .await
    }

    /// Returns how a data subject is known, and whether it was erased.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::SubjectTarget;
    ///
    /// let ada = SubjectTarget::by_name("shop", "ada@example.com");
    /// let found = client.subjects_find(ada).await?;
    /// println!("{} has a key: {}, erased: {:?}", found.id, found.known, found.erased);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn subjects_find(&self, target: SubjectTarget<'_>) -> Result<SubjectFound, Error> {
        self.subjects(target, SubjectsOperation::Find, Course::on_tokens())
            .await
    }

    /// Returns a page of the objects of a data subject, all of one collection.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::{Page, SubjectTarget};
    ///
    /// let ada = SubjectTarget::by_name("shop", "ada@example.com");
    /// let mut cursor: Option<String> = None;
    /// loop {
    ///     let page = client.subjects_export(ada, Page::new().after(cursor.as_deref())).await?;
    ///     println!("{} objects of {}", page.objects.len(), page.collection);
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
    /// Any [`Error`] but `Value`.
    pub async fn subjects_export(
        &self,
        target: SubjectTarget<'_>,
        page: Page<'_>,
    ) -> Result<SubjectExport, Error> {
        let wire::control::Page { after, limit } = page.0;
        self.subjects(
            target,
            SubjectsOperation::Export { after, limit },
            Course::on_tokens(),
        )
        .await
    }

    /// Removes the key of a data subject, and then its objects, permanently. Repeat
    /// the request with the version of the result while the result is not `done`.
    ///
    /// See [`SubjectTarget`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn subjects_erase(
        &self,
        target: SubjectTarget<'_>,
        erasure: SubjectErasure,
    ) -> Result<SubjectErased, Error> {
        let SubjectErasure { version, created } = erasure;
        // A repeated request without a version could remove a key that was made meanwhile.
        let course = if version.is_some() {
            Course::on_tokens()
        } else {
            Course::once_on_tokens()
        };
        self.subjects(
            target,
            SubjectsOperation::Erase { version, created },
            course,
        )
        .await
    }

    async fn subjects<T: ResultCodec>(
        &self,
        target: SubjectTarget<'_>,
        operation: SubjectsOperation<'_>,
        course: Course,
    ) -> Result<T, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let target = wire::SubjectTarget {
                options,
                ..target.0
            };
            request::subjects(out, msgid, &SubjectsRequest { target, operation });
        };
        let result = self.call_on_data(target.0.options, course, encode).await?;
        T::decode(&result).map_err(Error::protocol)
    }

    async fn objects<T: ResultCodec>(
        &self,
        target: CollectionTarget<'_>,
        operation: ObjectsOperation<'_>,
        course: Course,
    ) -> Result<T, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap {
                options,
                ..target.0
            };
            let operation = operation.clone();
            request::objects(out, msgid, &ObjectsRequest { map, operation });
        };
        let result = self.call_on_data(target.0.options, course, encode).await?;
        T::decode(&result).map_err(Error::protocol)
    }
}
