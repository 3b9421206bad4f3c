//! Selects the fields of a Cluster's objects that stay in the watch caches: only those that the
//! operator reads. Pure.
//!
//! Secrets keep only the names of their keys and public values. Code that copies a Secret reads it
//! from the host API.

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::ingress::{CONFIG_KEY, IngressConfig};
use yoke_api::labels::{self, component};
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE};
use yoke_nats_auth::credentials::outline;
use yoke_pki::cert_manager::{Certificate, CertificateSpec, Issuer};

use crate::host_api::compact_store::{Retention, by_generation, by_version};
use crate::nats::account::CREDENTIALS;

/// Namespaces: complete.
pub(crate) const NAMESPACES: Retention<Namespace> = complete();
/// Services: complete.
pub(crate) const SERVICES: Retention<Service> = complete();
/// Secrets: see [`keep_public`].
pub(crate) const SECRETS: Retention<Secret> = partial(keep_public);
/// ConfigMaps: the published ingress configuration, see [`keep_ingress_config`].
pub(crate) const CONFIG_MAPS: Retention<ConfigMap> = partial(keep_ingress_config);
/// NetworkPolicies: only their existence.
pub(crate) const NETWORK_POLICIES: Retention<NetworkPolicy> = partial(|policy| {
    keep_labels(&mut policy.metadata);
    policy.spec = None;
});
/// Certificates: only the DNS names.
pub(crate) const CERTIFICATES: Retention<Certificate> = partial(|certificate| {
    keep_labels(&mut certificate.metadata);
    certificate.status = None;
    certificate.spec = CertificateSpec {
        dns_names: std::mem::take(&mut certificate.spec.dns_names),
        ..CertificateSpec::default()
    };
});
/// Issuers: only their existence.
pub(crate) const ISSUERS: Retention<Issuer> = partial(|issuer| {
    keep_labels(&mut issuer.metadata);
    issuer.status = None;
    issuer.spec = Default::default();
});

/// StatefulSets of control planes: the fields that `trim` leaves, which their controller reads.
pub(crate) const fn of_stateful_sets(trim: fn(&mut StatefulSet)) -> Retention<StatefulSet> {
    Retention {
        trim,
        is_complete: false,
        version: by_generation,
    }
}

const fn complete<K>() -> Retention<K> {
    Retention {
        trim: |_| {},
        is_complete: true,
        version: by_version,
    }
}

const fn partial<K>(trim: fn(&mut K)) -> Retention<K> {
    Retention {
        trim,
        is_complete: false,
        version: by_version,
    }
}

/// Removes all metadata except the fields that identify the owner and the version of an object.
fn keep_labels(meta: &mut ObjectMeta) {
    *meta = ObjectMeta {
        name: meta.name.take(),
        namespace: meta.namespace.take(),
        labels: meta.labels.take(),
        resource_version: meta.resource_version.take(),
        deletion_timestamp: meta.deletion_timestamp.take(),
        ..ObjectMeta::default()
    };
}

/// Replaces each nonempty value of a Secret by `-`. For the Secret of a store, keeps everything
/// except the credentials that authenticate its user.
fn keep_public(secret: &mut Secret) {
    let has = |key: &str, value: &str| secret.labels().get(key).map(String::as_str) == Some(value);
    let is_store = secret.namespace().as_deref() == Some(PKI_NAMESPACE) && has(labels::COMPONENT, component::STORE);
    for (key, ByteString(value)) in secret.data.iter_mut().flatten() {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let public = match key.as_str() {
            _ if value.is_empty() => continue,
            CREDENTIALS if is_store => outline(text),
            _ if is_store => continue,
            _ => None,
        };
        // Only the existence of the value is recorded.
        *value = public.unwrap_or_else(|| "-".to_owned()).into_bytes();
    }
    (secret.type_, secret.immutable, secret.string_data) = (None, None, None);
    secret.metadata.annotations = None;
    // Objects of a Cluster are found by their labels.
    if secret.labels().contains_key(labels::ID) && !is_store {
        keep_labels(&mut secret.metadata);
    }
}

