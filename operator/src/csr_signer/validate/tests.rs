use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::csr_signer::validate::*;

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const USER: &str = "kubernetes.io/kube-apiserver-client";

/// Builds a PKCS#10 request with these organizations, this common name and these names.
fn pkcs10(organizations: &[&str], common_name: &str, names: &[&str]) -> String {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for organization in organizations {
        params.distinguished_name.push(DnType::OrganizationName, *organization);
    }
    if !common_name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, common_name);
    }
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn csr(signer: &str, user: &str, groups: &[&str], usages: &[&str], pem: &str) -> Value {
    json!({"metadata": {"name": "c", "uid": "1"}, "spec": {
        "request": data_encoding::BASE64.encode(pem.as_bytes()), "signerName": signer, "username": user,
        "groups": groups, "usages": usages}})
}

fn read(value: Value) -> CertificateSigningRequest {
    serde_json::from_value(value).unwrap()
}

const USAGES: [&str; 2] = ["digital signature", "client auth"];
const SERVES: [&str; 2] = ["digital signature", "server auth"];
const TOKEN: (&str, &[&str]) = (
    "system:bootstrap:abc123",
    &["system:bootstrappers", "system:authenticated"],
);
const NODE: (&str, &[&str]) = ("system:node:n", &["system:nodes", "system:authenticated"]);

fn client_pem() -> String {
    pkcs10(&["system:nodes"], "system:node:n", &[])
}

fn client((user, groups): (&str, &[&str]), usages: &[&str], pem: &str) -> CertificateSigningRequest {
    read(csr(CLIENT, user, groups, usages, pem))
}

fn serving((user, groups): (&str, &[&str]), names: &[&str]) -> CertificateSigningRequest {
    let pem = pkcs10(&["system:nodes"], "system:node:n", names);
    read(csr(SERVING, user, groups, &SERVES, &pem))
}

#[test]
fn requests_of_kubelets_are_accepted() {
    let enciphers = ["key encipherment", "client auth", "digital signature"];
    for (rule, csr, purpose, requester, with_encipherment) in [
        (
            "a new node",
            client(TOKEN, &USAGES, &client_pem()),
            Use::Client,
            Requester::Bootstrap("abc123".into()),
            false,
        ),
        (
            "a renewal",
            client(NODE, &enciphers, &client_pem()),
            Use::Client,
            Requester::Node,
            true,
        ),
        (
            "serving",
            serving(NODE, &["n", "192.0.2.1"]),
            Use::Server,
            Requester::Node,
            false,
        ),
    ] {
        let facts = validate(&csr).unwrap();
        assert_eq!((facts.purpose, facts.name.as_str()), (purpose, "n"), "{rule}");
        assert_eq!(
            (facts.requester, facts.enciphers),
            (requester, with_encipherment),
            "{rule}"
        );
        assert!(!facts.is_approved, "{rule}");
    }
}

