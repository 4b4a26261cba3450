//! The closed sets of label values. A value that a client can choose must not become a label.

use sealwire_access::Missing;
use sealwire_service::label;
use sealwire_service::metrics::Labels;
use sealwire_wire::{ErrorCode, Method};

/// Declares a label whose values are a closed set of the wire protocol and one more value.
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
                let mut all = [Self(None); $of::ALL.len() + 1];
                let mut index = 0;
                while index < $of::ALL.len() {
                    all[index] = Self(Some($of::ALL[index]));
                    index += 1;
                }
                all
            };

            /// Returns the position in [`Self::ALL`].
            $vis const fn index(self) -> usize {
                match self.0 {
                    Some(value) => value as usize,
                    None => $of::ALL.len(),
                }
            }

            /// Returns the text of the label.
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
    /// A method that the engine does not have. All such methods share one value, because a client
    /// can send any number of names.
    UNKNOWN = "unknown"
}

wire_label! {
    /// Outcome of a request.
    pub struct ResponseCode = "code" of ErrorCode,
    /// The request had a result.
    OK = "ok"
}

wire_label! {
    /// Role or permission that a denied request lacked.
    pub(super) struct MissingLabel = "missing" of Missing,
    /// The store did not respond.
    UNKNOWN = "unknown"
}

label! {
    /// Thread that made a key agreement.
    pub enum AgreementLabel = "thread" {
        /// The thread that processes the request, when it opens the field.
        Request = "request",
        /// An idle crypto thread, ahead of the request.
        IdleThread = "idle_thread",
    }
}

label! {
    /// Origin of the mask of a field.
    pub enum MaskLabel = "by" {
        /// The request's parameter `mask`.
        Call = "call",
        /// The role by which the principal can see values.
        Role = "role",
    }
}

label! {
    /// Suite that is named by a field that did not open.
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
        /// The field has the form of a string or file in the Evervault format, so it has no suite.
        Evervault = "evervault",
        /// A suite that this program does not know.
        Unknown = "unknown",
    }
}

label! {
    /// Outcome of a token in a request.
    pub enum TokenLabel = "outcome" {
        /// The token was made and stored.
        Made = "made",
        /// A token existed already for the same value or the same request.
        Reused = "reused",
        /// The token was made again, because another token had the same id.
        Taken = "taken",
        /// Found for `detokenize`.
        Found = "found",
        /// Not found for `detokenize`.
        Missing = "missing",
        /// The store returned a token for the fingerprint of a value, but the token belongs to
        /// another value: the store was altered.
        Mismatched = "mismatched",
    }
}

label! {
    /// Operation of the token store.
    pub enum StoreLabel = "operation" {
        /// Writes new rows.
        Write = "write",
        /// Reads rows by their tokens.
        Get = "get",
        /// Reads rows by the fingerprints of values.
        Find = "find",
        /// Removes rows, or sets when they expire.
        Change = "change",
        /// Lists, archives or prunes rows.
        Sweep = "sweep",
        /// Writes objects.
        WriteObjects = "write_objects",
        /// Reads objects by id or by terms.
        ReadObjects = "read_objects",
        /// Lists, archives or prunes objects.
        SweepObjects = "sweep_objects",
    }
}

label! {
    /// Unit of the work that waits for the token store.
    pub enum WaitingLabel = "what" {
        /// Rows to be written.
        Rows = "rows",
        /// Bytes of the rows to be written.
        Bytes = "bytes",
        /// Keys to be looked up.
        Keys = "keys",
        /// Requests whose writes the write throttle delays.
        Writers = "writers",
    }
}

