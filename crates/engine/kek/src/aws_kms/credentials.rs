//! Credentials of AWS: the environment, a credentials file, or a web identity.

use std::env;
use std::fmt::Write as _;
use std::path::Path;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, future};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use zeroize::Zeroizing;

use super::{ConnectorFailure, SdkConnector, response_error};
use crate::secret_file::{read_line, read_secret_file};
use crate::{AwsCredentials, ProviderError};

/// Reads credentials for the SDK.
#[derive(Debug)]
pub(super) struct CredentialsSource {
    pub(super) credentials: AwsCredentials,
    pub(super) region: String,
    pub(super) connector: SdkConnector,
}

impl ProvideCredentials for CredentialsSource {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load_credentials())
    }
}

impl CredentialsSource {
    async fn load_credentials(&self) -> provider::Result {
        let found = match &self.credentials {
            AwsCredentials::Environment => {
                read_environment(|name| env::var(name).ok().map(Zeroizing::new))
            }
            AwsCredentials::File { path, profile } => {
                let path = path.clone();
                let profile = profile.clone();
                let place = path.display().to_string();
                self.connector
                    .files
                    .reader
                    .run(&place, move || read_profile(&path, &profile))
                    .await
            }
            AwsCredentials::WebIdentity {
                role_arn,
                token_file,
                sts_endpoint_url,
            } => {
                self.web_identity(role_arn, token_file, sts_endpoint_url.as_deref())
                    .await
            }
        };

        found.map_err(|error| CredentialsError::provider_error(ConnectorFailure(error)))
    }

    /// Exchanges a token for credentials by `AssumeRoleWithWebIdentity`, a request without a
    /// signature.
    async fn web_identity(
        &self,
        role_arn: &str,
        token_file: &Path,
        endpoint: Option<&str>,
    ) -> Result<Credentials, ProviderError> {
        let file = token_file.to_owned();
        let place = file.display().to_string();
        let token = self
            .connector
            .files
            .reader
            .run(&place, move || read_line(&file))
            .await?;
        let form = encode_form(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role_arn),
            ("RoleSessionName", "sealwire"),
            ("WebIdentityToken", &token),
        ]);
        let end = if self.region.starts_with("cn-") {
            ".cn"
        } else {
            ""
        };

        let endpoint = endpoint.map_or_else(
            || format!("https://sts.{}.amazonaws.com{end}", self.region),
            |endpoint| endpoint.trim_end_matches('/').to_owned(),
        );
        let request = Request::post(format!("{endpoint}/"))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from_owner(form)))
            .map_err(|_| {
                ProviderError::Settings("awskms.sts_endpoint_url is not a valid URL".into())
            })?;
        let response = self.connector.send(request).await;
        let response = response.map_err(|error| error.into_provider_error("awskms login"))?;
        let text = std::str::from_utf8(&response.body).unwrap_or_default();
        if !response.status.is_success() {
            return Err(response_error(
                "login",
                response.status.as_u16(),
                find_element(text, "Code"),
            ));
        }

        let id = required_element(text, "AccessKeyId")?;
        let secret = required_element(text, "SecretAccessKey")?;
        let session_token = required_element(text, "SessionToken")?;
        Ok(sdk_credentials(id, secret, Some(session_token)))
    }
}

fn sdk_credentials(id: &str, secret: &str, session_token: Option<&str>) -> Credentials {
    Credentials::new(
        id,
        secret,
        session_token.map(str::to_owned),
        None,
        "sealwire",
    )
}

/// Reads credentials from environment variables.
fn read_environment(
    variable: impl Fn(&str) -> Option<Zeroizing<String>>,
) -> Result<Credentials, ProviderError> {
    let id = required_variable(&variable, "AWS_ACCESS_KEY_ID")?;
    let secret = required_variable(&variable, "AWS_SECRET_ACCESS_KEY")?;
    let session_token = variable("AWS_SESSION_TOKEN").filter(|value| !value.is_empty());
    Ok(sdk_credentials(
        &id,
        &secret,
        session_token.as_ref().map(|token| token.as_str()),
    ))
}

fn required_variable(
    variable: impl Fn(&str) -> Option<Zeroizing<String>>,
    name: &str,
) -> Result<Zeroizing<String>, ProviderError> {
    variable(name)
        .filter(|value| !value.is_empty())
        .ok_or_else(|| ProviderError::Settings(format!("awskms: {name} is not set")))
}

fn file_error(path: &Path, text: &str) -> ProviderError {
    ProviderError::Settings(format!("{}: {text}", path.display()))
}

/// Reads a profile of a credentials file. Blocks.
fn read_profile(path: &Path, profile: &str) -> Result<Credentials, ProviderError> {
    let bytes = read_secret_file(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| file_error(path, "is not UTF-8"))?;
    let mut found = [None; 3];
    let mut in_profile = false;
    let mut has_profile = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            in_profile = name.trim() == profile;
            has_profile |= in_profile;
        } else if in_profile
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            let names = [
                "aws_access_key_id",
                "aws_secret_access_key",
                "aws_session_token",
            ];
            if let Some(index) = names
                .iter()
                .position(|name| key.trim().eq_ignore_ascii_case(name))
            {
                found[index] = Some(value.trim()).filter(|value| !value.is_empty());
            }
        }
    }

    match found {
        [Some(id), Some(secret), session_token] => Ok(sdk_credentials(id, secret, session_token)),
        _ if has_profile => Err(file_error(
            path,
            "the profile lacks aws_access_key_id or aws_secret_access_key",
        )),
        _ => Err(file_error(path, "does not have the profile")),
    }
}

