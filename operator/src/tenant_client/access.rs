//! The address and the credentials with which a client reaches a tenant's API.

/// Address and credentials for a tenant's API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// `https://address:port`.
    pub url: String,
    /// Server name to verify, and to send as SNI.
    pub server_name: String,
    /// CA bundle to verify the server, PEM.
    pub authority: String,
    /// The operator's certificate chain, PEM.
    pub certificate: String,
    /// The operator's private key, PEM.
    pub key: Secret,
}

/// A text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

/// Endpoint that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The Service in the control-plane namespace.
    Inside,
    /// The ingress.
    Ingress,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
