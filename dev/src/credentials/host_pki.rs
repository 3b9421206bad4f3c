//! Certificates of the host cluster: a CA for servers and clients, a CA for the front proxy, a key
//! that signs service-account tokens, and a kubeconfig for each component. Certificates of tenant
//! clusters are separate: cert-manager issues them.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SerialNumber,
};
use serde_json::json;

use crate::files::write_secret;
use crate::host_cluster::node::Node;
use crate::layout::{FIRST_NODE, Layout};
use crate::names::HOST_API_PORT;
use crate::network::Network;

const VALID_FROM: (i32, u8, u8) = (2024, 1, 1);
/// A stack lives for days only, so nothing renews these certificates.
const VALID_UNTIL: (i32, u8, u8) = (2044, 1, 1);

/// A certificate authority with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    key: String,
}

/// Contents of a certificate to issue.
#[derive(Debug)]
pub struct Leaf<'a> {
    common_name: &'a str,
    organization: Option<&'a str>,
    dns_names: &'a [&'a str],
    addresses: &'a [IpAddr],
    usages: Vec<ExtendedKeyUsagePurpose>,
}

/// A certificate and its key, in PEM.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, in PEM.
    pub certificate: String,
    /// The private key, in PEM.
    pub key: String,
}

impl<'a> Leaf<'a> {
    /// A server certificate.
    pub fn server(common_name: &'a str, dns_names: &'a [&'a str], addresses: &'a [IpAddr]) -> Self {
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Self {
            common_name,
            organization: None,
            dns_names,
            addresses,
            usages,
        }
    }

    /// A client certificate: the common name is the user, the organization is the group.
    pub fn client(common_name: &'a str, organization: Option<&'a str>) -> Self {
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Self {
            common_name,
            organization,
            dns_names: &[],
            addresses: &[],
            usages,
        }
    }
}

impl Authority {
    /// Creates a self-signed CA with a new key.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let params = authority_params(name)?;
        let certificate = params.self_signed(&key)?.pem();
        let pem = key.serialize_pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
            key: pem,
        })
    }

    /// Opens the CA that [`Self::new`] created under this name.
    fn open(name: &str, certificate: String, key: String) -> Result<Self> {
        let signing = KeyPair::from_pem(&key).context("reading the key of an authority")?;
        Ok(Self {
            issuer: Issuer::new(authority_params(name)?, signing),
            certificate,
            key,
        })
    }

    /// The certificate of the CA, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a certificate with a new key.
    pub fn issue(&self, leaf: &Leaf<'_>) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let mut params = params(leaf.common_name)?;
        if let Some(organization) = leaf.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        for name in leaf.dns_names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
        }
        params
            .subject_alt_names
            .extend(leaf.addresses.iter().copied().map(SanType::IpAddress));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages.clone_from(&leaf.usages);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn authority_params(name: &str) -> Result<CertificateParams> {
    let mut params = params(name)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(common_name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(VALID_FROM.0, VALID_FROM.1, VALID_FROM.2);
    params.not_after = rcgen::date_time_ymd(VALID_UNTIL.0, VALID_UNTIL.1, VALID_UNTIL.2);
    params.serial_number = Some(SerialNumber::from_slice(&serial()?));
    Ok(params)
}

/// A positive serial number of 127 random bits.
fn serial() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut random = fs::File::open("/dev/urandom").context("opening the source of randomness")?;
    std::io::Read::read_exact(&mut random, &mut bytes).context("reading randomness")?;
    bytes[0] = (bytes[0] & 0x7f) | 1;
    Ok(bytes)
}

const AUTHORITY: &str = "yoke-dev-host";

/// Clients of the host API in the control plane: file name of the kubeconfig, user name.
const USERS: &[(&str, &str)] = &[
    ("kube-controller-manager", "system:kube-controller-manager"),
    ("kube-scheduler", "system:kube-scheduler"),
];

