//! Removes rules of packet filters that their makers leave: kube-proxy all of its own when it ends, and the bridge plugin those
//! of a Pod whose network namespace it is not told, or has gone.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::process::Command;

use crate::feed::feed;
use crate::machine::PATH;
use crate::output::say;

const LIMIT: Duration = Duration::from_secs(10);
/// Of what a program says that failed.
const SAID_MAX: usize = 300;

/// Removes those of a network of Pods, and of kube-proxy.
pub(crate) async fn remove_all(network: &str) {
    if let Err(why) = remove_of_pods(network).await {
        say(&format!("cannot remove the rules of Pods: {why}"));
    }
    for family in ["ip", "ip6"] {
        match call("nft", &["delete", "table", family, "kube-proxy"], "").await {
            Err(why) if !why.contains("No such file or directory") => {
                say(&format!("cannot remove kube-proxy's table of {family}: {why}"));
            }
            _ => {}
        }
    }
}

async fn remove_of_pods(network: &str) -> Result<(), String> {
    let rules = call("iptables", &["-w", "5", "-t", "nat", "-S", "POSTROUTING"], "").await?;
    let removal = build_removal(&rules, network);
    if !removal.is_empty() {
        call("iptables-restore", &["-w", "5", "--noflush"], &removal).await?;
    }
    Ok(())
}

/// What `iptables-restore` removes a network's rules and chains by, all or none; nothing if there are none. The plugin writes
/// whose they are in a comment. Pure.
fn build_removal(rules: &str, network: &str) -> String {
    let comment = format!(r#"--comment "name: \"{network}\" id: "#);
    let own = rules.lines().filter(|rule| rule.contains(&comment)).filter_map(|rule| {
        let (rule, chain) = rule.strip_prefix("-A ")?.rsplit_once(" -j ")?;
        let plain = chain.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (plain && chain.starts_with("CNI-")).then(|| format!("-D {rule} -j {chain}\n-F {chain}\n-X {chain}\n"))
    });
    match own.collect::<String>() {
        none if none.is_empty() => none,
        lines => format!("*nat\n{lines}COMMIT\n"),
    }
}

/// What a program says; nothing if it is not installed: then nobody has made anything with it.
async fn call(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", PATH);
    match tokio::time::timeout(LIMIT, feed(command, input)).await {
        Err(_) => Err(format!("{program}: no end within {LIMIT:?}")),
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!(
                "{program}: {}",
                said.trim().chars().take(SAID_MAX).collect::<String>()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_one_network_are_removed() {
        const RULES: &str = r#"-P POSTROUTING ACCEPT
-A POSTROUTING -s 10.1.2.3/32 -m comment --comment "name: \"yoke-worker-00c0ffee\" id: \"a1\"" -j CNI-0a1
-A POSTROUTING -s 10.1.2.3/32 -m comment --comment "name: \"yoke-worker-00c0ffee-b\" id: \"a2\"" -j CNI-0a2
-A POSTROUTING -m comment --comment "name: \"yoke-worker-00c0ffee\" id: \"a3\"" -j MASQUERADE
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
"#;
        let expected = r#"*nat
-D POSTROUTING -s 10.1.2.3/32 -m comment --comment "name: \"yoke-worker-00c0ffee\" id: \"a1\"" -j CNI-0a1
-F CNI-0a1
-X CNI-0a1
COMMIT
"#;
        assert_eq!(build_removal(RULES, "yoke-worker-00c0ffee"), expected);
        assert_eq!(build_removal(RULES, "yoke-worker-00000000"), "");
    }
}
