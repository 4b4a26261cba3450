//! Maps methods to the operations that a request needs permission for.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use sealwire_access::{AuthorizationRequest, Operation};
use sealwire_wire::Method;
use sealwire_wire::control::Control;

/// By method. `health`, `info` and `inspect` have none: they tell nothing of apps, keys or tokens,
/// except whether a key id is that of a published key.
static OPERATIONS: LazyLock<[Option<Operation>; Method::ALL.len()]> =
    LazyLock::new(|| Method::ALL.map(|method| Operation::from_name(method.name())));

fn operation(method: Method) -> Option<Operation> {
    OPERATIONS[method as usize]
}

/// Names in a request, on which it is decided and which are recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTarget<'a> {
    /// The app.
    pub app: Option<&'a str>,
    /// The collection.
    pub collection: Option<&'a str>,
    /// The reason that the client gave.
    pub reason: Option<&'a str>,
}

impl<'a> RequestTarget<'a> {
    /// Returns the target of a control request.
    pub fn of_control(request: &Control<'a>) -> Self {
        // The app in a check request is part of the question. The check itself has no target.
        if matches!(request, Control::Check(_)) {
            return Self::default();
        }
        Self {
            app: request.text("app"),
            collection: request.text("collection"),
            reason: request.options().and_then(|options| options.reason),
        }
    }

    /// Returns the permission that a request of `method` needs. `None`: none.
    pub fn authorization_request(self, method: Method) -> Option<AuthorizationRequest<'a>> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        Some(
            AuthorizationRequest::new(operation(method)?, self.app, self.collection)
                .because(self.reason)
                .at(now),
        )
    }
}

/// Returns the permission that a control request needs. No existing method returns `None`.
pub fn control_authorization<'a>(request: &Control<'a>) -> Option<AuthorizationRequest<'a>> {
    RequestTarget::of_control(request).authorization_request(request.method())
}

#[cfg(test)]
mod tests {
    use sealwire_access::Operations;
    use sealwire_wire::Methods;

    use super::*;

    #[test]
    fn methods_except_three_are_operations_of_their_plane() {
        let free = [Method::Inspect, Method::Info, Method::Health];
        let mut methods = 0;
        for method in Method::ALL {
            assert_eq!(
                operation(method).is_none(),
                free.contains(&method),
                "{method}"
            );
            if let Some(operation) = operation(method) {
                assert_eq!(
                    Operations::CONTROL.contains(operation),
                    Methods::CONTROL.contains(method),
                    "{method}"
                );
                let is_of_both = method == Method::AppsPublicKeys;
                assert_eq!(
                    Operations::DATA.contains(operation) || is_of_both,
                    Methods::DATA.contains(method),
                    "{method}"
                );
                assert_eq!(operation.name(), method.name());
                methods += 1;
            }
        }
        assert_eq!(methods, Operation::ALL.len());
    }
}
