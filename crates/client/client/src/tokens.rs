//! The token requests without a document. All are safe to repeat.

use std::time::Duration;

use sealwire_wire::{
    Counted, Found, ResultCodec, TokenMap, Tokens, TokensOperation, TokensRequest, request,
};

use crate::client::Client;
use crate::error::Error;
use crate::request::tokens::{CollectionTarget, Listing, Sweep, TokenSearch};
use crate::retry::Course;

impl Client {
    /// Returns the metadata of tokens, without their values.
    ///
    /// See [`CollectionTarget`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn tokens_get(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
    ) -> Result<Tokens, Error> {
        self.tokens(
            target,
            TokensOperation::Get {
                tokens: tokens.to_vec(),
            },
        )
        .await
    }

    /// Finds the token of a value, one MessagePack value, in a collection where equal values have
    /// equal tokens.
    ///
    /// See [`TokenSearch`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn tokens_find(
        &self,
        target: CollectionTarget<'_>,
        search: TokenSearch<'_>,
    ) -> Result<Found, Error> {
        request::check_payload(search.0.value).map_err(Error::payload)?;
        self.tokens(target, TokensOperation::Find(search.0)).await
    }

    /// Returns a page of a collection's tokens.
    ///
    /// See [`Listing`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn tokens_list(
        &self,
        target: CollectionTarget<'_>,
        listing: Listing<'_>,
    ) -> Result<Tokens, Error> {
        self.tokens(target, TokensOperation::List(listing.0)).await
    }

    /// Removes tokens and their values permanently. If the response of a first attempt was lost,
    /// the retry reports the tokens as `missing`.
    ///
    /// See [`CollectionTarget`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn tokens_delete(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
    ) -> Result<Counted, Error> {
        self.tokens(
            target,
            TokensOperation::Delete {
                tokens: tokens.to_vec(),
            },
        )
        .await
    }

    /// Sets when tokens expire: after this time from now, in seconds, rounded up. Zero: at once.
    /// `None`: never.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use std::time::Duration;
    /// use sealwire_client::CollectionTarget;
    ///
    /// let cards = CollectionTarget::new("shop", "cards");
    /// let counted = client.tokens_expire(cards, &["tok_8bLZpUYwT2cQ4vN1sXeR0a"], Duration::from_secs(3_600)).await?;
    /// println!("{} tokens expire in an hour", counted.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn tokens_expire(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
        time: impl Into<Option<Duration>>,
    ) -> Result<Counted, Error> {
        self.tokens(
            target,
            TokensOperation::Expire {
                tokens: tokens.to_vec(),
                expires_s: time.into().map(crate::request::seconds),
            },
        )
        .await
    }

    /// Runs one step of archiving expired tokens.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::{CollectionTarget, Sweep};
    ///
    /// let cards = CollectionTarget::new("shop", "cards");
    /// let mut cursor: Option<String> = None;
    /// loop {
    ///     let step = Sweep::new().after(cursor.as_deref());
    ///     let archived = client.tokens_archive(cards, step).await?;
    ///     println!("{} tokens archived", archived.count);
    ///     cursor = archived.next;
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
    pub async fn tokens_archive(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.tokens(target, TokensOperation::Archive(sweep.0)).await
    }

    /// Runs one step of removing archived tokens permanently.
    ///
    /// See [`Sweep`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn tokens_prune(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.tokens(target, TokensOperation::Prune(sweep.0)).await
    }

    async fn tokens<T: ResultCodec>(
        &self,
        target: CollectionTarget<'_>,
        operation: TokensOperation<'_>,
    ) -> Result<T, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap {
                options,
                ..target.0
            };
            let operation = operation.clone();
            request::tokens(out, msgid, &TokensRequest { map, operation });
        };
        let result = self
            .call_on_data(target.0.options, Course::on_tokens(), encode)
            .await?;
        T::decode(&result).map_err(Error::protocol)
    }
}
