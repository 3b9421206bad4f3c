//! NATS in operator mode: writes keys, account claims, users, the server certificate and the server
//! configuration.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nkeys::KeyPair;
use serde::Serialize;
use yoke_nats_auth::credentials::to_credentials;
use yoke_nats_auth::{
    AccountClaims, AccountLimits, ClaimsError, Envelope, JetStreamLimits, OperatorClaims, UserClaims, UserLimits,
    sign_sorted,
};

use super::host_pki::{Authority, Leaf};
use crate::files::write_secret;
use crate::layout::Layout;
use crate::network::Network;

/// Client port.
pub const PORT: u16 = 4222;
/// Port of the monitoring endpoint, on loopback in the node's network namespace.
pub const MONITOR_PORT: u16 = 8222;
/// Disk limit for JetStream. Streams reserve their limit on creation, so this value overcommits the
/// disk on purpose.
const MAX_FILE_STORE: &str = "1TB";
const HOST_STORAGE: i64 = 64 << 30;

/// Path of a file in `.dev/nats`.
pub fn file(layout: &Layout, name: &str) -> PathBuf {
    layout.nats().join(name)
}

/// Credentials of the host store's user.
pub const HOST_CREDS: &str = "host.creds";
/// Credentials of a user of the system account, which may push account claims.
pub const SYSTEM_CREDS: &str = "system.creds";
/// Seed of the operator's signing key, which may sign accounts.
pub const OPERATOR_SIGNING_SEED: &str = "operator-signing.nk";
/// CA of the NATS server certificate.
pub const CA: &str = "ca.crt";
/// Configuration of the NATS server.
pub const CONFIG: &str = "nats.conf";

/// Writes all files of NATS. Deletes existing data, because new keys cannot read it.
pub fn write(layout: &Layout, network: &Network) -> Result<()> {
    let _ = fs::remove_dir_all(file(layout, "data"));
    let _ = fs::remove_dir_all(file(layout, "jwt"));
    fs::create_dir_all(file(layout, "jwt")).context("creating the folder of account claims")?;

    let now = jiff::Timestamp::now().as_second();
    let (operator, signing) = (KeyPair::new_operator(), KeyPair::new_operator());
    let (system, host) = (KeyPair::new_account(), KeyPair::new_account());
    let operator_claims = OperatorClaims::new(vec![signing.public_key()], system.public_key());
    let operator_jwt = sign(&operator_claims, "yoke-dev", &operator, &operator, now)?;
    let account = |key: &KeyPair, name, jetstream| {
        let claims = AccountClaims::new(AccountLimits::unlimited(jetstream), vec![]);
        sign(&claims, name, key, &signing, now)
    };
    let system_jwt = account(&system, "SYS", None)?;
    let host_jwt = account(&host, "host", Some(JetStreamLimits::of_storage(HOST_STORAGE)))?;

    write_secret(&file(layout, "operator.nk"), &operator.seed()?)?;
    write_secret(&file(layout, OPERATOR_SIGNING_SEED), &signing.seed()?)?;
    write_user(&file(layout, SYSTEM_CREDS), "yoke-operator", &system, now)?;
    write_user(&file(layout, HOST_CREDS), "host-store", &host, now)?;

    let authority = Authority::new("yoke-dev-nats")?;
    let ip = network.node_ip().into();
    let leaf = authority.issue(&Leaf::server("nats", &["nats", "localhost"], &[ip]))?;
    fs::write(file(layout, CA), authority.certificate()).context("writing NATS's certificate authority")?;
    fs::write(file(layout, "tls.crt"), &leaf.certificate).context("writing NATS's certificate")?;
    write_secret(&file(layout, "tls.key"), &leaf.key)?;

    let config = build_config(&ServerConfig {
        dir: &layout.nats(),
        listen: format!("{ip}:{PORT}"),
        operator_jwt: &operator_jwt,
        system_account: &system.public_key(),
        preload: &[(system.public_key(), system_jwt), (host.public_key(), host_jwt)],
    });
    fs::write(file(layout, CONFIG), config).context("writing NATS's configuration")
}

fn write_user(path: &Path, name: &str, account: &KeyPair, now: i64) -> Result<()> {
    let user = KeyPair::new_user();
    let claims = UserClaims::signed_by_account(UserLimits::unlimited());
    let token = sign(&claims, name, &user, account, now)?;
    write_secret(path, &to_credentials(&token, &user.seed()?))
}

/// Signs claims about the owner of the key `subject`. The token does not expire.
fn sign<C: Serialize>(
    claims: &C,
    name: &str,
    subject: &KeyPair,
    issuer: &KeyPair,
    now: i64,
) -> Result<String, ClaimsError> {
    let envelope = Envelope {
        subject: &subject.public_key(),
        name,
        issued: now,
        expires: None,
    };
    sign_sorted(claims, &envelope, issuer)
}

struct ServerConfig<'a> {
    dir: &'a Path,
    listen: String,
    operator_jwt: &'a str,
    system_account: &'a str,
    preload: &'a [(String, String)],
}

/// Builds the server configuration. `sync_interval: always` is needed because NATS by default
/// acknowledges writes before they reach the disk.
fn build_config(config: &ServerConfig<'_>) -> String {
    let dir = config.dir.display();
    let preload: String = config
        .preload
        .iter()
        .map(|(key, jwt)| format!("  {key}: {jwt}\n"))
        .collect();
    format!(
        "server_name: yoke-dev\n\
         listen: \"{listen}\"\n\
         http: \"127.0.0.1:{MONITOR_PORT}\"\n\
         max_payload: 8MB\n\
         tls {{\n  cert_file: \"{dir}/tls.crt\"\n  key_file: \"{dir}/tls.key\"\n}}\n\
         jetstream {{\n  store_dir: \"{dir}/data\"\n  sync_interval: always\n  max_file_store: {MAX_FILE_STORE}\n}}\n\
         operator: {operator}\n\
         system_account: {system}\n\
         resolver {{\n  type: full\n  dir: \"{dir}/jwt\"\n  allow_delete: true\n  interval: \"2m\"\n}}\n\
         resolver_preload {{\n{preload}}}\n",
        listen = config.listen,
        operator = config.operator_jwt,
        system = config.system_account,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_syncs_before_it_acknowledges_and_knows_both_accounts() {
        let config = build_config(&ServerConfig {
            dir: Path::new("/d"),
            listen: "100.64.0.2:4222".into(),
            operator_jwt: "OJWT",
            system_account: "ASYS",
            preload: &[("ASYS".into(), "SJWT".into()), ("AHOST".into(), "HJWT".into())],
        });
        for line in [
            "  sync_interval: always",
            "operator: OJWT",
            "  ASYS: SJWT",
            "  AHOST: HJWT",
            "  store_dir: \"/d/data\"",
        ] {
            assert!(
                config.lines().any(|found| found == line),
                "{line:?} is missing from\n{config}"
            );
        }
    }
}
