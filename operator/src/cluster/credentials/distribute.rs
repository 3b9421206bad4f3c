//! Copies issued certificates and generated credentials to their users: the control plane, the
//! ingress, the tenant. A running control plane depends on these copies at all times, whatever its
//! spec says.
//!
//! ```text
//!  unchanged? (versions of the Secrets, ingress configuration, digests of the copies)
//!    yes ─▶ the cached summary
//!    no  ─▶ read the Secrets from the host API ─▶ Materials ─▶ apply the copies ─▶ cache the summary
//! ```
//!
//! Keys are in memory only while they are copied. The exception is the operator's own key for a
//! cluster that is awake.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use yoke_api::Reason;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE, kubeconfig_secret};
use yoke_pki::plan::{LeafRole, Plan};

use crate::cluster::context::Context;
use crate::cluster::credentials::persisted;
use crate::cluster::outcome::Outcome;
use crate::cluster::resources::objects::{self, IngressIntent};
use crate::cluster::resources::secrets::{self, Data};
use crate::cluster::resources::{IssuedSummary, Materials};
use crate::error::{MaterialError, ReconcileError};
use crate::host_api::comparison::{digest_of, hash_of};
use crate::host_api::secrets::{data_of, get_secret};
use crate::model::conditions::State;
use crate::model::identity::Identity;

/// Secrets of one Cluster that are read concurrently.
const READ_AT_ONCE: usize = 4;

/// The result of a copy.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) issued: IssuedSummary,
    /// Whether the tenant has the kubeconfig. The Tenant's namespace may be terminating while the
    /// control plane is not.
    pub(crate) delivered: Result<(), ReconcileError>,
}

/// Inputs that determine the copies, apart from static configuration.
#[derive(Hash)]
struct CopyFingerprint<'a> {
    identity: String,
    intent: String,
    root: &'a str,
    /// Resource versions of the Secrets by their names.
    sources: BTreeMap<String, String>,
    /// Digests of the copies by their namespaces and names.
    copies: BTreeMap<(String, String), String>,
}

/// The copies that a control plane and its users need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRequest<'a> {
    /// The certificates to copy.
    pub(crate) plan: &'a Plan,
    /// The ingress configuration to publish.
    pub(crate) intent: &'a IngressIntent,
    /// Whether the operator needs access to the API.
    pub(crate) needs_api: bool,
}

/// Copies certificates and credentials, unless the copies are current. `None` while a certificate
/// is not issued yet.
pub(crate) async fn distribute(
    context: &Context,
    identity: &Identity,
    request: &CopyRequest<'_>,
    outcome: &mut Outcome,
) -> Result<Option<Copied>, ReconcileError> {
    let CopyRequest {
        plan,
        intent,
        needs_api,
    } = *request;
    let root = context.host.root_certificate().await?;
    let Some(sources) = find_sources(context, identity, plan) else {
        return Ok(None);
    };
    let mut fingerprint = CopyFingerprint {
        identity: format!("{identity:?}"),
        intent: format!("{intent:?}"),
        root: &root,
        copies: find_copies(context, identity, plan, &sources),
        sources,
    };
    let cached = context.memory.seen(&identity.id).copied;
    let cached = cached.filter(|(key, issued)| *key == hash_of(&fingerprint) && (issued.reach.is_some() || !needs_api));
    let copied = match cached {
        Some((_, issued)) => Copied {
            issued,
            delivered: Ok(()),
        },
        None => {
            let Some((materials, sources)) = read_materials(context, identity, plan, &root).await? else {
                return Ok(None);
            };
            (fingerprint.sources, fingerprint.copies) = (sources, BTreeMap::new());
            let delivered = apply_copies(context, identity, intent.clone(), &materials, &mut fingerprint).await?;
            let issued = IssuedSummary::of(&materials, &identity.public_name, needs_api);
            if delivered.is_ok() {
                context.memory.update(&identity.id, |memory| {
                    memory.copied = Some((hash_of(&fingerprint), issued.clone()))
                });
            }
            Copied { issued, delivered }
        }
    };
    report_copies(identity, &copied, outcome);
    Ok(Some(copied))
}

fn report_copies(identity: &Identity, copied: &Copied, outcome: &mut Outcome) {
    let of_lost_ca = &copied.issued.former;
    if !of_lost_ca.is_empty() {
        tracing::warn!(cluster = %identity.id, leaves = of_lost_ca.join(" "), "certificates are signed by a lost CA");
    }
    outcome.published = copied.delivered.is_ok();
    outcome.ca_not_after = Some(copied.issued.ca_not_after);
    let message = match of_lost_ca.len() {
        0 => "Every certificate is issued and copied.".to_owned(),
        count => format!(
            "Every certificate is issued and copied. {count} of them are signed by a CA whose key was lost; that \
         CA stays trusted until they are renewed."
        ),
    };
    outcome.certificates = State::yes(Reason::AsExpected, message);
}

/// Resource versions of the source Secrets, from the watch cache; `None` while a required Secret is
/// missing.
fn find_sources(context: &Context, identity: &Identity, plan: &Plan) -> Option<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    for name in list_sources(identity, plan) {
        let key = ObjectRef::<Secret>::new(&name).within(PKI_NAMESPACE);
        let secret = context.host.caches.secrets.get(&key);
        let secret = secret.filter(|secret| is_generated(identity, &name) || secrets::is_issued(secret));
        match secret {
            Some(secret) => {
                sources.insert(name, secret.resource_version().unwrap_or_default());
            }
            None if is_optional(plan, &name) => {}
            None => return None,
        }
    }
    Some(sources)
}

