//! The join token that users paste: the data that a worker needs to join, as `yoke1.` and base64url
//! of JSON. Pure.
//!
//! The text contains the CA, so a worker sends the bootstrap token only to the cluster itself. It comes
//! from a user's clipboard, so every part is checked for syntax and length when it is read.

use std::collections::BTreeMap;
use std::net::IpAddr;

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};

use super::node::{Taint, check_labels, check_taints};
use super::program::Program;
use crate::names::is_domain;
use crate::version::KubernetesVersion;

/// Prefix of the text. It identifies the format, should there be another one.
const PREFIX: &str = "yoke1.";
/// Maximum length of the text, in bytes.
const TOKEN_LENGTH_MAX: usize = 64 << 10;
/// Maximum length of a bundle of certificates, in bytes.
const BUNDLE_SIZE_MAX: usize = 32 << 10;
/// First line of each PEM block of the bundle.
const CERTIFICATE_HEADER: &str = "-----BEGIN CERTIFICATE-----";

/// The text is not a usable join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The text is too long.
    #[error("the join token is longer than {TOKEN_LENGTH_MAX} characters")]
    Long,
    /// The text has another format, or is something else.
    #[error("this is not a join token, which begins with {PREFIX}")]
    Prefix,
    /// A part of the text is missing or was changed.
    #[error("the join token is incomplete; copy all of it again")]
    Encoding,
    /// A field is invalid.
    #[error("the join token has no valid {0}")]
    Part(&'static str),
}

/// Data that a worker needs to join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct JoinLine {
    /// Name and port of the API server.
    pub server: String,
    /// Address of the API server, for a machine without a DNS record of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// CA certificates that verify the API server, PEM.
    pub ca: String,
    /// CA certificates that verify the API server as a client of the kubelet, PEM.
    pub client_ca: String,
    /// Bootstrap token, `<id>.<secret>`.
    pub token: String,
    /// Kubernetes version of the cluster.
    pub version: String,
    /// Labels with which the worker registers its Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// Taints with which the worker registers its Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Whether the worker sets up the Pod network. A worker that predates this field refuses a join
    /// token with `false`.
    #[serde(default = "default_pod_network", skip_serializing_if = "Clone::clone")]
    pub pod_network: bool,
    /// The host's `yoke-worker` program. It is not part of the join token, which is input of that
    /// program.
    #[serde(skip)]
    pub program: Program,
}

impl std::fmt::Debug for JoinLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("JoinLine");
        shown.field("server", &self.server).field("version", &self.version);
        shown.finish_non_exhaustive()
    }
}

impl JoinLine {
    /// Encodes the join token that users paste.
    pub fn encode(&self) -> Result<String, LineError> {
        self.check()?;
        let json = serde_json::to_vec(self).map_err(|_| LineError::Encoding)?;
        let word = format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&json));
        if word.len() > TOKEN_LENGTH_MAX {
            return Err(LineError::Long);
        }
        Ok(word)
    }

    /// The command to paste on the machine that will be a worker.
    pub fn command(&self) -> Result<String, LineError> {
        Ok(self.program.to_command(&self.encode()?))
    }

    /// Commands by architecture that send `yoke-worker` to a machine that cannot download it, and
    /// run the join there.
    pub fn pipelines(&self) -> Result<BTreeMap<String, String>, LineError> {
        Ok(self.program.to_pipelines(&self.encode()?))
    }

    /// Parses a join token that a user pasted.
    pub fn parse(word: &str) -> Result<Self, LineError> {
        let word = word.trim();
        if word.len() > TOKEN_LENGTH_MAX {
            return Err(LineError::Long);
        }
        let body = word.strip_prefix(PREFIX).ok_or(LineError::Prefix)?;
        let json = BASE64URL_NOPAD
            .decode(body.as_bytes())
            .map_err(|_| LineError::Encoding)?;
        let line: Self = serde_json::from_slice(&json).map_err(|_| LineError::Encoding)?;
        line.check()?;
        Ok(line)
    }

    /// Public part of the bootstrap token.
    pub fn token_id(&self) -> &str {
        self.token.split('.').next().unwrap_or_default()
    }

    fn check(&self) -> Result<(), LineError> {
        for (part, good) in [
            ("server", is_server(&self.server)),
            ("address", self.address.is_none_or(is_distant)),
            ("CA", is_bundle(&self.ca)),
            ("client CA", is_bundle(&self.client_ca)),
            ("bootstrap token", is_bootstrap_token(&self.token)),
            ("version", self.version.parse::<KubernetesVersion>().is_ok()),
            ("labels", check_labels(&self.node_labels).is_ok()),
            ("taints", check_taints(&self.taints).is_ok()),
        ] {
            if !good {
                return Err(LineError::Part(part));
            }
        }
        Ok(())
    }
}

