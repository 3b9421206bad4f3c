//! `completion`, directly and through the real kubectl.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::fixtures::{DEMO, TENANT, cluster, ready, tenant};
use crate::host::Host;
use crate::running::{Running, Said};

/// Returns kubectl in the directory `YOKE_BIN`, or in PATH.
fn kubectl() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os("YOKE_BIN").map(PathBuf::from).into_iter();
    let mut places = folders
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("kubectl"));
    places
        .find(|place| place.is_file())
        .expect("kubectl is in PATH, or in the folder that YOKE_BIN names")
}

async fn through_kubectl(host: &Host, bin: &Path, words: &[&str]) -> Said {
    let mut command = tokio::process::Command::new(kubectl());
    command
        .arg("__complete")
        .args(words)
        .env_clear()
        .env(
            "PATH",
            std::env::join_paths([bin, Path::new("/usr/bin"), Path::new("/bin")]).unwrap(),
        )
        .env("KUBECONFIG", host.path("host.kubeconfig"))
        .env("HOME", bin);
    Running::start(command).end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_completes_the_plugin() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host.set(&DEMO.replace("demo", "other"), cluster("other", &[]));
    host.set(TENANT, tenant("True", "AsExpected", "m"));
    let bin = host.path("bin");
    std::fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_kubectl-yoke"), bin.join("kubectl-yoke")).unwrap();
    let script = bin.join("kubectl_complete-yoke");
    std::fs::write(&script, host.run("completion kubectl").await.out).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (words, out) in [
        (&["yoke", "get", ""][..], "clusters\ntenants\n:4\n"),
        (&["yoke", "get", "t"], "tenants\n:4\n"),
        (
            &["yoke", "comp"],
            "completion\tPrint the script that completes this plugin's commands\n:4\n",
        ),
        (&["yoke", "get", "clusters", ""], "demo\nother\n:4\n"),
        (&["yoke", "get", "clusters", "-n", "absent", ""], ":4\n"),
        (&["yoke", "-n", "t", "kubeconfig", "de"], "demo\n:4\n"),
        (&["yoke", "delete", "tenant", ""], "t\n:4\n"),
        (&["yoke", "create", "cluster", ""], ":4\n"),
        (&["yoke", "get", "-o", ""], "wide\njson\nyaml\nname\n:4\n"),
        (
            &["yoke", "get", "--kubec"],
            "--kubeconfig\tKubeconfig file of the host\n:4\n",
        ),
        (&["yoke", "get", "--kubeconfig", ""], ":0\n"),
    ] {
        let said = through_kubectl(&host, &bin, words).await;
        assert_eq!((said.code, said.out.as_str()), (0, out), "{words:?}: {}", said.err);
    }
    // An unreachable host must not print an error into the user's command line.
    let dead = Host::new("http://127.0.0.1:1");
    let said = dead.run("__complete -- get clusters").await;
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (0, "clusters\n:4\n", "")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_get_their_scripts() {
    let host = Host::start().await;
    for (shell, part) in [
        ("bash", "-o default kubectl-yoke"),
        ("zsh", "#compdef kubectl-yoke"),
        ("fish", "complete -c kubectl-yoke"),
        (
            "powershell",
            "Register-ArgumentCompleter -Native -CommandName 'kubectl-yoke'",
        ),
        ("elvish", "edit:completion:arg-completer[kubectl-yoke]"),
    ] {
        let said = host.run(&format!("completion {shell}")).await;
        assert!(said.code == 0 && said.out.contains(part), "{shell}");
    }
    assert!(
        host.run("completion --help")
            .await
            .out
            .contains("kubectl_complete-yoke")
    );
}
