//! `.dev/env`: addresses, paths and credentials of the running stack as shell exports, for people
//! and tests.

use std::fs;

use anyhow::{Context, Result};

use crate::credentials::nats;
use crate::kubectl;
use crate::layout::Layout;
use crate::names::{BASE_DOMAIN, INGRESS_PORT};
use crate::network::Network;
use crate::ssh;

/// Writes the file.
pub fn write(layout: &Layout, network: &Network) -> Result<()> {
    fs::write(layout.env_file(), build(layout, network)).context("writing .dev/env")
}

fn build(layout: &Layout, network: &Network) -> String {
    let node = network.node_ip();
    let bin = layout.bin().display().to_string();
    let exports = [
        ("YOKE_INGRESS", format!("{node}:{INGRESS_PORT}")),
        ("YOKE_BASE_DOMAIN", BASE_DOMAIN.to_owned()),
        ("YOKE_SSH", format!("{node}:{}", ssh::PORT)),
        ("YOKE_API", format!("{node}:{}", ssh::API_PORT)),
        ("YOKE_API_HOST", ssh::API_HOST.to_owned()),
        (
            "YOKE_API_CERTIFICATE",
            ssh::api_certificate(layout).display().to_string(),
        ),
        ("YOKE_NODE_IP", node.to_string()),
        ("YOKE_NETNS", layout.stack_name()),
        ("YOKE_BIN", bin.clone()),
        ("YOKE_HOST_KUBECONFIG", layout.host_kubeconfig().display().to_string()),
        ("YOKE_DEMO_KUBECONFIG", layout.demo_kubeconfig().display().to_string()),
        ("NATS_URL", format!("tls://{node}:{}", nats::PORT)),
        ("NATS_CA", nats::file(layout, nats::CA).display().to_string()),
        ("NATS_CREDS", nats::file(layout, nats::HOST_CREDS).display().to_string()),
        (
            "NATS_SYSTEM_CREDS",
            nats::file(layout, nats::SYSTEM_CREDS).display().to_string(),
        ),
        (kubectl::CACHE_VARIABLE, layout.kubectl_cache().display().to_string()),
        ("CONTAINERD_ADDRESS", layout.containerd_socket().display().to_string()),
    ];
    let mut text = "# Written by `make up`: source it.\n".to_owned();
    for (name, value) in exports {
        text.push_str(&format!("export {name}={}\n", quote(&value)));
    }
    // Adds the folder to PATH once, even if the file is sourced repeatedly.
    text.push_str(&format!(
        "case \":$PATH:\" in *:\"$YOKE_BIN\":*) ;; *) export PATH=\"{bin}:$PATH\" ;; esac\n"
    ));
    text
}

/// Quotes a value for the shell. Plain values stay unquoted, for readers other than shells.
fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._:-+@%,".contains(c);
    if value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_shell_would_split_is_quoted() {
        assert_eq!(quote("tls://100.64.0.2:4222"), "tls://100.64.0.2:4222");
        assert_eq!(quote("/home/my clone/it's"), r"'/home/my clone/it'\''s'");
    }
}
