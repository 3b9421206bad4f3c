//! Command lines of the components. Paths are those that [`super::stateful_set`] mounts.

use yoke_api::cluster::ExtraArg;
use yoke_api::names::API_PORT;
use yoke_pki::plan::FRONT_PROXY_USER;

use super::konnectivity::EGRESS_FILE;
use super::stateful_set::Start;
use super::{Blueprint, audit};
use crate::cluster::identity::Identity;

/// The flag by which a store uses its stream for every other snapshot.
pub(super) const SPARE: &str = "--spare";
/// Where a component finds its Secret.
pub(super) const PKI: &str = "/etc/kubernetes/pki";
/// Where kube-apiserver finds its ConfigMap.
pub(super) const CONFIG: &str = "/etc/kubernetes/config";
/// Where kine-nats finds its Secret.
pub(super) const STORE: &str = "/etc/kine-nats";
/// Name of the file there that says who is authenticated how.
pub(super) const AUTHENTICATION_FILE: &str = "authentication.yaml";
/// Folder of the store's socket.
pub(super) const SOCKET_DIR: &str = "/run/kine";
/// Folder of what the other components are started by, where the store puts it.
pub(super) const LAUNCH_DIR: &str = "/run/launch";
/// Name of the program there, and in the store's image.
pub(super) const LAUNCH: &str = "yoke-launch";
/// By how many milliseconds timers may be late. Half of what an idle control plane took were hundreds of timers a second, each
/// of which woke a process by itself. One request of a hundred waits for a timer: that of the API server is where its time
/// begins to show.
///
/// kube-apiserver starts by work that Go's scheduler hands from thread to thread with sleeps of 3 µs, which are late by as much:
/// 20 ms made each start a third of a second longer, and 10 take 2 ms/s more at rest.
const API_SERVER_SLACK: u32 = 15;
/// The same of its clients, for which nobody waits.
const CLIENT_SLACK: u32 = 50;
/// Kinds of which kube-apiserver keeps no copy beside the store (a size of 0; others set nothing but that there is one): it has
/// a timer of a second for each, and 200 to 300 KiB. Lists and watches of them are the store's own. They are those that change
/// seldom and that few watch: Kubernetes' own controllers, and nothing that each worker has.
const UNCACHED: &[&str] = &[
    "apiservices.apiregistration.k8s.io",
    "certificatesigningrequests.certificates.k8s.io",
    "controllerrevisions.apps",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "ingressclasses.networking.k8s.io",
    "ipaddresses.networking.k8s.io",
    "limitranges",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "podtemplates",
    "priorityclasses.scheduling.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "replicationcontrollers",
    "resourcequotas",
    "storageclasses.storage.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "volumeattachments.storage.k8s.io",
    "volumeattributesclasses.storage.k8s.io",
];
/// Port of the store's metrics and probes, and of what it heard of requests.
pub(crate) const STORE_PORT: u16 = 2381;

/// What the argument begins with that tells the store the number of its start.
const INCARNATION: &str = "--incarnation=";

/// The audience that Kubernetes' own clients ask for by name.
pub const COMMON_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Audiences that a cluster's API server accepts, its unique one first.
pub fn audiences(identity: &Identity) -> Vec<String> {
    vec![identity.public_name.issuer(), COMMON_AUDIENCE.to_owned()]
}

/// The program of a component.
fn launch(slack: u32, program: &str) -> Vec<String> {
    vec![format!("{LAUNCH_DIR}/{LAUNCH}"), slack.to_string(), program.to_owned()]
}

/// The program of a component that may run once, beside the store that writes. It can do nothing before the API server
/// lives, and would take from it half a second of a processor that it starts with.
fn launch_once(blueprint: &Blueprint<'_>, program: &str) -> Vec<String> {
    let mut arguments = launch(CLIENT_SLACK, program);
    let local = |option: &str, port: u16| [option.to_owned(), format!("127.0.0.1:{port}")];
    let conditions = [
        local("--writer", STORE_PORT),
        local("--after", API_PORT),
        // As in its kubeconfig.
        ["--name".to_owned(), blueprint.identity.upstream_name()],
        ["--ca".to_owned(), format!("{PKI}/root-ca.crt")],
    ];
    arguments.splice(1..1, conditions.concat());
    arguments
}

/// What the store runs once it is started, before anything else is: the images of the others are not Yoke's.
pub(super) fn install_launch() -> Vec<String> {
    vec![
        LAUNCH.to_owned(),
        "install".to_owned(),
        format!("{LAUNCH_DIR}/{LAUNCH}"),
    ]
}

