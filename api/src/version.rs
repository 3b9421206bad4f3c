//! Kubernetes versions, and the changes between them that are allowed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Minor versions that a kubelet may be older than its API server.
pub const KUBELET_MINORS_BEHIND: u16 = 3;

/// The text is not a Kubernetes version.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a Kubernetes version such as v1.35.4")]
pub struct VersionError(String);

/// A released Kubernetes version, `v<major>.<minor>.<patch>`. The `v` is optional in input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubernetesVersion {
    /// Major version; 1 for all releases so far.
    pub major: u16,
    /// Minor version: the unit of the version-skew policy.
    pub minor: u16,
    /// Patch version.
    pub patch: u16,
}

impl KubernetesVersion {
    /// Whether a running control plane may change from `self` to `to`. Within a minor version both
    /// directions are allowed, so that a failed upgrade can be undone. Otherwise it may move up one
    /// minor version at a time, and never down.
    ///
    /// The rule follows <https://kubernetes.io/releases/version-skew-policy/>; the CRD repeats it
    /// in CEL.
    pub fn may_change_to(self, to: Self) -> bool {
        self.major == to.major && (to.minor == self.minor || to.minor == self.minor + 1)
    }

    /// Whether a kubelet of this version may join an API server of version `api`. It must not be
    /// newer, and at most three minor versions older.
    /// <https://kubernetes.io/releases/version-skew-policy/>
    pub fn may_join(self, api: Self) -> bool {
        self.major == api.major && self.minor <= api.minor && api.minor - self.minor <= KUBELET_MINORS_BEHIND
    }

    /// Parses the version that a program reports, such as `v1.35.4`. A vendor's build has a suffix
    /// after `+` or `-`, which is ignored.
    pub fn parse_build(said: &str) -> Result<Self, VersionError> {
        said.split(['+', '-']).next().unwrap_or_default().parse()
    }
}

impl TryFrom<String> for KubernetesVersion {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.to_string()
    }
}

impl FromStr for KubernetesVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || VersionError(text.to_owned());
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.').map(|part| {
            let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            if plain {
                part.parse::<u16>().map_err(|_| wrong())
            } else {
                Err(wrong())
            }
        });
        let mut next = || parts.next().unwrap_or_else(|| Err(wrong()));
        let version = Self {
            major: next()?,
            minor: next()?,
            patch: next()?,
        };
        if parts.next().is_some() {
            Err(wrong())
        } else {
            Ok(version)
        }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_with_and_without_v() {
        for text in ["v1.35.4", "1.35.4"] {
            assert_eq!(text.parse::<KubernetesVersion>().unwrap().to_string(), "v1.35.4");
        }
        for text in [
            "",
            "v1.35",
            "1.35.4.1",
            "1.35.x",
            "1.35.4-rc.1",
            "v1..4",
            "+1.35.4",
            "1.99999.0",
        ] {
            assert!(text.parse::<KubernetesVersion>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn changes_follow_the_skew_policy() {
        for (from, to, allowed) in [
            ("v1.35.4", "v1.35.5", true),
            ("v1.35.5", "v1.35.4", true),
            ("v1.35.4", "v1.36.0", true),
            ("v1.35.4", "v1.37.0", false),
            ("v1.35.4", "v1.34.9", false),
            ("v1.35.4", "v2.35.4", false),
        ] {
            let (from, to): (KubernetesVersion, KubernetesVersion) = (from.parse().unwrap(), to.parse().unwrap());
            assert_eq!(from.may_change_to(to), allowed, "{from} to {to}");
        }
    }

    #[test]
    fn kubelets_follow_the_skew_policy() {
        for (kubelet, api, may) in [
            ("v1.35.4", "v1.35.4", true),
            ("v1.35.9", "v1.35.4", true),
            ("v1.36.0", "v1.35.4", false),
            ("v1.32.0", "v1.35.4", true),
            ("v1.31.9", "v1.35.4", false),
            ("v2.35.4", "v1.35.4", false),
            ("v0.35.4", "v1.35.4", false),
        ] {
            let (kubelet, api): (KubernetesVersion, KubernetesVersion) =
                (kubelet.parse().unwrap(), api.parse().unwrap());
            assert_eq!(kubelet.may_join(api), may, "{kubelet} of {api}");
        }
    }

    #[test]
    fn a_vendors_build_is_a_version() {
        for said in ["v1.35.4", "v1.35.4+k0s.0", "v1.35.4-eks-1"] {
            assert_eq!(KubernetesVersion::parse_build(said).unwrap().to_string(), "v1.35.4");
        }
        assert!(KubernetesVersion::parse_build("+v1.35.4").is_err());
    }
}
