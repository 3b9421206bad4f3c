//! Checks the Helm chart: lints it, renders it with every set of values in `charts/yoke/ci/`, and
//! checks the rendered objects.
//!
//! helm renders the chart. The checks of the rendered objects do no I/O.
//!
//! The operator's configuration from each rendering is stored in `operator/testdata/chart/`. The
//! operator's tests read it, so the operator accepts every value that the chart renders.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::complaints::Complaints;
use crate::crds;

const CHART: &str = "charts/yoke";
const NAMESPACE: &str = "yoke-system";
/// Arguments that render the chart, as for a cluster with cert-manager.
const TEMPLATE: &[&str] = &[
    "template",
    "yoke",
    CHART,
    "--namespace",
    NAMESPACE,
    "--api-versions",
    "cert-manager.io/v1",
];

/// Values without a default, each with an example.
const REQUIRED: [(&str, &str); 9] = [
    ("baseDomain", "yoke.example"),
    ("ingress.address", "192.0.2.1"),
    ("nats.urls", "{tls://nats.example:4222}"),
    ("nats.cidrs", "{192.0.2.0/24}"),
    ("images.operator", "registry.example/operator:1"),
    ("images.ingressXds", "registry.example/ingress-xds:1"),
    ("images.kineNats", "registry.example/kine-nats:1"),
    ("images.sshUi", "registry.example/ssh-ui:1"),
    ("ssh.api.host", "api.example"),
];
const CONFIGS: &str = "operator/testdata/chart";
/// The example of chart values, for users to copy.
const EXAMPLE: &str = "examples/host-values.yaml";

/// Finds helm in the folder `YOKE_BIN`, in `.dev/bin` or in PATH.
pub(crate) fn find_helm(root: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os("YOKE_BIN").map(PathBuf::from).into_iter();
    let folders = folders
        .chain([root.join(".dev/bin")])
        .chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("helm")).find(|helm| helm.is_file())
}

/// Lints and renders the chart with every file in `charts/yoke/ci/`, and checks the objects.
pub(crate) fn check(root: &Path, helm: &Path) -> Result<Complaints> {
    let folder = root.join(CHART).join("ci");
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        cases.push(entry?.path());
    }
    cases.sort();
    ensure!(!cases.is_empty(), "{CHART}/ci holds no values to render with");
    let mut complaints = check_required(root, helm)?;
    complaints.extend(check_example(root, helm)?);
    for values in &cases {
        let case = values.file_stem().unwrap_or_default().to_string_lossy();
        for (step, arguments) in [
            (
                "lint",
                &["lint", "--strict", "--quiet", CHART, "--namespace", NAMESPACE][..],
            ),
            ("template", TEMPLATE),
        ] {
            let output = Command::new(helm)
                .current_dir(root)
                .args(arguments)
                .arg("--values")
                .arg(values)
                .output()
                .with_context(|| format!("cannot run {}", helm.display()))?;
            let (stdout, stderr) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            if !output.status.success() {
                complaints.push(format!("{case}: helm {step} fails: {}{}", stdout.trim(), stderr.trim()));
            } else if step == "template" {
                let objects: Vec<Value> = serde_saphyr::from_multiple(&stdout)
                    .with_context(|| format!("{case}: what helm rendered is not YAML"))?;
                let mut found = inspect(&objects);
                found.extend(check_config(
                    &objects,
                    &root.join(CONFIGS).join(format!("{case}.yaml")),
                )?);
                complaints.extend(found.into_iter().map(|complaint| format!("{case}: {complaint}")));
            }
        }
    }
    Ok(complaints)
}

