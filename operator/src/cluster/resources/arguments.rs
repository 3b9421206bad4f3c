//! Command lines of the components. The file `components.rs` mounts the paths.

pub(crate) use crate::cluster::resources::ports::STORE_PORT;

use yoke_api::cluster::ExtraArg;
use yoke_api::names::API_PORT;
use yoke_pki::plan::FRONT_PROXY_USER;

use crate::cluster::resources::audit;
use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::paths::{
    AUTHENTICATION_FILE, CONFIG, EGRESS_FILE, LAUNCH, LAUNCH_DIR, PKI, SOCKET_DIR, STORE,
};
use crate::cluster::resources::start::Start;
use crate::model::identity::Identity;

/// The flag that makes a store write every other snapshot to a stream of its own.
pub(crate) const SPARE: &str = "--spare";
/// Timer slack in milliseconds. An idle control plane spent half of its CPU time on hundreds of
/// timers a second, and each timer woke a process by itself. One request in a hundred waits for a
/// timer, so the API server gets the value at which the delay begins to show.
///
/// The start of kube-apiserver depends on Go's scheduler, which hands work between threads with
/// sleeps of 3 µs, and slack delays these too. With 20 ms each start takes a third of a second
/// longer; with 10 ms an idle server uses 2 ms/s more CPU.
const API_SERVER_SLACK: u32 = 15;
/// Timer slack in milliseconds of the API server's clients, on which no request waits.
const CLIENT_SLACK: u32 = 50;
/// Resources for which kube-apiserver has no watch cache, set by a cache size of 0; any other size
/// only enables the cache. Each cache has a timer of one second and takes 200 to 300 KiB. The store
/// serves lists and watches of these resources itself. They change seldom and have few watchers:
/// Kubernetes' own controllers, and nothing that runs on each worker.
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
/// Prefix of the argument that gives the store its incarnation.
const INCARNATION: &str = "--incarnation=";
/// The audience that Kubernetes' own clients request by name.
pub const COMMON_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Audiences that a cluster's API server accepts; the cluster's own one is first.
pub fn audiences(identity: &Identity) -> Vec<String> {
    vec![identity.public_name.issuer(), COMMON_AUDIENCE.to_owned()]
}

/// The command of a component, started through the launcher.
fn launch(slack: u32, program: &str) -> Vec<String> {
    vec![format!("{LAUNCH_DIR}/{LAUNCH}"), slack.to_string(), program.to_owned()]
}

/// The command of a component that must run only once, beside the store that writes. It can do
/// nothing before the API server is live, and its start would take half a second of CPU time from
/// it.
fn launch_once(blueprint: &Blueprint<'_>, program: &str) -> Vec<String> {
    let mut arguments = launch(CLIENT_SLACK, program);
    let local = |option: &str, port: u16| [option.to_owned(), format!("127.0.0.1:{port}")];
    let conditions = [
        local("--writer", STORE_PORT),
        local("--after", API_PORT),
        // As in the component's kubeconfig.
        ["--name".to_owned(), blueprint.identity.upstream_name()],
        ["--ca".to_owned(), format!("{PKI}/root-ca.crt")],
    ];
    arguments.splice(1..1, conditions.concat());
    arguments
}

/// The first command in the store's container: it copies the launcher, as the images of the other
/// components are not Yoke's.
pub(crate) fn install_launch() -> Vec<String> {
    vec![
        LAUNCH.to_owned(),
        "install".to_owned(),
        format!("{LAUNCH_DIR}/{LAUNCH}"),
    ]
}

pub(crate) fn api_server(blueprint: &Blueprint<'_>, start: &Start) -> Vec<String> {
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
        // Workloads reach the API through the ingress, and the operator writes that address.
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
        // Without it a stopping API server waits 60 s for its watches to end. It is then killed,
        // and its store has no time left to resign.
        "--shutdown-watch-termination-grace-period=2s".into(),
        format!("--tls-cert-file={PKI}/tls.crt"),
        format!("--tls-private-key-file={PKI}/tls.key"),
        format!("--watch-cache-sizes={}", list_uncached()),
    ]);
    if start.has_konnectivity {
        arguments.push(format!("--egress-selector-config-file={CONFIG}/{EGRESS_FILE}"));
    }
    arguments.extend(audit::api_server_arguments(&blueprint.spec.sleep));
    // kube-apiserver refuses OIDC arguments beside an authentication file, so they become a part of
    // the file.
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

pub(crate) fn controller_manager(blueprint: &Blueprint<'_>) -> Vec<String> {
    let network = &blueprint.spec.network;
    let mut arguments = launch_once(blueprint, "kube-controller-manager");
    arguments.extend([
        "--allocate-node-cidrs=true".to_owned(),
        format!("--cluster-cidr={}", network.pod_cidr),
        // The controller manager has no signing keys, as the operator signs.
        format!("--cluster-name={}", blueprint.identity.cluster),
        // At the default of 20 requests a second the controllers wait 4 s for each other's
        // credentials before the first one works.
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

pub(crate) fn scheduler(blueprint: &Blueprint<'_>) -> Vec<String> {
    let mut arguments = launch_once(blueprint, "kube-scheduler");
    arguments.extend(client_of_api_server());
    arguments.extend(blueprint.spec.extra_args.scheduler.iter().map(to_flag));
    arguments
}

/// Arguments of kube-controller-manager and kube-scheduler. There is one instance, so no leader
/// election is needed beside that of the store. Its endpoint serves probes without authentication.
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

pub(crate) fn store(blueprint: &Blueprint<'_>, start: &Start) -> Vec<String> {
    let nats = &blueprint.config.nats;
    let mut arguments = vec![
        format!("--listen=unix://{SOCKET_DIR}/kine.sock"),
        format!("--nats={}", nats.urls.join(",")),
        format!("--creds={STORE}/user.creds"),
        format!("--nats-ca={STORE}/ca.crt"),
        format!("--stream={}", blueprint.identity.id.stream()),
        to_incarnation(start.incarnation),
        format!("--metrics=0.0.0.0:{STORE_PORT}"),
        // Needed for a planned takeover, while there are two pods.
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

/// Replaces the incarnation in the arguments of the store.
pub(crate) fn renumber_store(arguments: &mut [String], incarnation: u64) {
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
