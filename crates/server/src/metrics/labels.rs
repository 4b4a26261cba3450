//! The closed sets of label values. A value that a peer can choose has no place here.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// Declares a closed set of label values.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// The text of the label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                self.as_str().encode(encoder)
            }
        }
    };
}

label! {
    /// What was called.
    MethodLabel {
        /// Replaces the leaves of a payload by envelopes.
        Encrypt = "encrypt",
        /// Opens every envelope in a payload.
        Decrypt = "decrypt",
        /// Opens every envelope in a payload and seals it again to the newest key.
        Rewrap = "rewrap",
        /// Says what one envelope states about itself, without opening it.
        Inspect = "inspect",
        /// Replaces the leaves of a payload by tokens.
        Tokenize = "tokenize",
        /// Replaces the tokens in a payload by their values.
        Detokenize = "detokenize",
        /// Says what is known of tokens, without their values.
        TokensGet = "tokens.get",
        /// Finds the token of a value.
        TokensFind = "tokens.find",
        /// Lists the tokens of a collection.
        TokensList = "tokens.list",
        /// Removes tokens and their values for good.
        TokensDelete = "tokens.delete",
        /// Sets when tokens expire.
        TokensExpire = "tokens.expire",
        /// Takes expired tokens out of use.
        TokensArchive = "tokens.archive",
        /// Removes archived tokens for good.
        TokensPrune = "tokens.prune",
        /// Lists apps with their key versions.
        AppsList = "apps.list",
        /// Makes an app.
        AppsCreate = "apps.create",
        /// Makes an app's next key version.
        AppsRotate = "apps.rotate",
        /// Adds a private key that was made elsewhere.
        AppsImport = "apps.import",
        /// Stops an app or a key version.
        AppsDisable = "apps.disable",
        /// Takes a `disable` back.
        AppsEnable = "apps.enable",
        /// Stops an app or a key version, and removes it after a delay.
        AppsDelete = "apps.delete",
        /// Takes a `delete` back while its delay lasts.
        AppsRestore = "apps.restore",
        /// Changes an app's settings.
        AppsSet = "apps.set",
        /// Gives the control state as it rests, keys wrapped.
        AppsExport = "apps.export",
        /// Lists an app's collections.
        CollectionsList = "collections.list",
        /// Makes a collection.
        CollectionsCreate = "collections.create",
        /// Changes a collection's settings.
        CollectionsSet = "collections.set",
        /// Removes a collection.
        CollectionsDelete = "collections.delete",
        /// Lists the instances that serve this control state.
        InstancesList = "instances.list",
        /// Says what this server is and what it accepts.
        Info = "info",
        /// Answers while the server serves.
        Health = "health",
        /// No method of ours. One value for all, since a peer may invent names without end.
        Unknown = "unknown",
    }
}

label! {
    /// How a call ended: `ok` or the wire's error code.
    CallCode {
        /// Answered with a result.
        Ok = "ok",
        /// Not a valid call.
        BadRequest = "bad_request",
        /// Beyond a limit.
        TooLarge = "too_large",
        /// No usable identity.
        Unauthenticated = "unauthenticated",
        /// Not allowed.
        Forbidden = "forbidden",
        /// No such app, key or method.
        NotFound = "not_found",
        /// Against the current state.
        Conflict = "conflict",
        /// An envelope that does not open.
        CannotOpen = "cannot_open",
        /// Stopped by the caller.
        Cancelled = "cancelled",
        /// Out of time.
        DeadlineExceeded = "deadline_exceeded",
        /// Turned away.
        Overloaded = "overloaded",
        /// Draining, or a dependency is gone.
        Unavailable = "unavailable",
        /// Our fault.
        Internal = "internal",
    }
}

label! {
    /// What became of a token in a call.
    TokenLabel {
        /// Made and kept.
        Made = "made",
        /// There already, for the same value or the same call.
        Reused = "reused",
        /// Made, and made again because another one has its id.
        Taken = "taken",
        /// Found for `detokenize`.
        Found = "found",
        /// Not found for `detokenize`.
        Missing = "missing",
    }
}

