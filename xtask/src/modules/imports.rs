//! Collects the imports between files: from `use` items, and from paths in code that begin with
//! `crate`, `super` or a child module.

use std::collections::BTreeMap;

use syn::visit::Visit;
use syn::{Item, ItemUse, UseTree, Visibility};

use super::tree::{ModulePath, Tree};
use crate::test_code::is_test;

/// The import graph of one target: for each file, the files that it imports and the imported names.
pub(super) type Graph = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// The names that a module imports through `use`, with their full paths.
type Names = BTreeMap<String, Vec<String>>;

/// Collects the imports of every file.
pub(super) fn collect(tree: &Tree) -> Graph {
    let resolver = Resolver::new(tree);
    let mut graph = Graph::new();
    for (path, module) in tree {
        graph.entry(module.file.clone()).or_default();
        let mut paths = Paths::default();
        for item in &module.items {
            match item {
                Item::Use(item) if matches!(item.vis, Visibility::Inherited) => {
                    paths.0.extend(flatten(item).into_iter().map(|(_, path)| path));
                }
                // A re-export counts where it is used.
                Item::Use(_) => {}
                item => paths.visit_item(item),
            }
        }
        for imported in paths.0 {
            let Some((file, name)) = resolver.resolve(path, &imported, 0) else {
                continue;
            };
            if file != module.file {
                let names = graph.entry(module.file.clone()).or_default().entry(file).or_default();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    graph
}

struct Resolver<'a> {
    tree: &'a Tree,
    /// Names that each module imports, including private ones, because a child module may use them
    /// through `super::`.
    uses: BTreeMap<ModulePath, Names>,
}

impl<'a> Resolver<'a> {
    fn new(tree: &'a Tree) -> Self {
        let uses = tree
            .iter()
            .map(|(path, module)| {
                let uses = module.items.iter().filter_map(|item| match item {
                    Item::Use(item) => Some(item),
                    _ => None,
                });
                (path.clone(), uses.flat_map(flatten).collect())
            })
            .collect();
        Self { tree, uses }
    }

    /// Finds the file that defines `path` as seen from the module `at`, and the name there. Returns
    /// `None` for paths outside this crate.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Option<(String, String)> {
        // A name may be re-exported several times. The limit ends cycles between two globs.
        if depth > 8 {
            return None;
        }
        let mut module = at.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while let Some((first, tail)) = rest.split_first()
                    && first == "super"
                {
                    module.pop();
                    rest = tail;
                }
            }
            first => {
                let mut child = module.clone();
                child.push(first.to_owned());
                if !self.tree.contains_key(&child) {
                    return None;
                }
            }
        }
        while let Some((first, tail)) = rest.split_first() {
            let mut child = module.clone();
            child.push(first.clone());
            if !self.tree.contains_key(&child) {
                break;
            }
            module = child;
            rest = tail;
        }
        if let Some(name) = rest.first()
            && let Some(target) = self.uses.get(&module).and_then(|names| names.get(name))
            && target != path
        {
            let mut followed = target.clone();
            followed.extend(rest[1..].iter().cloned());
            return self.resolve(&module, &followed, depth + 1);
        }
        let file = self.tree.get(&module)?.file.clone();
        Some((file, rest.first().cloned().unwrap_or_else(|| "*".into())))
    }
}

/// The names that a `use` item imports, each with its full path.
fn flatten(item: &ItemUse) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    flatten_tree(&item.tree, &mut Vec::new(), &mut found);
    found
}

fn flatten_tree(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let mut add = |name: String, last: String| {
        let mut path = prefix.clone();
        if last != "self" {
            path.push(last);
        }
        let name = if name == "self" {
            path.last().cloned().unwrap_or_default()
        } else {
            name
        };
        found.push((name, path));
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten_tree(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) => add(name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(rename) => add(rename.rename.to_string(), rename.ident.to_string()),
        UseTree::Glob(_) => add("*".into(), "*".into()),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten_tree(tree, prefix, found);
            }
        }
    }
}

/// Paths of two or more segments in code.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.0
                .push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0.extend(flatten(item).into_iter().map(|(_, path)| path));
    }

    // syn does not parse paths in macros. The paths in `format!` and in log statements matter most.
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in mac.tokens.clone() {
            match token {
                proc_macro2::TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.flush(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                _ => {
                    self.flush(&mut path);
                    colons = 0;
                }
            }
        }
        self.flush(&mut path);
        syn::visit::visit_macro(self, mac);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }
}

impl Paths {
    fn flush(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.0.push(std::mem::take(path));
        }
        path.clear();
    }
}
