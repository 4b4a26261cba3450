//! The requests on objects.
//!
//! A write whose response was lost may have been made. So the client repeats a write only if that
//! is safe: an addition with an idempotency key, and a change of the expiry.

use bytes::Bytes;
use sealwire_wire::{
    AddObjects, Counted, Listing, Objects, ObjectsChanged, ObjectsOperation, ObjectsRequest,
    PropertyDisclosure, SubjectErased, SubjectExport, SubjectFound, SubjectTarget,
    SubjectsOperation, SubjectsRequest, Sweep, TokenMap, request,
};

use crate::client::Client;
use crate::error::Error;
use crate::retry::Course;

impl Client {
    /// Adds objects: all of them or none. `add.objects` is a MessagePack array of maps of property
    /// names to values.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`; so for every method here.
    pub async fn objects_add(
        &self,
        map: TokenMap<'_>,
        add: AddObjects<'_>,
    ) -> Result<ObjectsChanged, Error> {
        request::check_payload(add.objects).map_err(Error::Payload)?;
        let course = if add.idempotency_key.is_some() {
            Course::on_tokens()
        } else {
            Course::once_on_tokens()
        };
        let result = self
            .objects(map, ObjectsOperation::Add(add), course)
            .await?;
        ObjectsChanged::decode(&result).map_err(Error::Protocol)
    }

    /// Returns objects by id.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_get(
        &self,
        map: TokenMap<'_>,
        ids: &[&str],
        disclosure: PropertyDisclosure<'_>,
    ) -> Result<Objects, Error> {
        let operation = ObjectsOperation::Get {
            ids: ids.to_vec(),
            disclosure,
        };
        Objects::decode(&self.objects(map, operation, Course::on_tokens()).await?)
            .map_err(Error::Protocol)
    }

    /// Changes objects: all of them or none. `changes` is a MessagePack array of maps
    /// `{id, set, if_version?}`.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_update(
        &self,
        map: TokenMap<'_>,
        changes: &[u8],
    ) -> Result<ObjectsChanged, Error> {
        request::check_payload(changes).map_err(Error::Payload)?;
        let result = self
            .objects(
                map,
                ObjectsOperation::Update { changes },
                Course::once_on_tokens(),
            )
            .await?;
        ObjectsChanged::decode(&result).map_err(Error::Protocol)
    }

    /// Removes objects permanently: all of them or none. `versions`: the version that each object
    /// must have.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_delete(
        &self,
        map: TokenMap<'_>,
        ids: &[&str],
        versions: Option<Vec<u64>>,
    ) -> Result<Counted, Error> {
        let operation = ObjectsOperation::Delete {
            ids: ids.to_vec(),
            versions,
        };
        Counted::decode(
            &self
                .objects(map, operation, Course::once_on_tokens())
                .await?,
        )
        .map_err(Error::Protocol)
    }

    /// Returns a page of the objects for which all clauses hold. `clauses` is a MessagePack array
    /// of maps `{property, eq | in | prefix}`.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_query(
        &self,
        map: TokenMap<'_>,
        clauses: &[u8],
        disclosure: PropertyDisclosure<'_>,
        after: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Objects, Error> {
        request::check_payload(clauses).map_err(Error::Payload)?;
        let operation = ObjectsOperation::Query {
            clauses,
            disclosure,
            after,
            limit,
        };
        Objects::decode(&self.objects(map, operation, Course::on_tokens()).await?)
            .map_err(Error::Protocol)
    }

    /// Returns a page of a collection's objects.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_list(
        &self,
        map: TokenMap<'_>,
        listing: Listing<'_>,
        disclosure: PropertyDisclosure<'_>,
    ) -> Result<Objects, Error> {
        let operation = ObjectsOperation::List {
            listing,
            disclosure,
        };
        Objects::decode(&self.objects(map, operation, Course::on_tokens()).await?)
            .map_err(Error::Protocol)
    }

    /// Sets when objects expire, in seconds from now; `None` removes the expiry.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_expire(
        &self,
        map: TokenMap<'_>,
        ids: &[&str],
        expires_s: Option<u64>,
    ) -> Result<Counted, Error> {
        let operation = ObjectsOperation::Expire {
            ids: ids.to_vec(),
            expires_s,
        };
        Counted::decode(&self.objects(map, operation, Course::on_tokens()).await?)
            .map_err(Error::Protocol)
    }

    /// Runs one step of archiving expired objects.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_archive(
        &self,
        map: TokenMap<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        let result = self
            .objects(map, ObjectsOperation::Archive(sweep), Course::on_tokens())
            .await?;
        Counted::decode(&result).map_err(Error::Protocol)
    }

    /// Runs one step of removing archived objects permanently.
    ///
    /// # Errors
    /// As above.
    pub async fn objects_prune(
        &self,
        map: TokenMap<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        let result = self
            .objects(map, ObjectsOperation::Prune(sweep), Course::on_tokens())
            .await?;
        Counted::decode(&result).map_err(Error::Protocol)
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
        .map_err(Error::Protocol)
    }

    /// Returns a page of the objects of a data subject, all of one collection. `after`: the `next`
    /// of the page before.
    ///
    /// # Errors
    /// As above.
    pub async fn subjects_export(
        &self,
        target: SubjectTarget<'_>,
        after: Option<&str>,
        limit: Option<u32>,
    ) -> Result<SubjectExport, Error> {
        let result = self
            .subjects(
                target,
                SubjectsOperation::Export { after, limit },
                Course::on_tokens(),
            )
            .await?;
        SubjectExport::decode(&result).map_err(Error::Protocol)
    }

    /// Removes the key of a data subject, and then its objects, permanently. `version` and
    /// `created`: only a key of at most this version, that was made at or before this time in
    /// seconds since 1970-01-01 UTC. Repeat the request with the version of the result while the
    /// result is not `done`.
    ///
    /// # Errors
    /// As above.
    pub async fn subjects_erase(
        &self,
        target: SubjectTarget<'_>,
        version: Option<u64>,
        created: Option<u64>,
    ) -> Result<SubjectErased, Error> {
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
        SubjectErased::decode(&result).map_err(Error::Protocol)
    }

    async fn subjects(
        &self,
        target: SubjectTarget<'_>,
        operation: SubjectsOperation<'_>,
        course: Course,
    ) -> Result<Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let target = SubjectTarget { options, ..target };
            request::subjects(out, msgid, &SubjectsRequest { target, operation });
        };
        self.call_on_data(target.options, course, encode).await
    }

    async fn objects(
        &self,
        map: TokenMap<'_>,
        operation: ObjectsOperation<'_>,
        course: Course,
    ) -> Result<Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap { options, ..map };
            let operation = operation.clone();
            request::objects(out, msgid, &ObjectsRequest { map, operation });
        };
        self.call_on_data(map.options, course, encode).await
    }
}
