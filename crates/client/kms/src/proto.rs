//! Messages of the service `v2.KeyManagementService`.
//!
//! Written by hand, because the service has only three methods with small messages. The field
//! numbers are those of `k8s.io/kms/apis/v2/api.proto` of Kubernetes 1.34. Annotations (field 4 of
//! `DecryptRequest`, field 3 of `EncryptResponse`) are left out: this plugin writes none, and skips
//! those of a request.
//!
//! `Debug` shows only names, because the messages contain keys.

use prost::Message;

/// Path of the method that reports health and the current key.
pub const STATUS: &str = "/v2.KeyManagementService/Status";
/// Path of the method that encrypts a data key.
pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
/// Path of the method that decrypts a data key.
pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";
/// Prefix of the paths of KMS v1, which this plugin does not serve.
pub const VERSION_1: &str = "/v1beta1.KeyManagementService/";

/// Longest ciphertext that the API server accepts, in bytes.
pub const CIPHERTEXT_BYTES_MAX: usize = 1_024;
/// Longest key id that the API server accepts, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 1_024;

/// Parameters of `Status`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct StatusRequest {}

/// Response of `Status`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct StatusResponse {
    /// Version of the service, `v2`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// `ok`, or the reason why the plugin cannot work.
    #[prost(string, tag = "2")]
    pub healthz: String,
    /// Id of the key with which `Encrypt` encrypts now. Empty if no engine responds.
    #[prost(string, tag = "3")]
    pub key_id: String,
}

/// Parameters of `Encrypt`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct EncryptRequest {
    /// The data key.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    /// Id of the request, which the API server logs.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// Response of `Encrypt`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct EncryptResponse {
    /// The encrypted data key, a binary envelope.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// Id of the key that encrypted it.
    #[prost(string, tag = "2")]
    pub key_id: String,
}

/// Parameters of `Decrypt`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct DecryptRequest {
    /// The encrypted data key.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// Id of the request, which the API server logs.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Id of the key that `Encrypt` returned with the ciphertext.
    #[prost(string, tag = "3")]
    pub key_id: String,
}

/// Response of `Decrypt`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct DecryptResponse {
    /// The data key.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

macro_rules! debug_by_name {
    ($($name:ident),+) => {
        $(impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        })+
    };
}

debug_by_name!(
    StatusRequest,
    StatusResponse,
    EncryptRequest,
    EncryptResponse,
    DecryptRequest,
    DecryptResponse
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_field_numbers_of_the_api() {
        let decrypt = DecryptRequest {
            ciphertext: b"c".to_vec(),
            uid: "u".into(),
            key_id: "k".into(),
        };
        assert_eq!(decrypt.encode_to_vec(), b"\x0a\x01c\x12\x01u\x1a\x01k");
        // An annotation, field 4, is skipped.
        let annotated = b"\x0a\x01c\x12\x01u\x1a\x01k\x22\x06\x0a\x01a\x12\x01b";
        assert_eq!(DecryptRequest::decode(&annotated[..]), Ok(decrypt));

        let encrypted = EncryptResponse {
            ciphertext: b"c".to_vec(),
            key_id: "k".into(),
        };
        assert_eq!(encrypted.encode_to_vec(), b"\x0a\x01c\x12\x01k");
        let status = StatusResponse {
            version: "v2".into(),
            healthz: "ok".into(),
            key_id: "k".into(),
        };
        assert_eq!(status.encode_to_vec(), b"\x0a\x02v2\x12\x02ok\x1a\x01k");
    }

    #[test]
    fn debug_shows_no_key() {
        let request = EncryptRequest {
            plaintext: b"canary".to_vec(),
            uid: "canary".into(),
        };
        assert_eq!(format!("{request:?}"), "EncryptRequest");
    }
}
