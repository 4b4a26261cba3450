//! What a call has to be permitted: one place where methods become operations.

use std::sync::LazyLock;

use sealwire_access::{Ask, Operation};
use sealwire_wire::control::Control;
use sealwire_wire::{Call, Method};

/// By method. `health`, `info` and `inspect` have none: they tell nothing of apps, keys or tokens.
static OPERATIONS: LazyLock<[Option<Operation>; Method::ALL.len()]> =
    LazyLock::new(|| Method::ALL.map(|method| Operation::from_name(method.name())));

fn operation(method: Method) -> Option<Operation> {
    OPERATIONS[method as usize]
}

/// What a data call has to be permitted; `None`: nothing.
pub(crate) fn of_call<'a>(call: &Call<'a>) -> Option<Ask<'a>> {
    let (app, collection, reason) = match call {
        Call::Encrypt(call) | Call::Rewrap(call) => (call.app, None, call.reason),
        Call::Decrypt(call) => (call.app, None, call.reason),
        Call::Tokenize(call) => (call.app, Some(call.writing.collection), call.reason),
        Call::Detokenize(call) => (call.app, Some(call.writing.collection), call.reason),
        Call::Tokens(call) => (call.map.app, Some(call.map.collection), call.map.reason),
        Call::Control(call) => return of_control(call),
        Call::Inspect(_) | Call::Info | Call::Health => return None,
    };
    Some(Ask::new(operation(call.method())?, Some(app), collection).because(reason))
}

/// What a control call has to be permitted. `None` is for no method that there is.
pub(crate) fn of_control<'a>(call: &Control<'a>) -> Option<Ask<'a>> {
    let (app, collection) = match call {
        Control::App(call) => (Some(call.app), None),
        Control::Collections { app, .. } => (Some(*app), None),
        Control::Collection(call) => (Some(call.app), Some(call.collection)),
        Control::Apps(_)
        | Control::Export(_)
        | Control::Instances
        | Control::Roles(_)
        | Control::Role(_)
        | Control::Principals(_)
        | Control::Principal(_)
        | Control::Check(_) => (None, None),
    };
    Some(Ask::new(operation(call.method())?, app, collection))
}

#[cfg(test)]
mod tests {
    use sealwire_access::Operations;
    use sealwire_wire::Methods;

    use super::*;

    #[test]
    fn every_method_but_three_is_an_operation_of_its_plane() {
        let free = [Method::Inspect, Method::Info, Method::Health];
        let mut methods = 0;
        for method in Method::ALL {
            assert_eq!(operation(method).is_none(), free.contains(&method), "{method}");
            if let Some(operation) = operation(method) {
                assert_eq!(Operations::CONTROL.contains(operation), Methods::CONTROL.contains(method), "{method}");
                assert_eq!(operation.name(), method.name());
                methods += 1;
            }
        }
        assert_eq!(methods, Operation::ALL.len());
    }
}
