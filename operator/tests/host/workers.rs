//! Workers join a cluster with a JoinToken and get certificates, with a real API.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use yoke_api::JoinToken;
use yoke_api::join_token::JoinLine;
use yoke_api::join_token::node::{check_labels, check_taints};
use yoke_operator::testing::join_token;
use yoke_pki::ParsedCertificate;
use yoke_pki::cert_manager::CertificateRequest;
use yoke_test_support::Process;
use yoke_test_support::kubernetes::{OWNER_TOKEN, connect};

use crate::harness::{Host, PKI, TENANT};
use crate::readiness::run_pod;

pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const SERVING: &str = "kubernetes.io/kubelet-serving";

/// A ready cluster, and its API.
pub(crate) struct Stage {
    pub(crate) host: Host,
    _process: Process,
    pub(crate) client: Client,
    pub(crate) url: String,
}

/// Final answer to a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The certificate chain.
    Signed(String),
    /// The reason.
    Refused(String),
}

impl Stage {
    pub(crate) async fn start() -> Self {
        let host = Host::start().await;
        host.bring_up("a").await;
        // Without konnectivity: here nothing would restart the control plane for the first
        // JoinToken.
        host.patch_cluster("a", json!({"spec": {"konnectivity": "Disabled"}}))
            .await;
        let (process, client) = host.start_tenant_api("a").await;
        run_pod(&host, "a").await;
        host.reconcile_until_ready("a").await;
        let hosted = host.hosted("a").await;
        let service = host.api::<k8s_openapi::api::core::v1::Service>(&hosted).get("a").await;
        let address = service.unwrap().spec.unwrap().cluster_ip.unwrap();
        Self {
            host,
            _process: process,
            client,
            url: format!("https://{address}:6443"),
        }
    }

    pub(crate) fn tokens(&self) -> Api<JoinToken> {
        self.host.api(TENANT)
    }

    pub(crate) async fn create_token(&self, name: &str, spec: Value) {
        let token: JoinToken =
            serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": name}, "spec": spec}))
            .unwrap();
        self.tokens().create(&PostParams::default(), &token).await.unwrap();
    }

    /// Returns status and reason of a JoinToken's condition.
    pub(crate) async fn condition(&self, name: &str) -> String {
        let status = self.tokens().get(name).await.unwrap().status.unwrap_or_default();
        let ready = status.conditions.first();
        ready.map_or_else(String::new, |ready| format!("{}/{}", ready.status, ready.reason))
    }

    /// Reconciles a JoinToken until its condition has this value.
    pub(crate) async fn reconcile_token_until(&self, name: &str, condition: &str) {
        let observe = async || {
            let _ = self.host.reconcile_tenant().await;
            self.reconcile_token(name).await;
            self.condition(name).await
        };
        let what = format!("the condition of JoinToken {name}");
        self.host.until_equal(&what, observe, condition).await;
    }

    pub(crate) async fn reconcile_token(&self, name: &str) {
        let Some(token) = self.tokens().get_opt(name).await.unwrap() else {
            return;
        };
        let result = Box::pin(join_token::reconcile(token.into(), self.host.join_token.clone()));
        if let Err(error) = result.await {
            eprintln!("{name}: {error:?}");
        }
    }

    pub(crate) async fn join_line(&self, name: &str) -> JoinLine {
        let secret = self.host.secret(TENANT, &format!("{name}-join")).await;
        JoinLine::from_secret(&secret.unwrap()).unwrap()
    }

    /// A client that impersonates a node.
    pub(crate) fn node(&self, name: &str) -> Client {
        self.impersonate(&format!("system:node:{name}"), &["system:nodes"])
    }

    /// A client that impersonates a user with these groups.
    pub(crate) fn impersonate(&self, name: &str, groups: &[&str]) -> Client {
        let mut config = kube::Config::new(self.url.parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(OWNER_TOKEN.to_owned().into());
        config.auth_info.impersonate = Some(name.into());
        config.auth_info.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
        Client::try_from(config).unwrap()
    }

    /// Creates a request as this client, and waits for its final answer.
    pub(crate) async fn request_and_wait(
        &self,
        client: &Client,
        name: &str,
        signer: &str,
        node: &str,
        names: &[&str],
    ) -> Answer {
        self.request(client, name, signer, node, names).await;
        self.answer(name).await
    }

    /// Creates a request as this client.
    pub(crate) async fn request(&self, client: &Client, name: &str, signer: &str, node: &str, names: &[&str]) {
        let usage = if signer == CLIENT { "client auth" } else { "server auth" };
        let csr = json!({"metadata": {"name": name}, "spec": {"signerName": signer,
            "request": data_encoding::BASE64.encode(pkcs10(node, names).as_bytes()),
            "usages": ["digital signature", usage]}});
        let csr = serde_json::from_value(csr).unwrap();
        let requests = Api::<CertificateSigningRequest>::all(client.clone());
        requests.create(&PostParams::default(), &csr).await.unwrap();
        if signer == CLIENT {
            // In the role of the controller manager.
            self.approve(name).await;
        }
    }

    /// Approves a request.
    pub(crate) async fn approve(&self, name: &str) {
        let condition = json!({"type": "Approved", "status": "True", "reason": "AutoApproved", "message": "x"});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let params = PatchParams::default();
        let requests = self.requests();
        let approved = requests.patch_subresource("approval", name, &params, &patch);
        approved.await.unwrap();
    }

    pub(crate) fn requests(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.clone())
    }

