//! Suggests what to do next about a Cluster, from its status. Pure.

use yoke_api::cluster::DesiredState;
use yoke_api::{Cluster, ConditionType, Reason, labels};
use yoke_view::render::{conditions, find};
use yoke_view::verdict::{Verdict, is_asleep, judge};

/// Returns sentences or commands, the most useful first.
pub(crate) fn advise(cluster: &Cluster, name: &str, namespace: &str) -> Vec<String> {
    if cluster.metadata.deletion_timestamp.is_some() {
        return vec!["The Cluster is being deleted; `kubectl yoke get -w` shows when it is gone.".into()];
    }
    let mut advice = Vec::new();
    if cluster.spec.paused {
        advice.push(format!(
            "The Cluster is paused, so changes are not applied. To resume: kubectl patch clusters.yoke.drzzl.io {name} -n {namespace} --type merge -p '{{\"spec\":{{\"paused\":false}}}}'"
        ));
    }
    let is_failing = is_failing(cluster);
    if is_failing {
        advice.push(format!(
            "A container of the control plane keeps failing. If spec.extraArgs was changed last, revert it: kubectl edit clusters.yoke.drzzl.io {name} -n {namespace}"
        ));
    }
    match judge(cluster) {
        Verdict::Refused(refusal) => advice.push(for_refusal(&refusal.reason, name, namespace)),
        Verdict::Done if cluster.spec.state == DesiredState::Asleep => advice.push(format!(
            "To wake it: kubectl patch clusters.yoke.drzzl.io {name} -n {namespace} --type merge -p '{{\"spec\":{{\"state\":\"Running\"}}}}'"
        )),
        Verdict::Done => {
            advice.push(format!("kubectl yoke kubeconfig {name} -n {namespace} --merge"));
            advice.push(format!("kubectl --context {namespace}/{name} get namespaces"));
        }
        Verdict::Waiting(_) if cluster.status.is_none() => {
            advice.push("The operator has not reconciled the Cluster yet. If this lasts, the host's owner should check that the operator runs.".into());
        }
        Verdict::Waiting(_) if is_asleep(cluster) => advice.push(format!(
            "To wake it: kubectl annotate clusters.yoke.drzzl.io {name} -n {namespace} --overwrite {}={}",
            labels::SLEEP,
            labels::SLEEP_END
        )),
        Verdict::Waiting(_) if is_failing => {}
        Verdict::Waiting(_) => advice.push(for_waiting(cluster)),
    }
    advice
}

fn for_refusal(reason: &str, name: &str, namespace: &str) -> String {
    let is = |known: Reason| reason == known.as_str();
    let edit = format!("kubectl edit clusters.yoke.drzzl.io {name} -n {namespace}");
    if is(Reason::TenantMissing) {
        format!("Ask the host's owner to create the Tenant: kubectl yoke create tenant {namespace} --user NAME")
    } else if is(Reason::QuotaExceeded) {
        "Delete a Cluster, request less storage, or ask the host's owner to raise the Tenant's quota.".into()
    } else if is(Reason::UnknownVersion) || is(Reason::VersionChangeRefused) {
        format!("Choose one of the versions in the message: {edit}")
    } else if is(Reason::UnknownClass) {
        format!("Choose another class, or ask the host's owner to allow this one: {edit}")
    } else if is(Reason::HostnameNotAllowed) || is(Reason::HostnameConflict) {
        format!("Change spec.endpoint.extraSANs: {edit}")
    } else if is(Reason::NetworkNotOffered) || is(Reason::NameInvalid) {
        "This cannot be changed later: delete the Cluster and create it again.".into()
    } else {
        format!("Change the field that the message names: {edit}")
    }
}

fn is_failing(cluster: &Cluster) -> bool {
    let mut told = conditions(cluster).iter();
    told.any(|condition| condition.reason == Reason::ContainerFailing.as_str())
}

fn for_waiting(cluster: &Cluster) -> String {
    let ready = find(conditions(cluster), ConditionType::Ready)
        .map(|ready| ready.reason.as_str())
        .unwrap_or_default();
    let is = |known: Reason| ready == known.as_str();
    if is(Reason::StoreUnavailable) || is(Reason::StoreQuotaExceeded) {
        "The store belongs to the host: if this lasts, show the message to the host's owner.".into()
    } else if is(Reason::CertificatesPending) {
        "Certificates take about a second. If this lasts, the host's owner should check that cert-manager runs.".into()
    } else {
        "Wait while the conditions change; a first start takes seconds. If this lasts, show this output to the host's owner.".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(rest: &str) -> Cluster {
        let text = format!("{{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {{name: a}}, {rest}}}");
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn advice_fits_the_state() {
        let condition = |name: &str, status: &str, reason: Reason| {
            format!(
                "status: {{conditions: [{{type: {name}, status: '{status}', reason: {reason}, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}"
            )
        };
        for (rest, part) in [
            ("spec: {}".to_owned(), "The operator has not reconciled the Cluster"),
            ("spec: {paused: true}".to_owned(), "\"paused\":false"),
            (
                format!("spec: {{}}, {}", condition("Ready", "True", Reason::AsExpected)),
                "kubectl yoke kubeconfig a -n t --merge",
            ),
            (
                format!("spec: {{}}, {}", condition("Accepted", "False", Reason::TenantMissing)),
                "create tenant t",
            ),
            (
                format!("spec: {{}}, {}", condition("Accepted", "False", Reason::QuotaExceeded)),
                "raise the Tenant's quota",
            ),
            (
                format!("spec: {{}}, {}", condition("Ready", "False", Reason::StoreUnavailable)),
                "The store belongs to the host",
            ),
            (
                format!(
                    "spec: {{}}, {}",
                    condition("Degraded", "True", Reason::ContainerFailing)
                ),
                "spec.extraArgs",
            ),
            (
                format!(
                    "spec: {{state: Asleep}}, {}",
                    condition("Asleep", "True", Reason::AsleepByOwner)
                ),
                "\"state\":\"Running\"",
            ),
            (
                format!("spec: {{}}, {}", condition("Asleep", "True", Reason::AsleepOnRequest)),
                "kubectl annotate clusters.yoke.drzzl.io a -n t --overwrite yoke.drzzl.io/sleep=end",
            ),
        ] {
            let advice = advise(&cluster(&rest), "a", "t");
            assert!(advice[0].contains(part), "{rest}: {advice:?}");
            assert!(!part.contains("extraArgs") || advice.len() == 1, "{rest}: {advice:?}");
        }
    }
}
