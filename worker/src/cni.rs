//! Disconnects Pods from the network as containerd would, for Pods that end with their worker:
//! addresses, rules and links disappear.
//!
//! libcni caches the result of each attachment in a file. A plugin that is called with the cached
//! data removes what it has created.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::process::Command;
use yoke_supervisor::programs::PATH;

use crate::id::Id;
use crate::process::stdin_program::run_with_input;

/// Folder of libcni's cached results, which cannot be configured.
pub(crate) const RESULTS_FOLDER: &str = "/var/lib/cni/results";
const RESULT_MAX: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);
/// Timeout for all calls together.
pub(crate) const ALL_LIMIT: Duration = Duration::from_secs(60);

/// A cached result, as libcni 1 writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CachedResult {
    container_id: String,
    if_name: String,
    network_name: String,
    #[serde(default)]
    netns: String,
    /// The CNI network configuration list, in base64.
    config: String,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    #[serde(default)]
    capability_args: Map<String, Value>,
    result: Option<Value>,
}

/// A call of one plugin.
#[derive(Debug, PartialEq)]
struct Call {
    plugin: String,
    environment: Vec<(&'static str, String)>,
    input: String,
}

/// Disconnects every Pod from the worker's network, by the cached results in a folder. Returns the
/// failures.
pub(crate) async fn detach_all(bin: &Path, results: &Path, id: &Id) -> Vec<String> {
    let mut faults = Vec::new();
    let network = id.network();
    let all = detach_each(bin, results, &network, &mut faults);
    if tokio::time::timeout(ALL_LIMIT, all).await.is_err() {
        faults.push(format!("the CNI plugins did not finish within {ALL_LIMIT:?}"));
    }
    faults
}

async fn detach_each(bin: &Path, results: &Path, network: &str, faults: &mut Vec<String>) {
    for path in list(results, network) {
        // The file name is not enough: the name of another network may start with this network's
        // name.
        let Some(calls) = read(&path).and_then(|text| build_calls(&text, network, bin)) else {
            continue;
        };
        let mut succeeded = true;
        for call in calls {
            if let Err(why) = run(&call, bin).await {
                faults.push(format!("{}: {why}", call.plugin));
                succeeded = false;
            }
        }
        if succeeded {
            // A file that cannot be removed is harmless: no later call depends on it.
            let _ = fs::remove_file(&path);
        }
    }
}

fn list(folder: &Path, network: &str) -> Vec<PathBuf> {
    let own = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{network}-"))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(own).collect()
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path)
        .ok()?
        .take(RESULT_MAX)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// Builds the calls that undo an attachment: the plugins in reverse order, each with its original
/// input. Returns `None` for a result of another network, or one that cannot be parsed. Pure.
fn build_calls(cached: &str, network: &str, bin: &Path) -> Option<Vec<Call>> {
    let cached: CachedResult = serde_json::from_str(cached).ok()?;
    let list: Value = serde_json::from_slice(&BASE64.decode(cached.config.as_bytes()).ok()?).ok()?;
    if cached.network_name != network {
        return None;
    }
    let arguments: Vec<_> = cached
        .cni_args
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let environment = vec![
        ("CNI_COMMAND", "DEL".to_owned()),
        ("CNI_CONTAINERID", cached.container_id.clone()),
        ("CNI_NETNS", cached.netns.clone()),
        ("CNI_IFNAME", cached.if_name.clone()),
        ("CNI_ARGS", arguments.join(";")),
        ("CNI_PATH", bin.display().to_string()),
    ];
    let plugins = list.get("plugins")?.as_array()?.iter().rev();
    let call = |plugin: &Value| {
        let mut input = plugin.as_object()?.clone();
        let name = input.get("type")?.as_str()?.to_owned();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        name.bytes().all(plain).then_some(())?;
        for key in ["cniVersion", "name"] {
            input.insert(key.to_owned(), list.get(key)?.clone());
        }
        if let Some(result) = &cached.result {
            input.insert("prevResult".to_owned(), result.clone());
        }
        let wanted = |key: &str| plugin.pointer(&format!("/capabilities/{key}")) == Some(&Value::Bool(true));
        let capabilities = cached.capability_args.iter().filter(|(key, _)| wanted(key));
        let capabilities: Map<_, _> = capabilities.map(|(key, value)| (key.clone(), value.clone())).collect();
        if !capabilities.is_empty() {
            input.insert("runtimeConfig".to_owned(), capabilities.into());
        }
        input.remove("capabilities");
        Some(Call {
            plugin: name,
            environment: environment.clone(),
            input: Value::Object(input).to_string(),
        })
    };
    plugins.map(call).collect()
}

async fn run(call: &Call, bin: &Path) -> Result<(), String> {
    let mut command = Command::new(bin.join(&call.plugin));
    command
        .env_clear()
        .env("PATH", PATH)
        .envs(call.environment.iter().cloned());
    match tokio::time::timeout(LIMIT, run_with_input(command, &call.input)).await {
        Err(_) => Err(format!("timed out after {LIMIT:?}")),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        // By the CNI specification an error is JSON on standard output.
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stdout)
            .trim()
            .chars()
            .take(300)
            .collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NETWORK: &str = "yoke-worker-00c0ffee";

    fn cached() -> Value {
        let list = json!({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [
            {"type": "bridge", "bridge": "yoke0"},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        json!({
            "kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": NETWORK, "netns": "/n/1",
            "config": BASE64.encode(list.to_string().as_bytes()),
            "cniArgs": [["K8S_POD_NAME", "a"], ["IgnoreUnknown", "1"]],
            "capabilityArgs": {"portMappings": [{"hostPort": 80}], "dns": {}},
            "result": {"ips": []},
        })
    }

    #[test]
    fn plugins_are_called_in_reverse_with_what_they_were_given() {
        let calls = build_calls(&cached().to_string(), NETWORK, Path::new("/w/bin")).unwrap();
        let inputs: Vec<Value> = calls
            .iter()
            .map(|call| serde_json::from_str(&call.input).unwrap())
            .collect();
        let expected = [
            json!({"type": "portmap", "cniVersion": "1.0.0", "name": NETWORK, "prevResult": {"ips": []},
                "runtimeConfig": {"portMappings": [{"hostPort": 80}]}}),
            json!({"type": "bridge", "bridge": "yoke0", "cniVersion": "1.0.0", "name": NETWORK, "prevResult": {"ips": []}}),
        ];
        assert_eq!(inputs, expected);
        let names: Vec<_> = calls.iter().map(|call| call.plugin.as_str()).collect();
        assert_eq!(names, ["portmap", "bridge"]);
        let expected = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/n/1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K8S_POD_NAME=a;IgnoreUnknown=1"),
            ("CNI_PATH", "/w/bin"),
        ];
        assert_eq!(
            calls[0].environment,
            expected.map(|(key, value)| (key, value.to_owned()))
        );
    }

    #[test]
    fn cached_results_of_other_networks_are_left_alone() {
        let mut other = cached();
        other["networkName"] = "theirs".into();
        let mut elsewhere = cached();
        let list = json!({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [{"type": "../sh"}]});
        elsewhere["config"] = BASE64.encode(list.to_string().as_bytes()).into();
        for cached in [other, elsewhere, json!({}), json!([])] {
            assert_eq!(
                build_calls(&cached.to_string(), NETWORK, Path::new("/w/bin")),
                None,
                "{cached}"
            );
        }
    }

    #[tokio::test]
    async fn only_undone_results_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let with_plugins = |network: &str, plugins: Value| {
            let list = json!({"cniVersion": "1.0.0", "name": network, "plugins": plugins});
            let mut cached = cached();
            cached["networkName"] = network.into();
            cached["config"] = BASE64.encode(list.to_string().as_bytes()).into();
            cached.to_string()
        };
        let longer = format!("{NETWORK}-b");
        for (name, text) in [
            (
                format!("{NETWORK}-c1-eth0"),
                with_plugins(NETWORK, json!([{"type": "true"}])),
            ),
            (
                format!("{NETWORK}-c2-eth0"),
                with_plugins(NETWORK, json!([{"type": "false"}])),
            ),
            (
                format!("{longer}-c3-eth0"),
                with_plugins(&longer, json!([{"type": "true"}])),
            ),
            (format!("{NETWORK}-c4-eth0"), "torn".to_owned()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let id = "00c0ffee".to_owned().try_into().unwrap();
        let faults = detach_all(Path::new("/bin"), dir.path(), &id).await;
        assert_eq!(faults.len(), 1, "{faults:?}");
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        let expected = [
            format!("{longer}-c3-eth0"),
            format!("{NETWORK}-c2-eth0"),
            format!("{NETWORK}-c4-eth0"),
        ];
        let mut expected = expected.map(std::ffi::OsString::from);
        expected.sort();
        assert_eq!(left, expected);
    }
}
