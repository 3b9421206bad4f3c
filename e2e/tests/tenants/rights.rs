//! The exact permissions of a Tenant's subjects on the host.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::{
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, PostParams};
use yoke_api::TenantSpec;
use yoke_api::tenant::{SubjectKind, TenantSubject};
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::{Stack, TenantFixture};

/// One permission: API group, resource, name (empty: any), verb.
type Right = (String, String, String, String);

fn right(group: &str, resource: &str, name: &str, verb: &str) -> Right {
    (group.into(), resource.into(), name.into(), verb.into())
}

/// Permissions that the host's API server grants a user in a namespace, including cluster-wide
/// ones.
async fn granted(stack: &Stack, user: &str, namespace: &str) -> Result<SubjectRulesReviewStatus> {
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let client = stack.host_as(user).await?;
    let review = Api::all(client).create(&PostParams::default(), &review).await;
    let status = review.context("asking for rules")?.status.context("no answer")?;
    ensure!(
        !status.incomplete,
        "the rules of {user} in {namespace} are incomplete: {status:?}"
    );
    Ok(status)
}

/// Permissions as sets: about objects, and about paths of the API server (path, verb).
fn rights(status: &SubjectRulesReviewStatus) -> (BTreeSet<Right>, BTreeSet<(String, String)>) {
    let any = vec![String::new()];
    let mut objects = BTreeSet::new();
    for rule in &status.resource_rules {
        let names = rule
            .resource_names
            .as_ref()
            .filter(|names| !names.is_empty())
            .unwrap_or(&any);
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for name in names {
                    objects.extend(rule.verbs.iter().map(|verb| right(group, resource, name, verb)));
                }
            }
        }
    }
    let mut paths = BTreeSet::new();
    for rule in &status.non_resource_rules {
        for path in rule.non_resource_urls.iter().flatten() {
            paths.extend(rule.verbs.iter().map(|verb| (path.clone(), verb.clone())));
        }
    }
    (objects, paths)
}

async fn tenant_of(stack: &Stack, test: &str, user: &str) -> Result<TenantFixture> {
    let subject = TenantSubject {
        kind: SubjectKind::User,
        name: user.into(),
    };
    let spec = TenantSpec {
        subjects: vec![subject],
        ..TenantSpec::default()
    };
    TenantFixture::create_with(stack, test, spec).await
}

#[tokio::test]
async fn tenant_subject_on_the_host_does_its_own_and_no_more() -> Result<()> {
    let (user, stranger) = ("alice@a.example", "nobody@a.example");
    let stack = Stack::connect().await?;
    let tenant = tenant_of(&stack, "subject", user).await?;
    let own = tenant.name.as_str();
    let (cluster, _) = tenant.ready_cluster("a").await?;

    let (unknown_user, paths) = rights(&granted(&stack, stranger, own).await?);
    let review = |group: &str, resource: &str| right(&format!("{group}.k8s.io"), resource, "", "create");
    let everyone = BTreeSet::from([
        review("authentication", "selfsubjectreviews"),
        review("authorization", "selfsubjectaccessreviews"),
        review("authorization", "selfsubjectrulesreviews"),
    ]);
    ensure!(unknown_user == everyone, "every user may {unknown_user:?}");

    let mut expected = everyone.clone();
    expected.insert(right("", "secrets", "a-kubeconfig", "get"));
    for verb in ["get", "list", "watch"] {
        expected.insert(right("", "events", "", verb));
        expected.insert(right("events.k8s.io", "events", "", verb));
    }
    for verb in [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ] {
        expected.insert(right("yoke.drzzl.io", "clusters", "", verb));
        expected.insert(right("yoke.drzzl.io", "jointokens", "", verb));
    }
    let found = rights(&granted(&stack, user, own).await?);
    let more: Vec<_> = found.0.difference(&expected).collect();
    let less: Vec<_> = expected.difference(&found.0).collect();
    ensure!(more.is_empty() && less.is_empty(), "more: {more:?}, less: {less:?}");
    ensure!(found.1 == paths, "other paths: {:?}", found.1);

    // In other namespaces, a subject has only everyone's permissions.
    let namespaces = Api::<Namespace>::all(stack.host.clone());
    let namespaces = namespaces.list(&ListParams::default()).await?.items;
    let names: Vec<_> = namespaces.into_iter().filter_map(|found| found.metadata.name).collect();
    let hosted = hosted_namespace(&cluster)?;
    for expected in ["yoke-pki", "yoke-system", hosted.as_str()] {
        ensure!(names.iter().any(|name| name == expected), "no {expected} in {names:?}");
    }
    for namespace in names.iter().filter(|name| *name != own) {
        let there = rights(&granted(&stack, user, namespace).await?);
        ensure!(there.0 == everyone && there.1 == paths, "in {namespace}: {there:?}");
    }

    // Real requests give the same result.
    let kubectl = async |arguments: &[&str]| {
        let mut all = vec!["--as", user, "-n", own];
        all.extend(arguments);
        stack.host_kubectl(&all).await
    };
    let kubeconfig = kubectl(&["get", "secret", "a-kubeconfig", "-o", "name"]).await?.ok()?;
    ensure!(kubeconfig.trim() == "secret/a-kubeconfig", "{kubeconfig}");
    let events = kubectl(&["events", "--for=cluster/a"]).await?.ok()?;
    ensure!(events.contains("Cluster/a"), "{events}");
    let refusal = kubectl(&["get", "secrets"]).await?.refused()?;
    ensure!(refusal.contains("Forbidden"), "{refusal}");
    tenant.remove().await
}

#[tokio::test]
async fn tenant_can_neither_remove_the_finalizer_nor_choose_an_identity() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = tenant_of(&stack, "slip", "bob@a.example").await?;
    let own = tenant.name.as_str();
    let (cluster, _) = tenant.ready_cluster("a").await?;
    let finalizers = r#"{"metadata":{"finalizers":null}}"#;
    let arguments = [
        "patch",
        "cluster",
        "a",
        "-n",
        own,
        "--type=merge",
        "-p",
        finalizers,
        "--as=bob@a.example",
    ];
    let refusal = stack.host_kubectl(&arguments).await?.refused()?;
    ensure!(refusal.contains("only the operator removes the finalizer"), "{refusal}");

    let stolen = format!(
        "apiVersion: yoke.drzzl.io/v1alpha1\nkind: Cluster\nmetadata: {{name: b, namespace: {own}}}\nspec: {{id: {}}}\n",
        cluster.spec.id.context("no identity")?
    );
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), stolen)?;
    let path = file.path().to_str().context("path")?;
    let refusal = stack
        .host_kubectl(&["create", "-f", path, "--as=bob@a.example"])
        .await?
        .refused()?;
    ensure!(refusal.contains("the operator sets spec.id"), "{refusal}");

    // Requests within the Tenant's permissions still work.
    let arguments = ["annotate", "cluster", "a", "-n", own, "note=x", "--as=bob@a.example"];
    stack.host_kubectl(&arguments).await?.ok()?;
    stack
        .host_kubectl(&["delete", "cluster", "a", "-n", own, "--as=bob@a.example"])
        .await?
        .ok()?;
    tenant.remove().await
}
