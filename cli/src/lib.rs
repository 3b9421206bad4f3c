//! `kubectl yoke`, a kubectl plugin: creates, shows and deletes Clusters and Tenants on a host, and
//! fetches kubeconfigs.
//!
//! ```text
//!  arguments ─▶ command (create get kubeconfig join run delete status version) ─▶ session ─▶ host API
//!                 │
//!                 └─▶ yoke-view, report, advice, merge (pure) ─▶ stdout: data · stderr: progress, errors
//! ```
//!
//! Standard output carries data only, so that it can be piped. Progress, questions and errors go to
//! standard error. No output is colored.

mod advice;
mod arguments;
mod complete;
mod create;
mod delete;
mod error;
mod exit;
mod get;
mod join;
mod kubeconfig;
mod kubeconfig_file;
mod merge;
mod output;
mod overrides;
mod report;
mod run;
mod session;
mod signals;
mod ssh_key;
mod status;
mod temporary_object;
mod trace;
mod version;
mod wait;

pub use crate::arguments::Arguments;
pub use crate::error::Error;

use crate::arguments::{Command, CreateCommand, DeleteCommand, HostOptions};
use crate::session::Session;

/// Executes the parsed command line.
pub async fn run(arguments: Arguments) -> Result<(), Error> {
    let Arguments { host, command } = arguments;
    match command {
        Command::Completion { completer } => complete::completion(completer),
        Command::Complete { words } => complete::complete(&words).await,
        Command::Version(options) => version::version(&host, &options).await,
        Command::Create(CreateCommand::Cluster(options)) => {
            create::create_cluster(&Session::open(&host).await?, &options).await
        }
        Command::Create(CreateCommand::Tenant(options)) => {
            // `create tenant` has its own `--user`, with another meaning.
            let host = HostOptions { user: None, ..host };
            create::create_tenant(&Session::open(&host).await?, &options).await
        }
        Command::Get(options) => get::get(&Session::open(&host).await?, &options).await,
        Command::Join(options) => join::join(&Session::open(&host).await?, &options).await,
        Command::Run(options) => run::run(&Session::open(&host).await?, &options).await,
        Command::Kubeconfig(options) => kubeconfig::kubeconfig(&Session::open(&host).await?, &options).await,
        Command::Delete(DeleteCommand::Cluster(options)) => {
            delete::delete_cluster(&Session::open(&host).await?, &options).await
        }
        Command::Delete(DeleteCommand::Tenant(options)) => {
            delete::delete_tenant(&Session::open(&host).await?, &options).await
        }
        Command::Status(options) => status::status(&Session::open(&host).await?, &options).await,
    }
}
