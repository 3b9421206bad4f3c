//! Validates a complete configuration. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use yoke_api::join_token::program::{are_digests, is_ssh_host};
use yoke_api::usage::Money;
use yoke_api::{Cidr, KubernetesVersion};

use crate::config::Config;
use crate::config::error::ConfigError;
use crate::config::tenant_cluster::DNS_NUMBER;

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_domain("baseDomain", &self.base_domain)?;
        self.check_ingress()?;
        self.check_nats()?;
        self.check_oidc()?;
        self.check_versions()?;
        self.check_classes()?;
        for (index, peer) in self.metrics_from.iter().enumerate() {
            let names = peer.ip_block.is_some() || peer.namespace_selector.is_some() || peer.pod_selector.is_some();
            check(names, &format!("metricsFrom[{index}]"), || {
                "must have ipBlock, namespaceSelector or podSelector".into()
            })?;
        }
        check_filled("kineNatsImage", &self.kine_nats_image)?;
        check_filled("konnectivityServerImage", &self.konnectivity_server_image)?;
        check_filled("konnectivityAgentImage", &self.konnectivity_agent_image)?;
        check_filled("addons.registry", &self.addons.registry)?;
        check(are_digests(&self.worker.digests), "worker.digests", || {
            "must map an architecture, such as amd64, to the SHA-256 of yoke-worker: 64 lower-case hexadecimal \
         digits"
                .into()
        })?;
        check(
            self.worker.ssh.is_empty() || is_ssh_host(&self.worker.ssh),
            "worker.ssh",
            || "must be a host name or an IP address, optionally with a port, such as ssh.example.org:22".into(),
        )?;
        check(
            ["Always", "IfNotPresent", "Never"].contains(&self.image_pull_policy.as_str()),
            "imagePullPolicy",
            || "must be one of Always, IfNotPresent, Never".into(),
        )?;
        check(!self.service_cidrs.is_empty(), "serviceCIDRs", || {
            "must have at least one entry".into()
        })?;
        for (index, cidr) in self.service_cidrs.iter().enumerate() {
            let field = format!("serviceCIDRs[{index}]");
            check_cidr(&field, cidr)?;
            let dns = cidr.parse::<Cidr>().ok().and_then(|cidr| cidr.nth(DNS_NUMBER));
            check(dns.is_some(), &field, || {
                format!("is too small: the address of cluster DNS is number {DNS_NUMBER} of the range")
            })?;
        }
        check(!self.cluster_domains.is_empty(), "clusterDomains", || {
            "must have at least one entry".into()
        })?;
        for (index, domain) in self.cluster_domains.iter().enumerate() {
            check_domain(&format!("clusterDomains[{index}]"), domain)?;
        }
        if let Some(price) = &self.price_per_hour {
            let money = price.parse::<Money>();
            money.map_err(|error| wrong("pricePerHour", error.to_string()))?;
        }
        check(self.run_as_user > 0, "runAsUser", || "must not be root".into())
    }

    fn check_ingress(&self) -> Result<(), ConfigError> {
        check_filled("ingress.address", &self.ingress.address)?;
        if self.ingress.address.parse::<IpAddr>().is_err() {
            check_domain("ingress.address", &self.ingress.address)?;
        }
        check(self.ingress.port != 0, "ingress.port", || "must not be 0".into())?;
        check(!self.ingress.pods.is_empty(), "ingress.pods", || {
            "must have at least one entry: without it, no pod may connect to a control plane".into()
        })?;
        let ingress = self.ingress.pods.iter().enumerate();
        let ingress = ingress.map(|(index, pods)| (format!("ingress.pods[{index}]"), pods));
        for (field, pods) in ingress.chain([("operatorPods".to_owned(), &self.operator_pods)]) {
            check_filled(&format!("{field}.namespace"), &pods.namespace)?;
            check(!pods.labels.is_empty(), &format!("{field}.labels"), || {
                "an empty selector would admit every pod of the namespace".into()
            })?;
        }
        Ok(())
    }

    fn check_nats(&self) -> Result<(), ConfigError> {
        let nats = &self.nats;
        check(!nats.urls.is_empty(), "nats.urls", || {
            "must have at least one entry".into()
        })?;
        for (index, url) in nats.urls.iter().enumerate() {
            let field = format!("nats.urls[{index}]");
            let host = url.strip_prefix("tls://").and_then(|rest| rest.rsplit_once(':'));
            let Some((host, port)) = host else {
                return Err(wrong(
                    &field,
                    format!("must have the form tls://host:port, not {url:?}"),
                ));
            };
            check(port.parse() == Ok(nats.port), &field, || {
                format!("must have the port in nats.port ({})", nats.port)
            })?;
            let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            check(literal || nats.host_aliases.contains_key(host), &field, || {
                format!("control planes have no DNS: add an address for {host:?} to nats.hostAliases")
            })?;
        }
        check(!nats.cidrs.is_empty(), "nats.cidrs", || {
            "must have at least one entry".into()
        })?;
        for (index, cidr) in nats.cidrs.iter().enumerate() {
            check_cidr(&format!("nats.cidrs[{index}]"), cidr)?;
        }
        Ok(())
    }

    fn check_oidc(&self) -> Result<(), ConfigError> {
        for (field, cidrs) in [("oidc.cidrs", &self.oidc.cidrs), ("oidc.except", &self.oidc.except)] {
            for (index, cidr) in cidrs.iter().enumerate() {
                check_cidr(&format!("{field}[{index}]"), cidr)?;
            }
        }
        // Kubernetes treats a rule without peers as one that allows all destinations, including the
        // host's own networks.
        check(!self.oidc.cidrs.is_empty(), "oidc.cidrs", || {
            "must have at least one entry".into()
        })?;
        for (index, except) in self.oidc.except.iter().enumerate() {
            let parsed = |text: &str| text.parse::<Cidr>().ok();
            let is_swallowed = |cidr: &&String| match (parsed(cidr), parsed(except)) {
                (Some(cidr), Some(except)) => cidr == except || cidr.is_part_of(except),
                _ => false,
            };
            let swallowed = self.oidc.cidrs.iter().find(is_swallowed);
            check(swallowed.is_none(), &format!("oidc.except[{index}]"), || {
                let cidr = swallowed.map_or("", String::as_str);
                format!("excludes all of {cidr}: remove that range from oidc.cidrs instead")
            })?;
        }
        Ok(())
    }

    fn check_versions(&self) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (index, entry) in self.versions.iter().enumerate() {
            let field = format!("versions[{index}].version");
            let version: KubernetesVersion = entry
                .version
                .parse()
                .map_err(|error| wrong(&field, format!("{error}")))?;
            check(seen.insert(version), &field, || {
                format!("version {version} appears twice")
            })?;
            check_filled(&format!("versions[{index}].images.apiServer"), &entry.images.api_server)?;
            check_filled(
                &format!("versions[{index}].images.controllerManager"),
                &entry.images.controller_manager,
            )?;
            check_filled(&format!("versions[{index}].images.scheduler"), &entry.images.scheduler)?;
            for (name, image) in [
                ("kubeProxy", &entry.images.kube_proxy),
                ("coreDNS", &entry.images.core_dns),
                ("metricsServer", &entry.images.metrics_server),
            ] {
                if let Some(image) = image {
                    check_filled(&format!("versions[{index}].images.{name}"), image)?;
                }
            }
        }
        check(self.find_default_version().is_some(), "defaultVersion", || {
            "must be one of the versions in the catalog".into()
        })
    }

    fn check_classes(&self) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (index, class) in self.classes.iter().enumerate() {
            let field = format!("classes[{index}]");
            check_filled(&format!("{field}.name"), &class.name)?;
            check(seen.insert(&class.name), &format!("{field}.name"), || {
                format!("name {:?} appears twice", class.name)
            })?;
            // An even number tolerates no more failures than one replica less, and costs more.
            check(
                matches!(class.store_replicas, 1 | 3 | 5),
                &format!("{field}.storeReplicas"),
                || format!("must be 1, 3 or 5, not {}", class.store_replicas),
            )?;
        }
        check(
            self.classes.len() == 1 || self.default_class.is_some(),
            "defaultClass",
            || "must be the name of one of classes".into(),
        )?;
        check(self.class(None).is_some(), "defaultClass", || {
            "must be the name of one of classes".into()
        })
    }
}

fn wrong(field: &str, problem: String) -> ConfigError {
    ConfigError::Value {
        field: field.to_owned(),
        problem,
    }
}

fn check(good: bool, field: &str, problem: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if good { Ok(()) } else { Err(wrong(field, problem())) }
}

fn check_filled(field: &str, text: &str) -> Result<(), ConfigError> {
    check(!text.trim().is_empty(), field, || "must not be empty".into())
}

fn check_domain(field: &str, text: &str) -> Result<(), ConfigError> {
    check(yoke_api::names::is_domain(text), field, || {
        format!("must be a lower-case DNS name, not {text:?}")
    })
}

fn check_cidr(field: &str, text: &str) -> Result<(), ConfigError> {
    text.parse::<Cidr>()
        .map(|_| ())
        .map_err(|error| wrong(field, error.to_string()))
}
