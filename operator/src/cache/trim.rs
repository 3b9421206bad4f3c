//! What of an object is not kept in memory, because it is not read here. Pure.

use std::any::Any;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Secret};
use kube::{Resource, ResourceExt as _};
use yoke_api::{GROUP, labels};

use crate::cluster::build::stateful_set::keep_facts;

/// Type of the Secrets that cert-manager writes.
const TLS: &str = "kubernetes.io/tls";

/// An object without what is not read here: who wrote which field, and what people may add at will to Yoke's own kinds, of
/// which one annotation is read. Of a Node's metadata its name is; of pods and of what they are made of few fields are.
pub(super) fn without_extras<K: Resource<DynamicType = ()> + 'static>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    if K::group(&()) == GROUP {
        object.labels_mut().retain(|key, _| key == labels::ID);
        object.annotations_mut().retain(|key, _| key == labels::SLEEP);
        object.meta_mut().owner_references = None;
    }
    if K::kind(&()) == "Node" {
        object.labels_mut().clear();
        object.annotations_mut().clear();
    }
    let any: &mut dyn Any = &mut object;
    if let Some(set) = any.downcast_mut::<StatefulSet>() {
        keep_facts(set);
    } else if let Some(pod) = any.downcast_mut::<Pod>() {
        pod.spec = pod.spec.take().map(|spec| PodSpec {
            node_name: spec.node_name,
            tolerations: spec.tolerations,
            ..PodSpec::default()
        });
    } else if let Some(secret) = any.downcast_mut::<Secret>() {
        keep_used(secret);
    }
    object
}

/// Takes from a Secret what cert-manager notes in it, and the CA's certificate, which is in a Secret of its own.
fn keep_used(secret: &mut Secret) {
    if secret.type_.as_deref() != Some(TLS) {
        return;
    }
    secret
        .annotations_mut()
        .retain(|key, _| !key.contains("cert-manager.io/"));
    if secret.annotations().is_empty() {
        secret.metadata.annotations = None;
    }
    secret.data.iter_mut().for_each(|data| {
        data.remove("ca.crt");
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn of_pods_and_certificates_what_is_read_is_kept() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.spec = Some(PodSpec {
            node_name: Some("n".into()),
            tolerations: Some(vec![Default::default()]),
            containers: vec![Default::default()],
            ..PodSpec::default()
        });
        let spec = without_extras(pod).spec.unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.containers.len()), (Some("n"), 0));
        assert_eq!(spec.tolerations.unwrap().len(), 1, "other machines are chosen by them");
        let secret = |kind: &str| {
            let mut secret = Secret {
                type_: Some(kind.to_owned()),
                data: Some(
                    ["tls.crt", "tls.key", "ca.crt"]
                        .map(|key| (key.to_owned(), ByteString::default()))
                        .into(),
                ),
                ..Secret::default()
            };
            secret
                .annotations_mut()
                .insert("cert-manager.io/alt-names".into(), "x".into());
            without_extras(secret)
        };
        let keys = |secret: &Secret| {
            secret
                .data
                .iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect::<Vec<_>>()
        };
        let issued = secret(TLS);
        assert_eq!(keys(&issued), ["tls.crt", "tls.key"]);
        assert!(issued.metadata.annotations.is_none());
        let other = secret("Opaque");
        assert_eq!((keys(&other).len(), other.annotations().len()), (3, 1));
    }
}
