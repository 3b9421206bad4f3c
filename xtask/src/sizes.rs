//! Finds functions and files of production code that are longer than their limits.
//!
//! - A function's lines are those from `fn` to its closing brace. Attributes and doc comments do not count. A function
//!   or closure inside of another function counts for both.
//! - A file's lines are all its lines, without items that only tests compile.
//!
//! Both counts include comments and blank lines. docs/layers.txt says how many functions and files are too long. These
//! two numbers may only fall.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use syn::spanned::Spanned as _;
use syn::visit::Visit;
use syn::{Block, ImplItemFn, Item, ItemFn, Signature, TraitItemFn};

use crate::complaints::Complaints;
use crate::layers_file::{FILE, LayersFile};
use crate::sources::production_files;
use crate::test_code::{is_test, is_test_item};
use crate::workspace::Workspace;

/// Maximum number of lines of a function.
const FUNCTION: usize = 60;
/// Maximum number of lines of a file.
const LENGTH: usize = 400;
const COMMAND: &str = "cargo xtask sizes";

/// The functions and files that are too long, each sorted by length, the longest first.
#[derive(Debug, Default)]
struct Sizes {
    functions: Vec<Sized>,
    files: Vec<Sized>,
}

/// The number of lines of a function or file.
#[derive(Debug, PartialEq, Eq)]
struct Sized {
    lines: usize,
    /// The path, and for a function its line and its name.
    name: String,
}

/// Prints the functions and files that are too long.
pub(crate) fn print(workspace: &Workspace) -> Result<()> {
    let sizes = measure(workspace)?;
    for (what, limit, found) in [("functions", FUNCTION, sizes.functions), ("files", LENGTH, sizes.files)] {
        println!("{} {what} of more than {limit} lines", found.len());
        for Sized { lines, name } in found {
            println!("{lines:5} {name}");
        }
    }
    Ok(())
}

/// Compares the numbers of functions and files that are too long with those in docs/layers.txt.
pub(crate) fn check(workspace: &Workspace, file: &LayersFile) -> Result<Complaints> {
    let sizes = measure(workspace)?;
    let functions = compare("functions", FUNCTION, sizes.functions.len(), file.functions);
    let files = compare("files", LENGTH, sizes.files.len(), file.files);
    Ok(functions.into_iter().chain(files).collect())
}

fn compare(what: &str, limit: usize, found: usize, known: usize) -> Option<String> {
    if found > known {
        return Some(format!(
            "{found} {what} have more than {limit} lines, and {FILE} allows {known}: split one (`{COMMAND}` lists them)"
        ));
    }
    (found < known)
        .then(|| format!("{found} {what} have more than {limit} lines: lower {known} in the line `{what}` of {FILE}"))
}

fn measure(workspace: &Workspace) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    for path in production_files(workspace)? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(&workspace.root).unwrap_or(&path).display();
        let (lines, functions) = measure_file(&text).with_context(|| format!("cannot parse {name}"))?;
        sizes.functions.extend(functions.into_iter().map(|function| Sized {
            lines: function.lines,
            name: format!("{name}:{} {}", function.line, function.name),
        }));
        sizes.files.push(Sized {
            lines,
            name: name.to_string(),
        });
    }
    for (limit, found) in [(FUNCTION, &mut sizes.functions), (LENGTH, &mut sizes.files)] {
        found.retain(|sized| sized.lines > limit);
        found.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.name.cmp(&b.name)));
    }
    Ok(sizes)
}

/// The number of lines of production code in a file, and its functions.
fn measure_file(text: &str) -> syn::Result<(usize, Vec<Function>)> {
    let mut measured = Measured::default();
    measured.visit_file(&syn::parse_file(text)?);
    Ok((text.lines().count() - measured.test_lines.len(), measured.functions))
}

/// A function of production code.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// First line in the file, counted from 1.
    line: usize,
    /// Number of lines.
    lines: usize,
}

#[derive(Default)]
struct Measured {
    functions: Vec<Function>,
    /// Lines of items that only tests compile.
    test_lines: BTreeSet<usize>,
}

impl Measured {
    fn add_function(&mut self, signature: &Signature, block: &Block) {
        let line = signature.fn_token.span.start().line;
        self.functions.push(Function {
            name: signature.ident.to_string(),
            line,
            lines: block.brace_token.span.close().end().line + 1 - line,
        });
    }

    fn add_test(&mut self, span: proc_macro2::Span) {
        self.test_lines.extend(span.start().line..=span.end().line);
    }
}

impl<'ast> Visit<'ast> for Measured {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_item(item) {
            self.add_test(item.span());
        } else {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add_function(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if is_test(&item.attrs) {
            self.add_test(item.span());
        } else {
            self.add_function(&item.sig, &item.block);
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.add_function(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_without_tests_and_comments_of_a_function() {
        let text = "//! Head.\n\n/// Adds.\n#[must_use]\npub(crate) fn add(\n    a: u8,\n) -> u8 {\n    fn inner() {}\n    a\n}\n\n\
                    impl A {\n    #[cfg(test)]\n    fn b() {\n    }\n    async fn c() {\n    }\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn d() {}\n}\n";
        let (lines, functions) = measure_file(text).unwrap();
        assert_eq!(lines, 16);
        let found: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(found, [("add", 5, 6), ("inner", 8, 1), ("c", 16, 2)]);
    }

    #[test]
    fn a_number_may_fall_and_not_grow() {
        assert_eq!(compare("files", 400, 3, 3), None);
        let grown = compare("files", 400, 4, 3).unwrap_or_default();
        assert!(
            grown.starts_with("4 files have more than 400 lines, and docs/layers.txt allows 3"),
            "{grown}"
        );
        let fallen = "2 files have more than 400 lines: lower 3 in the line `files` of docs/layers.txt";
        assert_eq!(compare("files", 400, 2, 3).as_deref(), Some(fallen));
    }
}
