//! Commands that change nothing, or fail.

use std::convert::Infallible;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use yoke_test_support::eventually_blocking;

use crate::bundle;
use crate::program::{PEM, call, path, report, token, worker};

const BOOTSTRAP: &str = "abcdef.0123456789abcdef";

#[test]
fn a_script_learns_what_is_missing() {
    let (code, report) = report(&["--allow-cgroup-v1"]);
    let rows = report["checks"].as_array().unwrap();
    for check in [
        "user",
        "control groups",
        "kernel",
        "packet filter",
        "port 10250",
        "disk",
        "memory",
        "unshare",
    ] {
        assert!(rows.iter().any(|row| row["check"] == check), "{check}: {report}");
    }
    let failed = rows.iter().any(|row| row["verdict"] == "failed");
    assert_eq!(report["fit"], !failed, "{report}");
    assert_eq!(code, Some(if failed { 3 } else { 0 }));
    for row in rows.iter().filter(|row| row["verdict"] != "ok") {
        assert!(row["toDo"].is_string(), "{row}");
    }
}

/// The program runs on machines with unknown libraries.
#[test]
fn it_is_linked_to_no_library() {
    let linked = Command::new("ldd")
        .arg(env!("CARGO_BIN_EXE_yoke-worker"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(linked.stdout).unwrap().trim(), "statically linked");
}

#[test]
fn an_api_that_is_not_there_has_no_clock() {
    let token = token("nowhere.invalid:443", &certificate(), &certificate(), BOOTSTRAP);
    let (code, report) = report(&["--token", &token]);
    let row = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["check"] == "clock")
        .unwrap();
    assert_eq!(row["verdict"], "failed", "{row}");
    assert_eq!(code, Some(3));
}

fn certificate() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
}

#[test]
fn a_bad_token_is_refused_without_being_shown() {
    let good = token("demo.yoke.example:443", PEM, PEM, BOOTSTRAP);
    let other = token("demo.yoke.example", PEM, PEM, BOOTSTRAP);
    for (token, why) in [
        (BOOTSTRAP, "this is not a join token, which begins with yoke1."),
        (
            &good[..good.len() - 4],
            "the join token is incomplete; copy all of it again",
        ),
        (other.as_str(), "the join token has no valid server"),
    ] {
        for command in [["preflight", "--token"], ["run", "--rm"]] {
            let (code, out, err) = call(&[command[0], command[1], token]);
            assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
            assert!(
                err.starts_with(&format!("error: invalid join token: {why}\nhint: ")),
                "{err}"
            );
            assert!(!err.contains(&token[7..20]), "{err}");
        }
    }
}

#[test]
fn a_token_is_read_from_standard_input() {
    let mut child = worker(&["preflight", "--token", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"yoke1.x").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("the join token is incomplete")
    );
}

