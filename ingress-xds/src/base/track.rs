//! Which base configuration is served: the newest that is good. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};

use super::{Base, read};
use crate::model::{Watched, to_chain};
use crate::snapshot::Kind;

/// Something of which the host's owner is told, by an event on the ConfigMap.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The ConfigMap.
    pub object: ObjectReference,
    /// Whether it is refused.
    pub refused: bool,
    /// A sentence.
    pub note: String,
}

/// An Envoy does not take a resource.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Of which type.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// Envoy's words.
    pub reason: String,
}

/// What may change which one is served.
#[derive(Clone, Debug)]
pub enum Input {
    /// The ConfigMap was looked at.
    Seen(Watched<ConfigMap>),
    /// An Envoy refused something.
    Refused(Rejection),
}

/// Keeps what is served, and what to go back to.
#[derive(Debug)]
pub struct Tracker {
    /// Ports on which Envoy listens without it.
    ports: Vec<u16>,
    listed: bool,
    object: ObjectReference,
    served: Option<Arc<Base>>,
    before: Option<Arc<Base>>,
    /// What an Envoy refused last, and why: it is not tried again before it changes.
    rejected: Option<(Arc<Base>, String)>,
    problem: Option<String>,
}

impl Tracker {
    /// Knows nothing before the ConfigMap was looked for.
    pub fn new(ports: &[u16]) -> Self {
        Self {
            ports: ports.to_vec(),
            listed: false,
            object: ObjectReference::default(),
            served: None,
            before: None,
            rejected: None,
            problem: None,
        }
    }

    /// Where no ConfigMap is looked for.
    pub fn without() -> Self {
        Self {
            listed: true,
            served: Some(Arc::default()),
            ..Self::new(&[])
        }
    }

    /// Whether the ConfigMap was looked for.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// What is served; `None` while that is not known.
    pub fn served(&self) -> Option<&Arc<Base>> {
        self.served.as_ref()
    }

    /// Whether another one is served than the ConfigMap has.
    pub fn is_refused(&self) -> bool {
        self.problem.is_some()
    }

    /// Takes one observation in; the answer is what is to be told.
    pub fn apply(&mut self, input: Input) -> Option<Notice> {
        match input {
            Input::Seen(Watched::Applied(map)) if map.metadata.deletion_timestamp.is_none() => self.take_map(&map),
            Input::Seen(Watched::Applied(_) | Watched::Deleted(_)) => self.take(Base::default()),
            Input::Seen(Watched::Listed(keys)) => {
                self.listed = true;
                keys.is_empty().then(|| self.take(Base::default())).flatten()
            }
            Input::Refused(rejection) => self.reject(rejection),
        }
    }

    fn take_map(&mut self, map: &ConfigMap) -> Option<Notice> {
        self.object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: map.metadata.namespace.clone(),
            name: map.metadata.name.clone(),
            uid: map.metadata.uid.clone(),
            ..Default::default()
        };
        match read(map, &self.ports) {
            Ok(base) => self.take(base),
            Err(error) => self.refuse(to_chain(&error)),
        }
    }

    fn take(&mut self, base: Base) -> Option<Notice> {
        if let Some((_, reason)) = self.rejected.as_ref().filter(|(rejected, _)| **rejected == base) {
            return self.refuse(reason.clone());
        }
        let is_served = self.served.as_deref() == Some(&base);
        if is_served && self.problem.is_none() {
            return None;
        }
        self.problem = None;
        if !is_served {
            self.before = self.served.replace(Arc::new(base));
        }
        let count = self.served.as_ref().map_or(0, |served| served.len());
        self.tell(false, format!("{count} resources are served."))
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
        // Else it is served no more already.
        let rejected = self.served.take_if(|served| has(served))?;
        self.served = self.before.take().filter(|before| !has(before));
        let reason = format!("Envoy does not take {name}: {reason}");
        self.rejected = Some((rejected, reason.clone()));
        self.refuse(reason)
    }

    fn refuse(&mut self, reason: String) -> Option<Notice> {
        if self.problem.as_ref() == Some(&reason) {
            return None;
        }
        let stays = match &self.served {
            Some(_) => "The last good one is served.",
            None => "Each Envoy keeps what it has.",
        };
        let note = format!("{reason}. {stays}");
        self.problem = Some(reason);
        self.tell(true, note)
    }

    fn tell(&self, refused: bool, note: String) -> Option<Notice> {
        self.object.name.as_ref()?;
        Some(Notice {
            object: self.object.clone(),
            refused,
            note,
        })
    }
}
