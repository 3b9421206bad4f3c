//! Processes that a test ends, stops or cuts off.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
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

/// The network of a pod, which is there as long as this is held: a container may end and start again meanwhile, and its process
/// with it.
#[derive(Debug)]
pub struct PodNetwork(File);

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

impl PodNetwork {
    /// The network that a process is in.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        File::open(&path).map(Self).with_context(|| format!("opening {path}"))
    }

    /// Cuts the pod off from everything but itself.
    pub async fn cut(&self) -> Result<()> {
        self.change(
            "table inet chaos {
                chain in { type filter hook input priority -300; policy drop; iif lo accept; }
                chain out { type filter hook output priority -300; policy drop; oif lo accept; }
            }",
        )
        .await
    }

    /// Ends that.
    pub async fn mend(&self) -> Result<()> {
        self.change("delete table inet chaos").await
    }

    async fn change(&self, rules: &str) -> Result<()> {
        let held = format!("--net=/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let mut nft = Command::new("nsenter");
        nft.args([&held, "--", "nft", rules]);
        run(nft, LIMIT).await?.ok().map(drop)
    }
}

/// Sends a signal, by its name without `SIG`.
pub async fn signal(pid: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]);
    run(kill, LIMIT).await?.ok().map(drop)
}