#[test]
fn a_token_is_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "yoke1.x\n").unwrap();
    let nowhere = dir.path().join("nowhere");
    for command in [["preflight", "--token-file"], ["run", "--token-file"]] {
        let (code, _, err) = call(&[command[0], command[1], path(&file)]);
        assert_eq!(code, Some(1));
        assert!(err.contains("the join token is incomplete"), "{err}");
        let (code, _, err) = call(&[command[0], command[1], path(&nowhere)]);
        assert_eq!(code, Some(1));
        assert!(err.contains(&format!("cannot read {}", nowhere.display())), "{err}");
        let (code, _, _) = call(&[command[0], command[1], path(&file), "--token", "x"]);
        assert_eq!(code, Some(2));
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let root = path(dir.path());
    let token = token("demo.yoke.example:443", PEM, PEM, BOOTSTRAP);
    for (arguments, code, why) in [
        (vec!["run", "--root", root], 1, "has no worker"),
        (vec!["leave", "--root", root], 1, "has no worker"),
        (
            vec!["run", "--root", "relative", &token, "--no-preflight"],
            1,
            "is not an absolute path",
        ),
        (vec!["run", &token, "--ttl", "1h"], 2, "--rm"),
        (vec!["run", "--rm"], 2, "TOKEN"),
        (vec!["run", &token, "--rm", "--ttl", "soon"], 2, "expected a time"),
        (
            vec!["run", &token, "--root", root, "--no-preflight", "--name", "A B"],
            1,
            "is not a valid Node name",
        ),
    ] {
        let (found, _, err) = call(&arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {err}");
        assert!(err.contains(why), "{arguments:?}: {err}");
    }
    std::fs::write(dir.path().join("letter"), "dear").unwrap();
    let (code, _, err) = call(&["run", &token, "--rm", "--root", root, "--no-preflight"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("is not empty and has no worker"), "{err}");
    assert!(dir.path().join("letter").exists());
}

#[test]
fn a_missing_bundle_is_reported_before_any_change() {
    let dir = tempfile::tempdir().unwrap();
    let (root, nowhere, whole) = (
        dir.path().join("w"),
        dir.path().join("nowhere"),
        dir.path().join("bundle"),
    );
    bundle::make_empty(&whole);
    for (folder, verdict, found) in [
        (
            &nowhere,
            "failed",
            format!("there is no bundle in {}", nowhere.display()),
        ),
        (&whole, "ok", format!("9 files in {}", whole.display())),
    ] {
        let (_, report) = report(&["--bundle", path(folder)]);
        let rows = report["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["check"] == "bundle").unwrap();
        assert_eq!(row["verdict"], verdict, "{row}");
        assert!(row["found"].as_str().unwrap().starts_with(&found), "{row}");
    }
    let token = token("demo.yoke.example:443", PEM, PEM, BOOTSTRAP);
    let folders = ["--root", path(&root), "--bundle", path(&nowhere)];
    let (code, _, err) = call(&[&["run", &token, "--rm", "--no-preflight"], &folders[..]].concat());
    assert_eq!(code, Some(1), "{err}");
    let missing = format!(
        "error: cannot use the bundle: there is no bundle in {}",
        nowhere.display()
    );
    assert!(
        err.contains(&missing) && err.contains("hint: name the bundle's folder with --bundle"),
        "{err}"
    );
    assert!(!root.exists(), "{err}");
}

#[test]
fn a_corrupt_bundle_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (root, bundle) = (dir.path().join("w"), dir.path().join("bundle"));
    bundle::make_empty(&bundle);
    std::fs::write(bundle.join("runc"), "changed").unwrap();
    let token = token("demo.yoke.example:443", PEM, PEM, BOOTSTRAP);
    let arguments = [
        "run",
        &token,
        "--rm",
        "--no-preflight",
        "--root",
        path(&root),
        "--bundle",
        path(&bundle),
    ];
    let (code, _, err) = call(&arguments);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("error: cannot use the bundle: the digest of runc differs from the one in SHA256SUMS"),
        "{err}"
    );
    assert!(!root.exists(), "{err}");
}

/// A killed worker whose folder has a mount of an unrelated folder, and whose path has a symbolic
/// link.
#[test]
fn nothing_is_removed_through_links_or_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let (real, other) = (dir.path().join("real"), dir.path().join("other"));
    std::fs::create_dir_all(real.join("w/kubelet")).unwrap();
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("letter"), "dear").unwrap();
    std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
    let state = json!({"name": "box-1", "server": "demo.yoke.example:443", "clusterDns": "10.96.0.10",
        "clusterDomain": "cluster.local", "id": "00c0ffee", "ephemeral": true, "drain": {"secs": 1, "nanos": 0}});
    std::fs::write(real.join("w/worker.json"), state.to_string()).unwrap();
    let script = r#"mount --bind "$0" "$1" && exec "$2" leave --root "$3""#;
    let left = Command::new("unshare")
        .args(["--mount", "--net", "sh", "-ec", script])
        .args([&other, &real.join("w/kubelet")])
        .arg(env!("CARGO_BIN_EXE_yoke-worker"))
        .arg(dir.path().join("link/w"))
        .output()
        .unwrap();
    assert!(left.status.success(), "{left:?}");
    assert!(other.join("letter").exists(), "{left:?}");
    assert!(!real.join("w").exists(), "{left:?}");
}

