//! Reads what `ip -json` prints. Pure.

use serde::de::DeserializeOwned;
use yoke_api::Cidr;

/// `ip` says nothing at all of nothing.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<Vec<T>, serde_json::Error> {
    match json.trim() {
        "" => Ok(Vec::new()),
        json => serde_json::from_str(json),
    }
}

/// A range, or an address.
pub(crate) fn parse_destination(text: &str) -> Option<Cidr> {
    let address = || text.parse().ok().map(Cidr::of);
    text.parse().ok().or_else(address)
}
