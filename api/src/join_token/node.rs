//! Labels and taints with which a worker registers its Node, as a JoinToken sets them. Pure.
//!
//! Labels and taints come from users and from pasted join tokens, and become arguments of a kubelet. So
//! everything that does not match Kubernetes' syntax exactly is refused. The CRD repeats these
//! rules in CEL.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::{is_label, is_within};

/// Maximum number of labels.
pub const LABELS_MAX: usize = 32;
/// Maximum number of taints.
pub const TAINTS_MAX: usize = 16;
/// Maximum length of the prefix of a key, in characters.
const PREFIX_MAX: usize = 253;
/// Maximum length of a key without its prefix, and of a value, in characters.
const NAME_MAX: usize = 63;
/// Labels in Kubernetes' own domains that NodeRestriction allows a kubelet to set, except those
/// that the kubelet detects itself (host name, operating system, architecture):
/// <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/>, as of 1.35.
const KUBELET_LABELS: [&str; 5] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "beta.kubernetes.io/instance-type",
];
/// Domains in which NodeRestriction allows all labels, including those of subdomains.
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Domains of taints that Kubernetes' controllers add and remove according to the Node's state.
const STATE_DOMAINS: [&str; 2] = ["node.kubernetes.io", "node.cloudprovider.kubernetes.io"];

/// CEL rule for label keys: the syntax of a key.
pub(super) const KEYS_RULE: &str = "self.all(key, key.indexOf('/') <= 253 && key.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))";
/// CEL rule for label keys: the keys that a worker may set.
pub(super) const DOMAINS_RULE: &str = "self.all(key, !key.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/') || key.matches('^([^/]*[.])?(kubelet|node)[.]kubernetes[.]io/') || key in ['topology.kubernetes.io/region', 'topology.kubernetes.io/zone', 'failure-domain.beta.kubernetes.io/region', 'failure-domain.beta.kubernetes.io/zone', 'beta.kubernetes.io/instance-type'])";

/// A taint: it keeps Pods that do not tolerate it off a Node.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// Key of the taint: a name, optionally with a domain and a slash before it, such as
    /// `example.org/gpu`. Keys that Kubernetes sets according to the Node's state are refused.
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = Rule::new(r"self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && self.indexOf('/') <= 253")
        .message("the key of a taint must be a name of at most 63 characters, optionally with a domain and a slash before it"))]
    #[x_kube(validation = Rule::new("!self.startsWith('node.kubernetes.io/') && !self.startsWith('node.cloudprovider.kubernetes.io/')")
        .message("Kubernetes itself sets taints under node.kubernetes.io and node.cloudprovider.kubernetes.io; use another key"))]
    pub key: String,
    /// Value of the taint. Optional, at most 63 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: String,
    /// Effect on Pods that do not tolerate the taint.
    ///
    /// - `NoSchedule`: no Pods are scheduled to the Node.
    /// - `PreferNoSchedule`: Pods are scheduled to other Nodes if possible.
    /// - `NoExecute`: no Pods are scheduled to the Node, and running Pods are evicted.
    pub effect: TaintEffect,
}

/// Effect of a taint on Pods that do not tolerate it.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaintEffect {
    /// No Pods are scheduled to the Node.
    NoSchedule,
    /// Pods are scheduled to other Nodes if possible.
    PreferNoSchedule,
    /// No Pods are scheduled to the Node, and running Pods are evicted.
    NoExecute,
}

/// The text is not a label or taint that a JoinToken may set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The text has a different form than expected.
    #[error("expected {0}")]
    Form(&'static str),
    /// The key is malformed.
    #[error(
        "{0:?} is not a valid key: use a name of at most 63 characters, optionally with a domain and a slash before it"
    )]
    Key(String),
    /// The value is malformed.
    #[error(
        "{0:?} is not a valid value: use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    )]
    Value(String),
    /// NodeRestriction does not allow a kubelet to set this label.
    #[error(
        "a worker may not set the label {0:?} itself: under kubernetes.io and k8s.io, only kubelet.kubernetes.io/*, \
         node.kubernetes.io/*, topology.kubernetes.io/zone and /region, and the older names of these are allowed"
    )]
    Forbidden(String),
    /// Kubernetes itself sets this taint.
    #[error("Kubernetes itself sets the taint {0:?}; use another key")]
    State(String),
    /// There are more than this number.
    #[error("at most {0} are allowed")]
    Many(usize),
    /// A key is given more than once.
    #[error("{0:?} is given more than once")]
    Twice(String),
}