label! {
    /// Outcome of a connection.
    pub enum ConnectionOutcome = "outcome" {
        /// The handshake succeeded, and the connection is open.
        Accepted = "accepted",
        /// No permit for a connection was left: `limits.connections_max` on the data and HTTP
        /// listeners together, 64 on the control listener.
        Refused = "refused",
        /// The principal has the maximum number of connections
        /// (`limits.connections_per_principal_max`; the control listener has its own limit).
        PrincipalRefused = "principal_refused",
        /// The handshake failed: no certificate, a certificate of an unknown issuer, or not TLS. Or
        /// the client certificate was no longer accepted when the handshake ended.
        TlsFailed = "tls_failed",
        /// The handshake took longer than `limits.handshake_ms_max`.
        TlsTimeout = "tls_timeout",
        /// The verified certificate contains no usable name.
        Nameless = "nameless",
        /// The client has no certificate, and its address has too many connections, or too many
        /// connections have sent no valid token yet.
        OriginRefused = "origin_refused",
    }
}

label! {
    /// Outcome of the check of a bearer token.
    pub enum BearerOutcome = "outcome" {
        /// The token is valid, and its signature was checked.
        Verified = "verified",
        /// The token was verified a short time ago.
        Cached = "cached",
        /// The token is missing, malformed or not valid.
        Rejected = "rejected",
        /// The keys of the issuer are not available.
        Unavailable = "unavailable",
        /// Not checked, because too many other tokens of the same address were not valid.
        Limited = "limited",
    }
}

label! {
    /// Use of a certificate or revocation list.
    pub enum CertificateLabel = "of" {
        /// Server certificate, with its intermediates.
        Server = "server",
        /// Authority for client certificates.
        ClientCa = "client_ca",
        /// Revocation list for client certificates.
        ClientCrl = "client_crl",
        /// Authority for operators' certificates, if it is separate.
        ControlClientCa = "control_client_ca",
        /// Revocation list for operators' certificates, if their authority is separate.
        ControlClientCrl = "control_client_crl",
    }
}

label! {
    /// Outcome of a reload of certificate files.
    pub enum ReloadLabel = "outcome" {
        /// The files are in use.
        Loaded = "loaded",
        /// The files do not load, so the previous ones stay in use.
        Refused = "refused",
    }
}

label! {
    /// Reason for which the client certificate of an open connection is no longer accepted.
    pub enum DisconnectLabel = "reason" {
        /// A revocation list names the certificate.
        Revoked = "revoked",
        /// The certificate has expired.
        Expired = "expired",
        /// No configured authority issued the certificate, or its revocation list is missing.
        Untrusted = "untrusted",
    }
}

label! {
    /// Reason for which a request was stopped.
    pub enum CancelReason = "reason" {
        /// The client cancelled the request.
        Cancel = "cancel",
        /// The request's deadline passed.
        Deadline = "deadline",
        /// The request's connection was closed.
        Disconnect = "disconnect",
    }
}

label! {
    /// Size class of a request: the upper bound of its estimated work.
    pub enum ClassLabel = "class" {
        /// Up to 0.1 ms, which is one slice.
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
        /// More than 410 ms.
        Above = "above",
    }
}

label! {
    /// Reason for which a request was rejected as overloaded.
    pub enum RejectionLabel = "reason" {
        /// The principal has too much work queued already.
        Backlog = "backlog",
        /// The request would not finish before its deadline.
        Deadline = "deadline",
        /// The principal sends more than its share, and this size class has used up its share.
        Proportion = "proportion",
        /// The principal uses its whole memory quota.
        Memory = "memory",
        /// The token store cannot keep up with its writes.
        Storage = "storage",
        /// The hourly field limit of the principal's role is reached.
        Hourly = "hourly",
    }
}

