//! A look at a few Clusters: the measurement works, and a settled Cluster is one of which the operator writes nothing.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

#[test]
fn a_few_clusters_are_settled_at_once() {
    let bench = Path::new(env!("CARGO_BIN_EXE_yoke-operator-bench"));
    // The operator is beside it, and the programs of others are where `make tools` puts them.
    let mut path = bench.parent().unwrap().as_os_str().to_owned();
    for more in [std::env::var_os("YOKE_BIN"), std::env::var_os("PATH")]
        .into_iter()
        .flatten()
    {
        path.push(":");
        path.push(more);
    }
    let ended = Command::new(bench)
        .args(["--clusters=20", "--awake=2", "--rest=1"])
        .env("PATH", path)
        .env_remove("YOKE_BIN")
        .output()
        .unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert!(ended.status.success(), "{said}\n{complained}");
    assert!(said.contains("| writes until then, at most 0 | 0.0 | met |"), "{said}");
}
