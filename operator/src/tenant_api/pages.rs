//! Lists of a tenant's API, of which each object may be as large as it likes: in small pages.

use std::fmt::Debug;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use yoke_api::Lenient;

use super::{TenantApiError, limited};

/// How much of a list is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Objects in one page.
    pub(super) size: u32,
    /// More pages are not looked at.
    pub(super) max: usize,
}

/// What a list has, as far as it can be read; of each object what `keep` leaves of it, before the next page comes.
pub(super) async fn list_pages<K>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
    keep: impl Fn(K) -> K,
) -> Result<Vec<K>, TenantApiError>
where
    Lenient<K>: Clone + Debug + DeserializeOwned,
{
    let (mut params, mut found) = (params.limit(pages.size), Vec::new());
    for _ in 0..pages.max {
        let list = limited(what, api.list(&params)).await?;
        found.extend(list.items.into_iter().filter_map(|object| object.0.ok()).map(&keep));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(found)
}