/// Encodes a form. The bytes are wiped on drop.
fn encode_form(fields: &[(&str, &str)]) -> Zeroizing<Vec<u8>> {
    // An encoded byte needs at most three bytes. A single allocation leaves no copies in freed
    // memory.
    let capacity = fields
        .iter()
        .map(|(name, value)| name.len() + 3 * value.len() + 2)
        .sum();
    let mut text = Zeroizing::new(String::with_capacity(capacity));
    for (name, value) in fields {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                text.push(byte.into());
            } else {
                // Writing to memory cannot fail.
                let _ = write!(*text, "%{byte:02X}");
            }
        }
    }

    Zeroizing::new(std::mem::take(&mut *text).into_bytes())
}

fn required_element<'a>(xml: &'a str, name: &str) -> Result<&'a str, ProviderError> {
    find_element(xml, name).ok_or_else(|| {
        ProviderError::WrongAnswer(
            "awskms login: the response does not have the form that the STS API specifies".into(),
        )
    })
}

/// Returns the text of the first XML element with a name. The elements that are read never contain
/// escaped characters.
fn find_element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let text = text.trim();
    (!text.is_empty() && !text.contains(['<', '&'])).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn parts(credentials: &Credentials) -> (String, String, Option<String>) {
        let token = credentials.session_token().map(str::to_owned);
        (
            credentials.access_key_id().into(),
            credentials.secret_access_key().into(),
            token,
        )
    }

    #[test]
    fn environments_need_an_id_and_a_secret() {
        for (variables, expected) in [
            (
                &[
                    ("AWS_ACCESS_KEY_ID", "id"),
                    ("AWS_SECRET_ACCESS_KEY", "hunter2"),
                ][..],
                Ok(None),
            ),
            (
                &[
                    ("AWS_ACCESS_KEY_ID", "id"),
                    ("AWS_SECRET_ACCESS_KEY", "hunter2"),
                    ("AWS_SESSION_TOKEN", "token"),
                ],
                Ok(Some("token")),
            ),
            (
                &[
                    ("AWS_ACCESS_KEY_ID", "id"),
                    ("AWS_SECRET_ACCESS_KEY", "hunter2"),
                    ("AWS_SESSION_TOKEN", ""),
                ],
                Ok(None),
            ),
            (
                &[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "")],
                Err("AWS_SECRET_ACCESS_KEY"),
            ),
            (
                &[("AWS_SECRET_ACCESS_KEY", "hunter2")],
                Err("AWS_ACCESS_KEY_ID"),
            ),
            (&[], Err("AWS_ACCESS_KEY_ID")),
        ] {
            let look = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| Zeroizing::new((*value).to_owned()))
            };
            match (read_environment(look), expected) {
                (Ok(found), Ok(token)) => {
                    assert_eq!(
                        parts(&found),
                        ("id".into(), "hunter2".into(), token.map(str::to_owned))
                    );
                    assert!(!format!("{found:?}").contains("hunter2"));
                }
                (Err(error), Err(name)) => {
                    let text = error.to_string();
                    assert!(text.contains(name) && !text.contains("hunter2"), "{text}");
                }
                (found, _) => panic!("{variables:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn files_have_profiles() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let file = "# [ops]\n[default]\naws_access_key_id = id\naws_secret_access_key=hunter2\n\n[ops]\r\n\
            ; aws_session_token = no\r\nAWS_ACCESS_KEY_ID = ops\r\naws_secret_access_key = a=b/c+d==\r\n\
            aws_session_token = token\r\nregion = eu-central-1\n[half]\naws_access_key_id = hunter2\n\
            [empty]\naws_access_key_id =\naws_secret_access_key = hunter2\n";
        fs::write(&path, file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for (profile, expected) in [
            ("default", Ok(("id", "hunter2", None))),
            ("ops", Ok(("ops", "a=b/c+d==", Some("token")))),
            ("half", Err("lacks")),
            ("empty", Err("lacks")),
            ("other", Err("does not have")),
        ] {
            match (read_profile(&path, profile), expected) {
                (Ok(found), Ok((id, secret, token))) => {
                    assert_eq!(
                        parts(&found),
                        (id.into(), secret.into(), token.map(str::to_owned))
                    );
                }
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(text.contains(part) && !text.contains("hunter2"), "{text}");
                }
                (found, _) => panic!("{profile}: {found:?}"),
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            read_profile(&path, "default")
                .unwrap_err()
                .to_string()
                .contains("mode 644")
        );
    }

    #[test]
    fn forms_and_elements() {
        let encoded = encode_form(&[("A", "a b"), ("B", "arn:aws/\u{e9}~")]);
        assert_eq!(
            std::str::from_utf8(&encoded).unwrap(),
            "A=a%20b&B=arn%3Aaws%2F%C3%A9~"
        );
        for (xml, expected) in [
            ("<a><Code>AccessDenied</Code></a>", Some("AccessDenied")),
            ("<Code> x </Code>", Some("x")),
            ("<Code></Code>", None),
            ("<Code><x>1</x></Code>", None),
            ("<Code>a&amp;b</Code>", None),
            ("<Code>x", None),
            ("", None),
        ] {
            assert_eq!(find_element(xml, "Code"), expected, "{xml}");
        }
    }
}
