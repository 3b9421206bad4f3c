//! Downloads of `yoke-worker` by new workers, with the lines that `join` prints.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use yoke_api::JoinToken;
use yoke_test_support::eventually_some;

use crate::person::{Said, run};
use crate::world::{LIMIT, World, put};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
/// Stands for `yoke-worker`; it is longer than all windows and buffers on the path.
const PROGRAM: &str = "#!/bin/sh\necho ran \"$@\"\nexit\n";
const LENGTH: usize = 8 << 20;

pub(crate) async fn worker_programs_are_sent_completely(world: &World) {
    let alice = &world.alice;
    let none = alice.ssh("worker-binary amd64").await.failed(1);
    assert!(
        none.contains("no yoke-worker to download") && none.contains("--worker-binaries"),
        "{none}"
    );
    fs::create_dir(world.workers()).unwrap();
    fs::write(world.workers().join("yoke-worker-amd64"), build_program()).unwrap();
    fs::write(world.workers().join("yoke-worker-arm64"), PROGRAM).unwrap();

    let wrong = alice.ssh("worker-binary riscv64").await.failed(2);
    assert!(
        wrong.contains("no yoke-worker for \"riscv64\", only for amd64, arm64"),
        "{wrong}"
    );
    let shown = alice.ssh_with(&["-tt"], "worker-binary amd64").await;
    assert!(shown.code == 2 && shown.out.contains("not to a terminal"), "{shown:?}");
    assert_eq!(alice.ssh("worker-binary aarch64").await.ok(), PROGRAM);

    let file = world.path("fetched");
    let mut fetching = alice.begin(&[], "worker-binary x86_64");
    let status = fetching
        .stdin(Stdio::null())
        .stdout(fs::File::create(&file).unwrap())
        .status();
    assert!(status.await.unwrap().success());
    assert!(fs::read(&file).unwrap() == build_program(), "it was changed on the way");
}

