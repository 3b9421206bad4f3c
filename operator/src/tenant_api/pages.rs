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
    let mut found = Vec::new();
    let keep_all = |object| {
        found.push(keep(object));
        None::<()>
    };
    find_in_pages(what, api, params, pages, keep_all).await?;
    Ok(found)
}

/// The first that `look` finds in a list, as far as it can be read. What comes after it is not asked for.
pub(super) async fn find_in_pages<K, T>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
    mut look: impl FnMut(K) -> Option<T>,
) -> Result<Option<T>, TenantApiError>
where
    Lenient<K>: Clone + Debug + DeserializeOwned,
{
    let mut params = params.limit(pages.size);
    for _ in 0..pages.max {
        let list = limited(what, api.list(&params)).await?;
        let mut objects = list.items.into_iter().filter_map(|object| object.0.ok());
        if let Some(found) = objects.find_map(&mut look) {
            return Ok(Some(found));
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(None)
}