    /// Waits for the final answer to a request.
    pub(crate) async fn answer(&self, name: &str) -> Answer {
        let observe = async || {
            let _ = self.host.reconcile("a").await;
            self.host.issuer.issue_requests(&self.host.client).await;
            let status = self.requests().get(name).await.unwrap().status.unwrap_or_default();
            let failed = status.conditions.unwrap_or_default();
            let failed = failed.into_iter().find(|condition| condition.type_ == "Failed");
            let chain = status.certificate.map(|chain| String::from_utf8(chain.0).unwrap());
            let refused = failed.map(|failed| Answer::Refused(failed.reason.unwrap_or_default()));
            refused.or_else(|| chain.map(Answer::Signed))
        };
        let what = format!("an answer to request {name}");
        self.host.until(&what, observe, Option::is_some).await.unwrap()
    }
}

fn pkcs10(node: &str, names: &[&str]) -> String {
    let mut params =
        rcgen::CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "system:nodes");
    let name = format!("system:node:{node}");
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

pub(crate) fn refused(reason: &str) -> Answer {
    Answer::Refused(reason.into())
}

pub(crate) fn certificate_of(answer: Answer) -> ParsedCertificate {
    match answer {
        Answer::Signed(chain) => ParsedCertificate::from_pem(&chain).unwrap().remove(0),
        Answer::Refused(reason) => panic!("refused: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_joins_once_and_gets_certificates() {
    let mut stage = Stage::start().await;
    let host = &stage.host;
    let taints = json!([{"key": "gpu", "value": "a", "effect": "NoSchedule"}]);
    let spec = json!({"clusterName": "a", "nodeLabels": {"example.org/disk": "ssd"}, "taints": taints});
    stage.create_token("j", spec).await;
    let observe = async || {
        stage.reconcile_token("j").await;
        stage.condition("j").await
    };
    // The Role names its Secret first.
    host.until_equal("the condition of JoinToken j", observe, "False/RolePending")
        .await;
    stage.reconcile_token_until("j", "True/AsExpected").await;
    // An operator that has just started has probed no API yet, and reports nothing about it.
    stage.host.restart_operator().await;
    let host = &stage.host;
    let before = stage.tokens().get("j").await.unwrap();
    stage.reconcile_token("j").await;
    assert_eq!(stage.tokens().get("j").await.unwrap().status, before.status);
    host.reconcile("a").await.unwrap();
    let role = host.api::<Role>(TENANT).get("yoke-tenant").await.unwrap();
    assert!(
        format!("{role:?}").contains("\"j-join\""),
        "the Tenant cannot read the Secret"
    );
    let line = JoinLine::parse(&stage.join_line("j").await.encode().unwrap()).unwrap();
    assert!(
        line.server.starts_with("a-") && line.server.ends_with(":443"),
        "{line:?}"
    );
    assert_eq!(line.address, Some([100, 64, 0, 2].into()), "not the ingress");
    assert_eq!(line.ca, host.text(PKI, "yoke-root", "tls.crt").await);
    assert_eq!(line.node_labels["example.org/disk"], "ssd");
    assert_eq!(json!(line.taints), taints);
    assert!(line.pod_network);

    let bootstrap = connect(&stage.url, &line.token);
    let certificate = certificate_of(stage.request_and_wait(&bootstrap, "c1", CLIENT, "n1", &[]).await);
    assert_eq!(certificate.subject.common_name.as_deref(), Some("system:node:n1"));
    let token = stage.tokens().get("j").await.unwrap().status.unwrap();
    let nodes: Vec<_> = token.uses.iter().map(|each| each.node.as_str()).collect();
    assert_eq!(nodes, ["n1"]);
    assert_eq!(
        stage.request_and_wait(&bootstrap, "c2", CLIENT, "n2", &[]).await,
        refused("TokenUsedUp")
    );

    // Requests of the node itself.
    let node = stage.node("n1");
    assert_eq!(
        stage.request_and_wait(&node, "c3", SERVING, "n1", &["n1"]).await,
        refused("NodeMissing")
    );
    let nodes = Api::<Node>::all(stage.client.clone());
    let node_object = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node_object).await.unwrap();
    let addresses = json!({"status": {"addresses": [{"type": "Hostname", "address": "n1"},
        {"type": "InternalIP", "address": "192.0.2.1"}]}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(addresses));
    nodes.patch_status("n1", &params, &patch).await.unwrap();
    let certificate = certificate_of(
        stage
            .request_and_wait(&node, "c4", SERVING, "n1", &["n1", "192.0.2.1"])
            .await,
    );
    assert_eq!(certificate.dns_names, ["n1"]);
    assert_eq!(
        stage
            .request_and_wait(&node, "c5", SERVING, "n1", &["kubernetes.default"])
            .await,
        refused("NamesNotOfNode")
    );
    certificate_of(stage.request_and_wait(&node, "c6", CLIENT, "n1", &[]).await);
    assert_eq!(
        stage.request_and_wait(&stage.client, "c7", CLIENT, "n1", &[]).await,
        refused("RequesterInvalid")
    );
    let remaining = host
        .api::<CertificateRequest>(PKI)
        .list(&Default::default())
        .await
        .unwrap();
    assert!(remaining.items.is_empty(), "cert-manager still has requests");

    // With a later JoinToken, the worker does not set up the Pod network. A request with an
    // existing Node's name costs no use.
    let addons = json!({"spec": {"addons": {"podNetwork": {"enabled": false}}}});
    host.patch_cluster("a", addons).await;
    host.reconcile("a").await.unwrap();
    stage.create_token("k", json!({"clusterName": "a", "maxUses": 2})).await;
    stage.reconcile_token_until("k", "True/AsExpected").await;
    assert!(!stage.join_line("k").await.pod_network);
    let other = connect(&stage.url, &stage.join_line("k").await.token);
    assert_eq!(
        stage.request_and_wait(&other, "c8", CLIENT, "n1", &[]).await,
        refused("NodeExists")
    );
    assert!(stage.tokens().get("k").await.unwrap().status.unwrap().uses.is_empty());

    // Revocation of the JoinToken.
    let secrets = Api::<Secret>::namespaced(stage.client.clone(), "kube-system");
    let id = stage.join_line("k").await.token_id().to_owned();
    let name = format!("bootstrap-token-{id}");
    assert!(secrets.get_opt(&name).await.unwrap().is_some());
    stage.tokens().delete("k", &Default::default()).await.unwrap();
    let observe = async || {
        stage.reconcile_token("k").await;
        stage.tokens().get_opt("k").await.unwrap()
    };
    host.until_none("the revocation of the JoinToken", observe).await;
    assert!(secrets.get_opt(&name).await.unwrap().is_none());
    assert!(host.secret(TENANT, "k-join").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_waits_for_its_cluster() {
    let host = Host::start().await;
    let tokens = host.api::<JoinToken>(TENANT);
    let token: JoinToken = serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
        "metadata": {"name": "j"}, "spec": {"clusterName": "a"}}))
    .unwrap();
    tokens.create(&PostParams::default(), &token).await.unwrap();
    let reconcile = async || {
        let token = tokens.get("j").await.unwrap();
        join_token::reconcile(token.into(), host.join_token.clone())
            .await
            .unwrap();
        let status = tokens.get("j").await.unwrap().status.unwrap();
        (status.conditions[0].reason.clone(), status.secret_ref)
    };
    assert_eq!(reconcile().await, ("ClusterMissing".to_owned(), None));
    host.create_cluster("a").await;
    let expected = ("ClusterNotReady".to_owned(), None);
    host.reconcile_until_equal("a", "reason and Secret of the JoinToken", reconcile, expected)
        .await;
    // The JoinToken has no finalizer yet, so it is deleted at once.
    tokens.delete("j", &Default::default()).await.unwrap();
    assert!(tokens.get_opt("j").await.unwrap().is_none());
    for (rule, spec) in [
        ("a ttl that is too long", json!({"clusterName": "a", "ttl": "25h"})),
        ("a ttl of zero", json!({"clusterName": "a", "ttl": "0m"})),
        ("too many uses", json!({"clusterName": "a", "maxUses": 101})),
        ("no uses", json!({"clusterName": "a", "maxUses": 0})),
        ("no name of a Cluster", json!({"clusterName": ""})),
    ] {
        let mut refused = token.clone();
        refused.spec = serde_json::from_value(spec).unwrap();
        assert!(tokens.create(&PostParams::default(), &refused).await.is_err(), "{rule}");
    }
}

/// The CRD accepts exactly what a worker accepts in its join line.
#[tokio::test(flavor = "multi_thread")]
async fn the_crd_and_the_worker_accept_the_same_labels_and_taints() {
    let host = Host::start().await;
    let tokens = host.api::<JoinToken>(TENANT);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let create = async |spec: Value| {
        let token: JoinToken = serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1",
            "kind": "JoinToken", "metadata": {"name": "j"}, "spec": spec}))
        .unwrap();
        let is_sound = check_labels(&token.spec.node_labels).is_ok() && check_taints(&token.spec.taints).is_ok();
        (
            is_sound,
            tokens.create(&dry, &token).await.map_err(|error| error.to_string()),
        )
    };
    let part = "a".repeat(63);
    let domain = |last: usize| format!("{part}.{part}.{part}.{}", "b".repeat(last));
    for (key, good) in [
        ("a".to_owned(), true),
        (part.clone(), true),
        (format!("{}/{part}", domain(61)), true),
        (format!("{}/a", domain(62)), false),
        (format!("{part}a"), false),
        (format!("{part}a.org/a"), false),
        ("Example.org/A_b.c-1".into(), false),
        ("example.org/A_b.c-1".into(), true),
        ("-a".into(), false),
        ("a/".into(), false),
        ("/a".into(), false),
        ("a//b".into(), false),
        ("a b".into(), false),
        ("a,b".into(), false),
        ("\u{e9}".into(), false),
        ("a\n".into(), false),
        ("kubernetes.io/hostname".into(), false),
        ("node-role.kubernetes.io/a".into(), false),
        ("node-restriction.kubernetes.io/a".into(), false),
        ("a.node-restriction.kubernetes.io/a".into(), false),
        ("k8s.io/a".into(), false),
        ("a.k8s.io/a".into(), false),
        ("node.kubernetes.io/instance-type".into(), true),
        ("a.kubelet.kubernetes.io/a".into(), true),
        ("topology.kubernetes.io/zone".into(), true),
        ("topology.kubernetes.io/rack".into(), false),
        ("notkubernetes.io/a".into(), true),
    ] {
        let (is_sound, created) = create(json!({"clusterName": "a", "nodeLabels": {&key: "b"}})).await;
        assert_eq!((is_sound, created.is_ok()), (good, good), "{key}: {created:?}");
    }
    let many = |count: usize| -> Value { (0..count).map(|at| (format!("a{at}"), json!(""))).collect() };
    let taint = |key: &str, value: &str| json!({"key": key, "value": value, "effect": "NoSchedule"});
    let taints = |count: usize| -> Value { (0..count).map(|at| taint(&format!("a{at}"), "")).collect() };
    for (rule, spec, good) in [
        ("32 labels", json!({"nodeLabels": many(32)}), true),
        ("33 labels", json!({"nodeLabels": many(33)}), false),
        ("a value of 63 characters", json!({"nodeLabels": {"a": part}}), true),
        (
            "a value of 64 characters",
            json!({"nodeLabels": {"a": format!("{part}a")}}),
            false,
        ),
        ("an invalid value", json!({"nodeLabels": {"a": "b c"}}), false),
        ("16 taints", json!({"taints": taints(16)}), true),
        ("17 taints", json!({"taints": taints(17)}), false),
        (
            "the same key and effect twice",
            json!({"taints": [taint("a", "b"), taint("a", "c")]}),
            false,
        ),
        (
            "a taint of Kubernetes",
            json!({"taints": [taint("node.kubernetes.io/not-ready", "")]}),
            false,
        ),
        (
            "a taint of a role",
            json!({"taints": [taint("node-role.kubernetes.io/a", "")]}),
            true,
        ),
        ("an invalid key", json!({"taints": [taint("a b", "")]}), false),
        (
            "an invalid value of a taint",
            json!({"taints": [taint("a", "b:c")]}),
            false,
        ),
    ] {
        let mut spec = spec;
        spec["clusterName"] = "a".into();
        let (is_sound, created) = create(spec).await;
        assert_eq!((is_sound, created.is_ok()), (good, good), "{rule}: {created:?}");
    }
    let (_, refused) =
        create(json!({"clusterName": "a", "nodeLabels": {"node-restriction.kubernetes.io/a": "b"}})).await;
    assert!(
        refused
            .unwrap_err()
            .contains("under kubernetes.io and k8s.io, a worker may set only")
    );
}