label! {
    /// What the token store was asked.
    StoreLabel {
        /// To take new rows.
        Write = "write",
        /// For the rows of tokens.
        Get = "get",
        /// For the rows of values.
        Find = "find",
        /// To remove rows or set when they expire.
        Change = "change",
        /// To list, archive or prune.
        Sweep = "sweep",
    }
}

label! {
    /// What waits to be sent to the token store.
    WaitingLabel {
        /// Rows to be written.
        Rows = "rows",
        /// Their bytes.
        Bytes = "bytes",
        /// Keys to be looked up.
        Keys = "keys",
        /// Calls that are not let in yet with what they are to write.
        Writers = "writers",
    }
}

label! {
    /// What became of a connection.
    ConnectionOutcome {
        /// It speaks.
        Accepted = "accepted",
        /// Over `limits.connections_max`.
        Refused = "refused",
        /// Over `limits.connections_per_principal_max`.
        PrincipalRefused = "principal_refused",
        /// The handshake failed: no certificate, a foreign one, not TLS.
        TlsFailed = "tls_failed",
        /// The handshake took longer than `limits.handshake_ms_max`.
        TlsTimeout = "tls_timeout",
        /// A verified certificate without a usable name.
        Nameless = "nameless",
    }
}

label! {
    /// Why a call was stopped.
    CancelReason {
        /// The caller said so.
        Cancel = "cancel",
        /// Its deadline passed.
        Deadline = "deadline",
        /// Its connection went.
        Disconnect = "disconnect",
    }
}

label! {
    /// Size of a call: the work it is estimated at, up to so much.
    ClassLabel {
        /// One slice.
        Upto100us = "100us",
        /// Up to 0.4 ms.
        Upto400us = "400us",
        /// Up to 1.6 ms.
        Upto1600us = "1600us",
        /// Up to 6.4 ms.
        Upto6400us = "6400us",
        /// Up to 25.6 ms.
        Upto25ms = "25ms",
        /// Up to 102 ms.
        Upto102ms = "102ms",
        /// Up to 410 ms.
        Upto410ms = "410ms",
        /// All above.
        Above = "above",
    }
}

label! {
    /// Why a call was refused.
    RefusalReason {
        /// Its caller has too much ahead of it.
        Backlog = "backlog",
        /// It would not be done by its deadline.
        Deadline = "deadline",
        /// Its caller offers more than its part, and calls of this size have had theirs.
        Proportion = "proportion",
        /// Its caller holds its share of the memory.
        Memory = "memory",
        /// The token store is behind with what it has been given to keep.
        Storage = "storage",
    }
}

impl From<sealwire_store::Kind> for StoreLabel {
    fn from(kind: sealwire_store::Kind) -> Self {
        use sealwire_store::Kind;
        match kind {
            Kind::Write => Self::Write,
            Kind::Get => Self::Get,
            Kind::Find => Self::Find,
        }
    }
}

impl From<sealwire_schedule::Class> for ClassLabel {
    fn from(class: sealwire_schedule::Class) -> Self {
        Self::ALL[class.index()]
    }
}

impl From<sealwire_schedule::Reason> for RefusalReason {
    fn from(reason: sealwire_schedule::Reason) -> Self {
        use sealwire_schedule::Reason;
        match reason {
            Reason::Backlog => Self::Backlog,
            Reason::Deadline => Self::Deadline,
            Reason::Proportion => Self::Proportion,
            Reason::Memory => Self::Memory,
        }
    }
}

/// Why work ended early, if that is worth counting: a drain is the operator's own doing.
impl CancelReason {
    pub(super) fn of(reason: crate::ticket::StopReason) -> Option<Self> {
        use crate::ticket::StopReason;
        match reason {
            StopReason::Cancel => Some(Self::Cancel),
            StopReason::Deadline => Some(Self::Deadline),
            StopReason::Disconnect => Some(Self::Disconnect),
            StopReason::Drain => None,
        }
    }
}

