//! Conversion of module errors into provider errors.

use cryptoki::error::{Error, RvError};

use crate::ProviderError;

/// The reason why an operation failed.
#[derive(Debug)]
pub(super) enum ModuleFailure {
    /// The module returned an error.
    Module(Error),
    /// This crate found the error.
    Provider(ProviderError),
}

impl From<Error> for ModuleFailure {
    fn from(error: Error) -> Self {
        Self::Module(error)
    }
}

impl From<ProviderError> for ModuleFailure {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

impl ModuleFailure {
    /// Converts the failure. `place` names the module or token.
    pub(super) fn into_provider_error(self, place: &str) -> ProviderError {
        match self {
            Self::Module(error) => provider_error(&error, place),
            Self::Provider(error) => error,
        }
    }

    /// Adds the place to an error that this crate found. [`Self::into_provider_error`] adds it to
    /// errors of the module.
    pub(super) fn with_place(self, place: &str) -> Self {
        match self {
            Self::Module(error) => Self::Module(error),
            Self::Provider(error) => Self::Provider(match error {
                ProviderError::Unavailable(text) => {
                    ProviderError::Unavailable(format!("{place}: {text}"))
                }
                ProviderError::Denied(text) => ProviderError::Denied(format!("{place}: {text}")),
                ProviderError::NotFound(text) => {
                    ProviderError::NotFound(format!("{place}: {text}"))
                }
                ProviderError::DoesNotUnwrap(text) => {
                    ProviderError::DoesNotUnwrap(format!("{place}: {text}"))
                }
                ProviderError::WrongAnswer(text) => {
                    ProviderError::WrongAnswer(format!("{place}: {text}"))
                }
                ProviderError::Settings(text) => {
                    ProviderError::Settings(format!("{place}: {text}"))
                }
                ProviderError::NeedsHolders => ProviderError::NeedsHolders,
            }),
        }
    }

    /// Returns true if the device, session or slot was lost. A login that failed for this reason
    /// did not reach the token.
    pub(super) fn is_lost_transport(&self) -> bool {
        use RvError as Code;
        matches!(
            self.code(),
            Some(
                Code::CryptokiNotInitialized
                    | Code::DeviceRemoved
                    | Code::SessionClosed
                    | Code::SessionHandleInvalid
                    | Code::SlotIdInvalid
                    | Code::TokenNotPresent
            )
        )
    }

    /// Returns true if the session or its login was lost, so that a new session can help.
    pub(super) fn is_lost_session(&self) -> bool {
        use RvError as Code;
        matches!(
            self.code(),
            Some(
                Code::SessionHandleInvalid
                    | Code::SessionClosed
                    | Code::UserNotLoggedIn
                    | Code::CryptokiNotInitialized
                    | Code::DeviceRemoved
                    | Code::TokenNotPresent
                    | Code::KeyHandleInvalid
                    | Code::ObjectHandleInvalid
                    | Code::OperationActive
                    | Code::OperationNotInitialized
            )
        )
    }

    /// Returns true if the token reports that a copy does not decrypt.
    pub(super) fn is_bad_copy(&self) -> bool {
        use RvError as Code;
        matches!(
            self.code(),
            Some(Code::EncryptedDataInvalid | Code::EncryptedDataLenRange | Code::SignatureInvalid)
        )
    }

    /// Returns true if the failure can mean either a bad copy or a broken token.
    pub(super) fn is_ambiguous(&self) -> bool {
        use RvError as Code;
        matches!(
            self.code(),
            Some(
                Code::GeneralError
                    | Code::FunctionFailed
                    | Code::DataInvalid
                    | Code::DataLenRange
                    | Code::ArgumentsBad
                    | Code::MechanismParamInvalid
                    | Code::VendorDefined(_)
                    | Code::UnknownErrorCode(_)
            )
        )
    }

    /// Returns true if the token rejected the PIN.
    pub(super) fn is_wrong_pin(&self) -> bool {
        matches!(
            self.code(),
            Some(RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange)
        )
    }

