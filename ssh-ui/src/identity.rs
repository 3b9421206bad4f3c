//! Client identities: the owners of SSH keys, which a watch of Tenants updates, and the API tokens
//! that those keys sign.

pub mod key_registry;
pub mod tenants_watch;
pub mod token;
