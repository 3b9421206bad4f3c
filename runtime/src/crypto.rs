//! The TLS crypto provider of the process: aws-lc-rs, and no other.

/// Makes aws-lc-rs the default rustls provider of this process. Further calls have no effect.
pub fn install_crypto() {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn may_be_called_twice() {
        install_crypto();
        install_crypto();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
