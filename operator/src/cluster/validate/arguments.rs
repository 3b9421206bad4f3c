//! Checks whether a tenant may set the extra arguments of its spec. Pure.

use yoke_api::cluster::{Cluster, ExtraArg};
use yoke_api::{Reason, extra_args};

use crate::cluster::validate::refuse::refuse;
use crate::model::refusal::Refusal;

pub(super) fn check(cluster: &Cluster) -> Result<(), Refusal> {
    let given = &cluster.spec.extra_args;
    for (component, arguments, allowed) in [
        ("kube-apiserver", &given.api_server, extra_args::API_SERVER),
        (
            "kube-controller-manager",
            &given.controller_manager,
            extra_args::CONTROLLER_MANAGER,
        ),
        ("kube-scheduler", &given.scheduler, extra_args::SCHEDULER),
    ] {
        if let Some(argument) = arguments
            .iter()
            .find(|argument| !allowed.contains(&argument.name.as_str()))
        {
            return refuse(
                Reason::ArgumentNotAllowed,
                format!(
                    "A tenant may not set argument --{} of {component}. Allowed arguments: {}.",
                    argument.name,
                    allowed.join(", ")
                ),
            );
        }
    }
    check_oidc(&given.api_server)
}

/// Checks OIDC arguments. They become one part of a file, and the API server does not start with an
/// incomplete part.
fn check_oidc(arguments: &[ExtraArg]) -> Result<(), Refusal> {
    let value = |name: &str| {
        arguments
            .iter()
            .find(|argument| argument.name == name)
            .map(|argument| argument.value.as_str())
    };
    if !arguments.iter().any(|argument| argument.name.starts_with("oidc-")) {
        return Ok(());
    }
    let issuer = value("oidc-issuer-url").unwrap_or_default();
    if !issuer.starts_with("https://") || issuer.contains(['?', '#', '@']) {
        return refuse(
            Reason::ArgumentNotAllowed,
            "Argument --oidc-issuer-url is required, and must be an https URL without query, fragment and user.",
        );
    }
    let port = issuer.parse::<http::Uri>().ok().and_then(|url| url.port_u16());
    if port.is_some_and(|port| port != 443) {
        return refuse(
            Reason::ArgumentNotAllowed,
            "Argument --oidc-issuer-url must not have a port other than 443: control planes reach a provider on \
         port 443 only.",
        );
    }
    if value("oidc-client-id").unwrap_or_default().is_empty() {
        return refuse(Reason::ArgumentNotAllowed, "Argument --oidc-client-id is required.");
    }
    let claims = arguments
        .iter()
        .filter(|argument| argument.name == "oidc-required-claim");
    if claims.clone().any(|claim| !claim.value.contains('=')) {
        return refuse(
            Reason::ArgumentNotAllowed,
            "Argument --oidc-required-claim must have the form name=value.",
        );
    }
    Ok(())
}
