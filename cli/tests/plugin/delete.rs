//! `delete`.

use crate::fixtures::{DEMO, cluster, ready};
use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn delete_wants_to_be_asked_for_twice() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    let said = host.run("delete cluster demo").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("was not deleted, because the deletion was not confirmed\nhint: confirm with --yes"),
        "{}",
        said.err
    );
    assert!(host.object(DEMO).is_some());
    let said = host.run("delete cluster demo --yes").await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo deleted\n")
    );
    assert!(host.object(DEMO).is_none());
    let said = host.run("delete cluster demo --yes").await;
    assert!(
        said.err
            .starts_with("error: getting Cluster demo: clusters \"demo\" not found\nhint: "),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_waits_unless_wait_is_false() {
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    host.linger();
    let said = host.run("delete cluster demo --yes --wait=false").await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo is being deleted\n")
    );
    let said = host.run("delete cluster demo --yes --timeout 1s").await;
    assert_eq!((said.code, said.out.as_str()), (3, ""));
    let running = host.begin("delete cluster demo -y -o name");
    host.until_watched().await;
    host.remove(DEMO);
    let said = running.end().await;
    assert_eq!((said.code, said.out.as_str()), (0, "cluster.yoke.drzzl.io/demo\n"));
}
