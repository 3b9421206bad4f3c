//! Reads the modules of a target, and the files that contain them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::{Attribute, Item, ItemMod};

use crate::test_code::is_test_item;

/// Path of a module from the crate root. The path of the root is empty.
pub(super) type ModulePath = Vec<String>;

/// A module: its file, and its items without test code.
pub(super) struct Module {
    /// Path relative to the root of the workspace. An inline module has the file of its parent.
    pub(super) file: String,
    pub(super) items: Vec<Item>,
}

/// All modules of a target, by path.
pub(super) type Tree = BTreeMap<ModulePath, Module>;

/// Reads the module tree of the target whose root file is `file`.
pub(super) fn read(file: &Path, workspace_root: &Path) -> Result<Tree> {
    let mut reader = Reader {
        workspace_root,
        tree: Tree::new(),
    };
    reader.read_file(Vec::new(), file, true)?;
    Ok(reader.tree)
}

struct Reader<'a> {
    workspace_root: &'a Path,
    tree: Tree,
}

impl Reader<'_> {
    fn read_file(&mut self, path: ModulePath, file: &Path, is_root: bool) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        let beside = file.parent().context("a source file is in a folder")?;
        let folder = if is_root {
            beside.to_owned()
        } else {
            file.with_extension("")
        };
        self.read_items(path, parsed.items, file, beside, &folder)
    }

    fn read_items(
        &mut self,
        path: ModulePath,
        items: Vec<Item>,
        file: &Path,
        beside: &Path,
        folder: &Path,
    ) -> Result<()> {
        let mut own = Vec::new();
        for item in items {
            if is_test_item(&item) {
                continue;
            }
            let Item::Mod(module) = item else {
                own.push(item);
                continue;
            };
            let mut child = path.clone();
            child.push(module.ident.to_string().trim_start_matches("r#").to_owned());
            let name = child.last().map_or("", String::as_str).to_owned();
            if let Some((_, items)) = module.content {
                self.read_items(child, items, file, beside, &folder.join(&name))?;
            } else if let Some(child_file) = find_file(&module, &name, beside, folder) {
                self.read_file(child, &child_file, child_file.ends_with("mod.rs"))?;
            }
        }
        let shown = file.strip_prefix(self.workspace_root).unwrap_or(file);
        let file = shown.to_string_lossy().into_owned();
        self.tree.insert(path, Module { file, items: own });
        Ok(())
    }
}

fn find_file(module: &ItemMod, name: &str, beside: &Path, folder: &Path) -> Option<PathBuf> {
    let given = module.attrs.iter().find_map(path_attribute);
    let candidates = match given {
        Some(path) => vec![beside.join(path)],
        None => vec![folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")],
    };
    candidates.into_iter().find(|file| file.is_file())
}

/// The value of `#[path = "…"]`.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let value = attribute
        .meta
        .require_name_value()
        .ok()
        .filter(|meta| meta.path.is_ident("path"))?;
    match &value.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}
