//! The closed sets of label values. A value that a peer can choose has no place here.

use sealwire_access::Missing;
use sealwire_service::label;
use sealwire_service::metrics::Labels;
use sealwire_wire::{ErrorCode, Method};

/// Declares the label of one of the wire's closed sets, with a value beside them.
macro_rules! wire_label {
    ($(#[$doc:meta])* $vis:vis struct $name:ident = $label:literal of $of:ident, $(#[$none_doc:meta])* $none:ident = $text:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis struct $name(Option<$of>);

        impl $name {
            $(#[$none_doc])*
            $vis const $none: Self = Self(None);

            /// Every value, by its index.
            $vis const ALL: [Self; $of::ALL.len() + 1] = {
                let (mut all, mut index) = ([Self(None); $of::ALL.len() + 1], 0);
                while index < $of::ALL.len() {
                    all[index] = Self(Some($of::ALL[index]));
                    index += 1;
                }
                all
            };

            /// Where it is in [`Self::ALL`].
            $vis const fn index(self) -> usize {
                match self.0 {
                    Some(value) => value as usize,
                    None => $of::ALL.len(),
                }
            }

            /// The text of the label.
            $vis const fn as_str(self) -> &'static str {
                match self.0 {
                    Some(value) => value.name(),
                    None => $text,
                }
            }
        }

        impl From<$of> for $name {
            fn from(value: $of) -> Self {
                Self(Some(value))
            }
        }

        impl Labels for $name {
            const NAMES: &'static [&'static str] = &[$label];
            const COUNT: usize = Self::ALL.len();

            fn index(self) -> usize {
                Self::index(self)
            }

            fn values(index: usize) -> Vec<&'static str> {
                vec![Self::ALL[index].as_str()]
            }
        }
    };
}

wire_label! {
    /// Method.
    pub struct MethodLabel = "method" of Method,
    /// No method of ours. One value for all, since a peer may invent names without end.
    UNKNOWN = "unknown"
}

wire_label! {
    /// How a call ended.
    pub struct CallCode = "code" of ErrorCode,
    /// With a result.
    OK = "ok"
}

wire_label! {
    /// What a denied request lacked.
    pub(super) struct MissingLabel = "missing" of Missing,
    /// The store did not say.
    UNKNOWN = "unknown"
}

label! {
    /// Thread that made a key agreement.
    pub enum AgreementLabel = "thread" {
        /// The thread that opened the field, when it came to it.
        Request = "request",
        /// An idle crypto thread, ahead of the request.
        IdleThread = "idle_thread",
    }
}

label! {
    /// Origin of the mask of a field.
    pub enum MaskLabel = "by" {
        /// The call's, `mask`.
        Call = "call",
        /// The role's that its caller may see values by.
        Role = "role",
    }
}

label! {
    /// Suite that a field names which did not open.
    pub enum SuiteLabel = "suite" {
        /// HPKE on P-256 in base mode.
        P256 = "p256",
        /// HPKE on secp256k1 in base mode.
        Secp256k1 = "secp256k1",
        /// XAES-256-GCM.
        Xaes = "xaes",
        /// HPKE with ML-KEM-768 and P-256.
        P256MlKem768 = "p256-mlkem768",
        /// HPKE on P-256 in PSK mode.
        P256Psk = "p256-psk",
        /// HPKE on secp256k1 in PSK mode.
        Secp256k1Psk = "secp256k1-psk",
        /// None: it claims to be a string or file in the Evervault format.
        Evervault = "evervault",
        /// None that this program knows.
        Unknown = "unknown",
    }
}

label! {
    /// Outcome of a token in a request.
    pub enum TokenLabel = "outcome" {
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
        /// Found by a value's fingerprint, and of another value: somebody changed the store.
        Mismatched = "mismatched",
    }
}

label! {
    /// Operation of the token store.
    pub enum StoreLabel = "operation" {
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
        /// To write objects.
        WriteObjects = "write_objects",
        /// For objects by id or by terms.
        ReadObjects = "read_objects",
        /// To list, archive or prune objects.
        SweepObjects = "sweep_objects",
    }
}