#[test]
fn hostile_requests_are_refused() {
    let pem = client_pem();
    let subject = |organizations: &[&str], name: &str| client(TOKEN, &USAGES, &pkcs10(organizations, name, &[]));
    let usages = |usages: &[&str]| client(TOKEN, usages, &pem);
    let by = |user: &str, groups: &[&str]| client((user, groups), &USAGES, &pem);
    let mut of_another = serving(NODE, &["n"]);
    of_another.spec.username = Some("system:node:m".into());
    let long = format!("system:node:{}", "a.".repeat(130));
    let mut unit = CertificateParams::new(vec![]).unwrap();
    unit.distinguished_name = DistinguishedName::new();
    unit.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    unit.distinguished_name.push(DnType::OrganizationalUnitName, "x");
    unit.distinguished_name.push(DnType::CommonName, "system:node:n");
    let unit = unit
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    let mut mail = CertificateParams::new(vec![]).unwrap();
    mail.subject_alt_names
        .push(SanType::Rfc822Name("a@b.test".try_into().unwrap()));
    let mail = mail
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    for (rule, csr, expected) in [
        ("no request", client(TOKEN, &USAGES, "x"), Refusal::RequestInvalid),
        (
            "two requests",
            client(TOKEN, &USAGES, &format!("{pem}{pem}")),
            Refusal::RequestInvalid,
        ),
        ("a mail address", client(TOKEN, &USAGES, &mail), Refusal::RequestInvalid),
        ("no name", subject(&["system:nodes"], ""), Refusal::SubjectInvalid),
        ("a user", subject(&["system:nodes"], "admin"), Refusal::SubjectInvalid),
        (
            "no node",
            subject(&["system:nodes"], "system:node:"),
            Refusal::SubjectInvalid,
        ),
        (
            "a path",
            subject(&["system:nodes"], "system:node:a/b"),
            Refusal::SubjectInvalid,
        ),
        (
            "upper case",
            subject(&["system:nodes"], "system:node:N"),
            Refusal::SubjectInvalid,
        ),
        (
            "too long a name",
            subject(&["system:nodes"], &long),
            Refusal::SubjectInvalid,
        ),
        ("no group", subject(&[], "system:node:n"), Refusal::SubjectInvalid),
        (
            "masters",
            subject(&["system:masters"], "system:node:n"),
            Refusal::SubjectInvalid,
        ),
        (
            "masters too",
            subject(&["system:nodes", "system:masters"], "system:node:n"),
            Refusal::SubjectInvalid,
        ),
        (
            "the tenant's admins",
            subject(&["yoke:cluster-admins"], "system:node:n"),
            Refusal::SubjectInvalid,
        ),
        ("one more part", client(TOKEN, &USAGES, &unit), Refusal::SubjectInvalid),
        ("no usages", usages(&[]), Refusal::UsagesInvalid),
        ("one usage is missing", usages(&["client auth"]), Refusal::UsagesInvalid),
        (
            "a server's too",
            usages(&["digital signature", "client auth", "server auth"]),
            Refusal::UsagesInvalid,
        ),
        (
            "a CA's",
            usages(&["digital signature", "client auth", "cert sign"]),
            Refusal::UsagesInvalid,
        ),
        (
            "the usage any",
            usages(&["digital signature", "any"]),
            Refusal::UsagesInvalid,
        ),
        (
            "one twice",
            usages(&["digital signature", "client auth", "client auth"]),
            Refusal::UsagesInvalid,
        ),
        (
            "the tenant itself",
            by("yoke:admin", &["yoke:cluster-admins"]),
            Refusal::RequesterInvalid,
        ),
        (
            "another node",
            by("system:node:m", &["system:nodes"]),
            Refusal::RequesterInvalid,
        ),
        (
            "not in its group",
            by("system:node:n", &["system:authenticated"]),
            Refusal::RequesterInvalid,
        ),
        (
            "a token's name alone",
            by("system:bootstrap:abc123", &["system:nodes"]),
            Refusal::RequesterInvalid,
        ),
        ("no requester", by("", &[]), Refusal::RequesterInvalid),
        (
            "serving, with a bootstrap token",
            serving(TOKEN, &["n"]),
            Refusal::RequesterInvalid,
        ),
        ("serving, by another node", of_another, Refusal::RequesterInvalid),
        ("serving without names", serving(NODE, &[]), Refusal::NamesNotOfNode),
        ("a wildcard", serving(NODE, &["*.example.org"]), Refusal::NamesNotOfNode),
        ("no DNS name", serving(NODE, &["n_1"]), Refusal::NamesNotOfNode),
        (
            "an address in another's form",
            serving(NODE, &["::ffff:192.0.2.1"]),
            Refusal::NamesNotOfNode,
        ),
        (
            "a client with names",
            client(
                NODE,
                &USAGES,
                &pkcs10(&["system:nodes"], "system:node:n", &["kubernetes"]),
            ),
            Refusal::NamesNotAllowed,
        ),
        (
            "another signer",
            read(csr("example.org/s", NODE.0, NODE.1, &USAGES, &pem)),
            Refusal::UsagesInvalid,
        ),
    ] {
        assert_eq!(validate(&csr), Err(expected), "{rule}");
    }
}

fn user(usages: &[&str], pem: &str) -> CertificateSigningRequest {
    read(csr(USER, "ann", &["system:authenticated"], usages, pem))
}

#[test]
fn approved_requests_of_users_are_accepted() {
    let plain = pkcs10(&[], "jane", &[]);
    let grouped = pkcs10(&["team:a", "b"], "jane@example.org", &[]);
    for (rule, csr, name, enciphers) in [
        ("a request of a person", user(&["client auth"], &plain), "jane", false),
        (
            "the usages of a kubelet",
            user(&USAGES, &grouped),
            "jane@example.org",
            false,
        ),
        (
            "with a key that encrypts keys",
            user(&["client auth", "key encipherment", "digital signature"], &plain),
            "jane",
            true,
        ),
        (
            "the word within",
            user(&USAGES, &pkcs10(&["asystem:x"], "the system:", &[])),
            "the system:",
            false,
        ),
    ] {
        let facts = validate(&csr).unwrap();
        assert_eq!((facts.name.as_str(), facts.enciphers), (name, enciphers), "{rule}");
        assert_eq!(
            (facts.purpose, facts.requester.clone()),
            (Use::Client, Requester::Approved),
            "{rule}"
        );
        assert_eq!(validate_node(&facts, None), Ok(()), "{rule}");
    }
}

