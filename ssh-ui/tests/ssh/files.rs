//! Kubeconfigs over SFTP.

use std::os::unix::fs::PermissionsExt as _;

use crate::world::World;

pub(crate) async fn kubeconfigs_are_copied_and_nothing_is_written(world: &World) {
    let alice = &world.alice;
    alice.ssh("create file").await.ok();
    alice.ssh("create early").await.ok();
    world.tell("a", "file", true, "The API answers.").await;
    let copy = world.path("copy");
    let here = copy.to_str().unwrap();
    alice.scp(":file.kubeconfig", here).await.ok();
    let text = std::fs::read_to_string(&copy).unwrap();
    assert!(text.ends_with("# of a/file\n"), "{text}");
    // The server's mode, limited by the umask: readable by the owner only.
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o077, 0);

    let listed = alice
        .sftp(world.folder(), "ls -1\nget file.kubeconfig other\n")
        .await
        .ok();
    assert!(
        listed.contains("\nfile.kubeconfig\n") && !listed.contains("early"),
        "{listed}"
    );
    assert_eq!(std::fs::read_to_string(world.path("other")).unwrap(), text);

    // OpenSSH shows the status code of a refusal, but not its message.
    for (rule, from, to, part) in [
        ("none yet", ":early.kubeconfig", here, "No such file"),
        ("none at all", ":nothing.kubeconfig", here, "No such file"),
        ("no such file", ":/etc/passwd", here, "No such file"),
        ("writing", here, ":file.kubeconfig", "Permission denied"),
    ] {
        let said = alice.scp(from, to).await;
        assert_ne!(said.code, 0, "{rule}: {said:?}");
        assert!(said.err.contains(part), "{rule}: {said:?}");
    }
    for name in ["file", "early"] {
        alice.ssh(&format!("delete {name} --yes")).await.ok();
    }
}