label! {
    /// Operation that waits for the token store.
    pub enum WaitingLabel = "what" {
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
    /// Outcome of a connection.
    pub enum ConnectionOutcome = "outcome" {
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
    /// Use of a certificate or revocation list.
    pub enum CertificateLabel = "of" {
        /// The server's own, with its intermediates.
        Server = "server",
        /// An authority of callers.
        ClientCa = "client_ca",
        /// A list of revoked callers.
        ClientCrl = "client_crl",
        /// An authority of operators, where they have one of their own.
        ControlClientCa = "control_client_ca",
        /// A list of revoked operators, where they have one of their own.
        ControlClientCrl = "control_client_crl",
    }
}

label! {
    /// Outcome of a reload of certificate files.
    pub enum ReloadLabel = "outcome" {
        /// They are in service.
        Loaded = "loaded",
        /// They do not load; what was in service stays.
        Refused = "refused",
    }
}

label! {
    /// Why a certificate is not accepted any more on a connection that it opened.
    pub enum ExpulsionLabel = "reason" {
        /// A list names it.
        Revoked = "revoked",
        /// It is over.
        Expired = "expired",
        /// No authority vouches for it, or a list that could tell is missing.
        Untrusted = "untrusted",
    }
}

label! {
    /// Why a call was stopped.
    pub enum CancelReason = "reason" {
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
    pub enum ClassLabel = "class" {
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
    pub enum RefusalReason = "reason" {
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
        /// Its caller's role grants so many fields by the hour.
        Hourly = "hourly",
    }
}

label! {
    /// Outcome of a cache lookup.
    pub enum LookupLabel = "outcome" {
        /// It was there.
        Hit = "hit",
        /// It had to be made.
        Miss = "miss",
    }
}

label! {
    /// State of a connection to the database.
    pub enum LinkLabel = "state" {
        /// In use, or ready to be.
        Up = "up",
        /// Being made again.
        Down = "down",
    }
}

impl From<sealwire_store::Kind> for StoreLabel {
    fn from(kind: sealwire_store::Kind) -> Self {
        use sealwire_store::Kind;
        match kind {
            Kind::Write => Self::Write,
            Kind::WriteObjects => Self::WriteObjects,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_stand_at_their_own_index() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(all: &[T], index: impl Fn(T) -> usize) {
            for (position, value) in all.iter().enumerate() {
                assert_eq!(index(*value), position, "{value:?}");
            }
        }
        check(&MethodLabel::ALL, MethodLabel::index);
        check(&CallCode::ALL, CallCode::index);
        check(&AgreementLabel::ALL, |v| v as usize);
        check(&MaskLabel::ALL, |v| v as usize);
        check(&SuiteLabel::ALL, |v| v as usize);
        check(&TokenLabel::ALL, |v| v as usize);
        check(&StoreLabel::ALL, |v| v as usize);
        check(&WaitingLabel::ALL, |v| v as usize);
        check(&ConnectionOutcome::ALL, |v| v as usize);
        check(&CancelReason::ALL, |v| v as usize);
        check(&CertificateLabel::ALL, |v| v as usize);
        check(&ReloadLabel::ALL, |v| v as usize);
        check(&ExpulsionLabel::ALL, |v| v as usize);
        check(&ClassLabel::ALL, |v| v as usize);
        check(&RefusalReason::ALL, |v| v as usize);
        check(&LookupLabel::ALL, |v| v as usize);
        check(&LinkLabel::ALL, |v| v as usize);
    }

    #[test]
    fn classes_and_reasons_are_those_of_the_scheduler() {
        assert_eq!(
            ClassLabel::ALL.len(),
            sealwire_schedule::Class::all().count()
        );
        let reasons = sealwire_schedule::Reason::ALL.map(RefusalReason::from);
        assert_eq!(reasons, RefusalReason::ALL[..reasons.len()]);
        assert_eq!(
            RefusalReason::ALL.map(RefusalReason::as_str),
            sealwire_wire::OverloadReason::ALL.map(|r| r.name())
        );
    }

    #[test]
    fn what_is_not_of_the_wire_has_a_name_of_its_own() {
        for (label, text) in [
            (MethodLabel::UNKNOWN.as_str(), "unknown"),
            (CallCode::OK.as_str(), "ok"),
        ] {
            assert_eq!(label, text);
        }
        assert!(
            MethodLabel::ALL
                .map(MethodLabel::as_str)
                .iter()
                .filter(|text| **text == "unknown")
                .count()
                == 1
        );
        assert!(
            CallCode::ALL
                .map(CallCode::as_str)
                .iter()
                .filter(|text| **text == "ok")
                .count()
                == 1
        );
    }
}
