//! The connection to the host.

use tokio::net::TcpListener;

use crate::fixtures::{DEMO, cluster};
use crate::host::Host;
use crate::tls::{Listener, authority};

#[tokio::test(flavor = "multi_thread")]
async fn failures_to_reach_the_host_are_explained() {
    let host = Host::start().await;
    let said = host.run_with("get", &host.path("absent")).await;
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("error: no kubeconfig for the host was found"),
        "{}",
        said.err
    );
    assert!(
        said.err
            .contains("hint: name the host's kubeconfig with --kubeconfig or KUBECONFIG"),
        "{}",
        said.err
    );
    let said = host.run("get --context nowhere").await;
    assert!(
        said.err
            .contains("error: cannot use the kubeconfig of the host: failed to load current context: nowhere"),
        "{}",
        said.err
    );
    let said = Host::new("http://127.0.0.1:1").run("get").await;
    assert!(
        said.err
            .starts_with("error: listing clusters: cannot reach the host's API at http://127.0.0.1:1/: "),
        "{}",
        said.err
    );
    assert_eq!(host.run("get --no-such-flag").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_on_the_command_line_are_used() {
    let host = Host::start().await;
    for (line, header, value) in [
        ("get", "authorization", "Bearer x"),
        ("get --user ann", "authorization", "Bearer anns"),
        ("get --token other", "authorization", "Bearer other"),
        ("get --as bob", "impersonate-user", "bob"),
        ("--as bob --as-group g --as-group h get", "impersonate-group", "g,h"),
        ("get --as bob --as-uid 7", "impersonate-uid", "7"),
    ] {
        let said = host.run(line).await;
        assert_eq!(
            (said.code, host.last_header(header).as_str()),
            (0, value),
            "{line}: {said:?}"
        );
    }
    let said = host.run("get --user nobody").await;
    assert_eq!(
        (said.code, said.err.as_str()),
        (
            1,
            "error: the kubeconfig of the host has no user \"nobody\"\nhint: see `kubectl config get-users`\n"
        )
    );
    // For this command, `--user` is a user of the Tenant only.
    let said = host.run("create tenant t --user nobody --wait=false").await;
    assert_eq!(
        (said.code, host.last_header("authorization").as_str()),
        (0, "Bearer x"),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_says_where_the_host_is() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[]));
    let elsewhere = Host::new("http://127.0.0.1:1");
    let dead = elsewhere.path("host.kubeconfig");
    let found = "cluster.yoke.drzzl.io/demo\n";
    let file = host.path("host.kubeconfig");
    for line in [
        format!("get -o name --kubeconfig {}", file.display()),
        format!("get -o name -s {}", host.url()),
        format!("get -o name --server={} -n t", host.url()),
    ] {
        let said = host.run_with(&line, &dead).await;
        assert_eq!(said.out, found, "{line}: {said:?}");
    }
    let without = host.path("absent");
    let line = format!("get -o name -n t --token x --server {}", host.url());
    assert_eq!(host.run_with(&line, &without).await.out, found);

    let two = std::fs::read_to_string(&file).unwrap().replace(
        "clusters:\n",
        "clusters:\n- {name: dead, cluster: {server: 'http://127.0.0.1:1'}}\n",
    );
    let two = two.replace(
        "contexts:\n",
        "contexts:\n- {name: empty, context: {cluster: host, user: me, namespace: u}}\n",
    );
    std::fs::write(host.path("two"), two).unwrap();
    for (line, code, out) in [
        ("get -o name --cluster dead", 1, ""),
        ("get -o name --cluster host", 0, found),
        ("get -o name --context empty", 0, ""),
        ("get -o name --context empty -n t", 0, found),
    ] {
        let said = host.run_with(line, &host.path("two")).await;
        assert_eq!((said.code, said.out.as_str()), (code, out), "{line}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_certificate_is_verified() {
    let (certificate, key) = authority("host.test");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = Host::new(&format!("https://{}", listener.local_addr().unwrap()));
    host.serve(Listener::new(listener, &certificate, &key));
    std::fs::write(host.path("ca.pem"), certificate.pem()).unwrap();
    let ca = format!("--certificate-authority {}", host.path("ca.pem").display());
    for (options, code, part) in [
        ("", 1, "UnknownIssuer"),
        (ca.as_str(), 1, "certificate not valid for name \"127.0.0.1\""),
        (&format!("{ca} --tls-server-name host.test"), 0, ""),
        ("--tls-server-name host.test", 1, "UnknownIssuer"),
        ("--insecure-skip-tls-verify", 0, ""),
        ("--insecure-skip-tls-verify=false", 1, "UnknownIssuer"),
    ] {
        let said = host.run(&format!("get -o name {options}")).await;
        assert!(said.code == code && said.err.contains(part), "{options}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_has_its_time() {
    let host = Host::start().await;
    host.stall("clusters");
    let said = host.run("get --request-timeout 1s").await;
    assert_eq!(said.code, 1);
    let error = format!(
        "error: listing clusters: no answer from the host's API at {}/ within 1s\n",
        host.url()
    );
    assert!(said.err.starts_with(&error), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn verbose_mode_shows_requests() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[]));
    for (line, shown) in [
        ("get", false),
        ("get -v 5", false),
        ("get -v=6", true),
        ("get --v=8", true),
    ] {
        let said = host.run(line).await;
        let request = format!(
            "GET {}/apis/yoke.drzzl.io/v1alpha1/namespaces/t/clusters 200 OK in ",
            host.url()
        );
        assert_eq!(said.err.starts_with(&request), shown, "{line}: {}", said.err);
        assert_eq!(said.err.is_empty(), !shown, "{line}");
    }
}
