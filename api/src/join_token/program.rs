//! Shell commands that install and verify `yoke-worker` on a machine. Pure.
//!
//! The program runs as root, so its digest is compared with the one in the join command before it
//! runs. So the parties that transfer it, an SSH server or a user's computer, need not be trusted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Secret;

use super::{key, read_json};
use crate::names::is_domain;

/// Command of a worker that takes the join token as its argument.
const JOIN_COMMAND: &str = "yoke-worker join";
/// Path at which the program is installed.
const INSTALL_PATH: &str = "/usr/local/bin/yoke-worker";
/// Length of a SHA-256 digest in hexadecimal digits.
const DIGEST_LENGTH: usize = 64;
/// Maximum number of architectures; more than exist.
const ARCHITECTURES_MAX: usize = 8;
const ARCHITECTURE_MAX: usize = 16;

/// The `yoke-worker` program that a host offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// SHA-256 of the program in hexadecimal, by architecture in Debian's naming. Empty if the host
    /// publishes none.
    pub digests: BTreeMap<String, String>,
    /// Host of the SSH server: a name or an address, with the port unless it is 22.
    pub ssh: Option<String>,
}

impl Program {
    /// Reads the program's data from the Secret of a JoinToken. The data becomes part of a shell
    /// command, so `None` unless all of it is valid.
    pub(super) fn from_secret(secret: &Secret) -> Option<Self> {
        let ssh = secret.data.as_ref()?.get(key::SSH);
        let program = Self {
            digests: read_json(secret, key::DIGESTS)?,
            ssh: match ssh {
                Some(bytes) => Some(String::from_utf8(bytes.0.clone()).ok()?),
                None => None,
            },
        };
        let good = are_digests(&program.digests) && program.ssh.as_deref().is_none_or(is_ssh_host);
        good.then_some(program)
    }

    /// The command to paste, as root, on the machine that will be a worker. If `yoke-worker` is
    /// missing or has another digest, the command downloads it over SSH. For that, the machine has
    /// a key of the Tenant, or the user forwards an SSH agent. If no SSH server is known, the
    /// command prints what is missing.
    pub(super) fn to_command(&self, word: &str) -> String {
        if self.digests.is_empty() {
            return format!("{JOIN_COMMAND} {word}");
        }
        let fetch = self.ssh.as_ref();
        let fetch = fetch.map(|host| format!("ssh -n ssh://{host} worker-binary $(uname -m)"));
        let script = build_script(self.digests.values(), fetch.as_deref(), "$0");
        // The token comes last and outside the quotes, so that it is easy to find.
        format!("sh -c '{script}' {word}")
    }

    /// Commands by architecture to run on a computer that has the Tenant's key. Each sends the
    /// program to a machine that has no key.
    pub(super) fn to_pipelines(&self, word: &str) -> BTreeMap<String, String> {
        let host = self
            .ssh
            .as_ref()
            .map_or("HOST".to_owned(), |host| format!("ssh://{host}"));
        let build = |(architecture, digest): (&String, &String)| {
            let script = build_script([digest].into_iter(), Some("cat"), word);
            let line = format!("ssh {host} worker-binary {architecture} | ssh root@MACHINE '{script}'");
            (architecture.clone(), line)
        };
        self.digests.iter().map(build).collect()
    }
}

/// Builds the script: check the program's digest; if it does not match, download the program if
/// possible and check again; only then run it. The script contains no single quote.
fn build_script<'a>(digests: impl Iterator<Item = &'a String>, fetch: Option<&str>, word: &str) -> String {
    let digests = digests.map(String::as_str).collect::<Vec<_>>().join("|");
    let (fetch, hint) = match fetch {
        Some(fetch) => (
            format!("{{ {fetch} >$p.new && c $p.new && chmod 755 $p.new && mv $p.new $p; }} || "),
            "",
        ),
        None => (String::new(), ": put it at $p first"),
    };
    format!(
        "p={INSTALL_PATH}; c() {{ sha256sum \"$1\" 2>/dev/null | grep -qE \"^({digests}) \"; }}; c $p || {fetch}\
         {{ echo \"error: no yoke-worker found with the digest in this command{hint}\" >&2; exit 1; }}; exec $p join {word}"
    )
}

/// Whether all keys are architectures and all values are SHA-256 digests.
pub fn are_digests(digests: &BTreeMap<String, String>) -> bool {
    let is_architecture = |text: &str| {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (1..=ARCHITECTURE_MAX).contains(&text.len()) && text.bytes().all(good)
    };
    let is_digest = |text: &str| {
        let good = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == DIGEST_LENGTH && text.bytes().all(good)
    };
    let mut pairs = digests.iter();
    digests.len() <= ARCHITECTURES_MAX
        && pairs.all(|(architecture, digest)| is_architecture(architecture) && is_digest(digest))
}