/// Keeps the published ingress configuration without certificates and keys. Drops the data of other
/// ConfigMaps.
fn keep_ingress_config(map: &mut ConfigMap) {
    keep_labels(&mut map.metadata);
    let data = map.data.take().filter(|_| map.name_any() == INGRESS_CONFIG_MAP);
    map.binary_data = None;
    let published = data.and_then(|data| serde_json::from_str::<IngressConfig>(data.get(CONFIG_KEY)?).ok());
    map.data = published.map(|mut published| {
        published.service_account_keys.clear();
        (published.client_ca, published.upstream.ca) = Default::default();
        let text = serde_json::to_string(&published).expect("fields are strings and lists");
        [(CONFIG_KEY.to_owned(), text)].into()
    });
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::ObjectRef;
    use kube::runtime::watcher::Event;
    use yoke_api::ClusterId;
    use yoke_nats_auth::credentials::jwt_of;

    use super::*;
    use crate::host_api::compact_store;
    use crate::nats::account::QUOTA;
    use crate::nats::{Account, Size};

    const ID: &str = "bcdfghjk24";

    fn secret(namespace: &str, name: &str, component: &str, data: &[(&str, &str)]) -> Secret {
        let labels = [(labels::ID, ID), (labels::COMPONENT, component)];
        let mut secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                uid: Some("u".into()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString((*text).into())));
        secret.data = Some(data.collect());
        secret
    }

    /// Passes a Secret through a `CompactStore` and returns what is left.
    fn cached(secret: &Secret) -> Secret {
        let (cache, mut writer) = compact_store::open(SECRETS);
        writer.apply_event(&Event::Apply(secret.clone()));
        let found = cache.get(&ObjectRef::from_obj(secret)).unwrap();
        (*found).clone()
    }

    fn texts(secret: &Secret) -> Vec<(&str, &str)> {
        let data = secret.data.iter().flatten();
        data.map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).unwrap()))
            .collect()
    }

    #[test]
    fn no_private_key_and_no_credential_is_cached() {
        let chain = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nB\n-----END CERTIFICATE-----\n";
        let issued = [("ca.crt", ""), ("tls.crt", chain), ("tls.key", "KEY")];
        let certificate = cached(&secret(PKI_NAMESPACE, "bcdfghjk24-operator", component::PKI, &issued));
        assert_eq!(
            texts(&certificate),
            [("ca.crt", ""), ("tls.crt", "-"), ("tls.key", "-")]
        );
        assert!(certificate.metadata.uid.is_none() && certificate.labels().len() == 2);
        let size = Size { quota: 7, replicas: 1 };
        let account = Account::draw(&ID.parse::<ClusterId>().unwrap(), size, 1).unwrap();
        let data = account.to_data();
        let data: Vec<_> = data.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        let copy = cached(&secret("yoke-c-x", "kine-nats", component::STORE, &data));
        assert!(texts(&copy).iter().all(|(_, text)| *text == "-"), "{copy:?}");
        let store = cached(&secret(PKI_NAMESPACE, "bcdfghjk24-store", component::STORE, &data));
        assert_eq!(texts(&store).iter().find(|(key, _)| *key == QUOTA), Some(&(QUOTA, "7")));
        let all = format!("{:?}", texts(&store));
        let credentials = &account.user.as_ref().unwrap().credentials;
        let (_, seed) = credentials.split_once("BEGIN USER NKEY SEED-----").unwrap();
        let signature = jwt_of(credentials).unwrap().rsplit('.').next().unwrap();
        for secret in [seed.lines().nth(1).unwrap(), signature] {
            assert!(secret.len() > 50 && !all.contains(secret), "{all}");
        }
        let known = Account::from_data(&crate::host_api::secrets::data_of(&store)).unwrap();
        assert_eq!(known.terms(), account.terms());
        assert_eq!(
            store.metadata.uid.as_deref(),
            Some("u"),
            "the UID is needed as a precondition"
        );
    }

    #[test]
    fn the_ingress_configuration_is_cached_without_certificates() {
        let text = serde_json::json!({"id": ID, "tenant": "t", "cluster": "a", "publicName": "a-bcdfghjk.yoke.test",
            "extraNames": ["x.example"], "issuer": "https://a", "audiences": [], "serviceAccountKeys": ["PEM"], "clientCa": "PEM",
            "upstream": {"serverName": "s", "ca": "PEM", "service": "a"}});
        let map = |name: &str| {
            let mut map = ConfigMap::default();
            map.metadata.name = Some(name.into());
            map.data = Some([(CONFIG_KEY.to_owned(), text.to_string())].into());
            keep_ingress_config(&mut map);
            map.data
        };
        assert_eq!(map("kube-apiserver"), None);
        let published = map(INGRESS_CONFIG_MAP).unwrap().remove(CONFIG_KEY).unwrap();
        assert!(
            published.contains("x.example") && !published.contains("PEM"),
            "{published}"
        );
    }
}
