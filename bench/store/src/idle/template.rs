//! Reads the containers of a control plane from the operator's golden files. A copy would become
//! outdated.

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Container};

/// A Cluster of the operator's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// All fields have their defaults.
    Plain,
    /// The Cluster sleeps after a time without use, so its API server sends audit events.
    Audited,
}

/// The containers of a control plane, and the files of its ConfigMap.
pub(super) struct Template {
    containers: Vec<Container>,
    /// Name and content.
    pub(super) files: Vec<(String, String)>,
}

/// The command of a container.
pub(super) struct Command {
    /// Environment variables.
    pub(super) environment: Vec<(String, String)>,
    /// Program and arguments.
    pub(super) arguments: Vec<String>,
}

impl Template {
    /// Reads the golden files of a case.
    pub(super) fn read(case: Case) -> Result<Self> {
        let (set, files) = match case {
            Case::Plain => (
                include_str!("../../../../operator/testdata/build/plain/out.statefulset.yaml"),
                include_str!("../../../../operator/testdata/build/plain/out.configmap.yaml"),
            ),
            Case::Audited => (
                include_str!("../../../../operator/testdata/build/idle/out.statefulset.yaml"),
                include_str!("../../../../operator/testdata/build/idle/out.configmap.yaml"),
            ),
        };
        let set: StatefulSet = serde_saphyr::from_str(set)?;
        let files: ConfigMap = serde_saphyr::from_str(files)?;
        let pod = set.spec.and_then(|spec| spec.template.spec).context("no pod")?;
        Ok(Self {
            containers: pod.containers,
            files: files.data.unwrap_or_default().into_iter().collect(),
        })
    }

    /// The container with this name.
    pub(super) fn container(&self, name: &str) -> Result<&Container> {
        let found = self.containers.iter().find(|container| container.name == name);
        found.with_context(|| format!("no container {name}"))
    }

    /// The argument after an option in a container's command.
    pub(super) fn option(&self, name: &str, option: &str) -> Result<String> {
        let arguments = self.command(name)?.arguments;
        let mut behind = arguments.into_iter().skip_while(|argument| argument != option).skip(1);
        behind.next().with_context(|| format!("{name} has no {option}"))
    }

    /// The command of a container.
    pub(super) fn command(&self, name: &str) -> Result<Command> {
        let container = self.container(name)?;
        let variables = container.env.iter().flatten();
        Ok(Command {
            environment: variables
                .filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?)))
                .collect(),
            arguments: container
                .command
                .iter()
                .chain(&container.args)
                .flatten()
                .cloned()
                .collect(),
        })
    }
}