#[test]
fn hostile_requests_for_users_are_refused() {
    let subject = |organizations: &[&str], name: &str| user(&USAGES, &pkcs10(organizations, name, &[]));
    let with = |kind: DnType, value: &str| {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.distinguished_name.push(kind, value);
        let key = KeyPair::generate().unwrap();
        user(&USAGES, &params.serialize_request(&key).unwrap().pem().unwrap())
    };
    let long = "a".repeat(254);
    let good = pkcs10(&[], "jane", &[]);
    for (rule, csr, expected) in [
        ("no request", user(&USAGES, "x"), Refusal::RequestInvalid),
        ("no name", subject(&["a"], ""), Refusal::UserInvalid),
        ("a long name", subject(&[], &long), Refusal::UserInvalid),
        ("a long group", subject(&[&long], "jane"), Refusal::UserInvalid),
        ("an empty group", subject(&[""], "jane"), Refusal::UserInvalid),
        (
            "a unit",
            with(DnType::OrganizationalUnitName, "x"),
            Refusal::UserInvalid,
        ),
        (
            "a UID",
            with(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "1"),
            Refusal::UserInvalid,
        ),
        ("masters", subject(&["system:masters"], "jane"), Refusal::NameReserved),
        (
            "masters too",
            subject(&["a", "system:masters"], "jane"),
            Refusal::NameReserved,
        ),
        ("nodes", subject(&["system:nodes"], "jane"), Refusal::NameReserved),
        ("a node", subject(&[], "system:node:n"), Refusal::NameReserved),
        (
            "a controller",
            subject(&[], "system:kube-controller-manager"),
            Refusal::NameReserved,
        ),
        (
            "a ServiceAccount",
            subject(&[], "system:serviceaccount:a:b"),
            Refusal::NameReserved,
        ),
        ("the operator", subject(&[], "yoke:operator"), Refusal::NameReserved),
        (
            "the kubeconfig's group",
            subject(&["yoke:cluster-admins"], "jane"),
            Refusal::NameReserved,
        ),
        (
            "the API server",
            subject(&["yoke:kubelet-api-admins"], "yoke:apiserver"),
            Refusal::NameReserved,
        ),
        (
            "names",
            user(&USAGES, &pkcs10(&[], "jane", &["a.example.org"])),
            Refusal::NamesNotAllowed,
        ),
        (
            "an address",
            user(&USAGES, &pkcs10(&[], "jane", &["192.0.2.1"])),
            Refusal::NamesNotAllowed,
        ),
        ("no usages", user(&[], &good), Refusal::UsagesInvalid),
        (
            "none of its own",
            user(&["digital signature"], &good),
            Refusal::UsagesInvalid,
        ),
        ("server auth", user(&["server auth"], &good), Refusal::UsagesInvalid),
        (
            "a server's too",
            user(&["client auth", "server auth"], &good),
            Refusal::UsagesInvalid,
        ),
        (
            "a CA's",
            user(&["client auth", "cert sign"], &good),
            Refusal::UsagesInvalid,
        ),
        (
            "one twice",
            user(&["client auth", "client auth"], &good),
            Refusal::UsagesInvalid,
        ),
    ] {
        assert_eq!(validate(&csr), Err(expected), "{rule}");
    }
}

#[test]
fn the_node_of_the_name_decides() {
    let node = |addresses: Value| -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"addresses": addresses}})).unwrap()
    };
    let known = node(
        json!([{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "ExternalDNS", "address": "n.example.org"}, {"type": "ExternalIP", "address": "2001:db8:0::1"},
        {"type": "Odd", "address": "kubernetes"}]),
    );
    let (by_token, renewal) = (
        validate(&client(TOKEN, &USAGES, &client_pem())).unwrap(),
        validate(&client(NODE, &USAGES, &client_pem())).unwrap(),
    );
    let names = |names: &[&str]| validate(&serving(NODE, names)).unwrap();
    let good = names(&["n", "n.example.org", "192.0.2.1", "2001:db8::1"]);
    for (rule, facts, node, expected) in [
        ("a new Node", &by_token, None, Ok(())),
        (
            "a name that is taken",
            &by_token,
            Some(&known),
            Err(Refusal::NodeExists),
        ),
        ("a renewal", &renewal, Some(&known), Ok(())),
        ("before it is registered", &renewal, None, Ok(())),
        ("its own names", &good, Some(&known), Ok(())),
        ("no Node", &good, None, Err(Refusal::NodeMissing)),
        (
            "one more name",
            &names(&["n", "m"]),
            Some(&known),
            Err(Refusal::NamesNotOfNode),
        ),
        (
            "the API's name",
            &names(&["kubernetes"]),
            Some(&known),
            Err(Refusal::NamesNotOfNode),
        ),
        (
            "another address",
            &names(&["192.0.2.2"]),
            Some(&known),
            Err(Refusal::NamesNotOfNode),
        ),
        (
            "no addresses",
            &good,
            Some(&node(json!([]))),
            Err(Refusal::NamesNotOfNode),
        ),
    ] {
        assert_eq!(validate_node(facts, node), expected, "{rule}");
    }
}