/// Whether a text is the host of an SSH server: a name or an address, optionally with a port.
pub fn is_ssh_host(text: &str) -> bool {
    let is_port = |port: &str| !port.starts_with(['0', '+']) && port.parse::<u16>().is_ok();
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_domain(host) || host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
    };
    match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => is_host(host) && is_port(port),
        _ => is_host(text),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn program(ssh: Option<&str>) -> Program {
        let digests = [("amd64", 'a'), ("arm64", 'b')];
        let digests = digests.map(|(name, digit)| (name.to_owned(), digit.to_string().repeat(DIGEST_LENGTH)));
        Program {
            digests: digests.into(),
            ssh: ssh.map(str::to_owned),
        }
    }

    #[test]
    fn host_without_digests_gives_a_plain_command() {
        assert_eq!(Program::default().to_command("yoke1.x"), "yoke-worker join yoke1.x");
        assert!(Program::default().to_pipelines("yoke1.x").is_empty());
    }

    #[test]
    fn commands_are_valid_shell() {
        let line = program(Some("ssh.example.org:2022")).to_command("yoke1.x");
        let words = line.split_once('\'').unwrap();
        assert_eq!(words.0, "sh -c ");
        assert!(line.ends_with("' yoke1.x"), "{line}");
        assert_eq!(line.matches('\'').count(), 2, "{line}");
        assert!(
            line.contains("ssh -n ssh://ssh.example.org:2022 worker-binary $(uname -m) >"),
            "{line}"
        );
        let line = program(None).to_command("yoke1.x");
        assert!(
            line.contains(" c $p || { echo \"error: ") && line.ends_with(" exec $p join $0' yoke1.x"),
            "{line}"
        );
        let pipelines = program(None).to_pipelines("yoke1.x");
        let line = &pipelines["arm64"];
        assert!(
            line.starts_with("ssh HOST worker-binary arm64 | ssh root@MACHINE 'p="),
            "{line}"
        );
        assert!(line.ends_with(" join yoke1.x'"), "{line}");
        assert!(
            line.contains(&"b".repeat(DIGEST_LENGTH)) && !line.contains(&"a".repeat(DIGEST_LENGTH)),
            "{line}"
        );
    }

    #[test]
    fn unsafe_shell_text_is_refused() {
        for (text, good) in [
            ("ssh.example.org", true),
            ("ssh.example.org:2022", true),
            ("192.0.2.1", true),
            ("192.0.2.1:22", true),
            ("[2001:db8::1]:22", true),
            ("[2001:db8::1]", true),
            ("2001:db8::1", false),
            ("a.org:0", false),
            ("a.org:x", false),
            ("a.org; id", false),
            ("$(id).org", false),
            ("", false),
        ] {
            assert_eq!(is_ssh_host(text), good, "{text:?}");
        }
        let digest = "0123456789abcdef".repeat(4);
        for (architecture, digest, good) in [
            ("amd64", digest.as_str(), true),
            ("amd64", &digest[1..], false),
            ("amd64", &digest.to_uppercase(), false),
            ("", &digest, false),
            ("a b", &digest, false),
        ] {
            let digests = BTreeMap::from([(architecture.to_owned(), digest.to_owned())]);
            assert_eq!(are_digests(&digests), good, "{architecture:?} {digest:?}");
        }
    }

    #[test]
    fn program_is_read_from_a_secret() {
        let digests = program(None).digests;
        let json = serde_json::to_vec(&digests).unwrap();
        let read = |pairs: &[(&str, &[u8])]| {
            let data = pairs
                .iter()
                .map(|(key, bytes)| ((*key).to_owned(), ByteString(bytes.to_vec())));
            Program::from_secret(&Secret {
                data: Some(data.collect()),
                ..Secret::default()
            })
        };
        assert_eq!(read(&[]), Some(Program::default()), "of an older operator");
        assert_eq!(
            read(&[(key::DIGESTS, &json), (key::SSH, b"a.org:22")]),
            Some(program(Some("a.org:22")))
        );
        assert_eq!(read(&[(key::DIGESTS, br#"{"amd64": "x"}"#)]), None);
        assert_eq!(read(&[(key::DIGESTS, &json), (key::SSH, b"a.org'; id")]), None);
    }
}
