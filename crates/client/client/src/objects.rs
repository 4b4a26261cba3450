//! The requests on objects.
//!
//! A write whose response was lost may have been made. So the client repeats a write only if that
//! is safe: an addition with an idempotency key, and a change of the expiry.

use bytes::Bytes;
use sealwire_wire::{
    self as wire, Counted, Objects, ObjectsChanged, ObjectsOperation, ObjectsRequest,
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
    /// Adds objects: all of them or none. `add.objects` is a MessagePack array of maps of property
    /// names to values.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`; so for every method here.
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
        let result = self
            .objects(target, ObjectsOperation::Add(add.0), course)
            .await?;
        ObjectsChanged::decode(&result).map_err(Error::protocol)
    }

    /// Returns objects by id.
    ///
    /// # Errors
    /// As above.
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
        Objects::decode(&self.objects(target, operation, Course::on_tokens()).await?)
            .map_err(Error::protocol)
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
    /// As above.
    pub async fn objects_update(
        &self,
        target: CollectionTarget<'_>,
        changes: &[u8],
    ) -> Result<ObjectsChanged, Error> {
        request::check_payload(changes).map_err(Error::payload)?;
        let result = self
            .objects(
                target,
                ObjectsOperation::Update { changes },
                Course::once_on_tokens(),
            )
            .await?;
        ObjectsChanged::decode(&result).map_err(Error::protocol)
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
    /// As above.
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
        Counted::decode(
            &self
                .objects(target, operation, Course::once_on_tokens())
                .await?,
        )
        .map_err(Error::protocol)
    }

    /// Returns a page of the objects for which all clauses hold. `clauses` is a MessagePack array
    /// of maps `{property, eq | in | prefix}`.
    ///
    /// # Errors
    /// As above.
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
        Objects::decode(&self.objects(target, operation, Course::on_tokens()).await?)
            .map_err(Error::protocol)
    }

    /// Returns a page of a collection's objects.
    ///
    /// # Errors
    /// As above.
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
        Objects::decode(&self.objects(target, operation, Course::on_tokens()).await?)
            .map_err(Error::protocol)
    }

    /// Sets when objects expire, in seconds from now; `None` removes the expiry.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_expire(
        &self,
        target: CollectionTarget<'_>,
        ids: &[&str],
        expires_s: Option<u64>,
    ) -> Result<Counted, Error> {
        let operation = ObjectsOperation::Expire {
            ids: ids.to_vec(),
            expires_s,
        };
        Counted::decode(&self.objects(target, operation, Course::on_tokens()).await?)
            .map_err(Error::protocol)
    }

    /// Runs one step of archiving expired objects.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_archive(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        let result = self
            .objects(
                target,
                ObjectsOperation::Archive(sweep.0),
                Course::on_tokens(),
            )
            .await?;
        Counted::decode(&result).map_err(Error::protocol)
    }

    /// Runs one step of removing archived objects permanently.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_prune(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        let result = self
            .objects(
                target,
                ObjectsOperation::Prune(sweep.0),
                Course::on_tokens(),
            )
            .await?;
        Counted::decode(&result).map_err(Error::protocol)
    }

    /// Returns how a data subject is known, and whether it was erased.
    ///
    /// # Errors
    /// As above.
    pub async fn subjects_find(&self, target: SubjectTarget<'_>) -> Result<SubjectFound, Error> {
        SubjectFound::decode(
            &self
                .subjects(target, SubjectsOperation::Find, Course::on_tokens())
                .await?,
        )
        .map_err(Error::protocol)
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
    /// As above.
    pub async fn subjects_export(
        &self,
        target: SubjectTarget<'_>,
        page: Page<'_>,
    ) -> Result<SubjectExport, Error> {
        let wire::control::Page { after, limit } = page.0;
        let result = self
            .subjects(
                target,
                SubjectsOperation::Export { after, limit },
                Course::on_tokens(),
            )
            .await?;
        SubjectExport::decode(&result).map_err(Error::protocol)
    }

    /// Removes the key of a data subject, and then its objects, permanently. Repeat
    /// the request with the version of the result while the result is not `done`.
    ///
    /// # Errors
    /// As above.
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
        let result = self
            .subjects(
                target,
                SubjectsOperation::Erase { version, created },
                course,
            )
            .await?;
        SubjectErased::decode(&result).map_err(Error::protocol)
    }

    async fn subjects(
        &self,
        target: SubjectTarget<'_>,
        operation: SubjectsOperation<'_>,
        course: Course,
    ) -> Result<Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let target = wire::SubjectTarget {
                options,
                ..target.0
            };
            request::subjects(out, msgid, &SubjectsRequest { target, operation });
        };
        self.call_on_data(target.0.options, course, encode).await
    }

    async fn objects(
        &self,
        target: CollectionTarget<'_>,
        operation: ObjectsOperation<'_>,
        course: Course,
    ) -> Result<Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap {
                options,
                ..target.0
            };
            let operation = operation.clone();
            request::objects(out, msgid, &ObjectsRequest { map, operation });
        };
        self.call_on_data(target.0.options, course, encode).await
    }
}
