//! What objects of add-ons have in common.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount, Toleration, Volume, VolumeMount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;

use crate::rbac::build_binding;

/// Where all of them are.
pub(super) const NAMESPACE: &str = "kube-system";

pub(super) fn build_metadata(name: &str, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(NAMESPACE.into()),
        labels: Some(labels).filter(|labels| !labels.is_empty()),
        ..ObjectMeta::default()
    }
}

/// The label by which Pods of an add-on are found.
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

/// Gives a ClusterRole to a ServiceAccount.
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

/// Of a taint, or of every one.
pub(super) fn build_toleration(key: Option<&str>) -> Toleration {
    Toleration {
        key: key.map(str::to_owned),
        operator: Some("Exists".into()),
        ..Toleration::default()
    }
}
