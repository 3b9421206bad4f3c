//! Errors of requests to tenants' APIs.

use http_body_util::LengthLimitError;

/// A request to a tenant's API failed.
#[derive(Debug, thiserror::Error)]
pub enum TenantApiError {
    /// The address or the credentials are unusable.
    #[error("building a client of the tenant's API")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A request failed.
    #[error("requesting {what} from the tenant's API")]
    Request {
        /// Resource that was requested.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server runs, but one of its parts is not ready.
    #[error("the API server is not ready yet")]
    NotReady,
    /// The controller manager has not created the ServiceAccount that pods need.
    #[error("waiting for the controller manager to create ServiceAccount default/default")]
    NoControllers,
    /// The API server has not created the namespace that it creates at its first start.
    #[error("waiting for the API server to create namespace default")]
    NoNamespace,
    /// A page has more entries than requested.
    #[error("the tenant's API returned more than {most} objects on one page of {what}")]
    TooMany {
        /// Resource that was listed.
        what: &'static str,
        /// Maximum number of entries.
        most: usize,
    },
    /// A watch ended.
    #[error("a watch of the tenant's API ended")]
    Ended,
    /// A request timed out.
    #[error("the tenant's API did not answer in time")]
    Limit,
}

impl TenantApiError {
    /// Returns whether there was no answer at all: the control plane may just be stopping.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Limit => true,
            Self::Request { source, .. } => {
                matches!(**source, kube::Error::Service(_) | kube::Error::HyperError(_)) && !is_too_long(source)
            }
            _ => false,
        }
    }

    /// Returns whether an object was refused because of its content.
    pub(super) fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// Returns whether the object does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.code() == Some(404)
    }

    /// Returns whether the intended object is gone. Another object may have its name.
    pub(crate) fn is_of_another(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }

    /// Status code of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns whether an answer arrived that exceeds the size limit.
fn is_too_long(error: &kube::Error) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.any(|cause| cause.is::<LengthLimitError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_has_answered() {
        let asking = |source: kube::Error| TenantApiError::Request {
            what: "a token",
            source: Box::new(source),
        };
        let refused = kube::core::Status::failure("no", "Forbidden").with_code(403).boxed();
        let broken = kube::Error::Service("connection refused".into());
        let odd = kube::Error::SerdeError(serde_json::from_str::<u8>("?").unwrap_err());
        for (rule, error, expected) in [
            ("nobody is there", asking(broken), true),
            ("it takes too long", TenantApiError::Limit, true),
            ("its answer cannot be read", asking(odd), false),
            ("it is refused", asking(kube::Error::Api(refused)), false),
            ("it is not ready", TenantApiError::NotReady, false),
        ] {
            assert_eq!(error.is_unanswered(), expected, "{rule}");
        }
    }
}
