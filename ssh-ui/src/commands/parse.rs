//! Parses the command line after `ssh HOST`. Pure. The doc comments of the options are the help
//! texts.

use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use yoke_api::KubernetesVersion;
use yoke_api::join_token::Taint;
use yoke_api::join_token::node::parse_label;
use yoke_api::names::{CLUSTER_NAME_MAX, is_label};
use yoke_view::input::{parse_duration, parse_quantity, parse_ttl};

/// Maximum length of a command line, in bytes.
pub const LINE_MAX: usize = 4096;
const WIDTH: usize = 80;

const AFTER_HELP: &str = "Without a command, in a terminal: the full-screen interface.
A kubeconfig as a file: scp HOST:NAME.kubeconfig .

Exit codes:
  0  done
  1  refused or failed; standard error says why, and what may help
  2  the command line is wrong
  3  the wait timed out; the host continues";

/// Manage your Kubernetes clusters on this host
#[derive(Parser, Clone, Debug, PartialEq)]
#[command(name = "ssh HOST", bin_name = "ssh HOST", no_binary_name = true, after_help = AFTER_HELP)]
#[command(subcommand_required = true, arg_required_else_help = true, term_width = WIDTH)]
pub struct Request {
    /// Print answers and errors as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A command with its options.
#[derive(Subcommand, Clone, Debug, PartialEq)]
pub enum Command {
    /// Show your Clusters, or one of them
    #[command(visible_alias = "ls")]
    Clusters {
        /// Show only the Cluster of this name
        #[arg(value_parser = parse_name)]
        name: Option<String>,
        /// Show more columns
        #[arg(long)]
        wide: bool,
    },
    /// Create a Cluster
    Create(CreateOptions),
    /// Print a Cluster's kubeconfig
    Kubeconfig {
        /// Name of the Cluster
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Show the Nodes of a Cluster, as the Cluster's own API reports them
    Nodes {
        /// Name of the Cluster
        #[arg(value_parser = parse_name)]
        name: String,
    },
    /// Print the command that joins a worker to a Cluster
    Join(JoinOptions),
    /// Revoke a join command: no further worker can join with it
    Revoke {
        /// Name of the JoinToken, which `join` prints
        #[arg(value_parser = parse_token_name)]
        name: String,
    },
    /// Write yoke-worker, the worker program, to standard output
    WorkerBinary {
        /// Architecture of the machine: amd64, arm64, or the output of `uname -m`
        architecture: String,
    },
    /// Put a Cluster to sleep: its state is stored, but no API answers
    Sleep(ChangeOptions),
    /// Wake a Cluster
    Wake(ChangeOptions),
    /// Delete a Cluster
    Delete {
        /// The Cluster, and whether to wait.
        #[command(flatten)]
        change: ChangeOptions,
        /// Do not ask for the name; required without a terminal
        #[arg(long)]
        yes: bool,
    },
    /// Show your Tenant and your key
    Whoami,
}

/// Options of `create`.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct CreateOptions {
    /// Name of the Cluster
    #[arg(value_parser = parse_new_name)]
    pub name: String,
    /// Kubernetes version, such as v1.35.4; the default is the host's
    #[arg(long, value_name = "VERSION")]
    pub version: Option<KubernetesVersion>,
    /// Class of the control plane; the default is the host's
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Storage quota for the Cluster's objects and their history
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = parse_quantity)]
    pub storage: Quantity,
    /// Time until the host deletes the Cluster, such as 90m or 8h; no limit if omitted
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub ttl: Option<String>,
    /// Whether to wait until the Cluster's API answers.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `join`.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct JoinOptions {
    /// Name of the Cluster
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Number of workers that may join with the command
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(i32).range(1..=100))]
    pub uses: i32,
    /// How long the command is valid, in minutes or hours, from 1m to 24h
    #[arg(long, value_name = "TIME", default_value = "15m")]
    pub ttl: String,
    /// Delete a worker's Node after it has been silent for this time, from 1m to 24h; never if
    /// omitted
    #[arg(long, value_name = "TIME")]
    pub reap_after: Option<String>,
    /// Label with which a worker registers its Node; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Taint with which a worker registers its Node, such as gpu=a100:NoSchedule; may be repeated
    #[arg(long = "taint", value_name = "KEY[=VALUE]:EFFECT")]
    pub taints: Vec<Taint>,
}

