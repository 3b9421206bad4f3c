//! Changes iptables rules of other programs, and removes nftables tables: the worker's own, and
//! those that kube-proxy leaves behind on exit.

use std::fmt::Write as _;

use yoke_supervisor::programs::find_program;

use crate::host::nftables;
use crate::id::Id;
use crate::output::progress;
use crate::process::stdin_program::call;

const LIST: [&str; 4] = ["-w", "5", "-S", "FORWARD"];
const RESTORE: [&str; 3] = ["-w", "5", "--noflush"];

/// Accepts forwarded packets from and to a device where the FORWARD chain drops by default, as
/// Docker configures it: a rule in a table of our own cannot override that. `comment` marks the
/// rules and must be one word.
pub(crate) async fn accept_forwarding(device: &str, comment: &str) -> Result<(), String> {
    // Without the program, or its kernel module, no such policy exists.
    let rules = call("iptables", &LIST, "").await.unwrap_or_default();
    match build_accept_rules(&rules, device, comment) {
        none if none.is_empty() => Ok(()),
        script => call("iptables-restore", &RESTORE, &script).await.map(drop),
    }
}

/// Removes the table of a Pod network, the accept rules for it, and kube-proxy's tables.
pub(crate) async fn remove_worker_rules(id: &Id) {
    remove_accept_rules(&id.network()).await;
    if find_program("nft").is_none() {
        return;
    }
    let network = id.network();
    for (family, table) in [("inet", network.as_str()), ("ip", "kube-proxy"), ("ip6", "kube-proxy")] {
        if let Err(why) = nftables::delete_table(family, table).await {
            progress(&format!("cannot remove the table {family} {table}: {why}"));
        }
    }
}

/// Removes the accept rules with this comment.
pub(crate) async fn remove_accept_rules(comment: &str) {
    // Without the program, or its kernel module, no such rules exist.
    let rules = call("iptables", &LIST, "").await.unwrap_or_default();
    let script = build_removal(&rules, comment);
    if !script.is_empty()
        && let Err(why) = call("iptables-restore", &RESTORE, &script).await
    {
        progress(&format!("cannot remove the rules of {comment}: {why}"));
    }
}

fn to_comment(comment: &str) -> String {
    format!("-m comment --comment {comment}")
}

/// Builds the `iptables-restore` script that adds the missing rules; empty if none are missing.
/// Pure.
fn build_accept_rules(rules: &str, device: &str, comment: &str) -> String {
    if !rules.lines().any(|rule| rule == "-P FORWARD DROP") {
        return String::new();
    }
    let comment = to_comment(comment);
    let wanted = ["-i", "-o"].map(|side| format!("FORWARD {side} {device} {comment} -j ACCEPT"));
    let is_there = |wanted: &&String| {
        rules
            .lines()
            .any(|rule| rule.strip_prefix("-A ") == Some(wanted.as_str()))
    };
    let missing = wanted.iter().filter(|wanted| !is_there(wanted));
    to_script(missing.map(|rule| format!("-I {rule}")))
}

/// Builds the `iptables-restore` script that removes the rules with this comment. Pure.
fn build_removal(rules: &str, comment: &str) -> String {
    let comment = format!(" {} ", to_comment(comment));
    let own = rules.lines().filter(|rule| rule.contains(&comment));
    to_script(own.filter_map(|rule| Some(format!("-D {}", rule.strip_prefix("-A ")?))))
}

fn to_script(lines: impl Iterator<Item = String>) -> String {
    let mut script = String::new();
    for line in lines {
        let _ = writeln!(script, "{line}");
    }
    if script.is_empty() {
        return script;
    }
    format!("*filter\n{script}COMMIT\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: &str = "FORWARD -i yoke00c0ffee -m comment --comment yoke-worker-00c0ffee -j ACCEPT";
    const OUT: &str = "FORWARD -o yoke00c0ffee -m comment --comment yoke-worker-00c0ffee -j ACCEPT";

    const COMMENT: &str = "yoke-worker-00c0ffee";

    #[test]
    fn missing_accept_rules_are_added_once() {
        let both = format!("*filter\n-I {IN}\n-I {OUT}\nCOMMIT\n");
        let one = format!("*filter\n-I {OUT}\nCOMMIT\n");
        for (rule, rules, expected) in [
            (
                "nothing is dropped",
                "-P FORWARD ACCEPT\n-A FORWARD -j DOCKER-USER\n".to_owned(),
                "",
            ),
            (
                "all is dropped",
                "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n".to_owned(),
                &both,
            ),
            ("one was removed", format!("-P FORWARD DROP\n-A {IN}\n"), &one),
            ("all is well", format!("-P FORWARD DROP\n-A {OUT}\n-A {IN}\n"), ""),
        ] {
            assert_eq!(build_accept_rules(&rules, "yoke00c0ffee", COMMENT), expected, "{rule}");
        }
    }

    #[test]
    fn rules_of_one_network_are_removed() {
        let other = IN.replace("00c0ffee", "00c0ffed");
        let rules = format!("-P FORWARD DROP\n-A {IN}\n-A {other}\n-A FORWARD -j DOCKER-USER\n");
        assert_eq!(build_removal(&rules, COMMENT), format!("*filter\n-D {IN}\nCOMMIT\n"));
        assert_eq!(build_removal("-P FORWARD DROP\n", COMMENT), "");
    }
}
