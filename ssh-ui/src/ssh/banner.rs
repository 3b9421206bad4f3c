//! Texts for clients that are not admitted. Pure.

use crate::limits::admission::Refusal;

/// Maximum number of keys in a text.
pub const SHOWN_MAX: usize = 8;

/// Builds the text for a client that offered these keys (fingerprints), with the contact of the
/// host's owner.
pub fn build_refusal(offered: &[String], contact: Option<&str>) -> String {
    let whom = name_owner(contact);
    let mut text = String::new();
    if offered.is_empty() {
        text += "Your client offered no SSH key of a supported type: ed25519, ECDSA or a security key, but not RSA.\n";
        text += "Create one with: ssh-keygen -t ed25519\n";
    } else {
        text += "No Tenant of this host has the SSH key that was offered:\n";
        for fingerprint in offered.iter().take(SHOWN_MAX) {
            text += &format!("  {fingerprint}\n");
        }
        text += "To use another key: ssh -o IdentitiesOnly=yes -i FILE HOST\n";
    }
    text + &format!(
        "To get access, send the line of your .pub file to {whom}: it belongs into spec.sshKeys of your Tenant.\n"
    )
}

/// Returns a phrase that names the host's owner.
pub(crate) fn name_owner(contact: Option<&str>) -> String {
    contact.map_or_else(
        || "the owner of this host".to_owned(),
        |contact| format!("the owner of this host ({contact})"),
    )
}

/// Builds the text for a client whose Tenant has reached its limit of connections.
pub fn build_full() -> String {
    format!("The key is known. {}\n", Refusal::TenantFull.advice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_to_do() {
        let none = build_refusal(&[], None);
        assert!(
            none.contains("ssh-keygen -t ed25519") && none.contains("owner of this host:"),
            "{none}"
        );
        let offered: Vec<_> = (0..20).map(|number| format!("SHA256:{number}.")).collect();
        let some = build_refusal(&offered, Some("yoke@example.org"));
        assert!(some.contains("SHA256:7.") && !some.contains("SHA256:8."), "{some}");
        assert!(
            some.contains("IdentitiesOnly") && some.contains("(yoke@example.org)"),
            "{some}"
        );
    }
}
