//! What of an object is not kept in memory, because it is not read here. Pure.

use std::any::Any;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt as _};
use yoke_api::{GROUP, labels};

/// An object without what is not read here: who wrote which field, and what people may add at will to Yoke's own kinds, of
/// which one annotation is read. Of a Node's metadata its name is; of pods few fields are.
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
    fn of_pods_what_is_read_is_kept() {
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
