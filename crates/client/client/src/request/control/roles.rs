//! Changes of roles and of their principals, and the check of a request.

use sealwire_wire::control as wire;

use super::wrapper;
use crate::request::parameters;

wrapper! {
    /// A change of a role, for [`Client::change_role`](crate::Client::change_role).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RoleOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let grants = RoleOperation::set(["encrypt,decrypt apps=shop"]);
    /// operator.change_role("checkout", grants).await?;
    /// operator.change_role("former-checkout", RoleOperation::delete()).await?;
    /// # Ok(())
    /// # }
    /// ```
    RoleOperation
}

impl<'a> RoleOperation<'a> {
    /// Creates the role or replaces its grants: 1 to 64 texts in the syntax of `sealwire roles
    /// set`, such as `encrypt,decrypt apps=shop`.
    pub fn set(grants: impl IntoIterator<Item = &'a str>) -> Self {
        let grants = grants.into_iter().collect();
        Self(wire::RoleOperation::Set { grants })
    }

    /// Removes the role if no principal has it.
    pub fn delete() -> Self {
        Self(wire::RoleOperation::Delete)
    }
}

wrapper! {
    /// A change of the roles of a principal, for
    /// [`Client::change_principal`](crate::Client::change_principal).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::PrincipalOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let checkout = "checkout.acme.example";
    /// operator.change_principal(checkout, PrincipalOperation::grant("checkout")).await?;
    /// // Revokes every role.
    /// operator.change_principal(checkout, PrincipalOperation::revoke(None)).await?;
    /// # Ok(())
    /// # }
    /// ```
    PrincipalOperation: Copy
}

impl<'a> PrincipalOperation<'a> {
    /// Grants a role, which must exist.
    pub fn grant(role: &'a str) -> Self {
        Self(wire::PrincipalOperation::Grant { role })
    }

    /// Revokes one role, or every role if `role` is `None`.
    pub fn revoke(role: impl Into<Option<&'a str>>) -> Self {
        Self(wire::PrincipalOperation::Revoke { role: role.into() })
    }
}

wrapper! {
    /// A principal, and the permission to check.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::CheckRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let request = CheckRequest::new("checkout.acme.example", "decrypt").app("shop");
    /// let checked = operator.check(request).await?;
    /// match checked.role {
    ///     Some(role) => println!("permitted by {role}"),
    ///     None => println!("missing: {:?}", checked.missing),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    CheckRequest: Copy
}

impl<'a> CheckRequest<'a> {
    /// Checks an operation, such as `decrypt`. The principal is a DNS name, a `spiffe://` URI, or
    /// `cn:` and a common name.
    pub fn new(principal: &'a str, operation: &'a str) -> Self {
        Self(wire::CheckRequest {
            principal,
            operation,
            ..wire::CheckRequest::default()
        })
    }

    parameters! {
        /// Checks the operation on this app.
        ///
        /// Default: all apps.
        app(app: impl Into<Option<&'a str>>) => |inner| inner.app = app.into();
        /// Checks the operation on this collection.
        ///
        /// Default: all collections.
        collection(collection: impl Into<Option<&'a str>>) => |inner|
            inner.collection = collection.into();
        /// Checks the operation on this property of objects.
        ///
        /// Default: the request names no property.
        property(property: impl Into<Option<&'a str>>) => |inner| inner.property = property.into();
        /// Sets the reason of the checked request.
        ///
        /// Default: none.
        reason(reason: impl Into<Option<&'a str>>) => |inner| inner.reason = reason.into();
    }
}
