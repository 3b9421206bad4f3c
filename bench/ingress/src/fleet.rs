//! The simulated clusters: the configuration that the operator would publish for each, and its
//! certificates.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use aws_lc_rs::rsa::KeySize;
use k8s_openapi::jiff::Timestamp;
use yoke_api::names::API_PORT;
use yoke_bench_harness::sandbox::NETWORK;

use crate::support::fixtures::{ClusterFixture, Signer, claims, cluster};
use crate::support::pki::{Ca, Leaf};

/// Maximum number of clusters: each needs two addresses of the network.
pub(crate) const MOST: usize = 65_000;

/// All clusters, including those that a run creates later.
pub(crate) struct Fleet {
    /// Signs the CAs of the clusters and of the ingress.
    pub(crate) root: Ca,
    clusters: Vec<ClusterFixture>,
    authorities: Vec<Ca>,
    /// Cluster index by the server names of its API server.
    names: HashMap<String, usize>,
    /// The service account key of all clusters. Yoke generates one RSA key for each cluster. One
    /// shared key is enough here, because generating a key takes long. Each cluster's configuration
    /// lists the key as if it were its own.
    signer: Signer,
}

impl Fleet {
    /// Generates `count` clusters and their CAs.
    pub(crate) fn new(count: usize) -> Self {
        let root = Ca::new("root");
        let signer = Signer::rsa(KeySize::Rsa2048);
        let authorities: Vec<_> = (0..count)
            .map(|index| root.under(&format!("cluster-{index}")))
            .collect();
        let mut clusters = Vec::with_capacity(count);
        let mut names = HashMap::with_capacity(2 * count);
        for (index, ca) in authorities.iter().enumerate() {
            let mut cluster = cluster("demo", &id_of(index));
            cluster.config.service_account_keys = vec![signer.pem.clone()];
            cluster.config.upstream.ca.clone_from(&ca.pem);
            cluster.config.client_ca.clone_from(&ca.pem);
            names.insert(cluster.public_name(), index);
            names.insert(cluster.config.upstream.server_name.clone(), index);
            clusters.push(cluster.at(&[&address_of(index, false).to_string()], API_PORT));
        }
        Self {
            root,
            clusters,
            authorities,
            names,
            signer,
        }
    }

    pub(crate) fn cluster(&self, index: usize) -> &ClusterFixture {
        &self.clusters[index]
    }

    /// `Authorization` header of a pod of the cluster.
    pub(crate) fn bearer(&self, index: usize) -> String {
        let issuer = &self.clusters[index].config.issuer;
        // A run may take longer than the default validity of the token.
        let mut claims = claims(issuer, &[issuer], Timestamp::now().as_second());
        claims["exp"] = (Timestamp::now().as_second() + 24 * 3600).into();
        format!("Bearer {}", self.signer.token(&claims))
    }

    /// The cluster whose API server has this server name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// A cluster's CA, and a new certificate of its API server.
    pub(crate) fn certify(&self, index: usize) -> (&Ca, Leaf) {
        let (config, ca) = (&self.clusters[index].config, &self.authorities[index]);
        let names = [config.upstream.server_name.as_str(), config.public_name.as_str()];
        (ca, ca.leaf("apiserver", &names))
    }
}

/// A cluster ID whose first eight letters are unique: public names contain only those.
fn id_of(index: usize) -> String {
    format!("c{index:07}xx")
}

/// The address of a cluster's control plane, before or after it was moved.
pub(crate) fn address_of(index: usize, moved: bool) -> Ipv4Addr {
    let first = u32::from(NETWORK) + if moved { 1 << 16 } else { 0 };
    // The network address and the host's address come first.
    Ipv4Addr::from(first + 2 + u32::try_from(index).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cluster_has_two_addresses_of_its_own() {
        assert_eq!(address_of(0, false), Ipv4Addr::new(198, 18, 0, 2));
        assert_eq!(address_of(300, true), Ipv4Addr::new(198, 19, 1, 46));
        assert_eq!(address_of(MOST, false), Ipv4Addr::new(198, 18, 253, 234));
        assert_eq!(address_of(MOST, true), Ipv4Addr::new(198, 19, 253, 234));
    }

    #[test]
    fn each_cluster_has_a_name_of_its_own() {
        let fleet = Fleet::new(12);
        assert_eq!(fleet.cluster(11).public_name(), "demo-c0000011.yoke.test");
        let server_name = &fleet.cluster(11).config.upstream.server_name;
        assert_eq!(fleet.find(server_name), Some(11));
        assert_eq!(fleet.find("demo-c0000012.yoke.test"), None);
    }
}