/// Names of the source Secrets in the PKI namespace.
fn list_sources(identity: &Identity, plan: &Plan) -> Vec<String> {
    let leaves = plan.leaves.iter().map(|leaf| leaf.name.clone());
    let authorities = plan.authorities.iter().map(|authority| authority.name.clone());
    let generated = [identity.service_account_secret(), identity.store_secret()];
    leaves.chain(authorities).chain(generated).collect()
}

fn is_generated(identity: &Identity, name: &str) -> bool {
    name == identity.service_account_secret() || name == identity.store_secret()
}

/// Whether nothing that runs depends on this Secret.
fn is_optional(plan: &Plan, name: &str) -> bool {
    let mut leaves = plan.leaves.iter();
    leaves.any(|leaf| leaf.role == LeafRole::Sleeper && leaf.name == name)
}

/// Digests of the copies that are unchanged since they were applied.
fn find_copies(
    context: &Context,
    identity: &Identity,
    plan: &Plan,
    sources: &BTreeMap<String, String>,
) -> BTreeMap<(String, String), String> {
    let (caches, hosted) = (&context.host.caches, identity.hosted().to_string());
    let issued = plan.leaves.iter().filter(|leaf| sources.contains_key(&leaf.name));
    let secrets = secrets::component_secrets(issued.map(|leaf| leaf.role)).into_iter();
    let secrets = secrets.map(|name| (hosted.clone(), name.to_owned()));
    let kubeconfig = (identity.tenant.clone(), kubeconfig_secret(&identity.cluster));
    let secrets = secrets.chain([kubeconfig]).filter_map(|(namespace, name)| {
        let digest = context.applier.find_standing(&caches.secrets, &namespace, &name)?;
        Some(((namespace, name), digest))
    });
    let published = context
        .applier
        .find_standing(&caches.config_maps, &hosted, INGRESS_CONFIG_MAP);
    let published = published.map(|digest| ((hosted.clone(), INGRESS_CONFIG_MAP.to_owned()), digest));
    secrets.chain(published).collect()
}

/// Reads certificates and credentials from the host API, with the resource versions of their
/// Secrets; `None` while a certificate is not issued yet.
async fn read_materials(
    context: &Context,
    identity: &Identity,
    plan: &Plan,
    root: &str,
) -> Result<Option<(Materials, BTreeMap<String, String>)>, ReconcileError> {
    // The semaphore is never closed.
    let _permit = context.copying.acquire().await;
    let api = &Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let read = stream::iter(list_sources(identity, plan)).map(async |name| get_secret(api, &name).await);
    let found: Vec<_> = read.buffer_unordered(READ_AT_ONCE).try_collect().await?;
    let found = found.into_iter().flatten();
    let found: BTreeMap<_, _> = found.map(|secret| (secret.name_any(), secret)).collect();
    let versions = found
        .iter()
        .map(|(name, secret)| (name.clone(), secret.resource_version().unwrap_or_default()))
        .collect();
    let service_account = persisted::read_service_account(identity, found.get(&identity.service_account_secret()))?;
    let credentials = persisted::read_credentials(identity, found.get(&identity.store_secret()))?;
    let read = |copied: &Data| {
        let sources = secrets::Sources {
            copied,
            now: Timestamp::now(),
            secret: |name: &str| found.get(name).map(data_of),
            root,
            service_account: &service_account,
            store_credentials: &credentials,
            nats_ca: &context.nats_ca,
        };
        Materials::read(plan, &sources)
    };
    let materials = match read(&Data::new()) {
        // The certificate of a lost CA may exist as a copy.
        Err(MaterialError::Stray(_)) => {
            let hosted = Api::<Secret>::namespaced(context.host.client.clone(), identity.hosted().as_str());
            let copied = get_secret(&hosted, secrets::API_SERVER).await?;
            read(&copied.as_ref().map(data_of).unwrap_or_default())?
        }
        read => read?,
    };
    Ok(materials.ok().map(|materials| (materials, versions)))
}

/// Writes the copies for the control plane and for its users, and adds the digests of the copies.
/// The inner result says whether the tenant has the kubeconfig.
async fn apply_copies(
    context: &Context,
    identity: &Identity,
    intent: IngressIntent,
    materials: &Materials,
    fingerprint: &mut CopyFingerprint<'_>,
) -> Result<Result<(), ReconcileError>, ReconcileError> {
    let caches = &context.host.caches;
    let components = secrets::build_component_secrets(identity, materials)?;
    let kubeconfig = secrets::build_kubeconfig(identity, &context.host.config, materials)?;
    let ingress = objects::build_ingress(identity, intent, &materials.trust());
    let copies = components
        .iter()
        .map(|secret| context.applier.apply(&caches.secrets, secret));
    // Try every copy, then return the first failure.
    let (copies, kubeconfig_delivered, ingress_published) = tokio::join!(
        futures::future::join_all(copies),
        context.applier.apply(&caches.secrets, &kubeconfig),
        context.applier.apply(&caches.config_maps, &ingress),
    );
    for result in copies.into_iter().chain([ingress_published]) {
        result?;
    }
    let secrets = components.iter().chain([&kubeconfig]).map(digest);
    fingerprint.copies = secrets.chain([digest(&ingress)]).collect();
    Ok(kubeconfig_delivered.map_err(ReconcileError::from))
}

/// The namespace and name of a copy, and the digest of its content.
fn digest<K: Resource + Serialize>(copy: &K) -> ((String, String), String) {
    let value = serde_json::to_value(copy).expect("typed Kubernetes objects have string keys only");
    (
        (copy.namespace().unwrap_or_default(), copy.name_any()),
        digest_of(&value),
    )
}