fn default_pod_network() -> bool {
    true
}

/// Whether a text is a DNS name with a port.
pub fn is_server(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(name, port)| {
        let digits = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
        is_domain(name) && digits && port.parse::<u16>().is_ok()
    })
}

/// Whether an address can belong to another machine and means the same on every machine.
pub fn is_distant(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_special = match address {
        IpAddr::V4(v4) => v4.is_broadcast(),
        // A link-local address is useless without the name of the interface.
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_special || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Whether a text is PEM with certificates only. Checks the PEM headers and characters; does not
/// parse the certificates.
fn is_bundle(text: &str) -> bool {
    let plain = |byte: u8| byte == b'\n' || (b' '..=b'~').contains(&byte);
    let begins = text.matches("-----BEGIN ").count();
    text.len() <= BUNDLE_SIZE_MAX
        && begins > 0
        && text.starts_with(CERTIFICATE_HEADER)
        && text.matches(CERTIFICATE_HEADER).count() == begins
        && text.bytes().all(plain)
}

/// Whether a text is a Kubernetes bootstrap token.
pub fn is_bootstrap_token(text: &str) -> bool {
    let good = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.split_once('.')
        .is_some_and(|(id, secret)| good(id, 6) && good(secret, 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join_token::TaintEffect;

    fn line() -> JoinLine {
        JoinLine {
            server: "a-bcdfghjk.yoke.test:443".into(),
            address: None,
            ca: "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".into(),
            client_ca: "-----BEGIN CERTIFICATE-----\nMAE=\n-----END CERTIFICATE-----\n".into(),
            token: "abc123.0123456789abcdef".into(),
            version: "v1.35.4".into(),
            node_labels: BTreeMap::new(),
            taints: Vec::new(),
            pod_network: true,
            program: Program::default(),
        }
    }

    fn word(json: &str) -> String {
        format!("yoke1.{}", BASE64URL_NOPAD.encode(json.as_bytes()))
    }

    #[test]
    fn token_survives_a_round_trip() {
        let text = line().encode().unwrap();
        assert!(text.starts_with("yoke1.ey"), "{text}");
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        );
        assert_eq!(JoinLine::parse(&format!("  {text}\n")).unwrap(), line());
        for address in ["203.0.113.7", "10.0.0.1", "2001:db8::7"] {
            let line = JoinLine {
                address: Some(address.parse().unwrap()),
                ..line()
            };
            assert_eq!(JoinLine::parse(&line.encode().unwrap()), Ok(line), "{address}");
        }
        assert_eq!(line().token_id(), "abc123");
        assert!(!format!("{:?}", line()).contains("0123456789"), "a token is not shown");
    }

    #[test]
    fn token_may_contain_labels_and_taints() {
        let plain_json = r#"{"server":"a-bcdfghjk.yoke.test:443","ca":"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n","clientCa":"-----BEGIN CERTIFICATE-----\nMAE=\n-----END CERTIFICATE-----\n","token":"abc123.0123456789abcdef","version":"v1.35.4"}"#;
        let plain = word(plain_json);
        assert_eq!(JoinLine::parse(&plain).unwrap(), line(), "one without");
        assert_eq!(line().encode().unwrap(), plain);
        let labelled = JoinLine {
            node_labels: BTreeMap::from([("example.org/disk".into(), "ssd".into())]),
            taints: vec!["gpu=a:NoSchedule".parse().unwrap(), "spot:NoExecute".parse().unwrap()],
            ..line()
        };
        assert_eq!(JoinLine::parse(&labelled.encode().unwrap()).unwrap(), labelled);
        let unconnected = JoinLine {
            pod_network: false,
            ..line()
        };
        let text = unconnected.encode().unwrap();
        assert_eq!(JoinLine::parse(&text).unwrap(), unconnected);
        assert_eq!(text, word(&plain_json.replace('}', r#","podNetwork":false}"#)));
    }

    #[test]
    fn malformed_tokens_are_refused() {
        let text = line().encode().unwrap();
        let cut = &text[..text.len() - 3];
        let long = format!("yoke1.{}", "A".repeat(TOKEN_LENGTH_MAX));
        for (rule, word, expected) in [
            ("nothing", String::new(), LineError::Prefix),
            ("another form", text.replace("yoke1.", "yoke2."), LineError::Prefix),
            ("a part", cut.to_owned(), LineError::Encoding),
            ("too long", long, LineError::Long),
            ("padded", format!("{text}="), LineError::Encoding),
            ("no JSON", word("x"), LineError::Encoding),
            ("deep JSON", word(&"[".repeat(40_000)), LineError::Encoding),
            (
                "a field too many",
                word(r#"{"server":"","ca":"","clientCa":"","token":"","version":"","x":1}"#),
                LineError::Encoding,
            ),
            (
                "a field twice",
                word(r#"{"server":"","server":"","ca":"","clientCa":"","token":"","version":""}"#),
                LineError::Encoding,
            ),
            (
                "an address that is none",
                word(r#"{"server":"","address":"a.b","ca":"","clientCa":"","token":"","version":""}"#),
                LineError::Encoding,
            ),
            (
                "a field too few",
                word(r#"{"server":"","ca":"","token":""}"#),
                LineError::Encoding,
            ),
        ] {
            assert_eq!(JoinLine::parse(&word), Err(expected), "{rule}");
        }
    }

    #[test]
    fn every_part_is_checked() {
        let key = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
        let with_key = format!("{}{key}", line().ca);
        let far = format!("{}{}", line().ca, " ".repeat(BUNDLE_SIZE_MAX));
        for (part, change) in [
            (
                "server",
                &(|line: &mut JoinLine| line.server = "a.yoke.test".into()) as &dyn Fn(&mut JoinLine),
            ),
            ("server", &|line| line.server = "10.0.0.1:443".into()),
            ("server", &|line| line.server = "a.yoke.test:70000".into()),
            ("server", &|line| line.server = "a.yoke.test:+443".into()),
            ("server", &|line| line.server = "a.yoke.test:443/x".into()),
            ("server", &|line| line.server = "u@a.yoke.test:443".into()),
            ("address", &|line| line.address = Some([127, 0, 0, 1].into())),
            ("address", &|line| line.address = Some([0, 0, 0, 0].into())),
            ("address", &|line| line.address = Some([224, 0, 0, 1].into())),
            ("address", &|line| line.address = Some([255, 255, 255, 255].into())),
            ("address", &|line| line.address = "::1".parse().ok()),
            ("address", &|line| line.address = "::".parse().ok()),
            ("address", &|line| line.address = "ff02::1".parse().ok()),
            ("address", &|line| line.address = "fe80::1".parse().ok()),
            ("address", &|line| line.address = "::ffff:127.0.0.1".parse().ok()),
            ("CA", &|line| line.ca = String::new()),
            ("CA", &|line| line.ca = key.into()),
            ("CA", &|line| line.ca.clone_from(&with_key)),
            ("CA", &|line| line.ca.clone_from(&far)),
            ("CA", &|line| line.ca.push('\u{0}')),
            ("client CA", &|line| line.client_ca = key.into()),
            ("bootstrap token", &|line| line.token = "abc123".into()),
            ("bootstrap token", &|line| line.token = "abc123.0123456789ABCDEF".into()),
            ("bootstrap token", &|line| {
                line.token = "abc123.0123456789abcdef.x".into()
            }),
            ("version", &|line| line.version = "latest".into()),
            ("labels", &|line| {
                drop(line.node_labels.insert("a".into(), "b,c=d".into()))
            }),
            ("labels", &|line| {
                drop(
                    line.node_labels
                        .insert("node-restriction.kubernetes.io/a".into(), "b".into()),
                )
            }),
            ("labels", &|line| {
                line.node_labels = (0..33).map(|at| (format!("a{at}"), "b".into())).collect()
            }),
            ("taints", &|line| line.taints = vec!["a:NoSchedule".parse().unwrap(); 2]),
            ("taints", &|line| {
                line.taints.push(Taint {
                    key: "a\nb".into(),
                    value: String::new(),
                    effect: TaintEffect::NoSchedule,
                });
            }),
        ] {
            let mut line = line();
            change(&mut line);
            assert_eq!(line.encode(), Err(LineError::Part(part)), "{line:?}");
            let word = word(&serde_json::to_string(&line).unwrap());
            assert_eq!(JoinLine::parse(&word), Err(LineError::Part(part)), "{line:?}");
        }
    }
}
