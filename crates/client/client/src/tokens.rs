//! The token requests without a document. All are safe to repeat.

use sealwire_wire::{Counted, Found, TokenMap, Tokens, TokensOperation, TokensRequest, request};

use crate::client::Client;
use crate::error::Error;
use crate::request::tokens::{CollectionTarget, Listing, Sweep, TokenSearch};
use crate::retry::Course;

impl Client {
    /// Returns the metadata of tokens, without their values.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`; so for every method here.
    pub async fn tokens_get(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
    ) -> Result<Tokens, Error> {
        let result = self
            .tokens(
                target,
                TokensOperation::Get {
                    tokens: tokens.to_vec(),
                },
            )
            .await?;
        Tokens::decode(&result).map_err(Error::protocol)
    }

    /// Finds the token of a value, one MessagePack value, in a collection where equal values have
    /// equal tokens.
    ///
    /// # Errors
    /// As above, and [`Error::Payload`].
    pub async fn tokens_find(
        &self,
        target: CollectionTarget<'_>,
        search: TokenSearch<'_>,
    ) -> Result<Found, Error> {
        request::check_payload(search.0.value).map_err(Error::payload)?;
        let result = self.tokens(target, TokensOperation::Find(search.0)).await?;
        Found::decode(&result).map_err(Error::protocol)
    }

    /// Returns a page of a collection's tokens.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_list(
        &self,
        target: CollectionTarget<'_>,
        listing: Listing<'_>,
    ) -> Result<Tokens, Error> {
        let result = self
            .tokens(target, TokensOperation::List(listing.0))
            .await?;
        Tokens::decode(&result).map_err(Error::protocol)
    }

    /// Removes tokens and their values permanently. If the response of a first attempt was lost,
    /// the retry reports the tokens as `missing`.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_delete(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
    ) -> Result<Counted, Error> {
        self.counted(
            target,
            TokensOperation::Delete {
                tokens: tokens.to_vec(),
            },
        )
        .await
    }

    /// Sets when tokens expire, in seconds from now; `None` removes the expiry.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// use sealwire_client::CollectionTarget;
    ///
    /// let cards = CollectionTarget::new("shop", "cards");
    /// let counted = client.tokens_expire(cards, &["tok_8bLZpUYwT2cQ4vN1sXeR0a"], Some(3_600)).await?;
    /// println!("{} tokens expire in an hour", counted.count);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_expire(
        &self,
        target: CollectionTarget<'_>,
        tokens: &[&str],
        expires_s: Option<u64>,
    ) -> Result<Counted, Error> {
        self.counted(
            target,
            TokensOperation::Expire {
                tokens: tokens.to_vec(),
                expires_s,
            },
        )
        .await
    }

    /// Runs one step of archiving expired tokens.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_archive(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.counted(target, TokensOperation::Archive(sweep.0))
            .await
    }

    /// Runs one step of removing archived tokens permanently.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_prune(
        &self,
        target: CollectionTarget<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.counted(target, TokensOperation::Prune(sweep.0)).await
    }

    async fn counted(
        &self,
        target: CollectionTarget<'_>,
        operation: TokensOperation<'_>,
    ) -> Result<Counted, Error> {
        let result = self.tokens(target, operation).await?;
        Counted::decode(&result).map_err(Error::protocol)
    }

    async fn tokens(
        &self,
        target: CollectionTarget<'_>,
        operation: TokensOperation<'_>,
    ) -> Result<bytes::Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap {
                options,
                ..target.0
            };
            let operation = operation.clone();
            request::tokens(out, msgid, &TokensRequest { map, operation });
        };
        self.call_on_data(target.0.options, Course::on_tokens(), encode)
            .await
    }
}
