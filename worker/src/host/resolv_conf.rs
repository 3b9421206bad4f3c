//! Finds the machine's resolver configuration.

use std::fs;
use std::path::Path;

/// Resolver configuration that systemd-resolved writes for programs that cannot use the stub named
/// in `/etc/resolv.conf`.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Returns the machine's resolver configuration, preferably the file without systemd-resolved's
/// stub on loopback.
pub(crate) fn find_resolv_conf() -> &'static str {
    if Path::new(RESOLVED).exists() {
        RESOLVED
    } else {
        RESOLV_CONF
    }
}

/// Reads the machine's current resolver configuration.
pub(crate) fn read_resolv_conf() -> String {
    fs::read_to_string(find_resolv_conf()).unwrap_or_default()
}