/// Options of a command that changes an existing Cluster.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct ChangeOptions {
    /// Name of the Cluster
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Whether to wait for the new state.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Whether and how long to wait.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Wait until the command has taken effect
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, at most 1h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_timeout, requires = "wait")]
    pub timeout: Duration,
}

/// Result of parsing a line that is not a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseFailure {
    /// The line requests the help.
    Help {
        /// The help text.
        text: String,
        /// Whether to answer with JSON.
        json: bool,
    },
    /// The line is invalid.
    Invalid {
        /// The reason, and how to correct it.
        text: String,
        /// Whether to answer with JSON.
        json: bool,
    },
}

impl Command {
    /// Returns the name of the command, for metrics and tokens.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Clusters { .. } => "clusters",
            Self::Create(_) => "create",
            Self::Kubeconfig { .. } => "kubeconfig",
            Self::Nodes { .. } => "nodes",
            Self::Join(_) => "join",
            Self::Revoke { .. } => "revoke",
            Self::WorkerBinary { .. } => "worker-binary",
            Self::Sleep(_) => "sleep",
            Self::Wake(_) => "wake",
            Self::Delete { .. } => "delete",
            Self::Whoami => "whoami",
        }
    }
}

/// Returns whether a command of this name exists.
pub(crate) fn is_command(name: &str) -> bool {
    Request::command()
        .get_subcommands()
        .any(|command| command.get_name() == name)
}

/// Parses a line for a program, which always gets JSON.
pub(crate) fn parse_for_program(line: &[u8]) -> Result<Request, ParseFailure> {
    match parse(line) {
        Ok(request) => Ok(Request { json: true, ..request }),
        Err(ParseFailure::Help { text, .. }) => Err(ParseFailure::Help { text, json: true }),
        Err(ParseFailure::Invalid { text, .. }) => Err(ParseFailure::Invalid { text, json: true }),
    }
}

/// Parses a line with a shell's rules for quotes. An empty line is `clusters`.
pub fn parse(line: &[u8]) -> Result<Request, ParseFailure> {
    let wrong = |text: &str| ParseFailure::Invalid {
        text: text.to_owned(),
        json: false,
    };
    if line.len() > LINE_MAX {
        return Err(wrong("the command is too long"));
    }
    let line = std::str::from_utf8(line).map_err(|_| wrong("the command is not UTF-8"))?;
    let words = shlex::split(line).ok_or_else(|| wrong("a quote in the command is not closed"))?;
    let mut words = if words.is_empty() {
        vec!["clusters".to_owned()]
    } else {
        words
    };
    let json = words.iter().any(|word| word == "--json");
    if words.first().is_some_and(|word| word == "help") {
        // clap takes the words after `help` for commands.
        words.retain(|word| word != "--json");
    }
    if words.first().is_some_and(|word| word == "scp") {
        return Err(ParseFailure::Invalid {
            text: "this server speaks SFTP only: use scp without -O".to_owned(),
            json,
        });
    }
    Request::try_parse_from(words).map_err(|error| {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp => ParseFailure::Help { text, json },
            _ => ParseFailure::Invalid {
                text: text.trim_start_matches("error: ").trim_end().to_owned(),
                json,
            },
        }
    })
}

/// Parses the name of an existing Cluster. A Cluster may have been created with a name that the
/// operator then refuses as too long. Other names are rejected here, because names become part of
/// URL paths.
pub fn parse_name(text: &str) -> Result<String, String> {
    if is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a Cluster's name is at most {CLUSTER_NAME_MAX} lower-case letters, digits and dashes, and begins with a letter"
        ))
    }
}

/// Parses the name of a new Cluster.
pub(crate) fn parse_new_name(text: &str) -> Result<String, String> {
    let name = parse_name(text)?;
    if name.len() > CLUSTER_NAME_MAX {
        return Err(format!("a Cluster's name has at most {CLUSTER_NAME_MAX} characters"));
    }
    Ok(name)
}