/// Checks that the example values can be rendered.
fn check_example(root: &Path, helm: &Path) -> Result<Complaints> {
    let output = Command::new(helm)
        .current_dir(root)
        .args(TEMPLATE)
        .args(["--values", EXAMPLE])
        .output()
        .with_context(|| format!("cannot run {}", helm.display()))?;
    Ok(match output.status.success() {
        true => Complaints::new(),
        false => vec![format!(
            "{EXAMPLE}: helm template fails: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )],
    })
}

/// Checks that helm names the missing value if a value without a default is not set.
fn check_required(root: &Path, helm: &Path) -> Result<Complaints> {
    let mut complaints = Complaints::new();
    for missing in REQUIRED {
        let others = REQUIRED.iter().filter(|(name, _)| *name != missing.0);
        let output = Command::new(helm)
            .current_dir(root)
            .args(TEMPLATE)
            .args(["--set", "ssh.enabled=true,ssh.api.enabled=true"])
            .args(others.flat_map(|(name, value)| ["--set".to_owned(), format!("{name}={value}")]))
            .output()
            .with_context(|| format!("cannot run {}", helm.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(missing.0) {
            complaints.push(format!(
                "helm does not say that {} is missing: {}",
                missing.0,
                said.trim()
            ));
        }
    }
    Ok(complaints)
}

/// Compares the operator's configuration with the one that the operator's tests read. With
/// `UPDATE=1`, overwrites that file.
fn check_config(objects: &[Value], kept: &Path) -> Result<Option<String>> {
    let is_config = |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == "yoke-operator";
    let config = objects.iter().find(is_config);
    let rendered = config.map_or("", |config| text(&config["data"]["config.yaml"]));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(kept, rendered).with_context(|| format!("cannot write {}", kept.display()))?;
    }
    let is_same = std::fs::read_to_string(kept).is_ok_and(|known| known == rendered);
    let command = "UPDATE=1 cargo xtask check-chart";
    Ok((!is_same).then(|| format!("the operator's configuration is not as in {CONFIGS}: run `{command}`")))
}

fn inspect(objects: &[Value]) -> Complaints {
    let plurals = crds::plurals();
    let mut complaints = Complaints::new();
    for object in objects {
        let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        let found = match text(&object["kind"]) {
            "Pod" => inspect_pod(&object["spec"]),
            "Deployment" => inspect_pod(&object["spec"]["template"]["spec"]),
            "ConfigMap" => inspect_config_map(&object["data"]),
            "Role" | "ClusterRole" => inspect_rules(&object["rules"], &plurals),
            // cert-manager's default approver lets every user who can create a Certificate use any
            // ClusterIssuer.
            "ClusterIssuer" => vec!["may not exist: every issuer of Yoke is namespaced".to_owned()],
            "Secret" => inspect_secret(object),
            _ => vec![],
        };
        complaints.extend(found.into_iter().map(|complaint| format!("{name}: {complaint}")));
    }
    complaints
}

fn inspect_secret(secret: &Value) -> Complaints {
    let is_empty = ["data", "stringData"].iter().all(|field| secret[field].is_null());
    match is_empty {
        true => vec![],
        false => vec!["may hold nothing in the chart: a release's manifest is kept in clear text".to_owned()],
    }
}

/// The restricted Pod Security Standard and a read-only root,
/// see <https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted>.
fn inspect_pod(pod: &Value) -> Complaints {
    let mut complaints = Complaints::new();
    let security = &pod["securityContext"];
    if security["runAsNonRoot"] != true {
        complaints.push("runAsNonRoot is not true".into());
    }
    if security["seccompProfile"]["type"] != "RuntimeDefault" {
        complaints.push("the seccomp profile is not RuntimeDefault".into());
    }
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[field] == true {
            complaints.push(format!("{field} is true"));
        }
    }
    if items(&pod["volumes"])
        .iter()
        .any(|volume| volume["hostPath"].is_object())
    {
        complaints.push("a volume is a hostPath".into());
    }
    for container in items(&pod["containers"]).iter().chain(items(&pod["initContainers"])) {
        let (name, security) = (text(&container["name"]), &container["securityContext"]);
        if security["allowPrivilegeEscalation"] != false {
            complaints.push(format!("container {name} may escalate privileges"));
        }
        if security["readOnlyRootFilesystem"] != true {
            complaints.push(format!("container {name} can write its root"));
        }
        if !items(&security["capabilities"]["drop"])
            .iter()
            .any(|capability| capability == "ALL")
        {
            complaints.push(format!("container {name} does not drop ALL capabilities"));
        }
        if !text(&container["image"]).contains(':') {
            complaints.push(format!("container {name} names no version of its image"));
        }
    }
    complaints
}

/// Checks that no `@PLACEHOLDER@` is left in a file from another folder.
fn inspect_config_map(data: &Value) -> Complaints {
    let mut complaints = Complaints::new();
    for (file, content) in data.as_object().into_iter().flatten() {
        let is_placeholder =
            |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        // A placeholder is between two at signs, so the first and the last piece cannot be one.
        let pieces: Vec<_> = text(content).split('@').collect();
        let enclosed = pieces.get(1..pieces.len().saturating_sub(1)).unwrap_or_default();
        for word in enclosed.iter().filter(|word| is_placeholder(word)) {
            complaints.push(format!("{file} still has @{word}@"));
        }
    }
    complaints
}

/// Checks that no rule contains `*`, and that each resource of Yoke in a rule has a CRD.
fn inspect_rules(rules: &Value, plurals: &[String]) -> Complaints {
    let mut complaints = Complaints::new();
    for rule in items(rules) {
        for field in ["apiGroups", "resources", "verbs"] {
            if items(&rule[field]).iter().any(|item| item == "*") {
                complaints.push(format!("a rule says * in {field}"));
            }
        }
        if !items(&rule["apiGroups"]).iter().any(|group| group == yoke_api::GROUP) {
            continue;
        }
        for resource in items(&rule["resources"]).iter().map(text) {
            let plural = resource.split('/').next().unwrap_or_default();
            if !plurals.iter().any(|known| known == plural) {
                complaints.push(format!(
                    "a rule names {resource}.{}, for which no CRD exists",
                    yoke_api::GROUP
                ));
            }
        }
    }
    complaints
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints_of(yaml: &str) -> Complaints {
        inspect(&[serde_saphyr::from_str(yaml).unwrap()])
    }

    #[test]
    fn restricted_pod_passes() {
        let pod = "{kind: Pod, metadata: {name: a}, spec: {securityContext: {runAsNonRoot: true, seccompProfile: \
                   {type: RuntimeDefault}}, containers: [{name: b, image: 'c:1', securityContext: \
                   {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}}]}}";
        assert!(complaints_of(pod).is_empty());
    }

    #[test]
    fn each_fault_is_named() {
        for (yaml, complaint) in [
            (
                "{kind: Pod, metadata: {name: a}, spec: {}}",
                "Pod a: runAsNonRoot is not true",
            ),
            (
                "{kind: Pod, metadata: {name: a}, spec: {hostNetwork: true}}",
                "Pod a: hostNetwork is true",
            ),
            (
                "{kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{name: b, image: c}]}}}}",
                "Deployment a: container b names no version of its image",
            ),
            (
                "{kind: ClusterRole, metadata: {name: a}, rules: [{apiGroups: [''], resources: [pods], verbs: ['*']}]}",
                "ClusterRole a: a rule says * in verbs",
            ),
            (
                "{kind: Role, metadata: {name: a}, rules: [{apiGroups: [yoke.drzzl.io], resources: [x/status], verbs: [get]}]}",
                "Role a: a rule names x/status.yoke.drzzl.io, for which no CRD exists",
            ),
            (
                "{kind: ConfigMap, metadata: {name: a}, data: {b: 'x: @Y_Z@, p: q@r.s'}}",
                "ConfigMap a: b still has @Y_Z@",
            ),
            (
                "{kind: Secret, metadata: {name: a}, data: {a: YQ==}}",
                "Secret a: may hold nothing in the chart: a release's manifest is kept in clear text",
            ),
        ] {
            let complaints = complaints_of(yaml);
            assert!(complaints.iter().any(|c| c == complaint), "{complaints:?}");
        }
    }
}
