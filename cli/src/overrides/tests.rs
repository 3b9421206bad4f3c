use clap::Parser as _;

use super::*;
use crate::arguments::Arguments;

const FILE: &str = "{apiVersion: v1, kind: Config, current-context: a, \
    clusters: [{name: c, cluster: {server: 'https://one', tls-server-name: one, certificate-authority-data: Q0E=}}, \
               {name: d, cluster: {server: 'https://two'}}], \
    users: [{name: u, user: {exec: {command: login}, client-certificate-data: Q0VSVA==}}, {name: v, user: {token: v}}], \
    contexts: [{name: a, context: {cluster: c, user: u}}, {name: b, context: {cluster: d}}]}";

fn options(line: &str) -> HostOptions {
    let words = format!("kubectl-yoke get {line}");
    Arguments::try_parse_from(words.split(' ').filter(|word| !word.is_empty()))
        .unwrap()
        .host
}

/// The cluster and the user of the current context, as YAML.
fn chosen(kubeconfig: &str, line: &str) -> (String, String) {
    let kubeconfig = apply_overrides(Kubeconfig::from_yaml(kubeconfig).unwrap(), &options(line)).unwrap();
    let wanted = kubeconfig.current_context.unwrap();
    let context = kubeconfig.contexts.into_iter().find(|entry| entry.name == wanted);
    let context = context.unwrap().context.unwrap();
    let cluster = kubeconfig
        .clusters
        .into_iter()
        .find(|entry| entry.name == context.cluster);
    let user = kubeconfig
        .auth_infos
        .into_iter()
        .find(|entry| Some(&entry.name) == context.user.as_ref());
    let text = |value: serde_json::Value| {
        let fields = value.as_object().unwrap();
        let shown = fields.iter().filter(|(_, value)| !value.is_null());
        shown
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    (
        cluster.map_or_else(String::new, |entry| {
            text(serde_json::to_value(entry.cluster.unwrap()).unwrap())
        }),
        user.map_or_else(String::new, |entry| {
            text(serde_json::to_value(entry.auth_info.unwrap()).unwrap())
        }),
    )
}

#[test]
fn clusters_are_overridden_as_kubectl_does() {
    for (line, cluster) in [
        (
            "",
            r#"certificate-authority-data="Q0E=" server="https://one" tls-server-name="one""#,
        ),
        ("--context b", r#"server="https://two""#),
        ("--cluster d", r#"server="https://two""#),
        (
            "-s https://x",
            r#"certificate-authority-data="Q0E=" server="https://x""#,
        ),
        (
            "--server https://x --tls-server-name y",
            r#"certificate-authority-data="Q0E=" server="https://x" tls-server-name="y""#,
        ),
        (
            "--certificate-authority ca.pem",
            r#"certificate-authority="ca.pem" server="https://one" tls-server-name="one""#,
        ),
        (
            "--insecure-skip-tls-verify",
            r#"insecure-skip-tls-verify=true server="https://one" tls-server-name="one""#,
        ),
        (
            "--insecure-skip-tls-verify=false",
            r#"certificate-authority-data="Q0E=" server="https://one" tls-server-name="one""#,
        ),
    ] {
        assert_eq!(chosen(FILE, line).0, cluster, "{line}");
    }
    assert_eq!(chosen("{}", "--server https://x").0, r#"server="https://x""#);
}

#[test]
fn users_are_overridden_as_kubectl_does() {
    let file = r#"client-certificate-data="Q0VSVA==" exec={"#;
    for (line, start, end) in [
        ("", file, ""),
        ("--user v", r#"token="v""#, ""),
        ("--context b", "", ""),
        // kubectl keeps the token beside a certificate.
        ("--token x", r#"client-certificate-data="Q0VSVA==" token="x""#, ""),
        ("--context b --token x", r#"token="x""#, ""),
        (
            "--user v --client-certificate c.pem --client-key k.pem",
            r#"client-certificate="c.pem" client-key="k.pem" token="v""#,
            "",
        ),
        (
            "--user v --as ann --as-group g --as-group h --as-uid 7",
            r#"as="ann" as-groups=["g","h"] as-uid="7" token="v""#,
            "",
        ),
    ] {
        let user = chosen(FILE, line).1;
        assert!(user.starts_with(start) && user.ends_with(end), "{line}: {user}");
    }
}

#[test]
fn user_that_is_not_there_is_not_anonymous() {
    let refused = apply_overrides(Kubeconfig::from_yaml(FILE).unwrap(), &options("--user nobody"));
    assert!(matches!(refused, Err(Error::UnknownUser(name)) if name == "nobody"));
}
