//! Writes and reads kubeconfigs (`v1` `Config`) with one cluster, one user and one context, for
//! tenants and for control-plane components. Equal input gives equal bytes.
//!
//! Certificates are either embedded ([`Authority::Data`], [`Credential::Data`]) or referenced by
//! path. client-go reloads files when they change.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// A kubeconfig could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The kubeconfig cannot be serialized.
    #[error("writing a kubeconfig")]
    Write(#[source] serde_saphyr::SerializeError),
    /// The text is not YAML in the form of a kubeconfig. The parser's error may quote the file, so
    /// it is dropped.
    #[error("the text is not a kubeconfig")]
    Shape,
    /// The text has another kind or version.
    #[error("kind {kind:?} of version {version:?} is not a kubeconfig")]
    Kind {
        /// `kind` of the text.
        kind: String,
        /// `apiVersion` of the text.
        version: String,
    },
    /// The current context is missing, or refers to a missing entry.
    #[error("the current context is missing, or its cluster or user is")]
    Context,
    /// The field is not base64 of text.
    #[error("field {0} is not text in base64")]
    Data(&'static str),
    /// Fields are missing or exclude each other.
    #[error("the fields of the {0} are incomplete or exclude each other")]
    Fields(&'static str),
}

/// One cluster, and one user of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// Name of the context and of the cluster entry.
    pub context: String,
    /// Name of the user entry.
    pub user: String,
    /// Default namespace of clients.
    pub namespace: Option<String>,
    /// URL of the API.
    pub server: String,
    /// Server name to verify and to send as SNI, if it differs from the one in the URL.
    pub tls_server_name: Option<String>,
    /// CA certificates that verify the server.
    pub authority: Authority,
    /// Credential of the user.
    pub credential: Credential,
}

/// CA certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// PEM text.
    Data(String),
    /// Path of a PEM file.
    File(String),
}

/// Credential of a user.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// Certificate chain and key, as PEM text.
    Data {
        /// Certificate chain.
        certificate: String,
        /// Private key.
        key: String,
    },
    /// Certificate chain and key, as paths of PEM files.
    Files {
        /// Path of the certificate chain.
        certificate: String,
        /// Path of the private key.
        key: String,
    },
    /// A bearer token.
    Token(String),
    /// Path of a file with a bearer token.
    TokenFile(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    api_version: String,
    kind: String,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context")]
    current_context: String,
}

