//! What users of a Tenant's account may publish to and subscribe to. Pure.

use super::claims::UserLimits;

/// Prefix of the inboxes of the operator's own users.
pub const PROVISIONER_INBOX: &str = "_INBOX_yoke";

const STREAMS: [&str; 2] = ["KINE_{{name()}}", "KINE_SNAP_{{name()}}"];

/// The template of the account's scoped key: a user named after a Cluster's identity may use that Cluster's two streams,
/// speak to the store's other instances, and nothing else.
///
/// No consumers: the server delivers to whatever subject a consumer names, a neighbour's log included, without asking
/// whether the user may publish there. A store reads by sequence, so it needs none.
///
/// What it does not bound: the server sends its own answers wherever a request asks for them, a neighbour's log or inbox
/// included, and checks no permission for that (nats-server 2.15.2). So Clusters of one Tenant, who share an account, are
/// not safe from each other's stores here; other Tenants' are.
///
/// A store purges its log below a snapshot and deletes old snapshots, so it may destroy its own data; it can neither
/// delete a stream nor change one.
pub fn cluster_scope() -> UserLimits {
    let mut publish: Vec<String> = [
        "kine.{{name()}}.log",
        "kine.{{name()}}.snap.>",
        "kine.{{name()}}.rpc.>",
        // Answers between the store's instances.
        "_INBOX_{{name()}}.>",
        "$JS.API.INFO",
        "$JS.API.STREAM.MSG.DELETE.KINE_SNAP_{{name()}}",
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

/// The operator's own user: it makes, inspects and deletes streams, and reads no message.
pub fn provisioner() -> UserLimits {
    let publish = [
        "INFO",
        "STREAM.CREATE.*",
        "STREAM.UPDATE.*",
        "STREAM.INFO.*",
        "STREAM.DELETE.*",
    ];
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
