//! A wrong spec gets a clear answer, and the operator continues to serve others.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use yoke_api::cluster::{EndpointSpec, ExtraArg, ExtraArgsSpec, NetworkSpec};
use yoke_api::tenant::TenantQuota;
use yoke_api::{ClusterSpec, ConditionType, Reason, TenantSpec};
use yoke_e2e::{Stack, TenantFixture, eventually, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

async fn expect_refusal(tenant: &TenantFixture, name: &str, spec: ClusterSpec, reason: Reason) -> Result<()> {
    tenant.create_cluster(name, spec).await?;
    let cluster = tenant
        .wait_condition(name, ConditionType::Accepted, "False", LIMIT)
        .await?;
    let status = cluster.status.unwrap_or_default();
    let accepted = status.conditions.iter().find(|c| c.type_ == "Accepted");
    let (found, message) = accepted
        .map(|c| (c.reason.as_str(), c.message.as_str()))
        .unwrap_or_default();
    ensure!(
        found == reason.as_str(),
        "{name}: refused for {found} ({message}), expected {reason}"
    );
    ensure!(!message.is_empty(), "{name}: the refusal has no message");
    wait_until(&format!("an event of {reason} on {name}"), LIMIT, || async {
        let selector = format!("regarding.name={name},reason={reason}");
        let events = [
            "get",
            "events.events.k8s.io",
            "-n",
            &tenant.name,
            "--field-selector",
            &selector,
            "-o",
            "name",
        ];
        Ok(!tenant.stack.host_kubectl(&events).await?.ok()?.is_empty())
    })
    .await
}

#[tokio::test]
async fn wrong_specs_are_refused_with_a_reason_and_others_are_served() -> Result<()> {
    let stack = Stack::connect().await?;
    let quota = TenantQuota {
        clusters: 9,
        storage: Quantity("4Gi".into()),
        ..TenantQuota::default()
    };
    let spec = TenantSpec {
        quota,
        allowed_domains: vec!["a.example".into()],
        ..TenantSpec::default()
    };
    let tenant = TenantFixture::create_with(&stack, "refusals", spec).await?;
    let default = ClusterSpec::default;

    let version = ClusterSpec {
        version: Some("v1.2.3".into()),
        ..default()
    };
    expect_refusal(&tenant, "version", version, Reason::UnknownVersion).await?;
    expect_refusal(&tenant, &"n".repeat(41), default(), Reason::NameInvalid).await?;
    let class = ClusterSpec {
        class: Some("gold".into()),
        ..default()
    };
    expect_refusal(&tenant, "class", class, Reason::UnknownClass).await?;
    let network = NetworkSpec {
        service_cidr: "10.1.0.0/16".into(),
        ..NetworkSpec::default()
    };
    expect_refusal(
        &tenant,
        "network",
        ClusterSpec { network, ..default() },
        Reason::NetworkNotOffered,
    )
    .await?;
    for (name, host) in [
        ("foreign", "api.b.example"),
        ("internal", "kubernetes.default.svc"),
        ("under", "x.yoke.test"),
    ] {
        let endpoint = EndpointSpec {
            extra_sans: vec![host.into()],
            ..EndpointSpec::default()
        };
        expect_refusal(
            &tenant,
            name,
            ClusterSpec { endpoint, ..default() },
            Reason::HostnameNotAllowed,
        )
        .await?;
    }
    let argument = ExtraArg {
        name: "token-auth-file".into(),
        value: "/etc/passwd".into(),
    };
    let extra_args = ExtraArgsSpec {
        api_server: vec![argument],
        ..ExtraArgsSpec::default()
    };
    expect_refusal(
        &tenant,
        "argument",
        ClusterSpec {
            extra_args,
            ..default()
        },
        Reason::ArgumentNotAllowed,
    )
    .await?;

    let host = "api.a.example";
    let endpoint = EndpointSpec {
        extra_sans: vec![host.into()],
        ..EndpointSpec::default()
    };
    tenant
        .create_cluster(
            "first",
            ClusterSpec {
                endpoint: endpoint.clone(),
                ..default()
            },
        )
        .await?;
    tenant
        .wait_condition("first", ConditionType::Accepted, "True", LIMIT)
        .await?;
    tenant.clusters().delete("version", &Default::default()).await?;
    wait_until("Cluster version to be gone", LIMIT, || async {
        Ok(tenant.clusters().get_opt("version").await?.is_none())
    })
    .await?;
    expect_refusal(
        &tenant,
        "second",
        ClusterSpec { endpoint, ..default() },
        Reason::HostnameConflict,
    )
    .await?;
    // Among Clusters of the same second, the first by name counts as older.
    expect_refusal(&tenant, "surplus", default(), Reason::QuotaExceeded).await?;
    tenant
        .wait_condition("first", ConditionType::Ready, "True", yoke_e2e::tenant::READY_LIMIT)
        .await?;
    tenant.remove().await
}

#[tokio::test]
async fn cluster_outside_a_tenant_is_refused() -> Result<()> {
    let stack = Stack::connect().await?;
    let manifest =
        "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata: {name: e2e-lost, namespace: default}\nspec: {}\n";
    stack.apply(manifest).await?.ok()?;
    let reason = "jsonpath={.status.conditions[?(@.type=='Accepted')].reason}";
    let get = ["get", "ykc", "-n", "default", "e2e-lost", "-o", reason];
    let find = async || stack.host_kubectl(&get).await?.ok();
    let is_missing = |found: &String| found == Reason::TenantMissing.as_str();
    eventually("the refusal", LIMIT, find, is_missing).await?;
    let selector = format!("regarding.name=e2e-lost,reason={}", Reason::TenantMissing);
    wait_until("its event", LIMIT, || async {
        let events = [
            "get",
            "events.events.k8s.io",
            "-n",
            "default",
            "--field-selector",
            &selector,
            "-o",
            "name",
        ];
        Ok(!stack.host_kubectl(&events).await?.ok()?.is_empty())
    })
    .await?;
    stack
        .host_kubectl(&["delete", "ykc", "-n", "default", "e2e-lost", "--timeout=30s"])
        .await?
        .ok()?;
    Ok(())
}

#[tokio::test]
async fn schema_refuses_what_no_operator_should_see() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "schema").await?;
    let cluster = |name: &str, spec: &str| {
        format!(
            "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: {}}}\nspec: {spec}\n",
            tenant.name
        )
    };
    let long = "n".repeat(64);
    let wildcard = "{endpoint: {extraSANs: ['*.a.example']}}";
    for (manifest, says) in [
        (cluster(&long, "{}"), "at most 63"),
        (cluster("1a", "{}"), "RFC 1035"),
        (cluster("a", "{version: latest}"), "spec.version"),
        (cluster("a", wildcard), "extraSANs"),
        (cluster("a", "{endpoint: {extraSANs: ['10.0.0.1']}}"), "extraSANs"),
        (cluster("a", "{konnectivity: Disabled, addons: {metricsServer: {enabled: true}}}"), "requires konnectivity"),
        (cluster("a", "{pki: {caDuration: forever}}"), "caDuration"),
        (cluster("a", "{id: x}"), "spec.id"),
        ("apiVersion: yoke.drzzl.io/v1alpha1\nkind: Tenant\nmetadata: {name: kube-system}\nspec: {}\n".into(), "reserved"),
        ("apiVersion: yoke.drzzl.io/v1alpha1\nkind: Tenant\nmetadata: {name: yoke-pki}\nspec: {}\n".into(), "reserved"),
        (
            "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Tenant\nmetadata: {name: e2e-x}\nspec: {subjects: [{kind: Group, name: 'system:masters'}]}\n".into(),
            "reserved for Kubernetes",
        ),
    ] {
        let refusal = stack.apply(&manifest).await?.refused()?;
        ensure!(refusal.contains(says), "refused, but not with {says:?}: {refusal}");
    }

    stack
        .apply(&cluster("a", "{version: v1.35.4, paused: true}"))
        .await?
        .ok()?;
    for (spec, says) in [
        (
            "{version: v1.34.0, paused: true}",
            "never down to an older minor version",
        ),
        ("{version: v1.37.0, paused: true}", "one minor version at a time"),
        (
            "{version: v1.35.4, paused: true, network: {serviceCIDR: 10.97.0.0/16}}",
            "network cannot be changed",
        ),
    ] {
        let refusal = stack.apply(&cluster("a", spec)).await?.refused()?;
        ensure!(refusal.contains(says), "refused, but not with {says:?}: {refusal}");
    }
    tenant.remove().await
}
