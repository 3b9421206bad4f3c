//! What the users of a Cluster's account may publish to and subscribe to. Pure.

use super::claims::UserLimits;

/// Prefix of the inboxes of the operator's own users.
pub const PROVISIONER_INBOX: &str = "_INBOX_yoke";

const STREAMS: [&str; 3] = ["KINE_{{name()}}", "KINE_SNAP_{{name()}}", "KINE_SPARE_{{name()}}"];

/// The template of the key that signed the store's user, which is named after the Cluster's identity: it may use its
/// streams, speak to the store's other instances, and nothing else.
///
/// The server sends its own answers wherever a request asks for them, and asks no permission for that (nats-server 2.15.2):
/// what a user may not publish to, it can still have an answer stored in, if a stream of its account listens there. So there
/// is nobody else in the account; subjects of other accounts are out of reach.
///
/// No consumers: they deliver to whatever subject they name, and a store reads by sequence, so it needs none.
///
/// A store purges its log below a snapshot, and old snapshots, so it may destroy its own data; it can neither
/// delete a stream nor change one.
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

/// The operator's own user: it makes, changes and inspects streams, asks for the account's limits, and reads no message.
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
    fn every_subject_is_bound_to_the_name() {
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
    fn no_stream_can_be_made_changed_or_deleted() {
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
