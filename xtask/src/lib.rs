//! `cargo xtask`: generates files from the code, and checks rules that the compiler cannot check.
//!
//! ```text
//!  yoke-api types ──crds──▶ crds/*.yaml ──▶ charts/yoke/files/crds/*.yaml
//!  envoy-types' *.proto ──descriptors──▶ ingress-xds/envoy/descriptors.binpb
//!  ingress-xds/envoy/*.yaml ──chart-files──▶ charts/yoke/files/envoy/*.yaml
//!  yoke-api types and comments ──reference──▶ docs/book/src/reference/*.md
//!  docs/layers.txt, crds/, the chart, every *.rs, *.md and example ──check──▶ a list of complaints, each naming what to do
//! ```
//!
//! A check returns its complaints. [`run`] prints all of them before it fails, so that one run
//! shows every problem.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people at a terminal"
)]

mod chart;
mod complaints;
mod copies;
mod crds;
mod descriptors;
mod examples;
mod layers;
mod layers_file;
mod links;
mod modules;
mod mounted;
mod prose;
mod reference;
mod sizes;
mod sources;
mod test_code;
mod workspace;

use std::path::Path;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::complaints::{Outcome, settle};
use crate::layers_file::LayersFile;
use crate::workspace::Workspace;

/// Generate files from the code, and check rules that the compiler cannot check.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write crds/*.yaml and the chart's copy of them from the types in api/.
    Crds,
    /// Copy the files of other folders that the chart needs into the chart.
    ChartFiles,
    /// Write ingress-xds/envoy/descriptors.binpb from the protocol files of the crate with Envoy's types.
    Descriptors,
    /// Write the book's reference pages from the types in api/.
    Reference,
    /// Run every check below. Also check sizes, reference pages, examples, links, and that every .rs
    /// file is part of a crate.
    Check,
    /// Compare the dependencies between crates and between modules with docs/layers.txt, and look
    /// for import cycles.
    CheckLayers,
    /// Write the module lines of docs/layers.txt from the imports in the code. Review the
    /// difference.
    Layers,
    /// Look for sentence openings and words that the language guide rejects.
    CheckProse,
    /// List functions of more than 60 lines and files of more than 400 lines, without test code.
    Sizes,
    /// Lint the chart, render it with helm, and check the rendered objects.
    CheckChart,
}

const NO_HELM: &str = "helm is neither in YOKE_BIN, .dev/bin nor PATH";

/// Runs one command in the workspace from which this crate was built.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    let root = workspace.root.as_path();
    match arguments.command {
        Command::Crds => crds::write(root),
        Command::ChartFiles => copies::write(root),
        Command::Descriptors => descriptors::write(root),
        Command::Reference => reference::write(root),
        Command::Check => check(&workspace),
        Command::CheckLayers => {
            let file = LayersFile::read(root)?;
            settle([
                ("layers", layers::check(&workspace, &file).into()),
                ("modules", modules::check(&workspace, &file)?.into()),
            ])
        }
        Command::Layers => modules::write_layers(&workspace),
        Command::CheckProse => settle([("prose", prose::check(&workspace)?.into())]),
        Command::Sizes => sizes::print(&workspace),
        Command::CheckChart => settle([("chart", check_chart(root)?)]),
    }
}

/// Prints an error and its causes to stderr.
pub fn report(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root.as_path();
    let file = LayersFile::read(root)?;
    settle([
        ("crds", crds::check(root)?.into()),
        ("layers", layers::check(workspace, &file).into()),
        ("modules", modules::check(workspace, &file)?.into()),
        ("sizes", sizes::check(workspace, &file)?.into()),
        ("chart-files", copies::check(root)?.into()),
        ("descriptors", descriptors::check(root)?.into()),
        ("mounted", mounted::check(workspace)?.into()),
        ("prose", prose::check(workspace)?.into()),
        ("reference", reference::check(root)?.into()),
        ("examples", examples::check(root)?.into()),
        ("links", links::check(root)?.into()),
        ("chart", check_chart(root)?),
    ])
}

/// Skips the check if helm is missing. Under `CI` that is a complaint, because a skipped check has
/// not passed.
fn check_chart(root: &Path) -> Result<Outcome> {
    match chart::find_helm(root) {
        Some(helm) => Ok(chart::check(root, &helm)?.into()),
        None if std::env::var_os("CI").is_some() => Ok(vec![NO_HELM.into()].into()),
        None => Ok(Outcome::Skipped(NO_HELM)),
    }
}