pub(crate) async fn a_tenant_is_sent_no_more_than_its_share(world: &World) {
    let alice = &world.alice;
    let mut slow = alice.begin(&[], "worker-binary amd64");
    slow.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut slow = slow.spawn().unwrap();
    let mut sent = slow.stdout.take().unwrap();
    let mut piece = vec![0; 64 << 10];
    sent.read_exact(&mut piece).await.unwrap();
    // Reads slowly, but within the write timeout.
    let reading = tokio::spawn(async move {
        while sent.read_exact(&mut piece).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let busy = alice.ssh("worker-binary arm64").await.failed(1);
    assert!(
        busy.contains("too many downloads of yoke-worker by your Tenant"),
        "{busy}"
    );
    assert_eq!(
        world.bob.ssh("worker-binary arm64").await.ok(),
        PROGRAM,
        "another Tenant's"
    );
    slow.kill().await.unwrap();
    reading.await.unwrap();
    world
        .until(
            "a program to be sent again",
            async || alice.ssh("worker-binary arm64").await.code,
            |code| *code == 0,
        )
        .await;
}

pub(crate) async fn a_line_runs_no_other_program(world: &World) {
    let machine = Machine::new(world);
    let joined = world.join(Some(&format!("127.0.0.1:{}", world.port()))).await;
    let (line, token) = (joined["line"].as_str().unwrap(), joined["token"].as_str().unwrap());
    let ran = machine.run(line).await.ok();
    assert_eq!(ran, format!("ran join {token}\n"), "it was fetched");
    let pipeline = joined["pipelines"]["amd64"].as_str().unwrap();
    // This machine stands for the worker, without an SSH server.
    let pipeline = pipeline.replace("ssh root@MACHINE ", "sh -c ");
    assert_eq!(machine.run(&pipeline).await.ok(), format!("ran join {token}\n"));
    // Without the key, a second download would fail.
    let twice = format!("{line} && mount -t tmpfs none /root && {line}");
    assert_eq!(machine.run(&twice).await.ok().lines().count(), 2, "it was there");
    let other = format!(
        "printf '#!/bin/sh\\necho other' >/usr/local/bin/yoke-worker; chmod 755 /usr/local/bin/yoke-worker; {line}"
    );
    assert_eq!(
        machine.run(&other).await.ok(),
        format!("ran join {token}\n"),
        "replaced"
    );

    // If the host does not publish the address of its SSH server, nothing is downloaded.
    let joined = world.join(None).await;
    let (alone, token) = (joined["line"].as_str().unwrap(), joined["token"].as_str().unwrap());
    let missing = machine.run(alone).await.failed(1);
    assert_eq!(
        missing,
        "error: no yoke-worker found with the digest in this command: put it at /usr/local/bin/yoke-worker first\n"
    );
    let program = world.workers().join("yoke-worker-amd64");
    let put = format!("install {} /usr/local/bin/yoke-worker; {alone}", program.display());
    assert_eq!(
        machine.run(&put).await.ok(),
        format!("ran join {token}\n"),
        "it was there"
    );

    let mut changed = build_program();
    changed[LENGTH / 2] ^= 1;
    fs::write(world.workers().join("yoke-worker-amd64"), changed).unwrap();
    for line in [line, &pipeline] {
        let refused = machine.run(line).await.failed(1);
        assert!(
            refused.contains("no yoke-worker found with the digest in this command"),
            "{refused}"
        );
    }
}

fn build_program() -> Vec<u8> {
    let mut program = PROGRAM.as_bytes().to_vec();
    program.extend((program.len()..LENGTH).map(|place| (place * 31 % 251) as u8));
    program
}

/// A machine with a user's forwarded key: root, with directories of its own.
struct Machine {
    home: PathBuf,
}

impl Machine {
    fn new(world: &World) -> Self {
        let home = world.path("machine");
        fs::create_dir_all(home.join(".ssh")).unwrap();
        let (key, known) = (world.alice.key.display(), world.path("known_hosts"));
        let config = format!(
            "IdentityFile {key}\nUserKnownHostsFile {}\nIdentitiesOnly yes\nIdentityAgent none\nStrictHostKeyChecking yes\n",
            known.display()
        );
        fs::write(home.join(".ssh/config"), config).unwrap();
        Self { home }
    }

    /// Executes a line in root's shell. Its changes are discarded afterwards.
    async fn run(&self, line: &str) -> Said {
        let script = r#"mount --bind "$0" /root && mount -t tmpfs none /usr/local/bin && eval "$1""#;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--map-root-user", "sh", "-c", script])
            .arg(&self.home)
            .arg(line);
        run(&mut command).await
    }
}

impl World {
    /// Returns the output of `join --json` after the operator has created the Secret, with the
    /// configured address of the SSH server.
    async fn join(&self, ssh: Option<&str>) -> Value {
        self.alice.ssh("create joined").await.ok();
        let joining = async { self.alice.ssh("join joined --json").await.json() };
        let answering = async {
            let tokens = Api::<JoinToken>::namespaced(self.admin.clone(), "a");
            let name = eventually_some("a JoinToken", LIMIT, async || {
                let token = tokens.list(&Default::default()).await.unwrap().items.pop()?;
                token.metadata.name
            });
            let name = name.await.unwrap();
            let digest = run(Command::new("sha256sum").arg(self.workers().join("yoke-worker-amd64")))
                .await
                .ok();
            let digests = json!({"amd64": digest.split(' ').next().unwrap()});
            let mut data = json!({"server": "joined-x.yoke.test:443", "ca.crt": PEM, "client-ca.crt": PEM,
                "token": "abc123.0123456789abcdef", "version": "v1.35.4", "worker-digests": digests.to_string()});
            if let Some(ssh) = ssh {
                data["ssh"] = json!(ssh);
            }
            put(
                &self.admin,
                &json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": format!("{name}-join"), "namespace": "a"}, "stringData": data}),
            )
            .await;
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": "joins", "namespace": "a"}, "rules": [{"apiGroups": [""], "resources": ["secrets"],
                "resourceNames": [format!("{name}-join")], "verbs": ["get"]}]});
            put(&self.admin, &role).await;
            let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": "joins", "namespace": "a"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "joins"},
                "subjects": [{"kind": "ServiceAccount", "name": "yoke-ssh", "namespace": "a"}]});
            put(&self.admin, &binding).await;
            let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AsExpected",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            tokens
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                .await
                .unwrap();
        };
        let (joined, ()) = tokio::join!(joining, answering);
        let name = joined["name"].as_str().unwrap();
        self.alice.ssh(&format!("revoke {name}")).await.ok();
        self.alice.ssh("delete joined --yes").await.ok();
        joined
    }
}
