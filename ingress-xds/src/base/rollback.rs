//! Selects the base configuration that is served: the newest valid one. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};

use super::read::read;
use super::resources::Base;
use crate::model::observation::{Watched, to_chain};
use crate::snapshot::resource::ResourceKind;

/// A change that the host's owner learns from an event on the ConfigMap.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The ConfigMap.
    pub object: ObjectReference,
    /// Whether the ConfigMap is refused.
    pub refused: bool,
    /// Text of the event, one or two sentences.
    pub note: String,
}

/// A resource that an Envoy refused.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Type of the resource.
    pub kind: ResourceKind,
    /// Name of the resource.
    pub name: Arc<str>,
    /// Version of the resource.
    pub version: Arc<str>,
    /// Envoy's error message.
    pub reason: String,
}

/// An input of the tracker.
#[derive(Clone, Debug)]
pub enum Input {
    /// An observation of the ConfigMap.
    Seen(Watched<ConfigMap>),
    /// An Envoy has refused a resource.
    Refused(Rejection),
}

/// Stores the served configuration and the previous one for a rollback.
#[derive(Debug)]
pub struct Tracker {
    /// Ports of Envoy's bootstrap.
    ports: Vec<u16>,
    listed: bool,
    object: ObjectReference,
    served: Option<Arc<Base>>,
    previous: Option<Arc<Base>>,
    /// The configuration that an Envoy refused last, and its reason. It is not tried again
    /// unchanged.
    rejected: Option<(Arc<Base>, String)>,
    problem: Option<String>,
}

impl Tracker {
    /// A tracker that has not seen a list of ConfigMaps yet.
    pub fn new(ports: &[u16]) -> Self {
        Self {
            ports: ports.to_vec(),
            listed: false,
            object: ObjectReference::default(),
            served: None,
            previous: None,
            rejected: None,
            problem: None,
        }
    }

    /// A tracker for processes without a base ConfigMap.
    pub fn disabled() -> Self {
        Self {
            listed: true,
            served: Some(Arc::default()),
            ..Self::new(&[])
        }
    }

    /// Whether the ConfigMap was listed once.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// The served configuration; `None` while it is unknown.
    pub fn served(&self) -> Option<&Arc<Base>> {
        self.served.as_ref()
    }

    /// Whether the ConfigMap's configuration is refused, so another one is served.
    pub fn is_refused(&self) -> bool {
        self.problem.is_some()
    }

    /// Applies one input. Returns a notice for the host's owner, if there is news.
    pub fn apply(&mut self, input: Input) -> Option<Notice> {
        match input {
            Input::Seen(Watched::Applied(map)) if map.metadata.deletion_timestamp.is_none() => self.read_map(&map),
            Input::Seen(Watched::Applied(_) | Watched::Deleted(_)) => self.serve(Base::default()),
            Input::Seen(Watched::Listed(keys)) => {
                self.listed = true;
                keys.is_empty().then(|| self.serve(Base::default())).flatten()
            }
            Input::Refused(rejection) => self.reject(rejection),
        }
    }

    fn read_map(&mut self, map: &ConfigMap) -> Option<Notice> {
        self.object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: map.metadata.namespace.clone(),
            name: map.metadata.name.clone(),
            uid: map.metadata.uid.clone(),
            ..Default::default()
        };
        match read(map, &self.ports) {
            Ok(base) => self.serve(base),
            Err(error) => self.refuse(to_chain(&error)),
        }
    }

    fn serve(&mut self, base: Base) -> Option<Notice> {
        if let Some((_, reason)) = self.rejected.as_ref().filter(|(rejected, _)| **rejected == base) {
            return self.refuse(reason.clone());
        }
        let is_served = self.served.as_deref() == Some(&base);
        if is_served && self.problem.is_none() {
            return None;
        }
        self.problem = None;
        if !is_served {
            self.previous = self.served.replace(Arc::new(base));
        }
        let count = self.served.as_ref().map_or(0, |served| served.len());
        self.build_notice(false, format!("{count} resources are served."))
    }

    fn reject(&mut self, rejection: Rejection) -> Option<Notice> {
        let Rejection {
            kind,
            name,
            version,
            reason,
        } = rejection;
        let has = |base: &Base| {
            base.get(kind, &name)
                .is_some_and(|resource| resource.version == version)
        };
        // Otherwise the refused version is no longer served.
        let rejected = self.served.take_if(|served| has(served))?;
        self.served = self.previous.take().filter(|before| !has(before));
        let reason = format!("Envoy rejected {name}: {reason}");
        self.rejected = Some((rejected, reason.clone()));
        self.refuse(reason)
    }

    fn refuse(&mut self, reason: String) -> Option<Notice> {
        if self.problem.as_ref() == Some(&reason) {
            return None;
        }
        let stays = match &self.served {
            Some(_) => "The last good configuration is still served.",
            None => "Each Envoy continues with the resources that it has.",
        };
        let note = format!("{reason}. {stays}");
        self.problem = Some(reason);
        self.build_notice(true, note)
    }

    fn build_notice(&self, refused: bool, note: String) -> Option<Notice> {
        self.object.name.as_ref()?;
        Some(Notice {
            object: self.object.clone(),
            refused,
            note,
        })
    }
}
