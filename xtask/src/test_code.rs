//! Recognizes items that only tests compile.

use syn::{Attribute, Item};

/// Whether an item is test code.
pub(crate) fn is_test_item(item: &Item) -> bool {
    is_test(attributes_of(item))
}

/// Whether `#[cfg(…)]` excludes the item from the product. That is any condition that names `test`
/// or one of the features `test-util` and `testing`.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return attribute.path().is_ident("test");
        };
        let condition = list.tokens.to_string();
        let names_test = condition
            .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
            .any(|word| ["test", "test-util", "testing"].contains(&word));
        list.path.is_ident("cfg") && names_test && !condition.replace(' ', "").contains("not(test")
    })
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
