//! Certificate requests in a tenant's cluster: the answers of Yoke's signer, regardless of
//! approval.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::{Client, Error};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use yoke_e2e::ssh::Key;
use yoke_e2e::stack::client;
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, wait_for};

const USER: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
/// A signer answers within milliseconds after the approval.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const SIGNED: &str = "it is signed";

/// A certificate request.
struct Request<'a> {
    signer: &'a str,
    subject: (&'a str, Option<&'a str>),
    names: &'a [&'a str],
}

impl<'a> Request<'a> {
    fn of_node(signer: &'a str, node: &'a str, names: &'a [&'a str]) -> Self {
        Self {
            signer,
            subject: (node, Some("system:nodes")),
            names,
        }
    }

    fn build(&self) -> Result<CertificateSigningRequest> {
        let names: Vec<_> = self.names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names)?;
        let (name, organization) = self.subject;
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        if let Some(organization) = organization {
            parameters
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        let usage = if self.signer == SERVING {
            "server auth"
        } else {
            "client auth"
        };
        Ok(CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some("asked-".into()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(parameters.serialize_request(&KeyPair::generate()?)?.pem()?.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(vec!["digital signature".into(), usage.into()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        })
    }
}

/// Creates a request with the client `asks` and approves it as the tenant. Returns [`SIGNED`], or
/// the reason of the failure.
async fn answer(asks: &Client, tenant: Workload<'_>, request: &Request<'_>) -> Result<String> {
    let requests = Api::<CertificateSigningRequest>::all(asks.clone());
    let made = requests.create(&PostParams::default(), &request.build()?).await?;
    let name = made.metadata.name.context("a request without a name")?;
    tenant.kubectl(&["certificate", "approve", &name]).await?;
    wait_for(&format!("an answer to {name}"), ANSWER_LIMIT, async || {
        let status = requests.get(&name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let refused = conditions.iter().find(|condition| condition.type_ == "Failed");
        let refused = refused.map(|condition| condition.reason.clone().unwrap_or_default());
        Ok(status.certificate.map(|_| SIGNED.to_owned()).or(refused))
    })
    .await
}

/// A tenant's administrator may request and approve anything. But the control plane has no key to
/// sign it. The signer that has the key signs only certificates for users.
#[tokio::test]
async fn a_tenants_approval_is_enough_only_for_its_own_users() -> Result<()> {
    let stack = Stack::connect().await?;
    let (one, two) = tokio::try_join!(
        TenantFixture::create(&stack, "asks"),
        TenantFixture::create(&stack, "asked-for")
    )?;
    let ((_, kubeconfig), (other, _)) = tokio::try_join!(one.ready_cluster("a"), two.ready_cluster("b"))?;
    let foreign = other
        .status
        .and_then(|status| status.endpoint)
        .context("no endpoint")?
        .server_name;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let tenant = client(&kubeconfig).await?;
    let names = ["kubernetes.default.svc", "10.96.0.1", &foreign];
    let user = |name, names| Request {
        signer: USER,
        subject: (name, None),
        names,
    };
    for (rule, request, expected) in [
        ("a user", user("somebody", &[]), SIGNED),
        ("a user with names", user("somebody", &names), "NamesNotAllowed"),
        ("a controller", user("system:kube-scheduler", &[]), "NameReserved"),
        (
            "a kubelet",
            Request::of_node(KUBELET, "system:node:n", &[]),
            "RequesterInvalid",
        ),
        (
            "a kubelet that serves",
            Request::of_node(SERVING, "system:node:n", &names),
            "RequesterInvalid",
        ),
    ] {
        let found = answer(&tenant, inside, &request).await.context(rule)?;
        ensure!(found == expected, "{rule}: {found}, and not {expected}");
    }
    tokio::try_join!(one.remove(), two.remove())?;
    Ok(())
}

/// An attacker who took over a worker has the credentials of its kubelet.
#[tokio::test]
async fn a_kubelet_is_its_own_node_in_its_own_cluster_only() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "kubelet", key.to_spec()).await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let line = stack.yoke(&["join", "a", "-n", &tenant.name]).await?.ok()?;
    let worker = Worker::join_with(&stack, &key.path, "a", Some(&line)).await?;
    let kubelet = worker.client(&kubeconfig).await?;
    let (node, own) = (worker.name.as_str(), format!("system:node:{}", worker.name));
    for (rule, signer, names, expected) in [
        ("its own", KUBELET, vec![], SIGNED),
        ("its own name", SERVING, vec![node], SIGNED),
        ("another address", SERVING, vec![node, "10.96.0.1"], "NamesNotOfNode"),
        (
            "another name",
            SERVING,
            vec![node, "kubernetes.default.svc"],
            "NamesNotOfNode",
        ),
    ] {
        let request = Request::of_node(signer, &own, &names);
        let found = answer(&kubelet, inside, &request).await.context(rule)?;
        ensure!(found == expected, "{rule}: {found}, and not {expected}");
    }
    // The API server rejects such a request. The test above shows the signer's answer to one.
    for signer in [KUBELET, SERVING] {
        let other = Request::of_node(signer, "system:node:other", &["other"]);
        let found = answer(&kubelet, inside, &other).await;
        let found = format!("{:#}", found.err().context("another Node's request was taken")?);
        ensure!(
            found.contains(&format!("can only create a node CSR with CN={own}")),
            "{found}"
        );
    }

    // The demo cluster belongs to another Tenant.
    let elsewhere = worker.client(&stack.dir.join("demo.kubeconfig")).await?;
    let list = Api::<Node>::all(elsewhere).list(&ListParams::default()).await;
    let is_stranger = matches!(&list, Err(Error::Api(status)) if status.code == 401);
    ensure!(is_stranger, "at another Tenant's cluster: {list:?}");
    worker.remove().await?;
    tenant.remove().await
}
