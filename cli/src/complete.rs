//! Completion: prints scripts for shells, and the candidates that kubectl requests.
//!
//! ```text
//!  kubectl yoke get <TAB> ─▶ kubectl ─▶ kubectl_complete-yoke get '' ─▶ kubectl-yoke __complete -- get '' ─▶ candidates
//! ```

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, ValueHint};
use clap_complete::engine::{self, CompletionCandidate};
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use yoke_api::{Cluster, Tenant};

use crate::arguments::{Arguments, Completer, HostOptions, Kind};
use crate::session::Session;
use crate::{Error, output};

const PROGRAM: &str = "kubectl-yoke";
/// The program that kubectl runs, see `SetupPluginCompletion` in kubectl's
/// `pkg/cmd/plugin/plugin_completion.go`.
const FOR_KUBECTL: &str = "#!/bin/sh\nexec kubectl-yoke __complete -- \"$@\"\n";
/// cobra's `ShellCompDirectiveNoFileComp`: without a candidate, do not offer files.
const NO_FILES: &str = ":4\n";
/// cobra's `ShellCompDirectiveDefault`.
const FILES: &str = ":0\n";
/// Limit for the requests to the host: the user waits at the prompt.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the completion script for a shell or for kubectl.
pub(crate) fn completion(completer: Completer) -> Result<(), Error> {
    let shell = match completer {
        Completer::Kubectl => return output::put(FOR_KUBECTL),
        Completer::Shell(shell) => shell,
    };
    let mut script = Vec::new();
    let mut command = Arguments::command().bin_name(PROGRAM);
    clap_complete::generate(shell, &mut command, PROGRAM, &mut script);
    output::put(&String::from_utf8_lossy(&script))
}

/// Prints for kubectl the candidates for the last of `words`, and whether that word may be a file.
pub(crate) async fn complete(words: &[OsString]) -> Result<(), Error> {
    let current = words.last().cloned().unwrap_or_default();
    let mut line = vec![OsString::from(PROGRAM)];
    line.extend(words.iter().cloned());
    if words.is_empty() {
        line.push(current.clone());
    }
    let last = line.len() - 1;
    let mut command = Arguments::command();
    // A line that no word can follow is not an error: there are only no candidates.
    let found = engine::complete(&mut command, line.clone(), last, None).unwrap_or_default();
    let mut text: String = found
        .iter()
        .filter(|candidate| fits(candidate, &current))
        .map(candidate_line)
        .collect();
    let names = tokio::time::timeout(PATIENCE, names(&line)).await;
    for name in names.ok().flatten().unwrap_or_default() {
        if name.as_bytes().starts_with(current.as_encoded_bytes()) {
            text += &format!("{name}\n");
        }
    }
    let directive = if is_file(&command, &line[last - 1]) {
        FILES
    } else {
        NO_FILES
    };
    output::put(&(text + directive))
}

/// As in kubectl, options are offered only if the current word starts with a dash.
fn fits(candidate: &CompletionCandidate, current: &OsStr) -> bool {
    let is_option = |text: &OsStr| text.as_encoded_bytes().starts_with(b"-");
    is_option(current) || !is_option(candidate.get_value())
}

/// Formats a candidate with its description as cobra expects it.
fn candidate_line(candidate: &CompletionCandidate) -> String {
    let value = candidate.get_value().to_string_lossy();
    let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
    match help.lines().next() {
        Some(help) => format!("{value}\t{help}\n"),
        None => format!("{value}\n"),
    }
}

/// Returns whether the word after this option is a file.
fn is_file(command: &clap::Command, option: &OsStr) -> bool {
    let named = |arg: &clap::Arg| {
        arg.get_long()
            .is_some_and(|long| option == format!("--{long}").as_str())
    };
    command
        .get_arguments()
        .any(|arg| arg.get_value_hint() == ValueHint::FilePath && named(arg))
}

/// Returns the names of existing objects, if the last argument of the line is an object's name.
async fn names(line: &[OsString]) -> Option<Vec<String>> {
    let matches = Arguments::command()
        .ignore_errors(true)
        .try_get_matches_from(line)
        .ok()?;
    let host = HostOptions::from_arg_matches(&matches).ok()?;
    let (kind, leaf) = named_kind(&matches)?;
    let name = leaf.try_get_raw("name").ok()??.next()?;
    if Some(name) != line.last().map(OsString::as_os_str) {
        return None;
    }
    let session = Session::open(&host).await.ok()?;
    match kind {
        Kind::Clusters => list(session.api::<Cluster>()).await,
        Kind::Tenants => list(Api::<Tenant>::all(session.client.clone())).await,
    }
}

/// Returns the kind whose existing names the command accepts, with the matches of that subcommand.
fn named_kind(matches: &ArgMatches) -> Option<(Kind, &ArgMatches)> {
    match matches.subcommand()? {
        ("get", leaf) => Some((*leaf.try_get_one("kind").ok()??, leaf)),
        ("kubeconfig" | "status", leaf) => Some((Kind::Clusters, leaf)),
        ("delete", kind) => match kind.subcommand()? {
            ("cluster", leaf) => Some((Kind::Clusters, leaf)),
            ("tenant", leaf) => Some((Kind::Tenants, leaf)),
            _ => None,
        },
        _ => None,
    }
}

async fn list<K>(api: Api<K>) -> Option<Vec<String>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let list = api.list_metadata(&ListParams::default()).await.ok()?;
    Some(list.items.iter().map(|object| object.name_any()).collect())
}
