//! Certificates that a tenant requests from its own CA: for a pod's API, for another cluster, for
//! the ingress. The CA here signs every request; its name constraints are those of the plan.

use std::net::SocketAddr;

use http::StatusCode;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use rustls::CertificateError;
use yoke_pki::plan::{AuthorityRole, ClusterFacts, Generations, Lifetimes, Plan};

use crate::support::api::ApiServer;
use crate::support::client::{Client, Http, get};
use crate::support::fixtures::ClusterFixture;
use crate::support::pki::{Ca, Leaf};
use crate::support::tenant::open;
use crate::support::{PATIENCE, eventually};
use crate::terminated::{NAMES, Stage};

/// Two rows for each certificate. A client that trusts the root and is routed to the tenant's
/// server does not trust it. Neither does Envoy, if the address of another cluster's control plane
/// now belongs to the tenant. Returns the number of rows.
pub(super) async fn run(stage: &Stage, failed: &mut Vec<String>) -> usize {
    let [a, b] = &stage.clusters;
    let authority = authority(&stage.root, a);
    let (own, foreign) = (a.public_name(), b.public_name());
    let agents = b.konnectivity_name();
    let upstream = b.config.upstream.server_name.clone();
    let all = "*.yoke.test".to_owned();
    let names: Vec<&str> = NAMES
        .into_iter()
        .chain([&*foreign, &*agents, &*upstream, &*all])
        .collect();
    for (number, name) in (1..).zip(&names) {
        let address = SocketAddr::from(([127, 0, 1, number], a.port));
        let leaf = ask_for(&authority, &[name, &a.config.upstream.server_name]);
        let server = ApiServer::start("thief", address, &authority, &leaf).await;
        let asked = if *name == all { &*foreign } else { *name };
        failed.extend(is_believed(stage, &server, asked).await);
        failed.extend(is_used(stage, &server, name).await);
    }
    // A certificate with the cluster's own name is trusted; otherwise the rows above prove
    // nothing.
    let leaf = ask_for(&authority, &[&own]);
    let address = SocketAddr::from(([127, 0, 1, 0], a.port));
    let server = ApiServer::start("own", address, &authority, &leaf).await;
    assert!(is_believed(stage, &server, &own).await.is_some(), "its own name");
    for cluster in &stage.clusters {
        stage.xds().apply(cluster).await;
        let reached = async || {
            let bearer = stage.bearer(usize::from(cluster.config.id == b.config.id));
            (stage.status(&bearer).await == StatusCode::OK).then_some(())
        };
        eventually("the cluster to be served again", PATIENCE, reached).await;
    }
    names.len() * 2
}

/// The cluster's CA with the constraints that the plan requests from cert-manager.
fn authority(root: &Ca, cluster: &ClusterFixture) -> Ca {
    let config = &cluster.config;
    let plan = Plan::new(&ClusterFacts {
        id: config.id.clone(),
        tenant: config.tenant.clone(),
        cluster: config.cluster.clone(),
        public_name: config.public_name.clone(),
        extra_sans: vec![],
        allowed_domains: vec!["a.example.org".into()],
        konnectivity: true,
        lifetimes: Lifetimes::from_spec(&Default::default()).unwrap(),
        generations: Generations::first(),
    });
    let plan = plan.unwrap();
    let name = &plan.trusted(AuthorityRole::Cluster).next().unwrap().name;
    let mut certificates = plan.certificates.iter();
    let certificate = certificates.find(|certificate| certificate.spec.secret_name == *name);
    let limits = certificate.and_then(|certificate| certificate.spec.name_constraints.as_ref());
    root.limited(name, limits.expect("the CA is limited"))
}

fn ask_for(authority: &Ca, names: &[&str]) -> Leaf {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    authority.sign_request(&request, key.serialize_pem())
}

/// A client is routed to the server by A's name, and expects `name`.
async fn is_believed(stage: &Stage, server: &ApiServer, name: &str) -> Option<String> {
    let a = &stage.clusters[0];
    let before = server.connections();
    let there = a.clone().at(&[&server.address.ip().to_string()], a.port);
    stage.xds().apply(&there).await;
    let config = stage.root.client_of(name);
    let (result, _) = eventually("the name of A to lead to the server", PATIENCE, async || {
        let result = open(stage.envoy.ingress, &a.public_name(), &config).await;
        (server.connections() > before).then_some(result)
    })
    .await;
    let violated = |error: &std::io::Error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) = inner else {
            return false;
        };
        other.to_string().contains("NameConstraintViolation")
    };
    match result {
        Err(error) if violated(&error) => None,
        other => Some(format!("{name}: a client heard {:?}", other.map(drop))),
    }
}

/// The server has the address of B's control plane.
async fn is_used(stage: &Stage, server: &ApiServer, name: &str) -> Option<String> {
    let b = &stage.clusters[1];
    let before = server.connections();
    let there = b.clone().at(&[&server.address.ip().to_string()], b.port);
    stage.xds().apply(&there).await;
    let bearer = stage.bearer(1);
    let mut client: Client = stage.client(Http::Two).await;
    let (answer, _) = eventually("the name of B to lead to the server", PATIENCE, async || {
        let answer = client.ask(get(Some(&bearer))).await.unwrap();
        (server.connections() > before).then_some(answer)
    })
    .await;
    let refused = answer.status == StatusCode::SERVICE_UNAVAILABLE && server.requests() == 0;
    (!refused).then(|| format!("{name}: Envoy let a request of B's pass: {answer:?}"))
}