#[derive(Serialize, Deserialize)]
struct NamedCluster {
    name: String,
    cluster: ClusterFields,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterFields {
    server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_authority: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct NamedUser {
    name: String,
    user: UserFields,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UserFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_certificate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key_data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    token_file: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct NamedContext {
    name: String,
    context: ContextFields,
}

#[derive(Serialize, Deserialize)]
struct ContextFields {
    cluster: String,
    user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

impl Kubeconfig {
    /// Serializes the kubeconfig as YAML.
    pub fn to_yaml(&self) -> Result<String, KubeconfigError> {
        let config = Config {
            api_version: "v1".into(),
            kind: "Config".into(),
            clusters: vec![NamedCluster {
                name: self.context.clone(),
                cluster: self.to_cluster(),
            }],
            users: vec![NamedUser {
                name: self.user.clone(),
                user: self.credential.to_fields(),
            }],
            contexts: vec![NamedContext {
                name: self.context.clone(),
                context: ContextFields {
                    cluster: self.context.clone(),
                    user: self.user.clone(),
                    namespace: self.namespace.clone(),
                },
            }],
            current_context: self.context.clone(),
        };
        // Base64 stays on one line: readers of kubeconfigs other than client-go support only plain
        // scalars.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(&config, options).map_err(KubeconfigError::Write)
    }

    /// Parses the current context of a kubeconfig.
    pub fn from_yaml(text: &str) -> Result<Self, KubeconfigError> {
        let config: Config = serde_saphyr::from_str(text).map_err(|_| KubeconfigError::Shape)?;
        if config.kind != "Config" || config.api_version != "v1" {
            return Err(KubeconfigError::Kind {
                kind: config.kind,
                version: config.api_version,
            });
        }
        let mut contexts = config.contexts.into_iter();
        let context = contexts
            .find(|context| context.name == config.current_context)
            .ok_or(KubeconfigError::Context)?;
        let cluster = config
            .clusters
            .into_iter()
            .find(|cluster| cluster.name == context.context.cluster)
            .ok_or(KubeconfigError::Context)?
            .cluster;
        let user = config
            .users
            .into_iter()
            .find(|user| user.name == context.context.user)
            .ok_or(KubeconfigError::Context)?;
        Ok(Self {
            context: context.name,
            user: user.name,
            namespace: context.context.namespace,
            server: cluster.server,
            tls_server_name: cluster.tls_server_name,
            authority: Authority::from_fields(cluster.certificate_authority, cluster.certificate_authority_data)?,
            credential: Credential::from_fields(user.user)?,
        })
    }

    fn to_cluster(&self) -> ClusterFields {
        let mut fields = ClusterFields {
            server: self.server.clone(),
            tls_server_name: self.tls_server_name.clone(),
            ..ClusterFields::default()
        };
        match &self.authority {
            Authority::Data(pem) => fields.certificate_authority_data = Some(STANDARD.encode(pem)),
            Authority::File(path) => fields.certificate_authority = Some(path.clone()),
        }
        fields
    }
}

impl Authority {
    fn from_fields(file: Option<String>, data: Option<String>) -> Result<Self, KubeconfigError> {
        match (file, data) {
            (None, Some(data)) => Ok(Self::Data(decode("certificate-authority-data", &data)?)),
            (Some(path), None) => Ok(Self::File(path)),
            _ => Err(KubeconfigError::Fields("certificate authority")),
        }
    }
}

impl Credential {
    fn to_fields(&self) -> UserFields {
        let mut fields = UserFields::default();
        match self {
            Self::Data { certificate, key } => {
                fields.client_certificate_data = Some(STANDARD.encode(certificate));
                fields.client_key_data = Some(STANDARD.encode(key));
            }
            Self::Files { certificate, key } => {
                fields.client_certificate = Some(certificate.clone());
                fields.client_key = Some(key.clone());
            }
            Self::Token(token) => fields.token = Some(token.clone()),
            Self::TokenFile(path) => fields.token_file = Some(path.clone()),
        }
        fields
    }

    fn from_fields(fields: UserFields) -> Result<Self, KubeconfigError> {
        let data = (fields.client_certificate_data, fields.client_key_data);
        let files = (fields.client_certificate, fields.client_key);
        match (data, files, (fields.token, fields.token_file)) {
            ((Some(certificate), Some(key)), (None, None), (None, None)) => Ok(Self::Data {
                certificate: decode("client-certificate-data", &certificate)?,
                key: decode("client-key-data", &key)?,
            }),
            ((None, None), (Some(certificate), Some(key)), (None, None)) => Ok(Self::Files { certificate, key }),
            ((None, None), (None, None), (Some(token), None)) => Ok(Self::Token(token)),
            ((None, None), (None, None), (None, Some(path))) => Ok(Self::TokenFile(path)),
            _ => Err(KubeconfigError::Fields("credential")),
        }
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data { .. } => "Credential::Data",
            Self::Files { .. } => "Credential::Files",
            Self::Token(_) => "Credential::Token",
            Self::TokenFile(_) => "Credential::TokenFile",
        })
    }
}

fn decode(field: &'static str, text: &str) -> Result<String, KubeconfigError> {
    let bytes = STANDARD.decode(text).map_err(|_| KubeconfigError::Data(field))?;
    String::from_utf8(bytes).map_err(|_| KubeconfigError::Data(field))
}

#[cfg(test)]
mod tests;
