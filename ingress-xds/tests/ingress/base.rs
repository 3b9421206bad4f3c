//! The base configuration: a ConfigMap with the host owner's own Envoy resources.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use yoke_ingress_xds::model::observation::{ObjectKey, Watched};
use yoke_test_support::free_port;

use crate::Stage;
use crate::support::envoy::Envoy;
use crate::support::tenant::{LongStream, ask};
use crate::support::{PATIENCE, eventually, loopback};

const REFUSED: &str = "yoke_ingress_xds_base_refused";

pub(crate) fn map(data: &[(&str, String)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some("yoke-system".into()),
            name: Some("ingress-base".into()),
            uid: Some("1".into()),
            ..Default::default()
        },
        data: Some(
            data.iter()
                .map(|(key, text)| ((*key).to_owned(), text.clone()))
                .collect(),
        ),
        ..Default::default()
    }
}

/// A listener with this `route_specifier` in its HTTP connection manager.
fn listener(name: &str, port: u16, routes: &str) -> String {
    format!(
        r#"
- name: {name}
  address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: {name}
        http_filters:
        - name: envoy.filters.http.router
          typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
        {routes}
"#
    )
}

const BY_RDS: &str = "rds: {route_config_name: web, config_source: {resource_api_version: V3, ads: {}}}";

/// A route that answers with a text, without a cluster.
fn direct(text: &str) -> String {
    format!(
        "route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: \
         {{status: 200, body: {{inline_string: {text}}}}}}}]}}]}}"
    )
}

fn cluster(name: &str, upstream: SocketAddr) -> String {
    format!(
        "- {{name: {name}, type: STATIC, connect_timeout: 1s, load_assignment: {{cluster_name: {name}, endpoints: \
         [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}]}}]}}}}\n",
        upstream.ip(),
        upstream.port()
    )
}

/// A listener, its routes, and two clusters, one with separate endpoints. The text is JSON, which
/// is valid YAML.
pub(crate) fn web(port: u16, upstream: SocketAddr, to: &str) -> Vec<(&'static str, String)> {
    let apart = r#"{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "two", "type": "EDS",
        "connectTimeout": "1s", "edsClusterConfig": {"edsConfig": {"resourceApiVersion": "V3", "ads": {}}}}"#;
    vec![
        ("listeners", listener("web", port, BY_RDS)),
        (
            "routes",
            format!(
                "- {{name: web, virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: \
                 {{cluster: {to}}}}}]}}]}}"
            ),
        ),
        ("clusters", format!("{}- {apart}", cluster("one", upstream))),
        (
            "endpoints",
            format!(
                "- {{cluster_name: two, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: \
                 {{address: {}, port_value: {}}}}}}}}}]}}]}}",
                upstream.ip(),
                upstream.port()
            ),
        ),
    ]
}

/// A server that answers every request with its own port.
async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let text = format!("{}", address.port());
            let answer = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

async fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(loopback(port)).await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

async fn wait_for(what: &str, port: u16, expected: &str) {
    yoke_test_support::eventually(what, PATIENCE, async || get(port).await, |text| text == expected)
        .await
        .unwrap();
}

