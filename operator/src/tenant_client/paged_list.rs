//! Lists of a tenant's API in small pages, since each object may be large.
//!
//! A tenant may control the answers. Only as many objects as fit on a page are decoded, and only
//! known fields: three bytes of JSON become an object of a kilobyte.

use std::fmt;
use std::marker::PhantomData;

use kube::api::ListParams;
use kube::core::Request;
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, SeqAccess, Visitor};
use yoke_api::Lenient;

use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;

/// Maximum number of objects on a page, whatever the request says.
const OBJECTS_MAX: usize = 16;
/// Maximum length of a name in bytes, as in Kubernetes, and of other identifying fields.
const NAME_MAX: usize = 253;
const IDENTITY_MAX: usize = 64;

/// Limits of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    /// Objects per page.
    pub(crate) size: u32,
    /// Maximum number of pages.
    pub(crate) max: usize,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound = "Lenient<K>: DeserializeOwned")]
pub(crate) struct Page<K> {
    #[serde(default)]
    pub(crate) metadata: PageMetadata,
    /// Objects, limited by [`OBJECTS_MAX`].
    #[serde(default = "Vec::new", deserialize_with = "read_few")]
    pub(crate) items: Vec<Lenient<K>>,
}

/// Metadata of a page.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PageMetadata {
    #[serde(rename = "continue")]
    token: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) remaining_item_count: Option<i64>,
}

impl<K> Page<K> {
    /// Returns the token of the next page. An empty page counts as the last one: an API server does
    /// not send one with a token.
    pub(crate) fn next(&self) -> Option<&str> {
        let token = self.metadata.token.as_deref().filter(|token| !token.is_empty());
        token.filter(|_| !self.items.is_empty())
    }
}

fn read_few<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{OBJECTS_MAX} objects at most")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(object) = list.next_element()? {
                if found.len() == OBJECTS_MAX {
                    return Err(A::Error::invalid_length(OBJECTS_MAX + 1, &self));
                }
                found.push(object);
            }
            Ok(found)
        }
    }
    deserializer.deserialize_any(Few(PhantomData))
}

/// Requests one page of a list.
pub(crate) async fn list_page<K>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: &ListParams,
) -> Result<Page<K>, TenantApiError>
where
    Lenient<K>: Clone + DeserializeOwned + Resource,
{
    let request = Request::new(api.resource_url()).list(params);
    let client = api.clone().into_client();
    let page: Page<K> = limited(what, async {
        client.request(request.map_err(kube::Error::BuildRequest)?).await
    })
    .await?;
    let most = params
        .limit
        .map_or(OBJECTS_MAX, |limit| usize::try_from(limit).unwrap_or(OBJECTS_MAX));
    match page.items.len() {
        found if found > most => Err(TenantApiError::TooMany { what, most }),
        _ => Ok(page),
    }
}

/// Lists all objects that can be decoded. `trim` trims each object before the next page is
/// requested.
pub(crate) async fn list_pages<K>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
    trim: impl Fn(K) -> K,
) -> Result<Vec<K>, TenantApiError>
where
    Lenient<K>: Clone + DeserializeOwned + Resource,
{
    let mut found = Vec::new();
    let collect = |object| {
        found.push(trim(object));
        None::<()>
    };
    find_in_pages(what, api, params, pages, collect).await?;
    Ok(found)
}

/// Returns the first result of `find` in a list, among the objects that can be decoded. Later pages
/// are not requested.
pub(crate) async fn find_in_pages<K, T>(
    what: &'static str,
    api: &Api<Lenient<K>>,
    params: ListParams,
    pages: Pages,
    mut find: impl FnMut(K) -> Option<T>,
) -> Result<Option<T>, TenantApiError>
where
    Lenient<K>: Clone + DeserializeOwned + Resource,
{
    let mut params = params.limit(pages.size);
    for _ in 0..pages.max {
        let page = list_page(what, api, &params).await?;
        let next = page.next().map(|token| params.clone().continue_token(token));
        let mut objects = page
            .items
            .into_iter()
            .filter(is_named)
            .filter_map(|object| object.0.ok());
        if let Some(found) = objects.find_map(&mut find) {
            return Ok(Some(found));
        }
        match next {
            Some(next) => params = next,
            None => break,
        }
    }
    Ok(None)
}

/// Returns whether the identifying fields of an object are short enough to store.
fn is_named<K>(object: &Lenient<K>) -> bool
where
    Lenient<K>: Resource,
{
    let meta = object.meta();
    let is_short = |text: &Option<String>, most| text.as_ref().is_none_or(|text| text.len() <= most);
    meta.name.as_ref().is_some_and(|name| !name.is_empty())
        && is_short(&meta.name, NAME_MAX)
        && is_short(&meta.uid, IDENTITY_MAX)
        && is_short(&meta.resource_version, IDENTITY_MAX)
}

/// Truncates a text to this many bytes, and frees the rest of its memory.
pub(crate) fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn read(text: &str) -> Result<Page<Node>, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn the_number_of_objects_on_a_page_is_limited() {
        let page = read(
            r#"{"kind": "NodeList", "metadata": {"continue": "x", "resourceVersion": "7", "remainingItemCount": 3},
            "items": [{"metadata": {"name": "a"}}]}"#,
        )
        .unwrap();
        assert_eq!((page.next(), page.items.len()), (Some("x"), 1));
        assert_eq!(page.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(page.metadata.remaining_item_count, Some(3));
        for (rule, items, expected) in [
            ("an empty list", "[]".to_owned(), Some(0)),
            ("a null list, as Go writes it", "null".to_owned(), Some(0)),
            ("the maximum", format!("[{}{{}}]", "{},".repeat(15)), Some(16)),
            ("one object too many", format!("[{}{{}}]", "{},".repeat(16)), None),
            ("very many objects", format!("[{}{{}}]", "{},".repeat(300_000)), None),
            ("not a list", "{}".to_owned(), None),
        ] {
            let page = read(&format!(r#"{{"metadata": {{}}, "items": {items}, "odd": [{{}}]}}"#));
            assert_eq!(page.ok().map(|page| page.items.len()), expected, "{rule}");
        }
    }

    #[test]
    fn objects_with_long_identifiers_are_left_out() {
        let node = |name: usize, uid: usize| {
            let text = serde_json::json!({"metadata": {"name": "a".repeat(name), "uid": "b".repeat(uid)}});
            serde_json::from_value::<Lenient<Node>>(text).unwrap()
        };
        assert!(is_named(&node(253, 64)));
        assert!(!is_named(&node(254, 1)));
        assert!(!is_named(&node(1, 65)));
        assert!(!is_named(&node(0, 1)));
    }
}
