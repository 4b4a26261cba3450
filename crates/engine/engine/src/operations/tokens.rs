//! The `tokens.*` methods, which read the metadata of tokens and change tokens without their
//! values.
//!
//! Tokens are hashed and rows are opened on the crypto threads, under the request's admission. The
//! request to the store lies between these two steps.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use sealwire_msgpack::TokenReader;
use sealwire_records::token::RowBuffer;
use sealwire_store::{Filter, Fingerprint, FoundRow, Page, Row, SubjectId, TokenId};
use sealwire_wire::shared::{Listing, Sweep, TokenSearch, TokensOperation};
use sealwire_wire::{Counted, Found, ResultCodec as _, Token};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::apps::{Apps, CachedApp};
use crate::engine::Located;
use crate::frame_text::FrameText;
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::FieldProblem;
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::tokens::batch::run_each;
use crate::jobs::tokens::store_io;
use crate::jobs::tokens::{Canonical, Collection, CollectionKind, canonical, now, value_of};
use crate::operation::{
    MessageSize, Operation, Plan, PlanContext, StoreContext, StorePlan, StoreRun,
};
use crate::subjects::{StoredSubject, SubjectKeyCache, stored_subjects};

/// Maximum number of reads of the store in one `tokens.list` that return too few entries.
const PAGES_MAX: usize = 16;
/// Bytes of a token's entry in a response, tags included, beside the token itself.
const TOKEN_ANSWER_BYTES: usize = 2_048;
/// Default number of entries of `tokens.list`.
const LIST_DEFAULT: u32 = 100;
/// Default number of rows that `tokens.archive` and `tokens.prune` examine.
const SWEEP_DEFAULT: u32 = 1_000;
/// Default time for which `tokens.prune` keeps archived tokens: 30 days, in seconds.
const ARCHIVED_S_DEFAULT: u64 = 30 * 86_400;

/// A decoded `tokens.*` request, whose texts share the bytes of the message.
type Request = TokensOperation<FrameText, Bytes>;

/// Returns the largest number of tokens in the response.
fn tokens_max(request: &Request) -> usize {
    match request {
        Request::Get { tokens } => tokens.len(),
        Request::List(listing) => list_limit(listing),
        Request::Find(_) => 1,
        Request::Delete { .. }
        | Request::Expire { .. }
        | Request::Archive(_)
        | Request::Prune(_) => 0,
    }
}

impl Operation for Request {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::HASH_TOKENS
    }

    fn fields_max(&self, _: MessageSize) -> u64 {
        tokens_max(self).max(1) as u64
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let response_bytes = tokens_max(&self).saturating_mul(TOKEN_ANSWER_BYTES);
        Ok(Plan::Store(Box::new(TokensPlan {
            located: context.collection()?,
            request: *self,
            response_bytes,
        })))
    }
}

fn list_limit(listing: &Listing<FrameText>) -> usize {
    listing.limit.unwrap_or(LIST_DEFAULT) as usize
}

/// A request of one of these methods, resolved against the apps.
struct TokensPlan {
    located: Located,
    request: Request,
    response_bytes: usize,
}

impl StorePlan for TokensPlan {
    fn response_bytes(&self) -> usize {
        self.response_bytes
    }

    fn run<'a>(self: Box<Self>, context: StoreContext<'a>) -> StoreRun<'a> {
        let Self {
            located:
                Located {
                    generation,
                    collection,
                    app,
                },
            request,
            ..
        } = *self;

        let StoreContext {
            tokens,
            objects,
            admission,
            cancel,
            deadline,
            out,
            ..
        } = context;

        let task = TokensTask {
            tokens,
            objects,
            admission,
            cancel,
            app,
            collection,
            generation,
            deadline,
        };
        Box::pin(task.respond(request, out))
    }
}

/// Runs one request.
struct TokensTask<'a> {
    tokens: &'a store_io::Tokens,
    /// The object store, which has the keys of data subjects.
    objects: &'a Objects,
    admission: &'a mut AdmissionPermit,
    /// Tells when to stop.
    cancel: &'a Arc<CancelToken>,
    app: Arc<CachedApp>,
    collection: Arc<Collection>,
    generation: u64,
    deadline: Instant,
}

/// Counts changed rows for metrics and the audit log. Returns the response unchanged.
fn count_changed(cancel: &CancelToken, counted: Counted) -> Counted {
    let missing = counted.missing.len() as u64;
    cancel.set_field_counts(counted.count + missing, missing);
    counted
}