async fn watch(stage: &Stage) -> LongStream {
    let admin = stage.ca.client(Some(&stage.ca.leaf("admin", &[])));
    LongStream::open(stage.envoy.ingress, &stage.clusters[1].public_name(), &admin).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_is_served_changed_and_removed() {
    let stage = Stage::new(2).await;
    let mut watch = watch(&stage).await;
    let (port, first, second) = (free_port(), upstream().await, upstream().await);
    let started = stage.envoy.stat("listener_manager.listener_create_success").await;

    let base = map(&web(port, first, "one"));
    stage.xds().apply_base(&base).await;
    assert!(!stage.xds().notice().await.refused);
    wait_for("the first answer", port, &first.port().to_string()).await;

    // Other routes through the separate endpoints, and finally another upstream.
    stage.xds().apply_base(&map(&web(port, first, "two"))).await;
    wait_for("an answer of the endpoints", port, &first.port().to_string()).await;
    stage.xds().apply_base(&map(&web(port, second, "two"))).await;
    wait_for("an answer after the change", port, &second.port().to_string()).await;
    let created = stage.envoy.stat("listener_manager.listener_create_success").await;
    assert_eq!(created - started, 1, "no change of routes touches a listener");
    stage
        .xds()
        .apply_base(&map(&[("listeners", listener("web", port, &direct("three")))]))
        .await;
    wait_for("an answer of the other listener", port, "three").await;
    stage
        .xds()
        .apply_base(&map(&[("listeners", listener("again", port, &direct("four")))]))
        .await;
    wait_for("an answer of the renamed listener", port, "four").await;
    watch.echo("through all changes").await;

    let gone = Watched::Deleted(ObjectKey::of(&base.metadata));
    stage.xds().see_base(gone).await;
    eventually("the listener to be removed", PATIENCE, async || get(port).await.err()).await;
    for name in ["one", "two"] {
        let stat = format!("cluster.{name}.upstream_cx_total");
        eventually("the clusters to be removed", PATIENCE, async || {
            stage.envoy.try_stat(&stat).await.is_none().then_some(())
        })
        .await;
    }
    for cluster in &stage.clusters {
        stage.wait_served(&cluster.public_name()).await;
    }
    watch.echo("after it").await;
    assert_eq!(
        stage
            .xds()
            .metric("yoke_ingress_xds_refused_responses_total{type=\"listener\"}"),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_base_is_refused_and_the_last_good_one_stays() {
    let stage = Stage::new(2).await;
    let mut watch = watch(&stage).await;
    let (port, other, upstream) = (free_port(), free_port(), upstream().await);
    let tenant = format!("name/{}", stage.clusters[0].public_name());
    let good = web(port, upstream, "one");
    stage.xds().apply_base(&map(&good)).await;
    assert!(!stage.xds().notice().await.refused);
    wait_for("the first answer", port, &upstream.port().to_string()).await;

    let answers = direct("changed");
    let route = |to: &str| {
        format!(
            "- {{name: more, virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{{to}}}}}]}}]}}"
        )
    };
    for (rule, key, text, reason) in [
        (
            "no YAML",
            "clusters",
            "- {name: [".to_owned(),
            "reading the key clusters",
        ),
        ("an unknown key", "listener", "[]".into(), "the key listener is unknown"),
        (
            "an unknown field",
            "clusters",
            "- {name: a, colour: red}".into(),
            "colour",
        ),
        ("our cluster", "clusters", cluster("gate", upstream), "clusters gate"),
        (
            "a tenant's cluster",
            "clusters",
            cluster(&tenant, upstream),
            "has a name that is reserved for the ingress",
        ),
        (
            "our listener",
            "listeners",
            listener("ingress", other, &answers),
            "listeners ingress",
        ),
        (
            "our port",
            "listeners",
            listener("more", 8443, &answers),
            "listens on port 8443",
        ),
        (
            "a way to a tenant",
            "routes",
            route(&format!("cluster: {tenant}")),
            "leads to name/",
        ),
        (
            "a way to anywhere",
            "routes",
            route("cluster_header: x-to"),
            "lets a client choose",
        ),
        // Errors that only Envoy detects.
        (
            "a cluster that Envoy does not take",
            "clusters",
            cluster("more", upstream).replace("1s", "0s"),
            "Envoy rejected more",
        ),
        (
            "a listener that Envoy does not take",
            "listeners",
            listener("more", port, &answers),
            "Envoy rejected more",
        ),
        (
            "a route without a cluster",
            "listeners",
            listener(
                "more",
                other,
                &route("cluster: nowhere").replace("- {name: more, ", "route_config: {"),
            ),
            "nowhere",
        ),
    ] {
        // The rejected configuration also changes a valid part, which must not be served either.
        let mut data: BTreeMap<_, _> = good.iter().cloned().collect();
        data.insert("listeners", listener("web", port, &answers));
        let before = data.remove(key).unwrap_or_default();
        let text = format!("{before}\n{text}");
        data.insert(key, text);
        let data: Vec<_> = data.into_iter().collect();
        stage.xds().apply_base(&map(&data)).await;
        let notice = loop {
            let notice = stage.xds().notice().await;
            if notice.refused {
                break notice;
            }
        };
        assert!(notice.note.contains(reason), "{rule}: {}", notice.note);
        assert!(
            notice.note.ends_with("The last good configuration is still served."),
            "{rule}: {}",
            notice.note
        );
        assert_eq!(notice.object.name.as_deref(), Some("ingress-base"), "{rule}");
        assert_eq!(stage.xds().metric(REFUSED), 1, "{rule}");
        wait_for(rule, port, &upstream.port().to_string()).await;
        assert!(get(other).await.is_err(), "{rule}: nothing of it is served");
        watch.echo(rule).await;
        assert_eq!(
            stage.ask(&stage.clusters[0].public_name()).await.unwrap(),
            "a to nobody",
            "{rule}"
        );
    }

    stage.xds().apply_base(&map(&good)).await;
    assert!(!stage.xds().notice().await.refused, "it is mended");
    assert_eq!(stage.xds().metric(REFUSED), 0);
    watch.echo("after all").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_base_survives_a_server_restart() {
    let mut stage = Stage::new(2).await;
    let mut watch = watch(&stage).await;
    let (port, upstream) = (free_port(), upstream().await);
    stage.xds().apply_base(&map(&web(port, upstream, "two"))).await;
    wait_for("the first answer", port, &upstream.port().to_string()).await;

    stage.xds.take().unwrap().stop().await;
    let xds = stage.site.start().await;
    let bad = map(&[("clusters", "- {name: gate}".into())]);
    let clusters: Vec<_> = stage.clusters.iter().collect();
    xds.list_with(&clusters, Some(&bad)).await;
    let notice = xds.notice().await;
    assert!(
        notice.refused
            && notice
                .note
                .ends_with("Each Envoy continues with the resources that it has."),
        "{notice:?}"
    );
    // A change that arrives shows that Envoy is connected to the new server.
    xds.delete(&stage.clusters[0]).await;
    stage.xds = Some(xds);
    stage.wait_closed(&stage.clusters[0].public_name()).await;
    assert_eq!(get(port).await.unwrap(), upstream.port().to_string());

    let gone = Watched::Deleted(ObjectKey::of(&bad.metadata));
    stage.xds().see_base(gone).await;
    eventually("the added listener to be removed", PATIENCE, async || {
        get(port).await.err()
    })
    .await;
    watch.echo("through all of it").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_envoy_never_waits_forever() {
    let stage = Stage::new(2).await;
    let (port, upstream) = (free_port(), upstream().await);
    let mut data = web(port, upstream, "two");
    data.retain(|(key, _)| !["endpoints", "routes"].contains(key));
    stage.xds().apply_base(&map(&data)).await;
    assert!(!stage.xds().notice().await.refused);

    let site = &stage.site;
    let envoy = Envoy::start(site.address, &site.client_leaf(), &site.ca.pem).await;
    // Envoy waits 15 s for the missing routes.
    let ready = async || envoy.is_ready().await.then_some(());
    eventually("Envoy to be ready", PATIENCE * 2, ready).await;
    let name = stage.clusters[0].public_name();
    let asked = async || ask(envoy.ingress, &name, &stage.anonymous()).await.ok();
    eventually("a tenant to be served", PATIENCE, asked).await;
}