/// Parses the name of a JoinToken.
fn parse_token_name(text: &str) -> Result<String, String> {
    match is_label(text) {
        true => Ok(text.to_owned()),
        false => Err("a JoinToken's name consists of lower-case letters, digits and dashes, as `join` prints it; it is not the join command itself".to_owned()),
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&timeout) {
        Ok(timeout)
    } else {
        Err("expected a time from 1s to 1h".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &str) -> String {
        match parse(line.as_bytes()) {
            Err(ParseFailure::Invalid { text, .. }) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn command_line_is_consistent() {
        Request::command().debug_assert();
    }

    #[test]
    fn lines_are_read_as_a_shell_would() {
        let request = |json, command| Ok(Request { json, command });
        let clusters = Command::Clusters {
            name: None,
            wide: false,
        };
        let waiting = Waiting {
            wait: false,
            timeout: Duration::from_secs(300),
        };
        let change = |name: &str| ChangeOptions {
            name: name.to_owned(),
            waiting,
        };
        let long = "n".repeat(63);
        for (line, expected) in [
            ("", request(false, clusters.clone())),
            ("  ", request(false, clusters.clone())),
            ("ls --json", request(true, clusters.clone())),
            ("--json 'clusters'", request(true, clusters)),
            ("whoami", request(false, Command::Whoami)),
            ("sleep \"a\"", request(false, Command::Sleep(change("a")))),
            // Refused, and there: it can be taken away.
            (&format!("sleep {long}"), request(false, Command::Sleep(change(&long)))),
            (
                "delete a --yes",
                request(
                    false,
                    Command::Delete {
                        change: change("a"),
                        yes: true,
                    },
                ),
            ),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line:?}");
        }
        let Ok(Request {
            command: Command::Create(options),
            ..
        }) = parse(b"create a --version 1.35.4 --storage 1Gi --ttl 8h --wait --timeout 90s")
        else {
            panic!()
        };
        assert_eq!(options.version.unwrap().to_string(), "v1.35.4");
        assert_eq!(options.storage.0, "1Gi");
        assert_eq!(options.ttl.as_deref(), Some("8h"));
        assert_eq!(options.waiting.timeout, Duration::from_secs(90));
        assert!(options.waiting.wait);
    }

    #[test]
    fn wrong_lines_are_refused_with_a_reason() {
        for (line, part) in [
            ("rm -rf /", "unrecognized subcommand 'rm'"),
            ("create", "<NAME>"),
            ("create ../x", "lower-case letters"),
            (&format!("create {}", "n".repeat(41)), "at most 40 characters"),
            ("kubeconfig a/b", "lower-case letters"),
            ("kubeconfig 1a", "lower-case letters"),
            ("join a/b", "lower-case letters"),
            ("nodes a/b", "lower-case letters"),
            ("join a --uses 0", "1..=100"),
            ("revoke ../a", "a JoinToken's name"),
            ("worker-binary", "<ARCHITECTURE>"),
            ("clusters %2e%2e", "lower-case letters"),
            ("create a --storage much", "256Mi"),
            ("create a --wait --timeout 0", "1s to 1h"),
            ("create a --timeout 5s", "--wait"),
            ("clusters 'a", "quote"),
            ("scp -f a.kubeconfig", "without -O"),
        ] {
            let text = wrong(line);
            assert!(text.contains(part), "{line}: {text}");
            assert!(!text.contains('\u{1b}'), "{line}: {text:?}");
        }
        assert!(matches!(parse(&[0xff]), Err(ParseFailure::Invalid { .. })));
        assert!(matches!(parse(&[b'a'; 5000]), Err(ParseFailure::Invalid { .. })));
    }

    #[test]
    fn help_names_every_command() {
        for line in ["help", "--help", "-h"] {
            let Err(ParseFailure::Help { text, json: false }) = parse(line.as_bytes()) else {
                panic!("{line}");
            };
            for command in [
                "clusters",
                "create",
                "kubeconfig",
                "nodes",
                "join",
                "revoke",
                "worker-binary",
                "sleep",
                "wake",
                "delete",
                "whoami",
                "help",
            ] {
                assert!(text.contains(&format!("\n  {command}")), "{line}: {command}: {text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
        let Err(ParseFailure::Help { text, json: true }) = parse(b"help create --json") else {
            panic!();
        };
        assert!(text.contains("ssh HOST create [OPTIONS] <NAME>"), "{text}");
    }
}