#[test]
fn only_open_requests_are_processed() {
    let with = |signer: &str, status: Value| {
        let mut value = csr(signer, NODE.0, NODE.1, &USAGES, "x");
        value["status"] = status;
        is_open(&read(value))
    };
    let condition = |types: &[&str]| {
        let all = types.iter().map(|type_| json!({"type": type_, "status": "True"}));
        json!({"conditions": all.collect::<Vec<_>>()})
    };
    for (rule, signer, status, expected) in [
        ("not approved", CLIENT, json!({}), false),
        ("approved", CLIENT, condition(&["Approved"]), true),
        ("serving", SERVING, json!({}), true),
        ("denied", SERVING, condition(&["Denied"]), false),
        ("refused", CLIENT, condition(&["Approved", "Failed"]), false),
        ("answered", SERVING, json!({"certificate": "YQ=="}), false),
        ("of a user, not approved", USER, json!({}), false),
        ("of a user, approved", USER, condition(&["Approved"]), true),
        ("of a user, denied", USER, condition(&["Approved", "Denied"]), false),
        (
            "of another signer",
            "kubernetes.io/legacy-unknown",
            condition(&["Approved"]),
            false,
        ),
    ] {
        assert_eq!(with(signer, status), expected, "{rule}");
    }
}

#[test]
fn a_request_is_trimmed_to_the_needed_fields() {
    let read_with = |metadata: Value| {
        let mut value = csr(CLIENT, NODE.0, NODE.1, &USAGES, "");
        value["metadata"] = metadata;
        value["spec"]["extra"] = json!({"x": ["y"]});
        trim(read(value))
    };
    let trimmed =
        read_with(json!({"name": "c", "uid": "1", "labels": {"a": "b"}, "finalizers": ["x"], "generateName": "d"}));
    let trimmed = trimmed.unwrap();
    let expected = ObjectMeta {
        name: Some("c".into()),
        uid: Some("1".into()),
        ..ObjectMeta::default()
    };
    assert_eq!((trimmed.metadata, trimmed.spec.extra), (expected, None));
    for (rule, metadata) in [
        ("no UID", json!({"name": "c"})),
        ("an empty UID", json!({"name": "c", "uid": ""})),
        ("a long UID", json!({"name": "c", "uid": "1".repeat(65)})),
        ("no name", json!({"uid": "1"})),
        ("a long name", json!({"name": "c".repeat(254), "uid": "1"})),
    ] {
        assert!(read_with(metadata).is_none(), "{rule}");
    }
}

#[test]
fn a_trimmed_request_has_the_same_facts() {
    let text = "x".repeat(1 << 20);
    let groups: Vec<_> = [text.as_str(), "a", "system:nodes"].into();
    let mut value = csr(SERVING, &text, &groups, &[&text, "a", "b", "c", "d"], &text);
    value["metadata"] = json!({"name": "c", "uid": "1"});
    value["status"] = json!({"conditions": [{"type": text}, {"type": "Approved", "status": "True", "message": text}]});
    let trimmed = trim(read(value)).unwrap();
    assert!(serde_json::to_string(&trimmed).unwrap().len() < 32 << 10);
    assert_eq!(trimmed.spec.groups.as_deref().unwrap_or_default(), ["system:nodes"]);
    assert_eq!(trimmed.spec.usages.as_deref().unwrap_or_default().len(), 4);
    assert!(has(&trimmed, "Approved"));
    assert!(matches!(validate(&trimmed), Err(Refusal::RequestInvalid)));
    // A valid request loses nothing.
    let mut value = csr(CLIENT, NODE.0, NODE.1, &USAGES, &client_pem());
    value["metadata"] = json!({"name": "c", "uid": "1"});
    value["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    let original = validate(&read(value.clone())).unwrap();
    let trimmed = validate(&trim(read(value)).unwrap()).unwrap();
    assert_eq!(
        (trimmed.name, trimmed.is_approved, trimmed.enciphers),
        (original.name, true, original.enciphers)
    );
}
