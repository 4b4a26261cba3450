//! Requests that return objects, page by page.

use sealwire_client::{Listing, Objects};
use sealwire_payload::{WalkLimits, json};
use sealwire_service::output::errln;
use sealwire_wire::OBJECTS_MAX;

use super::clauses::{self, Clause};
use super::input::ItemLocation;
use super::output::ObjectPrinter;
use super::write::{self, explained_read};
use super::{Disclosure, Named, PageArgs, Wanted};
use crate::commands::Failure;
use crate::commands::documents::read;
use crate::commands::tokens::{Common, read_names};

pub(super) fn get(named: &Named, disclosure: &Disclosure, common: &Common) -> Result<(), Failure> {
    let ids = read_names(&named.ids)?;
    write::run(common, async |client| {
        let mut printer = ObjectPrinter::new(common.json);
        for part in ids.chunks(OBJECTS_MAX) {
            let names: Vec<&str> = part.iter().map(String::as_str).collect();
            let places: Vec<ItemLocation> = part.iter().cloned().map(ItemLocation::Name).collect();
            let found = client
                .objects_get(common.map(), &names, disclosure.ask())
                .await;
            let found = found
                .map_err(|error| explained_read(error, &places))?
                .objects;
            printer.objects(found.iter().flatten())?;
            for (id, _) in part.iter().zip(&found).filter(|(_, found)| found.is_none()) {
                errln!("{id}: not found");
            }
        }
        Ok(())
    })
}

pub(super) fn query(
    wanted: &Wanted,
    page: &PageArgs,
    disclosure: &Disclosure,
    common: &Common,
) -> Result<(), Failure> {
    let (clauses, places) = wanted.payload()?;
    write::run(common, async |client| {
        pages(page, common.json, async |after, limit| {
            let found = client
                .objects_query(common.map(), &clauses, disclosure.ask(), after, Some(limit))
                .await;
            found.map_err(|error| explained_read(error, &places))
        })
        .await
    })
}

impl Wanted {
    /// Returns the clauses as one MessagePack array, and the names of their properties.
    fn payload(&self) -> Result<(Vec<u8>, Vec<ItemLocation>), Failure> {
        if let Some(file) = &self.clauses {
            let payload = json::to_msgpack(&read(file)?, WalkLimits::default())
                .map_err(|error| format!("{}: {error}", file.display()))?;
            return Ok((payload, Vec::new()));
        }
        let all: Vec<&Clause> = [&self.equal, &self.where_in, &self.where_prefix]
            .into_iter()
            .flatten()
            .collect();
        let places = all
            .iter()
            .map(|clause| ItemLocation::Name(clause.property().to_owned()))
            .collect();
        Ok((clauses::array(&all), places))
    }
}

pub(super) fn list(
    listing: Listing<'_>,
    page: &PageArgs,
    disclosure: &Disclosure,
    common: &Common,
) -> Result<(), Failure> {
    write::run(common, async |client| {
        pages(page, common.json, async |after, limit| {
            let listing = Listing {
                after,
                limit: Some(limit),
                ..listing
            };
            let found = client
                .objects_list(common.map(), listing, disclosure.ask())
                .await;
            found.map_err(|error| explained_read(error, &[]))
        })
        .await
    })
}

/// Prints pages as they arrive. A page before the last can be empty.
async fn pages(
    wanted: &PageArgs,
    as_json: bool,
    fetch: impl AsyncFn(Option<&str>, u32) -> Result<Objects, Failure>,
) -> Result<(), Failure> {
    let mut left = if wanted.all { usize::MAX } else { wanted.limit };
    let (mut printer, mut after): (_, Option<String>) = (ObjectPrinter::new(as_json), None);
    while left > 0 {
        let limit = u32::try_from(left.min(OBJECTS_MAX)).unwrap_or(u32::MAX);
        let Objects { objects, next, .. } = fetch(after.as_deref(), limit).await?;
        printer.objects(objects.iter().flatten())?;
        left = left.saturating_sub(objects.len());
        after = next;
        if after.is_none() {
            return Ok(());
        }
    }
    errln!("there may be more; --limit says how many are shown, --all shows all");
    Ok(())
}
