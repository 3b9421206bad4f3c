//! The file of `--authentication-config`: anonymous requests reach health checks only, and the
//! tenant may have an OIDC provider.
//!
//! Format:
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#using-authentication-configuration>,
//! `v1` since Kubernetes 1.34.

use serde::Serialize;
use yoke_api::cluster::ExtraArg;

const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthenticationConfiguration<'a> {
    api_version: &'static str,
    kind: &'static str,
    anonymous: Anonymous,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jwt: Vec<Jwt<'a>>,
}

#[derive(Serialize)]
struct Anonymous {
    enabled: bool,
    conditions: Vec<Condition>,
}

#[derive(Serialize)]
struct Condition {
    path: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Jwt<'a> {
    issuer: Issuer<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    claim_validation_rules: Vec<Rule<'a>>,
    claim_mappings: Mappings<'a>,
}

#[derive(Serialize)]
struct Issuer<'a> {
    url: &'a str,
    audiences: Vec<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule<'a> {
    claim: &'a str,
    required_value: &'a str,
}

#[derive(Serialize)]
struct Mappings<'a> {
    username: Mapping<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Mapping<'a>>,
}

#[derive(Serialize)]
struct Mapping<'a> {
    claim: &'a str,
    prefix: String,
}

/// The text of the file, as JSON, which is YAML too.
pub(crate) fn to_file(arguments: &[ExtraArg]) -> String {
    let configuration = AuthenticationConfiguration {
        api_version: "apiserver.config.k8s.io/v1",
        kind: "AuthenticationConfiguration",
        anonymous: Anonymous {
            enabled: true,
            conditions: HEALTH.into_iter().map(|path| Condition { path }).collect(),
        },
        jwt: translate_oidc(arguments).into_iter().collect(),
    };
    serde_json::to_string_pretty(&configuration).expect("fields are strings and lists")
}

/// Whether the arguments name an OIDC provider; the API server then fetches its keys.
pub(crate) fn has_provider(arguments: &[ExtraArg]) -> bool {
    translate_oidc(arguments).is_some()
}

/// Translates the OIDC arguments of kube-apiserver, with the same meaning.
fn translate_oidc(arguments: &[ExtraArg]) -> Option<Jwt<'_>> {
    let value = |name: &str| {
        arguments
            .iter()
            .find(|argument| argument.name == name)
            .map(|argument| argument.value.as_str())
    };
    let url = value("oidc-issuer-url")?;
    let claim = value("oidc-username-claim").unwrap_or("sub");
    let prefix = match value("oidc-username-prefix") {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        None if claim == "email" => String::new(),
        None => format!("{url}#"),
    };
    let required = arguments
        .iter()
        .filter(|argument| argument.name == "oidc-required-claim");
    Some(Jwt {
        issuer: Issuer {
            url,
            audiences: value("oidc-client-id").into_iter().collect(),
        },
        claim_validation_rules: required
            .filter_map(|argument| argument.value.split_once('='))
            .map(|(claim, required_value)| Rule { claim, required_value })
            .collect(),
        claim_mappings: Mappings {
            username: Mapping { claim, prefix },
            groups: value("oidc-groups-claim").map(|claim| Mapping {
                claim,
                prefix: value("oidc-groups-prefix").unwrap_or_default().to_owned(),
            }),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(pairs: &[(&str, &str)]) -> Vec<ExtraArg> {
        pairs
            .iter()
            .map(|(name, value)| ExtraArg {
                name: (*name).to_owned(),
                value: (*value).to_owned(),
            })
            .collect()
    }

    fn parsed(pairs: &[(&str, &str)]) -> serde_json::Value {
        serde_json::from_str(&to_file(&arguments(pairs))).unwrap()
    }

    #[test]
    fn anonymous_requests_reach_health_only() {
        assert_eq!(
            parsed(&[]),
            serde_json::json!({
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
                "anonymous": {"enabled": true, "conditions": [{"path": "/healthz"}, {"path": "/livez"}, {"path": "/readyz"}]},
            })
        );
    }

    #[test]
    fn oidc_arguments_keep_their_meaning() {
        let issuer = ("oidc-issuer-url", "https://id.example");
        let client = ("oidc-client-id", "yoke");
        for (rule, more, username, prefix) in [
            (
                "default claim has the issuer as prefix",
                None,
                "sub",
                "https://id.example#",
            ),
            ("email has none", Some(("oidc-username-claim", "email")), "email", ""),
            ("given prefix", Some(("oidc-username-prefix", "x:")), "sub", "x:"),
            ("dash is no prefix", Some(("oidc-username-prefix", "-")), "sub", ""),
        ] {
            let pairs: Vec<_> = [issuer, client].into_iter().chain(more).collect();
            let file = parsed(&pairs);
            let jwt = &file["jwt"][0];
            assert_eq!(
                jwt["issuer"],
                serde_json::json!({"url": "https://id.example", "audiences": ["yoke"]}),
                "{rule}"
            );
            assert_eq!(
                jwt["claimMappings"]["username"],
                serde_json::json!({"claim": username, "prefix": prefix}),
                "{rule}"
            );
        }
        let file = parsed(&[
            issuer,
            client,
            ("oidc-required-claim", "hd=example"),
            ("oidc-groups-claim", "groups"),
        ]);
        assert_eq!(
            file["jwt"][0]["claimValidationRules"],
            serde_json::json!([{"claim": "hd", "requiredValue": "example"}])
        );
        assert_eq!(
            file["jwt"][0]["claimMappings"]["groups"],
            serde_json::json!({"claim": "groups", "prefix": ""})
        );
    }
}
