//! Builds the objects of one Tenant. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota, ResourceQuotaSpec};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::join_token::secret_name;
use yoke_api::labels;
use yoke_api::names::{SSH_SERVICE_ACCOUNT, kubeconfig_secret};
use yoke_api::tenant::SubjectKind;
use yoke_api::{GROUP, JoinToken, Tenant};

use crate::model::cluster_summary::ClusterSummary;
use crate::model::rbac::{build_role_ref, build_rule};
use crate::model::tenant_namespace::TENANT_MAX;
use crate::model::tenant_namespace::{ROLE, labels_of};
use crate::tenant::validate::may_act;

/// Maximum number of refused Clusters beyond the Tenant's quota.
const WAITING_CLUSTERS: i32 = 16;
/// Age from which a Tenant has a ResourceQuota in any case.
const SETTLED: SignedDuration = SignedDuration::from_mins(10);
/// All verbs by name: the API server does not allow the operator to grant `*`, since the operator
/// itself has less.
const CLUSTER_VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

const RBAC: &str = "rbac.authorization.k8s.io";

/// The Tenant's namespace.
pub fn build_namespace(tenant: &Tenant) -> Namespace {
    let name = tenant.name_any();
    Namespace {
        metadata: ObjectMeta {
            labels: Some(labels_of(&name)),
            annotations: Some(
                [
                    (labels::OWNER.to_owned(), name.clone()),
                    (labels::OWNER_UID.to_owned(), tenant.uid().unwrap_or_default()),
                ]
                .into(),
            ),
            name: Some(name),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The Role of the Tenant's subjects. It grants access to Clusters, JoinTokens and their events,
/// and by name to the Secrets with kubeconfigs and join data. It allows no list of Secrets, no
/// pods, and no objects of cert-manager.
///
/// `join_tokens` are valid, the oldest first, and the operator has created their Secrets. A Secret
/// with such a name that the operator did not create may contain anything.
pub fn build_role(tenant: &Tenant, clusters: &[Arc<ClusterSummary>], join_tokens: &[Arc<JoinToken>]) -> Role {
    let name = tenant.name_any();
    let mut secrets: Vec<_> = clusters
        .iter()
        .map(|cluster| kubeconfig_secret(&cluster.name))
        .collect();
    let of_tokens = join_tokens.iter().take(TENANT_MAX);
    secrets.extend(of_tokens.map(|token| secret_name(&token.name_any())));
    secrets.sort();
    let mut rules = vec![
        build_rule(&[GROUP], &["clusters", "jointokens"], &CLUSTER_VERBS),
        build_rule(&["", "events.k8s.io"], &["events"], &["get", "list", "watch"]),
    ];
    // A rule with an empty list of names would allow all Secrets.
    if !secrets.is_empty() {
        rules.push(PolicyRule {
            resource_names: Some(secrets),
            ..build_rule(&[""], &["secrets"], &["get"])
        });
    }
    Role {
        metadata: build_meta(&name),
        rules: Some(rules),
    }
}

/// Limits of the Tenant's namespace, which the API server enforces at once even for fast clients.
pub fn build_quota(tenant: &Tenant) -> ResourceQuota {
    let quota = &tenant.spec.quota;
    let most = [("jointokens", quota.join_tokens), ("clusters", most_clusters(tenant))];
    let hard = most.map(|(kind, most)| (format!("count/{kind}.{GROUP}"), build_quantity(most)));
    ResourceQuota {
        metadata: build_meta(&tenant.name_any()),
        spec: Some(ResourceQuotaSpec {
            hard: Some(hard.into()),
            ..ResourceQuotaSpec::default()
        }),
        status: None,
    }
}

/// Formats a count as an API server does: `1k` for 1000.
fn build_quantity(mut count: i32) -> Quantity {
    let mut units = ["", "k", "M", "G"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while count != 0 && count % 1000 == 0 {
        count /= 1000;
        unit = units.next().unwrap_or_default();
    }
    Quantity(format!("{count}{unit}"))
}

/// Returns whether a Tenant is old enough for kube-controller-manager to know the counted kinds.
/// Until it has counted, the API server refuses all creations. That takes minutes while the kinds
/// are new.
pub fn is_settled(tenant: &Tenant, now: Timestamp) -> bool {
    let created = tenant.creation_timestamp();
    created.is_some_and(|created| now.duration_since(created.0) > SETTLED)
}

/// Returns whether a young Tenant has so many objects that the ResourceQuota is needed now.
pub fn is_crowded(tenant: &Tenant, clusters: usize, join_tokens: usize) -> bool {
    let is_half = |count: usize, most: i32| 2 * count >= usize::try_from(most).unwrap_or(0);
    is_half(join_tokens, tenant.spec.quota.join_tokens) || is_half(clusters, most_clusters(tenant))
}

/// More than the quota: Clusters beyond it are refused with a reason, and wait for room.
fn most_clusters(tenant: &Tenant) -> i32 {
    tenant.spec.quota.clusters.saturating_add(WAITING_CLUSTERS)
}

/// Binds the Role to the Tenant's valid subjects. A Tenant with SSH keys also gets its
/// ServiceAccount of the SSH server: `docs/adr/0005-ssh-acts-as-the-tenant.md`.
pub fn build_role_binding(tenant: &Tenant) -> RoleBinding {
    let mut subjects = tenant.spec.subjects.clone();
    subjects.retain(may_act);
    subjects.sort();
    let subjects = subjects.into_iter().map(|subject| Subject {
        api_group: Some(RBAC.into()),
        kind: match subject.kind {
            SubjectKind::User => "User".into(),
            SubjectKind::Group => "Group".into(),
        },
        name: subject.name,
        namespace: None,
    });
    let name = tenant.name_any();
    let ssh = (!tenant.spec.ssh_keys.is_empty()).then(|| Subject {
        api_group: None,
        kind: "ServiceAccount".into(),
        name: SSH_SERVICE_ACCOUNT.into(),
        namespace: Some(name.clone()),
    });
    RoleBinding {
        metadata: build_meta(&name),
        role_ref: build_role_ref("Role", ROLE),
        subjects: Some(subjects.chain(ssh).collect()),
    }
}

fn build_meta(tenant: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(ROLE.into()),
        namespace: Some(tenant.to_owned()),
        labels: Some(labels_of(tenant)),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant_namespace::{is_left, is_owned, names_secret};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use yoke_api::Cluster;
    use yoke_api::tenant::{SshKey, TenantSpec, TenantSubject};

    fn cluster(name: &str) -> Arc<ClusterSummary> {
        Arc::new(ClusterSummary::of(&Cluster::new(name, Default::default())))
    }

    #[test]
    fn the_role_names_the_kubeconfigs_of_existing_clusters() {
        let tenant = Tenant::new("t", TenantSpec::default());
        let none = build_role(&tenant, &[], &[]).rules.unwrap();
        assert!(
            !none
                .iter()
                .any(|rule| rule.resources.iter().flatten().any(|resource| resource == "secrets"))
        );
        let token = Arc::new(JoinToken::new("j", Default::default()));
        let role = build_role(&tenant, &[], std::slice::from_ref(&token));
        assert!(names_secret(&role, "j-join"));
        assert!(!names_secret(&role, "k-join"));
        let two = build_role(&tenant, &[cluster("b"), cluster("a")], &[token])
            .rules
            .unwrap();
        let secrets = two.last().unwrap();
        assert_eq!(secrets.verbs, ["get"]);
        assert_eq!(
            secrets.resource_names.as_deref().unwrap(),
            [
                "a-kubeconfig".to_owned(),
                "b-kubeconfig".to_owned(),
                "j-join".to_owned()
            ]
        );
    }

    #[test]
    fn the_quota_limits_clusters_and_join_tokens() {
        let tenant = Tenant::new("t", TenantSpec::default());
        let hard = build_quota(&tenant).spec.unwrap().hard.unwrap();
        let hard: Vec<_> = hard
            .iter()
            .map(|(kind, most)| (kind.as_str(), most.0.as_str()))
            .collect();
        assert_eq!(
            hard,
            [
                ("count/clusters.yoke.drzzl.io", "26"),
                ("count/jointokens.yoke.drzzl.io", "256")
            ]
        );
        assert!(!is_crowded(&tenant, 12, 127));
        assert!(is_crowded(&tenant, 13, 0));
        assert!(is_crowded(&tenant, 0, 128));
    }

    #[test]
    fn quantities_have_the_form_of_an_api_server() {
        for (count, expected) in [
            (0, "0"),
            (256, "256"),
            (1000, "1k"),
            (1500, "1500"),
            (10_000, "10k"),
            (2_000_000, "2M"),
            (2_000_000_000, "2G"),
        ] {
            assert_eq!(build_quantity(count).0, expected);
        }
    }

    #[test]
    fn the_quota_waits_until_its_kinds_are_known() {
        let mut tenant = Tenant::new("t", TenantSpec::default());
        assert!(!is_settled(&tenant, Timestamp::UNIX_EPOCH));
        tenant.metadata.creation_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let after = |seconds| Timestamp::from_second(seconds).unwrap();
        assert!(!is_settled(&tenant, after(600)));
        assert!(is_settled(&tenant, after(601)));
    }

    #[test]
    fn allowed_subjects_are_bound_and_sorted() {
        let subject = |kind, name: &str| TenantSubject {
            kind,
            name: name.into(),
        };
        let spec = TenantSpec {
            subjects: vec![
                subject(SubjectKind::Group, "g"),
                subject(SubjectKind::Group, "system:masters"),
                subject(SubjectKind::User, "u"),
            ],
            ..TenantSpec::default()
        };
        let binding = build_role_binding(&Tenant::new("t", spec));
        let subjects: Vec<_> = binding
            .subjects
            .unwrap()
            .into_iter()
            .map(|subject| (subject.kind, subject.name))
            .collect();
        assert_eq!(
            subjects,
            [
                ("User".to_owned(), "u".to_owned()),
                ("Group".to_owned(), "g".to_owned())
            ]
        );
    }

    #[test]
    fn the_ssh_server_acts_for_a_tenant_with_keys() {
        let mut tenant = Tenant::new("t", TenantSpec::default());
        assert_eq!(build_role_binding(&tenant).subjects.unwrap(), []);
        tenant.spec.ssh_keys.push(SshKey {
            name: "k".into(),
            public_key: "ssh-ed25519 AAAA".into(),
        });
        let bound = build_role_binding(&tenant).subjects.unwrap();
        let expected = Subject {
            api_group: None,
            kind: "ServiceAccount".into(),
            name: "yoke-ssh".into(),
            namespace: Some("t".into()),
        };
        assert_eq!(bound, [expected]);
    }

    #[test]
    fn a_namespace_is_owned_by_uid() {
        let mut tenant = Tenant::new("t", TenantSpec::default());
        assert!(!is_owned(&Namespace::default(), &tenant));
        tenant.metadata.uid = Some("1".into());
        let namespace = build_namespace(&tenant);
        assert!(is_owned(&namespace, &tenant));
        tenant.metadata.uid = Some("2".into());
        assert!(!is_owned(&namespace, &tenant));
    }

    #[test]
    fn a_namespace_of_a_deleted_namesake_is_adopted() {
        let tenant = |name: &str, uid: &str| {
            let mut tenant = Tenant::new(name, TenantSpec::default());
            tenant.metadata.uid = Some(uid.into());
            tenant
        };
        let change = |change: fn(&mut Namespace)| {
            let mut namespace = build_namespace(&tenant("t", "1"));
            change(&mut namespace);
            namespace
        };
        for (rule, namespace, expected) in [
            ("unchanged", change(|_| {}), true),
            ("annotations lost", change(|it| it.metadata.annotations = None), true),
            ("labels lost", change(|it| it.metadata.labels = None), false),
            (
                "the label names another Tenant",
                change(|it| {
                    it.labels_mut().insert(labels::TENANT.into(), "u".into());
                }),
                false,
            ),
            (
                "the annotation names another Tenant",
                change(|it| {
                    it.annotations_mut().insert(labels::OWNER.into(), "u".into());
                }),
                false,
            ),
            (
                "the UID of an existing Tenant",
                change(|it| {
                    it.annotations_mut().insert(labels::OWNER_UID.into(), "3".into());
                }),
                false,
            ),
            (
                "a namespace of another Tenant",
                build_namespace(&tenant("u", "4")),
                false,
            ),
        ] {
            let (restored, other) = (tenant("t", "2"), tenant("u", "3"));
            let tenants = [Arc::new(restored.clone()), Arc::new(other)];
            assert_eq!(is_left(&namespace, &restored, &tenants), expected, "{rule}");
        }
    }
}
