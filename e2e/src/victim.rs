//! Processes that a test kills, stops or disconnects.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::command::run;
use crate::network;
use crate::stack::Stack;

const LIMIT: Duration = Duration::from_secs(5);

/// A process that can be killed.
#[derive(Clone, Debug)]
pub enum Victim {
    /// A process of the development stack's supervisor, by its name there.
    Supervised(&'static str),
    /// A container of a pod: namespace, label selector, container name.
    Container(String, &'static str, &'static str),
}

/// The network namespace of a pod. This value keeps it open while containers of the pod exit and
/// restart.
#[derive(Debug)]
pub struct PodNetwork(File);

impl Victim {
    /// Current pid of the process.
    pub async fn pid(&self, stack: &Stack) -> Result<u32> {
        match self {
            Self::Supervised(name) => stack.supervised_pid(name).await,
            Self::Container(namespace, selector, container) => {
                let pod = network::pod(stack, namespace, selector).await?;
                network::container_pid(stack, &pod, container).await
            }
        }
    }

    /// Name for messages.
    pub fn name(&self) -> String {
        match self {
            Self::Supervised(name) => (*name).to_owned(),
            Self::Container(_, selector, container) => format!("{container} of {selector}"),
        }
    }
}

impl PodNetwork {
    /// The network namespace of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        File::open(&path).map(Self).with_context(|| format!("opening {path}"))
    }

    /// Disconnects the pod from everything but itself.
    pub async fn disconnect(&self) -> Result<()> {
        self.change(
            "table inet chaos {
                chain in { type filter hook input priority -300; policy drop; iif lo accept; }
                chain out { type filter hook output priority -300; policy drop; oif lo accept; }
            }",
        )
        .await
    }

    /// Reconnects the pod.
    pub async fn reconnect(&self) -> Result<()> {
        self.change("delete table inet chaos").await
    }

    async fn change(&self, rules: &str) -> Result<()> {
        let held = format!("--net=/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let mut nft = Command::new("nsenter");
        nft.args([&held, "--", "nft", rules]);
        run(nft, LIMIT).await?.ok().map(drop)
    }
}

/// Sends a signal, named without `SIG`.
pub async fn signal(pid: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]);
    run(kill, LIMIT).await?.ok().map(drop)
}
