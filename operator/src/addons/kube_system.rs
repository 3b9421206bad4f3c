//! Builders that the add-ons share.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{
    ConfigMap, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, PodTemplateSpec, ServiceAccount, Toleration, Volume,
    VolumeMount,
};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use yoke_api::labels;

use crate::model::rbac::build_binding;

/// Namespace of all add-ons.
pub(crate) const NAMESPACE: &str = "kube-system";

/// Input of a DaemonSet.
pub(super) struct DaemonPods {
    pub(super) name: &'static str,
    /// Value of the label that selects the Pods.
    pub(super) app: &'static str,
    /// Digest of the files that each Pod reads only once.
    pub(super) files_digest: Option<String>,
    pub(super) pod: PodSpec,
    pub(super) update: RollingUpdateDaemonSet,
}

impl DaemonPods {
    /// Replaces a tenth of the Pods at a time.
    pub(super) fn tenth() -> RollingUpdateDaemonSet {
        RollingUpdateDaemonSet {
            max_unavailable: Some(IntOrString::String("10%".into())),
            ..RollingUpdateDaemonSet::default()
        }
    }
}

pub(super) fn build_metadata(name: &str, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(NAMESPACE.into()),
        labels: Some(labels).filter(|labels| !labels.is_empty()),
        ..ObjectMeta::default()
    }
}

/// The label that selects the Pods of an add-on.
pub(super) fn to_labels(app: &str) -> BTreeMap<String, String> {
    to_map(&[("k8s-app", app)])
}

pub(super) fn to_map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn to_selector(app: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some(to_labels(app)),
        ..LabelSelector::default()
    }
}

pub(super) fn build_daemon_set(pods: DaemonPods) -> DaemonSet {
    DaemonSet {
        metadata: build_metadata(pods.name, to_labels(pods.app)),
        spec: Some(DaemonSetSpec {
            selector: to_selector(pods.app),
            template: build_template(pods.app, pods.files_digest, pods.pod),
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(pods.update),
            }),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

/// A Pod template. The digest replaces the Pods when the files change that they read only once.
pub(super) fn build_template(app: &str, files_digest: Option<String>, pod: PodSpec) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(to_labels(app)),
            annotations: files_digest.map(|digest| [(labels::CONFIG_DIGEST.to_owned(), digest)].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    }
}

/// An environment variable with the value of a field of its Pod.
pub(super) fn build_variable(name: &str, field: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".into()),
                field_path: field.into(),
            }),
            ..EnvVarSource::default()
        }),
    }
}

pub(super) fn build_account(name: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: build_metadata(name, BTreeMap::new()),
        ..ServiceAccount::default()
    }
}

pub(super) fn build_files(name: &str, files: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: build_metadata(name, BTreeMap::new()),
        data: Some(files),
        ..ConfigMap::default()
    }
}

/// Binds a ClusterRole to a ServiceAccount.
pub(super) fn build_account_binding(name: &str, role: &str, account: &str) -> ClusterRoleBinding {
    build_binding(name, build_subject(account), role)
}

pub(super) fn build_subject(account: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".into(),
        name: account.into(),
        namespace: Some(NAMESPACE.into()),
        ..Subject::default()
    }
}

pub(super) fn build_mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.into(),
        mount_path: path.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// A volume with the files of a ConfigMap.
pub(super) fn build_volume(name: &str, optional: Option<bool>) -> Volume {
    Volume {
        name: name.into(),
        config_map: Some(k8s_openapi::api::core::v1::ConfigMapVolumeSource {
            name: name.into(),
            optional,
            ..Default::default()
        }),
        ..Volume::default()
    }
}

/// Tolerates taints with this key, or all taints.
pub(super) fn build_toleration(key: Option<&str>) -> Toleration {
    Toleration {
        key: key.map(str::to_owned),
        operator: Some("Exists".into()),
        ..Toleration::default()
    }
}
