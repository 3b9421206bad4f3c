//! Parses the output of `ip -json`. Pure.

use serde::de::DeserializeOwned;
use yoke_api::Cidr;

/// Parses a list. `ip` prints nothing for an empty one.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<Vec<T>, serde_json::Error> {
    match json.trim() {
        "" => Ok(Vec::new()),
        json => serde_json::from_str(json),
    }
}

/// Parses a CIDR range or a single address.
pub(crate) fn parse_destination(text: &str) -> Option<Cidr> {
    let address = || text.parse().ok().map(Cidr::of);
    text.parse().ok().or_else(address)
}
