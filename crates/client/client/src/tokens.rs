//! The token requests without a document. All are safe to repeat.

use sealwire_wire::{
    Counted, Found, Listing, Sweep, TokenMap, TokenSearch, Tokens, TokensOperation, TokensRequest,
    request,
};

use crate::client::Client;
use crate::error::Error;
use crate::retry::Course;

impl Client {
    /// Returns the metadata of tokens, without their values.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`; so for every method here.
    pub async fn tokens_get(&self, map: TokenMap<'_>, tokens: &[&str]) -> Result<Tokens, Error> {
        let result = self
            .tokens(
                map,
                TokensOperation::Get {
                    tokens: tokens.to_vec(),
                },
            )
            .await?;
        Tokens::decode(&result).map_err(Error::Protocol)
    }

    /// Finds the token of a value, one MessagePack value, in a collection where equal values have
    /// equal tokens.
    ///
    /// # Errors
    /// As above, and [`Error::Payload`].
    pub async fn tokens_find(
        &self,
        map: TokenMap<'_>,
        search: TokenSearch<'_>,
    ) -> Result<Found, Error> {
        request::check_payload(search.value).map_err(Error::Payload)?;
        let result = self.tokens(map, TokensOperation::Find(search)).await?;
        Found::decode(&result).map_err(Error::Protocol)
    }

    /// Returns a page of a collection's tokens.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_list(
        &self,
        map: TokenMap<'_>,
        listing: Listing<'_>,
    ) -> Result<Tokens, Error> {
        let result = self.tokens(map, TokensOperation::List(listing)).await?;
        Tokens::decode(&result).map_err(Error::Protocol)
    }

    /// Removes tokens and their values permanently. If the response of a first attempt was lost,
    /// the retry reports the tokens as `missing`.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_delete(
        &self,
        map: TokenMap<'_>,
        tokens: &[&str],
    ) -> Result<Counted, Error> {
        self.counted(
            map,
            TokensOperation::Delete {
                tokens: tokens.to_vec(),
            },
        )
        .await
    }

    /// Sets when tokens expire, in seconds from now; `None` removes the expiry.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_expire(
        &self,
        map: TokenMap<'_>,
        tokens: &[&str],
        expires_s: Option<u64>,
    ) -> Result<Counted, Error> {
        self.counted(
            map,
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
        map: TokenMap<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.counted(map, TokensOperation::Archive(sweep)).await
    }

    /// Runs one step of removing archived tokens permanently.
    ///
    /// # Errors
    /// As above.
    pub async fn tokens_prune(
        &self,
        map: TokenMap<'_>,
        sweep: Sweep<'_>,
    ) -> Result<Counted, Error> {
        self.counted(map, TokensOperation::Prune(sweep)).await
    }

    async fn counted(
        &self,
        map: TokenMap<'_>,
        operation: TokensOperation<'_>,
    ) -> Result<Counted, Error> {
        let result = self.tokens(map, operation).await?;
        Counted::decode(&result).map_err(Error::Protocol)
    }

    async fn tokens(
        &self,
        map: TokenMap<'_>,
        operation: TokensOperation<'_>,
    ) -> Result<bytes::Bytes, Error> {
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let map = TokenMap { options, ..map };
            let operation = operation.clone();
            request::tokens(out, msgid, &TokensRequest { map, operation });
        };
        self.call_on_data(map.options, Course::on_tokens(), encode)
            .await
    }
}
