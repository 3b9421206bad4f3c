//! Removes fields that the operator does not read, before an object is cached. Pure.

use std::any::Any;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt as _};
use yoke_api::{GROUP, labels};

/// Removes the fields that the operator does not read:
///
/// - managed fields of all objects;
/// - labels, annotations and owner references of Yoke's own kinds, which users may fill at will,
///   except one label and one annotation;
/// - labels and annotations of Nodes;
/// - the spec of Pods except the node's name and the tolerations.
pub(crate) fn without_extras<K: Resource<DynamicType = ()> + 'static>(mut object: K) -> K {
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
    if let Some(pod) = any.downcast_mut::<Pod>() {
        pod.spec = pod.spec.take().map(|spec| PodSpec {
            node_name: spec.node_name,
            tolerations: spec.tolerations,
            ..PodSpec::default()
        });
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fields_of_pods_that_are_read_are_cached() {
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
    }
}
