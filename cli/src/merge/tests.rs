use super::*;

const ADDED: &str = "
apiVersion: v1
kind: Config
clusters:
- {name: c, cluster: {server: 'https://192.0.2.1:443', tls-server-name: demo-bcdfghjk.yoke.test, certificate-authority-data: QQ==}}
- {name: other, cluster: {server: 'https://nowhere'}}
users:
- {name: u, user: {client-certificate-data: QQ==, client-key-data: Qg==}}
contexts:
- {name: x, context: {cluster: c, user: u, namespace: default}}
current-context: x
";

const OWN: &str = "
apiVersion: v1
kind: Config
preferences: {colors: true}
unknown-field: {kept: [1, true, null, 'yes']}
clusters:
- name: home
  cluster: {server: https://home, insecure-skip-tls-verify: true, future: {a: 1}}
  extra: kept
users:
- name: home
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, args: ['on', '0123'], provideClusterInfo: false}}
contexts:
- name: home
  context: {cluster: home, user: home, namespace: work}
current-context: home
";

fn tree(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn new_file_holds_the_one_context() {
    for existing in ["", "\n", "# only a comment\n", "clusters: null\n"] {
        let merged = merge(existing, ADDED, "t/demo").unwrap();
        assert_eq!(merged.previous_context, None);
        assert_eq!(
            merged.text,
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QQ==\n    server: https://192.0.2.1:443\n    \
             tls-server-name: demo-bcdfghjk.yoke.test\n  name: t/demo\ncontexts:\n- context:\n    cluster: t/demo\n    \
             namespace: default\n    user: t/demo\n  name: t/demo\ncurrent-context: t/demo\nkind: Config\nusers:\n- name: t/demo\n  \
             user:\n    client-certificate-data: QQ==\n    client-key-data: Qg==\n",
            "{existing:?}"
        );
    }
}

#[test]
fn nothing_of_the_persons_own_is_lost() {
    let merged = merge(OWN, ADDED, "t/demo").unwrap();
    assert_eq!(merged.previous_context.as_deref(), Some("home"));
    let (before, after) = (tree(OWN), tree(&merged.text));
    for (key, value) in before.as_object().unwrap() {
        match value {
            Value::Array(entries) => {
                assert_eq!(&after[key].as_array().unwrap()[..entries.len()], &entries[..], "{key}");
                assert_eq!(after[key].as_array().unwrap().len(), entries.len() + 1, "{key}");
            }
            value if key != "current-context" => assert_eq!(&after[key], value, "{key}"),
            _ => assert_eq!(after[key], "t/demo"),
        }
    }
}

#[test]
fn again_changes_the_credentials_only() {
    let once = merge(OWN, ADDED, "t/demo").unwrap().text;
    assert_eq!(merge(&once, ADDED, "t/demo").unwrap().text, once);
    let renewed = ADDED.replace("Qg==", "Qw==").replace("192.0.2.1", "192.0.2.9");
    let twice = merge(&once, &renewed, "t/demo").unwrap().text;
    assert_eq!(twice, once.replace("Qg==", "Qw==").replace("192.0.2.1", "192.0.2.9"));
}

#[test]
fn names_of_others_are_refused() {
    for (existing, kind) in [
        (OWN.to_owned(), "cluster"),
        ("users: [{name: home, user: {token: a}}]".to_owned(), "user"),
        (
            "contexts: [{name: home, context: {cluster: a, user: b}}]".to_owned(),
            "context",
        ),
    ] {
        match merge(&existing, ADDED, "home") {
            Err(MergeError::Taken { kind: found, name }) => assert_eq!((found, name.as_str()), (kind, "home")),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_no_kubeconfig_is_left_alone() {
    assert!(matches!(merge("a: [", ADDED, "n"), Err(MergeError::Unreadable(_))));
    assert!(matches!(merge("[1]", ADDED, "n"), Err(MergeError::NotKubeconfig(_))));
    assert!(matches!(
        merge("kind: Pod", ADDED, "n"),
        Err(MergeError::NotKubeconfig(_))
    ));
    assert!(matches!(
        merge("clusters: {a: b}", ADDED, "n"),
        Err(MergeError::NotKubeconfig(_))
    ));
    assert!(matches!(merge("", "[", "n"), Err(MergeError::AddedUnreadable(_))));
    assert!(matches!(
        merge("", "kind: Config", "n"),
        Err(MergeError::AddedLacks("current context"))
    ));
    assert!(matches!(
        merge("", &ADDED.replace("user: u", "user: v"), "n"),
        Err(MergeError::AddedLacks("user"))
    ));
}