label! {
    /// Status of an HTTP request that was rejected before the engine read it.
    pub enum HttpStatusLabel = "status" {
        /// The head or the body is invalid.
        BadRequest = "400",
        /// The request has no valid token.
        Unauthenticated = "401",
        /// The request is one of a web page.
        Forbidden = "403",
        /// No method has the path.
        NotFound = "404",
        /// The path has another verb.
        WrongVerb = "405",
        /// The body arrived too slowly.
        Timeout = "408",
        /// The body is too long.
        TooLarge = "413",
        /// The body has another content type.
        ContentType = "415",
        /// The request expects something unknown.
        Expectation = "417",
        /// No memory is left, or too many requests had no valid token.
        NoMemory = "429",
        /// The head is too long.
        HeadTooLarge = "431",
        /// The token cannot be checked now.
        Unavailable = "503",
        /// Another status.
        Other = "other",
    }
}

impl HttpStatusLabel {
    /// Returns the label of a status.
    pub fn of_status(status: u16) -> Self {
        let text = status.to_string();
        let known = Self::ALL.into_iter().find(|label| label.as_str() == text);
        known.unwrap_or(Self::Other)
    }
}

label! {
    /// Outcome of a cache lookup.
    pub enum LookupLabel = "outcome" {
        /// The cache had the entry.
        Hit = "hit",
        /// The entry had to be made.
        Miss = "miss",
    }
}

label! {
    /// State of a connection to the database.
    pub enum ConnectionStateLabel = "state" {
        /// In use, or ready for use.
        Up = "up",
        /// Disconnected; the engine reconnects.
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

impl From<sealwire_schedule::RejectionReason> for RejectionLabel {
    fn from(reason: sealwire_schedule::RejectionReason) -> Self {
        use sealwire_schedule::RejectionReason;
        match reason {
            RejectionReason::Backlog => Self::Backlog,
            RejectionReason::Deadline => Self::Deadline,
            RejectionReason::Proportion => Self::Proportion,
            RejectionReason::Memory => Self::Memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_have_their_own_index() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(all: &[T], index: impl Fn(T) -> usize) {
            for (position, value) in all.iter().enumerate() {
                assert_eq!(index(*value), position, "{value:?}");
            }
        }
        check(&MethodLabel::ALL, MethodLabel::index);
        check(&ResponseCode::ALL, ResponseCode::index);
        check(&AgreementLabel::ALL, |v| v as usize);
        check(&MaskLabel::ALL, |v| v as usize);
        check(&SuiteLabel::ALL, |v| v as usize);
        check(&TokenLabel::ALL, |v| v as usize);
        check(&StoreLabel::ALL, |v| v as usize);
        check(&WaitingLabel::ALL, |v| v as usize);
        check(&ConnectionOutcome::ALL, |v| v as usize);
        check(&BearerOutcome::ALL, |v| v as usize);
        check(&CancelReason::ALL, |v| v as usize);
        check(&CertificateLabel::ALL, |v| v as usize);
        check(&ReloadLabel::ALL, |v| v as usize);
        check(&DisconnectLabel::ALL, |v| v as usize);
        check(&ClassLabel::ALL, |v| v as usize);
        check(&RejectionLabel::ALL, |v| v as usize);
        check(&LookupLabel::ALL, |v| v as usize);
        check(&ConnectionStateLabel::ALL, |v| v as usize);
    }

    #[test]
    fn classes_and_reasons_match_the_scheduler() {
        assert_eq!(
            ClassLabel::ALL.len(),
            sealwire_schedule::Class::all().count()
        );
        let reasons = sealwire_schedule::RejectionReason::ALL.map(RejectionLabel::from);
        assert_eq!(reasons, RejectionLabel::ALL[..reasons.len()]);
        assert_eq!(
            RejectionLabel::ALL.map(RejectionLabel::as_str),
            sealwire_wire::OverloadReason::ALL.map(|r| r.name())
        );
    }

    #[test]
    fn labels_outside_the_wire_have_distinct_names() {
        for (label, text) in [
            (MethodLabel::UNKNOWN.as_str(), "unknown"),
            (ResponseCode::OK.as_str(), "ok"),
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
            ResponseCode::ALL
                .map(ResponseCode::as_str)
                .iter()
                .filter(|text| **text == "ok")
                .count()
                == 1
        );
    }
}
