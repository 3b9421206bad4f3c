//! Keys, certificates and claims of the development host, made once per clone and kept in `.dev/pki` and `.dev/nats`.
//!
//! They are made anew when what they name (the node's address) has changed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::layout::Layout;
use crate::network::Network;

pub mod host_pki;
pub mod jwt;
pub mod nats;

/// Makes what is missing. True when something was made.
pub fn apply(layout: &Layout, network: &Network) -> Result<bool> {
    let subject = layout.pki().join("subject");
    let wanted = format!(
        "{} {} {}",
        layout.stack_name(),
        network.node_ip(),
        network.plan.services
    );
    if fs::read_to_string(&subject).is_ok_and(|made_for| made_for == wanted) {
        return Ok(false);
    }
    fs::create_dir_all(layout.pki()).context("making .dev/pki")?;
    fs::create_dir_all(layout.nats()).context("making .dev/nats")?;
    fs::create_dir_all(layout.config()).context("making .dev/config")?;
    host_pki::write(layout, network).context("making the host cluster's certificates")?;
    nats::write(layout, network).context("making the credentials of NATS")?;
    // Last: a run that is cut off before here starts over.
    fs::write(&subject, wanted).context("recording what the certificates were made for")?;
    Ok(true)
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &Path, content: &str) -> Result<()> {
    // A file that exists keeps its mode when it is opened, so it goes first.
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("making {}", path.display()))?;
    file.write_all(content.as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}
