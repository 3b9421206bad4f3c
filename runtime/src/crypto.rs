//! The process-wide choice of TLS cryptography: aws-lc-rs, and no other provider beside it.

/// Makes aws-lc-rs the default provider of rustls in this process. May be called again: later calls change nothing.
pub fn install_crypto() {
    // An error means that a provider has been installed before, which is what is wanted.
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