/// A killed worker in a container, where the hosts file is a mount.
#[test]
fn only_the_workers_own_line_of_the_hosts_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (root, hosts) = (dir.path().join("w"), dir.path().join("hosts"));
    std::fs::create_dir(&root).unwrap();
    let state = json!({"name": "box-1", "server": "demo.yoke.example:443", "address": "203.0.113.7",
        "clusterDns": "10.96.0.10", "clusterDomain": "cluster.local", "id": "00c0ffee", "ephemeral": false,
        "drain": {"secs": 1, "nanos": 0}});
    std::fs::write(root.join("worker.json"), state.to_string()).unwrap();
    let others = "127.0.0.1 localhost\n203.0.113.7 demo.yoke.example # yoke-worker 00c0ffed\n";
    let own = "203.0.113.7 demo.yoke.example # yoke-worker 00c0ffee\n";
    std::fs::write(&hosts, format!("{own}{others}")).unwrap();
    let script = r#"mount --bind "$0" /etc/hosts && exec "$1" leave --root "$2""#;
    let left = Command::new("unshare")
        .args(["--mount", "--net", "sh", "-ec", script, path(&hosts)])
        .args([env!("CARGO_BIN_EXE_yoke-worker"), path(&root)])
        .output()
        .unwrap();
    assert!(left.status.success(), "{left:?}");
    assert_eq!(std::fs::read_to_string(&hosts).unwrap(), others);
    assert!(!root.exists(), "{left:?}");
}

/// A worker whose network namespace still exists, called from another one, and from where control
/// groups are hidden.
#[test]
fn a_worker_is_removed_where_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("w");
    std::fs::create_dir(&root).unwrap();
    let mut holder = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
    let net = format!("/proc/{}/ns/net", holder.id());
    let number = |file: &str| std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino())).unwrap();
    let own = number("/proc/self/ns/net");
    let other = || Ok::<_, Infallible>(number(&net));
    eventually_blocking("another network namespace", Duration::from_secs(20), other, |other| {
        *other != own
    })
    .unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let state = json!({"name": "box-1", "server": "demo.yoke.example:443", "clusterDns": "10.96.0.10",
        "clusterDomain": "cluster.local", "id": "00c0ffed", "ephemeral": true, "drain": {"secs": 1, "nanos": 0},
        "place": {"boot": boot.trim(), "network": number(&net)}});
    std::fs::write(root.join("worker.json"), state.to_string()).unwrap();
    let leave = ["leave", "--root", path(&root)];
    let (code, _, err) = call(&leave);
    assert_eq!(code, Some(1), "{err}");
    let how = format!("runs in another network namespace: run `nsenter --net={net} yoke-worker");
    assert!(err.contains(&how), "{err}");
    // `ip netns exec` does this, too.
    let script = r#"umount --lazy /sys/fs/cgroup && exec "$@""#;
    let program = env!("CARGO_BIN_EXE_yoke-worker");
    let enter = format!("--net={net}");
    for (within, good) in [
        (&["unshare", "--mount", "sh", "-ec", script, "-"][..], false),
        (&[], true),
    ] {
        let mut command = Command::new("nsenter");
        command.arg(&enter).args(within).arg(program).args(leave);
        let output = command.output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), good, "{err}");
        assert_eq!(err.contains("no control groups are mounted"), !good, "{err}");
        assert_eq!(root.exists(), !good, "{err}");
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_folder_that_others_change_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("w");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, _, err) = call(&["leave", "--root", path(&root)]);
    assert_eq!(code, Some(1));
    assert!(err.contains("other users can write to"), "{err}");
}