impl From<sealwire_wire::Method> for MethodLabel {
    fn from(method: sealwire_wire::Method) -> Self {
        use sealwire_wire::Method;
        match method {
            Method::Encrypt => Self::Encrypt,
            Method::Decrypt => Self::Decrypt,
            Method::Rewrap => Self::Rewrap,
            Method::Inspect => Self::Inspect,
            Method::Tokenize => Self::Tokenize,
            Method::Detokenize => Self::Detokenize,
            Method::TokensGet => Self::TokensGet,
            Method::TokensFind => Self::TokensFind,
            Method::TokensList => Self::TokensList,
            Method::TokensDelete => Self::TokensDelete,
            Method::TokensExpire => Self::TokensExpire,
            Method::TokensArchive => Self::TokensArchive,
            Method::TokensPrune => Self::TokensPrune,
            Method::AppsList => Self::AppsList,
            Method::AppsCreate => Self::AppsCreate,
            Method::AppsRotate => Self::AppsRotate,
            Method::AppsImport => Self::AppsImport,
            Method::AppsDisable => Self::AppsDisable,
            Method::AppsEnable => Self::AppsEnable,
            Method::AppsDelete => Self::AppsDelete,
            Method::AppsRestore => Self::AppsRestore,
            Method::AppsSet => Self::AppsSet,
            Method::AppsExport => Self::AppsExport,
            Method::CollectionsList => Self::CollectionsList,
            Method::CollectionsCreate => Self::CollectionsCreate,
            Method::CollectionsSet => Self::CollectionsSet,
            Method::CollectionsDelete => Self::CollectionsDelete,
            Method::InstancesList => Self::InstancesList,
            Method::Info => Self::Info,
            Method::Health => Self::Health,
        }
    }
}

impl From<sealwire_wire::ErrorCode> for CallCode {
    fn from(code: sealwire_wire::ErrorCode) -> Self {
        use sealwire_wire::ErrorCode;
        match code {
            ErrorCode::BadRequest => Self::BadRequest,
            ErrorCode::TooLarge => Self::TooLarge,
            ErrorCode::Unauthenticated => Self::Unauthenticated,
            ErrorCode::Forbidden => Self::Forbidden,
            ErrorCode::NotFound => Self::NotFound,
            ErrorCode::Conflict => Self::Conflict,
            ErrorCode::CannotOpen => Self::CannotOpen,
            ErrorCode::Cancelled => Self::Cancelled,
            ErrorCode::DeadlineExceeded => Self::DeadlineExceeded,
            ErrorCode::Overloaded => Self::Overloaded,
            ErrorCode::Unavailable => Self::Unavailable,
            ErrorCode::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_stand_at_their_own_index() {
        fn check<T: Copy + PartialEq + fmt::Debug>(all: &[T], index: impl Fn(T) -> usize) {
            for (position, value) in all.iter().enumerate() {
                assert_eq!(index(*value), position, "{value:?}");
            }
        }
        check(&MethodLabel::ALL, |v| v as usize);
        check(&CallCode::ALL, |v| v as usize);
        check(&TokenLabel::ALL, |v| v as usize);
        check(&StoreLabel::ALL, |v| v as usize);
        check(&WaitingLabel::ALL, |v| v as usize);
        check(&ConnectionOutcome::ALL, |v| v as usize);
        check(&CancelReason::ALL, |v| v as usize);
        check(&ClassLabel::ALL, |v| v as usize);
        check(&RefusalReason::ALL, |v| v as usize);
    }

    #[test]
    fn classes_and_reasons_are_those_of_the_scheduler() {
        assert_eq!(ClassLabel::ALL.len(), sealwire_schedule::Class::all().count());
        let reasons = sealwire_schedule::Reason::ALL.map(RefusalReason::from);
        assert_eq!(reasons, RefusalReason::ALL[..reasons.len()]);
        assert_eq!(RefusalReason::ALL.map(RefusalReason::as_str), sealwire_wire::OverloadReason::ALL.map(|r| r.name()));
    }

    #[test]
    fn labels_are_spelled_as_on_the_wire() {
        for method in sealwire_wire::Method::ALL {
            assert_eq!(MethodLabel::from(method).as_str(), method.name());
        }
        for code in sealwire_wire::ErrorCode::ALL {
            assert_eq!(CallCode::from(code).as_str(), code.name());
        }
        assert_eq!(CallCode::ALL.len(), sealwire_wire::ErrorCode::ALL.len() + 1);
    }
}
