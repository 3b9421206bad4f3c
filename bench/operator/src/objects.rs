//! Builds all objects of a settled Cluster, as the operator, cert-manager and Kubernetes leave
//! them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::Result;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use yoke_api::Cluster;
use yoke_api::labels::component;
use yoke_operator::testing::cluster::SleepState;
use yoke_operator::testing::cluster::resources::objects::{self, IngressIntent};
use yoke_operator::testing::cluster::resources::{Blueprint, Materials, network_policy, secrets, stateful_set};
use yoke_operator::testing::nats::streams;
use yoke_pki::cert_manager::Certificate;
use yoke_pki::service_account::ServiceAccountKey;

use crate::authority::Issued;
use crate::stored::Stored;

/// Inputs from which the objects are built.
pub(crate) struct Settled<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) blueprint: Blueprint<'a>,
    pub(crate) materials: &'a Materials,
    pub(crate) issued: &'a Issued,
    /// Data of the Secret with the store's NATS account.
    pub(crate) store: BTreeMap<String, String>,
    pub(crate) service_account: &'a ServiceAccountKey,
    pub(crate) is_asleep: bool,
    /// Address of the Cluster's Service.
    pub(crate) address: Ipv4Addr,
}

/// Builds the objects. The Cluster is the last one.
pub(crate) fn build(settled: &Settled<'_>) -> Result<Vec<Stored>> {
    let Settled {
        cluster,
        blueprint,
        materials,
        ..
    } = settled;
    let (identity, plan) = (blueprint.identity, &blueprint.accepted.plan);
    let rest = SleepState::of(cluster);
    let asked = IngressIntent {
        asleep: rest.to_ingress_message(&identity.uid),
        ..IngressIntent::of(blueprint.spec)
    };
    let mut all = vec![
        Stored::made(&objects::build_namespace(identity, blueprint.spec.deletion_policy)).with(json!({
            "metadata": {"labels": {"kubernetes.io/metadata.name": identity.hosted().to_string()}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        })),
        Stored::applied(&objects::build_api_server_files(blueprint)),
        Stored::applied(&objects::build_ingress(identity, asked, &materials.trust())),
        Stored::applied(&secrets::build_kubeconfig(identity, blueprint.config, materials)?),
    ];
    all.extend(
        secrets::build_component_secrets(identity, materials)?
            .iter()
            .map(Stored::applied),
    );
    all.extend(
        plan.issuers
            .iter()
            .map(|issuer| Stored::applied(issuer).with(ready("KeyPairVerified"))),
    );
    for certificate in &plan.certificates {
        all.push(Stored::applied(certificate).with(ready("Ready")));
        all.push(build_issued(settled, certificate));
    }
    all.extend(build_service(settled));
    if !settled.is_asleep {
        let policy = network_policy::build_network_policy(identity, blueprint.config, blueprint.open());
        all.push(Stored::applied(&policy));
        all.push(Stored::applied(&objects::build_budget(identity)));
    }
    let keys = [
        ("sa.key", settled.service_account.private_pem()),
        ("sa.pub", settled.service_account.public_pem()),
    ];
    let keys = keys.map(|(key, text)| (key.to_owned(), text.to_owned()));
    all.push(build_kept(
        settled,
        &identity.service_account_secret(),
        component::PKI,
        keys.into(),
    ));
    all.extend(build_control_plane(settled));
    all.push(Stored::made(*cluster));
    Ok(all)
}

fn build_service(settled: &Settled<'_>) -> [Stored; 2] {
    let (identity, address) = (settled.blueprint.identity, settled.address.to_string());
    let service = objects::build_service(identity, settled.blueprint.spec.konnectivity.is_enabled(), 0);
    let parent =
        json!({"group": "", "resource": "services", "namespace": service.namespace(), "name": service.name_any()});
    let taken = IPAddress {
        metadata: ObjectMeta {
            name: Some(address.clone()),
            ..ObjectMeta::default()
        },
        ..IPAddress::default()
    };
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    [
        Stored::applied(&service).with(json!({"spec": {
            "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        }})),
        Stored::made(&taken).with(json!({"metadata": {"labels": labels}, "spec": {"parentRef": parent}})),
    ]
}

/// Status that cert-manager writes for an object that is ready.
fn ready(reason: &str) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": reason, "lastTransitionTime": now,
        "message": "Certificate is up to date and has not expired", "observedGeneration": 1}]}})
}