/// Counts read rows for metrics and the audit log. Returns the response unchanged.
fn count_listed(cancel: &CancelToken, listed: sealwire_wire::Tokens) -> sealwire_wire::Tokens {
    let missing = listed.tokens.iter().filter(|token| token.is_none()).count();
    cancel.set_field_counts(listed.tokens.len() as u64, missing as u64);
    listed
}

impl TokensTask<'_> {
    async fn respond(mut self, request: Request, out: &mut Vec<u8>) -> Result<(), RequestFailure> {
        let generation = self.generation;
        let cancel = Arc::clone(self.cancel);
        cancel.set_generation(generation);
        match request {
            Request::Get { tokens } => count_listed(&cancel, self.get(&tokens).await?).encode(out),
            Request::Find(TokenSearch {
                value,
                context,
                subject,
            }) => {
                let token = self.find(&value, &context, subject.as_ref()).await?;
                cancel.set_field_counts(1, u64::from(token.is_none()));
                Found { token, generation }.encode(out);
            }
            Request::List(listing) => {
                count_listed(&cancel, self.list(&listing).await?).encode(out);
            }
            Request::Delete { tokens } => {
                count_changed(&cancel, self.change(&tokens, None).await?).encode(out);
            }
            Request::Expire { tokens, expires_s } => {
                let now = now();
                let expires = expires_s.map(|seconds| now.saturating_add(seconds));
                let counted = self.change(&tokens, Some((now, expires))).await?;
                count_changed(&cancel, counted).encode(out);
            }
            Request::Archive(step) => {
                count_changed(&cancel, self.sweep(&step, true).await?).encode(out);
            }
            Request::Prune(step) => {
                count_changed(&cancel, self.sweep(&step, false).await?).encode(out);
            }
        }
        Ok(())
    }

    /// Returns the key of each token; `None` for a text without the shape of a token.
    async fn ids(&mut self, tokens: &[FrameText]) -> Result<Vec<Option<TokenId>>, RequestFailure> {
        let names = tokens
            .iter()
            .map(|token| token.as_str().to_owned())
            .collect();
        let collection = Arc::clone(&self.collection);
        run_each(
            self.admission,
            OperationKind::HASH_TOKENS,
            self.cancel,
            names,
            move |name| {
                let Collection {
                    keys, map, format, ..
                } = &*collection;
                format
                    .has_shape(&name)
                    .then(|| TokenId(keys.id(map.collection, &name)))
            },
        )
        .await
    }

    /// The tokens in rows; `None` where a key that would open one is disabled. Leaves out rows of
    /// erased subjects.
    async fn opened(&mut self, mut rows: Vec<Row>) -> Result<Vec<Option<Token>>, RequestFailure> {
        let mut subjects: Vec<SubjectId> = rows.iter().filter_map(|row| row.subject).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let stored = stored_subjects(
            self.objects,
            self.generation,
            self.collection.map.app,
            subjects,
        )
        .await?;

        rows.retain(|row| {
            row.claim()
                .is_none_or(|(id, version)| stored.get(&id).is_some_and(|key| key.is_of(version)))
        });
        self.cancel
            .note_subjects(rows.iter().filter_map(|row| Some(row.subject?.0)));
        let collection = Arc::clone(&self.collection);
        let mut keys_of = SubjectKeyCache::new(stored);
        let mut buffer = RowBuffer::default();
        run_each(
            self.admission,
            OperationKind::OPEN_ROWS,
            self.cancel,
            rows,
            move |row| {
                let Collection { keys, map, .. } = &*collection;
                let subject = keys_of.key(row.subject, keys).ok()?;
                let opened = keys
                    .open(map.collection, &row.id.0, subject, &row.sealed, &mut buffer)
                    .ok()?;
                Some(token(opened.token().to_owned(), row))
            },
        )
        .await
    }

    async fn get(&mut self, tokens: &[FrameText]) -> Result<sealwire_wire::Tokens, RequestFailure> {
        let ids = self.ids(tokens).await?;
        let mut listed = sealwire_wire::Tokens {
            tokens: vec![None; tokens.len()],
            next: None,
            generation: self.generation,
        };
        let known: Vec<_> = ids
            .iter()
            .enumerate()
            .filter_map(|(at, id)| Some((at, (*id)?)))
            .collect();
        let room = self.tokens.reserve(self.admission, known.len())?;

        for some in known.chunks(room.most.max(1)) {
            let keys: Vec<_> = some
                .iter()
                .map(|(_, id)| (self.collection.map, *id))
                .collect();
            let rows = self.tokens.get(&keys, self.deadline).await?;
            for ((at, _), found) in some.iter().zip(rows) {
                let Some(FoundRow { row, .. }) = found else {
                    continue;
                };
                self.cancel.note_subjects(row.subject.map(|id| id.0));
                listed.tokens[*at] = Some(token(tokens[*at].as_str().to_owned(), row));
            }
        }

        room.give_back(self.admission);
        Ok(listed)
    }

    /// Removes tokens; or, at a time, sets when they expire.
    async fn change(
        &mut self,
        tokens: &[FrameText],
        expire: Option<(u64, Option<u64>)>,
    ) -> Result<Counted, RequestFailure> {
        let ids = self.ids(tokens).await?;
        let known: Vec<_> = ids.iter().flatten().copied().collect();
        let map = self.collection.map;
        let there = self
            .tokens
            .change(map.app, move |store| async move {
                match expire {
                    None => store.delete(map, &known).await,
                    Some((now, expires)) => store.expire(now, map, &known, expires).await,
                }
            })
            .await?;
        Ok(self.counted(&ids, &there))
    }

    async fn find(
        &mut self,
        value: &[u8],
        context: &[u8],
        subject: Option<&FrameText>,
    ) -> Result<Option<String>, RequestFailure> {
        if self.collection.kind == CollectionKind::Random {
            let rule =
                "must be of kind deterministic or one_way: a value has no one token in others";
            return Err(RequestFailure::Param {
                name: "collection",
                rule,
            });
        }

        let token = TokenReader::new(value)
            .token()
            .map_err(|_| RequestFailure::Payload("not MessagePack".into()))?;
        let (datatype, plaintext) = value_of(token, value);
        let wanted = Zeroizing::new(Canonical::of(datatype, plaintext).to_vec());
        let context = context.to_vec();
        let subject = match subject {
            None => None,
            Some(name) => match self.subject(name).await? {
                Some(subject) => Some(subject),
                None => return Ok(None),
            },
        };

        let collection = Arc::clone(&self.collection);
        let of = subject.clone();
        let hashed = run_each(
            self.admission,
            OperationKind::HASH_TOKENS,
            self.cancel,
            vec![wanted],
            move |wanted| {
                let Collection { keys, map, .. } = &*collection;
                let context = collection.scope(&context);
                let scope = of.as_ref().map_or(context, |subject| {
                    keys.subject_scope(&context, &subject.id.0, subject.version)
                });
                (
                    Fingerprint(keys.fingerprint_of_value(
                        map.collection,
                        &scope,
                        datatype,
                        &wanted,
                    )),
                    context,
                    wanted,
                )
            },
        )
        .await?;

        let keys: Vec<_> = hashed
            .iter()
            .map(|(fingerprint, ..)| (self.collection.map, *fingerprint))
            .collect();
        let rows = self.tokens.find(&keys, self.deadline).await?;
        let Some((FoundRow { row, .. }, (fingerprint, scope, wanted))) = rows
            .into_iter()
            .zip(hashed)
            .find_map(|(row, of)| Some((row?, of)))
        else {
            return Ok(None);
        };

        let collection = Arc::clone(&self.collection);
        match run_each(
            self.admission,
            OperationKind::OPEN_ROWS,
            self.cancel,
            vec![row],
            move |row| {
                let Collection { keys, map, .. } = &*collection;
                let mut buffer = RowBuffer::default();
                let subject = subject
                    .as_ref()
                    .map(|subject| subject.open(keys))
                    .transpose()
                    .ok()?;
                let opened = keys
                    .open(
                        map.collection,
                        &row.id.0,
                        subject.as_ref(),
                        &row.sealed,
                        &mut buffer,
                    )
                    .ok()?;
                let under = (!collection.is_shared()).then_some(&scope);
                let is_of = opened.is_of(&fingerprint.0, under, datatype, &wanted, canonical);
                Some(is_of.then(|| opened.token().to_owned()))
            },
        )
        .await?
        .pop()
        .flatten()
        {
            Some(Some(token)) => return Ok(Some(token)),
            Some(None) => self.tokens.count_mismatched(1),
            None => (),
        }

        Err(RequestFailure::Field {
            problem: FieldProblem::CannotOpen,
            path: "value".into(),
        })
    }

    /// Returns the subject of a name, if it has a key.
    async fn subject(
        &mut self,
        name: &FrameText,
    ) -> Result<Option<Arc<StoredSubject>>, RequestFailure> {
        let id = SubjectId(self.app.object_keys().subject_id(name.as_str().as_bytes()));
        self.cancel.note_subjects([id.0]);
        let app = self.collection.map.app;
        let stored = stored_subjects(self.objects, self.generation, app, vec![id])
            .await?
            .remove(&id);
        Ok(stored.filter(|stored| stored.has_key()))
    }

    async fn list(
        &mut self,
        listing: &Listing<FrameText>,
    ) -> Result<sealwire_wire::Tokens, RequestFailure> {
        let mut after = listing
            .after
            .as_ref()
            .map(|after| parse_cursor(after.as_str()))
            .transpose()?;
        let filter = Filter {
            tag: listing.tag.as_ref().map(|tag| tag.as_str().to_owned()),
            expired_before: listing.expired_before,
            archived: listing.archived,
        };
        self.pass().await?;
        let limit = list_limit(listing);
        let map = self.collection.map;
        let mut tokens = Vec::new();
        let room = self.tokens.reserve(self.admission, limit)?;
        let mut short = 0;

        while short < PAGES_MAX {
            let filter = filter.clone();
            let most = (limit - tokens.len()).min(room.most);
            let page: Page<Vec<Row>> = self
                .tokens
                .sweep(map.app, move |store| async move {
                    store.list(map, &filter, after, most).await
                })
                .await?;
            short += usize::from(page.found.len() < most);
            tokens.extend(self.opened(page.found).await?);
            after = page.next;
            if after.is_none() || tokens.len() >= limit {
                break;
            }
        }

        room.give_back(self.admission);
        Ok(sealwire_wire::Tokens {
            tokens,
            next: after.map(text),
            generation: self.generation,
        })
    }

    async fn sweep(
        &mut self,
        step: &Sweep<FrameText>,
        archives: bool,
    ) -> Result<Counted, RequestFailure> {
        let after = step
            .after
            .as_ref()
            .map(|after| parse_cursor(after.as_str()))
            .transpose()?;
        self.pass().await?;
        let limit = step.limit.unwrap_or(SWEEP_DEFAULT) as usize;
        let now = now();
        let map = self.collection.map;
        let dry_run = step.dry_run;
        let older = step
            .older_s
            .unwrap_or(if archives { 0 } else { ARCHIVED_S_DEFAULT });
        // The bound is inclusive.
        let before = (now + 1).saturating_sub(older);
        let page = self
            .tokens
            .sweep(map.app, move |store| async move {
                if archives {
                    store.archive(now, map, before, after, limit, dry_run).await
                } else {
                    store.prune(map, before, after, limit, dry_run).await
                }
            })
            .await?;

        Ok(Counted {
            count: page.found,
            missing: vec![],
            next: page.next.map(text),
            generation: self.generation,
        })
    }

    /// Goes through the crypto threads with nothing to do there, so that no thread waits for this
    /// call's work.
    async fn pass(&mut self) -> Result<(), RequestFailure> {
        run_each(
            self.admission,
            OperationKind::HASH_TOKENS,
            self.cancel,
            Vec::<()>::new(),
            |()| (),
        )
        .await
        .map(drop)
    }

    fn counted(&self, ids: &[Option<TokenId>], there: &[bool]) -> Counted {
        let mut there = there.iter();
        let mut distinct = HashSet::new();
        let mut missing = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            match id.filter(|_| there.next().is_some_and(|there| *there)) {
                Some(id) => drop(distinct.insert(id)),
                None => missing.extend(u32::try_from(at)),
            }
        }

        Counted {
            count: distinct.len() as u64,
            missing,
            next: None,
            generation: self.generation,
        }
    }
}

