//! Changes of apps and their settings.

use std::time::Duration;

use sealwire_wire::control as wire;

use super::wrapper;
use crate::control::RotateKind;
use crate::{Format, Suite};

wrapper! {
    /// A change of an app, for [`Client::change_app`](crate::Client::change_app).
    ///
    /// A `key` is the id of one key version: 10 hexadecimal digits, or `token-N` for version N of
    /// the token key. Without a key, the operation is about the whole app.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sealwire_client::Client;
    /// use sealwire_client::control::{AppOperation, RotateKind};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// operator.change_app("shop", AppOperation::create()).await?;
    /// let rotated = operator.change_app("shop", AppOperation::rotate(RotateKind::Xaes)).await?;
    /// println!("new key {:?}", rotated.key);
    /// let delay = Duration::from_secs(30 * 86_400);
    /// operator.change_app("shop", AppOperation::delete("0123456789", delay)).await?;
    /// operator.change_app("shop", AppOperation::restore("0123456789")).await?;
    /// # Ok(())
    /// # }
    /// ```
    AppOperation
}

impl<'a> AppOperation<'a> {
    /// Creates the app, with a first key version of each suite, and one for tokens.
    pub fn create() -> Self {
        Self(wire::AppOperation::Create)
    }

    /// Creates the next key version of a kind. New values are then sealed with this version.
    pub fn rotate(kind: RotateKind) -> Self {
        Self(wire::AppOperation::Rotate { kind })
    }

    /// Imports a private key of suite [`Suite::P256`] or [`Suite::Secp256k1`]: PEM without a
    /// password, or 32 bytes in hexadecimal or base64. `Debug` omits the key. If `seals` is true,
    /// the key seals after the import; otherwise it only opens.
    pub fn import(suite: Suite, private_key: &'a str, seals: bool) -> Self {
        Self(wire::AppOperation::Import {
            suite,
            private_key: wire::Secret(private_key),
            seals,
        })
    }

    /// Disables the app or the key version.
    pub fn disable(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Disable { key: key.into() })
    }

    /// Enables the app or the key version.
    pub fn enable(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Enable { key: key.into() })
    }

    /// Disables the app or the key version, and removes it after a delay.
    ///
    /// Range of the delay: 0 to 365 days, rounded up to seconds.
    /// Default of the delay: a week.
    pub fn delete(key: impl Into<Option<&'a str>>, delay: impl Into<Option<Duration>>) -> Self {
        Self(wire::AppOperation::Delete {
            key: key.into(),
            delay_s: delay.into().map(crate::request::seconds),
        })
    }

    /// Cancels the removal of the app or the key version.
    pub fn restore(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Restore { key: key.into() })
    }

    /// Changes settings of the app.
    pub fn set(settings: AppSettings) -> Self {
        Self(wire::AppOperation::Set {
            format: settings.format,
            epoch_ms: settings.epoch_ms,
            write_suite: settings.write_suite,
            read_suites: settings.read_suites,
        })
    }
}

/// New settings of an app. A setting that is not set stays unchanged.
///
/// ```
/// use std::time::Duration;
/// use sealwire_client::Suite;
/// use sealwire_client::control::{AppOperation, AppSettings};
///
/// let settings = AppSettings::new()
///     .write_suite(Suite::Xaes)
///     .read_suites([Suite::Xaes, Suite::P256])
///     .epoch(Duration::from_secs(5));
/// let operation = AppOperation::set(settings);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppSettings {
    format: Option<Format>,
    epoch_ms: Option<u32>,
    write_suite: Option<Suite>,
    read_suites: Option<Vec<Suite>>,
}

impl AppSettings {
    /// Leaves all settings unchanged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the default format of requests: [`Format::Native`] or [`Format::Evervault`].
    ///
    /// Default: unchanged.
    #[must_use]
    pub fn format(mut self, format: impl Into<Option<Format>>) -> Self {
        self.format = format.into();
        self
    }

    /// Sets how long one ephemeral key serves requests with key scope `epoch`, in
    /// milliseconds, rounded up. Zero disables this key scope.
    ///
    /// Range: 0 to 15 s.
    /// Default: unchanged.
    #[must_use]
    pub fn epoch(mut self, time: impl Into<Option<Duration>>) -> Self {
        let milliseconds =
            |time: Duration| u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        self.epoch_ms = time.into().map(milliseconds);
        self
    }

    /// Sets the default suite of requests.
    ///
    /// Default: unchanged.
    #[must_use]
    pub fn write_suite(mut self, suite: impl Into<Option<Suite>>) -> Self {
        self.write_suite = suite.into();
        self
    }

    /// Sets the suites whose envelopes open, and which requests can name.
    ///
    /// Length: 1 to 6.
    /// Default: unchanged.
    #[must_use]
    pub fn read_suites(mut self, suites: impl IntoIterator<Item = Suite>) -> Self {
        self.read_suites = Some(suites.into_iter().collect());
        self
    }
}
