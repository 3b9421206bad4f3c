//! NATS permissions of the users in a Cluster's account. Pure.

use yoke_nats_auth::UserLimits;

/// Prefix of the inboxes of the operator's own users.
pub const PROVISIONER_INBOX: &str = "_INBOX_yoke";

const STREAMS: [&str; 3] = ["KINE_{{name()}}", "KINE_SNAP_{{name()}}", "KINE_SPARE_{{name()}}"];

/// The template of the key that signed the store's user. The user's name is the Cluster's identity.
/// The user may use its streams and speak to the store's other instances, and nothing else.
///
/// The server sends its own answers to the reply subject of a request without a permission check
/// (nats-server 2.15.2). If a stream of the account has that subject, the answer is stored there,
/// even if the user may not publish to it. Therefore the account has no other user. Subjects of
/// other accounts are out of reach.
///
/// No consumers are allowed: they deliver to any subject that they name. A store reads by sequence,
/// so it needs none.
///
/// A store purges its log below a snapshot, and old snapshots, so it may destroy its own data. It
/// can neither delete nor change a stream.
pub fn cluster_scope() -> UserLimits {
    let mut publish: Vec<String> = [
        "kine.{{name()}}.log",
        "kine.{{name()}}.snap.>",
        "kine.{{name()}}.spare.>",
        "kine.{{name()}}.rpc.>",
        // Answers between the store's instances.
        "_INBOX_{{name()}}.>",
        "$JS.API.INFO",
    ]
    .map(str::to_owned)
    .to_vec();
    for stream in STREAMS {
        for request in ["STREAM.INFO", "STREAM.MSG.GET", "STREAM.PURGE", "DIRECT.GET"] {
            publish.push(format!("$JS.API.{request}.{stream}"));
        }
        publish.push(format!("$JS.API.DIRECT.GET.{stream}.>"));
    }
    let subscribe = ["_INBOX_{{name()}}.>", "kine.{{name()}}.rpc.>"].map(str::to_owned);
    UserLimits::of(publish, subscribe.to_vec())
}

/// Permissions of the operator's own user: it creates, changes and inspects streams, requests the
/// account's limits, and reads no message.
pub fn provisioner() -> UserLimits {
    let publish = ["INFO", "STREAM.CREATE.*", "STREAM.UPDATE.*", "STREAM.INFO.*"];
    UserLimits::of(
        publish.map(|request| format!("$JS.API.{request}")).to_vec(),
        vec![format!("{PROVISIONER_INBOX}.>")],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_contains_the_name() {
        let scope = cluster_scope();
        let free: Vec<_> = scope
            .publish
            .allow
            .iter()
            .chain(&scope.subscribe.allow)
            .filter(|subject| !subject.contains("{{name()}}"))
            .collect();
        assert_eq!(free, ["$JS.API.INFO"]);
    }

    #[test]
    fn no_stream_can_be_created_changed_or_deleted() {
        let scope = cluster_scope();
        for verb in [
            "STREAM.CREATE",
            "STREAM.UPDATE",
            "STREAM.DELETE",
            "STREAM.NAMES",
            "STREAM.LIST",
        ] {
            assert!(
                !scope.publish.allow.iter().any(|subject| subject.contains(verb)),
                "{verb}"
            );
        }
    }
}
