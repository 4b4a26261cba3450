//! Requests about key versions: rows by key, rewrapping, and public keys.

use sealwire_wire::control as wire;

use super::wrapper;
use crate::request::{page_parameters, parameters};

wrapper! {
    /// A request to count the rows of an app by key version, page by page.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::CensusRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let census = operator.keys_census(CensusRequest::new("shop").prove(true)).await?;
    /// for count in &census.counts {
    ///     println!("{} rows of {} under {}", count.rows, count.collection, count.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    CensusRequest: Copy
}

impl<'a> CensusRequest<'a> {
    /// Counts the rows of an app.
    pub fn new(app: &'a str) -> Self {
        Self(wire::CensusRequest {
            app,
            ..wire::CensusRequest::default()
        })
    }

    parameters! {
        /// Fails with `conflict` while an engine could still write under an older key version, if
        /// true.
        ///
        /// Default: false.
        prove(prove: bool) => |inner| inner.prove = prove;
    }

    page_parameters!("Range: 1 to 10,000 examined rows.\nDefault: 1,000.");
}

wrapper! {
    /// A request to seal the rows of an app again under the newest key version, page by page.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RewrapRowsRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let request = RewrapRowsRequest::new("shop").collection("customers").limit(500);
    /// println!("{} rows rewrapped", operator.keys_rewrap(request).await?.rewrapped);
    /// # Ok(())
    /// # }
    /// ```
    RewrapRowsRequest: Copy
}

impl<'a> RewrapRowsRequest<'a> {
    /// Rewraps the rows of an app.
    pub fn new(app: &'a str) -> Self {
        Self(wire::RewrapRowsRequest {
            app,
            ..wire::RewrapRowsRequest::default()
        })
    }

    parameters! {
        /// Rewraps only the rows of this collection.
        ///
        /// Default: all collections.
        collection(collection: impl Into<Option<&'a str>>) => |inner|
            inner.collection = collection.into();
    }

    page_parameters!("Range: 1 to 500.\nDefault: 100.");
}

wrapper! {
    /// A request for the public keys to which others seal for an app.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::PublicKeysRequest};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let keys = client.public_keys(PublicKeysRequest::new("shop")).await?;
    /// println!("{}, signed by {}", keys.keys, keys.signer);
    /// # Ok(())
    /// # }
    /// ```
    PublicKeysRequest: Copy
}

impl<'a> PublicKeysRequest<'a> {
    /// Requests the public keys of an app.
    pub fn new(app: &'a str) -> Self {
        let options = sealwire_wire::CommonParams::default();
        Self(wire::PublicKeysRequest { app, options })
    }

    parameters! {
        /// Requires that the server has applied the change with this generation. Otherwise the
        /// request fails with `conflict`.
        ///
        /// Default: 0.
        min_generation(generation: impl Into<Option<u64>>) => |inner|
            inner.options.min_generation = generation.into();
        /// States why the application makes the request, for the audit log.
        ///
        /// Length: 1 to 256 bytes without control characters.
        /// Default: none.
        reason(reason: impl Into<Option<&'a str>>) => |inner| inner.options.reason = reason.into();
    }
}
