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
mod copies;
mod crds;
mod descriptors;
mod examples;
mod layers;
mod links;
mod modules;
mod mounted;
mod prose;
mod reference;
mod workspace;

use std::path::Path;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

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
    /// Run every check below. Also check reference pages, examples, links, and that every .rs file
    /// is part of a crate.
    Check,
    /// Compare the dependencies between crates and between modules with docs/layers.txt, and look
    /// for import cycles.
    CheckLayers,
    /// Write the module lines of docs/layers.txt from the imports in the code. Review the
    /// difference.
    Layers,
    /// Look for sentence openings and words that the language guide rejects.
    CheckProse,
    /// Lint the chart, render it with helm, and check the rendered objects.
    CheckChart,
}

/// Problems that a check found, one sentence each. Empty if there are none.
type Complaints = Vec<String>;

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
        Command::Check => settle([
            ("crds", Some(crds::check(root)?)),
            ("layers", Some(layers::check(&workspace)?)),
            ("modules", Some(modules::check(&workspace)?)),
            ("chart-files", Some(copies::check(root)?)),
            ("descriptors", Some(descriptors::check(root)?)),
            ("mounted", Some(mounted::check(&workspace)?)),
            ("prose", Some(prose::check(&workspace)?)),
            ("reference", Some(reference::check(root)?)),
            ("examples", Some(examples::check(root)?)),
            ("links", Some(links::check(root)?)),
            ("chart", check_chart(root)?),
        ]),
        Command::CheckLayers => settle([
            ("layers", Some(layers::check(&workspace)?)),
            ("modules", Some(modules::check(&workspace)?)),
        ]),
        Command::Layers => modules::write_layers(&workspace),
        Command::CheckProse => settle([("prose", Some(prose::check(&workspace)?))]),
        Command::CheckChart => settle([("chart", check_chart(root)?)]),
    }
}

/// Prints an error and its causes to stderr.
pub fn report(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// Skips the check if helm is missing. Under `CI` that is a complaint, because a skipped check has
/// not passed.
fn check_chart(root: &Path) -> Result<Option<Complaints>> {
    match chart::find_helm(root) {
        Some(helm) => chart::check(root, &helm).map(Some),
        None if std::env::var_os("CI").is_some() => Ok(Some(vec![NO_HELM.into()])),
        None => Ok(None),
    }
}

fn settle<const N: usize>(results: [(&str, Option<Complaints>); N]) -> Result<()> {
    let mut count = 0;
    for (check, complaints) in results {
        let Some(complaints) = complaints else {
            println!("{check}: skipped, {NO_HELM}");
            continue;
        };
        if complaints.is_empty() {
            println!("{check}: ok");
        }
        for complaint in complaints {
            count += 1;
            println!("{check}: {complaint}");
        }
    }
    match count {
        0 => Ok(()),
        1 => bail!("1 complaint"),
        n => bail!("{n} complaints"),
    }
}
