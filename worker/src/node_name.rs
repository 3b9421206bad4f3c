//! Names of Nodes. Pure.

use yoke_api::names::is_label;

/// Maximum length of a Node's name, which is a DNS subdomain.
const NAME_MAX: usize = 253;

/// Checks a Node's name like the API server does (RFC 1123).
pub(crate) fn is_node_name(name: &str) -> bool {
    name.len() <= NAME_MAX && name.split('.').all(is_label)
}
