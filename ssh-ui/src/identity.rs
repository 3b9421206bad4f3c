//! Client identities: the owners of SSH keys, kept up to date by a watch of Tenants, and API tokens that those keys sign.

pub mod key_registry;
pub mod tenants_watch;
pub mod token;
