use super::*;

fn admin() -> Kubeconfig {
    Kubeconfig {
        context: "demo".into(),
        user: "yoke:admin".into(),
        namespace: None,
        server: "https://100.64.0.2:443".into(),
        tls_server_name: Some("demo-bcdfghjk.yoke.test".into()),
        authority: Authority::Data("root\n".into()),
        credential: Credential::Data {
            certificate: "certificate\n".into(),
            key: "key\n".into(),
        },
    }
}

const ADMIN: &str = "\
apiVersion: v1
kind: Config
clusters:
- name: demo
  cluster:
    server: https://100.64.0.2:443
    tls-server-name: demo-bcdfghjk.yoke.test
    certificate-authority-data: cm9vdAo=
users:
- name: yoke:admin
  user:
    client-certificate-data: Y2VydGlmaWNhdGUK
    client-key-data: a2V5Cg==
contexts:
- name: demo
  context:
    cluster: demo
    user: yoke:admin
current-context: demo
";

#[test]
fn tenant_kubeconfig_is_as_expected() {
    assert_eq!(admin().to_yaml().unwrap(), ADMIN);
}

#[test]
fn what_is_written_is_read() {
    let files = Kubeconfig {
        authority: Authority::File("/pki/ca.crt".into()),
        credential: Credential::Files {
            certificate: "/pki/tls.crt".into(),
            key: "/pki/tls.key".into(),
        },
        tls_server_name: None,
        namespace: Some("kube-system".into()),
        ..admin()
    };
    let token = Kubeconfig {
        credential: Credential::Token("abcdef.0123456789abcdef".into()),
        // Strings that YAML would parse as another type.
        context: "true".into(),
        user: "123".into(),
        ..admin()
    };
    let token_file = Kubeconfig {
        credential: Credential::TokenFile("/var/run/token".into()),
        ..admin()
    };
    assert!(token_file.to_yaml().unwrap().contains("tokenFile: /var/run/token\n"));
    for kubeconfig in [admin(), files, token, token_file] {
        let text = kubeconfig.to_yaml().unwrap();
        assert_eq!(Kubeconfig::from_yaml(&text).unwrap(), kubeconfig, "{text}");
    }
}

#[test]
fn long_data_stays_on_one_line() {
    let mut kubeconfig = admin();
    kubeconfig.authority = Authority::Data("x".repeat(4000));
    let text = kubeconfig.to_yaml().unwrap();
    assert_eq!(text.lines().count(), ADMIN.lines().count());
    assert_eq!(Kubeconfig::from_yaml(&text).unwrap(), kubeconfig);
}

#[test]
fn bad_kubeconfigs_are_refused() {
    let read = |from: &str, to: &str| {
        assert!(ADMIN.contains(from), "{from}");
        Kubeconfig::from_yaml(&ADMIN.replace(from, to)).unwrap_err()
    };
    assert!(matches!(Kubeconfig::from_yaml("- a"), Err(KubeconfigError::Shape)));
    assert!(matches!(
        read("kind: Config", "kind: Secret"),
        KubeconfigError::Kind { .. }
    ));
    assert!(matches!(
        read("current-context: demo", "current-context: other"),
        KubeconfigError::Context
    ));
    assert!(matches!(
        read("    user: yoke:admin", "    user: other"),
        KubeconfigError::Context
    ));
    assert!(matches!(
        read("cm9vdAo=", "no-base64"),
        KubeconfigError::Data("certificate-authority-data")
    ));
    assert!(matches!(
        read("    client-key-data: a2V5Cg==\n", ""),
        KubeconfigError::Fields("credential")
    ));
    assert!(matches!(
        read("    certificate-authority-data: cm9vdAo=\n", ""),
        KubeconfigError::Fields("certificate authority")
    ));
}

#[test]
fn debug_shows_no_secret() {
    assert!(!format!("{:?}", admin()).contains("key"));
}