/// The Secret that cert-manager writes for a Certificate.
fn build_issued(settled: &Settled<'_>, certificate: &Certificate) -> Stored {
    let spec = &certificate.spec;
    let data = settled.issued.get(&spec.secret_name).cloned().unwrap_or_default();
    let labels = spec.secret_template.clone().unwrap_or_default().labels;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(spec.secret_name.clone()),
            namespace: certificate.namespace(),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect()),
        type_: Some("kubernetes.io/tls".into()),
        ..Secret::default()
    };
    Stored::made(&secret).with(json!({"metadata": {
        "labels": {"controller.cert-manager.io/fao": "true"},
        "annotations": {
            "cert-manager.io/alt-names": spec.dns_names.join(","),
            "cert-manager.io/certificate-name": certificate.name_any(),
            "cert-manager.io/common-name": spec.common_name.clone().unwrap_or_default(),
            "cert-manager.io/ip-sans": "",
            "cert-manager.io/issuer-group": "cert-manager.io",
            "cert-manager.io/issuer-kind": "Issuer",
            "cert-manager.io/issuer-name": spec.issuer_ref.name,
            "cert-manager.io/uri-sans": "",
        },
    }}))
}

/// A Secret that the operator creates once and never changes.
fn build_kept(settled: &Settled<'_>, name: &str, component: &str, texts: BTreeMap<String, String>) -> Stored {
    let texts = texts
        .into_iter()
        .map(|(key, text)| (key, ByteString(text.into_bytes())));
    Stored::made(&Secret {
        metadata: settled.blueprint.identity.pki_meta(name, component),
        data: Some(texts.collect()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    })
}

/// The StatefulSet, its Pod if the Cluster is awake, and the Secret that counts its starts.
fn build_control_plane(settled: &Settled<'_>) -> Vec<Stored> {
    let blueprint = &settled.blueprint;
    let has_konnectivity = blueprint.spec.konnectivity.is_enabled();
    let start = stateful_set::Start {
        incarnation: u64::try_from(Timestamp::now().as_second()).unwrap_or(1),
        digest: settled.materials.restart_digest(has_konnectivity),
        replicas: i32::from(!settled.is_asleep),
        first: 0,
        has_spare: streams::has_spare(blueprint.accepted.class.store_replicas),
        has_konnectivity,
        lost: None,
    };
    let mut texts = settled.store.clone();
    texts.insert("incarnation".into(), start.incarnation.to_string());
    texts.insert("template".into(), stateful_set::template_digest(blueprint, &start));
    let set = stateful_set::build_stateful_set(blueprint, &start);
    let name = blueprint.identity.store_secret();
    let ready = start.replicas;
    let mut all = vec![
        build_kept(settled, &name, component::STORE, texts),
        Stored::applied(&set).with(json!({"status": {
            "observedGeneration": 1, "replicas": ready, "readyReplicas": ready, "currentReplicas": ready,
            "updatedReplicas": ready, "availableReplicas": ready, "collisionCount": 0,
            "currentRevision": "control-plane-5d8f7b9c6d", "updateRevision": "control-plane-5d8f7b9c6d",
        }})),
    ];
    all.extend((!settled.is_asleep).then(|| build_pod(set)));
    all
}

/// The Pod of a StatefulSet, as its controller and a kubelet leave it.
fn build_pod(set: StatefulSet) -> Stored {
    let name = format!("{}-0", set.name_any());
    let template = set.spec.clone().unwrap_or_default().template;
    let made = template.metadata.unwrap_or_default();
    let spec = template.spec.unwrap_or_default();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let to_status = |containers: &[k8s_openapi::api::core::v1::Container]| -> Vec<Value> {
        let statuses = containers.iter().map(|container| {
            json!({"name": container.name, "image": container.image, "imageID": container.image, "ready": true,
                "restartCount": 0, "started": true, "containerID": "containerd://0123456789abcdef0123456789abcdef",
                "state": {"running": {"startedAt": now}}, "lastState": {}})
        });
        statuses.collect()
    };
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    let conditions = conditions.map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}));
    let status = json!({
        "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "hostIP": "127.0.0.1", "qosClass": "Burstable",
        "startTime": now, "conditions": conditions, "containerStatuses": to_status(&spec.containers),
    });
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: set.namespace(),
            labels: made.labels,
            annotations: made.annotations,
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    };
    let labels = json!({"apps.kubernetes.io/pod-index": "0", "statefulset.kubernetes.io/pod-name": name});
    Stored::made(&pod).with(json!({
        "metadata": {"generateName": "control-plane-", "labels": labels}, "spec": {"nodeName": "machine-0"}, "status": status,
    }))
}