fn token(token: String, row: Row) -> Token {
    let Row {
        created,
        expires,
        archived,
        tags,
        ..
    } = row;

    Token {
        token,
        created,
        expires,
        archived,
        tags,
    }
}

/// Returns the cursor of a walk: an id in hexadecimal.
pub(super) fn text(id: TokenId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

pub(super) fn parse_cursor(text: &str) -> Result<TokenId, RequestFailure> {
    let is_ours = text.len() == 32
        && text
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let id = u128::from_str_radix(text, 16).ok().filter(|_| is_ours);
    let rule = "must be the next of the page before";
    id.map(|id| TokenId(id.to_be_bytes()))
        .ok_or(RequestFailure::Param {
            name: "after",
            rule,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_what_was_given_and_nothing_else() {
        for id in [[0; 16], [0xff; 16], *b"0123456789abcdef"] {
            assert_eq!(parse_cursor(&text(TokenId(id))).unwrap(), TokenId(id));
        }
        let zeros = "0".repeat(32);
        for wrong in [
            "",
            "0",
            &zeros[1..],
            &format!("+{}", &zeros[1..]),
            &format!("{zeros}0"),
            &"A".repeat(32),
            "é",
        ] {
            assert!(parse_cursor(wrong).is_err(), "{wrong}");
        }
    }
}