pub(super) fn api_server(blueprint: &Blueprint<'_>, start: &Start) -> Vec<String> {
    let name = &blueprint.identity.public_name;
    let issuer = name.issuer();
    let network = &blueprint.spec.network;
    let mut arguments = launch(API_SERVER_SLACK, "kube-apiserver");
    arguments.extend([
        "--allow-privileged=true".to_owned(),
        format!("--api-audiences={}", audiences(blueprint.identity).join(",")),
        format!("--authentication-config={CONFIG}/{AUTHENTICATION_FILE}"),
        "--authorization-mode=Node,RBAC".into(),
        format!("--client-ca-file={PKI}/client-ca.crt"),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--enable-bootstrap-token-auth=true".into(),
        // Workloads are sent to the ingress; the operator writes that address.
        "--endpoint-reconciler-type=none".into(),
        format!("--etcd-servers=unix://{SOCKET_DIR}/kine.sock"),
        format!("--external-hostname={name}"),
        format!("--kubelet-certificate-authority={PKI}/kubelet-ca.crt"),
        format!("--kubelet-client-certificate={PKI}/kubelet-client.crt"),
        format!("--kubelet-client-key={PKI}/kubelet-client.key"),
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".into(),
        "--profiling=false".into(),
        format!("--proxy-client-cert-file={PKI}/front-proxy-client.crt"),
        format!("--proxy-client-key-file={PKI}/front-proxy-client.key"),
        format!("--requestheader-allowed-names={FRONT_PROXY_USER}"),
        format!("--requestheader-client-ca-file={PKI}/front-proxy-ca.crt"),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        format!("--secure-port={API_PORT}"),
        format!("--service-account-issuer={issuer}"),
        format!("--service-account-jwks-uri={issuer}/openid/v1/jwks"),
        format!("--service-account-key-file={PKI}/sa.pub"),
        format!("--service-account-signing-key-file={PKI}/sa.key"),
        format!("--service-cluster-ip-range={}", network.service_cidr),
        // Without it an API server that is to end waits 60 s for watches to end by themselves, is killed, and takes from its store
        // the time to resign.
        "--shutdown-watch-termination-grace-period=2s".into(),
        format!("--tls-cert-file={PKI}/tls.crt"),
        format!("--tls-private-key-file={PKI}/tls.key"),
        format!("--watch-cache-sizes={}", list_uncached()),
    ]);
    if start.has_konnectivity {
        arguments.push(format!("--egress-selector-config-file={CONFIG}/{EGRESS_FILE}"));
    }
    arguments.extend(audit::api_server_arguments(&blueprint.spec.sleep));
    // OIDC arguments and a file of authentication exclude each other: they become a part of the file.
    let others = blueprint.spec.extra_args.api_server.iter();
    arguments.extend(
        others
            .filter(|argument| !argument.name.starts_with("oidc-"))
            .map(to_flag),
    );
    arguments
}

fn list_uncached() -> String {
    let sizes: Vec<_> = UNCACHED.iter().map(|kind| format!("{kind}#0")).collect();
    sizes.join(",")
}

pub(super) fn controller_manager(blueprint: &Blueprint<'_>) -> Vec<String> {
    let network = &blueprint.spec.network;
    let mut arguments = launch_once(blueprint, "kube-controller-manager");
    arguments.extend([
        "--allocate-node-cidrs=true".to_owned(),
        format!("--cluster-cidr={}", network.pod_cidr),
        // Without signing keys: the operator signs.
        format!("--cluster-name={}", blueprint.identity.cluster),
        // At the usual 20 a second the controllers wait 4 s for each other's credentials before the first of them works.
        "--kube-api-burst=200".into(),
        "--kube-api-qps=100".into(),
        format!("--root-ca-file={PKI}/root-ca.crt"),
        format!("--service-account-private-key-file={PKI}/sa.key"),
        format!("--service-cluster-ip-range={}", network.service_cidr),
        "--use-service-account-credentials=true".into(),
    ]);
    arguments.extend(client_of_api_server());
    arguments.extend(blueprint.spec.extra_args.controller_manager.iter().map(to_flag));
    arguments
}

pub(super) fn scheduler(blueprint: &Blueprint<'_>) -> Vec<String> {
    let mut arguments = launch_once(blueprint, "kube-scheduler");
    arguments.extend(client_of_api_server());
    arguments.extend(blueprint.spec.extra_args.scheduler.iter().map(to_flag));
    arguments
}

/// kube-controller-manager and kube-scheduler: one instance, which needs no election beside that of the store, and whose own
/// endpoint serves probes and asks nobody who calls.
fn client_of_api_server() -> [String; 6] {
    [
        format!("--authentication-kubeconfig={PKI}/kubeconfig"),
        "--authentication-skip-lookup=true".into(),
        format!("--authorization-kubeconfig={PKI}/kubeconfig"),
        format!("--kubeconfig={PKI}/kubeconfig"),
        "--leader-elect=false".into(),
        "--profiling=false".into(),
    ]
}

pub(super) fn store(blueprint: &Blueprint<'_>, start: &Start) -> Vec<String> {
    let nats = &blueprint.config.nats;
    let mut arguments = vec![
        format!("--listen=unix://{SOCKET_DIR}/kine.sock"),
        format!("--nats={}", nats.urls.join(",")),
        format!("--creds={STORE}/user.creds"),
        format!("--nats-ca={STORE}/ca.crt"),
        format!("--stream={}", blueprint.identity.id.stream()),
        to_incarnation(start.incarnation),
        format!("--metrics=0.0.0.0:{STORE_PORT}"),
        // For a planned takeover, where two are there.
        "--follow".into(),
        "--end-when-replaced".into(),
    ];
    if start.has_spare {
        arguments.push(SPARE.into());
    }
    arguments.extend(audit::store_arguments(&blueprint.spec.sleep));
    arguments
}

fn to_incarnation(number: u64) -> String {
    format!("{INCARNATION}{number}")
}

/// The same arguments of the store with the number of another start.
pub(super) fn renumber_store(arguments: &mut [String], incarnation: u64) {
    for argument in arguments
        .iter_mut()
        .filter(|argument| argument.starts_with(INCARNATION))
    {
        *argument = to_incarnation(incarnation);
    }
}

fn to_flag(argument: &ExtraArg) -> String {
    format!("--{}={}", argument.name, argument.value)
}
