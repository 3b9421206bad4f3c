//! Processes that a test ends, stops or cuts off.

use std::time::Duration;

use anyhow::Result;
use tokio::process::Command;

use crate::command::run;
use crate::network;
use crate::stack::Stack;

const LIMIT: Duration = Duration::from_secs(5);

/// Something that can be killed.
#[derive(Clone, Debug)]
pub enum Victim {
    /// A process that the development stack's supervisor keeps, by its name there.
    Supervised(&'static str),
    /// A container of a pod: namespace, label selector, container.
    Container(String, &'static str, &'static str),
}

impl Victim {
    /// Its process now.
    pub async fn pid(&self, stack: &Stack) -> Result<u32> {
        match self {
            Self::Supervised(name) => stack.supervised_pid(name).await,
            Self::Container(namespace, selector, container) => {
                let pod = network::pod(stack, namespace, selector).await?;
                network::container_pid(stack, &pod, container).await
            }
        }
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Self::Supervised(name) => (*name).to_owned(),
            Self::Container(_, selector, container) => format!("{container} of {selector}"),
        }
    }
}

/// Sends a signal, by its name without `SIG`.
pub async fn signal(pid: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]);
    run(kill, LIMIT).await?.ok().map(drop)
}

/// Cuts the pod of a process off from everything but itself, or ends that.
pub async fn cut_off(pid: u32, cut: bool) -> Result<()> {
    let rules = if cut {
        "table inet chaos {
            chain in { type filter hook input priority -300; policy drop; iif lo accept; }
            chain out { type filter hook output priority -300; policy drop; oif lo accept; }
        }"
    } else {
        "delete table inet chaos"
    };
    let mut nft = Command::new("nsenter");
    nft.args(["--target", &pid.to_string(), "--net", "--", "nft", rules]);
    run(nft, LIMIT).await?.ok().map(drop)
}
