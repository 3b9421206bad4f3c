//! Keys, certificates and NATS claims of the development host, created once per clone in `.dev/pki`
//! and `.dev/nats`.
//!
//! A changed value in them, such as the node's address, creates all of them again.

use std::fs;

use anyhow::{Context, Result};

use crate::layout::Layout;
use crate::network::Network;

pub mod host_pki;
pub mod nats;

/// Creates the credentials unless they exist for this network. Returns true if it created them.
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
    fs::create_dir_all(layout.pki()).context("creating .dev/pki")?;
    fs::create_dir_all(layout.nats()).context("creating .dev/nats")?;
    fs::create_dir_all(layout.config()).context("creating .dev/config")?;
    host_pki::write(layout, network).context("issuing the host cluster's certificates")?;
    nats::write(layout, network).context("creating the credentials of NATS")?;
    // Written last: an interrupted run starts over.
    fs::write(&subject, wanted).context("recording what the certificates were made for")?;
    Ok(true)
}