impl fmt::Display for Taint {
    /// In kubectl's format: `key=value:effect`, or `key:effect`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{:?}", self.key, self.value, self.effect)
    }
}

impl FromStr for Taint {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || {
            NodeError::Form("key=value:effect or key:effect, where effect is NoSchedule, PreferNoSchedule or NoExecute")
        };
        let (rest, effect) = text.rsplit_once(':').ok_or_else(form)?;
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            "NoExecute" => TaintEffect::NoExecute,
            _ => return Err(form()),
        };
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let taint = Self {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        };
        check_taint(&taint).map(|()| taint)
    }
}

/// Parses a label in the form `key=value`.
pub fn parse_label(text: &str) -> Result<(String, String), NodeError> {
    let (key, value) = text.split_once('=').ok_or(NodeError::Form("key=value"))?;
    check_label(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Collects labels into a map, and checks them. A key that occurs twice is an error.
pub fn collect_labels(labels: &[(String, String)]) -> Result<BTreeMap<String, String>, NodeError> {
    let mut all = BTreeMap::new();
    for (key, value) in labels {
        if all.insert(key.clone(), value.clone()).is_some() {
            return Err(NodeError::Twice(key.clone()));
        }
    }
    check_labels(&all).map(|()| all)
}

/// Checks that a worker may set these labels.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), NodeError> {
    if labels.len() > LABELS_MAX {
        return Err(NodeError::Many(LABELS_MAX));
    }
    labels.iter().try_for_each(|(key, value)| check_label(key, value))
}

/// Checks that a worker may set these taints.
pub fn check_taints(taints: &[Taint]) -> Result<(), NodeError> {
    if taints.len() > TAINTS_MAX {
        return Err(NodeError::Many(TAINTS_MAX));
    }
    for (at, taint) in taints.iter().enumerate() {
        check_taint(taint)?;
        let mut before = taints.iter().take(at);
        if before.any(|other| (&other.key, other.effect) == (&taint.key, taint.effect)) {
            return Err(NodeError::Twice(taint.key.clone()));
        }
    }
    Ok(())
}

fn check_label(key: &str, value: &str) -> Result<(), NodeError> {
    check_parts(key, value)?;
    let may_be_set = match domain_of(key) {
        Some(domain) if is_within(domain, "kubernetes.io") || is_within(domain, "k8s.io") => {
            KUBELET_DOMAINS.iter().any(|own| is_within(domain, own)) || KUBELET_LABELS.contains(&key)
        }
        _ => true,
    };
    if may_be_set {
        Ok(())
    } else {
        Err(NodeError::Forbidden(key.to_owned()))
    }
}

fn check_taint(taint: &Taint) -> Result<(), NodeError> {
    check_parts(&taint.key, &taint.value)?;
    match domain_of(&taint.key) {
        Some(domain) if STATE_DOMAINS.contains(&domain) => Err(NodeError::State(taint.key.clone())),
        _ => Ok(()),
    }
}

fn check_parts(key: &str, value: &str) -> Result<(), NodeError> {
    let (domain, name) = key
        .split_once('/')
        .map_or((None, key), |(domain, name)| (Some(domain), name));
    let has_domain = domain.is_none_or(|domain| domain.len() <= PREFIX_MAX && domain.split('.').all(is_label));
    if !has_domain || name.is_empty() || !is_name(name) {
        return Err(NodeError::Key(key.to_owned()));
    }
    if is_name(value) {
        Ok(())
    } else {
        Err(NodeError::Value(value.to_owned()))
    }
}

fn domain_of(key: &str) -> Option<&str> {
    key.split_once('/').map(|(domain, _)| domain)
}

/// Whether a text is empty, or consists of letters, digits, `-`, `_` and `.`, with a letter or
/// digit at both ends.
fn is_name(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= NAME_MAX
        && text.bytes().all(is_plain)
        && is_end(text.bytes().next())
        && is_end(text.bytes().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_and_checked() {
        let long = "a".repeat(64);
        let key = |key: &str| Err(NodeError::Key(key.to_owned()));
        let value = |value: &str| Err(NodeError::Value(value.to_owned()));
        let forbidden = |key: &str| Err(NodeError::Forbidden(key.to_owned()));
        for (text, expected) in [
            ("a=b", Ok(("a", "b"))),
            ("a=", Ok(("a", ""))),
            ("example.org/a_B.c=1.2-x", Ok(("example.org/a_B.c", "1.2-x"))),
            (
                "topology.kubernetes.io/zone=a",
                Ok(("topology.kubernetes.io/zone", "a")),
            ),
            ("gpu.node.kubernetes.io/x=a", Ok(("gpu.node.kubernetes.io/x", "a"))),
            (
                "node.kubernetes.io/instance-type=a",
                Ok(("node.kubernetes.io/instance-type", "a")),
            ),
            ("notkubernetes.io/x=a", Ok(("notkubernetes.io/x", "a"))),
            ("a", Err(NodeError::Form("key=value"))),
            ("=b", key("")),
            ("a/=b", key("a/")),
            ("/a=b", key("/a")),
            ("a/b/c=d", key("a/b/c")),
            ("A.org/a=b", key("A.org/a")),
            ("-a=b", key("-a")),
            ("a =b", key("a ")),
            ("a,c=b", key("a,c")),
            (&format!("{long}=b"), key(&long)),
            (&format!("{long}.org/a=b"), key(&format!("{long}.org/a"))),
            ("a=b,c", value("b,c")),
            ("a=b=c", value("b=c")),
            ("a=_", value("_")),
            (&format!("a={long}"), value(&long)),
            ("kubernetes.io/hostname=a", forbidden("kubernetes.io/hostname")),
            (
                "node-restriction.kubernetes.io/x=a",
                forbidden("node-restriction.kubernetes.io/x"),
            ),
            (
                "x.node-restriction.kubernetes.io/x=a",
                forbidden("x.node-restriction.kubernetes.io/x"),
            ),
            ("node-role.kubernetes.io/x=", forbidden("node-role.kubernetes.io/x")),
            ("k8s.io/x=a", forbidden("k8s.io/x")),
        ] {
            let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(parse_label(text), expected, "{text}");
        }
    }

    #[test]
    fn taints_are_read_and_checked() {
        for (text, expected) in [
            ("a=b:NoSchedule", None),
            ("example.org/a:NoExecute", None),
            ("node-role.kubernetes.io/x:PreferNoSchedule", None),
            ("a:NoSchedule:NoExecute", Some(NodeError::Key("a:NoSchedule".into()))),
            ("a=b=c:NoSchedule", Some(NodeError::Value("b=c".into()))),
            (":NoSchedule", Some(NodeError::Key(String::new()))),
            (
                "node.kubernetes.io/unreachable:NoExecute",
                Some(NodeError::State("node.kubernetes.io/unreachable".into())),
            ),
        ] {
            let read = text.parse::<Taint>();
            assert_eq!(read.as_ref().err(), expected.as_ref(), "{text}");
            if let Ok(taint) = read {
                assert_eq!(taint.to_string(), text);
            }
        }
        for text in ["a", "a=b", "a=b:", "a=b:noschedule"] {
            assert!(matches!(text.parse::<Taint>(), Err(NodeError::Form(_))), "{text}");
        }
    }

    #[test]
    fn there_are_not_too_many_and_none_twice() {
        let labels = |count: usize| -> Vec<_> { (0..count).map(|at| (format!("a{at}"), String::new())).collect() };
        assert_eq!(collect_labels(&labels(32)).unwrap().len(), 32);
        assert_eq!(collect_labels(&labels(33)), Err(NodeError::Many(32)));
        let twice = [labels(1), labels(1)].concat();
        assert_eq!(collect_labels(&twice), Err(NodeError::Twice("a0".into())));
        let taints = |count: usize| -> Vec<Taint> {
            (0..count)
                .map(|at| format!("a{at}:NoSchedule").parse().unwrap())
                .collect()
        };
        assert_eq!(check_taints(&taints(16)), Ok(()));
        assert_eq!(check_taints(&taints(17)), Err(NodeError::Many(16)));
        let two = |one: &str, other: &str| check_taints(&[one.parse().unwrap(), other.parse().unwrap()]);
        assert_eq!(two("a=b:NoSchedule", "a=b:NoExecute"), Ok(()));
        assert_eq!(
            two("a=b:NoSchedule", "a=c:NoSchedule"),
            Err(NodeError::Twice("a".into()))
        );
    }
}