/// Writes all files of the host cluster and of its first node.
pub fn write(layout: &Layout, network: &Network) -> Result<()> {
    let authority = Authority::new(AUTHORITY)?;
    let front_proxy = Authority::new("yoke-dev-front-proxy")?;
    let pki = layout.pki();
    fs::write(pki.join("ca.crt"), authority.certificate()).context("writing the host's certificate authority")?;
    write_secret(&pki.join("ca.key"), &authority.key)?;
    fs::write(pki.join("front-proxy-ca.crt"), front_proxy.certificate())
        .context("writing the front proxy's authority")?;

    write_service_account_key(layout)?;

    let node = network.node_ip().into();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let api_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let api_addresses = [node, loopback, network.plan.api_service_ip().into()];
    let loopback_only = [loopback];
    let leaves = [
        (
            "apiserver",
            &authority,
            Leaf::server("kube-apiserver", &api_names, &api_addresses),
        ),
        (
            "component",
            &authority,
            Leaf::server("component", &["localhost"], &loopback_only),
        ),
        (
            "apiserver-kubelet-client",
            &authority,
            Leaf::client("kube-apiserver-kubelet-client", Some("system:masters")),
        ),
        (
            "front-proxy-client",
            &front_proxy,
            Leaf::client("front-proxy-client", None),
        ),
    ];
    for (name, issuer, leaf) in leaves {
        write_leaf(layout, name, issuer, &leaf)?;
    }

    let server = to_server(network);
    let admin = authority.issue(&Leaf::client("yoke-dev-admin", Some("system:masters")))?;
    write_secret(
        &layout.host_kubeconfig(),
        &build_kubeconfig(&server, authority.certificate(), &admin),
    )?;
    for (file, user) in USERS {
        write_kubeconfig(layout, network, &authority, file, &Leaf::client(user, None))?;
    }
    write_node(&authority, network, &Node::new(layout, &network.plan, FIRST_NODE))
}

/// Writes the key pair that signs service-account tokens.
fn write_service_account_key(layout: &Layout) -> Result<()> {
    let (pki, key) = (layout.pki(), KeyPair::generate()?);
    write_secret(&pki.join("sa.key"), &key.serialize_pem())?;
    fs::write(pki.join("sa.pub"), key.public_key_pem()).context("writing the service-account key")
}

/// Writes the files of an added node, unless they exist and the same CA issued them.
pub fn add_node(layout: &Layout, network: &Network, node: &Node) -> Result<()> {
    let (pki, own) = (layout.pki(), node.layout.pki());
    let complete = own.join("ca.crt");
    let certificate = fs::read_to_string(pki.join("ca.crt")).context("reading the host's certificate authority")?;
    if fs::read_to_string(&complete).is_ok_and(|made_by| made_by == certificate) {
        return Ok(());
    }
    for dir in [&own, &node.layout.config()] {
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let key = fs::read_to_string(pki.join("ca.key")).context("reading the key of the host's certificate authority")?;
    let authority = Authority::open(AUTHORITY, certificate, key)?;
    write_node(&authority, network, node)?;
    // Written last: an interrupted run starts over.
    fs::write(&complete, authority.certificate()).context("writing the host's certificate authority")
}

/// Writes a node's serving certificate and the kubeconfigs of its processes.
fn write_node(authority: &Authority, network: &Network, node: &Node) -> Result<()> {
    let (name, layout) = (node.name.as_str(), &node.layout);
    let (names, addresses) = ([name], [node.plan.ip.into()]);
    write_leaf(layout, "kubelet", authority, &Leaf::server(name, &names, &addresses))?;
    let user = format!("system:node:{name}");
    for (file, client) in [
        ("kubelet", Leaf::client(&user, Some("system:nodes"))),
        ("kube-proxy", Leaf::client("system:kube-proxy", None)),
        ("kube-router", Leaf::client("kube-router", None)),
    ] {
        write_kubeconfig(layout, network, authority, file, &client)?;
    }
    Ok(())
}

fn write_leaf(layout: &Layout, name: &str, issuer: &Authority, leaf: &Leaf<'_>) -> Result<()> {
    let pki = layout.pki();
    let issued = issuer
        .issue(leaf)
        .with_context(|| format!("issuing the certificate {name}"))?;
    fs::write(pki.join(format!("{name}.crt")), issued.certificate).with_context(|| format!("writing {name}.crt"))?;
    write_secret(&pki.join(format!("{name}.key")), &issued.key)
}

fn write_kubeconfig(
    layout: &Layout,
    network: &Network,
    authority: &Authority,
    file: &str,
    client: &Leaf<'_>,
) -> Result<()> {
    let issued = authority.issue(client)?;
    let kubeconfig = build_kubeconfig(&to_server(network), authority.certificate(), &issued);
    write_secret(&layout.kubeconfig(file), &kubeconfig)
}

fn to_server(network: &Network) -> String {
    format!("https://{}:{HOST_API_PORT}", network.node_ip())
}

/// A self-contained kubeconfig. It is JSON, which is valid YAML.
fn build_kubeconfig(server: &str, authority: &str, client: &Issued) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "host", "cluster": {
            "server": server,
            "certificate-authority-data": BASE64.encode(authority.as_bytes()),
        }}],
        "users": [{"name": "host", "user": {
            "client-certificate-data": BASE64.encode(client.certificate.as_bytes()),
            "client-key-data": BASE64.encode(client.key.as_bytes()),
        }}],
        "contexts": [{"name": "host", "context": {"cluster": "host", "user": "host"}}],
        "current-context": "host",
    });
    format!("{config:#}\n")
}