    pub(super) fn code(&self) -> Option<&RvError> {
        match self {
            Self::Module(Error::Pkcs11(code, _)) => Some(code),
            _ => None,
        }
    }
}

/// Converts an error of the module. The texts contain only names of functions and codes, never
/// arguments.
fn provider_error(error: &Error, place: &str) -> ProviderError {
    use RvError as Code;
    match error {
        Error::Pkcs11(code, function) => {
            let text = format!("{place}: C_{function:?} returned {code:?}");
            match code {
                Code::PinIncorrect
                | Code::PinInvalid
                | Code::PinLenRange
                | Code::PinExpired
                | Code::PinLocked
                | Code::UserPinNotInitialized
                | Code::UserTypeInvalid
                | Code::UserAnotherAlreadyLoggedIn
                | Code::UserTooManyTypes
                | Code::ActionProhibited
                | Code::FunctionRejected
                | Code::KeyFunctionNotPermitted => ProviderError::Denied(text),
                Code::TokenNotPresent | Code::TokenNotRecognized | Code::SlotIdInvalid => {
                    ProviderError::NotFound(text)
                }
                Code::MechanismInvalid
                | Code::MechanismParamInvalid
                | Code::KeyTypeInconsistent
                | Code::KeySizeRange
                | Code::FunctionNotSupported
                | Code::TemplateInconsistent
                | Code::TemplateIncomplete
                | Code::AttributeTypeInvalid
                | Code::AttributeValueInvalid
                | Code::TokenWriteProtected
                | Code::SessionReadOnly
                | Code::NeedToCreateThreads
                | Code::CantLock => ProviderError::Settings(text),
                _ => ProviderError::Unavailable(text),
            }
        }
        Error::LibraryLoading(error) => {
            ProviderError::NotFound(format!("{place}: cannot be loaded: {error}"))
        }
        Error::MissingSymbol(_) | Error::NullFunctionPointer | Error::NotSupported => {
            ProviderError::Settings(format!("{place}: {error}"))
        }
        _ => ProviderError::WrongAnswer(format!("{place}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use cryptoki::context::Function;

    use super::*;

    #[test]
    fn a_login_that_fails_counts_unless_it_did_not_reach_the_token() {
        for (code, lost) in [
            (RvError::DeviceRemoved, true),
            (RvError::SessionHandleInvalid, true),
            (RvError::SlotIdInvalid, true),
            (RvError::TokenNotPresent, true),
            (RvError::PinIncorrect, false),
            (RvError::PinExpired, false),
            (RvError::GeneralError, false),
            (RvError::FunctionFailed, false),
            (RvError::DeviceError, false),
            (RvError::VendorDefined(7), false),
        ] {
            assert_eq!(
                ModuleFailure::from(Error::Pkcs11(code, Function::Login)).is_lost_transport(),
                lost,
                "{code:?}"
            );
        }
    }

    #[test]
    fn codes_become_errors_that_say_what_can_help() {
        let of = |code| {
            ModuleFailure::from(Error::Pkcs11(code, Function::Login))
                .into_provider_error("token `t`")
        };
        let text = |code: &str| format!("token `t`: C_Login returned {code}");
        for (code, expected) in [
            (RvError::PinLocked, ProviderError::Denied(text("PinLocked"))),
            (
                RvError::TokenNotPresent,
                ProviderError::NotFound(text("TokenNotPresent")),
            ),
            (
                RvError::MechanismInvalid,
                ProviderError::Settings(text("MechanismInvalid")),
            ),
            (
                RvError::DeviceError,
                ProviderError::Unavailable(text("DeviceError")),
            ),
            (
                RvError::VendorDefined(0x8000_0001),
                ProviderError::Unavailable(text("VendorDefined(2147483649)")),
            ),
        ] {
            assert_eq!(of(code), expected);
        }
        let other = ModuleFailure::from(Error::InvalidValue).into_provider_error("module m");
        assert!(matches!(other, ProviderError::WrongAnswer(_)), "{other:?}");
        let missing = ModuleFailure::from(Error::MissingSymbol("C_GetFunctionList"))
            .into_provider_error("module m");
        assert!(matches!(missing, ProviderError::Settings(_)), "{missing:?}");
    }
}
